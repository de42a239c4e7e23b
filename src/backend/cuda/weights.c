/* weights.c - the network's weights in the order in which they are placed and loaded. Every function here runs twice: once to count
 * bytes, and once, with memory behind the pointers, to load. */
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/load.h"
#include "base/memory.h"

struct place {
    struct th_cuda *cuda;
    unsigned char *base; /* NULL while counting */
    size_t used;
    uint64_t source; /* bytes that will be read */
    struct th_load *load;
};

/* ---- what the kernels have -----------------------------------------------------------------------------------------------------
 */

static thespis_status check_one_of(const char *name, int value, int a, int b, int c, thespis_error *error)
{
    if (value == a || value == b || value == c) return THESPIS_OK;
    return th_fail(error, THESPIS_UNSUPPORTED, "%s is %d, the CUDA backend has %d, %d and %d", name, value, a, b, c);
}

static thespis_status check_multiple(const char *name, int value, int of, thespis_error *error)
{
    if (value % of == 0) return THESPIS_OK;
    return th_fail(error, THESPIS_UNSUPPORTED, "%s is %d, the CUDA backend needs a multiple of %d", name, value, of);
}

thespis_status th_cuda_supports(const struct th_model *model, thespis_error *error)
{
    const struct th_backbone_config *b = &model->config.backbone;
    const struct th_tower_config *t = &model->config.tower;
    const int fp8 = model->config.expert_format == TH_EXPERTS_FP8;
    TH_TRY(check_one_of("head_dim", b->head_dim, 32, 64, 256, error));
    TH_TRY(check_one_of("the tower's head_dim", t->head_dim, 32, 64, 256, error));
    TH_TRY(check_one_of("linear_key_head_dim", b->key_dim, 32, 64, 128, error));
    TH_TRY(check_one_of("linear_value_head_dim", b->value_dim, 32, 64, 128, error));
    if (b->conv_width != TH_CUDA_CONV_SLOTS)
        return th_fail(error, THESPIS_UNSUPPORTED, "linear_conv_kernel_dim is %d, the CUDA backend has %d", b->conv_width,
                       TH_CUDA_CONV_SLOTS);
    if (b->top_k > 8)
        return th_fail(error, THESPIS_UNSUPPORTED, "num_experts_per_tok is %d, the CUDA backend has 1 to 8", b->top_k);
    if (b->experts > 512)
        return th_fail(error, THESPIS_UNSUPPORTED, "num_experts is %d, the CUDA backend has up to 512", b->experts);
    TH_TRY(check_multiple("hidden_size", b->hidden, fp8 ? 128 : 32, error));
    TH_TRY(check_multiple("moe_intermediate_size", b->expert_inner, fp8 ? 128 : 32, error));
    TH_TRY(check_multiple("shared_expert_intermediate_size", b->shared_inner, 32, error));
    TH_TRY(check_multiple("the tower's intermediate size", t->inner, 32, error));
    return THESPIS_OK;
}

/* ---- placing -------------------------------------------------------------------------------------------------------------------
 */

static void *take(struct place *p, size_t bytes)
{
    void *at = p->base != NULL ? p->base + p->used : NULL;
    p->used += (bytes + 255) / 256 * 256;
    return at;
}

static thespis_status plain(struct place *p, const void *from, size_t bytes, int mapped, void *to, thespis_error *error)
{
    p->source += bytes;
    return p->base != NULL ? th_load_plain(p->load, from, bytes, mapped, to, error) : THESPIS_OK;
}

/* f32 [count] */
static thespis_status vector(struct place *p, const float *from, int count, const float **to, thespis_error *error)
{
    void *at = take(p, (size_t)count * sizeof(float));
    *to = at;
    return plain(p, from, (size_t)count * sizeof(float), 0, at, error);
}

/* bf16 rows as stored */
static thespis_status table(struct place *p, const struct th_matrix *from, const uint16_t **to, thespis_error *error)
{
    size_t bytes = (size_t)from->rows * (size_t)from->cols * sizeof(uint16_t);
    void *at = take(p, bytes);
    *to = at;
    return plain(p, from->data, bytes, 1, at, error);
}

static int padded(int rows)
{
    return (rows + TH_TILE_ROWS - 1) / TH_TILE_ROWS * TH_TILE_ROWS;
}

