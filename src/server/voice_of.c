/* voice_of.c - whose voice: references of the request, a stored voice, or the model's own choice. */
#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "server/references.h"
#include "server/speech.h"

static int is_openai_name(const char *name)
{
    static const char *const names[] = {"alloy", "ash",  "ballad",  "coral", "echo",  "fable", "onyx",
                                        "nova",  "sage", "shimmer", "verse", "marin", "cedar"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcasecmp(name, names[i]) == 0) return 1;
    return 0;
}

static thespis_status unknown(const struct th_speech_manner *m, const char *name, struct th_fault *fault)
{
    th_fault_field(fault, m->prefix, m->voice, "unknown voice '%.100s'", name);
    fault->http = m->unknown_voice;
    return THESPIS_INVALID;
}

/* The voice stored under a name, if it may and does exist. */
static thespis_status load(struct th_exchange *x, const char *name, const struct th_speech_manner *m, thespis_voice **voice,
                           struct th_fault *fault)
{
    struct th_server *s = x->server;
    thespis_error error;
    char *path;
    int builtin;
    if (th_voice_store_find(&s->store, name, &path, &builtin, &error) != THESPIS_OK)
        return th_fault_from(fault, &error, m->prefix, m->voice);
    if (path == NULL) {
        if (is_openai_name(name) && !s->options.strict_voice) return THESPIS_OK;
        return unknown(m, name, fault);
    }
    thespis_status status = th_voice_load_file(path, s->engine, voice, &error);
    th_free(path);
    if (status == THESPIS_OK) return THESPIS_OK;
    th_fault_from(fault, &error, m->prefix, m->voice);
    if (error.status == THESPIS_FORMAT) fault->http = 500; /* a damaged file of ours */
    return status;
}

static thespis_status stored_voice(struct th_exchange *x, const struct th_value *v, const struct th_speech_manner *m,
                                   thespis_voice **voice, struct th_fault *fault)
{
    if (v->kind == TH_MAP) v = v->count == 1 ? th_value_find(v, "id") : NULL;
    if (v == NULL || v->kind != TH_TEXT)
        return th_fault_field(fault, m->prefix, m->voice, "%s must be a string or {\"id\": string}", m->voice);
    struct th_text name = {v->text, v->count};
    if (th_text_is_blank(name)) return THESPIS_OK;
    char *copy = th_text_copy(name);
    if (copy == NULL) {
        thespis_error error;
        th_fail_memory(&error, "a name", v->count);
        return th_fault_from(fault, &error, "", NULL);
    }
    thespis_status status = THESPIS_OK;
    if (strlen(copy) != v->count)
        status = th_fault_field(fault, m->prefix, m->voice, "%s holds a zero byte", m->voice);
    else if (strcasecmp(copy, "default") != 0 && strcasecmp(copy, "none") != 0)
        status = load(x, copy, m, voice, fault);
    th_free(copy);
    return status;
}

static thespis_status add_references(struct th_exchange *x, const struct th_ask *ask, const struct th_speech_manner *m,
                                     thespis_voice *voice, struct th_fault *fault)
{
    const struct th_value *list = ask->references;
    if (list != NULL && list->kind != TH_LIST)
        return th_fault_field(fault, m->prefix, "references", "references must be a list, not %s", th_value_kind(list));
    if (list != NULL && list->count + (ask->ref_audio != NULL) > THESPIS_MAX_SPEAKERS)
        return th_fault_field(fault, m->prefix, "references", "%zu references, at most %d are allowed", list->count,
                              THESPIS_MAX_SPEAKERS);
    for (size_t i = 0; list != NULL && i < list->count; i++)
        TH_TRY(th_reference_add(x, &list->items[i], i, m->prefix, voice, fault));
    if (ask->ref_audio == NULL) return THESPIS_OK;
    return th_reference_add_source(x, ask->ref_audio, ask->reference_text, "ref_audio", m->prefix, voice, fault);
}

thespis_status th_speech_voice(struct th_exchange *x, const struct th_ask *ask, const struct th_speech_manner *m,
                               thespis_voice **voice, struct th_fault *fault)
{
    thespis_error error;
    int given =
        (ask->references != NULL && !(ask->references->kind == TH_LIST && ask->references->count == 0)) || ask->ref_audio != NULL;
    *voice = NULL;
    if (ask->reference_text.at != NULL && ask->ref_audio == NULL)
        return th_fault_field(fault, m->prefix, "ref_text", "ref_text is given without ref_audio");
    /* On the Fish route a stored voice wins over references, on OpenAI's it is the other way round. */
    if (ask->voice != NULL && (!given || m->unknown_voice == 404)) return stored_voice(x, ask->voice, m, voice, fault);
    if (!given) return THESPIS_OK;
    if (thespis_voice_new(x->server->engine, voice, &error) != THESPIS_OK) return th_fault_from(fault, &error, "", NULL);
    return add_references(x, ask, m, *voice, fault);
}
