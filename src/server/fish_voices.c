/* fish_voices.c - the store of voices in Fish's spelling. */
#include <stddef.h>
#include <string.h>

#include "base/memory.h"
#include "server/answer.h"
#include "server/handlers.h"
#include "server/voices.h"

static const struct th_field add_fields[] = {
    {"id", TH_FIELD_TEXT, offsetof(struct th_voice_form, name), 0, 0, 0, NULL, NULL, "The voice's name."},
    {"audio", TH_FIELD_VALUE, offsetof(struct th_voice_form, sample), 0, 0, 0, "File", NULL, "The recording."},
    {"text", TH_FIELD_TEXT, offsetof(struct th_voice_form, transcript), 0, 0, 0, NULL, NULL, "The words spoken in it."},
    {"consent", TH_FIELD_TEXT, offsetof(struct th_voice_form, consent), 0, 0, 0, NULL, NULL, "Kept with the voice."},
};
const struct th_fields th_fish_add_fields = {"ReferenceAdd", "reference", add_fields, sizeof add_fields / sizeof *add_fields, "id"};

struct names {
    struct th_text id, old_id, new_id;
};
static const struct th_field name_fields[] = {
    {"reference_id", TH_FIELD_TEXT, offsetof(struct names, id), 0, 0, 0, NULL, NULL, "The voice's name."},
    {"old_reference_id", TH_FIELD_TEXT, offsetof(struct names, old_id), 0, 0, 0, NULL, NULL, "The voice's name."},
    {"new_reference_id", TH_FIELD_TEXT, offsetof(struct names, new_id), 0, 0, 0, NULL, NULL, "Its new name."},
};
const struct th_fields th_fish_name_fields = {"ReferenceNames", "reference", name_fields, sizeof name_fields / sizeof *name_fields,
                                              NULL};

enum MHD_Result th_handle_reference_add(struct th_exchange *x)
{
    struct th_voice_form form = {0};
    struct th_fault fault;
    int existed;
    int flags = TH_FIELDS_IGNORE_UNKNOWN | TH_FIELDS_FORM;
    if (th_exchange_parse(x, &fault) != THESPIS_OK ||
        th_fields_read(&th_fish_add_fields, &x->tree.root, flags, "", &form, &fault) != THESPIS_OK ||
        th_voice_store_form(x, &form, "id", 0, &existed, &fault) != THESPIS_OK)
        return th_answer_fault(x, &fault);
    json_t *id = json_stringn(form.name.at, form.name.count);
    return th_answer_json(x, 200, json_pack("{s:b,s:s,s:o}", "success", 1, "message", "the voice is stored", "reference_id", id));
}

enum MHD_Result th_handle_reference_list(struct th_exchange *x)
{
    struct th_voice_list list;
    struct th_fault fault;
    thespis_error error;
    if (th_voice_store_list(&x->server->store, &list, &error) != THESPIS_OK) {
        th_fault_set(&fault, 500, NULL, "%s", error.message);
        return th_answer_fault(x, &fault);
    }
    json_t *ids = json_array();
    for (size_t i = 0; ids != NULL && i < list.count; i++) json_array_append_new(ids, json_string(list.entries[i].name));
    th_voice_list_free(&list);
    return th_answer_json(x, 200, json_pack("{s:b,s:o,s:s}", "success", 1, "reference_ids", ids, "message", "the stored voices"));
}

/* Names of the body; the fields that `needed` lists must be there. */
static thespis_status read_names(struct th_exchange *x, struct names *names, struct th_fault *fault)
{
    memset(names, 0, sizeof *names);
    TH_TRY(th_exchange_parse(x, fault));
    return th_fields_read(&th_fish_name_fields, &x->tree.root, TH_FIELDS_IGNORE_UNKNOWN | TH_FIELDS_FORM, "", names, fault);
}

static thespis_status take_name(struct th_text text, const char *field, char **name, struct th_fault *fault)
{
    *name = NULL;
    if (th_text_is_blank(text)) return th_fault_set(fault, 400, field, "%s must be a non-empty string", field);
    if (memchr(text.at, '\0', text.count) != NULL) return th_fault_set(fault, 400, field, "%s holds a zero byte", field);
    *name = th_text_copy(text);
    return *name != NULL ? THESPIS_OK : th_fault_set(fault, 503, NULL, "out of memory for a name");
}

enum MHD_Result th_handle_reference_delete(struct th_exchange *x)
{
    struct names names;
    struct th_fault fault;
    char *name = NULL;
    thespis_status status = read_names(x, &names, &fault);
    if (status == THESPIS_OK) status = take_name(names.id, "reference_id", &name, &fault);
    if (status == THESPIS_OK) status = th_voice_forget(x, name, "reference_id", &fault);
    enum MHD_Result result =
        status != THESPIS_OK
            ? th_answer_fault(x, &fault)
            : th_answer_json(x, 200,
                             json_pack("{s:b,s:s,s:s}", "success", 1, "message", "the voice is forgotten", "reference_id", name));
    th_free(name);
    return result;
}

/* What the store says of a renaming, as HTTP has it. */
static thespis_status rename_voice(struct th_exchange *x, const char *from, const char *to, struct th_fault *fault)
{
    thespis_error error;
    int found, taken;
    thespis_status status = th_voice_store_rename(&x->server->store, from, to, &found, &taken, &error);
    if (status == THESPIS_OK) return status;
    th_fault_from(fault, &error, "", "new_reference_id");
    if (!found) th_fault_set(fault, 404, "old_reference_id", "unknown voice '%.100s'", from);
    if (taken) th_fault_set(fault, 409, "new_reference_id", "there is a voice named '%.100s' already", to);
    return status;
}

enum MHD_Result th_handle_reference_update(struct th_exchange *x)
{
    struct names names;
    struct th_fault fault;
    char *from = NULL, *to = NULL;
    thespis_status status = read_names(x, &names, &fault);
    if (status == THESPIS_OK) status = take_name(names.old_id, "old_reference_id", &from, &fault);
    if (status == THESPIS_OK) status = take_name(names.new_id, "new_reference_id", &to, &fault);
    if (status == THESPIS_OK) status = rename_voice(x, from, to, &fault);
    enum MHD_Result result = status != THESPIS_OK
                                 ? th_answer_fault(x, &fault)
                                 : th_answer_json(x, 200,
                                                  json_pack("{s:b,s:s,s:s,s:s}", "success", 1, "message", "the voice is renamed",
                                                            "old_reference_id", from, "new_reference_id", to));
    th_free(from);
    th_free(to);
    return result;
}
