/* room.h - the server, as its own files see it. */
#ifndef THESPIS_SERVER_ROOM_H
#define THESPIS_SERVER_ROOM_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "engine/voice_store.h"
#include "server/keys.h"
#include "server/metrics.h"
#include "server/outcomes.h"
#include "server/server.h"
#include "server/watch.h"

#define TH_SERVER_MAX_HEADER 16384                 /* bytes of a request's header */
#define TH_VOICE_BODY ((size_t)(10 << 20) + 65536) /* bytes of an uploaded voice */

enum th_stage {
    TH_STAGE_STARTING, /* the model is being loaded or warmed up */
    TH_STAGE_READY,
    TH_STAGE_DRAINING, /* /ready says no, work is still taken */
    TH_STAGE_REFUSING, /* no new work */
    TH_STAGE_FAILED
};

struct th_server {
    struct th_server_options options;
    char instance[80];
    char late_answer[800]; /* to a body that does not come */
    size_t max_body;
    time_t started;
    int port, listener, done; /* done: an eventfd */

    thespis_engine *engine; /* set before the stage becomes READY, read after */
    struct th_voice_store store;
    struct MHD_Daemon *daemon;
    struct th_watch *watch;
    struct th_keys keys;
    struct th_metrics metrics;
    struct th_outcomes outcomes;
    pthread_mutex_t admission; /* one request at a time is weighed against the queue */
    pthread_mutex_t log;
    atomic_int connections;   /* open now */
    atomic_size_t body_bytes; /* of all bodies being held */

    pthread_t life;
    int life_runs;
    pthread_mutex_t mutex; /* guards the five below */
    pthread_cond_t changed;
    enum th_stage stage;
    int running;           /* requests that work or answer, health checks and the like not counted */
    int drain, closing;    /* asked for: politely, at once */
    thespis_status status; /* of the load */
    thespis_error error;
};

enum th_stage th_server_stage(struct th_server *server);
/* One more, or one less, request that draining waits for. */
void th_server_running(struct th_server *server, int change);

#endif
