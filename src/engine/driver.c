/* driver.c - the thread that owns the lanes: takes requests in order, feeds prompts in pieces between frames, steps all lanes
 * together.
 *
 * What happens on other lanes decides only when a request gets its next row, never what the row holds. */
#include <fenv.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "engine/engine.h"

/* The chunk in which a failure fell keeps the frames it had. */
static void end_take(struct thespis_request *r)
{
    struct th_take *take = &r->takes.take[r->takes.at];
    if (take->finish != THESPIS_FINISH_NONE || take->first_frame < 0) return;
    take->frames = r->ready - take->first_frame;
    take->finish = THESPIS_FINISH_ERROR;
}

void th_request_fail(struct thespis_request *r, thespis_status status, const thespis_error *error)
{
    if (r->status == THESPIS_OK) {
        r->status = status;
        r->error = *error;
        r->finish = status == THESPIS_CANCELLED ? THESPIS_FINISH_CANCELLED : THESPIS_FINISH_ERROR;
    }
}

void th_request_fail_cancelled(struct thespis_request *r)
{
    thespis_error error;
    th_fail(&error, THESPIS_CANCELLED, "the request was cancelled after %d frames", r->ready);
    th_request_fail(r, THESPIS_CANCELLED, &error);
}

static void leave_lane(struct thespis_engine *e, struct thespis_request *r)
{
    if (r->phase == TH_WAITING) e->waiting--;
    if (r->lane >= 0) e->lane[r->lane] = NULL;
    r->lane = -1;
}

/* Drawing has ended, well or not; the codec thread does the rest. */
static void end_drawing(struct thespis_engine *e, struct thespis_request *r)
{
    leave_lane(e, r);
    r->phase = TH_DRAWN;
    if (r->last_frame == 0) r->last_frame = th_now();
    pthread_cond_signal(&e->codec_wake);
    pthread_cond_broadcast(&r->changed);
}

/* Drawing has failed; the audio from before is still wanted. */
static void fail_drawing(struct thespis_engine *e, struct thespis_request *r, thespis_status status, const thespis_error *error)
{
    th_request_fail(r, status, error);
    end_take(r);
    end_drawing(e, r);
}

/* Those that a caller cancelled, or the codec thread cut off or gave up, leave their lanes. */
static void end_early(struct thespis_engine *e)
{
    for (struct thespis_request *r = e->requests; r != NULL; r = r->next) {
        if (r->phase >= TH_DRAWN || !(r->cancelled || r->cut || r->undecodable)) continue;
        if (r->cancelled) th_request_fail_cancelled(r);
        end_drawing(e, r);
    }
}

/* Waiting requests take free lanes. */
static void admit(struct thespis_engine *e)
{
    for (int lane = 0; lane < e->lanes; lane++) {
        if (e->lane[lane] != NULL) continue;
        struct thespis_request *r = th_pace_next(e);
        if (r == NULL) return;
        r->lane = lane;
        r->phase = TH_PREFILL;
        r->first_row = th_now();
        e->lane[lane] = r;
        e->waiting--;
    }
}

/* How long a prompt can wait: until its listener has heard what there is; one who has heard nothing yet counts in between. */
static double patience(const struct thespis_request *r, double now)
{
    return r->live && r->first_audio == 0 ? TH_PACE_NEAR / 2 : th_pace_lead(r, now);
}

/* The least patient, or they take turns. */
static struct thespis_request *next_prefill(struct thespis_engine *e)
{
    struct thespis_request *next = NULL;
    double least = 0, now = th_now();
    for (int i = 0; i < e->lanes; i++) {
        struct thespis_request *r = e->lane[(e->prefill_turn + i) % e->lanes];
        if (r == NULL || r->phase != TH_PREFILL || (next != NULL && patience(r, now) >= least)) continue;
        next = r;
        least = patience(r, now);
    }
    if (next != NULL) e->prefill_turn = (next->lane + 1) % e->lanes;
    return next;
}

/* Lanes that draw now: not those whose reader is far behind. */
static int collect_steps(struct thespis_engine *e, struct th_step *steps, int32_t *frames)
{
    int n = 0, width = 1 + e->parts.codebooks;
    for (int lane = 0; lane < e->lanes; lane++) {
        struct thespis_request *r = e->lane[lane];
        if (r == NULL || r->phase != TH_GENERATE || r->ready - r->decoded >= TH_AHEAD_FRAMES) continue;
        steps[n] = (struct th_step){.lane = lane, .frame = frames + (size_t)n * width};
        n++;
    }
    return n;
}

