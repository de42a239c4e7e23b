/* exchange.c - from libmicrohttpd's callbacks to a handler: what can be told from the header is told before the body is read. */
#include "server/exchange.h"

#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/answer.h"
#include "server/log.h"
#include "server/speech.h"

#define MOST_BODIES 4 /* largest bodies that are held at a time */

/* ---- looking at the request -------------------------------------------------------------------------------------------------- */

const char *th_exchange_header(const struct th_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

int th_exchange_type_is(const struct th_exchange *x, const char *type)
{
    const char *header = th_exchange_header(x, MHD_HTTP_HEADER_CONTENT_TYPE);
    size_t n = strlen(type);
    return header != NULL && strncasecmp(header, type, n) == 0 && strchr("; \t", header[n]) != NULL;
}

int th_exchange_query_is(const struct th_exchange *x, const char *name, const char *value)
{
    size_t n = strlen(name), m = strlen(value);
    for (const char *at = x->query; at != NULL; at = strchr(at, '&')) {
        if (*at == '&') at++;
        if (strncmp(at, name, n) == 0 && at[n] == '=' && strncmp(at + n + 1, value, m) == 0 &&
            (at[n + 1 + m] == '\0' || at[n + 1 + m] == '&'))
            return 1;
    }
    return 0;
}

struct seen {
    size_t length_headers, coding_headers;
};

static enum MHD_Result count_framing(void *context, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct seen *seen = context;
    (void)kind;
    (void)value;
    seen->length_headers += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
    seen->coding_headers += strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
    return MHD_YES;
}

static struct seen framing(const struct th_exchange *x)
{
    struct seen seen = {0, 0};
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, count_framing, &seen);
    return seen;
}

static int has_body(const struct th_exchange *x)
{
    const char *length = th_exchange_header(x, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return (length != NULL && strcmp(length, "0") != 0) || th_exchange_header(x, MHD_HTTP_HEADER_TRANSFER_ENCODING) != NULL;
}

/* The client's own id when it is harmless, else a new one. */
static void set_id(struct th_exchange *x)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    const char *given = th_exchange_header(x, "X-Request-Id");
    uint8_t random[8] = {0};
    if (given != NULL && given[0] != '\0' && strlen(given) <= TH_REQUEST_ID_MAX && strspn(given, allowed) == strlen(given)) {
        strcpy(x->id, given);
        return;
    }
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) memcpy(random, &x->started, sizeof random);
    strcpy(x->id, "req_");
    for (size_t i = 0; i < sizeof random; i++) snprintf(x->id + 4 + 2 * i, 3, "%02x", random[i]);
}

/* ---- what can be refused from the header ------------------------------------------------------------------------------------- */

static thespis_status find_route(struct th_exchange *x, struct th_fault *fault)
{
    const char *prefix = x->server->options.prefix;
    char allowed[100];
    size_t n = prefix != NULL ? strlen(prefix) : 0;
    if (n > 0 && (strncmp(x->path, prefix, n) != 0 || x->path[n] != '/'))
        return th_fault_set(fault, 404, NULL, "there is nothing at this path");
    x->path += n;
    x->route = th_route_find(x->method, x->path, x->argument, sizeof x->argument, allowed);
    if (x->route != NULL) return THESPIS_OK;
    if (allowed[0] == '\0') return th_fault_set(fault, 404, NULL, "there is nothing at this path");
    return th_fault_set(fault, 405, allowed, "the method is not allowed here, only %s", allowed);
}

static thespis_status check_framing(struct th_exchange *x, struct th_fault *fault)
{
    const union MHD_ConnectionInfo *size = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    struct seen seen = framing(x);
    if (size != NULL && size->header_size > TH_SERVER_MAX_HEADER)
        return th_fault_set(fault, 431, NULL, "the request's header has %zu bytes, at most %d are allowed", size->header_size,
                            TH_SERVER_MAX_HEADER);
    if (seen.length_headers > 1 || (seen.length_headers > 0 && seen.coding_headers > 0))
        return th_fault_set(fault, 400, NULL, "the request's length is told in two ways");
    return THESPIS_OK;
}

static thespis_status check_key(struct th_exchange *x, struct th_fault *fault)
{
    int flags = x->route->flags;
    int open = th_keys_check(&x->server->keys, th_exchange_header(x, MHD_HTTP_HEADER_AUTHORIZATION), &x->group);
    if (open || (flags & TH_ROUTE_OPEN) || ((flags & TH_ROUTE_METRICS) && !x->server->options.metrics_key)) return THESPIS_OK;
    th_fault_set(fault, 401, NULL, "a valid API key is needed: Authorization: Bearer KEY");
    fault->code = "invalid_api_key";
    return THESPIS_INVALID;
}

