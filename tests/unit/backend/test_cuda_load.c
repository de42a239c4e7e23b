/* test_cuda_load.c - weights on the device are the checkpoint's, unpacked again by the rules of weights.h; what does not fit is
 * refused before anything is taken; whatever call fails, nothing leaks; lanes begin empty and copies are whole. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cuda/cuda.h"

#define FOLDER TEST_BINARY_DIR "/cuda-load"

static struct th_model *model;

static struct th_model *open_made(const char *preset, const char *option)
{
    char command[1000], folder[300];
    struct th_model *opened;
    thespis_error error;
    snprintf(folder, sizeof folder, FOLDER "/%s%s", preset, option);
    snprintf(command, sizeof command,
             "mkdir -p '" FOLDER "' && rm -rf '%s' && '" TEST_BINARY_DIR
             "/make_checkpoint' --preset %s %s --seed 3 '%s' >/dev/null",
             folder, preset, option, folder);
    assert_int_equal(system(command), 0);
    if (th_model_open(folder, &opened, &error) != THESPIS_OK) fail_msg("%s", error.message);
    return opened;
}

static struct th_model *open_model(const char *preset)
{
    return open_made(preset, "");
}

static struct th_backend_options options(void)
{
    return (struct th_backend_options){.precision = THESPIS_PRECISION_BF16, .threads = 2, .act_quant = 1};
}

static thespis_status open_cuda(struct th_cuda **cuda, thespis_error *error)
{
    struct th_backend_options o = options();
    struct th_backend *backend;
    thespis_status status = th_cuda_backend_open(model, NULL, &o, &backend, error);
    *cuda = (struct th_cuda *)backend;
    return status;
}

static struct th_cuda *must_open(void)
{
    struct th_cuda *cuda;
    thespis_error error;
    if (open_cuda(&cuda, &error) != THESPIS_OK) fail_msg("%s", error.message);
    return cuda;
}

/* ---- unpacking -----------------------------------------------------------------------------------------------------------------
 */

/* Byte `at` of row r of a packed part: the sentences of weights.h, apart from the kernel's own arithmetic. */
static unsigned char packed_byte(const unsigned char *tiles, size_t row_bytes, int r, size_t at)
{
    const size_t tile = (size_t)(r / 16) * (row_bytes / 64) + at / 64;
    const size_t in_row = at % 64, q = in_row / 16, step = in_row % 16 / 8, word = in_row % 8 / 4, byte = in_row % 4;
    const size_t lane = (size_t)(r % 8) * 4 + q, upper = (size_t)(r % 16 / 8);
    return tiles[tile * 1024 + step * 512 + lane * 16 + (2 * word + upper) * 4 + byte];
}

