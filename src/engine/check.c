/* check.c - see check.h: runs a request teacher-forced, layer by layer, freely, or through the codec, and collects the arrays. */
#include "engine/check.h"

#include <string.h>

#include "audio/codes.h"
#include "audio/recording.h"
#include "base/file.h"
#include "base/memory.h"
#include "engine/arrays.h"
#include "engine/compare.h"
#include "engine/parts.h"
#include "engine/request_file.h"

/* Rows of probes that are kept: all of the sequence, or those from `first` on (heads, MoE of the last rows). */
struct collector {
    struct th_arrays arrays;
    int total;        /* T rows */
    int first;        /* row of the first label: P - 1 */
    int moe_row;      /* first row whose MoE is kept */
    int keep_experts; /* 1: chosen experts are settled; later probes of them are dropped */
};

struct check {
    const struct th_check_options *options;
    struct th_parts parts;
    struct th_request_file file;
    struct th_rows rows;
    struct th_npy labels; /* [n][W] */
    struct collector got;
};

/* ---- probes ------------------------------------------------------------------------------------------------------------------ */

/* Copies rows of a probe into array [layers?][rows][cols] whose row 0 is `first`. */
static void keep_floats(struct th_arrays *arrays, const char *name, int layer, int first, int row0, int rows, int cols,
                        const float *values)
{
    struct th_array *a = th_arrays_find(arrays, name);
    if (a == NULL) return;
    int64_t kept = a->shape[a->rank - 2];
    for (int r = 0; r < rows; r++) {
        int64_t at = row0 + r - first;
        if (at < 0 || at >= kept) continue;
        memcpy((float *)a->data + ((int64_t)layer * kept + at) * cols, values + (int64_t)r * cols, (size_t)cols * sizeof *values);
    }
}

/* The same into integers (experts) or bytes (codes). */
static void keep_whole(struct th_arrays *arrays, const char *name, int layer, int first, int row0, int rows, int cols,
                       const float *values)
{
    struct th_array *a = th_arrays_find(arrays, name);
    if (a == NULL) return;
    int64_t kept = a->shape[1];
    for (int r = 0; r < rows; r++) {
        int64_t at = row0 + r - first;
        if (at < 0 || at >= kept) continue;
        for (int c = 0; c < cols; c++) {
            int64_t i = ((int64_t)layer * kept + at) * cols + c;
            if (a->dtype[1] == 'i')
                ((int64_t *)a->data)[i] = (int64_t)values[(int64_t)r * cols + c];
            else
                ((uint8_t *)a->data)[i] = (uint8_t)values[(int64_t)r * cols + c];
        }
    }
}

/* code_logits is [n][codebooks - 1][V]: the head is the middle index. */
static void keep_code_logits(struct collector *c, int head, int row0, int rows, int cols, const float *values)
{
    struct th_array *a = th_arrays_find(&c->arrays, "code_logits");
    if (a == NULL) return;
    for (int r = 0; r < rows; r++) {
        int64_t at = row0 + r - c->first;
        if (at < 0 || at >= a->shape[0]) continue;
        memcpy((float *)a->data + (at * a->shape[1] + head) * cols, values + (int64_t)r * cols, (size_t)cols * sizeof *values);
    }
}

static void on_probe(void *context, int lane, const char *name, int layer, int row0, int rows, int cols, const float *values)
{
    static const struct {
        const char *probe, *array;
        enum { ALL, LABELS, MOE, MOE_WHOLE } kind;
    } routes[] = {
        {"embed", "embeds", ALL},
        {"backbone_layer", "backbone_layers", ALL},
        {"backbone_final", "backbone_final", ALL},
        {"tower_layer", "tower_layers", ALL},
        {"candidate_logits", "candidate_logits", LABELS},
        {"moe_input", "moe_inputs", MOE},
        {"moe_router", "moe_router_logits", MOE},
        {"moe_weights", "moe_expert_weights", MOE},
        {"moe_scales", "moe_input_scales", MOE},
        {"moe_experts", "moe_experts", MOE_WHOLE},
        {"moe_codes", "moe_input_codes", MOE_WHOLE},
    };
    struct collector *c = context;
    (void)lane;
    if (c->keep_experts && strcmp(name, "moe_experts") == 0) return;
    if (strcmp(name, "code_logits") == 0) {
        keep_code_logits(c, layer, row0, rows, cols, values);
        return;
    }
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(name, routes[i].probe) != 0) continue;
        int first = routes[i].kind == ALL ? 0 : routes[i].kind == LABELS ? c->first : c->moe_row;
        if (routes[i].kind == MOE_WHOLE)
            keep_whole(&c->arrays, routes[i].array, layer, first, row0, rows, cols, values);
        else
            keep_floats(&c->arrays, routes[i].array, routes[i].kind == LABELS ? 0 : layer, first, row0, rows, cols, values);
        return;
    }
}

