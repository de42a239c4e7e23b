/* encode_raw.c - 16-bit samples as they are, bare (pcm) or behind a WAV header.
 *
 * A streamed WAV begins with open sizes and has nothing after its last sample. A whole one is held back until its length is known.
 */
#include <string.h>

#include "audio/encode_parts.h"
#include "audio/wav.h"
#include "base/memory.h"

/* More would not fit the header's 32 bits; 27 hours at 44,100 Hz would be needed. */
#define MOST_SAMPLES ((uint64_t)(UINT32_MAX - TH_WAV_HEADER_MAX) / 2)

#define RAW_BLOCK 4096

struct raw {
    struct th_bytes held; /* of a whole WAV: samples */
    uint64_t samples;
};

static thespis_status raw_open(struct th_encoder *e, thespis_error *error)
{
    struct raw *raw;
    TH_TRY(TH_ALLOC(&raw, 1, "a writer of samples", error));
    e->state = raw;
    return THESPIS_OK;
}

static thespis_status add_samples(const float *samples, size_t count, struct th_bytes *out, thespis_error *error)
{
    TH_TRY(th_bytes_reserve(out, count * 2, error));
    uint8_t *to = out->at + out->count;
    for (size_t i = 0; i < count; i++) {
        uint16_t value = (uint16_t)th_sample_to_s16(samples[i]);
        to[2 * i] = (uint8_t)(value & 255);
        to[2 * i + 1] = (uint8_t)(value >> 8);
    }
    out->count += count * 2;
    return THESPIS_OK;
}

static thespis_status add_header(const struct th_encoder *e, uint64_t samples, struct th_bytes *out, thespis_error *error)
{
    uint8_t header[TH_WAV_HEADER_MAX];
    return th_bytes_add(out, header, th_wav_header(TH_SOUND_WAV16, e->sample_rate, samples, header), error);
}

static thespis_status pcm_write(struct th_encoder *e, const float *samples, size_t count, struct th_bytes *out,
                                thespis_error *error)
{
    (void)e;
    return add_samples(samples, count, out, error);
}

static thespis_status pcm_finish(struct th_encoder *e, struct th_bytes *out, thespis_error *error)
{
    (void)e, (void)out, (void)error;
    return THESPIS_OK;
}

static thespis_status wav_begin(struct th_encoder *e, struct th_bytes *out, thespis_error *error)
{
    return e->streamed ? add_header(e, UINT64_MAX, out, error) : THESPIS_OK;
}

static thespis_status wav_write(struct th_encoder *e, const float *samples, size_t count, struct th_bytes *out,
                                thespis_error *error)
{
    struct raw *raw = e->state;
    raw->samples += count;
    if (!e->streamed && raw->samples > MOST_SAMPLES)
        return th_fail(error, THESPIS_LIMIT, "a WAV file holds at most %llu samples", (unsigned long long)MOST_SAMPLES);
    return add_samples(samples, count, e->streamed ? out : &raw->held, error);
}

static thespis_status wav_finish(struct th_encoder *e, struct th_bytes *out, thespis_error *error)
{
    struct raw *raw = e->state;
    if (e->streamed) return THESPIS_OK;
    TH_TRY(th_bytes_reserve(out, TH_WAV_HEADER_MAX + raw->held.count, error));
    TH_TRY(add_header(e, raw->samples, out, error));
    return th_bytes_add(out, raw->held.at, raw->held.count, error);
}

static void raw_close(struct th_encoder *e)
{
    struct raw *raw = e->state;
    if (raw == NULL) return;
    th_bytes_free(&raw->held);
    th_free(raw);
}

const struct th_encode_steps th_encode_pcm = {RAW_BLOCK, 1, raw_open, NULL, pcm_write, pcm_finish, raw_close};
const struct th_encode_steps th_encode_wav = {RAW_BLOCK, 1, raw_open, wav_begin, wav_write, wav_finish, raw_close};