static thespis_status check_stage(struct th_exchange *x, struct th_fault *fault)
{
    enum th_stage stage = th_server_stage(x->server);
    if (!(x->route->flags & TH_ROUTE_ENGINE) || stage == TH_STAGE_READY || stage == TH_STAGE_DRAINING) return THESPIS_OK;
    int starting = stage == TH_STAGE_STARTING || stage == TH_STAGE_FAILED;
    th_fault_set(fault, 503, NULL, starting ? "the model is being loaded" : "the server is shutting down");
    fault->code = starting ? "starting" : "draining";
    fault->retry_after = 1;
    return THESPIS_INVALID;
}

static thespis_status check_type(struct th_exchange *x, struct th_fault *fault)
{
    int flags = x->route->flags;
    const char *type = th_exchange_header(x, MHD_HTTP_HEADER_CONTENT_TYPE);
    const char *coding = th_exchange_header(x, MHD_HTTP_HEADER_CONTENT_ENCODING);
    if (!(flags & (TH_ROUTE_JSON | TH_ROUTE_MSGPACK | TH_ROUTE_FORM))) return THESPIS_OK;
    if (coding != NULL && strcasecmp(coding, "identity") != 0)
        return th_fault_set(fault, 415, NULL, "Content-Encoding is %.40s, bodies must come as they are", coding);
    if ((flags & TH_ROUTE_JSON) &&
        (type == NULL || th_exchange_type_is(x, "application/json") || th_exchange_type_is(x, "text/plain")))
        return THESPIS_OK;
    if ((flags & TH_ROUTE_MSGPACK) &&
        (th_exchange_type_is(x, "application/msgpack") || th_exchange_type_is(x, "application/x-msgpack")))
        return THESPIS_OK;
    if ((flags & TH_ROUTE_FORM) &&
        (th_exchange_type_is(x, "multipart/form-data") || th_exchange_type_is(x, "application/x-www-form-urlencoded")))
        return THESPIS_OK;
    return th_fault_set(fault, 415, NULL, "Content-Type must be %s%s%s", flags & TH_ROUTE_JSON ? "application/json" : "",
                        flags & TH_ROUTE_MSGPACK ? ", application/msgpack or " : "",
                        flags & TH_ROUTE_FORM ? "multipart/form-data" : "");
}

static thespis_status check_length(struct th_exchange *x, struct th_fault *fault)
{
    const char *length = th_exchange_header(x, MHD_HTTP_HEADER_CONTENT_LENGTH);
    x->body_limit = x->server->max_body;
    if ((x->route->flags & TH_ROUTE_UPLOAD) && x->body_limit > TH_VOICE_BODY) x->body_limit = TH_VOICE_BODY;
    if (length == NULL || strtoull(length, NULL, 10) <= x->body_limit) return THESPIS_OK;
    return th_fault_set(fault, 413, NULL, "the request body has %.20s bytes, at most %zu are allowed", length, x->body_limit);
}

static thespis_status check_crowd(struct th_exchange *x, struct th_fault *fault)
{
    if (!th_link_crowded(x->link) || (x->route->flags & TH_ROUTE_OPEN)) return THESPIS_OK;
    th_fault_set(fault, 503, NULL, "there are more than %d connections", x->server->options.connections);
    fault->code = "too_many_connections";
    fault->retry_after = 1;
    return THESPIS_INVALID;
}

static thespis_status check_header(struct th_exchange *x, struct th_fault *fault)
{
    TH_TRY(find_route(x, fault));
    TH_TRY(check_crowd(x, fault));
    TH_TRY(check_framing(x, fault));
    TH_TRY(check_key(x, fault));
    TH_TRY(check_stage(x, fault));
    TH_TRY(check_type(x, fault));
    TH_TRY(check_length(x, fault));
    return x->route->flags & TH_ROUTE_QUEUE ? th_speech_room(x, fault) : THESPIS_OK;
}

/* Browsers ask before they send; clients in them have headers of their own. */
static enum MHD_Result answer_preflight(struct th_exchange *x)
{
    const char *asked = th_exchange_header(x, "Access-Control-Request-Headers");
    const char *const headers[] = {"Access-Control-Allow-Methods",
                                   "GET, HEAD, POST, DELETE, OPTIONS",
                                   "Access-Control-Allow-Headers",
                                   asked != NULL ? asked : "Authorization, Content-Type, X-Request-Id, X-Voice",
                                   "Access-Control-Max-Age",
                                   "86400",
                                   NULL};
    return th_answer_empty(x, 204, headers);
}

