/* run.c - the life of a lane: begin, feed, step, copy. What rows pass through is in backbone.c and tower.c. */
#include "backend/cpu/lm.h"

thespis_status th_cpu_check_lane(const struct th_cpu *cpu, int lane, thespis_error *error)
{
    if (cpu->lm == NULL) return th_fail(error, THESPIS_UNSUPPORTED, "lanes need a language model, and only a codec was opened");
    if (lane < 0 || lane >= cpu->lm->lane_count)
        return th_fail(error, THESPIS_INVALID, "lane %d was named, there are %d", lane, cpu->lm->lane_count);
    return THESPIS_OK;
}

static thespis_status check_begun(const struct th_cpu *cpu, int lane, thespis_error *error)
{
    TH_TRY(th_cpu_check_lane(cpu, lane, error));
    if (!cpu->lm->lanes[lane].begun) return th_fail(error, THESPIS_INVALID, "lane %d was not begun", lane);
    return THESPIS_OK;
}

static thespis_status check_frame(const struct th_config *config, const int32_t *frame, const char *what, int index,
                                  thespis_error *error)
{
    if (frame[0] < 0 || frame[0] >= config->backbone.vocab)
        return th_fail(error, THESPIS_INVALID, "%s %d: main token is %d, must be 0 to %d", what, index, (int)frame[0],
                       config->backbone.vocab - 1);
    return THESPIS_OK;
}

static size_t frame_bytes(const struct th_config *config)
{
    return (size_t)config->frame_width * sizeof(int32_t);
}

/* ---- begin, resample, copy --------------------------------------------------------------------------------------------------- */

static void reset_state(struct th_cpu *cpu, struct th_lane *lane)
{
    const struct th_backbone_config *config = &cpu->model->config.backbone;
    const size_t tiles = ((size_t)config->value_dim + TH_DELTA_TILE - 1) / TH_DELTA_TILE;
    const size_t heads = (size_t)config->value_heads * tiles * (size_t)config->key_dim * TH_DELTA_TILE;
    const size_t conv = (size_t)(config->conv_width - 1) * (size_t)th_lm_channels(config);
    for (int layer = 0; layer < config->layers; layer++) {
        if (cpu->model->layers[layer].is_full_attention) continue; /* rows of a cache are written before they are read */
        memset(lane->delta[layer].heads, 0, heads * sizeof(float));
        memset(lane->delta[layer].conv, 0, conv * sizeof(float));
    }
}

thespis_status th_cpu_begin(struct th_backend *backend, int number, const struct th_sampling *sampling, thespis_error *error)
{
    struct th_cpu *cpu = th_cpu_of(backend);
    TH_TRY(th_cpu_check_lane(cpu, number, error));
    struct th_lane *lane = &cpu->lm->lanes[number];
    lane->begun = 1;
    lane->ended = lane->rows = lane->backbone_rows = lane->tower_rows = lane->prompt_rows = 0;
    th_sampler_begin(&lane->sampler, sampling);
    reset_state(cpu, lane);
    return THESPIS_OK;
}

thespis_status th_cpu_resample(struct th_backend *backend, int number, const struct th_sampling *sampling, thespis_error *error)
{
    struct th_cpu *cpu = th_cpu_of(backend);
    TH_TRY(check_begun(cpu, number, error));
    struct th_lane *lane = &cpu->lm->lanes[number];
    struct th_sampler old = lane->sampler;
    th_sampler_begin(&lane->sampler, sampling);
    memcpy(lane->sampler.window, old.window, sizeof old.window); /* rows that were seen stay seen */
    lane->ended = 0;
    return THESPIS_OK;
}

static void copy_cache(const struct th_lm_cache *from, const struct th_lm_cache *to, int rows, int width)
{
    memcpy(to->keys, from->keys, (size_t)rows * (size_t)width * sizeof(float));
    memcpy(to->values, from->values, (size_t)rows * (size_t)width * sizeof(float));
}

static void copy_delta(const struct th_backbone_config *config, const struct th_lm_delta_state *from,
                       const struct th_lm_delta_state *to)
{
    const size_t tiles = ((size_t)config->value_dim + TH_DELTA_TILE - 1) / TH_DELTA_TILE;
    memcpy(to->heads, from->heads, (size_t)config->value_heads * tiles * (size_t)config->key_dim * TH_DELTA_TILE * sizeof(float));
    memcpy(to->conv, from->conv, (size_t)(config->conv_width - 1) * (size_t)th_lm_channels(config) * sizeof(float));
}

