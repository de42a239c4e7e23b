/* cuda.h - the CUDA backend's own struct: what its files share. Kernels see none of it: launchers take pointers and numbers. */
#ifndef THESPIS_BACKEND_CUDA_CUDA_H
#define THESPIS_BACKEND_CUDA_CUDA_H

#include "backend/backend.h"
#include "backend/cuda/runtime.h"
#include "backend/cuda/weights.h"

#define TH_CUDA_MOST_LANES 160  /* 64 that step, voice slots and spares */
#define TH_CUDA_STEP_COLUMNS 64 /* most lanes of one step */
#define TH_CUDA_PIECE 1024      /* most rows of a prompt that pass together */
#define TH_CUDA_CONV_SLOTS 4    /* inputs of DeltaNet's convolution that a lane keeps: row p in slot p % 4 */

struct th_cuda_forward; /* forward.h: work space, rope tables and graphs of the language model; NULL without lanes */
struct th_cuda_codec;   /* codec.h: weights and work space of the codec; NULL without a codec */

/* Where things lie in a lane's state; bytes. Layers are counted among those of their kind (th_cuda_layer.state). All of a lane's
 * device state is one stretch of `stride` bytes at state + lane * stride; every part begins at a multiple of 256. */
struct th_cuda_state_layout {
    size_t stride;
    size_t hidden_at;                   /* bf16 [H]: row backbone_rows-1 after the final norm */
    size_t backbone_at, backbone_bytes; /* keys of attention layer a at backbone_at + 2a * backbone_bytes, values one further:
                                           bf16 [max_rows][kv_heads * head_dim], keys normed and rotated */
    size_t tower_at, tower_bytes;       /* the same for tower layer t */
    size_t delta_at, delta_bytes;       /* f32 [value_heads][key_dim * value_dim] of DeltaNet layer d at delta_at + d * delta_bytes;
                                           the order inside a head is the kernel's */
    size_t conv_at, conv_bytes;         /* bf16 [4][channels] of DeltaNet layer d; zero before row 0 */
};

/* The state of one request that the host keeps; names and meaning as in cpu/lm.h. */
struct th_cuda_lane {
    int begun, ended;
    int rows, backbone_rows, tower_rows, prompt_rows;
    int32_t newest[1 + TH_MAX_CODEBOOKS]; /* row rows-1 */
    struct th_sampler sampler;
};

struct th_cuda {
    struct th_backend base;       /* first: a th_backend * is a th_cuda * */
    const struct th_model *model; /* NULL: codec alone */
    const struct th_codec *codec; /* NULL: model alone */
    struct th_backend_options options;
    int device;
    char name[256];               /* of the device, as the driver has it */
    int capability;               /* 10 * major + minor: 90 */
    int processors;               /* multiprocessors */
    int unified;                  /* device and host share memory */
    int lost;                     /* the device failed: nothing works until the backend is opened again */
    cudaStream_t stream;          /* of the thread that drives lanes; the codec makes its own */
    struct th_cuda_launch launch; /* on that stream */

    struct th_cuda_weights weights; /* when model != NULL */

    int lane_count, max_rows;
    int attention_layers, delta_layers, tower_layers, channels; /* channels of DeltaNet's convolution */
    struct th_cuda_lane *lanes;                                 /* [lane_count] */
    struct th_cuda_state_layout layout;
    unsigned char *state; /* device [lane_count][layout.stride] */

    struct th_cuda_forward *forward;
    struct th_cuda_codec *codec_part;
    th_probe probe; /* NULL: none */
    void *probe_context;
};

static inline struct th_cuda *th_cuda_of(struct th_backend *backend)
{
    return (struct th_cuda *)backend;
}
static inline unsigned char *th_cuda_lane_state(const struct th_cuda *cuda, int lane)
{
    return cuda->state + (size_t)lane * cuda->layout.stride;
}

