/* run.c - rows go through the network: feed and step. What they pass is in backbone.c and tower.c, how a step is launched in
 * graphs.c, the rest of a lane's life in lanes.c. */
#include <stdio.h>
#include <string.h>

#include "backend/cuda/lm.h"

static size_t frame_bytes(const struct th_config *config)
{
    return (size_t)config->frame_width * sizeof(int32_t);
}

static thespis_status check_frame(const struct th_config *config, const int32_t *frame, const char *what, int index,
                                  thespis_error *error)
{
    if (frame[0] < 0 || frame[0] >= config->backbone.vocab)
        return th_fail(error, THESPIS_INVALID, "%s %d: main token is %d, must be 0 to %d", what, index, (int)frame[0],
                       config->backbone.vocab - 1);
    return THESPIS_OK;
}

/* Waits for everything that was launched. */
static thespis_status finish(struct th_cuda *cuda, const char *what, thespis_error *error)
{
    TH_CUDA(cudaStreamSynchronize(cuda->stream), what, error);
    return THESPIS_OK;
}

static struct th_cuda_hand hidden_of(const struct th_cuda *cuda, int columns)
{
    return (struct th_cuda_hand){.pass = cuda->forward->pass,
                                 .columns = columns,
                                 .width = cuda->model->config.backbone.hidden,
                                 .final = cuda->forward->final,
                                 .lane_hidden = (uint16_t *)(void *)(cuda->state + cuda->layout.hidden_at),
                                 .lane_stride = cuda->layout.stride,
                                 .handed = cuda->forward->handed};
}

static thespis_status hand_over(struct th_cuda *cuda, int columns, thespis_error *error)
{
    struct th_cuda_hand hand = hidden_of(cuda, columns);
    TH_CUDA(th_cuda_hand(th_cuda_next(cuda), &hand), "the tower's rows", error);
    return THESPIS_OK;
}

static thespis_status keep_hidden(struct th_cuda *cuda, int columns, thespis_error *error)
{
    struct th_cuda_hand hand = hidden_of(cuda, columns);
    TH_CUDA(th_cuda_keep(th_cuda_next(cuda), &hand), "the lanes' hidden", error);
    return THESPIS_OK;
}

/* ---- feed -------------------------------------------------------------------------------------------------------------------- */

/* A piece of a prompt in host_pass: `rows` backbone columns from row `first` on, of which the first `drawn` (0 or 1) is the lane's
 * newest frame and the others are `frames`; and the tower's columns, one row behind, each with the next row as its label. A row
 * before `first` is the pending one, whose frame and hidden are the lane's. Returns the number of tower columns. */
static int describe_piece(struct th_cuda *cuda, int number, const int32_t *frames, int n)
{
    const struct th_config *config = &cuda->model->config;
    const struct th_cuda_lane *lane = &cuda->lanes[number];
    struct th_cuda_pass *pass = cuda->forward->host_pass;
    const int first = lane->backbone_rows, drawn = lane->rows - first, rows = drawn + n;
    const int pending = first - lane->tower_rows, count = rows - 1 + pending;
    *pass = (struct th_cuda_pass){.backbone_count = rows, .tower_count = count, .capacity = rows};
    for (int c = 0; c < rows; c++) {
        struct th_cuda_column *column = &pass->column[c];
        column->lane = number;
        column->position = first + c;
        memcpy(column->input, c < drawn ? lane->newest : frames + (size_t)(c - drawn) * (size_t)config->frame_width,
               frame_bytes(config));
    }
    for (int i = 0; i < count; i++) {
        struct th_cuda_column *column = &pass->column[rows + i];
        column->lane = number;
        column->position = lane->tower_rows + i;
        column->source = i - pending; /* -1: the lane's hidden */
        column->keep = 0;
        column->forced = 1;
        memcpy(column->input, i < pending ? lane->newest : pass->column[i - pending].input, frame_bytes(config));
        memcpy(column->label, pass->column[i - pending + 1].input, frame_bytes(config));
    }
    return count;
}

static thespis_status run_piece(struct th_cuda *cuda, int number, int rows, int tower_rows, thespis_error *error)
{
    struct th_cuda_forward *f = cuda->forward;
    const size_t hidden = (size_t)cuda->model->config.backbone.hidden;
    struct th_cuda_batch backbone = {.columns = rows, .count = rows, .sequential = 1};
    struct th_cuda_batch tower = {.tower = 1, .columns = tower_rows, .count = tower_rows, .sequential = 1};
    TH_TRY(th_cuda_upload_pass(cuda, rows, error));
    TH_TRY(th_cuda_backbone(cuda, &backbone, 0, error));
    if (tower_rows > 0) {
        TH_TRY(hand_over(cuda, tower_rows, error));
        TH_TRY(th_cuda_tower(cuda, &tower, error));
    }
    TH_CUDA(cudaMemcpyAsync(th_cuda_lane_state(cuda, number) + cuda->layout.hidden_at, f->final + (size_t)(rows - 1) * hidden,
                            hidden * sizeof(uint16_t), cudaMemcpyDeviceToDevice, cuda->stream),
            "a lane's hidden", error);
    return finish(cuda, "rows of a prompt", error);
}