thespis_status th_cpu_copy(struct th_backend *backend, int from_number, int to_number, thespis_error *error)
{
    struct th_cpu *cpu = th_cpu_of(backend);
    TH_TRY(check_begun(cpu, from_number, error));
    TH_TRY(th_cpu_check_lane(cpu, to_number, error));
    if (from_number == to_number) return THESPIS_OK;
    const struct th_config *config = &cpu->model->config;
    const struct th_lane *from = &cpu->lm->lanes[from_number];
    struct th_lane *to = &cpu->lm->lanes[to_number];
    to->begun = 1;
    to->ended = from->ended;
    to->rows = from->rows;
    to->backbone_rows = from->backbone_rows;
    to->tower_rows = from->tower_rows;
    to->prompt_rows = from->prompt_rows;
    to->sampler = from->sampler;
    memcpy(to->newest, from->newest, frame_bytes(config));
    memcpy(to->hidden, from->hidden, (size_t)config->backbone.hidden * sizeof(float));
    for (int layer = 0; layer < config->backbone.layers; layer++) {
        if (cpu->model->layers[layer].is_full_attention)
            copy_cache(&from->backbone[layer], &to->backbone[layer], from->backbone_rows,
                       config->backbone.kv_heads * config->backbone.head_dim);
        else
            copy_delta(&config->backbone, &from->delta[layer], &to->delta[layer]);
    }
    for (int t = 0; t < th_lm_tower_layers(config); t++)
        copy_cache(&from->tower[t], &to->tower[t], from->tower_rows, config->tower.kv_heads * config->tower.head_dim);
    return THESPIS_OK;
}

int th_cpu_rows(const struct th_backend *backend, int lane)
{
    const struct th_cpu *cpu = (const struct th_cpu *)backend;
    if (th_cpu_check_lane(cpu, lane, NULL) != THESPIS_OK) return 0;
    return cpu->lm->lanes[lane].rows;
}

/* ---- feed -------------------------------------------------------------------------------------------------------------------- */

/* The tower over rows tower_rows..: every row of work.frames but the last has the next one as its label. `first` is the row of
 * work.frames[0] and work.final[0]; a row before it is the pending one, whose frame and hidden are the lane's. */
static void feed_tower(struct th_cpu *cpu, struct th_lane *lane, int number, int first, int rows)
{
    const struct th_config *config = &cpu->model->config;
    struct th_lm_work *work = &cpu->lm->work;
    const size_t hidden = (size_t)config->backbone.hidden, width = (size_t)config->frame_width;
    const int count = first + rows - 1 - lane->tower_rows, pending = first - lane->tower_rows; /* pending: 0 or 1 */
    if (count < 1) return;
    if (pending) memcpy(work->handed, lane->hidden, hidden * sizeof(float));
    memcpy(work->handed + (size_t)pending * hidden, work->final, (size_t)(count - pending) * hidden * sizeof(float));
    for (int c = 0; c < count; c++) {
        work->inputs[c] = c < pending ? lane->newest : work->frames + (size_t)(c - pending) * width;
        work->labels[c] = work->frames + (size_t)(c - pending + 1) * width;
    }
    work->spans[0] = (struct th_lm_span){.lane = lane, .number = number, .column = 0, .position = lane->tower_rows, .count = count};
    struct th_lm_batch batch = {.columns = count, .span_count = 1, .spans = work->spans};
    th_lm_tower(cpu, &batch);
    lane->tower_rows += count;
}

