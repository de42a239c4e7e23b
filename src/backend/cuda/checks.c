/* checks.c - what checks see of the network: named intermediates, and layers and heads alone from given inputs. Everything here
 * waits for the device. */
#include <string.h>

#include "backend/cuda/lm.h"
#include "base/memory.h"

static float bf16_float(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Inputs of checks are bf16 values in floats: nearest even for those that are not. */
static uint16_t float_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

static size_t size_of(enum th_cuda_kind kind)
{
    return kind == TH_CUDA_BF16 ? 2 : kind == TH_CUDA_U8 ? 1 : 4;
}

static float value_at(const void *values, enum th_cuda_kind kind, size_t i)
{
    switch (kind) {
    case TH_CUDA_BF16: return bf16_float(((const uint16_t *)values)[i]);
    case TH_CUDA_F32: return ((const float *)values)[i];
    case TH_CUDA_I32: return (float)((const int32_t *)values)[i];
    default: return (float)((const uint8_t *)values)[i];
    }
}

/* floats [columns][cols] = values [columns][stride] in device memory */
static thespis_status download(struct th_cuda *cuda, const void *values, enum th_cuda_kind kind, int columns, int stride, int cols,
                               float *floats, thespis_error *error)
{
    const size_t bytes = (size_t)columns * (size_t)stride * size_of(kind);
    unsigned char *copy;
    TH_TRY(TH_ALLOC(&copy, bytes, "an intermediate", error));
    cudaError_t code = cudaStreamSynchronize(cuda->stream);
    if (code == cudaSuccess) code = cudaMemcpy(copy, values, bytes, cudaMemcpyDeviceToHost);
    for (int c = 0; c < columns && code == cudaSuccess; c++)
        for (int i = 0; i < cols; i++)
            floats[(size_t)c * (size_t)cols + (size_t)i] = value_at(copy, kind, (size_t)c * (size_t)stride + (size_t)i);
    th_free(copy);
    return th_cuda_status(code, "an intermediate", error);
}

/* bf16 [columns][cols] in device memory = floats */
static thespis_status upload(struct th_cuda *cuda, const float *floats, int columns, int cols, uint16_t *values,
                             thespis_error *error)
{
    const size_t count = (size_t)columns * (size_t)cols;
    uint16_t *copy;
    TH_TRY(TH_ALLOC(&copy, count, "an input", error));
    for (size_t i = 0; i < count; i++) copy[i] = float_bf16(floats[i]);
    cudaError_t code = cudaStreamSynchronize(cuda->stream);
    if (code == cudaSuccess) code = cudaMemcpy(values, copy, count * sizeof *copy, cudaMemcpyHostToDevice);
    th_free(copy);
    return th_cuda_status(code, "an input", error);
}

/* ---- probes ---------------------------------------------------------------------------------------------------------------------
 */

thespis_status th_cuda_probe(struct th_cuda *cuda, const struct th_cuda_batch *batch, const char *name, int layer, int cols,
                             enum th_cuda_kind kind, const void *values, int stride, thespis_error *error)
{
    if (cuda->probe == NULL || batch->count < 1) return THESPIS_OK;
    const struct th_cuda_pass *pass = cuda->forward->host_pass;
    const struct th_cuda_column *columns = &pass->column[batch->tower ? pass->capacity : 0];
    float *floats;
    TH_TRY(TH_ALLOC(&floats, (size_t)batch->count * (size_t)cols, "an intermediate", error));
    thespis_status status = download(cuda, values, kind, batch->count, stride, cols, floats, error);
    for (int c = 0, rows; c < batch->count && status == THESPIS_OK; c += rows) {
        rows = batch->sequential ? batch->count : 1;
        cuda->probe(cuda->probe_context, columns[c].lane, name, layer, columns[c].position, rows, cols,
                    floats + (size_t)c * (size_t)cols);
    }
    th_free(floats);
    return status;
}

/* ---- layers
 * ---------------------------------------------------------------------------------------------------------------------- */

/* Rows row0.. of a lane as the columns of both kinds. */
static void describe_rows(struct th_cuda *cuda, int lane, int row0, int n, const int32_t *frames, const int32_t *labels)
{
    const size_t width = (size_t)cuda->model->config.frame_width;
    struct th_cuda_pass *pass = cuda->forward->host_pass;
    *pass = (struct th_cuda_pass){.backbone_count = n, .tower_count = n, .capacity = n};
    for (int c = 0; c < n; c++) {
        struct th_cuda_column *column = &pass->column[c];
        memset(column, 0, sizeof *column);
        column->lane = lane;
        column->position = row0 + c;
        column->forced = 1;
        if (frames != NULL) memcpy(column->input, frames + (size_t)c * width, width * sizeof(int32_t));
        if (labels != NULL) memcpy(column->label, labels + (size_t)c * width, width * sizeof(int32_t));
        pass->column[n + c] = *column;
    }
}

static thespis_status run_layer(struct th_cuda *cuda, int part, int layer, int n, const float *in, float *out, thespis_error *error)
{
    struct th_cuda_forward *f = cuda->forward;
    const int hidden = cuda->model->config.backbone.hidden;
    const struct th_cuda_batch batch = {.tower = part == 1, .columns = n, .count = n, .sequential = 1};
    uint16_t *inputs[] = {f->stream, f->handed, f->space[0].normed};
    TH_TRY(upload(cuda, in, n, hidden, inputs[part], error));
    TH_TRY(th_cuda_upload_pass(cuda, n, error));
    if (part == 0) {
        TH_TRY(th_cuda_backbone_layer(cuda, &batch, layer, error));
    } else if (part == 2) {
        TH_TRY(th_cuda_moe_layer(cuda, &batch, layer, 1, error));
    } else {
        TH_TRY(th_cuda_tower_layer(cuda, &batch, layer, 0, error));
        TH_TRY(th_cuda_tower_hand_on(cuda, &batch, layer, error));
    }
    const uint16_t *outputs[] = {f->stream, f->handed, f->branch};
    return download(cuda, outputs[part], TH_CUDA_BF16, n, hidden, hidden, out, error);
}

static thespis_status check_layer(const struct th_cuda *cuda, int part, int layer, int row0, int n, const int32_t *frames,
                                  const int32_t *labels, thespis_error *error)
{
    const int layers = part == 1 ? cuda->tower_layers : cuda->model->config.backbone.layers;
    if (part < 0 || part > 2 || layer < 0 || layer >= layers)
        return th_fail(error, THESPIS_INVALID, "layer %d of part %d: part is 0, 1 or 2, and this part has %d layers", layer, part,
                       layers);
    if (row0 < 0 || n < 1 || row0 > cuda->max_rows - n)
        return th_fail(error, THESPIS_LIMIT, "rows %d to %d of a lane of %d", row0, row0 + n - 1, cuda->max_rows);
    if (part == 1 && (frames == NULL || labels == NULL))
        return th_fail(error, THESPIS_INVALID, "a tower layer needs frames and labels");
    return THESPIS_OK;
}

thespis_status th_cuda_layer(struct th_backend *backend, int lane, int part, int layer, int row0, int n, const float *in,
                             const int32_t *frames, const int32_t *labels, float *out, thespis_error *error)
{
    struct th_cuda *cuda = th_cuda_of(backend);
    TH_TRY(th_cuda_check_lane(cuda, lane, error));
    TH_TRY(check_layer(cuda, part, layer, row0, n, frames, labels, error));
    TH_TRY(th_cuda_enter(cuda, error));
    const int piece = cuda->forward->capacity, width = cuda->model->config.frame_width;
    thespis_status status = THESPIS_OK;
    for (int done = 0; done < n && status == THESPIS_OK; done += piece) {
        int count = n - done < piece ? n - done : piece;
        size_t values = (size_t)done * (size_t)cuda->model->config.backbone.hidden, codes = (size_t)done * (size_t)width;
        describe_rows(cuda, lane, row0 + done, count, part == 1 ? frames + codes : NULL, part == 1 ? labels + codes : NULL);
        status = run_layer(cuda, part, layer, count, in + values, out + values, error);
    }
    return th_cuda_leave(cuda, status);
}

/* ---- heads
 * ----------------------------------------------------------------------------------------------------------------------- */

static thespis_status run_head(struct th_cuda *cuda, int part, int n, const float *in, float *out, thespis_error *error)
{
    const struct th_config *config = &cuda->model->config;
    struct th_cuda_forward *f = cuda->forward;
    const int hidden = config->backbone.hidden;
    TH_TRY(upload(cuda, in, n, hidden, part == 0 ? f->stream : f->handed, error));
    th_cuda_go_on(cuda, &f->space[0], 1);
    if (part == 0) {
        TH_TRY(th_cuda_norm_rows(cuda, n, f->stream, cuda->weights.final_norm, config->backbone.norm_eps, f->final, error));
        return download(cuda, f->final, TH_CUDA_BF16, n, hidden, hidden, out, error);
    }
    TH_TRY(part == 1 ? th_cuda_candidate_logits(cuda, n, error) : th_cuda_code_logits(cuda, n, part - 2, 0, error));
    const int count = part == 1 ? config->candidates : config->tower.codebook_size;
    return download(cuda, f->logits, TH_CUDA_BF16, n, f->logit_stride, count, out, error);
}

thespis_status th_cuda_head(struct th_backend *backend, int part, int n, const float *in, float *out, thespis_error *error)
{
    struct th_cuda *cuda = th_cuda_of(backend);
    TH_TRY(th_cuda_check_lane(cuda, 0, error));
    const struct th_config *config = &cuda->model->config;
    if (part < 0 || part >= 2 + config->tower.residual_layers)
        return th_fail(error, THESPIS_INVALID, "head %d: 0 is the final norm, 1 the candidates, 2 to %d the codes", part,
                       1 + config->tower.residual_layers);
    TH_TRY(th_cuda_enter(cuda, error));
    const int piece = cuda->forward->capacity;
    const size_t width = part == 0   ? (size_t)config->backbone.hidden
                         : part == 1 ? (size_t)config->candidates
                                     : (size_t)config->tower.codebook_size;
    thespis_status status = THESPIS_OK;
    for (int done = 0; done < n && status == THESPIS_OK; done += piece)
        status = run_head(cuda, part, n - done < piece ? n - done : piece, in + (size_t)done * (size_t)config->backbone.hidden,
                          out + (size_t)done * width, error);
    return th_cuda_leave(cuda, status);
}