static unsigned char *fetch(const void *device, size_t bytes)
{
    unsigned char *host = malloc(bytes);
    assert_non_null(host);
    assert_int_equal(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
}

/* Packed rows map(r) for r < rows hold `from`. stride 1: rows at + r; 2: eight and eight. */
static void check_rows(const unsigned char *tiles, const void *from, int rows, size_t row_bytes, int at, int kind)
{
    const unsigned char *source = from;
    for (int r = 0; r < rows; r++) {
        const int packed = kind == 0 ? at + r : at + r / 8 * 16 + r % 8 + (kind == 2 ? 8 : 0);
        for (size_t i = 0; i < row_bytes; i++)
            if (packed_byte(tiles, row_bytes, packed, i) != source[(size_t)r * row_bytes + i]) fail_msg("row %d, byte %zu", r, i);
    }
}

static void check_zero(const unsigned char *tiles, size_t row_bytes, int first, int end)
{
    for (int r = first; r < end; r++)
        for (size_t i = 0; i < row_bytes; i++) assert_int_equal(packed_byte(tiles, row_bytes, r, i), 0);
}

static void check_part(const struct th_cuda_matrix *matrix, const struct th_matrix *from, int at, int kind)
{
    const size_t row_bytes = (size_t)from->cols * 2;
    assert_int_equal(matrix->cols, from->cols);
    unsigned char *tiles = fetch(matrix->tiles, (size_t)matrix->rows * row_bytes);
    check_rows(tiles, from->data, from->rows, row_bytes, at, kind);
    if (kind == 0) check_zero(tiles, row_bytes, at + from->rows, at + (from->rows + 15) / 16 * 16);
    free(tiles);
}

static void check_plain(const void *device, const void *from, size_t bytes)
{
    unsigned char *host = fetch(device, bytes);
    assert_memory_equal(host, from, bytes);
    free(host);
}

static void check_experts(const struct th_cuda_experts *to, const struct th_expert *from)
{
    const size_t item = to->fp8 ? 1 : 2, wide = (size_t)to->hidden * item, narrow = (size_t)to->inner * item;
    const size_t blocks = (size_t)((to->inner + 127) / 128) * (size_t)((to->hidden + 127) / 128) * sizeof(float);
    for (int e = 0; e < to->count; e++) {
        unsigned char *pair = fetch((const unsigned char *)to->gate_up + (size_t)e * to->gate_up_bytes, to->gate_up_bytes);
        unsigned char *down = fetch((const unsigned char *)to->down + (size_t)e * to->down_bytes, to->down_bytes);
        check_rows(pair, to->fp8 ? (const void *)from[e].gate.codes : from[e].gate.bf16, to->inner, wide, 0, 1);
        check_rows(pair, to->fp8 ? (const void *)from[e].up.codes : from[e].up.bf16, to->inner, wide, 0, 2);
        check_rows(down, to->fp8 ? (const void *)from[e].down.codes : from[e].down.bf16, to->hidden, narrow, 0, 0);
        free(pair);
        free(down);
        if (!to->fp8) continue;
        const unsigned char *scales = (const unsigned char *)to->gate_up_scales + (size_t)e * 2 * blocks;
        check_plain(scales, from[e].gate.scales, blocks);
        check_plain(scales + blocks, from[e].up.scales, blocks);
        check_plain((const unsigned char *)to->down_scales + (size_t)e * blocks, from[e].down.scales, blocks);
    }
}

static void check_layer(const struct th_cuda_layer *to, const struct th_backbone_layer *from)
{
    const struct th_backbone_config *b = &model->config.backbone;
    const size_t h = (size_t)b->hidden * sizeof(float);
    check_plain(to->input_norm, from->input_norm, h);
    check_plain(to->post_norm, from->post_norm, h);
    assert_int_equal(to->full_attention, from->is_full_attention);
    if (to->full_attention) {
        check_part(&to->in, &from->attention.q, 0, 0);
        check_part(&to->in, &from->attention.k, to->k_at, 0);
        check_part(&to->in, &from->attention.v, to->v_at, 0);
        check_part(&to->out, &from->attention.o, 0, 0);
        check_plain(to->q_norm, from->attention.q_norm, (size_t)b->head_dim * sizeof(float));
        check_plain(to->k_norm, from->attention.k_norm, (size_t)b->head_dim * sizeof(float));
    } else {
        const struct th_deltanet_weights *w = &from->deltanet;
        check_part(&to->in, &w->qkv, 0, 0);
        check_part(&to->in, &w->z, to->z_at, 0);
        check_part(&to->in, &w->b, to->b_at, 0);
        check_part(&to->in, &w->a, to->a_at, 0);
        check_part(&to->out, &w->out, 0, 0);
        check_plain(to->conv, w->conv, (size_t)w->qkv.rows * 4 * sizeof(float));
        check_plain(to->a_log, w->a_log, (size_t)b->value_heads * sizeof(float));
        check_plain(to->dt_bias, w->dt_bias, (size_t)b->value_heads * sizeof(float));
        check_plain(to->norm, w->norm, (size_t)b->value_dim * sizeof(float));
    }
    check_part(&to->moe_in, &from->moe.router, 0, 0);
    check_part(&to->moe_in, &from->moe.shared_gate, to->shared_at, 1);
    check_part(&to->moe_in, &from->moe.shared_up, to->shared_at, 2);
    check_part(&to->moe_in, &from->moe.shared_expert_gate, to->shared_gate_at, 0);
    check_part(&to->shared_down, &from->moe.shared_down, 0, 0);
    check_experts(&to->experts, from->moe.experts);
}

static void check_tower(const struct th_cuda_tower_layer *to, const struct th_tower_layer *from)
{
    const size_t h = (size_t)model->config.backbone.hidden * sizeof(float);
    check_plain(to->table, from->table.data, (size_t)from->table.rows * (size_t)from->table.cols * 2);
    check_plain(to->enorm, from->enorm, h);
    check_plain(to->hnorm, from->hnorm, h);
    check_plain(to->attention_norm, from->attention_norm, h);
    check_plain(to->ffn_norm, from->ffn_norm, h);
    check_plain(to->final_norm, from->final_norm, h);
    check_part(&to->eh, &from->eh, 0, 0);
    check_part(&to->wqkv, &from->wqkv, 0, 0);
    check_part(&to->wo, &from->wo, 0, 0);
    check_part(&to->w13, &from->w1, 0, 1);
    check_part(&to->w13, &from->w3, 0, 2);
    check_part(&to->w2, &from->w2, 0, 0);
}

static void check_candidates(const struct th_cuda_matrix *to)
{
    const struct th_config *config = &model->config;
    const size_t row_bytes = (size_t)to->cols * 2;
    assert_int_equal(to->rows, (config->candidates + 15) / 16 * 16);
    unsigned char *tiles = fetch(to->tiles, (size_t)to->rows * row_bytes);
    for (int c = 0; c < config->candidates; c++)
        check_rows(tiles, model->lm_head.data + (size_t)th_config_candidate_token(config, c) * (size_t)to->cols, 1, row_bytes, c,
                   0);
    check_zero(tiles, row_bytes, config->candidates, to->rows);
    free(tiles);
}

static void check_all(const struct th_cuda *cuda)
{
    const struct th_cuda_weights *w = &cuda->weights;
    check_plain(w->embed, model->embed.data, (size_t)model->embed.rows * (size_t)model->embed.cols * 2);
    check_plain(w->code_embed, model->code_embed.data, (size_t)model->code_embed.rows * (size_t)model->code_embed.cols * 2);
    check_plain(w->final_norm, model->final_norm, (size_t)model->config.backbone.hidden * sizeof(float));
    check_candidates(&w->candidates);
    for (int i = 0; i < model->config.backbone.layers; i++) check_layer(&w->layers[i], &model->layers[i]);
    for (int t = 0; t < cuda->tower_layers; t++) check_tower(&w->tower[t], &model->tower[t]);
    for (int r = 0; r < model->config.tower.residual_layers; r++) check_part(&w->heads[r], &model->heads[r], 0, 0);
}

/* ---- tests ---------------------------------------------------------------------------------------------------------------------
 */

static void weights_are_the_checkpoints(void **state)
{
    (void)state;
    static const char *const presets[] = {"tiny", "wide-heads"}; /* FP8; end of speech before and behind the band */
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        model = open_model(presets[i]);
        struct th_cuda *cuda = must_open();
        check_all(cuda);
        cuda->base.ops->close(&cuda->base);
        th_model_close(model);
    }
}

