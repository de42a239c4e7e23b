/* fault.c - see fault.h. */
#include "server/fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill(struct th_fault *fault, int http, const char *format, va_list arguments)
{
    thespis_error clean; /* th_fail replaces what cannot be printed, so that the message is UTF-8 whatever the client sent */
    char text[sizeof fault->message];
    memset(fault, 0, sizeof *fault);
    fault->http = http;
    if (vsnprintf(text, sizeof text, format, arguments) < 0) text[0] = '\0';
    th_fail(&clean, THESPIS_INVALID, "%s", text);
    memcpy(fault->message, clean.message, sizeof fault->message);
}

/* As a message: a key of the client's may hold anything. */
static void set_param(struct th_fault *fault, const char *prefix, const char *name)
{
    thespis_error clean;
    th_fail(&clean, THESPIS_INVALID, "%s%s", prefix, name);
    snprintf(fault->param, sizeof fault->param, "%.150s", clean.message);
    /* Cut in the middle of a character? Then without it. */
    for (size_t n = strlen(fault->param); n > 146 && ((unsigned char)fault->param[n - 1] & 0x80); n--) fault->param[n - 1] = '\0';
}

thespis_status th_fault_set(struct th_fault *fault, int http, const char *param, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fill(fault, http, format, arguments);
    va_end(arguments);
    if (param != NULL) set_param(fault, "", param);
    return THESPIS_INVALID;
}

thespis_status th_fault_field(struct th_fault *fault, const char *prefix, const char *name, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fill(fault, 400, format, arguments);
    va_end(arguments);
    set_param(fault, prefix, name);
    return THESPIS_INVALID;
}

static int http_of(thespis_status status)
{
    switch (status) {
    case THESPIS_INVALID:
    case THESPIS_FORMAT:
    case THESPIS_UNSUPPORTED:
    case THESPIS_LIMIT: return 400;
    case THESPIS_BUSY: return 429;
    case THESPIS_MEMORY: return 503;
    case THESPIS_CANCELLED: return 499;
    default: return 500;
    }
}

/* "references.1.transcript: ..." names its field; "out of memory for ..." does not. */
static size_t named_field(const char *message)
{
    size_t n = strspn(message, "abcdefghijklmnopqrstuvwxyz0123456789_.");
    return n > 0 && n < 60 && message[n] == ':' ? n : 0;
}

thespis_status th_fault_from(struct th_fault *fault, const thespis_error *error, const char *prefix, const char *param)
{
    int http = http_of(error->status);
    if (http == 429) {
        th_fault_set(fault, 429, NULL, "The request queue is full.");
        fault->code = "queue_full";
        fault->retry_after = 1;
        return error->status;
    }
    th_fault_set(fault, http, NULL, "%s", error->message);
    if (http == 503) {
        fault->code = "out_of_memory";
        fault->retry_after = 1;
    }
    size_t n = named_field(error->message);
    char name[64];
    if (n > 0) {
        snprintf(name, sizeof name, "%.*s", (int)n, error->message);
        param = name;
    }
    if (http == 400 && param != NULL) set_param(fault, prefix, param);
    return error->status;
}

static const char *type_of(int http)
{
    switch (http) {
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 408: return "timeout_error";
    case 413: return "RequestTooLargeError";
    case 429: return "rate_limit_error";
    default: return http >= 500 ? "server_error" : "invalid_request_error";
    }
}

json_t *th_fault_openai(const struct th_fault *fault)
{
    json_t *code = fault->code != NULL ? json_string(fault->code) : fault->http == 500 ? json_null() : json_integer(fault->http);
    json_t *param = fault->param[0] != '\0' ? json_string(fault->param) : json_null();
    return json_pack("{s:{s:s,s:s,s:o,s:o}}", "error", "message", fault->message, "type", type_of(fault->http), "param", param,
                     "code", code);
}

json_t *th_fault_fish(const struct th_fault *fault)
{
    return json_pack("{s:i,s:s}", "status", fault->http, "message", fault->message);
}

void th_fault_raw(const struct th_fault *fault, int fish, char *out, size_t size)
{
    json_t *object = fish ? th_fault_fish(fault) : th_fault_openai(fault);
    char *body = object != NULL ? json_dumps(object, JSON_COMPACT) : NULL;
    snprintf(out, size, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\n%sConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
             fault->http, fault->http == 408 ? "Request Timeout" : "Content Too Large",
             fault->http == 408 ? "x-should-retry: false\r\n" : "", body != NULL ? strlen(body) : 0, body != NULL ? body : "");
    free(body);
    json_decref(object);
}