static thespis_status feed_piece(struct th_cuda *cuda, int number, const int32_t *frames, int n, thespis_error *error)
{
    const struct th_config *config = &cuda->model->config;
    struct th_cuda_lane *lane = &cuda->lanes[number];
    const int first = lane->backbone_rows, rows = lane->rows - first + n;
    int tower_rows = describe_piece(cuda, number, frames, n);
    TH_TRY(run_piece(cuda, number, rows, tower_rows, error));
    memcpy(lane->newest, frames + (size_t)(n - 1) * (size_t)config->frame_width, frame_bytes(config));
    lane->tower_rows += tower_rows;
    lane->rows = lane->backbone_rows = lane->prompt_rows = first + rows;
    for (int i = 0; i < n; i++) th_sampler_see(&lane->sampler, frames[(size_t)i * (size_t)config->frame_width]);
    return THESPIS_OK;
}

thespis_status th_cuda_feed(struct th_backend *backend, int number, const int32_t *frames, int n, thespis_error *error)
{
    struct th_cuda *cuda = th_cuda_of(backend);
    TH_TRY(th_cuda_check_begun(cuda, number, error));
    const struct th_config *config = &cuda->model->config;
    struct th_cuda_lane *lane = &cuda->lanes[number];
    if (n < 0) return th_fail(error, THESPIS_INVALID, "%d rows were fed", n);
    if (n > cuda->max_rows - lane->rows)
        return th_fail(error, THESPIS_LIMIT, "the lane has %d rows and %d more were fed; max_rows is %d", lane->rows, n,
                       cuda->max_rows);
    for (int i = 0; i < n; i++)
        TH_TRY(check_frame(config, frames + (size_t)i * (size_t)config->frame_width, "row", lane->rows + i, error));
    TH_TRY(th_cuda_enter(cuda, error));
    thespis_status status = THESPIS_OK;
    for (int done = 0, piece; done < n && status == THESPIS_OK; done += piece) {
        const int room = cuda->forward->capacity - (lane->rows - lane->backbone_rows); /* a drawn frame goes first */
        piece = n - done < room ? n - done : room;
        status = feed_piece(cuda, number, frames + (size_t)done * (size_t)config->frame_width, piece, error);
    }
    if (n > 0) lane->ended = 0;
    return th_cuda_leave(cuda, status);
}

/* ---- step: the kernels ---------------------------------------------------------------------------------------------------------
 */

/* The labels that become known with this head's draw. */
static void add_labels(const struct th_cuda *cuda, int head, struct th_cuda_draw *draw)
{
    const struct th_tower_config *tower = &cuda->model->config.tower;
    const int early = th_cuda_early_labels(cuda), first = head == 0 ? 0 : tower->shared_layers + head;
    if (early == 0 || first >= cuda->tower_layers) return;
    draw->labels = head == 0 ? early : 1;
    for (int k = 0; k < draw->labels; k++) draw->tables[k] = cuda->weights.tower[first + k].table;
    draw->label = th_cuda_label_of(cuda, first);
    draw->label_step = (size_t)cuda->forward->capacity * (size_t)tower->hidden;
}

static thespis_status draw(struct th_cuda *cuda, const struct th_cuda_batch *batch, int head, thespis_error *error)
{
    const struct th_config *config = &cuda->model->config;
    struct th_cuda_forward *f = cuda->forward;
    const int count = head == 0 ? config->candidates : config->tower.codebook_size;
    TH_TRY(th_cuda_probe(cuda, batch, head == 0 ? "candidate_logits" : "code_logits", head == 0 ? 0 : head - 1, count, TH_CUDA_BF16,
                         f->logits, f->logit_stride, error));
    struct th_cuda_draw draw = {.pass = f->pass,
                                .columns = batch->columns,
                                .head = head,
                                .count = count,
                                .width = config->frame_width,
                                .eos = config->eos,
                                .semantic_start = config->semantic_start,
                                .codebook_size = config->tower.codebook_size,
                                .logits = f->logits,
                                .stride = f->logit_stride,
                                .drawn = f->drawn,
                                .result = head == config->tower.residual_layers ? f->host_drawn : NULL};
    add_labels(cuda, head, &draw);
    TH_CUDA(th_cuda_draw(th_cuda_next(cuda), &draw), "a draw", error);
    return THESPIS_OK;
}

