/* fuzz_request.c - a request of `check` as JSON. */
#include "fuzz.h"

#include "engine/request_file.h"

static void fuzz(const uint8_t *data, size_t size)
{
    struct th_request_file file;
    thespis_error error;
    if (!fuzz_told(th_request_file_read(fuzz_file(data, size), 10, 512, &file, &error), &error)) return;
    th_request_file_free(&file);
}

FUZZ_TARGET
