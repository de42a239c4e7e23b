/* voice.c - voices: recordings or codes with their transcripts, copied and encoded. */
#include <string.h>

#include "audio/recording.h"
#include "base/memory.h"
#include "engine/codec_jobs.h"
#include "engine/engine.h"
#include "text/validate.h"

thespis_status thespis_voice_new(thespis_engine *engine, thespis_voice **voice, thespis_error *error)
{
    *voice = NULL;
    if (engine->parts.model == NULL)
        return th_fail(error, THESPIS_INVALID, "this engine was opened with a codec alone: voices need a model");
    TH_TRY(TH_ALLOC(voice, 1, "a voice", error));
    (*voice)->engine = engine;
    return THESPIS_OK;
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

static thespis_status add_recording(thespis_voice *voice, const struct th_recording *recording, const char *transcript,
                                    size_t bytes, thespis_error *error)
{
    int32_t *codes;
    size_t frames;
    TH_TRY(th_encode(voice->engine, recording->samples, recording->count, &codes, &frames, error));
    return append(voice, codes, frames, transcript, bytes, error);
}

thespis_status thespis_voice_add_file(thespis_voice *voice, const char *path, const char *transcript, size_t transcript_bytes,
                                      thespis_error *error)
{
    struct th_recording recording;
    TH_TRY(check_reference(voice, transcript, transcript_bytes, error));
    TH_TRY(th_recording_read_file(path, TH_MAX_REFERENCE_SECONDS, &recording, error));
    thespis_status status = add_recording(voice, &recording, transcript, transcript_bytes, error);
    th_recording_free(&recording);
    return status;
}

thespis_status thespis_voice_add_bytes(thespis_voice *voice, const void *bytes, size_t count, const char *transcript,
                                       size_t transcript_bytes, thespis_error *error)
{
    struct th_recording recording;
    TH_TRY(check_reference(voice, transcript, transcript_bytes, error));
    TH_TRY(th_recording_read_bytes(bytes, count, "the recording", TH_MAX_REFERENCE_SECONDS, &recording, error));
    thespis_status status = add_recording(voice, &recording, transcript, transcript_bytes, error);
    th_recording_free(&recording);
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