/* Tower layers first..end-1 of every column. The frame is its own label, filled in code by code. What layer `first` takes is in
 * forward->handed. */
static thespis_status step_tower(struct th_cuda *cuda, const struct th_cuda_batch *batch, int first, int end, thespis_error *error)
{
    const int shared = cuda->model->config.tower.shared_layers;
    int handed = 1; /* forward->handed is what the next layer takes */
    for (int t = first; t < end; t++) {
        TH_TRY(th_cuda_tower_layer(cuda, batch, t, !handed, error));
        handed = cuda->probe != NULL;
        if (handed) TH_TRY(th_cuda_tower_hand_on(cuda, batch, t, error));
        if (t < shared) continue;
        TH_TRY(th_cuda_code_logits(cuda, batch->columns, t - shared, !handed, error));
        handed = 1;
        TH_TRY(draw(cuda, batch, t - shared + 1, error));
    }
    return THESPIS_OK;
}

/* The rest of the frame's codes on one stream; on the other the frame's way through the backbone, which needs only its first codes.
 * Each has its own space. */
static thespis_status step_both(struct th_cuda *cuda, const struct th_cuda_batch *backbone, const struct th_cuda_batch *tower,
                                int first, thespis_error *error)
{
    struct th_cuda_forward *f = cuda->forward;
    TH_CUDA(cudaEventRecord(f->parted, cuda->stream), "parting", error);
    TH_CUDA(cudaStreamWaitEvent(f->beside, f->parted, 0), "parting", error);
    th_cuda_go_on(cuda, &f->space[1], 1);
    TH_TRY(step_tower(cuda, tower, first, cuda->tower_layers, error));
    TH_CUDA(cudaEventRecord(f->joined, f->beside), "joining", error);
    th_cuda_go_on(cuda, &f->space[0], 2); /* what follows the embedding may read positions early, which that may change */
    TH_TRY(th_cuda_backbone(cuda, backbone, 1, error));
    TH_TRY(keep_hidden(cuda, backbone->columns, error));
    TH_CUDA(cudaStreamWaitEvent(cuda->stream, f->joined, 0), "joining", error);
    return THESPIS_OK;
}

thespis_status th_cuda_step_kernels(struct th_cuda *cuda, const struct th_cuda_step_shape *shape, thespis_error *error)
{
    const struct th_tower_config *config = &cuda->model->config.tower;
    struct th_cuda_forward *f = cuda->forward;
    struct th_cuda_batch backbone = {.columns = shape->columns, .count = f->host_pass->backbone_count, .splits = shape->splits};
    struct th_cuda_batch tower = backbone;
    tower.tower = 1;
    tower.count = f->host_pass->tower_count;
    TH_TRY(th_cuda_upload_pass(cuda, shape->columns, error));
    if (!shape->ahead && backbone.count > 0) TH_TRY(th_cuda_backbone(cuda, &backbone, 0, error));
    TH_TRY(hand_over(cuda, shape->columns, error));
    TH_TRY(th_cuda_candidate_logits(cuda, shape->columns, error));
    TH_TRY(draw(cuda, &tower, 0, error));
    if (!shape->ahead) return step_tower(cuda, &tower, 0, cuda->tower_layers, error);
    /* codes 1..B enter the backbone's row; code j is drawn after layer shared_layers + j - 1 */
    const int before = config->backbone_codebooks > 0 ? config->shared_layers + config->backbone_codebooks : 0;
    TH_TRY(step_tower(cuda, &tower, 0, before, error));
    return step_both(cuda, &backbone, &tower, before, error);
}

/* ---- step: the lanes -----------------------------------------------------------------------------------------------------------
 */

static thespis_status check_step(const struct th_cuda *cuda, const struct th_step *steps, int index, thespis_error *error)
{
    const struct th_step *step = &steps[index];
    TH_TRY(th_cuda_check_begun(cuda, step->lane, error));
    const struct th_cuda_lane *lane = &cuda->lanes[step->lane];
    for (int i = 0; i < index; i++)
        if (steps[i].lane == step->lane) return th_fail(error, THESPIS_INVALID, "lane %d is named twice in a step", step->lane);
    if (lane->rows < 2)
        return th_fail(error, THESPIS_INVALID, "lane %d has %d rows, a step needs at least 2", step->lane, lane->rows);
    if (lane->ended) return th_fail(error, THESPIS_INVALID, "lane %d has reached end of speech", step->lane);
    if (lane->rows >= cuda->max_rows)
        return th_fail(error, THESPIS_LIMIT, "lane %d has %d rows; max_rows is %d", step->lane, lane->rows, cuda->max_rows);
    return step->forced != NULL ? check_frame(&cuda->model->config, step->forced, "forced frame of lane", step->lane, error)
                                : THESPIS_OK;
}

