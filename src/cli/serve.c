/* serve.c - `thespis serve`: the server until a signal ends it. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/options.h"
#include "server/server.h"

/* What runs, where, and under which terms. */
static void greet(const struct cli_settings *s, const thespis_engine_options *engine, int port)
{
    int numbers = strchr(s->server.host, ':') != NULL; /* of IPv6: in brackets in a URL */
    if (s->quiet) return;
    fprintf(stderr, "thespis %s serves '%s' (%s) on http://%s%s%s:%d%s\n", thespis_version(), s->server.model, engine->checkpoint,
            numbers ? "[" : "", s->server.host, numbers ? "]" : "", port, s->server.prefix != NULL ? s->server.prefix : "");
    fputs("Voices and weights have owners: the published Drama 3 weights are under Fish Audio's community licence, and a hosted\n"
          "service with them needs a licence from Fish Audio. Clone only voices you have the right to. (NOTICE tells more.)\n",
          stderr);
    if (s->server.api_key_count == 0 && s->server.api_key_file == NULL)
        fputs("No API key is set: whoever reaches this port may speak.\n", stderr);
}

static int block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, set, NULL);
    return signalfd(-1, set, SFD_CLOEXEC);
}

static void reload(struct th_server *server)
{
    thespis_error error;
    if (th_server_reload(server, &error) != THESPIS_OK)
        fprintf(stderr, "thespis: the old API keys stay: %s\n", error.message);
    else
        fputs("thespis: API keys are read again\n", stderr);
}

/* One signal. The first that ends asks politely; after the second nothing is waited for. */
static void take_signal(int fd, struct th_server *server, int *ending)
{
    struct signalfd_siginfo info;
    if (read(fd, &info, sizeof info) != (ssize_t)sizeof info) return;
    if (info.ssi_signo == SIGHUP) {
        reload(server);
        return;
    }
    if (*ending) _exit(1);
    *ending = 1;
    th_server_drain(server);
}

static void wait_for_end(int fd, struct th_server *server)
{
    int ending = 0;
    struct pollfd set[2] = {{.fd = th_server_done(server), .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    for (;;) {
        if (poll(set, 2, -1) < 0 && errno != EINTR) return;
        if (set[0].revents & POLLIN) return;
        if (set[1].revents & POLLIN) take_signal(fd, server, &ending);
    }
}

int cli_serve(const struct cli_settings *settings)
{
    struct th_server_options options = settings->server;
    struct th_server *server;
    thespis_error error;
    sigset_t signals;
    if (settings->word_count > 0) return cli_misuse("serve takes options only, not '%.100s'", settings->words[0]);
    int misused = cli_engine_options(settings, 0, &options.engine);
    if (misused != 0) return misused;
    options.voices = settings->voices;
    options.guard = settings->guard;
    int fd = block_signals(&signals);
    if (fd < 0) {
        th_fail_errno(&error, "cannot wait for signals");
        return cli_fail(&error);
    }
    if (th_server_open(&options, &server, &error) != THESPIS_OK) {
        close(fd);
        return cli_fail(&error);
    }
    greet(settings, &options.engine, th_server_port(server));
    wait_for_end(fd, server);
    thespis_status status = th_server_close(server, &error);
    close(fd);
    return status == THESPIS_OK ? 0 : cli_fail(&error);
}
