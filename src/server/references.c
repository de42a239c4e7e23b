/* references.c - see references.h. */
#include "server/references.h"

#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "engine/voice.h"
#include "server/reference_source.h"

#define NAME 120
#define LONGEST_NAME 4096 /* bytes of a path or the beginning of a URL */

static int client_gone(void *exchange)
{
    struct th_exchange *x = exchange;
    return th_link_gone(x->link);
}

/* "references.1" + ".data" for params. */
static thespis_status at_fault(struct th_fault *fault, const char *prefix, const char *name, const char *field,
                               const thespis_error *error)
{
    char where[NAME + 40];
    snprintf(where, sizeof where, "%s%s%s", name, field[0] != '\0' ? "." : "", field);
    th_fault_from(fault, error, prefix, where);
    if (fault->http == 400) th_fault_field(fault, prefix, where, "%s: %s", name, error->message);
    return error->status;
}

static thespis_status add_bytes(const void *bytes, size_t count, struct th_text text, const char *name, const char *field,
                                const char *prefix, thespis_voice *voice, struct th_fault *fault)
{
    thespis_error error;
    if (count > TH_VOICE_MAX_FILE)
        return th_fault_field(fault, prefix, name, "%s: %zu bytes, at most %zu are allowed", name, count, TH_VOICE_MAX_FILE);
    const char *words = text.at != NULL ? text.at : "";
    thespis_status status = th_voice_add_recording(voice, bytes, count, "the recording", 0, words, text.count, &error);
    return status == THESPIS_OK ? status : at_fault(fault, prefix, name, field, &error);
}

/* Text that names a recording. On the Fish route it is base64; elsewhere also what the operator allows, and base64 where nothing
 * else is meant: a path has no room for a recording. */
static thespis_status read_text_source(struct th_exchange *x, const struct th_value *source, const char *field,
                                       struct th_bytes *bytes, thespis_error *error)
{
    struct th_reference_rules rules;
    th_reference_rules_init(&rules);
    rules.media_dir = x->server->options.media_dir;
    rules.fetch = x->server->options.fetch;
    rules.gone = client_gone;
    rules.context = x;
    int base64 = strcmp(field, "data") == 0 || (x->route->flags & TH_ROUTE_FISH) != 0 ||
                 (source->count > LONGEST_NAME && memchr(source->text, ':', LONGEST_NAME) == NULL);
    if (base64) return th_base64_decode(source->text, source->count, rules.max_bytes, bytes, error);
    return th_reference_read(&rules, source->text, source->count, bytes, error);
}

/* A source as the client gave it: binary as it is, text through the decoders. */
static thespis_status add_source(struct th_exchange *x, const struct th_value *source, struct th_text text, const char *name,
                                 const char *field, const char *prefix, thespis_voice *voice, struct th_fault *fault)
{
    struct th_bytes bytes = {0};
    thespis_error error;
    char where[NAME + 40];
    snprintf(where, sizeof where, "%s%s%s", name, field[0] != '\0' ? "." : "", field);
    if (source->kind == TH_BINARY) return add_bytes(source->text, source->count, text, name, field, prefix, voice, fault);
    if (source->kind != TH_TEXT)
        return th_fault_field(fault, prefix, where, "%s must be a string, not %s", where, th_value_kind(source));
    thespis_status status = read_text_source(x, source, field, &bytes, &error);
    status = status == THESPIS_OK ? add_bytes(bytes.at, bytes.count, text, name, field, prefix, voice, fault)
                                  : at_fault(fault, prefix, name, field, &error);
    th_bytes_free(&bytes);
    return status;
}

thespis_status th_reference_add_source(struct th_exchange *x, const struct th_value *source, struct th_text text, const char *name,
                                       const char *prefix, thespis_voice *voice, struct th_fault *fault)
{
    return add_source(x, source, text, name, "", prefix, voice, fault);
}

