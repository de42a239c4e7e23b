/* server.h - the HTTP server, from outside: open it, let it run, drain it, close it. It never prints but to its log and never
 * exits. */
#ifndef THESPIS_SERVER_SERVER_H
#define THESPIS_SERVER_SERVER_H

#include "thespis.h"

#define TH_SERVER_MAX_KEYS 64

/* Strings belong to the caller and outlive the server. */
struct th_server_options {
    const char *host;     /* numeric address or name */
    int port;             /* 0: any free one, see th_server_port */
    const char *prefix;   /* "/speech": in front of every path; NULL: none */
    const char *model;    /* the name that clients see */
    const char *instance; /* X-Instance; NULL: the host's name */
    const char *voices;   /* folder; NULL: the default one */
    thespis_engine_options engine;

    const char *api_keys[TH_SERVER_MAX_KEYS], *api_key_file;
    int api_key_count, metrics_key;
    const char *cors; /* an origin, or "*"; NULL: off */

    int queue, key_requests, connections, max_input_chars; /* key_requests 0: no limit */
    double max_body;                                       /* MiB */
    double max_audio_seconds, max_queue_seconds;
    double body_timeout, write_timeout, idle_timeout;
    double drain_delay, drain_timeout;

    const char *default_format, *access_log; /* "text", "json" or "off" */
    int ignore_unknown_fields, ignore_instructions, strict_model, strict_voice, require_consent, allow_half_close, guard;
    const char *media_dir; /* paths in references; NULL: off */
    int fetch;             /* http(s) URLs in references */
};

struct th_server;

/* Listens and answers /health at once; the model is loaded on a thread of the server's own. Call with the signals blocked that the
 * caller waits for. */
thespis_status th_server_open(const struct th_server_options *options, struct th_server **server, thespis_error *error);
int th_server_port(const struct th_server *server);
/* Readable (poll) when the server has ended by itself: drained, or the model could not be loaded. */
int th_server_done(const struct th_server *server);
/* Begins to end: /ready 503 at once, new work for the drain delay, then none, then waits for what runs. May be repeated. */
void th_server_drain(struct th_server *server);
/* Reads the file of API keys again. After a failure the old keys stay. */
thespis_status th_server_reload(struct th_server *server, thespis_error *error);
/* Ends what still runs, and tells how it went: a failure to load, otherwise THESPIS_OK. */
thespis_status th_server_close(struct th_server *server, thespis_error *error);

#endif