/* ---- the arrays of one run --------------------------------------------------------------------------------------------------- */

static thespis_status add_integers(struct th_arrays *arrays, const char *name, int64_t rows, int64_t cols, const int32_t *values,
                                   thespis_error *error)
{
    struct th_array *a;
    TH_TRY(th_arrays_add(arrays, name, "<i8", rows, cols, 0, 0, &a, error));
    for (int64_t i = 0; i < a->count; i++) ((int64_t *)a->data)[i] = values[i];
    return THESPIS_OK;
}

static thespis_status add_layers(struct check *k, int64_t n, thespis_error *error)
{
    const struct th_config *m = &k->parts.model->config;
    struct th_arrays *a = &k->got.arrays;
    int64_t t = k->got.total, h = m->backbone.hidden, tower = m->tower.shared_layers + m->tower.residual_layers;
    TH_TRY(th_arrays_add(a, "embeds", "<f4", t, h, 0, 0, NULL, error));
    TH_TRY(th_arrays_add(a, "backbone_layers", "<f4", m->backbone.layers, t, h, 0, NULL, error));
    TH_TRY(th_arrays_add(a, "backbone_final", "<f4", t, h, 0, 0, NULL, error));
    TH_TRY(th_arrays_add(a, "tower_layers", "<f4", tower, t, h, 0, NULL, error));
    TH_TRY(th_arrays_add(a, "candidate_logits", "<f4", n, m->candidates, 0, 0, NULL, error));
    return th_arrays_add(a, "code_logits", "<f4", n, m->tower.residual_layers, m->tower.codebook_size, 0, NULL, error);
}

/* MoE of rows moe_row..total-1; codes only when inputs are quantised. */
static thespis_status add_moe(struct check *k, thespis_error *error)
{
    const struct th_backbone_config *b = &k->parts.model->config.backbone;
    struct th_arrays *a = &k->got.arrays;
    int64_t r = k->got.total - k->got.moe_row, groups = (b->hidden + TH_EXPERT_BLOCK - 1) / TH_EXPERT_BLOCK;
    TH_TRY(th_arrays_add(a, "moe_inputs", "<f4", b->layers, r, b->hidden, 0, NULL, error));
    TH_TRY(th_arrays_add(a, "moe_router_logits", "<f4", b->layers, r, b->experts, 0, NULL, error));
    TH_TRY(th_arrays_add(a, "moe_experts", "<i8", b->layers, r, b->top_k, 0, NULL, error));
    TH_TRY(th_arrays_add(a, "moe_expert_weights", "<f4", b->layers, r, b->top_k, 0, NULL, error));
    if (!k->options->engine.act_quant || k->parts.model->config.expert_format != TH_EXPERTS_FP8) return THESPIS_OK;
    TH_TRY(th_arrays_add(a, "moe_input_codes", "|u1", b->layers, r, b->hidden, 0, NULL, error));
    return th_arrays_add(a, "moe_input_scales", "<f4", b->layers, r, groups, 0, NULL, error);
}

static thespis_status add_candidates(struct check *k, thespis_error *error)
{
    const struct th_config *m = &k->parts.model->config;
    struct th_array *a;
    TH_TRY(th_arrays_add(&k->got.arrays, "candidate_ids", "<i8", m->candidates, 0, 0, 0, &a, error));
    for (int i = 0; i < m->candidates; i++) ((int64_t *)a->data)[i] = th_config_candidate_token(m, i);
    return THESPIS_OK;
}

/* ---- forced ------------------------------------------------------------------------------------------------------------------ */