static enum MHD_Result begin(struct th_exchange *x)
{
    struct th_fault fault;
    set_id(x);
    int body = has_body(x);
    x->keep_open = !body;
    if (!th_link_set(x->link, body ? TH_LINK_BODY : TH_LINK_WORK, body ? x->server->options.body_timeout : 0)) return MHD_NO;
    if (x->server->options.cors != NULL && strcmp(x->method, "OPTIONS") == 0) return answer_preflight(x);
    thespis_status status = check_header(x, &fault);
    if (status == THESPIS_OK) {
        x->counted = (x->route->flags & TH_ROUTE_ENGINE) != 0;
        if (x->counted) th_server_running(x->server, 1);
        return MHD_YES;
    }
    if (body) th_link_linger(x->link);
    return th_answer_fault(x, &fault);
}

/* ---- the body ---------------------------------------------------------------------------------------------------------------- */

/* libmicrohttpd takes no answer in the middle of a body. */
static enum MHD_Result refuse_rest(struct th_exchange *x)
{
    struct th_fault fault;
    char answer[800];
    th_fault_set(&fault, 413, NULL, "the request body is too large");
    th_fault_raw(&fault, (x->route->flags & TH_ROUTE_FISH) != 0, answer, sizeof answer);
    x->status = 413;
    th_link_abort(x->link, answer);
    return MHD_NO;
}

static enum MHD_Result take_body(struct th_exchange *x, const char *upload, size_t count)
{
    size_t held = atomic_fetch_add(&x->server->body_bytes, count) + count;
    int fits = x->body.count + count <= x->body_limit && held <= MOST_BODIES * x->server->max_body;
    if (fits && th_bytes_add(&x->body, upload, count, NULL) == THESPIS_OK) return MHD_YES;
    atomic_fetch_sub(&x->server->body_bytes, count);
    return refuse_rest(x);
}

thespis_status th_exchange_parse(struct th_exchange *x, struct th_fault *fault)
{
    const char *bytes = x->body.at != NULL ? (const char *)x->body.at : "";
    if (th_exchange_type_is(x, "application/msgpack") || th_exchange_type_is(x, "application/x-msgpack"))
        return th_tree_msgpack(bytes, x->body.count, &x->tree, fault);
    if (th_exchange_type_is(x, "multipart/form-data") || th_exchange_type_is(x, "application/x-www-form-urlencoded"))
        return th_tree_form(x->connection, bytes, x->body.count, &x->tree, fault);
    return th_tree_json(bytes, x->body.count, &x->tree, fault);
}

/* ---- libmicrohttpd's callbacks ----------------------------------------------------------------------------------------------- */

void *th_exchange_new(void *server, const char *target, struct MHD_Connection *connection)
{
    struct th_exchange *x = th_alloc(1, sizeof *x);
    if (x == NULL) return NULL;
    x->server = server;
    x->connection = connection;
    x->started = th_now();
    x->target = th_copy_string(target, strlen(target));
    if (x->target == NULL) {
        th_free(x);
        return NULL;
    }
    x->path = x->target;
    x->query = strchr(x->target, '?');
    if (x->query != NULL) *x->query++ = '\0';
    pthread_mutex_init(&x->mutex, NULL);
    return x;
}

enum MHD_Result th_exchange_handle(void *server, struct MHD_Connection *connection, const char *url, const char *method,
                                   const char *version, const char *upload, size_t *upload_size, void **exchange)
{
    struct th_exchange *x = *exchange;
    (void)server;
    (void)url;
    (void)version;
    if (x == NULL) return MHD_NO;
    if (!x->begun) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
        x->begun = 1;
        x->method = method;
        x->link = info != NULL ? info->socket_context : NULL;
        return x->link != NULL ? begin(x) : MHD_NO;
    }
    if (*upload_size > 0) {
        size_t count = *upload_size;
        *upload_size = 0;
        return take_body(x, upload, count);
    }
    x->keep_open = 1;
    if (!th_link_set(x->link, TH_LINK_WORK, 0)) return MHD_NO;
    th_link_watch(x->link, th_speech_gone, th_speech_late, x);
    return x->route->handle(x);
}

void th_exchange_completed(void *server, struct MHD_Connection *connection, void **exchange, enum MHD_RequestTerminationCode code)
{
    struct th_exchange *x = *exchange;
    struct th_server *s = server;
    (void)connection;
    if (x == NULL) return;
    *exchange = NULL;
    if (x->link != NULL) {
        th_link_watch(x->link, NULL, NULL, NULL);
        th_link_set(x->link, TH_LINK_IDLE, s->options.idle_timeout);
    }
    th_speech_end_all(x);
    th_log_access(x, code);
    if (x->counted) th_server_running(s, -1);
    atomic_fetch_sub(&s->body_bytes, x->body.count);
    th_tree_free(&x->tree);
    th_bytes_free(&x->body);
    th_bytes_free(&x->out.wire);
    pthread_mutex_destroy(&x->mutex);
    th_free(x->target);
    th_free(x);
}
