/* audio.c - the thread that turns frames into samples: windows of each request's frames through its own codec stream into its ring.
 *
 * The codec carries its state from window to window, so windows decide when samples come, never what they are. */
#include <fenv.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "engine/engine.h"

int th_window_frames(int first_chunk, int chunk, int index)
{
    static const int growth[] = {4, 6, 10, 12, 32};
    if (index == 0) return first_chunk > 0 ? first_chunk : growth[0];
    int frames = index < 5 ? growth[index] : TH_DECODE_MAX_FRAMES;
    return chunk > 0 && chunk < frames ? chunk : frames;
}

/* Frames of r's next window that can be decoded now, or 0. */
static int window_ready(const struct thespis_request *r)
{
    if (r->phase < TH_GENERATE || r->phase == TH_DONE || r->status != THESPIS_OK) return 0;
    int have = r->ready - r->decoded;
    int want = th_window_frames(r->first_chunk, r->chunk, r->windows);
    if (have < want && r->phase != TH_DRAWN) return 0;
    int n = have < want ? have : want;
    int room = TH_RING_FRAMES - (int)((r->ring_count + THESPIS_FRAME_SAMPLES - 1) / THESPIS_FRAME_SAMPLES);
    return n <= room ? n : 0;
}

/* Marks as done what needs no more decoding, so that readers see the end. */
static void settle(struct thespis_engine *e)
{
    for (struct thespis_request *r = e->requests; r != NULL; r = r->next) {
        if (r->phase != TH_DRAWN || (r->status == THESPIS_OK && r->decoded < r->ready)) continue;
        r->phase = TH_DONE;
        r->ended = th_now();
        pthread_cond_broadcast(&r->changed);
    }
}

/* The request whose reader will run dry first. */
static struct thespis_request *most_urgent(struct thespis_engine *e)
{
    struct thespis_request *best = NULL;
    for (struct thespis_request *r = e->requests; r != NULL; r = r->next)
        if (!r->cancelled && window_ready(r) > 0 && (best == NULL || r->ring_count < best->ring_count)) best = r;
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

/* Decodes one window of r. Called and left with the mutex held; r cannot be freed while in_codec is set. */
static void decode_window(struct thespis_engine *e, struct thespis_request *r, float *samples)
{
    int n = window_ready(r), books = e->parts.codebooks;
    int32_t codes[TH_DECODE_MAX_FRAMES * TH_MAX_CODEBOOKS];
    for (int f = 0; f < n; f++)
        memcpy(codes + (size_t)f * books, r->frames + (size_t)(r->decoded + f) * (1 + books) + 1, (size_t)books * sizeof *codes);
    r->in_codec = 1;
    pthread_mutex_unlock(&e->mutex);

    thespis_error error = {0};
    pthread_mutex_lock(&e->decode_mutex);
    double begin = th_now();
    thespis_status status = e->parts.backend->ops->codec_decode(e->parts.backend, r->stream, codes, n, samples, &error);
    double took = th_now() - begin;
    pthread_mutex_unlock(&e->decode_mutex);

    pthread_mutex_lock(&e->mutex);
    r->in_codec = 0;
    r->decode_seconds += took;
    if (status != THESPIS_OK) {
        th_request_fail(r, status, &error);
        r->cancelled = 1; /* takes it off its lane */
    } else {
        put_into_ring(r, samples, (size_t)n * THESPIS_FRAME_SAMPLES);
        r->decoded += n;
        r->windows++;
        if (r->first_audio == 0) r->first_audio = th_now();
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
