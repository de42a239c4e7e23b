/* backend.h - what a device must do: the frame, not the matrix product.
 *
 * A backend holds the weights of one checkpoint, a number of lanes (the state of one request each) and the codec. All of it is
 * driven by one thread for the lanes and one for the codec; the two may run at the same time. A lane's results depend on what that
 * lane was given and on nothing else: not on n, on the pieces of a prompt, on other lanes, or on threads.
 *
 * Life of a lane:
 *     begin(lane, sampling)          forget everything, set the sampler
 *     feed(lane, rows, n) ...        prompt rows, in pieces of any size; the tower runs one row behind, since its row needs the
 * next row's frame as label step(steps, n) ...             draw the next frame of each named lane (at least two rows must have been
 * fed)
 *
 * A row is W = 1 + codebooks integers: main token, code 0, ..., code codebooks-1. */
#ifndef THESPIS_BACKEND_BACKEND_H
#define THESPIS_BACKEND_BACKEND_H

#include "base/error.h"
#include "checkpoint/codec.h"
#include "checkpoint/model.h"
#include "sampler/sampler.h"

struct th_backend;
struct th_codec_stream;

struct th_backend_options {
    thespis_precision precision;
    thespis_isa isa;
    int device;
    int threads;               /* >= 1 */
    int act_quant;             /* 0: expert inputs are not quantised */
    thespis_progress progress; /* NULL: none; of "load", where loading takes a while */
    void *progress_context;
};

struct th_backend_memory {
    uint64_t weights; /* beside the mapped files */
    uint64_t lanes;
    uint64_t work;  /* scratch */
    uint64_t codec; /* packed codec weights */
};

/* What limits one lane's frame: how fast the device reads, and how much a frame must read. */
struct th_backend_bound {
    double read_bytes;  /* a second, measured by reading the weights */
    double frame_bytes; /* weights and state */
};

/* Largest n of one codec_decode call. */
#define TH_DECODE_MAX_FRAMES 64

/* One lane's part of a step. */
struct th_step {
    int lane;
    const int32_t *forced; /* [W]: this frame is taken instead of a drawn one (teacher forcing); NULL: draw */
    int32_t *frame;        /* [W]: the frame; after end of speech codes are 0 and the lane must not be stepped again */
    thespis_status status; /* out: a failure here is this lane's alone */
    thespis_error error;   /* out, when status is not OK */
};

/* Named intermediates for checks, called on the driving thread while a row passes. `name` is one of
 *     "embed"             [rows][H]            the backbone's input
 *     "backbone_layer"    [rows][H]            residual stream after `layer`
 *     "backbone_final"    [rows][H]            after the final norm
 *     "moe_input"         [rows][H]            `layer`, after the post-attention norm
 *     "moe_router"        [rows][experts]      router logits
 *     "moe_experts"       [rows][top_k]        chosen experts in slot order, as floats
 *     "moe_weights"       [rows][top_k]
 *     "moe_codes"         [rows][H]            E4M3 codes of the input as floats 0..255
 *     "moe_scales"        [rows][H/128]
 *     "candidate_logits"  [rows][candidates]
 *     "tower_layer"       [rows][H]            output of tower layer `layer`
 *     "code_logits"       [rows][codebook_size] of head `layer`
 * for absolute rows row0..row0+rows-1 of `lane`; `values` is [rows][cols]. */
typedef void (*th_probe)(void *context, int lane, const char *name, int layer, int row0, int rows, int cols, const float *values);

struct th_backend_ops {
    const char *name; /* "cpu" */

    void (*close)(struct th_backend *backend);
    /* Makes `count` lanes of max_rows rows each, instead of those there were. Refuses with the sum when memory is short. */
    thespis_status (*lanes)(struct th_backend *backend, int count, int max_rows, thespis_error *error);
    thespis_status (*begin)(struct th_backend *backend, int lane, const struct th_sampling *sampling, thespis_error *error);
    thespis_status (*feed)(struct th_backend *backend, int lane, const int32_t *rows, int n, thespis_error *error);
    /* Fails as a whole only when no lane could be stepped; otherwise each step has its status. */
    thespis_status (*step)(struct th_backend *backend, struct th_step *steps, int n, thespis_error *error);
    /* Makes lane `to` what lane `from` is, rows and sampler: a prompt prefix is then fed on from there. */
    thespis_status (*copy)(struct th_backend *backend, int from, int to, thespis_error *error);
    /* Replaces a lane's sampler settings and restarts its step count, keeping its rows. */
    thespis_status (*resample)(struct th_backend *backend, int lane, const struct th_sampling *sampling, thespis_error *error);
    /* Rows of a lane: fed and drawn. */
    int (*rows)(const struct th_backend *backend, int lane);

