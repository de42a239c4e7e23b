/* error.c - see error.h. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Control bytes of file content must not reach a terminal; UTF-8 stays whole except where the buffer ends inside a character. */
static void clean(char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7F) text[i] = '?';
    }
    while (n > 0 && ((unsigned char)text[n - 1] & 0xC0) == 0x80) n--;
    if (n > 0 && (unsigned char)text[n - 1] >= 0xC0) {
        unsigned char lead = (unsigned char)text[n - 1];
        size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
        if (strlen(text) - (n - 1) < need) text[n - 1] = '\0';
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
        char text[128];
        size_t used = strlen(error->message);
        snprintf(error->message + used, sizeof error->message - used, ": %s", strerror_r(reason, text, sizeof text));
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