static thespis_status check_labels(struct check *k, thespis_error *error)
{
    const struct th_config *m = &k->parts.model->config;
    const struct th_npy *l = &k->labels;
    if (l->kind == 'f' || l->rank != 2 || l->shape[1] != m->frame_width || l->shape[0] < 1)
        return th_fail(error, THESPIS_FORMAT, "%s: must hold integers of shape (n, %d), n >= 1", k->options->frames,
                       m->frame_width);
    for (int64_t i = 0; i < l->count; i++) {
        int64_t value = th_npy_int(l, i), most = i % m->frame_width == 0 ? m->backbone.vocab : m->tower.codebook_size;
        if (value < 0 || value >= most)
            return th_fail(error, THESPIS_INVALID, "%s: %lld in row %lld must be 0 to %lld", k->options->frames, (long long)value,
                           (long long)(i / m->frame_width), (long long)most - 1);
    }
    return THESPIS_OK;
}

static struct th_sampling sampling_of(const struct check *k)
{
    return (struct th_sampling){k->file.temperature, k->file.top_p, k->file.top_k, k->file.seed, 0, k->options->greedy};
}

static thespis_status feed_prompt(struct check *k, thespis_error *error)
{
    struct th_backend *backend = k->parts.backend;
    struct th_sampling sampling = sampling_of(k);
    TH_TRY(backend->ops->begin(backend, 0, &sampling, error));
    return backend->ops->feed(backend, 0, k->rows.data, (int)k->rows.count, error);
}

static thespis_status one_step(struct check *k, const int32_t *forced, int32_t *frame, thespis_error *error)
{
    struct th_step step = {.lane = 0, .forced = forced, .frame = frame};
    TH_TRY(k->parts.backend->ops->step(k->parts.backend, &step, 1, error));
    if (step.status != THESPIS_OK && error != NULL) *error = step.error;
    return step.status;
}

/* inputs [T][W]: the prompt, then every label but the last. */
static thespis_status add_inputs(struct check *k, const int32_t *labels, int n, thespis_error *error)
{
    int width = k->rows.width;
    int32_t *inputs;
    TH_TRY(TH_ALLOC(&inputs, (size_t)k->got.total * width, "inputs", error));
    memcpy(inputs, k->rows.data, k->rows.count * width * sizeof *inputs);
    memcpy(inputs + k->rows.count * width, labels, (size_t)(n - 1) * width * sizeof *inputs);
    thespis_status status = add_integers(&k->got.arrays, "inputs", k->got.total, width, inputs, error);
    th_free(inputs);
    return status;
}

static thespis_status force_labels(struct check *k, const int32_t *labels, int n, thespis_error *error)
{
    struct th_backend *backend = k->parts.backend;
    int32_t frame[1 + TH_MAX_CODEBOOKS];
    backend->ops->probe(backend, on_probe, &k->got);
    thespis_status status = feed_prompt(k, error);
    for (int i = 0; i < n && status == THESPIS_OK; i++) status = one_step(k, labels + (size_t)i * k->rows.width, frame, error);
    backend->ops->probe(backend, NULL, NULL);
    return status;
}

static thespis_status run_forced(struct check *k, thespis_error *error)
{
    TH_TRY(th_npy_read(k->options->frames, (size_t)64 << 20, &k->labels, error));
    TH_TRY(check_labels(k, error));
    int n = (int)k->labels.shape[0], width = k->rows.width;
    k->got.total = (int)k->rows.count + n - 1;
    k->got.first = (int)k->rows.count - 1;
    k->got.moe_row = 0;
    int32_t *labels;
    TH_TRY(TH_ALLOC(&labels, (size_t)n * width, "labels", error));
    for (int i = 0; i < n * width; i++) labels[i] = (int32_t)th_npy_int(&k->labels, i);
    thespis_status status = add_inputs(k, labels, n, error);
    if (status == THESPIS_OK) status = add_integers(&k->got.arrays, "labels", n, width, labels, error);
    if (status == THESPIS_OK) status = add_layers(k, n, error);
    if (status == THESPIS_OK) status = add_moe(k, error);
    if (status == THESPIS_OK) status = add_candidates(k, error);
    if (status == THESPIS_OK) status = force_labels(k, labels, n, error);
    th_free(labels);
    return status;
}

/* ---- free running ------------------------------------------------------------------------------------------------------------ */

