/* server.c - see server.h. */
#include "server.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

#define MOST_OPTIONS 60

static int free_port(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof here;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&here, sizeof here) != 0 || getsockname(fd, (struct sockaddr *)&here, &size) != 0)
        die("no free port");
    close(fd);
    return ntohs(here.sin_port);
}

static void run_program(const char *program, char **options, int port, const char *log)
{
    char number[16];
    char *words[MOST_OPTIONS + 5] = {(char *)(size_t)program, "serve", "--port", number};
    snprintf(number, sizeof number, "%d", port);
    for (int i = 0; options[i] != NULL && i < MOST_OPTIONS; i++) words[4 + i] = options[i];
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd >= 0) {
        dup2(fd, 1);
        dup2(fd, 2);
    }
    execv(program, words);
    _exit(127);
}

void server_start(struct server *server, const char *program, char **options, const char *log)
{
    server->port = free_port();
    snprintf(server->base, sizeof server->base, "http://127.0.0.1:%d", server->port);
    server->pid = fork();
    if (server->pid < 0) die("cannot fork");
    if (server->pid == 0) run_program(program, options, server->port, log);
    struct client *client = client_open(server->base);
    for (double until = now() + 120; client_simple(client, "GET", "/ready", NULL, NULL, NULL) != 200;) {
        if (now() > until || waitpid(server->pid, NULL, WNOHANG) != 0) die("the server does not become ready; see its log");
        usleep(50000);
    }
    client_close(client);
}

int server_end(struct server *server, double *seconds)
{
    int status;
    double begun = now();
    kill(server->pid, SIGTERM);
    if (waitpid(server->pid, &status, 0) != server->pid) die("the server is lost");
    *seconds = now() - begun;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct footprint server_footprint(const struct server *server)
{
    struct footprint f = {0, 0, 0};
    char path[64], line[200];
    snprintf(path, sizeof path, "/proc/%d/status", (int)server->pid);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "VmRSS:", 6) == 0) f.rss_kib = atol(line + 6);
        if (strncmp(line, "Threads:", 8) == 0) f.threads = atol(line + 8);
    }
    if (file != NULL) fclose(file);
    snprintf(path, sizeof path, "/proc/%d/fd", (int)server->pid);
    DIR *folder = opendir(path);
    while (folder != NULL && readdir(folder) != NULL) f.files++;
    if (folder != NULL) closedir(folder);
    f.files -= 2; /* . and .. */
    return f;
}

double server_metric(struct client *client, const char *name)
{
    char *text;
    size_t n = strlen(name);
    double value = -1;
    client_simple(client, "GET", "/metrics", NULL, NULL, &text);
    for (const char *line = text; line != NULL && value < 0; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, n) == 0 && line[n] == ' ') value = atof(line + n);
    }
    free(text);
    return value;
}

/* ---- echo -------------------------------------------------------------------------------------------------------------------- */

struct echoed {
    char bytes[4096];
    size_t count;
};

static struct MHD_Daemon *echo;

static enum MHD_Result answer(void *context, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_size, void **request)
{
    (void)context, (void)url, (void)method, (void)version;
    struct echoed *e = *request;
    if (e == NULL) {
        *request = calloc(1, sizeof *e);
        return *request != NULL ? MHD_YES : MHD_NO;
    }
    if (*upload_size > 0) {
        size_t n = *upload_size < sizeof e->bytes - e->count ? *upload_size : sizeof e->bytes - e->count;
        memcpy(e->bytes + e->count, upload, n);
        e->count += n;
        *upload_size = 0;
        return MHD_YES;
    }
    struct MHD_Response *response = MHD_create_response_from_buffer(e->count, e->bytes, MHD_RESPMEM_MUST_COPY);
    enum MHD_Result result = MHD_queue_response(connection, 200, response);
    MHD_destroy_response(response);
    return result;
}

static void done(void *context, struct MHD_Connection *connection, void **request, enum MHD_RequestTerminationCode code)
{
    (void)context, (void)connection, (void)code;
    free(*request);
}

int echo_start(void)
{
    int port = free_port();
    echo = MHD_start_daemon(MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD, (uint16_t)port, NULL, NULL, answer,
                            NULL, MHD_OPTION_NOTIFY_COMPLETED, done, NULL, MHD_OPTION_END);
    if (echo == NULL) die("cannot start the echo");
    return port;
}

void echo_stop(void)
{
    MHD_stop_daemon(echo);
}
