/* safetensors.h - one mapped safetensors file whose whole header was checked before any of its bytes are used. */
#ifndef THESPIS_CHECKPOINT_SAFETENSORS_H
#define THESPIS_CHECKPOINT_SAFETENSORS_H

#include <jansson.h>

#include "base/error.h"
#include "base/file.h"

#define TH_TENSOR_MAX_RANK 4

enum th_dtype {
    TH_BOOL,
    TH_U8,
    TH_I8,
    TH_E4M3,
    TH_E5M2,
    TH_I16,
    TH_U16,
    TH_F16,
    TH_BF16,
    TH_I32,
    TH_U32,
    TH_F32,
    TH_F64,
    TH_I64,
    TH_U64
};

const char *th_dtype_name(enum th_dtype dtype); /* "BF16", "F8_E4M3", ... */
size_t th_dtype_size(enum th_dtype dtype);

/* A named array inside a map; borrows from the file that holds it. */
struct th_tensor {
    const char *name;
    enum th_dtype dtype;
    int rank;
    int64_t shape[TH_TENSOR_MAX_RANK];
    const void *data; /* row-major; aligned at least to its item size */
    size_t bytes;
};

struct th_safetensors {
    char *path;
    struct th_map map;
    json_t *metadata; /* object of strings, or NULL */
    size_t count;
    struct th_tensor *tensors; /* sorted by name */
};

/* Refuses by name: a header longer than the file, unknown dtypes, offsets out of order or past the end, overlaps, gaps, shapes
 * whose size is not the span, duplicate names, misaligned tensors, trailing bytes. */
thespis_status th_safetensors_open(const char *path, struct th_safetensors *file, thespis_error *error);
void th_safetensors_close(struct th_safetensors *file);
const struct th_tensor *th_safetensors_find(const struct th_safetensors *file, const char *name);

/* A tensor to be written. Data is read while writing. */
struct th_tensor_out {
    const char *name;
    enum th_dtype dtype;
    int rank;
    int64_t shape[TH_TENSOR_MAX_RANK];
    const void *data;
};
/* Writes a file whose data starts at a multiple of 64 bytes. Tensors whose size is a multiple of 64 come first, in the order given,
 * then the others by falling item size: the format allows no padding between them. metadata: object of strings or NULL. */
thespis_status th_safetensors_write(const char *path, const struct th_tensor_out *tensors, size_t count, const json_t *metadata,
                                    thespis_error *error);

#endif