/* One piece: a drawn frame that the backbone has not seen yet goes first. */
static void feed_piece(struct th_cpu *cpu, int number, const int32_t *frames, int n)
{
    const struct th_config *config = &cpu->model->config;
    struct th_lm_work *work = &cpu->lm->work;
    struct th_lane *lane = &cpu->lm->lanes[number];
    const size_t hidden = (size_t)config->backbone.hidden, width = (size_t)config->frame_width;
    const int first = lane->backbone_rows, drawn = lane->rows - first, rows = drawn + n;
    if (drawn) memcpy(work->frames, lane->newest, frame_bytes(config));
    memcpy(work->frames + (size_t)drawn * width, frames, (size_t)n * frame_bytes(config));
    work->spans[0] = (struct th_lm_span){.lane = lane, .number = number, .column = 0, .position = first, .count = rows};
    struct th_lm_batch batch = {.columns = rows, .span_count = 1, .spans = work->spans};
    th_lm_backbone(cpu, &batch);
    feed_tower(cpu, lane, number, first, rows);
    memcpy(lane->hidden, work->final + (size_t)(rows - 1) * hidden, hidden * sizeof(float));
    memcpy(lane->newest, frames + (size_t)(n - 1) * width, frame_bytes(config));
    lane->rows = lane->backbone_rows = lane->prompt_rows = first + rows;
    for (int i = 0; i < n; i++) th_sampler_see(&lane->sampler, frames[(size_t)i * width]);
}

thespis_status th_cpu_feed(struct th_backend *backend, int number, const int32_t *frames, int n, thespis_error *error)
{
    struct th_cpu *cpu = th_cpu_of(backend);
    TH_TRY(check_begun(cpu, number, error));
    const struct th_config *config = &cpu->model->config;
    struct th_lane *lane = &cpu->lm->lanes[number];
    if (n < 0) return th_fail(error, THESPIS_INVALID, "%d rows were fed", n);
    if (n > cpu->lm->max_rows - lane->rows)
        return th_fail(error, THESPIS_LIMIT, "the lane has %d rows and %d more were fed; max_rows is %d", lane->rows, n,
                       cpu->lm->max_rows);
    for (int i = 0; i < n; i++)
        TH_TRY(check_frame(config, frames + (size_t)i * (size_t)config->frame_width, "row", lane->rows + i, error));
    for (int done = 0; done < n; done += TH_LM_PIECE) {
        int piece = n - done < TH_LM_PIECE ? n - done : TH_LM_PIECE;
        feed_piece(cpu, number, frames + (size_t)done * (size_t)config->frame_width, piece);
    }
    if (n > 0) lane->ended = 0;
    return THESPIS_OK;
}

/* ---- step -------------------------------------------------------------------------------------------------------------------- */

static thespis_status check_step(const struct th_cpu *cpu, const struct th_step *steps, int index, thespis_error *error)
{
    const struct th_step *step = &steps[index];
    TH_TRY(check_begun(cpu, step->lane, error));
    const struct th_lane *lane = &cpu->lm->lanes[step->lane];
    for (int i = 0; i < index; i++)
        if (steps[i].lane == step->lane) return th_fail(error, THESPIS_INVALID, "lane %d is named twice in a step", step->lane);
    if (lane->rows < 2)
        return th_fail(error, THESPIS_INVALID, "lane %d has %d rows, a step needs at least 2", step->lane, lane->rows);
    if (lane->ended) return th_fail(error, THESPIS_INVALID, "lane %d has reached end of speech", step->lane);
    if (lane->rows >= cpu->lm->max_rows)
        return th_fail(error, THESPIS_LIMIT, "lane %d has %d rows; max_rows is %d", step->lane, lane->rows, cpu->lm->max_rows);
    return step->forced != NULL ? check_frame(&cpu->model->config, step->forced, "forced frame of lane", step->lane, error)
                                : THESPIS_OK;
}

static struct th_lane *lane_of(const struct th_cpu *cpu, const struct th_step *step)
{
    return &cpu->lm->lanes[step->lane];
}

/* Adds the newest row of a step's lane to a batch of single rows. */
static void add_row(const struct th_cpu *cpu, struct th_lm_batch *batch, const struct th_step *step)
{
    struct th_lane *lane = lane_of(cpu, step);
    batch->spans[batch->span_count++] =
        (struct th_lm_span){.lane = lane, .number = step->lane, .column = batch->columns, .position = lane->rows - 1, .count = 1};
    batch->columns++;
}

