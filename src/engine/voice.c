/* voice.c - voices: recordings or codes with their transcripts, copied and encoded. */
#include "engine/voice.h"

#include <math.h>
#include <string.h>

#include "audio/recording.h"
#include "base/file.h"
#include "base/memory.h"
#include "engine/codec_jobs.h"
#include "engine/engine.h"
#include "text/validate.h"

thespis_status th_voice_new(thespis_engine *engine, thespis_voice **voice, thespis_error *error)
{
    TH_TRY(TH_ALLOC(voice, 1, "a voice", error));
    (*voice)->engine = engine;
    return THESPIS_OK;
}

thespis_status thespis_voice_new(thespis_engine *engine, thespis_voice **voice, thespis_error *error)
{
    *voice = NULL;
    if (engine->parts.model == NULL)
        return th_fail(error, THESPIS_INVALID, "this engine was opened with a codec alone: voices need a model");
    return th_voice_new(engine, voice, error);
}

void thespis_voice_free(thespis_voice *voice)
{
    if (voice == NULL) return;
    for (size_t i = 0; i < voice->count; i++) {
        th_free((void *)voice->references[i].transcript);
        th_free((void *)voice->references[i].codes);
    }
    th_free(voice->references);
    th_free(voice);
}

/* What can be refused before the work of encoding. */
static thespis_status check_reference(const thespis_voice *voice, const char *transcript, size_t bytes, thespis_error *error)
{
    if (voice->count == THESPIS_MAX_SPEAKERS)
        return th_fail(error, THESPIS_LIMIT, "references.%zu: a voice has at most %d references", voice->count,
                       THESPIS_MAX_SPEAKERS);
    thespis_status status = th_validate_text(transcript, bytes, TH_TEXT_ALLOW_BLANK, NULL, error);
    if (status != THESPIS_OK) th_error_prefix(error, "references.%zu.transcript: ", voice->count);
    return status;
}

/* Takes over codes [codebooks][frames] (frees them on failure). */
static thespis_status append(thespis_voice *voice, int32_t *codes, size_t frames, const char *transcript, size_t bytes,
                             thespis_error *error)
{
    char *text = th_copy_string(transcript, bytes);
    struct th_prompt_reference *grown =
        text != NULL ? th_realloc(voice->references, voice->count, voice->count + 1, sizeof *voice->references) : NULL;
    if (grown == NULL) {
        th_free(text);
        th_free(codes);
        return th_fail_memory(error, "a reference", bytes + sizeof *voice->references);
    }
    voice->references = grown;
    grown[voice->count++] = (struct th_prompt_reference){text, bytes, codes, frames};
    return THESPIS_OK;
}

static thespis_status check_kept(const struct th_recording *recording, const char *name, thespis_error *error)
{
    double seconds = (double)recording->count / THESPIS_SAMPLE_RATE;
    float peak = 0;
    if (seconds < TH_VOICE_MIN_SECONDS)
        return th_fail(error, THESPIS_INVALID, "%s: %.2f seconds, a voice needs %.1f to %.0f", name, seconds, TH_VOICE_MIN_SECONDS,
                       TH_MAX_REFERENCE_SECONDS);
    for (size_t i = 0; i < recording->count; i++) peak = fmaxf(peak, fabsf(recording->samples[i]));
    if (peak > TH_VOICE_MIN_PEAK) return THESPIS_OK;
    return th_fail(error, THESPIS_INVALID, "%s: silent (its loudest sample is %g), a voice must be heard", name, (double)peak);
}

/* Codes of a recording, from the cache when equal bytes were encoded lately. */
static thespis_status encode_bytes(thespis_engine *e, const void *bytes, size_t count, const char *name, int flags, int32_t **codes,
                                   size_t *frames, thespis_error *error)
{
    char key[65];
    struct th_recording recording = {0};
    int cached = count <= TH_CODE_CACHE_MAX_FILE;
    *codes = NULL;
    if (cached) {
        th_code_cache_key(e->parts.codec->id, bytes, count, key);
        TH_TRY(th_code_cache_get(e->code_cache, key, codes, frames, error));
    }
    if (*codes != NULL && !(flags & TH_VOICE_TO_KEEP)) return THESPIS_OK;
    thespis_status status = th_recording_read_bytes(bytes, count, name, TH_MAX_REFERENCE_SECONDS, &recording, error);
    if (status == THESPIS_OK && (flags & TH_VOICE_TO_KEEP)) status = check_kept(&recording, name, error);
    if (status == THESPIS_OK && *codes == NULL) {
        status = th_encode(e, recording.samples, recording.count, codes, frames, error);
        if (status == THESPIS_OK && cached) th_code_cache_put(e->code_cache, key, *codes, e->parts.codebooks, *frames);
    }
    th_recording_free(&recording);
    if (status == THESPIS_OK) return THESPIS_OK;
    th_free(*codes);
    *codes = NULL;
    return status;
}

