/* lm.c - memory of the language model: what is prepared at open, the lanes, the work space. Floats that belong together lie in one
 * block, laid out by a function that runs twice: once to count, once to place. */
#include "backend/cpu/lm.h"

#include <unistd.h>

#include "base/memory.h"

#ifdef TH_PLANT
int th_planted_fault;
#endif

/* Hands out consecutive stretches of `base`, or only counts them while base is NULL. Stretches start at multiples of 64 bytes. */
struct layout {
    float *base;
    size_t used;
};

static float *take(struct layout *layout, size_t a, size_t b)
{
    float *at = layout->base != NULL ? layout->base + layout->used : NULL;
    layout->used += (a * b + 15) / 16 * 16;
    return at;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static int *take_ints(struct layout *layout, size_t a, size_t b)
{
    return (int *)(void *)take(layout, a, b); /* an int is as wide as a float */
}
_Static_assert(sizeof(int) == sizeof(float), "integers share the block of floats");

/* ---- open -------------------------------------------------------------------------------------------------------------------- */

/* Convolution weights by tap, so that neighbouring channels lie together. */
static thespis_status transpose_taps(struct th_cpu *cpu, int layer, thespis_error *error)
{
    const struct th_backbone_config *config = &cpu->model->config.backbone;
    const int channels = th_lm_channels(config), width = config->conv_width;
    const float *conv = cpu->model->layers[layer].deltanet.conv;
    float **taps = &cpu->lm->conv_taps[layer];
    TH_TRY(TH_ALLOC(taps, (size_t)channels * (size_t)width, "convolution weights", error));
    for (int c = 0; c < channels; c++)
        for (int j = 0; j < width; j++)
            (*taps)[(size_t)j * (size_t)channels + (size_t)c] = conv[(size_t)c * (size_t)width + (size_t)j];
    cpu->lm->weight_bytes += (size_t)channels * (size_t)width * sizeof(float);
    return THESPIS_OK;
}

thespis_status th_cpu_lm_prepare(struct th_cpu *cpu, thespis_error *error)
{
    if (cpu->model == NULL) return THESPIS_OK;
    const struct th_config *config = &cpu->model->config;
    const int width = config->backbone.conv_width;
    if (width < 1 || width > 16)
        return th_fail(error, THESPIS_UNSUPPORTED, "linear_conv_kernel_dim is %d, the CPU backend has 1 to 16", width);
    TH_TRY(TH_ALLOC(&cpu->lm, 1, "the language model", error));
    struct th_cpu_lm *lm = cpu->lm;
    TH_TRY(TH_ALLOC(&lm->conv_taps, (size_t)config->backbone.layers, "convolution weights", error));
    for (int layer = 0; layer < config->backbone.layers; layer++)
        if (!cpu->model->layers[layer].is_full_attention) TH_TRY(transpose_taps(cpu, layer, error));
    int most = config->candidates > config->tower.codebook_size ? config->candidates : config->tower.codebook_size;
    return th_draw_scratch_open(most, &lm->draw, error);
}

/* ---- lanes ------------------------------------------------------------------------------------------------------------------- */

static void lay_cache(struct layout *layout, struct th_lm_cache *cache, int max_rows, int kv_heads, int head_dim)
{
    cache->keys = take(layout, (size_t)max_rows, (size_t)kv_heads * (size_t)head_dim);
    cache->values = take(layout, (size_t)max_rows, (size_t)kv_heads * (size_t)head_dim);
}

static size_t delta_floats(const struct th_backbone_config *config)
{
    size_t tiles = ((size_t)config->value_dim + TH_DELTA_TILE - 1) / TH_DELTA_TILE;
    return (size_t)config->value_heads * tiles * (size_t)config->key_dim * TH_DELTA_TILE;
}

static size_t conv_floats(const struct th_backbone_config *config)
{
    return (size_t)(config->conv_width - 1) * (size_t)th_lm_channels(config);
}

static void lay_lane(struct layout *layout, const struct th_model *model, int max_rows, struct th_lane *lane)
{
    const struct th_backbone_config *config = &model->config.backbone;
    lane->newest = take_ints(layout, 1, (size_t)model->config.frame_width);
    lane->hidden = take(layout, 1, (size_t)config->hidden);
    for (int layer = 0; layer < config->layers; layer++) {
        if (model->layers[layer].is_full_attention) {
            lay_cache(layout, &lane->backbone[layer], max_rows, config->kv_heads, config->head_dim);
        } else {
            lane->delta[layer].heads = take(layout, 1, delta_floats(config));
            lane->delta[layer].conv = take(layout, 1, conv_floats(config));
        }
    }
    for (int t = 0; t < th_lm_tower_layers(&model->config); t++)
        lay_cache(layout, &lane->tower[t], max_rows, model->config.tower.kv_heads, model->config.tower.head_dim);
}

static void release_lanes(struct th_cpu_lm *lm)
{
    for (int i = 0; i < lm->lane_count; i++) {
        struct th_lane *lane = &lm->lanes[i];
        th_free(lane->backbone);
        th_free(lane->delta);
        th_free(lane->tower);
        th_free(lane->memory);
    }
    th_free(lm->lanes);
    lm->lanes = NULL;
    lm->lane_count = 0;
}

static thespis_status make_lane(const struct th_cpu *cpu, int max_rows, struct th_lane *lane, size_t *floats, thespis_error *error)
{
    const struct th_config *config = &cpu->model->config;
    TH_TRY(TH_ALLOC(&lane->backbone, (size_t)config->backbone.layers, "a lane", error));
    TH_TRY(TH_ALLOC(&lane->delta, (size_t)config->backbone.layers, "a lane", error));
    TH_TRY(TH_ALLOC(&lane->tower, (size_t)th_lm_tower_layers(config), "a lane", error));
    struct layout layout = {NULL, 0};
    lay_lane(&layout, cpu->model, max_rows, lane);
    *floats = layout.used;
    TH_TRY(TH_ALLOC(&lane->memory, layout.used, "a lane", error));
    layout = (struct layout){lane->memory, 0};
    lay_lane(&layout, cpu->model, max_rows, lane);
    return THESPIS_OK;
}

/* ---- work space -------------------------------------------------------------------------------------------------------------- */

static void lay_attention(struct layout *layout, const struct th_config *config, size_t c, struct th_lm_work *work)
{
    size_t dim = (size_t)config->backbone.head_dim, heads = (size_t)config->backbone.heads, kv = (size_t)config->backbone.kv_heads;
    work->query_gate = take(layout, c, (2 * heads + 2 * kv) * dim);
    work->key = take(layout, c, kv * dim);
    work->value = take(layout, c, kv * dim);
    work->query = take(layout, c, heads * dim);
    work->attended = take(layout, c, heads * dim);
}

static void lay_deltanet(struct layout *layout, const struct th_backbone_config *config, size_t c, struct th_lm_work *work)
{
    size_t channels = (size_t)th_lm_channels(config), heads = (size_t)config->value_heads;
    work->qkv = take(layout, c, channels);
    work->mixed = take(layout, c, channels);
    work->z = take(layout, c, heads * (size_t)config->value_dim);
    work->delta_out = take(layout, c, heads * (size_t)config->value_dim);
    work->a = take(layout, c, heads);
    work->b = take(layout, c, heads);
    work->decay = take(layout, c, heads);
    work->beta = take(layout, c, heads);
}

static size_t blocks_of(int n)
{
    return ((size_t)n + TH_EXPERT_BLOCK - 1) / TH_EXPERT_BLOCK;
}

static void lay_moe(struct layout *layout, const struct th_config *whole, size_t c, struct th_lm_work *work)
{
    const struct th_backbone_config *config = &whole->backbone;
    size_t hidden = (size_t)config->hidden, entries = c * (size_t)config->top_k, experts = (size_t)config->experts;
    size_t inner = larger(entries * (size_t)config->expert_inner, c * (size_t)whole->tower.inner);
    work->router = take(layout, c, experts);
    work->probabilities = take(layout, c, experts);
    work->chosen = take_ints(layout, entries, 1);
    work->slot_weights = take(layout, entries, 1);
    work->expert_first = take_ints(layout, experts + 1, 1);
    work->entry_column = take_ints(layout, entries, 1);
    work->entry_of_slot = take_ints(layout, entries, 1);
    work->quantised = take(layout, c, hidden);
    work->quantised_scales = take(layout, c, blocks_of(config->hidden));
    work->gate = take(layout, inner, 1);
    work->up = take(layout, inner, 1);
    work->inner_scales = take(layout, entries, blocks_of(config->expert_inner));
    work->down = take(layout, entries, hidden);
    work->shared_gate = take(layout, c, (size_t)config->shared_inner);
    work->shared_up = take(layout, c, (size_t)config->shared_inner);
    work->shared = take(layout, c, hidden);
    work->shared_open = take(layout, c, 1);
}

static void lay_work(struct layout *layout, const struct th_config *config, size_t c, struct th_lm_work *work)
{
    size_t hidden = (size_t)config->backbone.hidden;
    work->frames = take_ints(layout, c, (size_t)config->frame_width);
    work->residual = take(layout, c, hidden);
    work->normed = take(layout, c, hidden);
    work->branch = take(layout, c, hidden);
    work->final = take(layout, c, hidden);
    work->handed = take(layout, c, hidden);
    lay_attention(layout, config, c, work);
    lay_deltanet(layout, &config->backbone, c, work);
    lay_moe(layout, config, c, work);
    work->embedding = take(layout, c, hidden);
    work->joined = take(layout, c, 2 * hidden);
    work->logits = take(layout, c, larger((size_t)config->candidates, (size_t)config->tower.codebook_size));
    work->probe = take(layout, c, hidden);
}

static void release_work(struct th_cpu_lm *lm)
{
    th_free(lm->work.memory);
    th_free(lm->work.spans);
    th_free(lm->work.products);
    th_free(lm->work.labels);
    th_free(lm->work.inputs);
    lm->work = (struct th_lm_work){0};
    lm->work_bytes = 0;
}

/* A feed's batch has a row more than its piece: the frame that was drawn last, or the tower's pending row. */
static int work_columns(int count, int max_rows)
{
    int columns = (max_rows < TH_LM_PIECE ? max_rows : TH_LM_PIECE) + 1;
    return columns > count ? columns : count;
}

static thespis_status make_work(struct th_cpu *cpu, int lanes, int max_rows, thespis_error *error)
{
    const struct th_config *config = &cpu->model->config;
    struct th_lm_work *work = &cpu->lm->work;
    const size_t columns = (size_t)work_columns(lanes, max_rows);
    struct layout layout = {NULL, 0};
    lay_work(&layout, config, columns, work);
    TH_TRY(TH_ALLOC(&work->memory, layout.used, "the work space", error));
    cpu->lm->work_bytes = layout.used * sizeof(float);
    layout = (struct layout){work->memory, 0};
    lay_work(&layout, config, columns, work);
    work->columns = (int)columns;
    TH_TRY(TH_ALLOC(&work->spans, (size_t)lanes, "the work space", error));
    TH_TRY(TH_ALLOC(&work->products, 2 * (size_t)config->backbone.experts + 1, "the work space", error));
    TH_TRY(TH_ALLOC(&work->labels, columns, "the work space", error));
    return TH_ALLOC(&work->inputs, columns, "the work space", error);
}

/* ---- rotary tables ----------------------------------------------------------------------------------------------------------- */

/* Frequencies and angles in 32 bits, as the reference has them; cos and sin of those angles without further error. */
static thespis_status make_rope(int rotary_dim, double theta, int max_rows, struct th_lm_rope *rope, thespis_error *error)
{
    rope->pairs = rotary_dim / 2;
    TH_TRY(TH_ALLOC(&rope->cosine, (size_t)max_rows * (size_t)rope->pairs, "rotary tables", error));
    TH_TRY(TH_ALLOC(&rope->sine, (size_t)max_rows * (size_t)rope->pairs, "rotary tables", error));
    for (int i = 0; i < rope->pairs; i++) {
        float exponent = (float)(2 * i) / (float)rotary_dim;
        float frequency = 1.0f / (float)pow(theta, exponent);
        for (int row = 0; row < max_rows; row++) {
            float angle = (float)row * frequency;
            rope->cosine[(size_t)row * (size_t)rope->pairs + (size_t)i] = (float)cos(angle);
            rope->sine[(size_t)row * (size_t)rope->pairs + (size_t)i] = (float)sin(angle);
        }
    }
    return THESPIS_OK;
}

static void release_rope(struct th_lm_rope *rope)
{
    th_free(rope->cosine);
    th_free(rope->sine);
    *rope = (struct th_lm_rope){0};
}

/* ---- all of it --------------------------------------------------------------------------------------------------------------- */

static void release_for_rows(struct th_cpu_lm *lm)
{
    release_lanes(lm);
    release_work(lm);
    release_rope(&lm->backbone_rope);
    release_rope(&lm->tower_rope);
    lm->max_rows = 0;
    lm->lane_floats = 0;
}

void th_cpu_lm_release(struct th_cpu *cpu)
{
    struct th_cpu_lm *lm = cpu->lm;
    if (lm == NULL) return;
    release_for_rows(lm);
    for (int layer = 0; lm->conv_taps != NULL && layer < cpu->model->config.backbone.layers; layer++) th_free(lm->conv_taps[layer]);
    th_free(lm->conv_taps);
    th_draw_scratch_close(&lm->draw);
    th_free(lm);
    cpu->lm = NULL;
}

/* Floats of `count` lanes and the work space, before anything is allocated. */
static double bytes_for(const struct th_cpu *cpu, int count, int max_rows)
{
    const struct th_config *config = &cpu->model->config;
    double row = 0, fixed = 0;
    for (int layer = 0; layer < config->backbone.layers; layer++) {
        if (cpu->model->layers[layer].is_full_attention)
            row += 2.0 * config->backbone.kv_heads * config->backbone.head_dim;
        else
            fixed += (double)(delta_floats(&config->backbone) + conv_floats(&config->backbone));
    }
    row += 2.0 * th_lm_tower_layers(config) * config->tower.kv_heads * config->tower.head_dim;
    struct layout layout = {NULL, 0};
    struct th_lm_work work = {0};
    lay_work(&layout, config, (size_t)work_columns(count, max_rows), &work);
    return (count * (row * max_rows + fixed) + (double)layout.used) * sizeof(float);
}

static thespis_status make_for_rows(struct th_cpu *cpu, int count, int max_rows, thespis_error *error)
{
    const struct th_config *config = &cpu->model->config;
    struct th_cpu_lm *lm = cpu->lm;
    lm->max_rows = max_rows;
    TH_TRY(make_rope(config->backbone.rotary_dim, config->backbone.rope_theta, max_rows, &lm->backbone_rope, error));
    TH_TRY(make_rope(config->tower.rotary_dim, config->tower.rope_theta, max_rows, &lm->tower_rope, error));
    TH_TRY(make_work(cpu, count, max_rows, error));
    TH_TRY(TH_ALLOC(&lm->lanes, (size_t)count, "lanes", error));
    lm->lane_count = count;
    for (int i = 0; i < count; i++) TH_TRY(make_lane(cpu, max_rows, &lm->lanes[i], &lm->lane_floats, error));
    return THESPIS_OK;
}

thespis_status th_cpu_lanes(struct th_backend *backend, int count, int max_rows, thespis_error *error)
{
    struct th_cpu *cpu = th_cpu_of(backend);
    if (cpu->lm == NULL) return th_fail(error, THESPIS_UNSUPPORTED, "lanes need a language model, and only a codec was opened");
    const int most = cpu->model->config.backbone.max_positions;
    if (count < 1 || count > 4096) return th_fail(error, THESPIS_INVALID, "%d lanes were asked for, must be 1 to 4096", count);
    if (max_rows < 2 || max_rows > most)
        return th_fail(error, THESPIS_INVALID, "max_rows is %d, must be 2 to %d (max_position_embeddings)", max_rows, most);
    release_for_rows(cpu->lm);
    double bytes = bytes_for(cpu, count, max_rows), machine = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    thespis_status status = machine > 0 && bytes > machine ? THESPIS_MEMORY : make_for_rows(cpu, count, max_rows, error);
    if (status != THESPIS_MEMORY) return status;
    release_for_rows(cpu->lm);
    return th_fail(error, THESPIS_MEMORY, "%d lanes of %d rows need %.0f MiB, more than there is: ask for fewer lanes or rows",
                   count, max_rows, bytes / 1048576.0);
}

void th_cpu_lm_memory(const struct th_cpu *cpu, struct th_backend_memory *memory)
{
    const struct th_cpu_lm *lm = cpu->lm;
    if (lm == NULL) return;
    memory->weights = lm->weight_bytes;
    memory->lanes = (uint64_t)lm->lane_count * lm->lane_floats * sizeof(float);
    memory->work =
        lm->work_bytes + 2 * sizeof(float) * (uint64_t)lm->max_rows * (uint64_t)(lm->backbone_rope.pairs + lm->tower_rope.pairs);
}