static thespis_status rows(struct place *p, const void *tensor, const void *from, int count, size_t row_bytes, void *tiles,
                           int first_row, int pad_to, enum th_cuda_rows kind, thespis_error *error)
{
    p->source += (uint64_t)count * row_bytes;
    return p->base != NULL ? th_load_rows(p->load, tensor, from, count, row_bytes, tiles, first_row, pad_to, kind, error)
                           : THESPIS_OK;
}

static size_t matrix_bytes(int padded_rows, int cols)
{
    return (size_t)padded_rows * (size_t)cols * sizeof(uint16_t);
}

static void open_matrix(struct place *p, int padded_rows, int cols, struct th_cuda_matrix *matrix)
{
    *matrix = (struct th_cuda_matrix){take(p, matrix_bytes(padded_rows, cols)), padded_rows, cols};
}

/* A part of a packed matrix that begins at row `at`. */
static thespis_status part(struct place *p, const struct th_matrix *from, const struct th_cuda_matrix *matrix, int at,
                           enum th_cuda_rows kind, thespis_error *error)
{
    if (from->cols != matrix->cols || from->cols % TH_TILE_INPUTS_BF16 != 0)
        return th_fail(error, THESPIS_UNSUPPORTED, "a matrix has %d inputs, the CUDA backend needs a multiple of %d", from->cols,
                       TH_TILE_INPUTS_BF16);
    void *tiles = p->base != NULL ? (unsigned char *)(uintptr_t)matrix->tiles + matrix_bytes(at, from->cols) : NULL;
    return rows(p, from->data, from->data, from->rows, (size_t)from->cols * sizeof(uint16_t), tiles, 0,
                kind == TH_CUDA_ROWS_ALL ? padded(from->rows) : 0, kind, error);
}

static thespis_status whole(struct place *p, const struct th_matrix *from, struct th_cuda_matrix *matrix, thespis_error *error)
{
    open_matrix(p, padded(from->rows), from->cols, matrix);
    return part(p, from, matrix, 0, TH_CUDA_ROWS_ALL, error);
}

/* Two matrices interleaved, as a part. */
static thespis_status pair(struct place *p, const struct th_matrix *first, const struct th_matrix *second,
                           const struct th_cuda_matrix *matrix, int at, thespis_error *error)
{
    TH_TRY(part(p, first, matrix, at, TH_CUDA_ROWS_FIRST, error));
    return part(p, second, matrix, at, TH_CUDA_ROWS_SECOND, error);
}

/* ---- the layers ----------------------------------------------------------------------------------------------------------------
 */

static thespis_status attention(struct place *p, const struct th_backbone_config *config, const struct th_attention_weights *w,
                                struct th_cuda_layer *layer, thespis_error *error)
{
    layer->k_at = padded(w->q.rows);
    layer->v_at = layer->k_at + padded(w->k.rows);
    open_matrix(p, layer->v_at + padded(w->v.rows), config->hidden, &layer->in);
    TH_TRY(part(p, &w->q, &layer->in, 0, TH_CUDA_ROWS_ALL, error));
    TH_TRY(part(p, &w->k, &layer->in, layer->k_at, TH_CUDA_ROWS_ALL, error));
    TH_TRY(part(p, &w->v, &layer->in, layer->v_at, TH_CUDA_ROWS_ALL, error));
    TH_TRY(whole(p, &w->o, &layer->out, error));
    TH_TRY(vector(p, w->q_norm, config->head_dim, &layer->q_norm, error));
    return vector(p, w->k_norm, config->head_dim, &layer->k_norm, error);
}

