/* request.c - one request from the caller's side: checks, prompt, reading, cancelling, outcome. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "text/validate.h"

#define MOST_SEED INT64_MAX

void thespis_request_options_init(thespis_request_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->temperature = 1.0f;
    options->top_p = 0.9f;
    options->top_k = INT32_MAX;
    options->seed = THESPIS_SEED_RANDOM;
}

const char *thespis_finish_name(thespis_finish finish)
{
    static const char *const names[] = {"running", "stop", "length", "cancelled", "error", "loop", "silence"};
    return (unsigned)finish < sizeof names / sizeof *names ? names[finish] : "unknown";
}

/* ---- start ------------------------------------------------------------------------------------------------------------------- */

static thespis_status check_options(const thespis_request_options *o, thespis_error *error)
{
    if (o->size != sizeof *o)
        return th_fail(error, THESPIS_INVALID, "options.size is %zu, must be %zu: call thespis_request_options_init", o->size,
                       sizeof *o);
    if (!isfinite(o->temperature) || o->temperature < 0 || o->temperature > 5)
        return th_fail(error, THESPIS_INVALID, "temperature is %g, must be 0 to 5", (double)o->temperature);
    if (!(o->top_p > 0 && o->top_p <= 1))
        return th_fail(error, THESPIS_INVALID, "top_p is %g, must be above 0 and at most 1", (double)o->top_p);
    if (o->top_k < 1) return th_fail(error, THESPIS_INVALID, "top_k is %d, must be at least 1", (int)o->top_k);
    if (o->seed != THESPIS_SEED_RANDOM && o->seed > (uint64_t)MOST_SEED)
        return th_fail(error, THESPIS_INVALID, "seed is %llu, must be 0 to 2^63-1", (unsigned long long)o->seed);
    if (o->max_frames < 0 || o->max_frames > TH_MAX_FRAMES)
        return th_fail(error, THESPIS_INVALID, "max_frames is %d, must be 1 to %d (or 0 for as many as fit)", o->max_frames,
                       TH_MAX_FRAMES);
    if (o->first_chunk < 0 || o->first_chunk > TH_DECODE_MAX_FRAMES)
        return th_fail(error, THESPIS_INVALID, "first_chunk is %d, must be 1 to %d (or 0)", o->first_chunk, TH_DECODE_MAX_FRAMES);
    if (o->chunk < 0 || o->chunk > TH_DECODE_MAX_FRAMES)
        return th_fail(error, THESPIS_INVALID, "chunk is %d, must be 1 to %d (or 0)", o->chunk, TH_DECODE_MAX_FRAMES);
    if ((unsigned)o->granularity > THESPIS_GRANULARITY_CLAUSE)
        return th_fail(error, THESPIS_INVALID, "granularity is %d, must be auto (0), none (1), sentence (2) or clause (3)",
                       (int)o->granularity);
    if (o->chunk_bytes != 0 && (o->chunk_bytes < 40 || o->chunk_bytes > 4000))
        return th_fail(error, THESPIS_INVALID, "chunk_bytes is %d, must be 40 to 4000 (or 0 for 300)", o->chunk_bytes);
    if (o->text == NULL) return th_fail(error, THESPIS_INVALID, "input: no text");
    return THESPIS_OK;
}

static thespis_status check_text(const thespis_engine *e, const thespis_request_options *o, thespis_error *error)
{
    int flags = TH_TEXT_NEED_SPEAKABLE | (o->strict_text ? TH_TEXT_STRICT : 0);
    thespis_status status = th_validate_text(o->text, o->text_bytes, flags, e->parts.tokenizer, error);
    if (status != THESPIS_OK) th_error_prefix(error, "input: ");
    return status;
}

static thespis_status random_seed(uint64_t *seed, thespis_error *error)
{
    size_t got = 0;
    while (got < sizeof *seed) {
        ssize_t n = getrandom((char *)seed + got, sizeof *seed - got, 0);
        if (n < 0 && errno != EINTR) return th_fail_errno(error, "the system gave no random seed");
        if (n > 0) got += (size_t)n;
    }
    *seed &= (uint64_t)MOST_SEED;
    return THESPIS_OK;
}

/* A chunk's frame limit, and that prompt and frames fit the context together. */
thespis_status th_request_plan(const thespis_engine *e, struct thespis_request *r, thespis_error *error)
{
    int rows = r->rows.count > INT32_MAX ? INT32_MAX : (int)r->rows.count, context = e->parts.max_rows;
    if (rows > TH_MAX_PROMPT_ROWS)
        return th_fail(error, THESPIS_LIMIT,
                       "the prompt has %d rows, at most %d are allowed: shorten the text, the references or the history", rows,
                       TH_MAX_PROMPT_ROWS);
    if (rows >= context)
        return th_fail(error, THESPIS_LIMIT,
                       "the prompt has %d rows and leaves no room for a frame in the context of %d rows (max_rows)", rows, context);
    int room = context - rows;
    if (r->frame_limit > room)
        return th_fail(error, THESPIS_LIMIT, "the prompt's %d rows and max_frames %d make %d, the context has %d rows (max_rows)",
                       rows, r->frame_limit, rows + r->frame_limit, context);
    r->max_frames = r->frame_limit > 0 ? r->frame_limit : room < TH_MAX_FRAMES ? room : TH_MAX_FRAMES;
    return THESPIS_OK;
}

