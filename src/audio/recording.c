/* recording.c - see recording.h: picks the reader by content, mixes down, resamples. */
#include "audio/recording.h"

#include <stdio.h>
#include <string.h>

#include "audio/mono.h"
#include "audio/resample.h"
#include "audio/wav.h"
#include "audio/wav_layout.h"
#include "base/file.h"
#include "base/memory.h"

#define BLOCK_FRAMES 4096

/* ---- mixing down ------------------------------------------------------------------------------------------------------------- */

thespis_status th_mono_reserve(struct th_mono *mono, size_t samples, thespis_error *error)
{
    if (samples <= mono->capacity) return THESPIS_OK;
    if (samples > TH_MONO_MAX)
        return th_fail(error, THESPIS_LIMIT, "%s: a recording of more than %zu samples", mono->name, TH_MONO_MAX);
    float *grown = th_realloc(mono->samples, mono->count, samples, sizeof *grown);
    if (grown == NULL) return th_fail_memory(error, mono->name, samples * sizeof *grown);
    mono->samples = grown;
    mono->capacity = samples;
    return THESPIS_OK;
}

thespis_status th_mono_add(struct th_mono *mono, const float *block, size_t frames, thespis_error *error)
{
    size_t channels = (size_t)mono->channels, needed = mono->count + frames;
    TH_TRY(th_check_seconds((double)needed, mono->rate, mono->max_seconds, mono->name, error));
    TH_TRY(th_check_finite(block, frames * channels, mono->name, error));
    if (needed > mono->capacity) {
        size_t roomy = mono->capacity + mono->capacity / 2;
        if (roomy > TH_MONO_MAX) roomy = TH_MONO_MAX;
        TH_TRY(th_mono_reserve(mono, needed > roomy ? needed : roomy, error));
    }
    for (size_t i = 0; i < frames; i++, block += channels) {
        /* The sum runs in the order of the channels, in fp32, and is divided once: the reference's mean. */
        float sum = block[0];
        for (size_t c = 1; c < channels; c++) sum += block[c];
        mono->samples[mono->count + i] = sum / (float)mono->channels;
    }
    mono->count = needed;
    return THESPIS_OK;
}

/* ---- reading ----------------------------------------------------------------------------------------------------------------- */

static thespis_status decode_wav(const struct th_wav_layout *layout, struct th_mono *mono, thespis_error *error)
{
    float *block;
    mono->rate = layout->rate;
    mono->channels = layout->channels;
    snprintf(mono->container, sizeof mono->container, "WAV");
    TH_TRY(th_check_seconds((double)layout->frames, layout->rate, mono->max_seconds, mono->name, error));
    TH_TRY(th_mono_reserve(mono, layout->frames, error));
    TH_TRY(TH_ALLOC(&block, (size_t)BLOCK_FRAMES * (size_t)layout->channels, "a block of audio", error));
    thespis_status status = THESPIS_OK;
    for (size_t first = 0; first < layout->frames && status == THESPIS_OK; first += BLOCK_FRAMES) {
        size_t frames = layout->frames - first < BLOCK_FRAMES ? layout->frames - first : BLOCK_FRAMES;
        th_wav_decode(layout, first, frames, block);
        status = th_mono_add(mono, block, frames, error);
    }
    th_free(block);
    return status;
}

/* WAV goes through our own reader, whose rules for open sizes and cut files fit what people bring; libsndfile reads the rest. */
static thespis_status decode(const void *bytes, size_t count, struct th_mono *mono, thespis_error *error)
{
    struct th_wav_layout layout;
    if (count == 0) return th_fail(error, THESPIS_FORMAT, "%s: empty, a recording was expected", mono->name);
    if (th_wav_is(bytes, count)) {
        thespis_error own;
        thespis_status status = th_wav_find(bytes, count, mono->name, &layout, &own);
        if (status == THESPIS_OK) return decode_wav(&layout, mono, error);
        if (status == THESPIS_UNSUPPORTED) status = th_sndfile_decode(bytes, count, mono, error);
        /* Why our reader does not know the encoding says more than that libsndfile does not. */
        if (status == THESPIS_FORMAT && mono->rate == 0) return th_fail(error, own.status, "%s", own.message);
        return status;
    }
    const char *refused = th_sniff_refused(bytes, count);
    if (refused != NULL)
        return th_fail(error, THESPIS_UNSUPPORTED, "%s: looks like %s; WAV, FLAC, Ogg, MP3 and AIFF recordings are read",
                       mono->name, refused);
    if (th_mp3_is(bytes, count)) return th_mp3_decode(bytes, count, mono, error);
    return th_sndfile_decode(bytes, count, mono, error);
}

/* Takes mono's samples over, at 44,100 Hz. */
static thespis_status finish(struct th_mono *mono, struct th_recording *recording, thespis_error *error)
{
    if (mono->count == 0) return th_fail(error, THESPIS_FORMAT, "%s: no audio in the %s file", mono->name, mono->container);
    if (mono->rate == THESPIS_SAMPLE_RATE) {
        recording->samples = mono->samples;
        recording->count = mono->count;
        mono->samples = NULL;
    } else {
        TH_TRY(th_resample(mono->samples, mono->count, mono->rate, THESPIS_SAMPLE_RATE, &recording->samples, &recording->count,
                           error));
    }
    recording->source_rate = mono->rate;
    recording->source_channels = mono->channels;
    memcpy(recording->container, mono->container, sizeof recording->container);
    /* Sums of samples near the end of fp32's range can still overflow. */
    return th_check_finite(recording->samples, recording->count, mono->name, error);
}

thespis_status th_recording_read_bytes(const void *bytes, size_t count, const char *name, double max_seconds,
                                       struct th_recording *recording, thespis_error *error)
{
    struct th_mono mono = {.name = name, .max_seconds = max_seconds};
    memset(recording, 0, sizeof *recording);
    thespis_status status = decode(bytes, count, &mono, error);
    if (status == THESPIS_OK) status = finish(&mono, recording, error);
    th_free(mono.samples);
    if (status != THESPIS_OK) th_recording_free(recording);
    return status;
}

thespis_status th_recording_read_file(const char *path, double max_seconds, struct th_recording *recording, thespis_error *error)
{
    struct th_map map;
    memset(recording, 0, sizeof *recording);
    TH_TRY(th_map_open(path, &map, error));
    thespis_status status;
    if (map.bytes > TH_RECORDING_MAX_FILE)
        status = th_fail(error, THESPIS_LIMIT, "'%s' has %zu bytes, recordings of at most %zu are read", path, map.bytes,
                         TH_RECORDING_MAX_FILE);
    else
        status = th_recording_read_bytes(map.data, map.bytes, path, max_seconds, recording, error);
    th_map_close(&map);
    return status;
}

void th_recording_free(struct th_recording *recording)
{
    if (recording == NULL) return;
    th_free(recording->samples);
    memset(recording, 0, sizeof *recording);
}
