/* model_loader.h - what model*.c share while a model is opened: the table of all tensors, and taking one out of it by name, type
 * and shape. Inside the room only. */
#ifndef THESPIS_CHECKPOINT_MODEL_LOADER_H
#define THESPIS_CHECKPOINT_MODEL_LOADER_H

#include "base/sha256.h"
#include "checkpoint/model.h"

struct th_entry {
    const struct th_tensor *tensor;
    const struct th_safetensors *shard;
    int used; /* taken, or skipped on purpose */
};

struct th_loader {
    struct th_model *model; /* being filled; owns all that is allocated for good */
    const char *folder;
    thespis_error *error;
    struct th_entry *entries; /* [count], of all shards, sorted by name */
    size_t count;
    size_t owned_capacity;
    struct th_sha256 hash; /* of all that names this checkpoint */
};

/* model_shards.c: opens the shards of the folder into the model and fills the table. The loader's entries are the caller's to free,
 * also after a failure. */
thespis_status th_loader_open_shards(struct th_loader *loader);

/* model_network.c: takes every tensor of the network. */
thespis_status th_loader_take_network(struct th_loader *loader);

/* ---- model_loader.c ---------------------------------------------------------------------------------------------------------- */

/* Sorts the table; refuses names that occur twice or belong to no part of the model. */
thespis_status th_loader_index(struct th_loader *loader);
struct th_entry *th_loader_find(const struct th_loader *loader, const char *name);
/* Refuses the first tensor that nobody took. */
thespis_status th_loader_finish(const struct th_loader *loader);

/* Zeroed memory that lives as long as the model. */
thespis_status th_loader_own(struct th_loader *loader, size_t count, size_t size, const char *what, void **block);
#define TH_OWN(loader, pointer, count, what) th_loader_own((loader), (count), sizeof(**(pointer)), (what), (void **)(pointer))

/* The common beginning of some names: "model.language_model.layers.3.mlp." */
struct th_scope {
    struct th_loader *loader;
    char prefix[160];
};
struct th_scope th_scope_make(struct th_loader *loader, const char *format, ...) __attribute__((format(printf, 2, 3)));
int th_scope_has(const struct th_scope *scope, const char *suffix);

/* Types a tensor may have: bits 1u << TH_BF16 and so on. */
#define TH_IS_BF16 (1u << TH_BF16)
#define TH_IS_E4M3 (1u << TH_E4M3)
#define TH_IS_REAL (1u << TH_BF16 | 1u << TH_F32) /* widened to float */

/* The tensor prefix + suffix, which must have the given types and shape; each tensor can be taken once. */
thespis_status th_scope_take(const struct th_scope *scope, const char *suffix, unsigned types, int rank, const int64_t *shape,
                             const struct th_tensor **tensor);
/* A bf16 matrix, as a view. */
thespis_status th_scope_matrix(const struct th_scope *scope, const char *suffix, int rows, int cols, struct th_matrix *matrix);
/* A small array of bf16 or f32, as an owned copy in floats; also adds it to the hash. */
thespis_status th_scope_floats(const struct th_scope *scope, const char *suffix, int rank, const int64_t *shape, float **floats);
/* Widens the values of a taken tensor of TH_IS_REAL. */
void th_tensor_floats(const struct th_tensor *tensor, float *floats);

/* Tables of the above. */
struct th_matrix_rule {
    const char *suffix;
    int rows, cols;
    struct th_matrix *matrix;
};
thespis_status th_scope_matrices(const struct th_scope *scope, const struct th_matrix_rule *rules, size_t count);
struct th_vector_rule {
    const char *suffix;
    int count;
    const float **vector;
};
thespis_status th_scope_vectors(const struct th_scope *scope, const struct th_vector_rule *rules, size_t count);

#define TH_COUNT(array) (sizeof(array) / sizeof *(array))

#endif
