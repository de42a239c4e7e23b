/* audio.c - the thread that turns frames into samples: windows of each request's frames through its own codec stream into its ring.
 *
 * The codec carries its state from window to window, so windows decide when samples come, never what they are. */
#include <fenv.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "engine/engine.h"

#define SMALL_WINDOW 4   /* frames */
#define SHARED_WINDOW 12 /* while others have little in hand */

int th_window_frames(int first_chunk, int chunk, int index)
{
    static const int growth[] = {4, 6, 10, 12, 32};
    if (index == 0) return first_chunk > 0 ? first_chunk : growth[0];
    int frames = index < 5 ? growth[index] : TH_DECODE_MAX_FRAMES;
    return chunk > 0 && chunk < frames ? chunk : frames;
}

/* Has another one that somebody listens to little in hand? */
static int others_near(const struct thespis_request *r, double now)
{
    for (const struct thespis_request *o = r->engine->requests; o != NULL; o = o->next)
        if (o != r && o->phase < TH_DONE && o->phase > TH_WAITING && th_pace_lead(o, now) < TH_PACE_NEAR) return 1;
    return 0;
}

/* Frames wanted for r's next window: large ones are cheap, but who has little in hand cannot wait until one is full, and nobody
 * should have to wait for another's. */
static int window_wanted(const struct thespis_request *r, int have)
{
    int want = th_window_frames(r->first_chunk, r->chunk, r->windows);
    if (want <= SMALL_WINDOW || r->windows == 0) return want;
    double now = th_now();
    if (others_near(r, now)) want = SHARED_WINDOW < want ? SHARED_WINDOW : want;
    if (th_pace_lead(r, now) < TH_PACE_NEAR && have < want) want = have > SMALL_WINDOW ? have : SMALL_WINDOW;
    return want;
}

/* Frames of r's next window that can be decoded now, or 0. */
static int window_ready(const struct thespis_request *r)
{
    if (r->phase == TH_DONE || r->cancelled || r->undecodable) return 0;
    /* While a later chunk is fed, or has failed, earlier ones are decoded. */
    int have = r->ready - r->decoded;
    if (have == 0) return 0;
    int want = window_wanted(r, have);
    if (have < want && r->phase != TH_DRAWN) return 0;
    int n = have < want ? have : want;
    int room = TH_RING_FRAMES - (int)((r->ring_count + THESPIS_FRAME_SAMPLES - 1) / THESPIS_FRAME_SAMPLES);
    return n <= room ? n : 0;
}

/* codes [codebooks][ready] from frames [ready][1 + codebooks]. */
static void transpose_codes(const struct thespis_engine *e, struct thespis_request *r)
{
    int books = e->parts.codebooks;
    thespis_error error;
    thespis_status status = TH_ALLOC(&r->codes, (size_t)r->ready * (size_t)books, "codes", &error);
    if (status != THESPIS_OK) {
        th_request_fail(r, status, &error);
        return;
    }
    for (int f = 0; f < r->ready; f++)
        for (int b = 0; b < books; b++)
            r->codes[(size_t)b * (size_t)r->ready + (size_t)f] = r->frames[(size_t)f * (size_t)(1 + books) + 1 + (size_t)b];
}

/* Is there nothing left to decode, or nobody who wants it? */
static int is_decoded(const struct thespis_request *r)
{
    return r->cancelled || r->undecodable || r->decoded >= r->ready;
}

/* The chunk in which the guard cut ends there, and those that the driver began after it were never spoken. */
static void cut_takes(struct thespis_request *r)
{
    for (size_t i = 0; i < r->takes.chunks.count; i++) {
        struct th_take *take = &r->takes.take[i];
        if (take->first_frame >= r->ready) {
            take->first_frame = -1;
            take->frames = 0;
            take->finish = THESPIS_FINISH_NONE;
        } else if (take->first_frame >= 0 &&
                   (take->finish == THESPIS_FINISH_NONE || take->first_frame + take->frames >= r->ready)) {
            take->frames = r->ready - take->first_frame;
            take->finish = THESPIS_FINISH_SILENCE;
        }
    }
}

/* Marks as done what needs no more decoding, so that readers see the end. */
static void settle(struct thespis_engine *e)
{
    for (struct thespis_request *r = e->requests; r != NULL; r = r->next) {
        /* One cancelled while its last frame was drawn left its lane as if it had ended well. */
        if (r->phase == TH_DRAWN && r->cancelled) th_request_fail_cancelled(r);
        if (r->phase != TH_DRAWN || !is_decoded(r)) continue;
        if (r->cut) cut_takes(r);
        transpose_codes(e, r);
        r->phase = TH_DONE;
        r->ended = th_now();
        pthread_cond_broadcast(&r->changed);
    }
}

/* Listeners who have little in hand come first, then readers that run dry sooner; among equals, as fast readers are, those whose
 * turn is longest ago. */
