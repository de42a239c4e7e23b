/* fuzz.h - what the fuzz targets share. A target is
 *
 *     static void fuzz(const uint8_t *data, size_t size)
 *
 * followed by FUZZ_TARGET. Under libFuzzer (preset `fuzz`) that is LLVMFuzzerTestOneInput; in every other build replay.c runs the
 * files of tests/fuzz/corpus through it. Each input runs twice, the second time with memory that ends somewhere. What may not
 * happen is a crash, a hang, a leak, or a failure that is told badly. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void fuzz_bad(const char *what, const char *more)
{
    fprintf(stderr, "fuzz: %s: %s\n", what, more);
    abort();
}

/* A failure fills the error: the same status, one line of printable text. Returns whether it went well. */
static inline int fuzz_told(thespis_status status, const thespis_error *error)
{
    if (status == THESPIS_OK) return 1;
    if (error->status != status) fuzz_bad("another status in the error", thespis_status_name(error->status));
    if (error->message[0] == '\0') fuzz_bad("no message", thespis_status_name(status));
    for (const char *c = error->message; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7F) fuzz_bad("a control character in the message", error->message);
    return 0;
}

/* The input as a file, for what reads paths: the same one each time. */
static inline const char *fuzz_file(const uint8_t *data, size_t size)
{
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("input", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) fuzz_bad("cannot write", "memfd");
    return path;
}

/* Somewhere in the first 256 allocations, decided by the input. */
static inline long fuzz_failing(const uint8_t *data, size_t size)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < size; i++) hash = (hash ^ data[i]) * 16777619u;
    return 1 + (long)(hash >> 8) % (hash & 7 ? 16 : 256);
}

#ifdef TH_FAULTS
#define FUZZ_FAIL_FROM(n) th_memory_fail_from(n)
#else
#define FUZZ_FAIL_FROM(n) (void)(n)
#endif

#define FUZZ_TARGET                                                                                                                \
    int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)                                                                   \
    {                                                                                                                              \
        fuzz(data, size);                                                                                                          \
        FUZZ_FAIL_FROM(fuzz_failing(data, size));                                                                                  \
        fuzz(data, size);                                                                                                          \
        FUZZ_FAIL_FROM(0);                                                                                                         \
        return 0;                                                                                                                  \
    }

#endif
