/* lm.h - the language model's host side on CUDA: its work space, and the functions that write the network out. Rows that pass
 * together are the columns of a batch; every buffer of activations is [columns][width] bf16 in device memory. */
#ifndef THESPIS_BACKEND_CUDA_LM_H
#define THESPIS_BACKEND_CUDA_LM_H

#include "backend/cuda/cuda.h"
#include "backend/cuda/forward.h"

/* cos and sin of position * theta^(-2i/rotary_dim), on the device. */
struct th_cuda_rope {
    int pairs;
    float *cosine, *sine; /* [max_rows][pairs] */
};

/* The columns that kernels are launched for. */
struct th_cuda_batch {
    int tower;      /* the pass's tower columns, else its backbone columns */
    int columns;    /* launched: the bucket, at least the columns that are there */
    int count;      /* those that are there, as the host knows; not used while a graph is made */
    int sequential; /* consecutive rows of one lane */
    int splits;     /* of attention, where not sequential */
};

/* What a step is launched for. */
struct th_cuda_step_shape {
    int columns; /* a power of two */
    int splits;  /* of attention */
    int ahead;   /* 1: every lane's hidden is there; the new frame goes through the backbone while its last codes are drawn.
                    0: backbone first, for columns that need it, and no further (while something is probed) */
};

/* What a row's way through a layer is written into. Two of them: of the backbone and of all prompts, and of those tower layers that
 * run beside the backbone. */
struct th_cuda_space {
    uint16_t *normed;             /* [C][2H] inputs of products after their norm */
    uint16_t *rows;               /* [C][row_stride] what attention and DeltaNet take */
    uint16_t *attended;           /* [C][heads * head_dim or value_heads * value_dim] */
    uint16_t *inner;              /* [C][tower inner or shared_inner] */
    float *partial;               /* of attention, [steps] columns */
    unsigned *arrived;            /* of attention, [steps][kv_heads] */
    struct th_cuda_launch launch; /* of the next kernel */
    int late;                     /* so many of the next kernels do not start early */
};

/* A captured step. */
struct th_cuda_graph {
    struct th_cuda_step_shape shape;
    cudaGraphExec_t exec;
};
#define TH_CUDA_GRAPHS 96

/* Work space and what belongs to the lanes but is not their state. Widths are the model's; C is `capacity`. */
struct th_cuda_forward {
    int capacity; /* most columns of a pass */
    int steps;    /* most columns of a step */
    int splits;   /* of max_rows */
    int row_stride, logit_stride, router_stride;
    struct th_cuda_rope backbone_rope, tower_rope;

    struct th_cuda_pass *pass, *host_pass;    /* device; pinned */
    struct th_cuda_drawn *drawn, *host_drawn; /* [steps]: device; pinned, written by the last draw */

    struct th_cuda_space space[2], *at; /* at: of the kernels being launched */
    cudaStream_t beside;                /* of the tower layers that run beside the backbone */
    cudaEvent_t parted, joined;

    uint16_t *stream;   /* [C][H] the backbone's residual stream */
    uint16_t *final;    /* [C][H] after the backbone's final norm */
    uint16_t *handed;   /* [C][H] what a tower layer takes */
    uint16_t *label;    /* [shared layers + 1][C][H] labels of a frame's first layers; the first of them also that of all others */
    uint16_t *tower[2]; /* [C][H] the stream inside a tower layer; layers take turns */
    uint16_t *router;   /* [C][router_stride] */
    uint16_t *logits;   /* [C][logit_stride] */
    uint16_t *branch;   /* [C][H] what the MoE adds, for checks */
    float *shared_open; /* [C] */
    float *scratch;     /* of DeltaNet */
    int32_t *chosen;    /* [C][top_k]; these and the next as in struct th_cuda_moe */
    float *weights, *scales;
    uint8_t *codes;
    uint16_t *act, *parts, *shared;
    int32_t *groups;
    void *memory; /* all of the above that is on the device */

    struct th_cuda_graph graphs[TH_CUDA_GRAPHS];
    int graph_count;
};

static inline const uint16_t *th_cuda_bf16(const void *p)
{
    return (const uint16_t *)p;
}

