/* load.c - streams that are played while they come: does each stay ahead of its listener?
 *
 * A listener starts with the first piece. When a piece arrives, the speech that came before it must not be over yet: the smallest
 * such lead of a stream tells whether it was heard without a gap, and what a player would have had to hold back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

json_t *percentiles(double *values, size_t count)
{
    if (count == 0) return json_null();
    qsort(values, count, sizeof *values, compare);
    return json_pack("{s:f, s:f, s:f, s:f}", "p50", values[(count - 1) / 2], "p95", values[(count - 1) * 95 / 100], "p99",
                     values[(count - 1) * 99 / 100], "max", values[count - 1]);
}

unsigned draw(unsigned *state, unsigned below)
{
    *state = *state * 1664525u + 1013904223u;
    return (unsigned)((unsigned long long)*state * below >> 32);
}

char *speech_body(unsigned which, unsigned seed, const char *format, const char *more)
{
    static const char *const sentences[] = {
        "The bell rang twice.",
        "Every evening the old theatre opens its doors.",
        "She put the letter on the table and went out into the rain.",
        "Who is there?",
        "The stage is set, and every word is spoken live.",
        "Somebody tells a story from far away, of ships and of storms, and nobody goes home before the end.",
        "Good morning to all of you.",
        "Turn left at the bridge, then follow the river until you see the mill."};
    char body[1000];
    snprintf(
        body, sizeof body,
        "{\"model\":\"drama-3\",\"voice\":\"default\",\"input\":\"%s\",\"seed\":%u,\"response_format\":\"%s\",\"stream\":true%s}",
        sentences[which % (sizeof sentences / sizeof *sentences)], seed, format, more);
    return copy_text(body);
}

/* ---- load -------------------------------------------------------------------------------------------------------------------- */

struct load {
    int to_start; /* streams that are still to begin */
    unsigned seed;
    size_t done, failed, refused, gaps; /* gaps: streams that fell behind */
    double audio, first_begun, last_end;
    double *first, *lead, *gap_seconds; /* [done]: s to the first audio, smallest lead, time in silence */
    int first_status;                   /* of a failure, for people */
};

static void judge(struct load *load, const struct call *c)
{
    double rate = 2.0 * (c->rate > 0 ? c->rate : 44100), least = 1e9, silent = 0, late = 0;
    for (size_t i = 1; i < c->arrival_count; i++) {
        double lead = (double)c->arrivals[i - 1].bytes / rate - (c->arrivals[i].at - c->first);
        if (lead < least) least = lead;
        lead += late; /* play-out has been pushed back by the gaps so far */
        if (lead >= 0) continue;
        silent -= lead;
        late -= lead;
    }
    if (c->arrival_count == 1) least = 0;
    load->first[load->done] = c->first - c->begun;
    load->lead[load->done] = least;
    load->gap_seconds[load->done] = silent;
    load->gaps += silent > 0;
    load->audio += (double)c->bytes / rate;
    load->done++;
}

static void begin(struct load *load, struct call *c)
{
    free(c->body);
    load->to_start--;
    load->seed++;
    c->body = speech_body(load->seed, load->seed, "pcm", ",\"sample_rate\":44100");
    c->body_bytes = strlen(c->body);
    if (!client_start(c->client, c)) die("out of memory");
}

static void ended(struct call *c)
{
    struct load *load = c->context;
    if (c->http == 200 && c->transport == 0 && c->bytes > 0) {
        judge(load, c);
    } else if (c->http == 429) {
        load->refused++;
    } else {
        load->failed++;
        load->first_status = c->http;
    }
    load->last_end = now();
    if (load->to_start > 0) begin(load, c);
}

static json_t *load_report(struct load *load, int streams)
{
    double wall = load->last_end - load->first_begun, least = 0;
    for (size_t i = 0; i < load->done; i++)
        if (load->lead[i] < least) least = load->lead[i];
    json_t *report = json_pack("{s:i, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "streams", streams, "finished",
                               (json_int_t)load->done, "refused", (json_int_t)load->refused, "failed", (json_int_t)load->failed,
                               "streams_with_gaps", (json_int_t)load->gaps, "audio_seconds", load->audio, "wall_seconds", wall,
                               "times_real_time", wall > 0 ? load->audio / wall : 0.0, "hold_back_seconds", -least);
    json_object_set_new(report, "first_audio_seconds", percentiles(load->first, load->done));
    json_object_set_new(report, "silent_seconds", percentiles(load->gap_seconds, load->done));
    return report;
}