/* The first chunk's prompt is built here, on the caller's thread, so that what is wrong with it is told at once. */
static thespis_status prepare(thespis_engine *e, const thespis_request_options *o, struct thespis_request *r, thespis_error *error)
{
    const struct th_parts *p = &e->parts;
    TH_TRY(check_text(e, o, error));
    if (o->voice != NULL && o->voice->engine != e)
        return th_fail(error, THESPIS_INVALID, "the voice belongs to another engine: it must be of the one that speaks");
    if (o->history == NULL && o->history_count > 0)
        return th_fail(error, THESPIS_INVALID, "history is NULL, but history_count is %zu", o->history_count);
    TH_TRY(th_takes_open(o, o->voice != NULL ? o->voice->references : NULL, o->voice != NULL ? o->voice->count : 0, p->codebooks,
                         &r->takes, error));
    r->frame_limit = o->max_frames;
    TH_TRY(th_takes_prompt(&r->takes, p->tokenizer, &p->shape, NULL, p->max_rows, &r->rows, error));
    TH_TRY(th_request_plan(e, r, error));
    r->sampling = (struct th_sampling){o->temperature, o->top_p, o->top_k, o->seed, 0, o->greedy};
    if (o->seed == THESPIS_SEED_RANDOM) TH_TRY(random_seed(&r->sampling.seed, error));
    r->first_chunk = o->first_chunk;
    r->chunk = o->chunk;
    r->guard = o->guard;
    r->group = o->group;
    r->live = o->live;
    TH_TRY(TH_ALLOC(&r->ring, (size_t)TH_RING_FRAMES * THESPIS_FRAME_SAMPLES, "audio", error));
    return p->backend->ops->codec_open(p->backend, &r->stream, error);
}

static void release(struct thespis_request *r)
{
    struct th_backend *backend = r->engine->parts.backend;
    if (r->stream != NULL) backend->ops->codec_close(backend, r->stream);
    th_rows_free(&r->rows);
    th_takes_close(&r->takes);
    th_free(r->frames);
    th_free(r->codes);
    th_free(r->ring);
    pthread_cond_destroy(&r->changed);
    th_free(r);
}

static thespis_status enqueue(thespis_engine *e, struct thespis_request *r, thespis_error *error)
{
    thespis_status status = THESPIS_OK;
    pthread_mutex_lock(&e->mutex);
    if (e->waiting >= TH_MAX_WAITING) {
        status = th_fail(error, THESPIS_BUSY, "%d requests are waiting already, at most %d may", e->waiting, TH_MAX_WAITING);
    } else {
        struct thespis_request **link = &e->requests;
        while (*link != NULL) link = &(*link)->next;
        *link = r;
        e->waiting++;
        pthread_cond_signal(&e->driver_wake);
    }
    pthread_mutex_unlock(&e->mutex);
    return status;
}

thespis_status thespis_request_start(thespis_engine *engine, const thespis_request_options *options, thespis_request **request,
                                     thespis_error *error)
{
    *request = NULL;
    if (options == NULL) return th_fail(error, THESPIS_INVALID, "options is NULL: call thespis_request_options_init on a struct");
    if (engine->parts.model == NULL)
        return th_fail(error, THESPIS_INVALID, "this engine was opened with a codec alone: speaking needs a model");
    TH_TRY(check_options(options, error));
    struct thespis_request *r;
    TH_TRY(TH_ALLOC(&r, 1, "a request", error));
    r->engine = engine;
    r->lane = -1;
    r->started = th_now();
    pthread_cond_init(&r->changed, NULL);
    thespis_status status = prepare(engine, options, r, error);
    if (status == THESPIS_OK) status = enqueue(engine, r, error);
    if (status != THESPIS_OK) {
        release(r);
        return status;
    }
    *request = r;
    return THESPIS_OK;
}

/* ---- read, cancel, free ------------------------------------------------------------------------------------------------------ */

static size_t take_from_ring(struct thespis_request *r, float *samples, size_t capacity)
{
    size_t size = (size_t)TH_RING_FRAMES * THESPIS_FRAME_SAMPLES;
    size_t count = r->ring_count < capacity ? r->ring_count : capacity;
    size_t first = count < size - r->ring_at ? count : size - r->ring_at;
    memcpy(samples, r->ring + r->ring_at, first * sizeof *samples);
    memcpy(samples + first, r->ring, (count - first) * sizeof *samples);
    r->ring_at = (r->ring_at + count) % size;
    r->ring_count -= count;
    return count;
}

