/* server.h - the server under test as a child process, and what the system says of it. */
#ifndef BENCH_SERVE_SERVER_H
#define BENCH_SERVE_SERVER_H

#include <sys/types.h>

struct client;

struct server {
    pid_t pid;
    int port;
    char base[64];
};
/* PROGRAM serve --port N OPTIONS...; returns when /ready says yes. Its log goes to `log`. */
void server_start(struct server *server, const char *program, char **options, const char *log);
/* SIGTERM; its exit status, or 128 + signal. */
int server_end(struct server *server, double *seconds);

struct footprint {
    long rss_kib, threads, files;
};
struct footprint server_footprint(const struct server *server);
/* The value of a metric without labels; -1 when it is not there. */
double server_metric(struct client *client, const char *name);

/* A bare libmicrohttpd that answers with what it was sent, in this process; returns its port. */
int echo_start(void);
void echo_stop(void);

#endif