static thespis_status deltanet(struct place *p, const struct th_backbone_config *config, const struct th_deltanet_weights *w,
                               struct th_cuda_layer *layer, thespis_error *error)
{
    layer->z_at = padded(w->qkv.rows);
    layer->b_at = layer->z_at + padded(w->z.rows);
    layer->a_at = layer->b_at + padded(w->b.rows);
    open_matrix(p, layer->a_at + padded(w->a.rows), config->hidden, &layer->in);
    TH_TRY(part(p, &w->qkv, &layer->in, 0, TH_CUDA_ROWS_ALL, error));
    TH_TRY(part(p, &w->z, &layer->in, layer->z_at, TH_CUDA_ROWS_ALL, error));
    TH_TRY(part(p, &w->b, &layer->in, layer->b_at, TH_CUDA_ROWS_ALL, error));
    TH_TRY(part(p, &w->a, &layer->in, layer->a_at, TH_CUDA_ROWS_ALL, error));
    TH_TRY(whole(p, &w->out, &layer->out, error));
    TH_TRY(vector(p, w->conv, w->qkv.rows * config->conv_width, &layer->conv, error));
    TH_TRY(vector(p, w->a_log, config->value_heads, &layer->a_log, error));
    TH_TRY(vector(p, w->dt_bias, config->value_heads, &layer->dt_bias, error));
    return vector(p, w->norm, config->value_dim, &layer->norm, error);
}

static const void *expert_rows(const struct th_expert_matrix *matrix)
{
    return matrix->codes != NULL ? (const void *)matrix->codes : matrix->bf16;
}

static int blocks(int n)
{
    return (n + TH_EXPERT_BLOCK - 1) / TH_EXPERT_BLOCK;
}

/* Scales of all experts one after another: small arrays, which travel as one. */
static thespis_status scales(struct place *p, const struct th_backbone_config *config, const struct th_expert *experts,
                             struct th_cuda_experts *to, thespis_error *error)
{
    const size_t each = (size_t)blocks(config->expert_inner) * (size_t)blocks(config->hidden), count = (size_t)config->experts;
    float *gate_up = take(p, 2 * count * each * sizeof(float)), *down = take(p, count * each * sizeof(float));
    to->gate_up_scales = gate_up;
    to->down_scales = down;
    for (size_t e = 0; e < count; e++) {
        float *at = gate_up != NULL ? gate_up + 2 * e * each : NULL;
        TH_TRY(plain(p, experts[e].gate.scales, each * sizeof(float), 0, at, error));
        TH_TRY(plain(p, experts[e].up.scales, each * sizeof(float), 0, at != NULL ? at + each : NULL, error));
    }
    for (size_t e = 0; e < count; e++)
        TH_TRY(plain(p, experts[e].down.scales, each * sizeof(float), 0, down != NULL ? down + e * each : NULL, error));
    return THESPIS_OK;
}

static thespis_status experts(struct place *p, const struct th_config *whole_config, const struct th_expert *from,
                              struct th_cuda_experts *to, thespis_error *error)
{
    const struct th_backbone_config *config = &whole_config->backbone;
    const int fp8 = whole_config->expert_format == TH_EXPERTS_FP8, inner = config->expert_inner, hidden = config->hidden;
    const size_t item = fp8 ? 1 : 2, count = (size_t)config->experts;
    *to = (struct th_cuda_experts){.fp8 = fp8, .count = config->experts, .inner = inner, .hidden = hidden};
    to->gate_up_bytes = 2 * (size_t)inner * (size_t)hidden * item;
    to->down_bytes = (size_t)padded(hidden) * (size_t)inner * item;
    unsigned char *gate_up = take(p, count * to->gate_up_bytes), *down = take(p, count * to->down_bytes);
    to->gate_up = gate_up;
    to->down = down;
    for (size_t e = 0; e < count; e++) {
        void *pair_tiles = gate_up != NULL ? gate_up + e * to->gate_up_bytes : NULL;
        void *down_tiles = down != NULL ? down + e * to->down_bytes : NULL;
        TH_TRY(rows(p, expert_rows(&from[e].gate), expert_rows(&from[e].gate), inner, (size_t)hidden * item, pair_tiles, 0, 0,
                    TH_CUDA_ROWS_FIRST, error));
        TH_TRY(rows(p, expert_rows(&from[e].up), expert_rows(&from[e].up), inner, (size_t)hidden * item, pair_tiles, 0, 0,
                    TH_CUDA_ROWS_SECOND, error));
        TH_TRY(rows(p, expert_rows(&from[e].down), expert_rows(&from[e].down), hidden, (size_t)inner * item, down_tiles, 0,
                    padded(hidden), TH_CUDA_ROWS_ALL, error));
    }
    return fp8 ? scales(p, config, from, to, error) : THESPIS_OK;
}