/* frames [n][W] as drawn, held frames and the end-of-speech row too. */
static thespis_status run_free(struct check *k, thespis_error *error)
{
    const struct th_config *m = &k->parts.model->config;
    int most = k->options->max_frames > 0 ? k->options->max_frames : k->file.max_frames > 0 ? k->file.max_frames : 256;
    int room = k->parts.max_rows - (int)k->rows.count;
    if (most > room) most = room;
    int32_t *frames;
    TH_TRY(TH_ALLOC(&frames, (size_t)most * m->frame_width, "frames", error));
    int n = 0;
    thespis_status status = feed_prompt(k, error);
    while (status == THESPIS_OK && n < most) {
        status = one_step(k, NULL, frames + (size_t)n * m->frame_width, error);
        if (status == THESPIS_OK && frames[(size_t)n++ * m->frame_width] == m->eos) break;
    }
    if (status == THESPIS_OK) status = add_integers(&k->got.arrays, "frames", n, m->frame_width, frames, error);
    th_free(frames);
    return status;
}

/* ---- layer by layer ---------------------------------------------------------------------------------------------------------- */

/* The reference's arrays that a layer-local run reads. */
struct given {
    struct th_npy backbone_in, tower_in, backbone_out, final, tower_out, inputs, labels, moe_inputs, moe_rows;
};

static void free_given(struct given *g)
{
    struct th_npy *all[] = {&g->backbone_in, &g->tower_in, &g->backbone_out, &g->final,   &g->tower_out,
                            &g->inputs,      &g->labels,   &g->moe_inputs,   &g->moe_rows};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) th_npy_free(all[i]);
}

static thespis_status load_given(const char *folder, struct given *g, thespis_error *error)
{
    TH_TRY(th_arrays_load(folder, "backbone_layer_inputs", &g->backbone_in, error));
    TH_TRY(th_arrays_load(folder, "tower_layer_inputs", &g->tower_in, error));
    TH_TRY(th_arrays_load(folder, "backbone_layers", &g->backbone_out, error));
    TH_TRY(th_arrays_load(folder, "backbone_final", &g->final, error));
    TH_TRY(th_arrays_load(folder, "tower_layers", &g->tower_out, error));
    TH_TRY(th_arrays_load(folder, "inputs", &g->inputs, error));
    TH_TRY(th_arrays_load(folder, "labels", &g->labels, error));
    TH_TRY(th_arrays_load(folder, "moe_inputs", &g->moe_inputs, error));
    return th_arrays_load(folder, "moe_rows", &g->moe_rows, error);
}

static thespis_status check_given(const struct check *k, const struct given *g, thespis_error *error)
{
    const struct th_config *m = &k->parts.model->config;
    int64_t t = g->inputs.rank == 2 ? g->inputs.shape[0] : 0, h = m->backbone.hidden,
            tower = m->tower.shared_layers + m->tower.residual_layers;
    const struct {
        const struct th_npy *array;
        const char *name;
        int64_t shape[3];
    } want[] = {
        {&g->backbone_in, "backbone_layer_inputs", {m->backbone.layers, t, h}},
        {&g->backbone_out, "backbone_layers", {m->backbone.layers, t, h}},
        {&g->tower_in, "tower_layer_inputs", {tower, t, h}},
        {&g->tower_out, "tower_layers", {tower, t, h}},
        {&g->final, "backbone_final", {t, h, 0}},
        {&g->inputs, "inputs", {t, m->frame_width, 0}},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        int rank = want[i].shape[2] != 0 ? 3 : 2;
        int bad = want[i].array->rank != rank || t < 1;
        for (int d = 0; d < rank && !bad; d++) bad = want[i].array->shape[d] != want[i].shape[d];
        if (bad)
            return th_fail(error, THESPIS_FORMAT, "%s/%s.npy does not have this checkpoint's shape", k->options->layer_local,
                           want[i].name);
    }
    if (g->labels.rank != 2 || g->labels.shape[1] != m->frame_width || g->labels.shape[0] < 1 || g->labels.shape[0] > t ||
        g->moe_rows.rank != 1 || g->moe_rows.shape[0] < 1 || g->moe_rows.shape[0] > t)
        return th_fail(error, THESPIS_FORMAT, "%s: labels.npy or moe_rows.npy does not fit inputs.npy", k->options->layer_local);
    return THESPIS_OK;
}

static thespis_status as_floats(const struct th_npy *array, float **out, thespis_error *error)
{
    TH_TRY(TH_ALLOC(out, (size_t)array->count, "an array", error));
    for (int64_t i = 0; i < array->count; i++) (*out)[i] = (float)th_npy_float(array, i);
    return THESPIS_OK;
}