thespis_status thespis_request_read(thespis_request *r, float *samples, size_t capacity, size_t *count, thespis_error *error)
{
    struct thespis_engine *e = r->engine;
    thespis_status status = THESPIS_OK;
    *count = 0;
    if (capacity == 0) return th_fail(error, THESPIS_INVALID, "capacity is 0, must be at least 1 sample");
    pthread_mutex_lock(&e->mutex);
    /* A failure is told when both threads have left the request, so that its outcome is final, and what was said before is read. */
    while (r->phase != TH_DONE && (r->cancelled || r->ring_count == 0)) pthread_cond_wait(&r->changed, &e->mutex);
    if (r->ring_count > 0 && !r->cancelled) {
        *count = take_from_ring(r, samples, capacity);
        pthread_cond_signal(&e->codec_wake);
    } else if (r->status != THESPIS_OK) {
        status = r->status;
        if (error != NULL) *error = r->error;
    }
    pthread_mutex_unlock(&e->mutex);
    return status;
}

static void cancel(struct thespis_request *r)
{
    struct thespis_engine *e = r->engine;
    if (r->phase == TH_DONE && r->ring_count == 0) return; /* over: the outcome stands */
    r->cancelled = 1;
    if (r->phase >= TH_DRAWN) th_request_fail_cancelled(r);
    pthread_cond_signal(&e->driver_wake);
    pthread_cond_signal(&e->codec_wake);
    pthread_cond_broadcast(&r->changed);
}

void thespis_request_cancel(thespis_request *r)
{
    pthread_mutex_lock(&r->engine->mutex);
    cancel(r);
    pthread_mutex_unlock(&r->engine->mutex);
}

void thespis_request_free(thespis_request *r)
{
    if (r == NULL) return;
    struct thespis_engine *e = r->engine;
    pthread_mutex_lock(&e->mutex);
    cancel(r);
    while (r->phase != TH_DONE || r->in_codec) pthread_cond_wait(&r->changed, &e->mutex);
    struct thespis_request **link = &e->requests;
    while (*link != r) link = &(*link)->next;
    *link = r->next;
    pthread_mutex_unlock(&e->mutex);
    release(r);
}

/* ---- what became of it ------------------------------------------------------------------------------------------------------- */

static double since(double begin, double end)
{
    return end > 0 && begin > 0 ? end - begin : 0;
}

thespis_status thespis_request_get_outcome(const thespis_request *r, thespis_outcome *outcome, thespis_error *error)
{
    if (outcome->size != sizeof *outcome)
        return th_fail(error, THESPIS_INVALID, "outcome.size is %zu, must be %zu", outcome->size, sizeof *outcome);
    pthread_mutex_lock(&r->engine->mutex);
    outcome->finish = r->phase == TH_DONE ? r->finish : THESPIS_FINISH_NONE;
    outcome->seed = r->sampling.seed;
    outcome->chunks = (int)r->takes.chunks.count;
    outcome->chunks_done = 0;
    for (int i = 0; i < outcome->chunks; i++) {
        thespis_finish finish = r->takes.take[i].finish;
        outcome->chunks_done += finish != THESPIS_FINISH_NONE && finish != THESPIS_FINISH_ERROR;
    }
    outcome->prompt_rows = r->prompt_rows;
    outcome->cached_rows = r->cached_rows;
    outcome->frames = r->ready;
    outcome->queue_seconds = since(r->started, r->first_row);
    outcome->prefill_seconds = since(r->first_row, r->first_frame);
    outcome->first_audio_seconds = since(r->started, r->first_audio);
    outcome->generate_seconds = since(r->first_row, r->last_frame);
    outcome->decode_seconds = r->decode_seconds;
    outcome->total_seconds = since(r->started, r->ended);
    pthread_mutex_unlock(&r->engine->mutex);
    return THESPIS_OK;
}

thespis_status thespis_request_get_chunk(const thespis_request *r, int index, thespis_chunk_info *info, thespis_error *error)
{
    if (info->size != sizeof *info)
        return th_fail(error, THESPIS_INVALID, "info.size is %zu, must be %zu", info->size, sizeof *info);
    if (index < 0 || (size_t)index >= r->takes.chunks.count)
        return th_fail(error, THESPIS_INVALID, "chunk %d: the text has chunks 0 to %zu", index, r->takes.chunks.count - 1);
    const struct th_chunk *chunk = &r->takes.chunks.items[index];
    info->text = chunk->text;
    info->text_bytes = chunk->bytes;
    info->source_begin = chunk->source_begin;
    info->source_end = chunk->source_end;
    pthread_mutex_lock(&r->engine->mutex);
    info->first_frame = r->takes.take[index].first_frame;
    info->frames = r->takes.take[index].frames;
    info->finish = r->takes.take[index].finish;
    pthread_mutex_unlock(&r->engine->mutex);
    return THESPIS_OK;
}

thespis_status thespis_request_get_codes(const thespis_request *r, const int32_t **codes, size_t *frames, thespis_error *error)
{
    *codes = NULL;
    *frames = 0;
    pthread_mutex_lock(&r->engine->mutex);
    int done = r->phase == TH_DONE && r->codes != NULL;
    if (done) {
        *codes = r->codes;
        *frames = (size_t)r->ready;
    }
    pthread_mutex_unlock(&r->engine->mutex);
    return done ? THESPIS_OK : th_fail(error, THESPIS_INVALID, "the request is still running: its codes are there at the end");
}