/* Builds the prompt of the current chunk. Without the mutex: only the driver writes frames, and only it reads the takes. */
static thespis_status build_prompt(struct thespis_engine *e, struct thespis_request *r, thespis_error *error)
{
    int context = e->parts.max_rows, room = r->frame_limit;
    if (room == 0) room = th_frames_for(r->takes.chunks.items[r->takes.at].bytes);
    int most = context - room < TH_MAX_PROMPT_ROWS ? context - room : TH_MAX_PROMPT_ROWS;
    TH_TRY(th_takes_prompt(&r->takes, e->parts.tokenizer, &e->parts.shape, r->frames, most, &r->rows, error));
    return th_request_plan(e, r, error);
}

/* Begins the lane: from a slot that holds the voice's system block, if there is one. */
static thespis_status begin_lane(struct thespis_engine *e, struct thespis_request *r, thespis_error *error)
{
    struct th_backend *backend = e->parts.backend;
    struct th_sampling sampling = r->sampling;
    sampling.row = (uint32_t)r->takes.at;
    char key[65];
    int slot = -1;
    if (r->rows.system_count >= TH_SLOT_LEAST_ROWS) {
        th_slot_key(&r->rows, key);
        slot = th_slots_find(&e->slots, key);
    }
    if (slot < 0) return backend->ops->begin(backend, r->lane, &sampling, error);
    TH_TRY(backend->ops->copy(backend, slot, r->lane, error));
    r->fed = r->copied = r->rows.system_count;
    return backend->ops->resample(backend, r->lane, &sampling, error);
}

/* One piece of r's prompt; a piece ends where the system block ends, so that the state there can be kept. */
static thespis_status feed_piece(struct thespis_engine *e, struct thespis_request *r, thespis_error *error)
{
    struct th_backend *backend = e->parts.backend;
    if (r->rows.count == 0) TH_TRY(build_prompt(e, r, error));
    if (r->fed == 0) TH_TRY(begin_lane(e, r, error));
    size_t system = r->rows.system_count, end = r->fed < system ? system : r->rows.count, left = end - r->fed;
    int n = left < (size_t)e->prefill_rows ? (int)left : e->prefill_rows;
    TH_TRY(backend->ops->feed(backend, r->lane, r->rows.data + r->fed * (size_t)r->rows.width, n, error));
    r->fed += (size_t)n;
    if (r->fed == system && system >= TH_SLOT_LEAST_ROWS) {
        char key[65];
        th_slot_key(&r->rows, key);
        th_slots_keep(&e->slots, backend, r->lane, key);
    }
    return THESPIS_OK;
}

/* Room for the frames of the chunk that begins now. The codec thread reads frames under the mutex, held here. */
static thespis_status grow_frames(struct thespis_engine *e, struct thespis_request *r, thespis_error *error)
{
    int need = r->drawn + r->max_frames;
    if (need <= r->capacity) return THESPIS_OK;
    size_t size = (size_t)(1 + e->parts.codebooks) * sizeof *r->frames;
    int32_t *grown = th_realloc(r->frames, (size_t)r->capacity, (size_t)need, size);
    if (grown == NULL) return th_fail_memory(error, "frames", (size_t)need * size);
    r->frames = grown;
    r->capacity = need;
    return THESPIS_OK;
}

static void after_feed(struct thespis_engine *e, struct thespis_request *r, thespis_status status, thespis_error *error)
{
    struct th_take *take = &r->takes.take[r->takes.at];
    if (r->cut) return; /* over, whatever came of the prompt */
    if (status == THESPIS_OK && take->prompt_rows == 0) {
        take->prompt_rows = (int)r->rows.count;
        r->prompt_rows += take->prompt_rows;
        r->cached_rows += (int)r->copied;
    }
    if (status == THESPIS_OK && r->fed == r->rows.count) {
        take->first_frame = r->ready;
        r->phase = TH_GENERATE;
        status = grow_frames(e, r, error);
    }
    if (status != THESPIS_OK) fail_drawing(e, r, status, error);
}

/* The chunk is spoken: on to the next, or the end. */
static void finish_chunk(struct thespis_engine *e, struct thespis_request *r, thespis_finish reason)
{
    struct th_take *take = &r->takes.take[r->takes.at];
    if (r->held && reason == THESPIS_FINISH_STOP) r->drawn--;
    if (r->held && reason != THESPIS_FINISH_STOP) r->ready++;
    r->held = 0;
    take->finish = reason;
    take->frames = r->ready - take->first_frame;
    if (r->finish == THESPIS_FINISH_NONE || r->finish == THESPIS_FINISH_STOP) r->finish = reason;
    if (r->takes.at + 1 < r->takes.chunks.count) {
        r->takes.at++;
        r->fed = r->copied = 0;
        th_rows_free(&r->rows);
        r->phase = TH_PREFILL;
        return;
    }
    if (r->ready == 0) {
        thespis_error error;
        th_fail(&error, THESPIS_INVALID, "the model ended its speech at once: generated no audio frames");
        th_request_fail(r, error.status, &error);
    }
    end_drawing(e, r);
}

