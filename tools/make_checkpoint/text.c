/* text.c - see text.h. */
#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

void th_text_add(struct th_text *text, const void *data, size_t bytes, thespis_error *error)
{
    if (text->status != THESPIS_OK || bytes == 0) return;
    if (bytes > text->capacity - text->used) {
        size_t wanted = 2 * (text->capacity + bytes) + 4096;
        char *grown = th_realloc(text->data, text->used, wanted, 1);
        if (grown == NULL) {
            text->status = th_fail_memory(error, "a header", wanted);
            return;
        }
        text->data = grown;
        text->capacity = wanted;
    }
    memcpy(text->data + text->used, data, bytes);
    text->used += bytes;
}

void th_text_format(struct th_text *text, thespis_error *error, const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof line)
        text->status = th_fail(error, THESPIS_LIMIT, "a header line of %d bytes, at most %zu fit", length, sizeof line - 1);
    else
        th_text_add(text, line, (size_t)length, error);
}

void th_text_integer(struct th_text *text, uint64_t value, int bytes, thespis_error *error)
{
    uint8_t little[8];
    for (int i = 0; i < bytes; i++) little[i] = (uint8_t)(value >> 8 * i);
    th_text_add(text, little, (size_t)bytes, error);
}

void th_text_free(struct th_text *text)
{
    th_free(text->data);
    memset(text, 0, sizeof *text);
}
