/* client.h - many HTTP requests at once over one libcurl multi handle, each noting when its bytes arrived. */
#ifndef BENCH_SERVE_CLIENT_H
#define BENCH_SERVE_CLIENT_H

#include <stddef.h>
#include <stdint.h>

struct arrival {
    double at;    /* seconds on the clock of now() */
    size_t bytes; /* of the body up to and with this piece */
};

/* One request. The first block is the caller's, and lives until `ended`. */
struct call {
    char method[8], path[120], type[40];
    char *body; /* owned; NULL: none */
    size_t body_bytes;
    size_t leave_after;    /* close the connection after so many bytes; SIZE_MAX: never, 0: before the first */
    double leave_seconds;  /* or after so long; 0: never */
    long bytes_per_second; /* a slow reader; 0: as fast as it comes */
    int keep;              /* the body is kept in `text` */
    void (*ended)(struct call *call);
    void *context;
    int kind, tries; /* the caller's */

    int http;                  /* 0: no answer */
    int transport;             /* CURLcode */
    int left;                  /* we closed it, as asked */
    int rate;                  /* X-Sample-Rate */
    double retry;              /* Retry-After; 0: none */
    double begun, first, last; /* first byte of the body and the last */
    size_t bytes;
    struct arrival *arrivals;
    size_t arrival_count, arrival_room;
    char *text;
    size_t text_room;
    void *handle, *headers;
    struct client *client;
};

struct client;
double now(void);
struct client *client_open(const char *base); /* "http://127.0.0.1:8080" */
void client_close(struct client *client);
/* Begins; returns 0 when memory is short. `ended` may start others. */
int client_start(struct client *client, struct call *call);
size_t client_running(const struct client *client);
/* Works for at most so long, or until a call has ended. */
void client_work(struct client *client, double seconds);
/* All by itself, for one request; returns the HTTP status, 0 for none. */
int client_simple(struct client *client, const char *method, const char *path, const char *type, const char *body, char **text);

void call_free(struct call *call); /* what it owns, not itself */
char *copy_text(const char *text);
void die(const char *what) __attribute__((noreturn));

#endif