/* Frames that were drawn last time go through the backbone. */
static void step_backbone(struct th_cpu *cpu, struct th_step **live, int n)
{
    const struct th_config *config = &cpu->model->config;
    struct th_lm_work *work = &cpu->lm->work;
    const size_t hidden = (size_t)config->backbone.hidden;
    struct th_lm_batch batch = {.spans = work->spans};
    for (int i = 0; i < n; i++) {
        const struct th_lane *lane = lane_of(cpu, live[i]);
        if (lane->backbone_rows == lane->rows) continue;
        memcpy(work->frames + (size_t)batch.columns * (size_t)config->frame_width, lane->newest, frame_bytes(config));
        add_row(cpu, &batch, live[i]);
    }
    if (batch.columns == 0) return;
    th_lm_backbone(cpu, &batch);
    for (int c = 0; c < batch.columns; c++) {
        memcpy(batch.spans[c].lane->hidden, work->final + (size_t)c * hidden, hidden * sizeof(float));
        batch.spans[c].lane->backbone_rows = batch.spans[c].lane->rows;
    }
}

static thespis_status check_finite(const float *logits, int count, const char *what, int number, thespis_error *error)
{
    for (int i = 0; i < count; i++)
        if (!isfinite(logits[i]))
            return th_fail(error, THESPIS_NUMERIC, "lane %d: logit %d of %s %d is %f", number, i, what, number, (double)logits[i]);
    return THESPIS_OK;
}

static thespis_status draw_main(struct th_cpu *cpu, struct th_step *step, const float *logits)
{
    const struct th_config *config = &cpu->model->config;
    struct th_lane *lane = lane_of(cpu, step);
    struct th_main_head head = {.candidates = config->candidates, .eos = config->eos, .semantic_start = config->semantic_start};
    TH_TRY(check_finite(logits, config->candidates, "the main head of row", lane->rows - 1, &step->error));
    if (step->forced != NULL) {
        memcpy(step->frame, step->forced, frame_bytes(config));
        th_sampler_see(&lane->sampler, step->frame[0]);
        return THESPIS_OK;
    }
    memset(step->frame, 0, frame_bytes(config));
    TH_TRY(th_sampler_main(&lane->sampler, &head, logits, &cpu->lm->draw, &step->frame[0], NULL, &step->error));
    int code = step->frame[0] - config->semantic_start;
    step->frame[1] = step->frame[0] == config->eos         ? 0
                     : code < 0                            ? 0
                     : code >= config->tower.codebook_size ? config->tower.codebook_size - 1
                                                           : code;
    return THESPIS_OK;
}

static thespis_status draw_code(struct th_cpu *cpu, struct th_step *step, int j, const float *logits)
{
    const int count = cpu->model->config.tower.codebook_size;
    TH_TRY(check_finite(logits, count, "a code head of row", lane_of(cpu, step)->rows - 1, &step->error));
    if (step->forced != NULL || step->frame[0] == cpu->model->config.eos) return THESPIS_OK;
    return th_sampler_code(&lane_of(cpu, step)->sampler, j, logits, count, &cpu->lm->draw, &step->frame[1 + j], NULL, &step->error);
}

/* Draws every live lane's main token; drops those that failed or ended. */
static int step_main(struct th_cpu *cpu, struct th_step **live, int n)
{
    const struct th_config *config = &cpu->model->config;
    struct th_lm_work *work = &cpu->lm->work;
    const size_t hidden = (size_t)config->backbone.hidden;
    struct th_lm_batch batch = {.spans = work->spans};
    for (int i = 0; i < n; i++) {
        memcpy(work->final + (size_t)i * hidden, lane_of(cpu, live[i])->hidden, hidden * sizeof(float));
        add_row(cpu, &batch, live[i]);
    }
    th_lm_candidate_logits(cpu, work->final, n, work->logits);
    th_lm_probe(cpu, &batch, "candidate_logits", 0, config->candidates, work->logits);
    int left = 0;
    for (int i = 0; i < n; i++) {
        struct th_step *step = live[i];
        step->status = draw_main(cpu, step, work->logits + (size_t)i * (size_t)config->candidates);
        if (step->status != THESPIS_OK) continue;
        lane_of(cpu, step)->ended = step->frame[0] == config->eos;
        if (step->frame[0] != config->eos || cpu->probe != NULL) live[left++] = step;
    }
    return left;
}

