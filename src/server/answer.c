/* answer.c - see answer.h. */
#include "server/answer.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "server/pack.h"
#include "server/speech.h"

#define BLOCK 65536
#define EXPOSED                                                                                                                    \
    "X-Request-Id, X-Seed, X-Sample-Rate, X-Channels, X-Bit-Depth, X-Finish-Reason, X-Prompt-Tokens, X-Completion-Tokens, "        \
    "X-Engine-Time, X-Instance, X-Voice, Retry-After"

static void add(struct MHD_Response *response, const char *name, const char *value)
{
    MHD_add_response_header(response, name, value); /* fails only for want of memory: the answer then lacks a line */
}

static void add_cors(const struct th_exchange *x, struct MHD_Response *response)
{
    const char *allowed = x->server->options.cors;
    if (allowed == NULL) return;
    add(response, "Access-Control-Allow-Origin", allowed);
    add(response, "Access-Control-Expose-Headers", EXPOSED);
    if (strcmp(allowed, "*") != 0) add(response, "Vary", "Origin");
}

/* What every answer carries; then queues it and lets go. */
static enum MHD_Result queue(struct th_exchange *x, int http, struct MHD_Response *response, const char *type,
                             const char *const *headers)
{
    if (response == NULL) return MHD_NO;
    if (type != NULL) add(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    add(response, "X-Request-Id", x->id);
    add(response, "X-Instance", x->server->instance);
    add(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    add_cors(x, response);
    for (; headers != NULL && headers[0] != NULL; headers += 2) add(response, headers[0], headers[1]);
    x->status = http;
    th_link_set(x->link, TH_LINK_SENDING, x->server->options.write_timeout);
    enum MHD_Result result = MHD_queue_response(x->connection, (unsigned)http, response);
    MHD_destroy_response(response);
    return result;
}

/* ---- bodies ------------------------------------------------------------------------------------------------------------------ */

/* The next bytes of x->out, waiting for speech when there are none. */
static ssize_t read_out(void *context, uint64_t position, char *to, size_t room)
{
    struct th_exchange *x = context;
    (void)position;
    /* Asking for more means that the last piece has been taken. */
    if (x->out.at == x->out.wire.count && x->out.speech != NULL && !x->out.over) {
        if (!th_link_set(x->link, TH_LINK_WORK, 0)) return MHD_CONTENT_READER_END_WITH_ERROR;
        x->out.at = 0;
        th_bytes_clear(&x->out.wire);
        th_speech_fill(x);
    }
    if (x->out.failed) return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t left = x->out.wire.count - x->out.at, n = left < room ? left : room;
    if (n == 0) return MHD_CONTENT_READER_END_OF_STREAM;
    memcpy(to, x->out.wire.at + x->out.at, n);
    x->out.at += n;
    x->sent += n;
    if (!th_link_set(x->link, TH_LINK_SENDING, x->server->options.write_timeout)) return MHD_CONTENT_READER_END_WITH_ERROR;
    return (ssize_t)n;
}

enum MHD_Result th_answer_bytes(struct th_exchange *x, int http, const char *type, const char *const *headers)
{
    x->out.speech = NULL;
    return queue(x, http, MHD_create_response_from_callback(x->out.wire.count, BLOCK, read_out, x, NULL), type, headers);
}

enum MHD_Result th_answer_stream(struct th_exchange *x, const char *type, const char *const *headers)
{
    return queue(x, 200, MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_out, x, NULL), type, headers);
}

enum MHD_Result th_answer_empty(struct th_exchange *x, int http, const char *const *headers)
{
    return queue(x, http, MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT), NULL, headers);
}

/* Takes `count` bytes from malloc over; NULL: memory was short. */
static enum MHD_Result answer_text(struct th_exchange *x, int http, char *text, size_t count, const char *type,
                                   const char *const *headers)
{
    static const char short_of_memory[] =
        "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,\"code\":\"out_of_memory\"}}";
    struct MHD_Response *response =
        text != NULL ? MHD_create_response_from_buffer(count, text, MHD_RESPMEM_MUST_FREE)
                     : MHD_create_response_from_buffer(sizeof short_of_memory - 1, (void *)short_of_memory, MHD_RESPMEM_PERSISTENT);
    if (response == NULL) free(text);
    x->sent = text != NULL ? count : sizeof short_of_memory - 1;
    return queue(x, text != NULL ? http : 503, response, text != NULL ? type : "application/json", headers);
}

static int wants_msgpack(const struct th_exchange *x)
{
    const char *accept = th_exchange_header(x, MHD_HTTP_HEADER_ACCEPT);
    if (x->route == NULL || !(x->route->flags & TH_ROUTE_FISH) || th_exchange_query_is(x, "format", "json")) return 0;
    return th_exchange_query_is(x, "format", "msgpack") || (accept != NULL && strstr(accept, "msgpack") != NULL);
}

enum MHD_Result th_answer_json(struct th_exchange *x, int http, json_t *object)
{
    size_t count = 0;
    int packed = object != NULL && wants_msgpack(x);
    char *text = packed ? th_pack_json(object, &count) : object != NULL ? json_dumps(object, JSON_COMPACT) : NULL;
    if (text != NULL && !packed) count = strlen(text);
    json_decref(object);
    return answer_text(x, http, text, count, packed ? "application/msgpack" : "application/json", NULL);
}

/* Headers that go with a fault; their values lie in `retry`. */
static void fault_headers(const struct th_exchange *x, const struct th_fault *fault, const char *headers[14], char retry[16])
{
    int n = 0;
    if (fault->retry_after > 0) {
        snprintf(retry, 16, "%d", fault->retry_after);
        headers[n++] = MHD_HTTP_HEADER_RETRY_AFTER;
        headers[n++] = retry;
    }
    if (fault->http == 401) {
        headers[n++] = MHD_HTTP_HEADER_WWW_AUTHENTICATE;
        headers[n++] = "Bearer";
    }
    if (fault->hopeless || fault->http == 408) {
        headers[n++] = "x-should-retry";
        headers[n++] = "false";
    }
    if (fault->http == 405) {
        headers[n++] = MHD_HTTP_HEADER_ALLOW;
        headers[n++] = fault->param;
    }
    int ends = fault->http == 503 && fault->code != NULL &&
               (strcmp(fault->code, "draining") == 0 || strcmp(fault->code, "too_many_connections") == 0);
    if (!x->keep_open || ends) {
        headers[n++] = MHD_HTTP_HEADER_CONNECTION;
        headers[n++] = "close";
    }
    headers[n] = NULL;
}

enum MHD_Result th_answer_fault(struct th_exchange *x, const struct th_fault *fault)
{
    const char *headers[14];
    char retry[16];
    int fish = x->route != NULL ? (x->route->flags & TH_ROUTE_FISH) != 0 : th_route_is_fish(x->path);
    struct th_fault shown = *fault;
    if (fault->http == 405) shown.param[0] = '\0';
    fault_headers(x, fault, headers, retry);
    json_t *object = fish ? th_fault_fish(&shown) : th_fault_openai(&shown);
    char *text = object != NULL ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    snprintf(x->note, sizeof x->note, "%.100s", fault->param[0] != '\0' ? fault->param : fault->code != NULL ? fault->code : "");
    /* The client has gone: nobody reads this. */
    return answer_text(x, fault->http == 499 ? 500 : fault->http, text, text != NULL ? strlen(text) : 0, "application/json",
                       headers);
}
