/* lanes.c - the state of requests: where it lies on the device, begin, copy, resample. */
#include <string.h>

#include "backend/cuda/cuda.h"
#include "base/memory.h"

thespis_status th_cuda_check_lane(const struct th_cuda *cuda, int lane, thespis_error *error)
{
    if (cuda->model == NULL) return th_fail(error, THESPIS_UNSUPPORTED, "lanes need a language model, and only a codec was opened");
    if (lane < 0 || lane >= cuda->lane_count)
        return th_fail(error, THESPIS_INVALID, "lane %d was named, there are %d", lane, cuda->lane_count);
    return THESPIS_OK;
}

thespis_status th_cuda_check_begun(const struct th_cuda *cuda, int lane, thespis_error *error)
{
    TH_TRY(th_cuda_check_lane(cuda, lane, error));
    if (!cuda->lanes[lane].begun) return th_fail(error, THESPIS_INVALID, "lane %d was not begun", lane);
    return THESPIS_OK;
}

/* ---- where things lie ----------------------------------------------------------------------------------------------------------
 */

static size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Recurrent state comes first, so that a lane begins with one fill. */
static struct th_cuda_state_layout lay_out(const struct th_cuda *cuda, int max_rows)
{
    const struct th_backbone_config *b = &cuda->model->config.backbone;
    const struct th_tower_config *t = &cuda->model->config.tower;
    struct th_cuda_state_layout l = {0};
    l.delta_bytes = aligned((size_t)b->value_heads * (size_t)b->key_dim * (size_t)b->value_dim * sizeof(float));
    l.conv_bytes = aligned(TH_CUDA_CONV_SLOTS * (size_t)cuda->channels * sizeof(uint16_t));
    l.backbone_bytes = aligned((size_t)max_rows * (size_t)b->kv_heads * (size_t)b->head_dim * sizeof(uint16_t));
    l.tower_bytes = aligned((size_t)max_rows * (size_t)t->kv_heads * (size_t)t->head_dim * sizeof(uint16_t));
    l.delta_at = 0;
    l.conv_at = l.delta_at + (size_t)cuda->delta_layers * l.delta_bytes;
    l.hidden_at = l.conv_at + (size_t)cuda->delta_layers * l.conv_bytes;
    l.backbone_at = l.hidden_at + aligned((size_t)b->hidden * sizeof(uint16_t));
    l.tower_at = l.backbone_at + 2 * (size_t)cuda->attention_layers * l.backbone_bytes;
    l.stride = l.tower_at + 2 * (size_t)cuda->tower_layers * l.tower_bytes;
    return l;
}

static unsigned char *lane_state(const struct th_cuda *cuda, int lane)
{
    return cuda->state + (size_t)lane * cuda->layout.stride;
}

/* ---- making them ---------------------------------------------------------------------------------------------------------------
 */

void th_cuda_lanes_release(struct th_cuda *cuda)
{
    th_cuda_forward_close(cuda);
    cudaFree(cuda->state);
    th_free(cuda->lanes);
    cuda->state = NULL;
    cuda->lanes = NULL;
    cuda->lane_count = cuda->max_rows = 0;
}

/* Sums before anything is allocated: what a device cannot hold is refused with its parts. */
static thespis_status check_room(const struct th_cuda *cuda, int count, int max_rows, size_t stride, thespis_error *error)
{
    const double gib = 1073741824.0, lanes = (double)count * (double)stride;
    const double work = (double)th_cuda_forward_bytes(cuda, count, max_rows);
    size_t left, total;
    TH_CUDA(cudaMemGetInfo(&left, &total), "the device's memory", error);
    if (lanes + work <= (double)left) return THESPIS_OK;
    return th_fail(
        error, THESPIS_MEMORY,
        "%d lanes of %d rows need %.2f GiB and %.2f GiB of work space; %s has %.2f GiB free of %.2f GiB: ask for fewer lanes "
        "or rows",
        count, max_rows, lanes / gib, work / gib, cuda->name, (double)left / gib, (double)total / gib);
}

static thespis_status make_lanes(struct th_cuda *cuda, int count, int max_rows, thespis_error *error)
{
    cuda->layout = lay_out(cuda, max_rows);
    TH_TRY(check_room(cuda, count, max_rows, cuda->layout.stride, error));
    TH_TRY(TH_ALLOC(&cuda->lanes, (size_t)count, "lanes", error));
    TH_CUDA(cudaMalloc((void **)&cuda->state, (size_t)count * cuda->layout.stride), "lanes", error);
    cuda->lane_count = count;
    cuda->max_rows = max_rows;
    return th_cuda_forward_open(cuda, error);
}