/* The tower's row of each live lane. The frame is its own label, filled in code by code. Lanes that fail go on unheeded. */
static void step_tower(struct th_cpu *cpu, struct th_step **live, int n)
{
    const struct th_config *config = &cpu->model->config;
    struct th_lm_work *work = &cpu->lm->work;
    const size_t hidden = (size_t)config->backbone.hidden;
    struct th_lm_batch batch = {.spans = work->spans};
    for (int i = 0; i < n; i++) {
        const struct th_lane *lane = lane_of(cpu, live[i]);
        memcpy(work->handed + (size_t)i * hidden, lane->hidden, hidden * sizeof(float));
        work->inputs[i] = lane->newest;
        work->labels[i] = live[i]->frame;
        add_row(cpu, &batch, live[i]);
    }
    for (int t = 0; t < th_lm_tower_layers(config); t++) {
        th_lm_tower_layer(cpu, &batch, t);
        int head = t - config->tower.shared_layers;
        if (head < 0) continue;
        th_lm_code_logits(cpu, head, work->handed, n, work->logits);
        th_lm_probe(cpu, &batch, "code_logits", head, config->tower.codebook_size, work->logits);
        for (int i = 0; i < n; i++)
            if (live[i]->status == THESPIS_OK)
                live[i]->status = draw_code(cpu, live[i], head + 1, work->logits + (size_t)i * (size_t)config->tower.codebook_size);
    }
}

/* Fault 14: the tower's row as it would be if its label had stayed a placeholder. */
static void plant_placeholder(struct th_cpu *cpu, const struct th_step *step, int32_t *label)
{
    struct th_lm_work *work = &cpu->lm->work;
    struct th_lane *lane = lane_of(cpu, step);
    memset(label, 0, frame_bytes(&cpu->model->config));
    label[0] = cpu->model->config.eos;
    memcpy(work->handed, lane->hidden, (size_t)cpu->model->config.backbone.hidden * sizeof(float));
    work->inputs[0] = lane->newest;
    work->labels[0] = label;
    struct th_lm_batch batch = {.spans = work->spans};
    add_row(cpu, &batch, step);
    th_probe probe = cpu->probe; /* the mistake must show in later rows, not in this second pass */
    cpu->probe = NULL;
    for (int t = 0; t < th_lm_tower_layers(&cpu->model->config); t++) th_lm_tower_layer(cpu, &batch, t);
    cpu->probe = probe;
}

/* Up to work.columns lanes together. */
static void step_group(struct th_cpu *cpu, struct th_step **live, int n)
{
    const struct th_config *config = &cpu->model->config;
    step_backbone(cpu, live, n);
    n = step_main(cpu, live, n);
    if (n > 0) step_tower(cpu, live, n);
    for (int i = 0; i < n; i++) {
        struct th_lane *lane = lane_of(cpu, live[i]);
        if (live[i]->status != THESPIS_OK || lane->ended) continue; /* end of speech is no row */
        if (TH_FAULT_IS(14) && lane->rows == lane->prompt_rows) plant_placeholder(cpu, live[i], cpu->lm->work.frames);
        memcpy(lane->newest, live[i]->frame, frame_bytes(config));
        lane->tower_rows = lane->rows++;
    }
}

thespis_status th_cpu_step(struct th_backend *backend, struct th_step *steps, int n, thespis_error *error)
{
    struct th_cpu *cpu = th_cpu_of(backend);
    if (cpu->lm == NULL) return th_fail(error, THESPIS_UNSUPPORTED, "lanes need a language model, and only a codec was opened");
    struct th_step *live[TH_LM_PIECE];
    int group = cpu->lm->work.columns < TH_LM_PIECE ? cpu->lm->work.columns : TH_LM_PIECE, count = 0, failed = 0;
    for (int i = 0; i < n; i++) {
        steps[i].status = check_step(cpu, steps, i, &steps[i].error);
        if (steps[i].status == THESPIS_OK) live[count++] = &steps[i];
        if (count == group || (i == n - 1 && count > 0)) {
            step_group(cpu, live, count);
            count = 0;
        }
    }
    for (int i = 0; i < n; i++) failed += steps[i].status != THESPIS_OK;
    if (n == 0 || failed < n) return THESPIS_OK;
    if (error != NULL) *error = steps[0].error;
    return steps[0].status;
}
