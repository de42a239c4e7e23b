/* log.c - see log.h. */
#include "server/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

/* A line at once; nobody can do anything about a log that takes none. */
static void put(struct th_server *s, const char *text, size_t bytes)
{
    pthread_mutex_lock(&s->log);
    while (bytes > 0) {
        ssize_t n = write(STDERR_FILENO, text, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        text += n;
        bytes -= (size_t)n;
    }
    pthread_mutex_unlock(&s->log);
}

static void stamp(char out[32])
{
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(out, 24, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(out + n, 32 - n, ".%03ldZ", now.tv_nsec / 1000000);
}

void th_log(struct th_server *s, const char *format, ...)
{
    char when[32], text[700], line[1600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    stamp(when);
    int json = strcmp(s->options.access_log, "json") == 0, n;
    if (json) {
        json_t *object = json_pack("{s:s,s:s}", "time", when, "message", text);
        char *dump = object != NULL ? json_dumps(object, JSON_COMPACT) : NULL;
        n = snprintf(line, sizeof line, "%s\n", dump != NULL ? dump : "{}");
        free(dump);
        json_decref(object);
    } else {
        n = snprintf(line, sizeof line, "%s thespis: %s\n", when, text);
    }
    put(s, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

static void client_of(const struct th_exchange *x, char out[64])
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *address = info != NULL ? info->client_addr : NULL;
    strcpy(out, "-");
    if (address == NULL) return;
    if (address->sa_family == AF_INET) inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)address)->sin_addr, out, 64);
    if (address->sa_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, out, 64);
}

/* Every field of a line is a fixed word, a number, or harmless by construction (the id, the address). */
static int json_line(const struct th_exchange *x, const char *when, const char *route, const char *client, double seconds,
                     char *line, size_t size)
{
    int n = snprintf(
        line, size,
        "{\"time\":\"%s\",\"id\":\"%s\",\"client\":\"%s\",\"method\":\"%s\",\"route\":\"%s\",\"status\":%d,\"bytes\":%llu,"
        "\"seconds\":%.3f",
        when, x->id, client, x->route != NULL ? x->route->method : "-", route, x->status, (unsigned long long)x->sent, seconds);
    if (x->finish != THESPIS_FINISH_NONE)
        n += snprintf(line + n, size - (size_t)n, ",\"first_audio\":%.3f,\"frames\":%d,\"finish\":\"%s\"", x->first_audio,
                      x->frames, thespis_finish_name(x->finish));
    n += snprintf(line + n, size - (size_t)n, "}\n");
    return n;
}

static int text_line(const struct th_exchange *x, const char *when, const char *route, const char *client, double seconds,
                     char *line, size_t size)
{
    int n = snprintf(line, size, "%s %s %s %s %s %d %llu bytes %.3f s", when, x->id, client,
                     x->route != NULL ? x->route->method : "-", route, x->status, (unsigned long long)x->sent, seconds);
    if (x->finish != THESPIS_FINISH_NONE)
        n += snprintf(line + n, size - (size_t)n, " first audio %.3f s, %d frames, %s", x->first_audio, x->frames,
                      thespis_finish_name(x->finish));
    n += snprintf(line + n, size - (size_t)n, "\n");
    return n;
}

void th_log_access(struct th_exchange *x, enum MHD_RequestTerminationCode code)
{
    struct th_server *s = x->server;
    char when[32], client[64], line[700];
    double seconds = th_now() - x->started;
    const char *route = x->route != NULL ? x->route->path : "other";
    /* One that libmicrohttpd refused by itself, or that ended before an answer. */
    if (x->status == 0) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_HTTP_STATUS);
        x->status = info != NULL && info->http_status != 0 ? (int)info->http_status : 499;
    }
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK && x->status < 400 && !x->out.failed) x->status = 499;
    if (x->finish == THESPIS_FINISH_CANCELLED && x->status != 429) x->status = 499;
    th_metrics_request(&s->metrics, route, x->status, x->sent, seconds);
    if (strcmp(s->options.access_log, "off") == 0) return;
    stamp(when);
    client_of(x, client);
    int n = strcmp(s->options.access_log, "json") == 0 ? json_line(x, when, route, client, seconds, line, sizeof line)
                                                       : text_line(x, when, route, client, seconds, line, sizeof line);
    put(s, line, (size_t)n);
}
