/* memory.c - see memory.h. */
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64

#ifdef TH_FAULTS
#include <stdatomic.h>
/* The one variable outside any object, in test builds only. */
static atomic_long fail_countdown = 0;

void th_memory_fail_from(long n)
{
    atomic_store(&fail_countdown, n);
}

static int must_fail(void)
{
    long left = atomic_load(&fail_countdown);
    while (left > 1)
        if (atomic_compare_exchange_weak(&fail_countdown, &left, left - 1)) return 0;
    return left == 1;
}
#else
void th_memory_fail_from(long n)
{
    (void)n;
}
static int must_fail(void)
{
    return 0;
}
#endif

static int product(size_t count, size_t size, size_t *bytes)
{
    if (__builtin_mul_overflow(count, size, bytes)) return 0;
    if (*bytes == 0) *bytes = 1;
    /* Rounded up to the alignment, as aligned_alloc demands. */
    if (__builtin_add_overflow(*bytes, ALIGNMENT - 1, bytes)) return 0;
    *bytes &= ~(size_t)(ALIGNMENT - 1);
    return *bytes <= PTRDIFF_MAX;
}

void *th_alloc(size_t count, size_t size)
{
    size_t bytes;
    if (!product(count, size, &bytes) || must_fail()) return NULL;
    void *block = aligned_alloc(ALIGNMENT, bytes);
    if (block != NULL) memset(block, 0, bytes);
    return block;
}

void *th_realloc(void *block, size_t old_count, size_t new_count, size_t size)
{
    size_t bytes;
    if (!product(new_count, size, &bytes) || must_fail()) return NULL;
    void *grown = aligned_alloc(ALIGNMENT, bytes);
    if (grown == NULL) return NULL;
    size_t keep = old_count < new_count ? old_count : new_count;
    if (block != NULL && keep > 0) memcpy(grown, block, keep * size);
    free(block);
    return grown;
}

void th_free(void *block)
{
    free(block);
}

char *th_copy_string(const char *text, size_t bytes)
{
    char *copy = bytes == SIZE_MAX ? NULL : th_alloc(bytes + 1, 1);
    if (copy != NULL && bytes > 0) memcpy(copy, text, bytes);
    return copy;
}

thespis_status th_alloc_array(void **out, size_t count, size_t size, const char *what, thespis_error *error)
{
    *out = th_alloc(count, size);
    if (*out != NULL) return THESPIS_OK;
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) bytes = SIZE_MAX;
    return th_fail_memory(error, what, bytes);
}
