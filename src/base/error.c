/* error.c - see error.h. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the well-formed UTF-8 character that begins here and may be printed; 0 for control characters and broken bytes. */
static size_t printable(const unsigned char *at)
{
    if (at[0] < 0x80) return at[0] >= 0x20 && at[0] != 0x7F;
    size_t size = at[0] >= 0xF0 ? 4 : at[0] >= 0xE0 ? 3 : 2;
    unsigned code = at[0] & (0x7Fu >> size);
    static const unsigned smallest[] = {0, 0, 0xA0, 0x800, 0x10000}; /* 0x80..0x9F are control characters too */
    if (at[0] < 0xC0 || at[0] > 0xF4) return 0;
    for (size_t i = 1; i < size; i++) {
        if ((at[i] & 0xC0) != 0x80) return 0;
        code = code << 6 | (at[i] & 0x3Fu);
    }
    return code >= smallest[size] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF) ? size : 0;
}

/* Control bytes of file content must not reach a terminal, nor broken UTF-8 a JSON answer. A character that the end of the buffer
 * cut is dropped. */
static void clean(char *text)
{
    size_t n = strlen(text), tail = 0;
    while (tail < 3 && tail < n && ((unsigned char)text[n - 1 - tail] & 0xC0) == 0x80) tail++;
    if (tail < n) {
        unsigned char lead = (unsigned char)text[n - 1 - tail];
        size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
        if (size > tail + 1) text[n - 1 - tail] = '\0';
    }
    for (size_t i = 0; text[i] != '\0';) {
        size_t size = printable((const unsigned char *)text + i);
        if (size == 0) text[i] = '?';
        i += size == 0 ? 1 : size;
    }
}

static void fill(thespis_error *error, thespis_status status, const char *format, va_list arguments)
{
    if (error == NULL) return;
    error->status = status;
    if (vsnprintf(error->message, sizeof error->message, format, arguments) < 0) error->message[0] = '\0';
    clean(error->message);
}

thespis_status th_fail(thespis_error *error, thespis_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fill(error, status, format, arguments);
    va_end(arguments);
    return status;
}

thespis_status th_fail_errno(thespis_error *error, const char *format, ...)
{
    int reason = errno;
    va_list arguments;
    va_start(arguments, format);
    fill(error, THESPIS_IO, format, arguments);
    va_end(arguments);
    if (error != NULL) {
        /* A long path must not push the reason out of the message. */
        char buffer[128], text[128];
        size_t room = sizeof error->message - 1, used = strlen(error->message);
        size_t needed = (size_t)snprintf(text, sizeof text, ": %s", strerror_r(reason, buffer, sizeof buffer));
        if (needed >= sizeof text) needed = sizeof text - 1;
        if (used > room - needed) used = room - needed;
        memcpy(error->message + used, text, needed + 1);
        clean(error->message);
    }
    return THESPIS_IO;
}

thespis_status th_fail_memory(thespis_error *error, const char *what, size_t bytes)
{
    return th_fail(error, THESPIS_MEMORY, "out of memory for %s (%zu bytes)", what, bytes);
}

void th_error_prefix(thespis_error *error, const char *format, ...)
{
    if (error == NULL) return;
    char old[sizeof error->message];
    memcpy(old, error->message, sizeof old);
    va_list arguments;
    va_start(arguments, format);
    fill(error, error->status, format, arguments);
    va_end(arguments);
    size_t used = strlen(error->message);
    snprintf(error->message + used, sizeof error->message - used, "%.*s", (int)(sizeof error->message - 1 - used), old);
    clean(error->message);
}

const char *thespis_status_name(thespis_status status)
{
    static const char *const names[] = {"ok",    "invalid",   "format",  "io",   "memory", "unsupported",
                                        "limit", "cancelled", "numeric", "busy", "device"};
    return (unsigned)status < sizeof names / sizeof *names ? names[status] : "unknown";
}