    thespis_status (*codec_open)(struct th_backend *backend, struct th_codec_stream **stream, thespis_error *error);
    void (*codec_close)(struct th_backend *backend, struct th_codec_stream *stream);
    void (*codec_reset)(struct th_backend *backend, struct th_codec_stream *stream);
    /* codes [frames][books], clamped to each book's last entry; samples [frames * 2048]. 1 <= frames <= TH_DECODE_MAX_FRAMES. */
    thespis_status (*codec_decode)(struct th_backend *backend, struct th_codec_stream *stream, const int32_t *codes, int frames,
                                   float *samples, thespis_error *error);
    /* samples at 44,100 Hz; codes [ceil(count/2048)][books]. `progress` may be NULL. */
    thespis_status (*codec_encode)(struct th_backend *backend, const float *samples, size_t count, int32_t *codes,
                                   thespis_progress progress, void *context, thespis_error *error);

    void (*probe)(struct th_backend *backend, th_probe probe, void *context); /* NULL switches off */
    /* Runs one layer alone over given inputs, for checks: part 0 the backbone, 1 the tower, 2 only the MoE of a backbone layer,
     * from its normed input to its sum before the residual (no state, frames or labels; the moe_* probes fire). in, out [n][H] are
     * rows row0.. of a lane whose state of this layer they continue; frames [n][W] input frames and labels [n][W] are read for the
     * tower. */
    thespis_status (*layer)(struct th_backend *backend, int lane, int part, int layer, int row0, int n, const float *in,
                            const int32_t *frames, const int32_t *labels, float *out, thespis_error *error);
    /* Final norm and heads alone, for checks: part 0: in = last backbone layer's output -> final norm [n][H]; part 1: in = final
     * norm -> candidate logits; part 2 + r: in = tower layer output -> logits of head r. */
    thespis_status (*head)(struct th_backend *backend, int part, int n, const float *in, float *out, thespis_error *error);
    void (*memory)(const struct th_backend *backend, struct th_backend_memory *memory);
    const char *(*device)(const struct th_backend *backend); /* instruction set or device name */
    /* The bound of a frame after `rows` rows, measured now; NULL: this backend does not tell. */
    thespis_status (*bound)(struct th_backend *backend, int rows, struct th_backend_bound *bound, thespis_error *error);
};

/* Every backend's own struct begins with this. */
struct th_backend {
    const struct th_backend_ops *ops;
};

/* model or codec may be NULL: the other part works alone. Both must outlive the backend. */
thespis_status th_cpu_backend_open(const struct th_model *model, const struct th_codec *codec,
                                   const struct th_backend_options *options, struct th_backend **backend, thespis_error *error);

#ifdef TH_HAVE_CUDA
/* options->device is the GPU's number. Weights are read through `model`, whose pages may be dropped; it must outlive the backend.
 */
thespis_status th_cuda_backend_open(const struct th_model *model, const struct th_codec *codec,
                                    const struct th_backend_options *options, struct th_backend **backend, thespis_error *error);
/* Checks every kernel's promises on a device (backend/cuda/contract.h). `fault`: 0, or the gate that a test breaks. One line for
 * each thing that was checked or is broken; *broken counts the latter. */
typedef void (*th_backend_line)(void *context, const char *line);
/* The register of kernels, a line "THREADS SHARED_BYTES NAME" each; needs no device. */
void th_cuda_list_kernels(th_backend_line line, void *context);
thespis_status th_cuda_check_kernels(int device, int fault, th_backend_line line, void *context, int *broken, thespis_error *error);
/* THESPIS_OK when th_cuda_backend_open has a chance: a device is there, the kernels have this model's shape and precision. */
thespis_status th_cuda_backend_fits(const struct th_model *model, const struct th_backend_options *options, thespis_error *error);
#endif

#endif
