/* fuzz_codes.c - .npy arrays, and codes in .npy or JSON. */
#include "fuzz.h"

#include "audio/codes.h"
#include "base/npy.h"

static void fuzz(const uint8_t *data, size_t size)
{
    struct th_npy array;
    struct th_codes codes;
    thespis_error error;
    if (fuzz_told(th_npy_parse(data, size, "array.npy", &array, &error), &error)) {
        for (int64_t i = 0; i < array.count; i++)
            if (th_npy_int(&array, i) == 1 && th_npy_float(&array, i) == 3) fuzz_bad("npy", "one value read as two");
        th_npy_free(&array);
    }
    if (!fuzz_told(th_codes_parse(data, size, "codes", 10, 512, &codes, &error), &error)) return;
    for (size_t i = 0; i < 10 * codes.frames; i++)
        if (codes.codes[i] < 0 || codes.codes[i] >= 512) fuzz_bad("codes", "out of range");
    th_free(codes.codes);
}

FUZZ_TARGET
