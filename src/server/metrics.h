/* metrics.h - counts and durations for Prometheus. Labels come from fixed lists: no client can add one. */
#ifndef THESPIS_SERVER_METRICS_H
#define THESPIS_SERVER_METRICS_H

#include <pthread.h>

#include "base/bytes.h"
#include "engine/load.h"

#define TH_METRIC_ROUTES 32
#define TH_METRIC_STATUSES 18

enum th_time {
    TH_TIME_FIRST_AUDIO, /* from the request's header to its first audio */
    TH_TIME_REQUEST,
    TH_TIME_QUEUE,
    TH_TIME_GAP, /* how long a stream's listener had to wait in silence */
    TH_TIME_ENCODE,
    TH_TIME_COUNT
};

struct th_metrics {
    pthread_mutex_t mutex;
    const char *route[TH_METRIC_ROUTES]; /* templates, static */
    uint64_t requests[TH_METRIC_ROUTES][TH_METRIC_STATUSES];
    uint64_t finish[7]; /* by thespis_finish */
    uint64_t prompt_rows, bytes_sent, refused_connections;
    struct {
        uint64_t bucket[16], count;
        double sum;
    } time[TH_TIME_COUNT];
    int running;
};

/* What only the caller knows of a moment. */
struct th_metrics_now {
    struct th_engine_load load;
    const char *version, *backend, *model;
    uint64_t device_bytes; /* of weights and lanes on an accelerator; 0 without one */
    int ready;
};

void th_metrics_open(struct th_metrics *metrics);
void th_metrics_close(struct th_metrics *metrics);
void th_metrics_request(struct th_metrics *metrics, const char *route, int status, uint64_t bytes, double seconds);
void th_metrics_finish(struct th_metrics *metrics, thespis_finish finish, int prompt_rows);
void th_metrics_time(struct th_metrics *metrics, enum th_time which, double seconds);
void th_metrics_running(struct th_metrics *metrics, int change);
/* The text format, version 0.0.4. */
thespis_status th_metrics_write(struct th_metrics *metrics, const struct th_metrics_now *now, struct th_bytes *out,
                                thespis_error *error);

#endif