json_t *measure_load(struct client *client, int streams, int rounds)
{
    size_t total = (size_t)streams * (size_t)rounds;
    struct load load = {.to_start = (int)total, .seed = 1};
    struct call *calls = calloc((size_t)streams, sizeof *calls);
    load.first = calloc(total, sizeof *load.first);
    load.lead = calloc(total, sizeof *load.lead);
    load.gap_seconds = calloc(total, sizeof *load.gap_seconds);
    if (calls == NULL || load.first == NULL || load.lead == NULL || load.gap_seconds == NULL) die("out of memory");
    load.first_begun = now();
    for (int i = 0; i < streams; i++) {
        calls[i] = (struct call){.method = "POST",
                                 .path = "/v1/audio/speech",
                                 .type = "application/json",
                                 .leave_after = SIZE_MAX,
                                 .ended = ended,
                                 .context = &load,
                                 .client = client};
        begin(&load, &calls[i]);
    }
    while (client_running(client) > 0) client_work(client, 1);
    json_t *report = load_report(&load, streams);
    fprintf(stderr, "%2d streams: %zu finished, %zu with gaps, %zu refused, %zu failed, %.2fx real time, first audio p95 %.3f s\n",
            streams, load.done, load.gaps, load.refused, load.failed, json_real_value(json_object_get(report, "times_real_time")),
            json_real_value(json_object_get(json_object_get(report, "first_audio_seconds"), "p95")));
    for (int i = 0; i < streams; i++) call_free(&calls[i]);
    free(calls);
    free(load.first);
    free(load.lead);
    free(load.gap_seconds);
    return report;
}

/* ---- small requests ---------------------------------------------------------------------------------------------------------- */

struct small {
    double until;
    size_t count, failed, room;
    double *seconds;
};

static void small_ended(struct call *c)
{
    struct small *s = c->context;
    s->failed += c->http == 0 || c->transport != 0;
    if (s->count == s->room) {
        s->room = s->room > 0 ? 2 * s->room : 4096;
        s->seconds = realloc(s->seconds, s->room * sizeof *s->seconds);
        if (s->seconds == NULL) die("out of memory");
    }
    s->seconds[s->count++] = c->last - c->begun;
    if (now() < s->until && !client_start(c->client, c)) die("out of memory");
}

json_t *measure_small(const char *base, const char *path, const char *body, int at_once, double seconds)
{
    struct client *client = client_open(base);
    struct call *calls = calloc((size_t)at_once, sizeof *calls);
    struct small s = {.until = now() + seconds};
    if (calls == NULL) die("out of memory");
    double begun = now();
    for (int i = 0; i < at_once; i++) {
        calls[i] = (struct call){.leave_after = SIZE_MAX, .ended = small_ended, .context = &s};
        snprintf(calls[i].path, sizeof calls[i].path, "%s", path);
        snprintf(calls[i].method, sizeof calls[i].method, "%s", body != NULL ? "POST" : "GET");
        if (body != NULL) {
            calls[i].body = copy_text(body);
            calls[i].body_bytes = strlen(body);
            snprintf(calls[i].type, sizeof calls[i].type, "application/json");
        }
        if (!client_start(client, &calls[i])) die("out of memory");
    }
    while (client_running(client) > 0) client_work(client, 1);
    double wall = now() - begun;
    json_t *report = json_pack("{s:s, s:i, s:I, s:I, s:f}", "path", path, "at_once", at_once, "requests", (json_int_t)s.count,
                               "failed", (json_int_t)s.failed, "per_second", (double)s.count / wall);
    json_object_set_new(report, "seconds", percentiles(s.seconds, s.count));
    for (int i = 0; i < at_once; i++) call_free(&calls[i]);
    free(calls);
    free(s.seconds);
    client_close(client);
    return report;
}
