/* fuzz_pickle.c - the pickle machine alone, where a fuzzer need not build a zip around it. */
#include "fuzz.h"

#include "checkpoint/pickle.h"

static void fuzz(const uint8_t *data, size_t size)
{
    struct th_pickle pickle;
    thespis_error error;
    if (!fuzz_told(th_pickle_read(data, size, "data.pkl", &pickle, &error), &error)) return;
    th_pickle_close(&pickle);
}

FUZZ_TARGET
