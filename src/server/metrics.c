/* metrics.c - see metrics.h. */
#include "server/metrics.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const int statuses[TH_METRIC_STATUSES] = {200, 204, 400, 401, 403, 404, 405, 408, 409,
                                                 413, 415, 429, 431, 499, 500, 501, 503, 0};

static const struct {
    const char *name, *help;
    double bounds[12]; /* ended by 0 */
} times[TH_TIME_COUNT] = {
    {"thespis_time_to_first_audio_seconds", "From a request to its first audio.", {.05, .1, .2, .3, .5, .75, 1, 2, 5, 10}},
    {"thespis_request_seconds", "From a request to the end of its answer.", {.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}},
    {"thespis_queue_seconds", "In line for a lane.", {.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}},
    {"thespis_chunk_gap_seconds",
     "Of each finished stream: how long its listener had to wait in silence after the first audio.",
     {.001, .01, .05, .1, .25, .5, 1, 2.5, 5, 10}},
    {"thespis_reference_encode_seconds", "Reading and encoding the references of a request.", {.01, .05, .1, .25, .5, 1, 2.5, 5}},
};

void th_metrics_open(struct th_metrics *m)
{
    memset(m, 0, sizeof *m);
    pthread_mutex_init(&m->mutex, NULL);
}

void th_metrics_close(struct th_metrics *m)
{
    pthread_mutex_destroy(&m->mutex);
}

/* ---- counting ---------------------------------------------------------------------------------------------------------------- */

static int status_index(int status)
{
    for (int i = 0; i < TH_METRIC_STATUSES; i++)
        if (statuses[i] == status) return i;
    return TH_METRIC_STATUSES - 1;
}

/* The row of a route, new at its first request; routes are few and their names static. */
static int route_index(struct th_metrics *m, const char *route)
{
    for (int i = 0; i < TH_METRIC_ROUTES; i++) {
        if (m->route[i] == NULL) m->route[i] = route;
        if (strcmp(m->route[i], route) == 0) return i;
    }
    return TH_METRIC_ROUTES - 1;
}

static void count_time(struct th_metrics *m, enum th_time which, double seconds)
{
    int i = 0;
    while (times[which].bounds[i] > 0 && seconds > times[which].bounds[i]) i++;
    m->time[which].bucket[i]++;
    m->time[which].count++;
    m->time[which].sum += seconds;
}

void th_metrics_request(struct th_metrics *m, const char *route, int status, uint64_t bytes, double seconds)
{
    pthread_mutex_lock(&m->mutex);
    m->requests[route_index(m, route)][status_index(status)]++;
    m->bytes_sent += bytes;
    count_time(m, TH_TIME_REQUEST, seconds);
    pthread_mutex_unlock(&m->mutex);
}

void th_metrics_finish(struct th_metrics *m, thespis_finish finish, int prompt_rows)
{
    pthread_mutex_lock(&m->mutex);
    if ((unsigned)finish < sizeof m->finish / sizeof *m->finish) m->finish[finish]++;
    m->prompt_rows += (uint64_t)prompt_rows;
    pthread_mutex_unlock(&m->mutex);
}

void th_metrics_time(struct th_metrics *m, enum th_time which, double seconds)
{
    pthread_mutex_lock(&m->mutex);
    count_time(m, which, seconds);
    pthread_mutex_unlock(&m->mutex);
}

void th_metrics_running(struct th_metrics *m, int change)
{
    pthread_mutex_lock(&m->mutex);
    m->running += change;
    pthread_mutex_unlock(&m->mutex);
}

/* ---- text -------------------------------------------------------------------------------------------------------------------- */

/* Adds lines until one fails; the first failure stays. */
struct page {
    struct th_bytes *out;
    thespis_status status;
    thespis_error *error;
};