/* backbone.c */
/* One layer over forward->stream, in place. */
thespis_status th_cuda_backbone_layer(struct th_cuda *cuda, const struct th_cuda_batch *batch, int layer, thespis_error *error);
/* Only its MoE, from the space's normed: into forward->branch, and, with `add`, into the stream. */
thespis_status th_cuda_moe_layer(struct th_cuda *cuda, const struct th_cuda_batch *batch, int layer, int alone,
                                 thespis_error *error);
/* The pass's backbone columns -> forward->final. drawn: their frames are the labels that the tower's columns have just drawn. */
thespis_status th_cuda_backbone(struct th_cuda *cuda, const struct th_cuda_batch *batch, int drawn, thespis_error *error);
/* forward->handed -> forward->logits */
thespis_status th_cuda_candidate_logits(struct th_cuda *cuda, int columns, thespis_error *error);
/* out = norm(x), [columns][H] */
thespis_status th_cuda_norm_rows(struct th_cuda *cuda, int columns, const uint16_t *x, const float *w, double eps, uint16_t *out,
                                 thespis_error *error);
/* Fills in what backbone and tower have in common, and runs it: rows -> attended. */
thespis_status th_cuda_attend(struct th_cuda *cuda, const struct th_cuda_batch *batch, struct th_cuda_attention *attention,
                              size_t cache_at, size_t cache_bytes, thespis_error *error);

/* tower.c */
/* Layer t from forward->handed, or, with `follow`, from what layer t - 1 left, normed on the way; leaves forward->tower[t % 2],
 * whose norm is what it hands on. */
thespis_status th_cuda_tower_layer(struct th_cuda *cuda, const struct th_cuda_batch *batch, int t, int follow,
                                   thespis_error *error);
/* What makes the labels of layer t, but for the columns. */
struct th_cuda_label th_cuda_label_of(const struct th_cuda *cuda, int t);
/* The number of layers, from the first, whose labels a step's main draw makes; 0: no draw makes any. */
int th_cuda_early_labels(const struct th_cuda *cuda);
/* forward->handed = what layer t hands on; probed. */
thespis_status th_cuda_tower_hand_on(struct th_cuda *cuda, const struct th_cuda_batch *batch, int t, thespis_error *error);
/* All layers, when the labels are known. */
thespis_status th_cuda_tower(struct th_cuda *cuda, const struct th_cuda_batch *batch, thespis_error *error);
/* Logits of head r from forward->handed, or, with `norm`, from what its layer left, which becomes forward->handed. */
thespis_status th_cuda_code_logits(struct th_cuda *cuda, int columns, int head, int norm, thespis_error *error);

/* work.c */
/* Goes on in that space, on its stream; the next `late` kernels wait for all that came before, those after them may start early. */
void th_cuda_go_on(struct th_cuda *cuda, struct th_cuda_space *space, int late);
/* The launch of the next kernel. */
const struct th_cuda_launch *th_cuda_next(struct th_cuda *cuda);
/* Host pass -> device: header and columns of a pass of `columns` (the bucket). */
thespis_status th_cuda_upload_pass(struct th_cuda *cuda, int columns, thespis_error *error);

/* checks.c */
enum th_cuda_kind { TH_CUDA_BF16, TH_CUDA_F32, TH_CUDA_I32, TH_CUDA_U8 };
/* Hands [count][cols] of a device buffer to the probe, if there is one, lane by lane. */
thespis_status th_cuda_probe(struct th_cuda *cuda, const struct th_cuda_batch *batch, const char *name, int layer, int cols,
                             enum th_cuda_kind kind, const void *values, int stride, thespis_error *error);

/* graphs.c */
/* The step that host_pass describes, from the upload to the frames in host_drawn. One graph a shape where the device makes graphs
 * and nothing is probed. */
thespis_status th_cuda_run_step(struct th_cuda *cuda, const struct th_cuda_step_shape *shape, thespis_error *error);
thespis_status th_cuda_graphs_prepare(struct th_cuda *cuda, thespis_error *error); /* those that a first request needs */
void th_cuda_graphs_release(struct th_cuda_forward *forward);
/* run.c: that step's kernels, one after the other. */
thespis_status th_cuda_step_kernels(struct th_cuda *cuda, const struct th_cuda_step_shape *shape, thespis_error *error);

#endif
