/* fuzz_safetensors.c - a shard: every byte of every tensor that is accepted can be read. */
#include "fuzz.h"

#include "checkpoint/safetensors.h"

static void fuzz(const uint8_t *data, size_t size)
{
    struct th_safetensors file;
    thespis_error error;
    unsigned sum = 0;
    uint64_t header = 0, all = 0;
    if (!fuzz_told(th_safetensors_open(fuzz_file(data, size), &file, &error), &error)) return;
    for (size_t i = 0; i < file.count; i++) {
        const struct th_tensor *t = &file.tensors[i];
        size_t items = 1;
        for (int k = 0; k < t->rank; k++) items *= (size_t)t->shape[k];
        if (items * th_dtype_size(t->dtype) != t->bytes) fuzz_bad("another size than its shape", t->name);
        for (size_t b = 0; b < t->bytes; b++) sum += ((const uint8_t *)t->data)[b];
        if (th_safetensors_find(&file, t->name) != t) fuzz_bad("not found again", t->name);
    }
    /* Each byte of the data belongs to one tensor. */
    for (size_t i = 0; i < file.count; i++) all += file.tensors[i].bytes;
    memcpy(&header, data, 8);
    if (8 + header + all != size) fuzz_bad("safetensors", "gaps or overlaps");
    if (sum == 0xFFFFFFFF) fuzz_bad("sum", ""); /* so that it is computed */
    th_safetensors_close(&file);
}

FUZZ_TARGET