/* vq_codes: [codebooks][frames] integers. */
static thespis_status add_codes(struct th_exchange *x, const struct th_value *codes, struct th_text text, const char *name,
                                const char *prefix, thespis_voice *voice, struct th_fault *fault)
{
    thespis_engine_info info = {.size = sizeof info};
    thespis_error error;
    int32_t *flat;
    thespis_engine_get_info(x->server->engine, &info, NULL);
    size_t books = (size_t)info.codebooks, frames = codes->kind == TH_LIST && codes->count > 0 ? codes->items[0].count : 0;
    if (codes->kind != TH_LIST || codes->count != books || frames == 0)
        return th_fault_field(fault, prefix, name, "%s.vq_codes must be %zu lists of codes", name, books);
    if (TH_ALLOC(&flat, books * frames, "codes", &error) != THESPIS_OK) return th_fault_from(fault, &error, "", NULL);
    int good = 1;
    for (size_t b = 0; b < books && good; b++) {
        const struct th_value *row = &codes->items[b];
        good = row->kind == TH_LIST && row->count == frames;
        for (size_t f = 0; f < frames && good; f++) {
            good = row->items[f].kind == TH_INTEGER && row->items[f].integer >= 0 && row->items[f].integer <= INT32_MAX;
            flat[b * frames + f] = (int32_t)row->items[f].integer;
        }
    }
    thespis_status status = THESPIS_OK;
    if (!good)
        status = th_fault_field(fault, prefix, name, "%s.vq_codes must be %zu lists of equal length of integers", name, books);
    else if (thespis_voice_add_codes(voice, flat, frames, text.at != NULL ? text.at : "", text.count, &error) != THESPIS_OK)
        status = at_fault(fault, prefix, name, "vq_codes", &error);
    th_free(flat);
    return status;
}

static thespis_status check_media_type(struct th_text type, const char *name, const char *prefix, struct th_fault *fault)
{
    if (type.at == NULL || (type.count >= 6 && strncasecmp(type.at, "audio/", 6) == 0)) return THESPIS_OK;
    return th_fault_field(fault, prefix, name, "%s.media_type is '%.*s', must be audio/*", name,
                          (int)(type.count < 40 ? type.count : 40), type.at);
}

thespis_status th_reference_add(struct th_exchange *x, const struct th_value *value, size_t index, const char *prefix,
                                thespis_voice *voice, struct th_fault *fault)
{
    struct th_reference_ask ask = {0};
    char name[NAME], inner[NAME + 80];
    int fish = (x->route->flags & TH_ROUTE_FISH) != 0;
    snprintf(name, sizeof name, "references.%zu", index);
    snprintf(inner, sizeof inner, "%.40s%s.", prefix, name);
    if (value->kind != TH_MAP)
        return th_fault_field(fault, prefix, name, "%s must be an object, not %s", name, th_value_kind(value));
    TH_TRY(th_fields_read(&th_reference_fields, value, fish ? TH_FIELDS_IGNORE_UNKNOWN : 0, inner, &ask, fault));
    TH_TRY(check_media_type(ask.media_type, name, prefix, fault));
    if (ask.vq_codes != NULL) return add_codes(x, ask.vq_codes, ask.text, name, prefix, voice, fault);
    if (ask.data != NULL) return add_source(x, ask.data, ask.text, name, "data", prefix, voice, fault);
    if (ask.audio_path != NULL) return add_source(x, ask.audio_path, ask.text, name, "audio_path", prefix, voice, fault);
    if (ask.ref_audio != NULL) return add_source(x, ask.ref_audio, ask.text, name, "ref_audio", prefix, voice, fault);
    if (ask.audio != NULL) return add_source(x, ask.audio, ask.text, name, "audio", prefix, voice, fault);
    return th_fault_field(fault, prefix, name, "%s has no recording: give data, audio, ref_audio, audio_path or vq_codes", name);
}