/* The tower's column of a step; `source` is its backbone column, or -1. */
static void describe_column(const struct th_cuda *cuda, const struct th_step *step, int source, struct th_cuda_column *column)
{
    const struct th_config *config = &cuda->model->config;
    const struct th_cuda_lane *lane = &cuda->lanes[step->lane];
    const struct th_sampling *settings = &lane->sampler.settings;
    column->lane = step->lane;
    column->position = lane->rows - 1;
    column->source = source;
    column->keep = source >= 0;
    column->forced = step->forced != NULL;
    column->top_k = settings->top_k;
    column->greedy = settings->greedy;
    column->temperature = settings->temperature;
    column->top_p = settings->top_p;
    column->row = settings->row;
    column->seed = settings->seed;
    column->step = lane->sampler.step + 1;
    memcpy(column->window, lane->sampler.window, sizeof column->window);
    memcpy(column->input, lane->newest, frame_bytes(config));
    if (step->forced != NULL)
        memcpy(column->label, step->forced, frame_bytes(config));
    else
        memset(column->label, 0, frame_bytes(config));
}

static int power_of_two(int n, int least)
{
    int p = least;
    while (p < n) p *= 2;
    return p;
}

/* At least what these rows need. A graph is made for each number, so there are few. */
static int splits_for(const struct th_cuda *cuda, int furthest)
{
    int splits = 4;
    while (splits < furthest / TH_CUDA_SPLIT + 1) splits *= 4;
    return splits < cuda->forward->splits ? splits : cuda->forward->splits;
}

static int is_fresh(const struct th_cuda_lane *lane) /* it has a drawn frame that the backbone has not seen */
{
    return lane->backbone_rows < lane->rows;
}

/* The step of these lanes in host_pass, and its shape. Backbone columns: with `ahead` the row that each lane is about to draw, else
 * the newest row of lanes that are fresh. */
static struct th_cuda_step_shape describe_step(struct th_cuda *cuda, struct th_step **live, int n, int ahead)
{
    struct th_cuda_pass *pass = cuda->forward->host_pass;
    const int columns = power_of_two(n, 1);
    int backbone = 0, furthest = 0;
    for (int i = 0; i < n; i++) {
        const struct th_cuda_lane *lane = &cuda->lanes[live[i]->lane];
        struct th_cuda_column *column = &pass->column[columns + i];
        describe_column(cuda, live[i], !ahead && is_fresh(lane) ? backbone : -1, column);
        if (ahead || is_fresh(lane)) {
            pass->column[backbone] = *column;
            pass->column[backbone++].position = ahead ? lane->rows : lane->rows - 1;
        }
        furthest = lane->rows > furthest ? lane->rows : furthest;
    }
    *pass = (struct th_cuda_pass){.backbone_count = backbone, .tower_count = n, .capacity = columns};
    return (struct th_cuda_step_shape){.columns = columns, .splits = splits_for(cuda, furthest), .ahead = ahead};
}

/* Lanes that were stepped while something was probed: their newest rows go through the backbone. */
static thespis_status catch_up(struct th_cuda *cuda, struct th_step **live, int n, thespis_error *error)
{
    struct th_cuda_pass *pass = cuda->forward->host_pass;
    int count = 0, furthest = 0;
    for (int i = 0; i < n; i++) {
        const struct th_cuda_lane *lane = &cuda->lanes[live[i]->lane];
        if (!is_fresh(lane)) continue;
        describe_column(cuda, live[i], -1, &pass->column[count++]);
        furthest = lane->rows > furthest ? lane->rows : furthest;
    }
    if (count == 0) return THESPIS_OK;
    *pass = (struct th_cuda_pass){.backbone_count = count, .capacity = count};
    struct th_cuda_batch batch = {.columns = count, .count = count, .splits = splits_for(cuda, furthest)};
    TH_TRY(th_cuda_upload_pass(cuda, count, error));
    TH_TRY(th_cuda_backbone(cuda, &batch, 0, error));
    TH_TRY(keep_hidden(cuda, count, error));
    TH_TRY(finish(cuda, "rows of a step", error));
    for (int i = 0; i < n; i++) cuda->lanes[live[i]->lane].backbone_rows = cuda->lanes[live[i]->lane].rows;
    return THESPIS_OK;
}

