/* encode_flac.c - FLAC by libFLAC: 16 bits, blocks of 4,096 samples, which are two frames of speech.
 *
 * A stream's header says 0 samples (unknown) and no checksum. A whole file is held back, and libFLAC corrects its header at the
 * end. */
#include <FLAC/stream_encoder.h>
#include <string.h>

#include "audio/encode_parts.h"
#include "audio/wav.h"
#include "base/memory.h"

#define LEVEL 5
#define FLAC_BLOCK 4096

struct flac {
    FLAC__StreamEncoder *encoder;
    struct th_bytes held;  /* of a whole file */
    size_t at;             /* where the next byte of held goes */
    struct th_bytes *out;  /* of the call that runs: its argument, or held */
    thespis_error *error;  /* of the call that runs */
    thespis_status failed; /* what adding to out returned */
    int streamed;
    FLAC__int32 block[FLAC_BLOCK];
};

/* Over what is there already (only after a seek), then behind it. */
static thespis_status add_at(struct flac *f, const FLAC__byte *bytes, size_t count)
{
    size_t over = f->streamed ? 0 : f->held.count - f->at;
    if (over > count) over = count;
    if (over > 0) memcpy(f->held.at + f->at, bytes, over);
    f->at += count;
    return th_bytes_add(f->out, bytes + over, count - over, f->error);
}

static FLAC__StreamEncoderWriteStatus add_bytes(const FLAC__StreamEncoder *encoder, const FLAC__byte bytes[], size_t count,
                                                uint32_t samples, uint32_t frame, void *context)
{
    (void)encoder, (void)samples, (void)frame;
    struct flac *f = context;
    if (f->failed == THESPIS_OK) f->failed = add_at(f, bytes, count);
    return f->failed == THESPIS_OK ? FLAC__STREAM_ENCODER_WRITE_STATUS_OK : FLAC__STREAM_ENCODER_WRITE_STATUS_FATAL_ERROR;
}

static FLAC__StreamEncoderSeekStatus go_to(const FLAC__StreamEncoder *encoder, FLAC__uint64 offset, void *context)
{
    (void)encoder;
    struct flac *f = context;
    if (offset > f->held.count) return FLAC__STREAM_ENCODER_SEEK_STATUS_ERROR;
    f->at = (size_t)offset;
    return FLAC__STREAM_ENCODER_SEEK_STATUS_OK;
}

static FLAC__StreamEncoderTellStatus tell(const FLAC__StreamEncoder *encoder, FLAC__uint64 *offset, void *context)
{
    (void)encoder;
    *offset = ((struct flac *)context)->at;
    return FLAC__STREAM_ENCODER_TELL_STATUS_OK;
}

static thespis_status flac_failed(const struct flac *f, thespis_error *error)
{
    if (f->failed != THESPIS_OK) return f->failed; /* with its own message */
    return th_fail(error, THESPIS_MEMORY, "the FLAC encoder failed: %s",
                   FLAC__stream_encoder_get_resolved_state_string(f->encoder));
}

static thespis_status flac_open(struct th_encoder *e, thespis_error *error)
{
    struct flac *f;
    TH_TRY(TH_ALLOC(&f, 1, "a FLAC encoder", error));
    e->state = f;
    f->streamed = e->streamed;
    f->encoder = FLAC__stream_encoder_new();
    if (f->encoder == NULL) return th_fail_memory(error, "a FLAC encoder", sizeof(void *));
    int set = FLAC__stream_encoder_set_channels(f->encoder, 1);
    set &= FLAC__stream_encoder_set_bits_per_sample(f->encoder, 16);
    set &= FLAC__stream_encoder_set_sample_rate(f->encoder, (uint32_t)e->sample_rate);
    set &= FLAC__stream_encoder_set_compression_level(f->encoder, LEVEL);
    set &= FLAC__stream_encoder_set_blocksize(f->encoder, FLAC_BLOCK);
    return set ? THESPIS_OK : flac_failed(f, error);
}

/* What the callbacks need to know, before each call into the library. */
static struct flac *enter(struct th_encoder *e, struct th_bytes *out, thespis_error *error)
{
    struct flac *f = e->state;
    f->out = f->streamed ? out : &f->held;
    f->error = error;
    return f;
}

static thespis_status flac_begin(struct th_encoder *e, struct th_bytes *out, thespis_error *error)
{
    struct flac *f = enter(e, out, error);
    FLAC__StreamEncoderInitStatus status =
        FLAC__stream_encoder_init_stream(f->encoder, add_bytes, f->streamed ? NULL : go_to, f->streamed ? NULL : tell, NULL, f);
    return status == FLAC__STREAM_ENCODER_INIT_STATUS_OK ? THESPIS_OK : flac_failed(f, error);
}

static thespis_status flac_write(struct th_encoder *e, const float *samples, size_t count, struct th_bytes *out,
                                 thespis_error *error)
{
    struct flac *f = enter(e, out, error);
    for (size_t i = 0; i < count; i++) f->block[i] = th_sample_to_s16(samples[i]);
    return FLAC__stream_encoder_process_interleaved(f->encoder, f->block, (uint32_t)count) ? THESPIS_OK : flac_failed(f, error);
}

static thespis_status flac_finish(struct th_encoder *e, struct th_bytes *out, thespis_error *error)
{
    struct flac *f = enter(e, out, error);
    if (!FLAC__stream_encoder_finish(f->encoder)) return flac_failed(f, error);
    return f->streamed ? THESPIS_OK : th_bytes_add(out, f->held.at, f->held.count, error);
}

/* libFLAC's delete would finish first, and so write. */
static void flac_close(struct th_encoder *e)
{
    struct flac *f = e->state;
    if (f == NULL) return;
    f->failed = f->failed != THESPIS_OK ? f->failed : THESPIS_CANCELLED;
    if (f->encoder != NULL) FLAC__stream_encoder_delete(f->encoder);
    th_bytes_free(&f->held);
    th_free(f);
}

const struct th_encode_steps th_encode_flac = {FLAC_BLOCK / 2, 0, flac_open, flac_begin, flac_write, flac_finish, flac_close};
