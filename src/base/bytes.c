/* bytes.c - see bytes.h. */
#include "base/bytes.h"

#include <string.h>

#include "base/memory.h"

#define FIRST_ROOM 4096

thespis_status th_bytes_reserve(struct th_bytes *bytes, size_t more, thespis_error *error)
{
    size_t needed;
    if (__builtin_add_overflow(bytes->count, more, &needed)) return th_fail_memory(error, "bytes", SIZE_MAX);
    if (needed <= bytes->capacity) return THESPIS_OK;
    /* Doubling keeps the copying linear in what is added. */
    size_t capacity = bytes->capacity < FIRST_ROOM / 2 ? FIRST_ROOM : bytes->capacity * 2;
    if (capacity < needed) capacity = needed;
    uint8_t *grown = th_realloc(bytes->at, bytes->count, capacity, 1);
    if (grown == NULL) return th_fail_memory(error, "bytes", capacity);
    bytes->at = grown;
    bytes->capacity = capacity;
    return THESPIS_OK;
}

thespis_status th_bytes_add(struct th_bytes *bytes, const void *data, size_t count, thespis_error *error)
{
    if (count == 0) return THESPIS_OK;
    TH_TRY(th_bytes_reserve(bytes, count, error));
    memcpy(bytes->at + bytes->count, data, count);
    bytes->count += count;
    return THESPIS_OK;
}

thespis_status th_bytes_add_string(struct th_bytes *bytes, const char *text, thespis_error *error)
{
    return th_bytes_add(bytes, text, strlen(text), error);
}

void th_bytes_drop(struct th_bytes *bytes, size_t count)
{
    if (count == 0) return;
    if (count > bytes->count) count = bytes->count;
    bytes->count -= count;
    memmove(bytes->at, bytes->at + count, bytes->count);
}

void th_bytes_clear(struct th_bytes *bytes)
{
    bytes->count = 0;
}

void th_bytes_free(struct th_bytes *bytes)
{
    th_free(bytes->at);
    memset(bytes, 0, sizeof *bytes);
}
