/* codec_weights.h - the codec's tensors under their folded names, from either container. codec.c says which it wants and where
 * their pointers go; only those are then read, folded and checked. */
#ifndef THESPIS_CHECKPOINT_CODEC_WEIGHTS_H
#define THESPIS_CHECKPOINT_CODEC_WEIGHTS_H

#include "base/error.h"
#include "checkpoint/pth.h"
#include "checkpoint/safetensors.h"

/* One folded tensor. A weight-normed one comes from two: weight[i] = direction[i] * gain[i] / |direction[i]|, i over axis 0. */
struct th_codec_weight {
    const char *name;
    enum th_dtype dtype;
    int rank;
    int64_t shape[TH_TENSOR_MAX_RANK];
    int64_t items;
    const struct th_pth_tensor *plain; /* from a pth: the tensor itself or the direction */
    const struct th_pth_tensor *gain;  /* [n, 1, 1], or NULL */
    const float *data;                 /* [items]: from codec.safetensors at once, from a pth after th_codec_weights_load */
    const float **slot;                /* where the pointer goes; NULL until the tensor is claimed */
    int halves;                        /* TH_CODEC_DECODE and/or TH_CODEC_ENCODE: who needs it */
};

struct th_codec_weights {
    int folded;                 /* 1: codec.safetensors, 0: codec.pth */
    struct th_pth pth;          /* when not folded */
    struct th_safetensors file; /* when folded */
    size_t count;
    struct th_codec_weight *weights; /* sorted by name */
    char *names;
    float *owned; /* folded and gathered tensors, each at a multiple of 64 bytes */
    uint64_t owned_bytes, mapped_bytes;
};

/* Opens by content. Of a pth the six buffers (causal masks, rope tables) are left out: their bytes are never looked at. */
thespis_status th_codec_weights_open(const char *path, struct th_codec_weights *weights, thespis_error *error);
void th_codec_weights_close(struct th_codec_weights *weights);
struct th_codec_weight *th_codec_weights_find(const struct th_codec_weights *weights, const char *name);

/* Fills the slots of all claimed tensors that `halves` needs; every value must be finite. */
thespis_status th_codec_weights_load(struct th_codec_weights *weights, int halves, thespis_error *error);
/* The codec's name, see th_codec.id; all tensors must have been claimed. */
thespis_status th_codec_weights_id(const struct th_codec_weights *weights, char id[65], thespis_error *error);

#endif