static void progress(void *context, const char *job, uint64_t done, uint64_t total)
{
    uint64_t *seen = context;
    assert_string_equal(job, "load");
    assert_true(done > seen[0] && done <= total);
    seen[0] = done;
    seen[1] = total;
}

static void shapes_without_kernels_are_refused_by_name(void **state)
{
    (void)state;
    thespis_error error;
    struct th_cuda *cuda;
    model = open_model("odd");
    assert_int_equal(open_cuda(&cuda, &error), THESPIS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "head_dim is 80"));
    th_model_close(model);
    model = open_model("tiny");
    struct th_backend_options o = options();
    struct th_backend *backend;
    o.precision = THESPIS_PRECISION_F32;
    assert_int_equal(th_cuda_backend_open(model, NULL, &o, &backend, &error), THESPIS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "precision is f32"));
    o = options();
    o.device = 99;
    assert_int_equal(th_cuda_backend_open(model, NULL, &o, &backend, &error), THESPIS_INVALID);
    assert_non_null(strstr(error.message, "device is 99"));
    o = options();
    uint64_t seen[2] = {0};
    o.progress = progress;
    o.progress_context = seen;
    assert_int_equal(th_cuda_backend_open(model, NULL, &o, &backend, &error), THESPIS_OK);
    assert_true(seen[0] > 0 && seen[0] <= seen[1]);
    backend->ops->close(backend);
    th_model_close(model);
}

/* The state of a lane that nothing was fed to yet: recurrent parts zero, and copies equal. */
static void lanes_begin_empty_and_copy_whole(void **state)
{
    (void)state;
    thespis_error error;
    model = open_model("tiny");
    struct th_cuda *cuda = must_open();
    const struct th_backend_ops *ops = cuda->base.ops;
    const struct th_sampling sampling = {.temperature = 1.0f, .top_p = 0.9f, .top_k = TH_TOP_K_UNLIMITED, .seed = 5};
    assert_int_equal(ops->lanes(&cuda->base, 3, 40, &error), THESPIS_OK);
    assert_int_equal(ops->copy(&cuda->base, 0, 1, &error), THESPIS_INVALID); /* not begun */
    assert_int_equal(ops->begin(&cuda->base, 0, &sampling, &error), THESPIS_OK);
    unsigned char *first = fetch(cuda->state, cuda->layout.stride);
    for (size_t i = 0; i < cuda->layout.hidden_at; i++) assert_int_equal(first[i], 0);
    const size_t stride = cuda->layout.stride;
    for (size_t i = 0; i < stride; i++) first[i] = (unsigned char)(i * 7 + i / 256);
    assert_int_equal(cudaMemcpy(cuda->state, first, stride, cudaMemcpyHostToDevice), cudaSuccess);
    cuda->lanes[0].backbone_rows = cuda->lanes[0].rows = 40;
    cuda->lanes[0].tower_rows = 39;
    unsigned char *others = fetch(cuda->state + stride, 2 * stride);
    assert_int_equal(ops->copy(&cuda->base, 0, 1, &error), THESPIS_OK);
    assert_int_equal(cudaStreamSynchronize(cuda->stream), cudaSuccess);
    unsigned char *copied = fetch(cuda->state + stride, 2 * stride);
    assert_memory_equal(copied, first, cuda->layout.tower_at);
    const size_t row = (size_t)model->config.tower.kv_heads * (size_t)model->config.tower.head_dim * 2;
    for (int i = 0; i < 2 * cuda->tower_layers; i++)
        assert_memory_equal(copied + cuda->layout.tower_at + (size_t)i * cuda->layout.tower_bytes,
                            first + cuda->layout.tower_at + (size_t)i * cuda->layout.tower_bytes, 39 * row);
    assert_memory_equal(copied + stride, others + stride, stride); /* the third lane is as it was */
    assert_int_equal(ops->rows(&cuda->base, 1), 40);
    free(first);
    free(others);
    free(copied);
    ops->close(&cuda->base);
    th_model_close(model);
}

