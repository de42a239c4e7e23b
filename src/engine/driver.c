/* driver.c - the thread that owns the lanes: takes requests in order, feeds prompts in pieces between frames, steps all lanes
 * together.
 *
 * What happens on other lanes decides only when a request gets its next row, never what the row holds. */
#include <fenv.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "engine/engine.h"

void th_request_fail(struct thespis_request *r, thespis_status status, const thespis_error *error)
{
    if (r->status == THESPIS_OK) {
        r->status = status;
        r->error = *error;
        r->finish = status == THESPIS_CANCELLED ? THESPIS_FINISH_CANCELLED : THESPIS_FINISH_ERROR;
    }
}

static void leave_lane(struct thespis_engine *e, struct thespis_request *r)
{
    if (r->phase == TH_WAITING) e->waiting--;
    if (r->lane >= 0) e->lane[r->lane] = NULL;
    r->lane = -1;
}

/* codes [codebooks][ready] from frames [ready][1 + codebooks]. */
static void transpose_codes(const struct thespis_engine *e, struct thespis_request *r)
{
    int books = e->parts.codebooks;
    for (int f = 0; f < r->ready; f++)
        for (int b = 0; b < books; b++) r->codes[(size_t)b * r->ready + f] = r->frames[(size_t)f * (1 + books) + 1 + b];
}

/* Drawing has ended, well or not; the codec thread does the rest. */
static void end_drawing(struct thespis_engine *e, struct thespis_request *r)
{
    leave_lane(e, r);
    transpose_codes(e, r);
    r->phase = TH_DRAWN;
    if (r->last_frame == 0) r->last_frame = th_now();
    pthread_cond_signal(&e->codec_wake);
    pthread_cond_broadcast(&r->changed);
}

static void end_cancelled(struct thespis_engine *e)
{
    for (struct thespis_request *r = e->requests; r != NULL; r = r->next) {
        if (!r->cancelled || r->phase >= TH_DRAWN) continue;
        thespis_error error;
        th_fail(&error, THESPIS_CANCELLED, "the request was cancelled after %d frames", r->ready);
        th_request_fail(r, THESPIS_CANCELLED, &error);
        end_drawing(e, r);
    }
}

/* Oldest waiting requests take free lanes. */
static void admit(struct thespis_engine *e)
{
    struct thespis_request *r = e->requests;
    for (int lane = 0; lane < e->lanes; lane++) {
        if (e->lane[lane] != NULL) continue;
        while (r != NULL && r->phase != TH_WAITING) r = r->next;
        if (r == NULL) return;
        r->lane = lane;
        r->phase = TH_PREFILL;
        r->first_row = th_now();
        e->lane[lane] = r;
        e->waiting--;
    }
}

static struct thespis_request *next_prefill(struct thespis_engine *e)
{
    for (int i = 0; i < e->lanes; i++) {
        int lane = (e->prefill_turn + i) % e->lanes;
        struct thespis_request *r = e->lane[lane];
        if (r == NULL || r->phase != TH_PREFILL) continue;
        e->prefill_turn = (lane + 1) % e->lanes;
        return r;
    }
    return NULL;
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

/* One piece of r's prompt. Without the mutex: only the driver touches lanes. */
static thespis_status feed_piece(struct thespis_engine *e, struct thespis_request *r, thespis_error *error)
{
    struct th_backend *backend = e->parts.backend;
    if (r->fed == 0) TH_TRY(backend->ops->begin(backend, r->lane, &r->sampling, error));
    size_t left = r->rows.count - r->fed;
    int n = left < (size_t)e->prefill_rows ? (int)left : e->prefill_rows;
    TH_TRY(backend->ops->feed(backend, r->lane, r->rows.data + r->fed * r->rows.width, n, error));
    r->fed += (size_t)n;
    return THESPIS_OK;
}

static void after_feed(struct thespis_engine *e, struct thespis_request *r, thespis_status status, const thespis_error *error)
{
    if (status != THESPIS_OK) {
        th_request_fail(r, status, error);
        end_drawing(e, r);
    } else if (r->fed == r->rows.count) {
        r->phase = TH_GENERATE;
    }
}

static void finish(struct thespis_engine *e, struct thespis_request *r, thespis_finish reason)
{
    if (reason == THESPIS_FINISH_LENGTH && r->held) r->ready++;
    r->held = 0;
    r->finish = reason;
    if (r->ready == 0) {
        thespis_error error;
        th_fail(&error, THESPIS_INVALID, "the model ended its speech at once: generated no audio frames");
        r->finish = THESPIS_FINISH_NONE;
        th_request_fail(r, error.status, &error);
    }
    end_drawing(e, r);
}

/* A new frame. The model often draws code 0 = 0 right before it ends; decoded, that frame is a click. So such a frame is held back
 * for one step and dropped when end of speech follows. */
static void take_frame(struct thespis_engine *e, struct thespis_request *r, const int32_t *frame)
{
    const struct th_config *config = &e->parts.model->config;
    if (r->first_frame == 0) r->first_frame = th_now();
    if (frame[0] == config->eos) {
        finish(e, r, THESPIS_FINISH_STOP);
        return;
    }
    if (r->held) r->ready++;
    memcpy(r->frames + (size_t)r->drawn * config->frame_width, frame, (size_t)config->frame_width * sizeof *frame);
    r->drawn++;
    r->held = frame[0] == config->semantic_start;
    if (!r->held) r->ready++;
    r->last_frame = th_now();
    if (r->drawn == r->max_frames) finish(e, r, THESPIS_FINISH_LENGTH);
}

static void after_step(struct thespis_engine *e, const struct th_step *steps, int n)
{
    for (int i = 0; i < n; i++) {
        struct thespis_request *r = e->lane[steps[i].lane];
        if (steps[i].status != THESPIS_OK) {
            th_request_fail(r, steps[i].status, &steps[i].error);
            end_drawing(e, r);
        } else {
            take_frame(e, r, steps[i].frame);
        }
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

    pthread_mutex_unlock(&e->mutex);
    thespis_error error = {0}, feed_error = {0};
    thespis_status fed = prompt != NULL ? feed_piece(e, prompt, &feed_error) : THESPIS_OK;
    if (n > 0) {
        thespis_status status = e->parts.backend->ops->step(e->parts.backend, steps, n, &error);
        if (status != THESPIS_OK) fail_all(steps, n, status, &error);
    }
    pthread_mutex_lock(&e->mutex);

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
        end_cancelled(e);
        admit(e);
        if (!round_of_work(e)) pthread_cond_wait(&e->driver_wake, &e->mutex);
    }
    pthread_mutex_unlock(&e->mutex);
    return NULL;
}
