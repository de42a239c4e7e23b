/* voices.c - the routes for stored voices, in OpenAI's and in Fish's spelling. */
#include "server/voices.h"

#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "server/answer.h"
#include "server/handlers.h"

#define AT(field) offsetof(struct th_voice_form, field)

static const struct th_field upload[] = {
    {"name", TH_FIELD_TEXT, AT(name), 0, 0, 0, NULL, NULL, "A to Z, digits, _ . - and blanks; letter case does not count."},
    {"audio_sample", TH_FIELD_VALUE, AT(sample), 0, 0, 0, "File", NULL, "The recording, 0.5 to 60 seconds, at most 10 MiB."},
    {"consent", TH_FIELD_TEXT, AT(consent), 0, 0, 0, NULL, NULL, "What the speaker agreed to; kept with the voice."},
    {"ref_text", TH_FIELD_TEXT, AT(transcript), 0, 0, 0, NULL, NULL, "The words spoken in the recording."},
    {"speaker_description", TH_FIELD_TEXT, AT(description), 0, 0, 0, NULL, NULL, "Kept with the voice."},
    {"type", TH_FIELD_TEXT, AT(type), 0, 0, 0, NULL, "audio_sample", "Only audio_sample."},
    {"model", TH_FIELD_IGNORED, 0, 0, 0, 0, NULL, NULL, "Accepted, without effect."},
    {"script_hint", TH_FIELD_IGNORED, 0, 0, 0, 0, NULL, NULL, "Accepted, without effect."},
    {"prompt", TH_FIELD_REFUSED, 0, 0, 0, 0, NULL, NULL, "Refused: voices are made from recordings."},
};
const struct th_fields th_upload_fields = {"VoiceUpload", "voice", upload, sizeof upload / sizeof *upload, "audio_sample"};

/* ---- storing ----------------------------------------------------------------------------------------------------------------- */

static thespis_status check_form(const struct th_exchange *x, const struct th_voice_form *form, const char *name_field,
                                 struct th_fault *fault)
{
    if (th_text_is_blank(form->name)) return th_fault_set(fault, 400, name_field, "%s must be a non-empty string", name_field);
    if (form->sample == NULL || (form->sample->kind != TH_BINARY && form->sample->kind != TH_TEXT))
        return th_fault_set(fault, 400, "audio_sample", "the recording is missing: send it as a file");
    if (form->sample->count > (size_t)10 << 20)
        return th_fault_set(fault, 400, "audio_sample", "the recording has %zu bytes, at most %d are allowed", form->sample->count,
                            10 << 20);
    if (form->type.at != NULL && !th_text_is(form->type, "audio_sample"))
        return th_fault_set(fault, 400, "type", "type must be audio_sample");
    if (x->server->options.require_consent && th_text_is_blank(form->consent))
        return th_fault_set(fault, 400, "consent", "consent must be a non-empty string");
    return THESPIS_OK;
}

/* Texts with their zero bytes; each NULL when absent. */
struct texts {
    char *name, *consent, *description;
};

static thespis_status copy_texts(const struct th_voice_form *form, struct texts *t, struct th_fault *fault)
{
    thespis_error error;
    t->name = th_text_copy(form->name);
    t->consent = th_text_copy(form->consent);
    t->description = th_text_copy(form->description);
    if (t->name == NULL || t->consent == NULL || t->description == NULL) {
        th_fail_memory(&error, "a voice", form->name.count);
        return th_fault_from(fault, &error, "", NULL);
    }
    if (strlen(t->name) == form->name.count && strlen(t->consent) == form->consent.count &&
        strlen(t->description) == form->description.count)
        return THESPIS_OK;
    return th_fault_set(fault, 400, NULL, "a field of the form holds a zero byte");
}

static thespis_status store(struct th_exchange *x, const struct th_voice_form *form, const struct texts *t, const char *name_field,
                            int replace, int *existed, struct th_fault *fault)
{
    struct th_server *s = x->server;
    char key[TH_VOICE_NAME_MAX + 1];
    thespis_error error;
    struct th_voice_input input = {.path = "audio_sample",
                                   .bytes = form->sample->text,
                                   .count = form->sample->count,
                                   .transcript = form->transcript.at != NULL ? form->transcript.at : "",
                                   .transcript_bytes = form->transcript.count};
    struct th_voice_facts facts = {.consent = t->consent, .description = t->description};
    if (th_voice_name_check(t->name, strlen(t->name), key, &error) != THESPIS_OK)
        return th_fault_from(fault, &error, "", name_field);
    thespis_status status = th_voice_store_add(&s->store, s->engine, key, &input, 1, &facts, replace, existed, &error);
    if (status == THESPIS_OK) return status;
    th_fault_from(fault, &error, "", "audio_sample");
    if (*existed && !replace) th_fault_set(fault, 409, name_field, "there is a voice named '%s' already", key);
    if (error.status == THESPIS_BUSY) th_fault_set(fault, 503, NULL, "%s", error.message);
    return status;
}