static int more_urgent(const struct thespis_request *a, const struct thespis_request *b)
{
    double now = th_now(), in_hand = fmin(th_pace_lead(a, now), TH_PACE_NEAR), others = fmin(th_pace_lead(b, now), TH_PACE_NEAR);
    if (in_hand != others) return in_hand < others;
    return a->ring_count < b->ring_count || (a->ring_count == b->ring_count && a->turn < b->turn);
}

static struct thespis_request *most_urgent(struct thespis_engine *e)
{
    struct thespis_request *best = NULL;
    for (struct thespis_request *r = e->requests; r != NULL; r = r->next)
        if (window_ready(r) > 0 && (best == NULL || more_urgent(r, best))) best = r;
    return best;
}

static void put_into_ring(struct thespis_request *r, const float *samples, size_t count)
{
    size_t capacity = (size_t)TH_RING_FRAMES * THESPIS_FRAME_SAMPLES;
    size_t at = (r->ring_at + r->ring_count) % capacity;
    size_t first = count < capacity - at ? count : capacity - at;
    memcpy(r->ring + at, samples, first * sizeof *samples);
    memcpy(r->ring, samples + first, (count - first) * sizeof *samples);
    r->ring_count += count;
}

/* ---- the guard against silence ----------------------------------------------------------------------------------------------- */

#define SILENCE 0.002f /* no sample of a silent frame is further from 0: -54 dB */

static int is_silent(const float *samples)
{
    for (int i = 0; i < THESPIS_FRAME_SAMPLES; i++)
        if (fabsf(samples[i]) > SILENCE) return 0;
    return 1;
}

/* Ends the request after the frames decoded so far. Its takes are cut when the driver has left it: until then it reads them. A
 * driver that was ahead may have failed beyond the cut, which is of no concern then, as it is when it comes there later. */
static void cut_off(struct thespis_request *r)
{
    r->cut = 1;
    r->status = THESPIS_OK;
    r->ready = r->decoded;
    r->finish = THESPIS_FINISH_SILENCE;
}

/* Frames of a window of n that are wanted: all, or those up to the end of a long silence. Decided frame by frame, so windows do not
 * matter. */
static int frames_before_cut(struct thespis_request *r, const float *samples, int n)
{
    for (int f = 0; r->guard && f < n; f++) {
        r->silent = is_silent(samples + (size_t)f * THESPIS_FRAME_SAMPLES) ? r->silent + 1 : 0;
        if (r->silent == TH_SILENT_FRAMES) return f + 1;
    }
    return n;
}

/* Decodes one window of r. Called and left with the mutex held; r cannot be freed while in_codec is set. */
static void decode_window(struct thespis_engine *e, struct thespis_request *r, float *samples)
{
    int n = window_ready(r), books = e->parts.codebooks;
    int32_t codes[TH_DECODE_MAX_FRAMES * TH_MAX_CODEBOOKS];
    for (int f = 0; f < n; f++)
        memcpy(codes + (size_t)f * books, r->frames + (size_t)(r->decoded + f) * (1 + books) + 1, (size_t)books * sizeof *codes);
    r->in_codec = 1;
    r->turn = ++e->turns;
    th_pace_begin(&e->pace, th_now());
    pthread_mutex_unlock(&e->mutex);

    thespis_error error = {0};
    pthread_mutex_lock(&e->decode_mutex);
    double begin = th_now();
    thespis_status status = e->parts.backend->ops->codec_decode(e->parts.backend, r->stream, codes, n, samples, &error);
    double took = th_now() - begin;
    pthread_mutex_unlock(&e->decode_mutex);

    pthread_mutex_lock(&e->mutex);
    th_pace_end(&e->pace, n, th_now());
    r->in_codec = 0;
    r->decode_seconds += took;
    if (status != THESPIS_OK) {
        th_request_fail(r, status, &error);
        r->undecodable = 1;
    } else {
        int wanted = frames_before_cut(r, samples, n);
        put_into_ring(r, samples, (size_t)wanted * THESPIS_FRAME_SAMPLES);
        r->decoded += wanted;
        r->windows++;
        if (r->first_audio == 0) r->first_audio = th_now();
        if (r->silent >= TH_SILENT_FRAMES && !r->cancelled) cut_off(r);
    }
    pthread_cond_broadcast(&r->changed);
    pthread_cond_signal(&e->driver_wake);
}

void *th_codec_main(void *argument)
{
    struct thespis_engine *e = argument;
    float *samples = e->window; /* [TH_DECODE_MAX_FRAMES * 2048] */
    fesetenv(FE_DFL_ENV);
    pthread_mutex_lock(&e->mutex);
    while (!e->closing) {
        settle(e);
        struct thespis_request *r = most_urgent(e);
        if (r != NULL)
            decode_window(e, r, samples);
        else
            pthread_cond_wait(&e->codec_wake, &e->mutex);
    }
    pthread_mutex_unlock(&e->mutex);
    return NULL;
}