thespis_status th_voice_add_recording(thespis_voice *voice, const void *bytes, size_t count, const char *name, int flags,
                                      const char *transcript, size_t transcript_bytes, thespis_error *error)
{
    int32_t *codes;
    size_t frames;
    TH_TRY(check_reference(voice, transcript, transcript_bytes, error));
    fenv_t callers;
    th_default_floats(&callers); /* resampling, too */
    thespis_status status = encode_bytes(voice->engine, bytes, count, name, flags, &codes, &frames, error);
    fesetenv(&callers);
    TH_TRY(status);
    return append(voice, codes, frames, transcript, transcript_bytes, error);
}

thespis_status thespis_voice_add_bytes(thespis_voice *voice, const void *bytes, size_t count, const char *transcript,
                                       size_t transcript_bytes, thespis_error *error)
{
    return th_voice_add_recording(voice, bytes, count, "the recording", 0, transcript, transcript_bytes, error);
}

thespis_status thespis_voice_add_file(thespis_voice *voice, const char *path, const char *transcript, size_t transcript_bytes,
                                      thespis_error *error)
{
    struct th_map map;
    TH_TRY(check_reference(voice, transcript, transcript_bytes, error));
    TH_TRY(th_map_open(path, &map, error));
    thespis_status status = map.bytes > TH_RECORDING_MAX_FILE
                                ? th_fail(error, THESPIS_LIMIT, "'%s' has %zu bytes, recordings of at most %zu are read", path,
                                          map.bytes, TH_RECORDING_MAX_FILE)
                                : th_voice_add_recording(voice, map.data, map.bytes, path, 0, transcript, transcript_bytes, error);
    th_map_close(&map);
    return status;
}

thespis_status thespis_voice_add_samples(thespis_voice *voice, const float *samples, size_t count, const char *transcript,
                                         size_t transcript_bytes, thespis_error *error)
{
    TH_TRY(check_reference(voice, transcript, transcript_bytes, error));
    if ((double)count > TH_MAX_REFERENCE_SECONDS * THESPIS_SAMPLE_RATE)
        return th_fail(error, THESPIS_LIMIT, "references.%zu: %.1f seconds, at most %.0f are allowed", voice->count,
                       (double)count / THESPIS_SAMPLE_RATE, TH_MAX_REFERENCE_SECONDS);
    int32_t *codes;
    size_t frames;
    TH_TRY(th_encode(voice->engine, samples, count, &codes, &frames, error));
    return append(voice, codes, frames, transcript, transcript_bytes, error);
}

thespis_status thespis_voice_add_codes(thespis_voice *voice, const int32_t *codes, size_t frames, const char *transcript,
                                       size_t transcript_bytes, thespis_error *error)
{
    TH_TRY(check_reference(voice, transcript, transcript_bytes, error));
    if (frames == 0) return th_fail(error, THESPIS_INVALID, "references.%zu: no frames", voice->count);
    if (frames > TH_MAX_PROMPT_ROWS)
        return th_fail(error, THESPIS_LIMIT, "references.%zu: %zu frames, at most %d rows fit a prompt", voice->count, frames,
                       TH_MAX_PROMPT_ROWS);
    size_t count = (size_t)voice->engine->parts.codebooks * frames;
    for (size_t i = 0; i < count; i++)
        if (codes[i] < 0 || codes[i] >= voice->engine->parts.codebook_size)
            return th_fail(error, THESPIS_INVALID, "references.%zu: code %d of frame %zu in codebook %zu must be 0 to %d",
                           voice->count, (int)codes[i], i % frames, i / frames, voice->engine->parts.codebook_size - 1);
    int32_t *copy;
    TH_TRY(TH_ALLOC(&copy, count, "codes", error));
    memcpy(copy, codes, count * sizeof *copy);
    return append(voice, copy, frames, transcript, transcript_bytes, error);
}
