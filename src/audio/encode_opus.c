/* encode_opus.c - Ogg Opus by libopusenc: 48 kHz, pages of 100 ms, pre-skip and end such that exactly the samples come back.
 *
 * Pages leave as soon as they are full, so the first burst of four frames (186 ms) already gives one. The stream's number is fixed:
 * one request has one answer, to the byte. */
#include <opusenc.h>

#include "audio/encode_parts.h"
#include "base/memory.h"

#define RATE 48000
#define PAGE_SAMPLES (RATE / 10)
#define OPUS_FRAME (RATE / 50)
#define SERIAL 1

struct opus {
    OggOpusComments *comments;
    OggOpusEnc *encoder;
    struct th_bytes *out;  /* of the call that runs */
    thespis_error *error;  /* likewise */
    thespis_status failed; /* what adding to out returned */
    int has_samples;
};

static int add_page(void *context, const unsigned char *bytes, opus_int32 count)
{
    struct opus *o = context;
    if (o->failed == THESPIS_OK) o->failed = th_bytes_add(o->out, bytes, (size_t)count, o->error);
    return o->failed != THESPIS_OK;
}

static int close_nothing(void *context)
{
    (void)context;
    return 0;
}

static thespis_status opus_failed(const struct opus *o, int code, thespis_error *error)
{
    if (o->failed != THESPIS_OK) return o->failed; /* with its own message */
    return th_fail(error, code == OPE_ALLOC_FAIL ? THESPIS_MEMORY : THESPIS_INVALID, "the Opus encoder failed: %s",
                   ope_strerror(code));
}

static thespis_status set_up(const struct th_encoder *e, struct opus *o, thespis_error *error)
{
    static const OpusEncCallbacks callbacks = {add_page, close_nothing};
    int code = OPE_OK;
    o->comments = ope_comments_create();
    if (o->comments == NULL) return th_fail_memory(error, "an Opus encoder", sizeof(void *));
    o->encoder = ope_encoder_create_callbacks(&callbacks, o, o->comments, RATE, 1, 0, &code);
    if (o->encoder == NULL) return opus_failed(o, code, error);
    opus_int32 bits = e->bitrate == TH_BITRATE_AUTO ? OPUS_AUTO : e->bitrate * 1000;
    if (code == OPE_OK) code = ope_encoder_ctl(o->encoder, OPUS_SET_BITRATE(bits));
    if (code == OPE_OK) code = ope_encoder_ctl(o->encoder, OPE_SET_DECISION_DELAY(0));
    if (code == OPE_OK) code = ope_encoder_ctl(o->encoder, OPE_SET_MUXING_DELAY(PAGE_SAMPLES));
    if (code == OPE_OK) code = ope_encoder_ctl(o->encoder, OPE_SET_SERIALNO(SERIAL));
    if (code == OPE_OK) code = ope_encoder_ctl(o->encoder, OPE_SET_COMMENT_PADDING(0));
    return code == OPE_OK ? THESPIS_OK : opus_failed(o, code, error);
}

static thespis_status opus_open(struct th_encoder *e, thespis_error *error)
{
    if (e->sample_rate != RATE)
        return th_fail(error, THESPIS_INVALID, "sample_rate is %d, opus has %d alone", e->sample_rate, RATE);
    if (e->bitrate == 0) e->bitrate = e->format->bitrate;
    if (e->bitrate != TH_BITRATE_AUTO && (e->bitrate < 6 || e->bitrate > 256))
        return th_fail(error, THESPIS_INVALID, "bitrate is %d, opus has 6 to 256, or %d: its own choice", e->bitrate,
                       TH_BITRATE_AUTO);
    struct opus *o;
    TH_TRY(TH_ALLOC(&o, 1, "an Opus encoder", error));
    e->state = o;
    return set_up(e, o, error);
}

/* What the callback needs to know, before each call into the library. */
static struct opus *enter(struct th_encoder *e, struct th_bytes *out, thespis_error *error)
{
    struct opus *o = e->state;
    o->out = out;
    o->error = error;
    return o;
}

static thespis_status leave(const struct opus *o, int code, thespis_error *error)
{
    return code == OPE_OK && o->failed == THESPIS_OK ? THESPIS_OK : opus_failed(o, code, error);
}

static thespis_status opus_begin(struct th_encoder *e, struct th_bytes *out, thespis_error *error)
{
    struct opus *o = enter(e, out, error);
    return leave(o, ope_encoder_flush_header(o->encoder), error);
}

static thespis_status opus_write(struct th_encoder *e, const float *samples, size_t count, struct th_bytes *out,
                                 thespis_error *error)
{
    struct opus *o = enter(e, out, error);
    o->has_samples = 1;
    return leave(o, ope_encoder_write_float(o->encoder, samples, (int)count), error);
}

/* libopusenc cannot end a stream in which there is nothing: that gets one sample of silence. */
static thespis_status opus_finish(struct th_encoder *e, struct th_bytes *out, thespis_error *error)
{
    static const float silence[1];
    struct opus *o = enter(e, out, error);
    if (!o->has_samples) TH_TRY(opus_write(e, silence, 1, out, error));
    return leave(o, ope_encoder_drain(o->encoder), error);
}

static void opus_close(struct th_encoder *e)
{
    struct opus *o = e->state;
    if (o == NULL) return;
    if (o->encoder != NULL) ope_encoder_destroy(o->encoder);
    if (o->comments != NULL) ope_comments_destroy(o->comments);
    th_free(o);
}

const struct th_encode_steps th_encode_opus = {OPUS_FRAME, 0, opus_open, opus_begin, opus_write, opus_finish, opus_close};
