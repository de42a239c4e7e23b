/* listen.c - see listen.h. */
#include "server/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "server/exchange.h"
#include "server/log.h"

#define BACKLOG 511
#define HEADER_ROOM ((size_t)64 << 10) /* a connection's buffer: headers, and the pieces of an answer */
#define FIRST_HEADER_SECONDS 30.0
#define UNSENT (128 << 10) /* bytes that the system holds for a slow reader; it doubles the number */
#define CROWD 256          /* connections beyond the limit that are told so; libmicrohttpd closes the rest without a word */
#define STACK ((size_t)512 << 10)

/* ---- the socket -------------------------------------------------------------------------------------------------------------- */

static thespis_status bind_one(struct th_server *s, const struct addrinfo *a, thespis_error *error)
{
    int one = 1;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) return th_fail_errno(error, "cannot make a socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
        th_fail_errno(error, "cannot listen on %s port %d", s->options.host, s->options.port);
        close(fd);
        return THESPIS_IO;
    }
    s->listener = fd;
    return THESPIS_OK;
}

static void read_port(struct th_server *s)
{
    struct sockaddr_storage bound;
    socklen_t size = sizeof bound;
    s->port = s->options.port;
    if (getsockname(s->listener, (struct sockaddr *)&bound, &size) != 0) return;
    if (bound.ss_family == AF_INET) s->port = ntohs(((struct sockaddr_in *)(void *)&bound)->sin_port);
    if (bound.ss_family == AF_INET6) s->port = ntohs(((struct sockaddr_in6 *)(void *)&bound)->sin6_port);
}

thespis_status th_listen(struct th_server *s, thespis_error *error)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list;
    char port[16];
    snprintf(port, sizeof port, "%d", s->options.port);
    int reason = getaddrinfo(s->options.host, port, &hints, &list);
    if (reason != 0)
        return th_fail(error, THESPIS_INVALID, "the host '%s' has no address: %s", s->options.host, gai_strerror(reason));
    thespis_status status = THESPIS_IO;
    for (const struct addrinfo *a = list; a != NULL && status != THESPIS_OK; a = a->ai_next) status = bind_one(s, a, error);
    freeaddrinfo(list);
    if (status == THESPIS_OK) read_port(s);
    return status;
}

/* ---- libmicrohttpd ----------------------------------------------------------------------------------------------------------- */

static void on_connection(void *context, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct th_server *s = context;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        th_link_close(*socket_context);
        *socket_context = NULL;
        atomic_fetch_sub(&s->connections, 1);
        return;
    }
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    int one = 1, unsent = UNSENT;
    int crowded = atomic_fetch_add(&s->connections, 1) >= s->options.connections;
    *socket_context = NULL; /* a connection without a link answers nothing */
    if (info == NULL) return;
    setsockopt(info->connect_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(info->connect_fd, SOL_SOCKET, SO_SNDBUF, &unsent, sizeof unsent);
    double seconds = s->options.idle_timeout < FIRST_HEADER_SECONDS ? s->options.idle_timeout : FIRST_HEADER_SECONDS;
    *socket_context = th_link_open(s->watch, info->connect_fd, seconds, crowded);
}

/* Paths are decoded by us, a part at a time. */
static size_t as_it_is(void *context, struct MHD_Connection *connection, char *text)
{
    (void)context;
    (void)connection;
    return strlen(text);
}

/* libmicrohttpd's own words, mostly of clients that went away: not worth a line each. */
static void quiet(void *context, const char *format, va_list arguments)
{
    (void)context;
    (void)format;
    (void)arguments;
}

thespis_status th_listen_start(struct th_server *s, thespis_error *error)
{
    unsigned flags =
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | MHD_USE_ITC | MHD_USE_ERROR_LOG;
    s->daemon = MHD_start_daemon(flags, 0, NULL, NULL, th_exchange_handle, s, MHD_OPTION_EXTERNAL_LOGGER, quiet, NULL,
                                 MHD_OPTION_LISTEN_SOCKET, s->listener, MHD_OPTION_CONNECTION_LIMIT,
                                 (unsigned)s->options.connections + CROWD, MHD_OPTION_CONNECTION_MEMORY_LIMIT, HEADER_ROOM,
                                 MHD_OPTION_THREAD_STACK_SIZE, STACK, MHD_OPTION_NOTIFY_COMPLETED, th_exchange_completed, s,
                                 MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_URI_LOG_CALLBACK, th_exchange_new, s,
                                 MHD_OPTION_UNESCAPE_CALLBACK, as_it_is, s, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
    if (s->daemon == NULL) return th_fail(error, THESPIS_IO, "cannot start the HTTP server on port %d", s->port);
    return THESPIS_OK;
}