/* At the head of every entry of th_backend_ops that may fail: the device of this thread, and THESPIS_DEVICE when it is lost. */
thespis_status th_cuda_enter(struct th_cuda *cuda, thespis_error *error);
/* At the end of one that failed: remembers a device that cannot work any more. Returns status. */
thespis_status th_cuda_leave(struct th_cuda *cuda, thespis_status status);

/* load.c: everything in cuda->weights. Refuses shapes that the kernels lack by name, then sizes by their sum, before it allocates.
 */
thespis_status th_cuda_load(struct th_cuda *cuda, thespis_error *error);
void th_cuda_unload(struct th_cuda *cuda);
/* THESPIS_UNSUPPORTED with the field's name when the kernels lack this model's shape. */
thespis_status th_cuda_supports(const struct th_model *model, thespis_error *error);

/* lanes.c: these and the state; entries of th_backend_ops. th_cuda_check_lane: a lane that is there. */
thespis_status th_cuda_lanes(struct th_backend *backend, int count, int max_rows, thespis_error *error);
void th_cuda_lanes_release(struct th_cuda *cuda);
thespis_status th_cuda_begin(struct th_backend *backend, int lane, const struct th_sampling *sampling, thespis_error *error);
thespis_status th_cuda_copy(struct th_backend *backend, int from, int to, thespis_error *error);
thespis_status th_cuda_resample(struct th_backend *backend, int lane, const struct th_sampling *sampling, thespis_error *error);
int th_cuda_rows(const struct th_backend *backend, int lane);
thespis_status th_cuda_check_lane(const struct th_cuda *cuda, int lane, thespis_error *error);
thespis_status th_cuda_check_begun(const struct th_cuda *cuda, int lane, thespis_error *error);

/* run.c: bytes of device memory that `forward` takes for these lanes; makes it; gives it back (also a half made one). The state of
 * the lanes and cuda->layout are there when it is made. */
uint64_t th_cuda_forward_bytes(const struct th_cuda *cuda, int lanes, int max_rows);
thespis_status th_cuda_forward_open(struct th_cuda *cuda, thespis_error *error);
void th_cuda_forward_close(struct th_cuda *cuda);
/* run.c and checks.c: entries of th_backend_ops. */
thespis_status th_cuda_feed(struct th_backend *backend, int lane, const int32_t *rows, int n, thespis_error *error);
thespis_status th_cuda_step(struct th_backend *backend, struct th_step *steps, int n, thespis_error *error);
thespis_status th_cuda_layer(struct th_backend *backend, int lane, int part, int layer, int row0, int n, const float *in,
                             const int32_t *frames, const int32_t *labels, float *out, thespis_error *error);
thespis_status th_cuda_head(struct th_backend *backend, int part, int n, const float *in, float *out, thespis_error *error);

/* limit.c: entry of th_backend_ops. */
thespis_status th_cuda_bound(struct th_backend *backend, int rows, struct th_backend_bound *bound, thespis_error *error);

/* codec_*.c: weights of cuda->codec to the device; bytes of it; the last five are entries of th_backend_ops. */
thespis_status th_cuda_codec_prepare(struct th_cuda *cuda, thespis_error *error); /* sets codec_part */
void th_cuda_codec_release(struct th_cuda *cuda);
uint64_t th_cuda_codec_bytes(const struct th_cuda *cuda);
thespis_status th_cuda_codec_open(struct th_backend *backend, struct th_codec_stream **stream, thespis_error *error);
void th_cuda_codec_close(struct th_backend *backend, struct th_codec_stream *stream);
void th_cuda_codec_reset(struct th_backend *backend, struct th_codec_stream *stream);
thespis_status th_cuda_codec_decode(struct th_backend *backend, struct th_codec_stream *stream, const int32_t *codes, int frames,
                                    float *samples, thespis_error *error);
thespis_status th_cuda_codec_encode(struct th_backend *backend, const float *samples, size_t count, int32_t *codes,
                                    thespis_progress progress, void *context, thespis_error *error);

#endif
