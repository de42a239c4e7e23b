/* mixed.c - a thousand requests of all kinds: streams read to the end, clients that leave, slow readers, bad input. Each has the
 * one outcome it must have; afterwards nothing may be left of any of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum kind { STREAM, WHOLE, EVENTS, LEAVE, SLOW, BAD, LOOK, KINDS };
static const char *const kind_names[] = {"streams", "whole", "events", "leave", "slow", "bad", "look"};
/* Of 100. */
static const unsigned shares[] = {36, 10, 10, 17, 4, 16, 7};

#define MOST_SLOW 4 /* at a time: each keeps a lane, as long as it reads */
#define MOST_TRIES 200

struct mixed {
    struct client *client;
    unsigned state;
    int to_start, slow, failures, retried;
    int waiting; /* calls that were told 429 */
    struct call **again;
    double *again_at;
    size_t count[KINDS], good[KINDS];
    char first_failure[300];
};

static const struct {
    const char *method, *path, *type, *body;
    int http;
} bad[] = {{"POST", "/v1/audio/speech", "application/json", "{\"input\":", 400},
           {"POST", "/v1/audio/speech", "application/json", "[]", 400},
           {"POST", "/v1/audio/speech", "application/json", "{\"input\":\"   \"}", 400},
           {"POST", "/v1/audio/speech", "application/json", "{\"input\":\"a <|im_end|> b\"}", 400},
           {"POST", "/v1/audio/speech", "application/json", "{\"input\":\"Hi.\",\"voice\":\"nobody\"}", 400},
           {"POST", "/v1/audio/speech", "application/json", "{\"input\":\"Hi.\",\"tone\":\"warm\"}", 400},
           {"POST", "/v1/audio/speech", "application/json", "{\"input\":\"Hi.\",\"references\":[{\"data\":\"UklG*\"}]}", 400},
           {"POST", "/v1/audio/speech", "application/json", "{\"input\":\"Hi.\",\"references\":[{\"data\":\"UklGRgAA\"}]}", 400},
           {"POST", "/v1/audio/speech", "text/csv", "a,b", 415},
           {"POST", "/v1/tts", "application/msgpack", "\x81\xa4text\xdb\xff\xff\xff\xff", 400},
           {"POST", "/v1/tts", "application/json", "{\"text\":\"Hi.\",\"reference_id\":\"nobody\"}", 404},
           {"POST", "/v1/tts", "multipart/form-data; boundary=x", "--x\r\nnonsense", 400},
           {"DELETE", "/v1/audio/voices/nobody", "", NULL, 404},
           {"GET", "/v1/audio/speech", "", NULL, 405},
           {"GET", "/nowhere", "", NULL, 404}};
static const char *const looks[] = {"/health", "/ready", "/metrics", "/v1/models", "/v1/audio/voices", "/openapi.json"};

static unsigned pick(struct mixed *m)
{
    unsigned at = draw(&m->state, 100), kind = 0;
    while (at >= shares[kind]) at -= shares[kind++];
    return kind == SLOW && m->slow >= MOST_SLOW ? STREAM : kind;
}

static void aim(struct call *c, const char *method, const char *path, const char *type, char *body)
{
    snprintf(c->method, sizeof c->method, "%s", method);
    snprintf(c->path, sizeof c->path, "%s", path);
    snprintf(c->type, sizeof c->type, "%s", type);
    c->body = body;
    c->body_bytes = body != NULL ? strlen(body) : 0;
}

static void make_bad(struct mixed *m, struct call *c)
{
    unsigned which = draw(&m->state, sizeof bad / sizeof *bad);
    aim(c, bad[which].method, bad[which].path, bad[which].type, bad[which].body != NULL ? copy_text(bad[which].body) : NULL);
    c->tries = bad[which].http; /* what it must be answered */
}

static void make(struct mixed *m, struct call *c)
{
    static const char *const formats[] = {"pcm", "mp3", "opus", "flac", "wav"};
    const char *format = formats[draw(&m->state, 5)], *type = "application/json";
    unsigned which = draw(&m->state, 1000), seed = draw(&m->state, 1u << 30);
    void (*then)(struct call *) = c->ended;
    call_free(c);
    memset(c, 0, sizeof *c);
    c->ended = then;
    c->context = m;
    c->leave_after = SIZE_MAX;
    c->kind = (int)pick(m);
    m->count[c->kind]++;
    if (c->kind == BAD) {
        make_bad(m, c);
    } else if (c->kind == LOOK) {
        aim(c, "GET", looks[which % (sizeof looks / sizeof *looks)], "", NULL);
    } else {
        const char *more = c->kind == EVENTS ? ",\"stream_format\":\"sse\"" : "";
        char *body = speech_body(which, seed, c->kind == SLOW ? "pcm" : format, more);
        char *stream = strstr(body, "\"stream\":true");
        if (c->kind == WHOLE) memcpy(stream, "\"stream\":null", 13);
        aim(c, "POST", "/v1/audio/speech", type, body);
    }
    if (c->kind == LEAVE && draw(&m->state, 3) == 0)
        c->leave_seconds = 0.001 + 0.001 * draw(&m->state, 300);
    else if (c->kind == LEAVE)
        c->leave_after = 1 + draw(&m->state, 60000);
    m->slow += c->kind == SLOW;
    if (c->kind == SLOW) c->bytes_per_second = 30000;
}

