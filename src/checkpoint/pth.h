/* pth.h - the named tensors of a file written by torch.save: a zip of stored entries whose pickle is read without running anything.
 *
 * Checked before any number is looked at: the archive (zip.h), the pickle (pickle.h), that each storage's entry has exactly the
 * bytes its count asks for, that each view lies in its storage, that names are printable and appear once. */
#ifndef THESPIS_CHECKPOINT_PTH_H
#define THESPIS_CHECKPOINT_PTH_H

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/zip.h"

/* A view of a storage; borrows from the file that holds it. */
struct th_pth_tensor {
    const char *name;
    enum th_dtype dtype;
    int rank;
    int64_t shape[TH_TENSOR_MAX_RANK], strides[TH_TENSOR_MAX_RANK]; /* strides in items, never negative */
    int64_t items;                                                  /* product of shape */
    const uint8_t *data;                                            /* the first item; may be misaligned */
    int64_t offset;                                                 /* of the first item in the storage, in items */
    const struct th_zip_entry *storage;
    int contiguous; /* row-major without holes */
};

struct th_pth {
    struct th_map map;
    struct th_zip zip;
    size_t count;
    struct th_pth_tensor *tensors; /* sorted by name */
    char *names;
};

/* Training checkpoints are unwrapped: a top dictionary with a "state_dict" is replaced by that; if any name holds "generator.",
 * only such entries stay, without that part. */
thespis_status th_pth_open(const char *path, struct th_pth *pth, thespis_error *error);
/* The same for a file in memory, which must outlive *pth; `label` is how messages call it. */
thespis_status th_pth_read(const uint8_t *data, size_t bytes, const char *label, struct th_pth *pth, thespis_error *error);
void th_pth_close(struct th_pth *pth);
const struct th_pth_tensor *th_pth_find(const struct th_pth *pth, const char *name);

/* Copies the items in row-major order to `items`, which has room for tensor->items of the tensor's type. */
void th_pth_gather(const struct th_pth_tensor *tensor, void *items);

#endif