static thespis_status moe(struct place *p, const struct th_config *config, const struct th_moe_weights *w,
                          struct th_cuda_layer *layer, thespis_error *error)
{
    layer->shared_at = padded(w->router.rows);
    layer->shared_gate_at = layer->shared_at + 2 * w->shared_gate.rows;
    open_matrix(p, layer->shared_gate_at + TH_TILE_ROWS, config->backbone.hidden, &layer->moe_in);
    TH_TRY(part(p, &w->router, &layer->moe_in, 0, TH_CUDA_ROWS_ALL, error));
    TH_TRY(pair(p, &w->shared_gate, &w->shared_up, &layer->moe_in, layer->shared_at, error));
    TH_TRY(part(p, &w->shared_expert_gate, &layer->moe_in, layer->shared_gate_at, TH_CUDA_ROWS_ALL, error));
    TH_TRY(whole(p, &w->shared_down, &layer->shared_down, error));
    return experts(p, config, w->experts, &layer->experts, error);
}

static thespis_status backbone_layer(struct place *p, const struct th_model *model, int number, thespis_error *error)
{
    const struct th_backbone_layer *w = &model->layers[number];
    const struct th_backbone_config *config = &model->config.backbone;
    struct th_cuda_layer *layer = &p->cuda->weights.layers[number];
    layer->full_attention = w->is_full_attention;
    layer->state = 0;
    for (int i = 0; i < number; i++) layer->state += model->layers[i].is_full_attention == w->is_full_attention;
    TH_TRY(vector(p, w->input_norm, config->hidden, &layer->input_norm, error));
    TH_TRY(vector(p, w->post_norm, config->hidden, &layer->post_norm, error));
    if (w->is_full_attention)
        TH_TRY(attention(p, config, &w->attention, layer, error));
    else
        TH_TRY(deltanet(p, config, &w->deltanet, layer, error));
    return moe(p, &model->config, &w->moe, layer, error);
}

static thespis_status tower_layer(struct place *p, const struct th_config *config, const struct th_tower_layer *w,
                                  struct th_cuda_tower_layer *layer, thespis_error *error)
{
    const int hidden = config->backbone.hidden;
    TH_TRY(table(p, &w->table, &layer->table, error));
    TH_TRY(vector(p, w->enorm, hidden, &layer->enorm, error));
    TH_TRY(vector(p, w->hnorm, hidden, &layer->hnorm, error));
    TH_TRY(vector(p, w->attention_norm, hidden, &layer->attention_norm, error));
    TH_TRY(vector(p, w->ffn_norm, hidden, &layer->ffn_norm, error));
    TH_TRY(vector(p, w->final_norm, hidden, &layer->final_norm, error));
    TH_TRY(whole(p, &w->eh, &layer->eh, error));
    TH_TRY(whole(p, &w->wqkv, &layer->wqkv, error));
    TH_TRY(vector(p, w->q_norm, config->tower.head_dim, &layer->q_norm, error));
    TH_TRY(vector(p, w->k_norm, config->tower.head_dim, &layer->k_norm, error));
    TH_TRY(whole(p, &w->wo, &layer->wo, error));
    open_matrix(p, 2 * w->w1.rows, w->w1.cols, &layer->w13);
    TH_TRY(pair(p, &w->w1, &w->w3, &layer->w13, 0, error));
    return whole(p, &w->w2, &layer->w2, error);
}

/* Rows of lm_head in candidate order: end of speech before or behind the band. */
static thespis_status candidates(struct place *p, const struct th_model *model, thespis_error *error)
{
    const struct th_config *config = &model->config;
    struct th_cuda_matrix *to = &p->cuda->weights.candidates;
    const size_t row_bytes = (size_t)config->backbone.hidden * sizeof(uint16_t);
    const uint16_t *head = model->lm_head.data;
    const uint16_t *end = head + (size_t)config->eos * (size_t)config->backbone.hidden;
    const uint16_t *band = head + (size_t)config->semantic_start * (size_t)config->backbone.hidden;
    const int first = config->eos < config->semantic_start, size = config->candidates - 1;
    open_matrix(p, padded(config->candidates), config->backbone.hidden, to);
    void *tiles = (void *)(uintptr_t)to->tiles;
    TH_TRY(
        rows(p, head, end, 1, row_bytes, tiles, first ? 0 : size, first ? 0 : padded(config->candidates), TH_CUDA_ROWS_ALL, error));
    return rows(p, head, band, size, row_bytes, tiles, first ? 1 : 0, first ? padded(config->candidates) : 0, TH_CUDA_ROWS_ALL,
                error);
}

