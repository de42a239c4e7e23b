/* holes.h - checkpoints that hold the recipes of their large matrices instead of the values, for measuring at full size: a few
 * megabytes on disk, the rest of the file is a hole. tools/make_checkpoint writes them (--holes); the CUDA backend makes the values
 * on the device, bit for bit those that make_checkpoint writes without --holes. Never published, and refused elsewhere. */
#ifndef THESPIS_CHECKPOINT_HOLES_H
#define THESPIS_CHECKPOINT_HOLES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TH_HOLES_KEY "thespis_holes" /* in the shards' __metadata__ */
#define TH_HOLE_MAGIC "thHOLE1"      /* with its zero byte eight bytes */
#define TH_HOLE_LEAST 16384          /* bytes: smaller tensors are written as they are */

enum { TH_HOLE_NORMAL_BF16, TH_HOLE_E4M3 };

/* The first bytes of such a tensor. NORMAL_BF16: bf16(a + b * normal(key, i)), row loud_row doubled. E4M3: codes of b * normal(key,
 * i) under the scale of each 128 x 128 block, largest / 448 (rounded to bf16 if scale_bf16). */
struct th_hole {
    char magic[8];
    uint64_t key;
    int64_t rows, cols, loud_row;
    float a, b;
    int32_t rule, scale_bf16;
    int64_t unused;
};
_Static_assert(sizeof(struct th_hole) == 64, "the layout in files");

static inline int th_hole_read(const void *tensor, struct th_hole *hole)
{
    memcpy(hole, tensor, sizeof *hole);
    return memcmp(hole->magic, TH_HOLE_MAGIC, sizeof hole->magic) == 0;
}

#endif
