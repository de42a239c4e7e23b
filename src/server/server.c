/* server.c - a server's life: listen, load, warm up, serve, drain, end. */
#include "server/server.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/fault.h"
#include "server/listen.h"
#include "server/log.h"
#include "server/notify.h"

/* ---- the stage --------------------------------------------------------------------------------------------------------------- */

enum th_stage th_server_stage(struct th_server *s)
{
    pthread_mutex_lock(&s->mutex);
    enum th_stage stage = s->stage;
    pthread_mutex_unlock(&s->mutex);
    return stage;
}

static void set_stage(struct th_server *s, enum th_stage stage)
{
    pthread_mutex_lock(&s->mutex);
    s->stage = stage;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

void th_server_running(struct th_server *s, int change)
{
    pthread_mutex_lock(&s->mutex);
    s->running += change;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    th_metrics_running(&s->metrics, change);
}

void th_server_drain(struct th_server *s)
{
    pthread_mutex_lock(&s->mutex);
    s->drain = 1;
    if (s->stage == TH_STAGE_READY) s->stage = TH_STAGE_DRAINING;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

/* ---- the life ---------------------------------------------------------------------------------------------------------------- */

/* One real request, thrown away: pages are mapped, caches warm, and what cannot speak never gets ready. */
static thespis_status warm_up(struct th_server *s, thespis_error *error)
{
    thespis_request_options options;
    thespis_request *request;
    float samples[4096];
    size_t count;
    thespis_request_options_init(&options);
    options.text = "One, two.";
    options.text_bytes = strlen(options.text);
    options.max_frames = 12;
    options.seed = 1;
    TH_TRY(thespis_request_start(s->engine, &options, &request, error));
    thespis_status status = THESPIS_OK;
    do status = thespis_request_read(request, samples, sizeof samples / sizeof *samples, &count, error);
    while (status == THESPIS_OK && count > 0);
    thespis_request_free(request);
    return status;
}

static thespis_status load(struct th_server *s, thespis_error *error)
{
    double began = th_now();
    TH_TRY(thespis_engine_open(&s->options.engine, &s->engine, error));
    th_log(s, "the model is loaded after %.1f s, warming up", th_now() - began);
    TH_TRY(warm_up(s, error));
    th_log(s, "ready after %.1f s: model '%s', %d lanes, a queue of %d", th_now() - began, s->options.model,
           s->options.engine.lanes, s->options.queue);
    return THESPIS_OK;
}

static void deadline_after(double seconds, struct timespec *deadline)
{
    clock_gettime(CLOCK_MONOTONIC, deadline);
    double whole = (double)(time_t)seconds;
    deadline->tv_sec += (time_t)seconds;
    deadline->tv_nsec += (long)((seconds - whole) * 1e9);
    if (deadline->tv_nsec >= 1000000000) {
        deadline->tv_sec++;
        deadline->tv_nsec -= 1000000000;
    }
}

static void wait_for_drain(struct th_server *s)
{
    pthread_mutex_lock(&s->mutex);
    if (!s->drain) s->stage = TH_STAGE_READY;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    th_notify("READY=1\nSTATUS=serving");
    pthread_mutex_lock(&s->mutex);
    while (!s->drain) pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
}

/* New work is taken for a while, so that balancers notice; then what runs is waited for. */
static void drain(struct th_server *s)
{
    struct timespec deadline;
    th_notify("STOPPING=1\nSTATUS=draining");
    th_log(s, "draining: not ready any more, new work for %.1f s, then up to %.1f s for what runs", s->options.drain_delay,
           s->options.drain_timeout);
    deadline_after(s->options.drain_delay, &deadline);
    pthread_mutex_lock(&s->mutex);
    while (!s->closing && pthread_cond_timedwait(&s->changed, &s->mutex, &deadline) != ETIMEDOUT)
        ;
    s->stage = TH_STAGE_REFUSING;
    deadline_after(s->options.drain_timeout, &deadline);
    while (!s->closing && s->running > 0 && pthread_cond_timedwait(&s->changed, &s->mutex, &deadline) != ETIMEDOUT)
        ;
    int left = s->running;
    pthread_mutex_unlock(&s->mutex);
    th_log(s, left > 0 ? "drained: %d requests still run and are ended" : "drained: nothing runs", left);
}

static void *life_main(void *argument)
{
    struct th_server *s = argument;
    uint64_t one = 1;
    thespis_error error;
    thespis_status status = load(s, &error);
    if (status == THESPIS_OK) {
        wait_for_drain(s);
        drain(s);
    } else {
        s->status = status;
        s->error = error;
        set_stage(s, TH_STAGE_FAILED);
    }
    ssize_t unused = write(s->done, &one, sizeof one);
    (void)unused;
    return NULL;
}

/* ---- open and close ---------------------------------------------------------------------------------------------------------- */

static void set_instance(struct th_server *s)
{
    char host[60] = "thespis";
    if (s->options.instance != NULL) {
        snprintf(s->instance, sizeof s->instance, "%.79s", s->options.instance);
        return;
    }
    gethostname(host, sizeof host - 1);
    host[sizeof host - 1] = '\0';
    snprintf(s->instance, sizeof s->instance, "%s:%d", host, s->port);
}

static thespis_status start_life(struct th_server *s, thespis_error *error)
{
    int reason = pthread_create(&s->life, NULL, life_main, s);
    if (reason != 0) return th_fail(error, THESPIS_IO, "cannot start the server's thread: %s", strerror(reason));
    s->life_runs = 1;
    return THESPIS_OK;
}

static thespis_status check_options(const struct th_server_options *o, thespis_error *error)
{
    size_t n = o->prefix != NULL ? strlen(o->prefix) : 0;
    if (n > 0 && (o->prefix[0] != '/' || o->prefix[n - 1] == '/'))
        return th_fail(error, THESPIS_INVALID, "the prefix is '%s', must begin with a / and not end in one", o->prefix);
    return THESPIS_OK;
}

static thespis_status open_all(struct th_server *s, thespis_error *error)
{
    const struct th_server_options *o = &s->options;
    struct th_fault late;
    TH_TRY(check_options(o, error));
    s->done = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->done < 0) return th_fail_errno(error, "cannot make an event");
    TH_TRY(th_keys_load(&s->keys, o->api_keys, o->api_key_count, o->api_key_file, error));
    TH_TRY(th_voice_store_open(o->voices, o->engine.checkpoint, &s->store, error));
    TH_TRY(th_watch_open(o->allow_half_close, &s->watch, error));
    th_fault_set(&late, 408, NULL, "the request body did not come to its end in time");
    th_fault_raw(&late, 0, s->late_answer, sizeof s->late_answer);
    th_watch_late_answer(s->watch, s->late_answer);
    TH_TRY(th_listen(s, error));
    set_instance(s);
    TH_TRY(th_listen_start(s, error));
    return start_life(s, error);
}

thespis_status th_server_open(const struct th_server_options *options, struct th_server **server, thespis_error *error)
{
    struct th_server *s;
    pthread_condattr_t monotonic;
    *server = NULL;
    TH_TRY(TH_ALLOC(&s, 1, "a server", error));
    s->options = *options;
    s->max_body = (size_t)(options->max_body * 1024 * 1024);
    s->started = time(NULL);
    s->listener = s->done = -1;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_mutex_init(&s->admission, NULL);
    pthread_mutex_init(&s->log, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    th_metrics_open(&s->metrics);
    th_outcomes_open(&s->outcomes);
    th_keys_open(&s->keys, NULL, 0, NULL, NULL);
    thespis_status status = open_all(s, error);
    if (status != THESPIS_OK) {
        th_server_close(s, NULL);
        return status;
    }
    *server = s;
    return THESPIS_OK;
}

int th_server_port(const struct th_server *s)
{
    return s->port;
}

int th_server_done(const struct th_server *s)
{
    return s->done;
}

thespis_status th_server_reload(struct th_server *s, thespis_error *error)
{
    const struct th_server_options *o = &s->options;
    return th_keys_load(&s->keys, o->api_keys, o->api_key_count, o->api_key_file, error);
}

thespis_status th_server_close(struct th_server *s, thespis_error *error)
{
    if (s == NULL) return THESPIS_OK;
    if (s->watch != NULL) th_watch_end_all(s->watch); /* threads that wait for speech wake up */
    if (s->daemon != NULL)
        MHD_stop_daemon(s->daemon);
    else if (s->listener >= 0)
        close(s->listener);
    if (s->life_runs) {
        pthread_mutex_lock(&s->mutex);
        s->closing = 1;
        pthread_mutex_unlock(&s->mutex);
        th_server_drain(s);
        pthread_join(s->life, NULL);
    }
    th_watch_close(s->watch);
    thespis_engine_close(s->engine);
    th_voice_store_close(&s->store);
    th_keys_close(&s->keys);
    th_outcomes_close(&s->outcomes);
    th_metrics_close(&s->metrics);
    if (s->done >= 0) close(s->done);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->log);
    pthread_mutex_destroy(&s->admission);
    pthread_mutex_destroy(&s->mutex);
    thespis_status status = s->status;
    if (status != THESPIS_OK && error != NULL) *error = s->error;
    th_free(s);
    return status;
}
