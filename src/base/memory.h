/* memory.h - checked allocation. Everything the library allocates comes from here, so that tests can make the n-th call fail. */
#ifndef THESPIS_BASE_MEMORY_H
#define THESPIS_BASE_MEMORY_H

#include "base/error.h"

/* count * size zeroed bytes aligned to 64, or NULL when the product overflows or memory is short. Never NULL for count 0. */
void *th_alloc(size_t count, size_t size);
/* The block grown or shrunk to new_count items of `size`; new bytes are not zeroed. NULL leaves the old block alive. */
void *th_realloc(void *block, size_t old_count, size_t new_count, size_t size);
void th_free(void *block);
char *th_copy_string(const char *text, size_t bytes);

/* th_alloc with an error: `what` names the thing the memory is for. */
thespis_status th_alloc_array(void **out, size_t count, size_t size, const char *what, thespis_error *error);
#define TH_ALLOC(pointer, count, what, error) th_alloc_array((void **)(pointer), (count), sizeof(**(pointer)), (what), (error))

/* Test hook, compiled in with TH_FAULTS: the n-th allocation from now on (1 = the next) and all after it fail; 0 switches off. */
void th_memory_fail_from(long n);

#endif