thespis_status th_cuda_lanes(struct th_backend *backend, int count, int max_rows, thespis_error *error)
{
    struct th_cuda *cuda = th_cuda_of(backend);
    if (cuda->model == NULL) return th_fail(error, THESPIS_UNSUPPORTED, "lanes need a language model, and only a codec was opened");
    const int most = cuda->model->config.backbone.max_positions;
    if (count < 1 || count > 4096) return th_fail(error, THESPIS_INVALID, "%d lanes were asked for, must be 1 to 4096", count);
    if (max_rows < 2 || max_rows > most)
        return th_fail(error, THESPIS_INVALID, "max_rows is %d, must be 2 to %d (max_position_embeddings)", max_rows, most);
    TH_TRY(th_cuda_enter(cuda, error));
    th_cuda_lanes_release(cuda);
    thespis_status status = make_lanes(cuda, count, max_rows, error);
    if (status != THESPIS_OK) th_cuda_lanes_release(cuda);
    return th_cuda_leave(cuda, status);
}

/* ---- their life ----------------------------------------------------------------------------------------------------------------
 */

thespis_status th_cuda_begin(struct th_backend *backend, int number, const struct th_sampling *sampling, thespis_error *error)
{
    struct th_cuda *cuda = th_cuda_of(backend);
    TH_TRY(th_cuda_check_lane(cuda, number, error));
    TH_TRY(th_cuda_enter(cuda, error));
    struct th_cuda_lane *lane = &cuda->lanes[number];
    memset(lane, 0, sizeof *lane);
    /* rows of a cache are written before they are read; only what recurs must be zero */
    cudaError_t code = cudaMemsetAsync(lane_state(cuda, number), 0, cuda->layout.hidden_at, cuda->stream);
    TH_TRY(th_cuda_leave(cuda, th_cuda_status(code, "beginning a lane", error)));
    lane->begun = 1;
    th_sampler_begin(&lane->sampler, sampling);
    return THESPIS_OK;
}

thespis_status th_cuda_resample(struct th_backend *backend, int number, const struct th_sampling *sampling, thespis_error *error)
{
    struct th_cuda *cuda = th_cuda_of(backend);
    TH_TRY(th_cuda_check_begun(cuda, number, error));
    struct th_cuda_lane *lane = &cuda->lanes[number];
    struct th_sampler old = lane->sampler;
    th_sampler_begin(&lane->sampler, sampling);
    memcpy(lane->sampler.window, old.window, sizeof old.window); /* rows that were seen stay seen */
    lane->ended = 0;
    return THESPIS_OK;
}

/* Rows of every cache of one kind: keys and values of all layers lie one pitch apart. */
static thespis_status copy_rows(const struct th_cuda *cuda, unsigned char *to, const unsigned char *from, size_t pitch, int rows,
                                size_t row_bytes, int layers, thespis_error *error)
{
    if (rows == 0 || layers == 0) return THESPIS_OK;
    TH_CUDA(cudaMemcpy2DAsync(to, pitch, from, pitch, (size_t)rows * row_bytes, 2 * (size_t)layers, cudaMemcpyDeviceToDevice,
                              cuda->stream),
            "copying a lane", error);
    return THESPIS_OK;
}

static thespis_status copy_state(const struct th_cuda *cuda, int from_number, int to_number, thespis_error *error)
{
    const struct th_backbone_config *b = &cuda->model->config.backbone;
    const struct th_tower_config *t = &cuda->model->config.tower;
    const struct th_cuda_state_layout *l = &cuda->layout;
    const struct th_cuda_lane *lane = &cuda->lanes[from_number];
    const unsigned char *from = lane_state(cuda, from_number);
    unsigned char *to = lane_state(cuda, to_number);
    TH_CUDA(cudaMemcpyAsync(to, from, l->backbone_at, cudaMemcpyDeviceToDevice, cuda->stream), "copying a lane", error);
    TH_TRY(copy_rows(cuda, to + l->backbone_at, from + l->backbone_at, l->backbone_bytes, lane->backbone_rows,
                     (size_t)b->kv_heads * (size_t)b->head_dim * sizeof(uint16_t), cuda->attention_layers, error));
    return copy_rows(cuda, to + l->tower_at, from + l->tower_at, l->tower_bytes, lane->tower_rows,
                     (size_t)t->kv_heads * (size_t)t->head_dim * sizeof(uint16_t), cuda->tower_layers, error);
}

thespis_status th_cuda_copy(struct th_backend *backend, int from, int to, thespis_error *error)
{
    struct th_cuda *cuda = th_cuda_of(backend);
    TH_TRY(th_cuda_check_begun(cuda, from, error));
    TH_TRY(th_cuda_check_lane(cuda, to, error));
    if (from == to) return THESPIS_OK;
    TH_TRY(th_cuda_enter(cuda, error));
    cuda->lanes[to].begun = 0; /* half a copy is no lane */
    TH_TRY(th_cuda_leave(cuda, copy_state(cuda, from, to, error)));
    cuda->lanes[to] = cuda->lanes[from];
    return THESPIS_OK;
}

int th_cuda_rows(const struct th_backend *backend, int lane)
{
    const struct th_cuda *cuda = (const struct th_cuda *)backend;
    if (th_cuda_check_lane(cuda, lane, NULL) != THESPIS_OK) return 0;
    return cuda->lanes[lane].rows;
}
