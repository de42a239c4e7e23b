/* encode.c - see encode.h: the table of formats, and the way from 44,100 Hz to a format's own rate. */
#include "audio/encode.h"

#include <string.h>

#include "audio/encode_parts.h"
#include "base/memory.h"

static const struct th_audio_format formats[] = {
    {"wav", "wav", "audio/wav", 44100, 0, 1, 1},    {"pcm", "pcm", "audio/pcm", 44100, 0, 1, 0},
    {"mp3", "mp3", "audio/mpeg", 44100, 128, 0, 0}, {"opus", "opus", "audio/ogg", 48000, 64, 0, 0},
    {"flac", "flac", "audio/flac", 44100, 0, 1, 1}, {"aac", "aac", "audio/aac", 44100, 96, 0, 0},
};
static const struct th_encode_steps *const steps_of[] = {&th_encode_wav,  &th_encode_pcm,  &th_encode_mp3,
                                                         &th_encode_opus, &th_encode_flac, &th_encode_aac};
#define FORMAT_COUNT (sizeof formats / sizeof *formats)

const struct th_audio_format *th_audio_formats(size_t *count)
{
    *count = FORMAT_COUNT;
    return formats;
}

const struct th_audio_format *th_audio_format_find(const char *name)
{
    for (size_t i = 0; i < FORMAT_COUNT; i++)
        if (strcmp(formats[i].name, name) == 0) return &formats[i];
    return NULL;
}

const char *th_audio_format_names(void)
{
    return "wav, pcm, mp3, opus, flac or aac";
}

static thespis_status check(const struct th_encoder_options *o, const struct th_audio_format *format, thespis_error *error)
{
    if (format == NULL)
        return th_fail(error, THESPIS_UNSUPPORTED, "format '%s' is not built in: there are %s", o->format, th_audio_format_names());
    if (o->sample_rate != 0 && (o->sample_rate < TH_ENCODE_RATE_MIN || o->sample_rate > TH_ENCODE_RATE_MAX))
        return th_fail(error, THESPIS_INVALID, "sample_rate is %d, must be %d to %d", o->sample_rate, TH_ENCODE_RATE_MIN,
                       TH_ENCODE_RATE_MAX);
    if (o->bitrate != 0 && format->bitrate == 0)
        return th_fail(error, THESPIS_INVALID, "bitrate is %d, but format '%s' has none", o->bitrate, format->name);
    return THESPIS_OK;
}

static thespis_status make_parts(struct th_encoder *e, thespis_error *error)
{
    TH_TRY(TH_ALLOC(&e->block, e->steps->block, "a block of samples", error));
    TH_TRY(e->steps->open(e, error));
    if (e->sample_rate == THESPIS_SAMPLE_RATE) return THESPIS_OK;
    return th_rate_open(THESPIS_SAMPLE_RATE, e->sample_rate, &e->rate, error);
}

thespis_status th_encoder_open(const struct th_encoder_options *options, struct th_encoder **encoder, thespis_error *error)
{
    *encoder = NULL;
    const struct th_audio_format *format = th_audio_format_find(options->format);
    TH_TRY(check(options, format, error));
    struct th_encoder *e;
    TH_TRY(TH_ALLOC(&e, 1, "an encoder", error));
    e->format = format;
    e->steps = steps_of[format - formats];
    e->sample_rate = options->sample_rate != 0 ? options->sample_rate : format->sample_rate;
    e->bitrate = options->bitrate;
    e->streamed = options->streamed;
    thespis_status status = make_parts(e, error);
    if (status == THESPIS_OK)
        *encoder = e;
    else
        th_encoder_close(e);
    return status;
}

const struct th_audio_format *th_encoder_format(const struct th_encoder *e)
{
    return e->format;
}

int th_encoder_sample_rate(const struct th_encoder *e)
{
    return e->sample_rate;
}

static thespis_status put_block(struct th_encoder *e, struct th_bytes *out, thespis_error *error)
{
    size_t count = e->waiting;
    e->waiting = 0;
    return e->steps->write(e, e->block, count, out, error);
}

/* Behind the rate converter, whose filter may overshoot: clamped, a block at a time. */
static thespis_status put(struct th_encoder *e, const float *samples, size_t count, struct th_bytes *out, thespis_error *error)
{
    for (size_t i = 0; i < count; i++) {
        float x = samples[i];
        e->block[e->waiting++] = x > 1.0f ? 1.0f : x < -1.0f ? -1.0f : x == x ? x : 0.0f;
        if (e->waiting == e->steps->block) TH_TRY(put_block(e, out, error));
    }
    return e->steps->at_once && e->waiting > 0 ? put_block(e, out, error) : THESPIS_OK;
}

static thespis_status refuse_over(thespis_error *error)
{
    return th_fail(error, THESPIS_INVALID, "this encoder is finished or has failed: only closing is left");
}

/* Headers go out before the first sample. */
static thespis_status begin(struct th_encoder *e, struct th_bytes *out, thespis_error *error)
{
    if (e->begun) return THESPIS_OK;
    e->begun = 1;
    return e->steps->begin != NULL ? e->steps->begin(e, out, error) : THESPIS_OK;
}

thespis_status th_encoder_write(struct th_encoder *e, const float *samples, size_t count, struct th_bytes *out,
                                thespis_error *error)
{
    if (e->over) return refuse_over(error);
    thespis_status status = begin(e, out, error);
    if (status == THESPIS_OK && e->rate != NULL) status = th_rate_write(e->rate, samples, count, &samples, &count, error);
    if (status == THESPIS_OK) status = put(e, samples, count, out, error);
    e->over = status != THESPIS_OK;
    return status;
}

static thespis_status put_rest(struct th_encoder *e, struct th_bytes *out, thespis_error *error)
{
    const float *samples = NULL;
    size_t count = 0;
    TH_TRY(begin(e, out, error));
    if (e->rate != NULL) TH_TRY(th_rate_finish(e->rate, &samples, &count, error));
    TH_TRY(put(e, samples, count, out, error));
    if (e->waiting > 0) TH_TRY(put_block(e, out, error));
    return e->steps->finish(e, out, error);
}

thespis_status th_encoder_finish(struct th_encoder *e, struct th_bytes *out, thespis_error *error)
{
    if (e->over) return refuse_over(error);
    e->over = 1;
    return put_rest(e, out, error);
}

void th_encoder_close(struct th_encoder *e)
{
    if (e == NULL) return;
    e->steps->close(e);
    th_rate_close(e->rate);
    th_free(e->block);
    th_free(e);
}