/* One layer over all rows: the first half together, the rest one at a time. */
static thespis_status run_layer(struct check *k, int part, int layer, const float *in, const int32_t *frames, const int32_t *labels,
                                float *out, thespis_error *error)
{
    struct th_backend *backend = k->parts.backend;
    int total = k->got.total, half = total / 2, width = k->rows.width, h = k->parts.model->config.backbone.hidden;
    for (int row = 0; row < total;) {
        int n = row < half ? half : 1;
        TH_TRY(backend->ops->layer(backend, 0, part, layer, row, n, in + (size_t)row * h, frames + (size_t)row * width,
                                   labels + (size_t)row * width, out + (size_t)row * h, error));
        row += n;
    }
    return THESPIS_OK;
}

static thespis_status run_layers(struct check *k, int part, const struct th_npy *given, const char *name, const int32_t *frames,
                                 const int32_t *labels, thespis_error *error)
{
    size_t layer_size = (size_t)k->got.total * k->parts.model->config.backbone.hidden;
    float *in, *out = th_arrays_floats(&k->got.arrays, name);
    TH_TRY(as_floats(given, &in, error));
    thespis_status status = THESPIS_OK;
    for (int layer = 0; layer < given->shape[0] && status == THESPIS_OK; layer++)
        status = run_layer(k, part, layer, in + layer * layer_size, frames, labels, out + layer * layer_size, error);
    th_free(in);
    return status;
}

/* The MoE again from the reference's own inputs, so that codes and scales of the quantisation can be held to its. */
static thespis_status run_moe(struct check *k, const struct th_npy *given, thespis_error *error)
{
    struct th_backend *backend = k->parts.backend;
    int rows = k->got.total - k->got.moe_row, h = k->parts.model->config.backbone.hidden;
    float *in, *out = NULL;
    TH_TRY(as_floats(given, &in, error));
    thespis_status status = TH_ALLOC(&out, (size_t)rows * h, "a layer's output", error);
    for (int layer = 0; layer < given->shape[0] && status == THESPIS_OK; layer++)
        status =
            backend->ops->layer(backend, 0, 2, layer, k->got.moe_row, rows, in + (size_t)layer * rows * h, NULL, NULL, out, error);
    th_free(out);
    th_free(in);
    return status;
}

static thespis_status run_heads(struct check *k, const struct given *g, int n, thespis_error *error)
{
    const struct th_config *m = &k->parts.model->config;
    struct th_backend *backend = k->parts.backend;
    size_t h = (size_t)m->backbone.hidden, total = (size_t)k->got.total, v = (size_t)m->tower.codebook_size,
           r = (size_t)m->tower.residual_layers;
    float *last, *final = NULL, *tower = NULL, *logits = NULL;
    TH_TRY(as_floats(&g->backbone_out, &last, error));
    thespis_status status = as_floats(&g->final, &final, error);
    if (status == THESPIS_OK) status = as_floats(&g->tower_out, &tower, error);
    if (status == THESPIS_OK) status = TH_ALLOC(&logits, (size_t)n * v, "logits", error);
    if (status == THESPIS_OK)
        status = backend->ops->head(backend, 0, (int)total, last + (m->backbone.layers - 1) * total * h,
                                    th_arrays_floats(&k->got.arrays, "backbone_final"), error);
    if (status == THESPIS_OK)
        status = backend->ops->head(backend, 1, n, final + k->got.first * h, th_arrays_floats(&k->got.arrays, "candidate_logits"),
                                    error);
    for (size_t i = 0; i < r && status == THESPIS_OK; i++) {
        const float *in = tower + ((m->tower.shared_layers + i) * total + k->got.first) * h;
        status = backend->ops->head(backend, 2 + (int)i, n, in, logits, error);
        if (status == THESPIS_OK) keep_code_logits(&k->got, (int)i, k->got.first, n, (int)v, logits);
    }
    th_free(logits);
    th_free(tower);
    th_free(final);
    th_free(last);
    return status;
}