thespis_status th_voice_store_form(struct th_exchange *x, const struct th_voice_form *form, const char *name_field, int replace,
                                   int *existed, struct th_fault *fault)
{
    struct texts t = {0};
    *existed = 0;
    TH_TRY(check_form(x, form, name_field, fault));
    thespis_status status = copy_texts(form, &t, fault);
    if (status == THESPIS_OK) status = store(x, form, &t, name_field, replace, existed, fault);
    th_free(t.name);
    th_free(t.consent);
    th_free(t.description);
    return status;
}

/* ---- telling ----------------------------------------------------------------------------------------------------------------- */

/* Of the kept recordings together; 0 when the voice was made from codes. */
static json_int_t recorded_bytes(const struct th_voice_entry *entry)
{
    json_int_t bytes = 0;
    for (size_t i = 0; i < entry->file.count; i++) {
        struct stat about;
        char *path;
        if (entry->file.references[i].suffix[0] == '\0') continue;
        if (th_voice_recording_path(entry->path, &entry->file.references[i], i, &path, NULL) != THESPIS_OK) continue;
        if (stat(path, &about) == 0) bytes += (json_int_t)about.st_size;
        th_free(path);
    }
    return bytes;
}

static const char *mime_type(const struct th_voice_entry *entry)
{
    static const struct {
        const char *suffix, *type;
    } types[] = {{"wav", "audio/wav"}, {"flac", "audio/flac"}, {"mp3", "audio/mpeg"}, {"ogg", "audio/ogg"}, {"aiff", "audio/aiff"}};
    const char *suffix = entry->file.count > 0 ? entry->file.references[0].suffix : "";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].suffix, suffix) == 0) return types[i].type;
    return "application/octet-stream";
}

static void set_text(json_t *object, const char *key, const char *text, size_t bytes)
{
    json_t *value = text != NULL && bytes > 0 ? json_stringn(text, bytes) : NULL;
    if (value != NULL) json_object_set_new(object, key, value);
}

static json_t *describe(const struct th_voice_entry *entry)
{
    const struct th_voice_file *f = &entry->file;
    json_t *object = json_pack("{s:s,s:s,s:s,s:s,s:s,s:I,s:I,s:s,s:b,s:i}", "id", entry->name, "name", entry->name, "object",
                               "audio.voice", "type", "audio_sample", "consent", f->consent != NULL ? f->consent : "", "created_at",
                               (json_int_t)f->created, "file_size", recorded_bytes(entry), "mime_type", mime_type(entry),
                               "built_in", entry->builtin, "references", (int)f->count);
    if (object == NULL) return NULL;
    if (f->count > 0) set_text(object, "ref_text", f->references[0].transcript, f->references[0].transcript_bytes);
    if (f->description != NULL) set_text(object, "speaker_description", f->description, strlen(f->description));
    if (entry->problem.status != THESPIS_OK) set_text(object, "problem", entry->problem.message, strlen(entry->problem.message));
    return object;
}

static enum MHD_Result answer_error(struct th_exchange *x, const thespis_error *error)
{
    struct th_fault fault;
    th_fault_from(&fault, error, "", NULL);
    fault.http = fault.http == 400 ? 500 : fault.http; /* not the client's */
    return th_answer_fault(x, &fault);
}

static json_t *list_names(const struct th_voice_list *list)
{
    json_t *names = json_array();
    for (size_t i = 0; names != NULL && i < list->count; i++) json_array_append_new(names, json_string(list->entries[i].name));
    return names;
}