/* Has the main token gone round in circles of at most 8 frames for TH_LOOP_FRAMES? */
static int loops(const struct thespis_engine *e, struct thespis_request *r)
{
    int width = 1 + e->parts.codebooks, begin = r->takes.take[r->takes.at].first_frame, n = r->drawn - begin;
    for (int period = 1; period <= 8; period++) {
        int i = 0;
        while (i < TH_LOOP_FRAMES && i + period < n &&
               r->frames[(size_t)(r->drawn - 1 - i) * (size_t)width] ==
                   r->frames[(size_t)(r->drawn - 1 - i - period) * (size_t)width])
            i++;
        if (i == TH_LOOP_FRAMES) return 1;
    }
    return 0;
}

/* A new frame. The model often draws code 0 = 0 right before it ends; decoded, that frame is a click. So such a frame is held back
 * for one step and dropped when end of speech follows. */
static void take_frame(struct thespis_engine *e, struct thespis_request *r, const int32_t *frame)
{
    const struct th_config *config = &e->parts.model->config;
    if (r->first_frame == 0) r->first_frame = th_now();
    r->last_frame = th_now();
    if (frame[0] == config->eos) {
        finish_chunk(e, r, THESPIS_FINISH_STOP);
        return;
    }
    if (r->held) r->ready++;
    memcpy(r->frames + (size_t)r->drawn * (size_t)config->frame_width, frame, (size_t)config->frame_width * sizeof *frame);
    r->drawn++;
    r->held = frame[0] == config->semantic_start;
    if (!r->held) r->ready++;
    if (r->drawn - r->takes.take[r->takes.at].first_frame == r->max_frames)
        finish_chunk(e, r, THESPIS_FINISH_LENGTH);
    else if (r->guard && loops(e, r))
        finish_chunk(e, r, THESPIS_FINISH_LOOP);
}

static void after_step(struct thespis_engine *e, const struct th_step *steps, int n)
{
    for (int i = 0; i < n; i++) {
        struct thespis_request *r = e->lane[steps[i].lane];
        if (r->cut) continue;
        if (steps[i].status != THESPIS_OK)
            fail_drawing(e, r, steps[i].status, &steps[i].error);
        else
            take_frame(e, r, steps[i].frame);
    }
    if (n > 0) pthread_cond_signal(&e->codec_wake);
}

static void fail_all(struct th_step *steps, int n, thespis_status status, const thespis_error *error)
{
    for (int i = 0; i < n; i++) {
        if (steps[i].status != THESPIS_OK) continue;
        steps[i].status = status;
        steps[i].error = *error;
    }
}

/* One round: at most one piece of one prompt, then one frame of every ready lane. Called and left with the mutex held. */
static int round_of_work(struct thespis_engine *e)
{
    struct th_step steps[64];
    int32_t frames[64 * (1 + TH_MAX_CODEBOOKS)];
    struct thespis_request *prompt = next_prefill(e);
    int n = collect_steps(e, steps, frames);
    if (prompt == NULL && n == 0) return 0;

    th_pace_begin(&e->pace, th_now());
    pthread_mutex_unlock(&e->mutex);
    thespis_error error = {0}, feed_error = {0};
    thespis_status fed = prompt != NULL ? feed_piece(e, prompt, &feed_error) : THESPIS_OK;
    double began = th_now();
    if (n > 0) {
        thespis_status status = e->parts.backend->ops->step(e->parts.backend, steps, n, &error);
        if (status != THESPIS_OK) fail_all(steps, n, status, &error);
    }
    double ended = th_now();
    pthread_mutex_lock(&e->mutex);

    if (n > 0) th_load_step(&e->steps, n, ended - began);
    th_pace_end(&e->pace, 0, ended);
    if (prompt != NULL) after_feed(e, prompt, fed, &feed_error);
    after_step(e, steps, n);
    return 1;
}

void *th_driver_main(void *argument)
{
    struct thespis_engine *e = argument;
    fesetenv(FE_DFL_ENV); /* the caller's thread may flush denormals */
    pthread_mutex_lock(&e->mutex);
    while (!e->closing) {
        end_early(e);
        admit(e);
        if (!round_of_work(e)) pthread_cond_wait(&e->driver_wake, &e->mutex);
    }
    pthread_mutex_unlock(&e->mutex);
    return NULL;
}