/* The values that the device makes from recipes are those that make_checkpoint writes. */
static void recipes_give_the_same_weights(void **state)
{
    (void)state;
    static const char *const presets[] = {"tiny", "small"}; /* scales in f32 and in bf16 */
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        struct th_model *holes = open_made(presets[i], "--holes");
        thespis_error error;
        struct th_backend_options o = options();
        struct th_backend *backend;
        assert_int_equal(holes->holes, 1);
        assert_int_equal(th_cpu_backend_open(holes, NULL, &o, &backend, &error), THESPIS_UNSUPPORTED);
        model = holes;
        struct th_cuda *cuda = must_open();
        model = open_model(presets[i]);
        check_all(cuda);
        cuda->base.ops->close(&cuda->base);
        th_model_close(holes);
        th_model_close(model);
    }
}

#ifdef TH_CUDA_EMU
static void unified_memory_is_read_in_place(void **state)
{
    (void)state;
    model = open_model("tiny");
    th_emu_set_integrated(1);
    struct th_cuda *cuda = must_open();
    assert_int_equal(cuda->unified, 1);
    check_all(cuda);
    cuda->base.ops->close(&cuda->base);
    th_emu_set_integrated(0);
    th_model_close(model);
}

static void too_small_devices_are_refused_first(void **state)
{
    (void)state;
    thespis_error error;
    model = open_model("tiny");
    struct th_cuda *cuda;
    th_emu_set_memory((size_t)8 << 20);
    assert_int_equal(open_cuda(&cuda, &error), THESPIS_MEMORY);
    assert_non_null(strstr(error.message, "the weights need"));
    assert_int_equal(th_emu_used(), 0);
    th_emu_set_memory((size_t)1 << 30);
    cuda = must_open();
    assert_int_equal(cuda->base.ops->lanes(&cuda->base, 4000, 4096, &error), THESPIS_MEMORY);
    assert_non_null(strstr(error.message, "4000 lanes of 4096 rows need"));
    assert_int_equal(cuda->base.ops->lanes(&cuda->base, 2, 64, &error), THESPIS_OK);
    cuda->base.ops->close(&cuda->base);
    th_emu_set_memory(0);
    th_model_close(model);
    assert_int_equal(th_emu_used(), 0);
}

/* Every call of opening fails once; each time the device's memory is given back. */
static void failing_calls_leave_nothing_behind(void **state)
{
    (void)state;
    thespis_error error;
    struct th_cuda *cuda;
    model = open_model("tiny");
    int failures = 0;
    for (long n = 1; n < 4000; n += n < 60 ? 1 : 97) {
        th_emu_fail_from(n, cudaErrorMemoryAllocation);
        thespis_status status = open_cuda(&cuda, &error);
        th_emu_fail_from(0, cudaSuccess);
        if (status == THESPIS_OK) cuda->base.ops->close(&cuda->base);
        failures += status != THESPIS_OK;
        assert_int_equal(th_emu_used(), 0);
        if (status == THESPIS_OK) break;
    }
    assert_true(failures > 50);
    th_model_close(model);
}
#endif

int main(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_the_checkpoints),        cmocka_unit_test(shapes_without_kernels_are_refused_by_name),
        cmocka_unit_test(lanes_begin_empty_and_copy_whole),   cmocka_unit_test(recipes_give_the_same_weights),
#ifdef TH_CUDA_EMU
        cmocka_unit_test(unified_memory_is_read_in_place),    cmocka_unit_test(too_small_devices_are_refused_first),
        cmocka_unit_test(failing_calls_leave_nothing_behind),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
