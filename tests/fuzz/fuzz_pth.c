/* fuzz_pth.c - a torch archive: zip, pickle, and the items of every tensor that is accepted. */
#include "fuzz.h"

#include "checkpoint/pth.h"

static void fuzz(const uint8_t *data, size_t size)
{
    struct th_pth file;
    thespis_error error;
    if (!fuzz_told(th_pth_read(data, size, "codec.pth", &file, &error), &error)) return;
    for (size_t i = 0; i < file.count; i++) {
        const struct th_pth_tensor *t = &file.tensors[i];
        if (t->items > 1 << 16) continue; /* strides of 0 make large tensors of small files */
        void *items = malloc((size_t)t->items * 8 + 1);
        if (items == NULL) continue;
        th_pth_gather(t, items);
        free(items);
    }
    th_pth_close(&file);
}

FUZZ_TARGET
