/* bench.h - the three measurements of serve_bench, each as JSON. */
#ifndef BENCH_SERVE_BENCH_H
#define BENCH_SERVE_BENCH_H

#include <jansson.h>

#include "client.h"
#include "server.h"

/* {"p50", "p95", "p99", "max"}; sorts the values. */
json_t *percentiles(double *values, size_t count);
/* A linear congruential draw, the same in every run. */
unsigned draw(unsigned *state, unsigned below);
/* The body of a speech request: sentence number `which`, streamed in `format`, 44.1 kHz where that is a choice. */
char *speech_body(unsigned which, unsigned seed, const char *format, const char *more);

/* Closed loop: `streams` at once, each slot `rounds` of them, one after another. */
json_t *measure_load(struct client *client, int streams, int rounds);
/* Small requests of a bare libmicrohttpd and of ours, for scale. */
json_t *measure_small(const char *base, const char *path, const char *body, int at_once, double seconds);
/* `requests` of every kind, well and badly meant; *failures counts what was not as it should be. */
json_t *measure_mixed(struct client *client, const struct server *server, int requests, int at_once, int *failures);

#endif