/* A client that left may also have got all of a short answer first. */
static int is_good(const struct call *c)
{
    int whole = c->http == 200 && c->transport == 0 && c->bytes > 0;
    if (c->kind == LEAVE) return c->left || whole;
    if (c->kind == BAD) return c->http == c->tries && c->transport == 0;
    return whole;
}

static void note_failure(struct mixed *m, const struct call *c)
{
    m->failures++;
    if (m->first_failure[0] != '\0') return;
    snprintf(m->first_failure, sizeof m->first_failure, "%s: %s %s gave %d (curl %d) after %zu bytes: %.120s", kind_names[c->kind],
             c->method, c->path, c->http, c->transport, c->bytes, c->body != NULL ? c->body : "");
}

static void start_next(struct mixed *m, struct call *c)
{
    if (m->to_start == 0) return;
    m->to_start--;
    make(m, c);
    if (!client_start(m->client, c)) die("out of memory");
}

static void mixed_ended(struct call *c)
{
    struct mixed *m = c->context;
    if (c->http == 429 && c->kind != BAD && c->tries < MOST_TRIES) { /* told to come back */
        c->tries++;
        m->retried++;
        m->again[m->waiting] = c;
        m->again_at[m->waiting++] = now() + (c->retry > 0 ? c->retry : 1);
        return;
    }
    m->slow -= c->kind == SLOW;
    if (is_good(c))
        m->good[c->kind]++;
    else
        note_failure(m, c);
    start_next(m, c);
}

static void start_waiting(struct mixed *m)
{
    for (int i = 0; i < m->waiting;) {
        if (m->again_at[i] > now()) {
            i++;
            continue;
        }
        struct call *c = m->again[i];
        m->again[i] = m->again[--m->waiting];
        m->again_at[i] = m->again_at[m->waiting];
        if (!client_start(m->client, c)) die("out of memory");
    }
}

static json_t *footprint_json(const struct server *server, int done)
{
    struct footprint f = server_footprint(server);
    return json_pack("{s:i, s:I, s:I, s:I}", "requests", done, "rss_kib", (json_int_t)f.rss_kib, "threads", (json_int_t)f.threads,
                     "files", (json_int_t)f.files);
}

/* Seconds until nothing runs any more; -1 when that does not come. */
static double wait_for_rest(struct client *client)
{
    double begun = now();
    while (now() - begun < 20)
        if (server_metric(client, "thespis_requests_running") <= 1 && server_metric(client, "thespis_lanes_active") == 0 &&
            server_metric(client, "thespis_requests_waiting") == 0)
            return now() - begun;
    return -1;
}

static json_t *mixed_report(struct mixed *m, int requests, json_t *memory)
{
    json_t *kinds = json_object();
    for (int k = 0; k < KINDS; k++)
        json_object_set_new(kinds, kind_names[k],
                            json_pack("{s:I, s:I}", "sent", (json_int_t)m->count[k], "good", (json_int_t)m->good[k]));
    double rest = wait_for_rest(m->client);
    m->failures += rest < 0;
    return json_pack("{s:i, s:i, s:i, s:f, s:o, s:o}", "requests", requests, "failures", m->failures, "told_to_come_back",
                     m->retried, "lanes_back_seconds", rest, "kinds", kinds, "memory", memory);
}

json_t *measure_mixed(struct client *client, const struct server *server, int requests, int at_once, int *failures)
{
    struct mixed m = {.client = client, .state = 1, .to_start = requests};
    struct call *calls = calloc((size_t)at_once, sizeof *calls);
    m.again = calloc((size_t)at_once, sizeof *m.again);
    m.again_at = calloc((size_t)at_once, sizeof *m.again_at);
    json_t *memory = json_array();
    if (calls == NULL || m.again == NULL || m.again_at == NULL) die("out of memory");
    int noted = requests + 1;
    for (int i = 0; i < at_once; i++) {
        calls[i].ended = mixed_ended;
        start_next(&m, &calls[i]);
    }
    while (client_running(client) > 0 || m.waiting > 0) {
        client_work(client, 0.1);
        start_waiting(&m);
        if (m.to_start > noted - (requests + 9) / 10) continue;
        noted = m.to_start;
        json_array_append_new(memory, footprint_json(server, requests - m.to_start));
    }
    json_t *report = mixed_report(&m, requests, memory);
    json_array_append_new(memory, footprint_json(server, requests));
    if (m.first_failure[0] != '\0') fprintf(stderr, "first failure: %s\n", m.first_failure);
    *failures = m.failures;
    for (int i = 0; i < at_once; i++) call_free(&calls[i]);
    free(calls);
    free(m.again);
    free(m.again_at);
    return report;
}