/* frames [T][W] as inputs and labels [T][W]: the next row, the last label at the end. */
static thespis_status frames_and_labels(struct check *k, const struct given *g, int32_t **frames, int32_t **labels,
                                        thespis_error *error)
{
    size_t width = (size_t)k->rows.width, total = (size_t)k->got.total;
    *labels = NULL;
    TH_TRY(TH_ALLOC(frames, total * width, "frames", error));
    TH_TRY(TH_ALLOC(labels, total * width, "labels", error));
    for (size_t i = 0; i < total * width; i++) (*frames)[i] = (int32_t)th_npy_int(&g->inputs, (int64_t)i);
    memcpy(*labels, *frames + width, (total - 1) * width * sizeof **labels);
    for (size_t i = 0; i < width; i++)
        (*labels)[(total - 1) * width + i] =
            (int32_t)th_npy_int(&g->labels, (g->labels.shape[0] - 1) * (int64_t)width + (int64_t)i);
    return THESPIS_OK;
}

static thespis_status run_local_arrays(struct check *k, const struct given *g, thespis_error *error)
{
    int n = (int)g->labels.shape[0];
    k->got.total = (int)g->inputs.shape[0];
    k->got.first = k->got.total - n;
    k->got.moe_row = k->got.total - (int)g->moe_rows.shape[0];
    TH_TRY(add_layers(k, n, error));
    TH_TRY(add_moe(k, error));
    struct th_backend *backend = k->parts.backend;
    struct th_sampling sampling = sampling_of(k);
    TH_TRY(backend->ops->begin(backend, 0, &sampling, error));
    int32_t *frames = NULL, *labels = NULL;
    thespis_status status = frames_and_labels(k, g, &frames, &labels, error);
    backend->ops->probe(backend, on_probe, &k->got);
    if (status == THESPIS_OK) status = run_layers(k, 0, &g->backbone_in, "backbone_layers", frames, labels, error);
    if (status == THESPIS_OK) status = run_layers(k, 1, &g->tower_in, "tower_layers", frames, labels, error);
    k->got.keep_experts = 1; /* those of the layers' own inputs, not of the run that follows */
    if (status == THESPIS_OK) status = run_moe(k, &g->moe_inputs, error);
    backend->ops->probe(backend, NULL, NULL);
    if (status == THESPIS_OK) status = run_heads(k, g, n, error);
    th_free(frames);
    th_free(labels);
    return status;
}

static thespis_status run_local(struct check *k, thespis_error *error)
{
    struct given g = {0};
    thespis_status status = load_given(k->options->layer_local, &g, error);
    if (status == THESPIS_OK) status = check_given(k, &g, error);
    if (status == THESPIS_OK) status = run_local_arrays(k, &g, error);
    free_given(&g);
    return status;
}

/* ---- the codec --------------------------------------------------------------------------------------------------------------- */

static thespis_status decode_codes(struct check *k, const struct th_codes *codes, thespis_error *error)
{
    struct th_backend *backend = k->parts.backend;
    struct th_codec_stream *stream;
    struct th_array *wave;
    TH_TRY(th_arrays_add(&k->got.arrays, "waveform", "<f4", (int64_t)codes->frames * THESPIS_FRAME_SAMPLES, 0, 0, 0, &wave, error));
    TH_TRY(backend->ops->codec_open(backend, &stream, error));
    int32_t window[TH_DECODE_MAX_FRAMES * TH_CODEC_MAX_BOOKS];
    thespis_status status = THESPIS_OK;
    for (size_t done = 0; done < codes->frames && status == THESPIS_OK;) {
        size_t left = codes->frames - done;
        int n = left < TH_DECODE_MAX_FRAMES ? (int)left : TH_DECODE_MAX_FRAMES;
        for (int f = 0; f < n; f++)
            for (int b = 0; b < codes->codebooks; b++)
                window[f * codes->codebooks + b] = codes->codes[(size_t)b * codes->frames + done + (size_t)f];
        status = backend->ops->codec_decode(backend, stream, window, n, (float *)wave->data + done * THESPIS_FRAME_SAMPLES, error);
        done += (size_t)n;
    }
    backend->ops->codec_close(backend, stream);
    return status;
}

static thespis_status encode_recording(struct check *k, const struct th_recording *recording, thespis_error *error)
{
    int books = k->parts.codebooks;
    int64_t n = (int64_t)((recording->count + THESPIS_FRAME_SAMPLES - 1) / THESPIS_FRAME_SAMPLES);
    struct th_array *codes;
    int32_t *by_frame;
    TH_TRY(th_arrays_add(&k->got.arrays, "codes", "<i8", books, n, 0, 0, &codes, error));
    TH_TRY(TH_ALLOC(&by_frame, (size_t)(n * books), "codes", error));
    thespis_status status =
        k->parts.backend->ops->codec_encode(k->parts.backend, recording->samples, recording->count, by_frame, NULL, NULL, error);
    for (int64_t i = 0; i < n * books && status == THESPIS_OK; i++)
        ((int64_t *)codes->data)[i % books * n + i / books] = by_frame[i];
    th_free(by_frame);
    return status;
}

