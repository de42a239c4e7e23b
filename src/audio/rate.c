/* rate.c - see rate.h.
 *
 * soxr hands out what its filters have ready, which depends on how it was fed; the samples themselves do not. Its own idea of the
 * total may differ by one from the rounded length, so the end is counted here: cut, or filled with the last zeros of the filter. */
#include "audio/rate.h"

#include <soxr.h>
#include <string.h>

#include "base/memory.h"

#define PIECE 4096 /* input samples at once */

struct th_rate {
    soxr_t soxr;
    int in_rate, out_rate;
    uint64_t in, out; /* samples so far */
    float *ready;     /* [capacity] */
    size_t count, capacity;
};

uint64_t th_rate_length(uint64_t count, int in_rate, int out_rate)
{
    uint64_t in = (uint64_t)in_rate, out = (uint64_t)out_rate;
    return count / in * out + (count % in * out + in / 2) / in;
}

static thespis_status soxr_failed(const char *reason, thespis_error *error)
{
    return th_fail(error, THESPIS_MEMORY, "cannot change the sample rate: %s", reason);
}

thespis_status th_rate_open(int in_rate, int out_rate, struct th_rate **rate, thespis_error *error)
{
    *rate = NULL;
    if (in_rate < 1 || out_rate < 1)
        return th_fail(error, THESPIS_INVALID, "sample rates are %d and %d, must be at least 1", in_rate, out_rate);
    struct th_rate *r;
    TH_TRY(TH_ALLOC(&r, 1, "a rate converter", error));
    r->in_rate = in_rate;
    r->out_rate = out_rate;
    soxr_error_t failed;
    soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
    soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
    soxr_runtime_spec_t runtime = soxr_runtime_spec(1);
    r->soxr = soxr_create(in_rate, out_rate, 1, &failed, &io, &quality, &runtime);
    if (failed != NULL || r->soxr == NULL) {
        th_rate_close(r);
        return soxr_failed(failed != NULL ? failed : "no memory", error);
    }
    *rate = r;
    return THESPIS_OK;
}

static thespis_status make_room(struct th_rate *r, size_t more, thespis_error *error)
{
    if (more <= r->capacity - r->count) return THESPIS_OK;
    size_t capacity = r->count + more;
    float *grown = th_realloc(r->ready, r->count, capacity, sizeof *grown);
    if (grown == NULL) return th_fail_memory(error, "resampled audio", capacity * sizeof *grown);
    r->ready = grown;
    r->capacity = capacity;
    return THESPIS_OK;
}

/* One piece in (NULL: the end), everything that it makes ready out. */
static thespis_status process(struct th_rate *r, const float *samples, size_t count, thespis_error *error)
{
    size_t room = (size_t)th_rate_length(PIECE, r->in_rate, r->out_rate) + 16;
    for (;;) {
        size_t used = 0, made = 0;
        TH_TRY(make_room(r, room, error));
        soxr_error_t failed = soxr_process(r->soxr, samples, count, &used, r->ready + r->count, room, &made);
        if (failed != NULL) return soxr_failed(failed, error);
        r->count += made;
        if (samples != NULL) {
            samples += used;
            count -= used;
        }
        if (count == 0 && made < room) return THESPIS_OK;
        if (used == 0 && made == 0) return soxr_failed("the filter takes nothing", error);
    }
}

thespis_status th_rate_write(struct th_rate *r, const float *samples, size_t count, const float **out, size_t *out_count,
                             thespis_error *error)
{
    r->count = 0;
    r->in += count;
    while (count > 0) {
        size_t n = count < PIECE ? count : PIECE;
        TH_TRY(process(r, samples, n, error));
        samples += n;
        count -= n;
    }
    r->out += r->count;
    *out = r->ready;
    *out_count = r->count;
    return THESPIS_OK;
}

thespis_status th_rate_finish(struct th_rate *r, const float **out, size_t *out_count, thespis_error *error)
{
    r->count = 0;
    if (r->in > 0) TH_TRY(process(r, NULL, 0, error));
    uint64_t total = th_rate_length(r->in, r->in_rate, r->out_rate);
    size_t due = total > r->out ? (size_t)(total - r->out) : 0;
    if (due > r->count) {
        TH_TRY(make_room(r, due - r->count, error));
        memset(r->ready + r->count, 0, (due - r->count) * sizeof *r->ready);
    }
    r->count = due;
    r->out += due;
    *out = r->ready;
    *out_count = due;
    return THESPIS_OK;
}

void th_rate_close(struct th_rate *r)
{
    if (r == NULL) return;
    if (r->soxr != NULL) soxr_delete(r->soxr);
    th_free(r->ready);
    th_free(r);
}