static json_t *list_all(const struct th_exchange *x, const struct th_voice_list *list)
{
    struct th_engine_load load = {0};
    enum th_stage stage = th_server_stage(x->server);
    json_t *voices = list_names(list), *uploaded = json_array();
    if (stage != TH_STAGE_STARTING && stage != TH_STAGE_FAILED) th_engine_get_load(x->server->engine, &load);
    if (voices != NULL) json_array_insert_new(voices, 0, json_string("default"));
    for (size_t i = 0; uploaded != NULL && i < list->count; i++) json_array_append_new(uploaded, describe(&list->entries[i]));
    return json_pack("{s:s,s:o,s:o,s:o,s:{s:I,s:I,s:I}}", "object", "list", "voices", voices, "uploaded_voices", uploaded, "data",
                     json_deep_copy(uploaded), "cache_stats", "hits", (json_int_t)load.cache_hits, "misses",
                     (json_int_t)load.cache_misses, "bytes", (json_int_t)load.cache_bytes);
}

enum MHD_Result th_handle_voices(struct th_exchange *x)
{
    struct th_voice_list list;
    thespis_error error;
    if (th_voice_store_list(&x->server->store, &list, &error) != THESPIS_OK) return answer_error(x, &error);
    json_t *answer = th_exchange_query_is(x, "names_only", "true") ? json_pack("{s:o}", "uploaded_voice_names", list_names(&list))
                                                                   : list_all(x, &list);
    th_voice_list_free(&list);
    return th_answer_json(x, 200, answer);
}

/* The voice as it is stored now. */
static enum MHD_Result answer_voice(struct th_exchange *x, const char *name, const char *warning)
{
    struct th_voice_entry entry;
    thespis_error error;
    if (th_voice_store_show(&x->server->store, name, &entry, &error) != THESPIS_OK) return answer_error(x, &error);
    json_t *object = describe(&entry);
    th_voice_entry_free(&entry);
    if (object != NULL && warning != NULL) json_object_set_new(object, "warning", json_string(warning));
    return th_answer_json(x, 200, object);
}

enum MHD_Result th_handle_voice_add(struct th_exchange *x)
{
    struct th_voice_form form = {0};
    struct th_fault fault;
    int existed;
    if (th_exchange_parse(x, &fault) != THESPIS_OK ||
        th_fields_read(&th_upload_fields, &x->tree.root, TH_FIELDS_FORM, "", &form, &fault) != THESPIS_OK ||
        th_voice_store_form(x, &form, "name", 1, &existed, &fault) != THESPIS_OK)
        return th_answer_fault(x, &fault);
    char *name = th_text_copy(form.name);
    enum MHD_Result result = answer_voice(x, name != NULL ? name : "", existed ? "a voice of this name was replaced" : NULL);
    th_free(name);
    return result;
}

/* 400 for a bad name, 404 for one that is not there. */
static thespis_status find(struct th_exchange *x, const char *name, const char *field, int *builtin, struct th_fault *fault)
{
    thespis_error error;
    char *path;
    if (th_voice_store_find(&x->server->store, name, &path, builtin, &error) != THESPIS_OK)
        return th_fault_from(fault, &error, "", field);
    int there = path != NULL;
    th_free(path);
    return there ? THESPIS_OK : th_fault_set(fault, 404, field, "unknown voice '%.100s'", name);
}

enum MHD_Result th_handle_voice(struct th_exchange *x)
{
    struct th_fault fault;
    int builtin;
    if (find(x, x->argument, "name", &builtin, &fault) != THESPIS_OK) return th_answer_fault(x, &fault);
    return answer_voice(x, x->argument, NULL);
}

thespis_status th_voice_forget(struct th_exchange *x, const char *name, const char *field, struct th_fault *fault)
{
    thespis_error error;
    int builtin;
    TH_TRY(find(x, name, field, &builtin, fault));
    if (builtin) return th_fault_set(fault, 400, field, "voice '%.100s' is built in and stays", name);
    if (th_voice_store_remove(&x->server->store, name, &error) == THESPIS_OK) return THESPIS_OK;
    th_fault_from(fault, &error, "", field);
    if (error.status == THESPIS_INVALID) fault->http = 404; /* somebody was faster */
    return error.status;
}

enum MHD_Result th_handle_voice_delete(struct th_exchange *x)
{
    char key[TH_VOICE_NAME_MAX + 1];
    struct th_fault fault;
    if (th_voice_forget(x, x->argument, "name", &fault) != THESPIS_OK) return th_answer_fault(x, &fault);
    th_voice_name_check(x->argument, strlen(x->argument), key, NULL);
    return th_answer_json(x, 200,
                          json_pack("{s:b,s:s,s:s,s:s,s:b}", "success", 1, "message", "the voice is forgotten", "id", key, "object",
                                    "audio.voice.deleted", "deleted", 1));
}