static thespis_status run_codec(struct check *k, thespis_error *error)
{
    struct th_map map;
    TH_TRY(th_map_open(k->options->codec, &map, error));
    thespis_status status;
    if (th_codes_is(map.data, map.bytes)) {
        struct th_codes codes;
        status = th_codes_parse(map.data, map.bytes, k->options->codec, k->parts.codebooks, INT32_MAX, &codes, error);
        if (status == THESPIS_OK) {
            status = decode_codes(k, &codes, error);
            th_free(codes.codes);
        }
    } else {
        struct th_recording recording;
        status = th_recording_read_bytes(map.data, map.bytes, k->options->codec, 0, &recording, error);
        if (status == THESPIS_OK) {
            status = encode_recording(k, &recording, error);
            th_recording_free(&recording);
        }
    }
    th_map_close(&map);
    return status;
}

/* ---- all of it --------------------------------------------------------------------------------------------------------------- */

static thespis_status read_prompt(struct check *k, thespis_error *error)
{
    const struct th_parts *p = &k->parts;
    TH_TRY(th_request_file_read(k->options->request, p->codebooks, p->codebook_size, &k->file, error));
    TH_TRY(th_prompt_build(p->tokenizer, &p->shape, &k->file.prompt, &k->rows, error));
    if ((int64_t)k->rows.count >= p->max_rows)
        return th_fail(error, THESPIS_LIMIT, "the prompt has %zu rows, max_rows is %d", k->rows.count, p->max_rows);
    return add_integers(&k->got.arrays, "rows", (int64_t)k->rows.count, k->rows.width, k->rows.data, error);
}

static thespis_status run(struct check *k, thespis_error *error)
{
    const struct th_check_options *o = k->options;
    if (o->codec != NULL) return run_codec(k, error);
    if (k->parts.model == NULL || o->request == NULL)
        return th_fail(error, THESPIS_INVALID, "check needs a checkpoint and a request, or --codec with a recording or codes");
    TH_TRY(read_prompt(k, error));
    if (o->layer_local != NULL) return run_local(k, error);
    if (o->frames != NULL) TH_TRY(run_forced(k, error));
    if (o->generate) TH_TRY(run_free(k, error));
    return THESPIS_OK;
}

thespis_status th_check_run(const struct th_check_options *options, th_check_line line, void *context, int *differences,
                            thespis_error *error)
{
    struct check k = {.options = options};
    thespis_engine_options engine = options->engine;
    engine.lanes = 1;
    engine.voice_slots = 0;
    *differences = 0;
    TH_TRY(th_parts_open(&engine, options->codec != NULL ? TH_PARTS_NEED_CODEC : 0, &k.parts, error));
    thespis_status status = run(&k, error);
    if (status == THESPIS_OK && options->out != NULL) status = th_arrays_write(&k.got.arrays, options->out, error);
    if (status == THESPIS_OK && options->against != NULL)
        status = th_compare(&k.got.arrays, k.parts.model != NULL ? &k.parts.model->config : NULL, options->against, line, context,
                            differences, error);
    th_arrays_free(&k.got.arrays);
    th_npy_free(&k.labels);
    th_rows_free(&k.rows);
    if (k.file.root != NULL) th_request_file_free(&k.file);
    th_parts_close(&k.parts);
    return status;
}

thespis_status th_check_kernels(int device, th_check_line line, void *context, int *broken, thespis_error *error)
{
#ifdef TH_HAVE_CUDA
    return th_cuda_check_kernels(device, 0, line, context, broken, error);
#else
    (void)device, (void)line, (void)context, (void)broken;
    return th_fail(error, THESPIS_UNSUPPORTED, "this build has no CUDA kernels to check");
#endif
}

void th_check_list_kernels(th_check_line line, void *context)
{
#ifdef TH_HAVE_CUDA
    th_cuda_list_kernels(line, context);
#else
    (void)line, (void)context;
#endif
}
