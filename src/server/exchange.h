/* exchange.h - one request and its answer: what handlers see of HTTP. */
#ifndef THESPIS_SERVER_EXCHANGE_H
#define THESPIS_SERVER_EXCHANGE_H

#include "base/bytes.h"
#include "server/room.h"
#include "server/routes.h"
#include "server/value.h"

#define TH_EXCHANGE_SPEECHES 32

struct th_speech;

struct th_exchange {
    struct th_server *server;
    struct MHD_Connection *connection;
    struct th_link *link;
    const struct th_route *route;
    char *target;       /* as it came: path and query */
    char *path, *query; /* in target; the prefix is skipped; query may be NULL */
    char argument[768]; /* the last part of the path, decoded, where the route has one */
    const char *method;
    char id[TH_REQUEST_ID_MAX + 1];
    double started;
    int begun, counted, keep_open;
    uint64_t group; /* of the API key */

    size_t body_limit;
    int too_long;
    struct th_bytes body;
    struct th_tree tree;

    pthread_mutex_t mutex; /* guards speeches, which the watch may cancel */
    struct th_speech *speeches[TH_EXCHANGE_SPEECHES];

    /* The answer's body as it goes out. */
    struct {
        struct th_speech *speech; /* fills wire; NULL: all is there */
        int sse, over, failed;
        struct th_bytes wire;
        size_t at;
    } out;

    /* For the log. */
    int status;
    uint64_t sent;
    double first_audio;
    int frames;
    thespis_finish finish;
    char note[120]; /* why it failed, in words that hold nothing of the client's */
};

/* libmicrohttpd's callbacks. */
void *th_exchange_new(void *server, const char *target, struct MHD_Connection *connection);
enum MHD_Result th_exchange_handle(void *server, struct MHD_Connection *connection, const char *url, const char *method,
                                   const char *version, const char *upload, size_t *upload_size, void **exchange);
void th_exchange_completed(void *server, struct MHD_Connection *connection, void **exchange, enum MHD_RequestTerminationCode code);

/* A header of the request, or NULL. */
const char *th_exchange_header(const struct th_exchange *x, const char *name);
/* Does the media type of the body begin with this? Letter case does not count. */
int th_exchange_type_is(const struct th_exchange *x, const char *type);
/* Is ?name=value in the query? */
int th_exchange_query_is(const struct th_exchange *x, const char *name, const char *value);
/* The body as a tree in x->tree, by its media type. */
thespis_status th_exchange_parse(struct th_exchange *x, struct th_fault *fault);

#endif