static thespis_status draw_failure(const struct th_cuda_lane *lane, const struct th_cuda_drawn *drawn, struct th_step *step)
{
    char head[48];
    if (drawn->head == 0)
        snprintf(head, sizeof head, "the main head");
    else
        snprintf(head, sizeof head, "the head of code %d", drawn->head);
    if (drawn->failed == TH_CUDA_OVERFLOWS)
        return th_fail(&step->error, THESPIS_NUMERIC,
                       "lane %d, row %d: logit %d of %s, %g, overflows when divided by temperature %g", step->lane, lane->rows - 1,
                       drawn->index, head, (double)drawn->value, (double)lane->sampler.settings.temperature);
    return th_fail(&step->error, THESPIS_NUMERIC, "lane %d, row %d: logit %d of %s is %f", step->lane, lane->rows - 1, drawn->index,
                   head, (double)drawn->value);
}

/* What came of a step enters its lane, as the portable sampler and the CPU backend do it. */
static void take_frame(struct th_cuda *cuda, struct th_step *step, const struct th_cuda_drawn *drawn, int ahead)
{
    const struct th_config *config = &cuda->model->config;
    struct th_cuda_lane *lane = &cuda->lanes[step->lane];
    lane->backbone_rows = lane->rows;
    const int main_failed = drawn->failed != TH_CUDA_DRAWN && drawn->head == 0;
    if (step->forced == NULL && !(main_failed && drawn->failed == TH_CUDA_NOT_FINITE)) lane->sampler.step++;
    if (!main_failed) {
        memcpy(step->frame, drawn->frame, frame_bytes(config));
        th_sampler_see(&lane->sampler, step->frame[0]);
        lane->ended = step->frame[0] == config->eos;
    }
    if (drawn->failed != TH_CUDA_DRAWN) {
        step->status = draw_failure(lane, drawn, step);
        if (ahead && drawn->head > config->tower.backbone_codebooks) lane->begun = 0; /* the backbone has gone on without it */
        return;
    }
    if (lane->ended) return; /* end of speech is no row */
    memcpy(lane->newest, step->frame, frame_bytes(config));
    lane->tower_rows = lane->rows++;
    if (ahead) lane->backbone_rows = lane->rows;
}

static thespis_status step_group(struct th_cuda *cuda, struct th_step **live, int n, thespis_error *error)
{
    const int ahead = cuda->probe == NULL; /* a probe sees rows in the order of the portable backend */
    if (ahead) TH_TRY(catch_up(cuda, live, n, error));
    struct th_cuda_step_shape shape = describe_step(cuda, live, n, ahead);
    TH_TRY(th_cuda_run_step(cuda, &shape, error));
    TH_TRY(finish(cuda, "a step", error));
    for (int i = 0; i < n; i++) take_frame(cuda, live[i], &cuda->forward->host_drawn[i], ahead);
    return THESPIS_OK;
}

/* A device's failure is every lane's. */
static thespis_status step_or_fail(struct th_cuda *cuda, struct th_step **live, int n, thespis_error *error)
{
    thespis_status status = th_cuda_leave(cuda, step_group(cuda, live, n, error));
    for (int i = 0; i < n && status != THESPIS_OK; i++) {
        live[i]->status = status;
        if (error != NULL) live[i]->error = *error;
    }
    return status;
}

thespis_status th_cuda_step(struct th_backend *backend, struct th_step *steps, int n, thespis_error *error)
{
    struct th_cuda *cuda = th_cuda_of(backend);
    if (cuda->model == NULL) return th_fail(error, THESPIS_UNSUPPORTED, "lanes need a language model, and only a codec was opened");
    TH_TRY(th_cuda_enter(cuda, error));
    struct th_step *live[TH_CUDA_STEP_COLUMNS];
    const int group = cuda->forward != NULL ? cuda->forward->steps : 1;
    int count = 0, failed = 0;
    for (int i = 0; i < n; i++) {
        steps[i].status = check_step(cuda, steps, i, &steps[i].error);
        if (steps[i].status == THESPIS_OK) live[count++] = &steps[i];
        if (count == group || (i == n - 1 && count > 0)) {
            TH_TRY(step_or_fail(cuda, live, count, error));
            count = 0;
        }
    }
    for (int i = 0; i < n; i++) failed += steps[i].status != THESPIS_OK;
    if (n == 0 || failed < n) return THESPIS_OK;
    if (error != NULL) *error = steps[0].error;
    return steps[0].status;
}
