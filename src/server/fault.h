/* fault.h - what is wrong with a request, as the client will be told: HTTP status, the field at fault, one sentence. */
#ifndef THESPIS_SERVER_FAULT_H
#define THESPIS_SERVER_FAULT_H

#include <jansson.h>

#include "base/error.h"

struct th_fault {
    int http;         /* 400, 401, ... */
    const char *code; /* "queue_full"; NULL: the number of the status */
    int retry_after;  /* seconds for Retry-After; 0: no such header */
    int hopeless;     /* a retry of the same would do the same: x-should-retry: false */
    char param[160];  /* "references.1.data"; "": none */
    char message[500];
};

/* Fills the fault. Always returns THESPIS_INVALID, so that TH_TRY passes it up. param may be NULL. */
thespis_status th_fault_set(struct th_fault *fault, int http, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* 400 with a field's name in front of the field: prefix "items.3." and name "voice" make the param. */
thespis_status th_fault_field(struct th_fault *fault, const char *prefix, const char *name, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* What the library said: whose mistake it was decides the status. A message that begins "input: " names its own param. */
thespis_status th_fault_from(struct th_fault *fault, const thespis_error *error, const char *prefix, const char *param);

/* {"error":{...}}, or for the Fish routes exactly {"status","message"}. NULL when memory is short. */
json_t *th_fault_openai(const struct th_fault *fault);
json_t *th_fault_fish(const struct th_fault *fault);

/* A whole answer as bytes, for when libmicrohttpd takes none any more; it ends the connection. out has `size` bytes. */
void th_fault_raw(const struct th_fault *fault, int fish, char *out, size_t size);

#endif