static thespis_status place_all(struct place *p, thespis_error *error)
{
    const struct th_model *model = p->cuda->model;
    const struct th_config *config = &model->config;
    struct th_cuda_weights *w = &p->cuda->weights;
    TH_TRY(table(p, &model->embed, &w->embed, error));
    TH_TRY(table(p, &model->code_embed, &w->code_embed, error));
    TH_TRY(candidates(p, model, error));
    TH_TRY(vector(p, model->final_norm, config->backbone.hidden, &w->final_norm, error));
    for (int layer = 0; layer < config->backbone.layers; layer++) TH_TRY(backbone_layer(p, model, layer, error));
    for (int t = 0; t < p->cuda->tower_layers; t++) TH_TRY(tower_layer(p, config, &model->tower[t], &w->tower[t], error));
    for (int r = 0; r < config->tower.residual_layers; r++) TH_TRY(whole(p, &model->heads[r], &w->heads[r], error));
    return THESPIS_OK;
}

/* ---- all of it -----------------------------------------------------------------------------------------------------------------
 */

/* Refuses what cannot fit before anything is allocated. */
static thespis_status check_room(const struct th_cuda *cuda, uint64_t weights, thespis_error *error)
{
    size_t left, total;
    const uint64_t staging = cuda->unified ? 0 : TH_LOAD_BUFFERS * (uint64_t)TH_LOAD_BUFFER_BYTES;
    const double gib = 1073741824.0;
    TH_CUDA(cudaMemGetInfo(&left, &total), "the device's memory", error);
    if (weights + staging <= left) return THESPIS_OK;
    return th_fail(error, THESPIS_MEMORY,
                   "%s has %.2f GiB free of %.2f GiB, and the weights need %.2f GiB and %.2f GiB to load them; lanes and the codec "
                   "come on top",
                   cuda->name, (double)left / gib, (double)total / gib, (double)weights / gib, (double)staging / gib);
}

static thespis_status load_all(struct th_cuda *cuda, uint64_t source, thespis_error *error)
{
    struct th_load load = {.launch = cuda->launch, .direct = cuda->unified, .holes = cuda->model->holes, .total = source};
    load.progress = cuda->options.progress;
    load.progress_context = cuda->options.progress_context;
    struct place p = {.cuda = cuda, .base = cuda->weights.memory, .load = &load};
    thespis_status status = th_load_open(&load, cuda->options.threads, error);
    if (status == THESPIS_OK) status = place_all(&p, error);
    if (status == THESPIS_OK) status = th_load_finish(&load, error);
    th_load_close(&load);
    return status;
}

thespis_status th_cuda_load(struct th_cuda *cuda, thespis_error *error)
{
    const struct th_config *config = &cuda->model->config;
    struct th_cuda_weights *w = &cuda->weights;
    TH_TRY(th_cuda_supports(cuda->model, error));
    TH_TRY(TH_ALLOC(&w->layers, (size_t)config->backbone.layers, "the layers", error));
    TH_TRY(TH_ALLOC(&w->tower, (size_t)cuda->tower_layers, "the tower's layers", error));
    TH_TRY(TH_ALLOC(&w->heads, (size_t)config->tower.residual_layers, "the code heads", error));
    struct place count = {.cuda = cuda};
    TH_TRY(place_all(&count, error));
    w->bytes = count.used;
    TH_TRY(check_room(cuda, w->bytes, error));
    TH_CUDA(cudaMalloc(&w->memory, w->bytes), "the weights", error);
    return load_all(cuda, count.source, error);
}

void th_cuda_unload(struct th_cuda *cuda)
{
    struct th_cuda_weights *w = &cuda->weights;
    cudaFree(w->memory);
    th_free(w->layers);
    th_free(w->tower);
    th_free(w->heads);
    memset(w, 0, sizeof *w);
}