static void line(struct page *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void line(struct page *p, const char *format, ...)
{
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (p->status != THESPIS_OK || n < 0) return;
    p->status = th_bytes_add(p->out, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1, p->error);
}

static void head(struct page *p, const char *name, const char *type, const char *help)
{
    line(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void number(struct page *p, const char *name, const char *type, const char *help, double value)
{
    head(p, name, type, help);
    line(p, "%s %.17g\n", name, value);
}

/* counts[n]: one for each bound and the rest. */
static void histogram(struct page *p, const char *name, const char *help, const double *bounds, int n, const uint64_t *counts,
                      double sum)
{
    uint64_t total = 0;
    head(p, name, "histogram", help);
    for (int i = 0; i < n; i++) {
        total += counts[i];
        line(p, "%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)total);
    }
    total += counts[n];
    line(p, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9g\n%s_count %llu\n", name, (unsigned long long)total, name, sum, name,
         (unsigned long long)total);
}

static void requests(struct page *p, const struct th_metrics *m)
{
    head(p, "thespis_requests_total", "counter", "Answered requests.");
    for (int r = 0; r < TH_METRIC_ROUTES && m->route[r] != NULL; r++)
        for (int s = 0; s < TH_METRIC_STATUSES; s++)
            if (m->requests[r][s] > 0)
                line(p, "thespis_requests_total{route=\"%s\",status=\"%d\"} %llu\n", m->route[r], statuses[s],
                     (unsigned long long)m->requests[r][s]);
    head(p, "thespis_finish_total", "counter", "Speech by how it ended.");
    for (int i = THESPIS_FINISH_STOP; i <= THESPIS_FINISH_SILENCE; i++)
        line(p, "thespis_finish_total{reason=\"%s\"} %llu\n", thespis_finish_name((thespis_finish)i),
             (unsigned long long)m->finish[i]);
}

static void engine(struct page *p, const struct th_engine_load *l)
{
    double seconds = (double)THESPIS_FRAME_SAMPLES / THESPIS_SAMPLE_RATE;
    number(p, "thespis_requests_waiting", "gauge", "Requests in line for a lane.", l->waiting);
    number(p, "thespis_lanes_active", "gauge", "Lanes that speak.", l->active);
    number(p, "thespis_lanes", "gauge", "Lanes there are.", l->lanes);
    number(p, "thespis_frames_total", "counter", "Frames drawn.", (double)l->steps.frames);
    number(p, "thespis_audio_seconds_total", "counter", "Seconds of audio drawn.", (double)l->steps.frames * seconds);
    number(p, "thespis_voice_cache_hits_total", "counter", "Recordings whose codes were still known.", (double)l->cache_hits);
    number(p, "thespis_voice_cache_misses_total", "counter", "Recordings that had to be encoded.", (double)l->cache_misses);
    number(p, "thespis_voice_cache_bytes", "gauge", "Memory of codes kept.", (double)l->cache_bytes);
    histogram(p, "thespis_frame_seconds", "One frame of all lanes that step together.", th_load_frame_bounds, TH_LOAD_FRAME_BOUNDS,
              l->steps.frame_counts, l->steps.frame_sum);
    histogram(p, "thespis_batch_size", "Lanes that step together.", th_load_batch_bounds, TH_LOAD_BATCH_BOUNDS,
              l->steps.batch_counts, l->steps.batch_sum);
}

static void all_times(struct page *p, const struct th_metrics *m)
{
    for (int i = 0; i < TH_TIME_COUNT; i++) {
        int n = 0;
        while (n < 12 && times[i].bounds[n] > 0) n++;
        histogram(p, times[i].name, times[i].help, times[i].bounds, n, m->time[i].bucket, m->time[i].sum);
    }
}

thespis_status th_metrics_write(struct th_metrics *m, const struct th_metrics_now *now, struct th_bytes *out, thespis_error *error)
{
    struct page p = {out, THESPIS_OK, error};
    head(&p, "thespis_build_info", "gauge", "Always 1; the labels tell what runs.");
    line(&p, "thespis_build_info{version=\"%s\",cuda=\"%s\",model=\"%s\"} 1\n", now->version,
         strcmp(now->backend, "cuda") == 0 ? "yes" : "no", now->model);
    number(&p, "thespis_ready", "gauge", "1 while /ready answers 200.", now->ready);
    number(&p, "thespis_gpu_memory_bytes", "gauge", "Weights and lanes on the accelerator; 0 on a CPU.", (double)now->device_bytes);
    pthread_mutex_lock(&m->mutex);
    requests(&p, m);
    number(&p, "thespis_requests_running", "gauge", "Requests being answered.", m->running);
    number(&p, "thespis_prompt_rows_total", "counter", "Rows of prompts of ended speech.", (double)m->prompt_rows);
    number(&p, "thespis_bytes_sent_total", "counter", "Bytes of answers' bodies.", (double)m->bytes_sent);
    all_times(&p, m);
    pthread_mutex_unlock(&m->mutex);
    engine(&p, &now->load);
    return p.status;
}
