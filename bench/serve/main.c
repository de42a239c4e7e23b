/* main.c - serve_bench: how many listeners one server keeps ahead of their play-out, and whether a thousand requests of every kind
 * leave anything behind. Prints JSON; a line for each step goes to standard error.
 *
 *     build/release/serve_bench build/release/thespis [--streams 1,2,4] [--rounds 6] [--requests 1000] [--at-once 24] [--log FILE]
 *                               [-- OPTIONS OF thespis serve]
 *
 * Exit status 0 when no request was lost, all lanes came back and the server ended cleanly. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

struct settings {
    const char *program, *streams, *log;
    int rounds, requests, at_once;
    char **options; /* of the server */
};

static int number(const char *text)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < 0 || value > 1000000) die("expected a whole number from 0 to 1000000");
    return (int)value;
}

static struct settings parse(int argc, char **argv)
{
    static char *none[] = {NULL};
    struct settings s = {
        .streams = "1,2,3,4,6,8,12,16", .log = "serve_bench.log", .rounds = 6, .requests = 1000, .at_once = 24, .options = none};
    if (argc < 2)
        die("usage: serve_bench THESPIS [--streams N,N] [--rounds N] [--requests N] [--at-once N] [--log FILE] [-- SERVE OPTIONS]");
    s.program = argv[1];
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            s.options = argv + i + 1;
            break;
        }
        if (i + 1 == argc) die("an option without its value");
        const char *value = argv[++i];
        if (strcmp(argv[i - 1], "--streams") == 0)
            s.streams = value;
        else if (strcmp(argv[i - 1], "--log") == 0)
            s.log = value;
        else if (strcmp(argv[i - 1], "--rounds") == 0)
            s.rounds = number(value);
        else if (strcmp(argv[i - 1], "--requests") == 0)
            s.requests = number(value);
        else if (strcmp(argv[i - 1], "--at-once") == 0)
            s.at_once = number(value);
        else
            die("unknown option");
    }
    return s;
}

/* How much is HTTP itself: a bare libmicrohttpd beside the same of ours. */
static json_t *small_requests(const struct server *server)
{
    static const char text[] =
        "{\"model\":\"drama-3\",\"voice\":\"default\",\"input\":\"   \",\"response_format\":\"pcm\",\"seed\":12345}";
    char base[64];
    json_t *rows = json_object();
    snprintf(base, sizeof base, "http://127.0.0.1:%d", echo_start());
    json_object_set_new(rows, "libmicrohttpd_echo", measure_small(base, "/", text, 8, 3));
    echo_stop();
    json_object_set_new(rows, "health", measure_small(server->base, "/health", NULL, 8, 3));
    json_object_set_new(rows, "refused_speech", measure_small(server->base, "/v1/audio/speech", text, 8, 3));
    const char *name;
    json_t *row;
    json_object_foreach(rows, name, row)
        fprintf(stderr, "%s: %.0f requests a second, p99 %.2f ms\n", name, json_real_value(json_object_get(row, "per_second")),
                1000 * json_real_value(json_object_get(json_object_get(row, "seconds"), "p99")));
    return rows;
}

/* *best: the most streams at once of which every one stayed ahead; a level above one that failed does not count. */
static json_t *loads(struct client *client, const struct settings *s, int *best)
{
    json_t *rows = json_array();
    int ahead = 1;
    for (const char *at = s->streams; *at != '\0';) {
        char *end;
        int streams = (int)strtol(at, &end, 10);
        if (end == at || streams < 1 || streams > 1000) die("--streams takes numbers from 1 to 1000 with commas between them");
        json_t *row = measure_load(client, streams, s->rounds);
        ahead &= json_integer_value(json_object_get(row, "streams_with_gaps")) == 0 &&
                 json_integer_value(json_object_get(row, "failed")) == 0 &&
                 json_integer_value(json_object_get(row, "refused")) == 0;
        if (ahead) *best = streams;
        json_array_append_new(rows, row);
        at = end + (*end == ',');
    }
    return rows;
}

int main(int argc, char **argv)
{
    struct settings s = parse(argc, argv);
    struct server server;
    int best = 0, failures = 0;
    double seconds;
    server_start(&server, s.program, s.options, s.log);
    struct client *client = client_open(server.base);
    json_t *report = json_pack("{s:i}", "schema", 1);
    json_object_set_new(report, "small_requests", small_requests(&server));
    json_object_set_new(report, "load", loads(client, &s, &best));
    json_object_set_new(report, "streams_all_ahead", json_integer(best));
    json_object_set_new(report, "mixed", measure_mixed(client, &server, s.requests, s.at_once, &failures));
    client_close(client);
    int status = server_end(&server, &seconds);
    json_object_set_new(report, "end", json_pack("{s:i, s:f}", "exit_status", status, "seconds", seconds));
    json_dumpf(report, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(4));
    putchar('\n');
    json_decref(report);
    fprintf(stderr, "every stream ahead up to %d at once; %d of %d mixed requests not as they should be; server ended with %d\n",
            best, failures, s.requests, status);
    return failures > 0 || status != 0 || fflush(stdout) != 0;
}
