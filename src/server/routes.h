/* routes.h - the one table of routes. */
#ifndef THESPIS_SERVER_ROUTES_H
#define THESPIS_SERVER_ROUTES_H

#include <microhttpd.h>

#include "server/fields.h"

struct th_exchange;

enum {
    TH_ROUTE_OPEN = 1,   /* no key */
    TH_ROUTE_FISH = 2,   /* errors in Fish's form */
    TH_ROUTE_ENGINE = 4, /* 503 until the model is there, and while draining */
    TH_ROUTE_QUEUE = 8,  /* 429 at once when the queue is full */
    TH_ROUTE_JSON = 16,  /* kinds of body that are taken */
    TH_ROUTE_MSGPACK = 32,
    TH_ROUTE_FORM = 64,
    TH_ROUTE_UPLOAD = 128, /* at most TH_VOICE_BODY */
    TH_ROUTE_METRICS = 256 /* a key only when asked for */
};

struct th_route {
    const char *method, *path; /* "/v1/audio/voices/{name}": the last part may be a name */
    int flags;
    enum MHD_Result (*handle)(struct th_exchange *x);
    const struct th_fields *fields; /* of the body; NULL: none, or a form */
    const char *summary;
};

extern const struct th_route th_routes[];
extern const size_t th_route_count;

/* Finds the route; *allowed (of 100 bytes) gets the methods of the path, "" when nothing lies there. `argument` gets the last part,
 * decoded; a part that cannot be decoded matches nothing. HEAD is GET. */
const struct th_route *th_route_find(const char *method, const char *path, char *argument, size_t argument_size, char allowed[100]);
/* Does this path belong to the Fish routes, known or not? */
int th_route_is_fish(const char *path);

#endif
