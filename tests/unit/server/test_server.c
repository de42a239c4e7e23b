/* A server inside the test: many clients at once, memory that ends at every allocation, ending while others speak. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/memory.h"
#include "server/notify.h"
#include "server/server.h"

#define STAGE TEST_SOURCE_DIR "/models/stage"

static struct th_server *server;

static struct th_server_options made_options(void)
{
    struct th_server_options o = {.host = "127.0.0.1",
                                  .model = "drama-3",
                                  .voices = "/nonexistent",
                                  .queue = 16,
                                  .connections = 64,
                                  .max_body = 1,
                                  .max_audio_seconds = 60,
                                  .max_queue_seconds = 60,
                                  .body_timeout = 30,
                                  .write_timeout = 30,
                                  .idle_timeout = 30,
                                  .drain_timeout = 30,
                                  .default_format = "wav",
                                  .access_log = "off"};
    thespis_engine_options_init(&o.engine);
    o.engine.checkpoint = STAGE;
    o.engine.lanes = 4;
    o.engine.max_rows = 512;
    o.engine.threads = 2;
    return o;
}

/* Sends bytes on a connection of its own; what came back until the server closed, freed with free. */
static char *exchange(const char *request, size_t *bytes)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)th_server_port(server))};
    size_t room = 1 << 20, count = 0;
    char *answer = malloc(room);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    if (answer == NULL || fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0) abort();
    if (send(fd, request, strlen(request), MSG_NOSIGNAL) < 0) request = "";
    for (ssize_t n = 1; n > 0 && count<room - 1; count += n> 0 ? (size_t)n : 0) n = recv(fd, answer + count, room - 1 - count, 0);
    close(fd);
    answer[count] = '\0';
    *bytes = count;
    return answer;
}

/* The status of one request; 0 when the connection was closed without an answer. *body_bytes may be NULL. */
static int ask(const char *method, const char *path, const char *body, size_t *body_bytes)
{
    char request[2000];
    size_t bytes;
    int status = 0;
    snprintf(request, sizeof request,
             "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
             method, path, strlen(body), body);
    char *answer = exchange(request, &bytes);
    if (bytes > 12) status = atoi(answer + 9);
    const char *end = strstr(answer, "\r\n\r\n");
    if (body_bytes != NULL) *body_bytes = end != NULL ? bytes - (size_t)(end + 4 - answer) : 0;
    free(answer);
    return status;
}

#define SHORT "{\"input\":\"Hi.\",\"seed\":1,\"max_new_tokens\":4}"
#define SHORT_BYTES (44 + 4 * 2048 * 2)

static int wait_until_ready(void **unused)
{
    (void)unused;
    thespis_error error;
    struct th_server_options o = made_options();
    signal(SIGPIPE, SIG_IGN);
    if (th_server_open(&o, &server, &error) != THESPIS_OK) fail_msg("%s", error.message);
    for (int i = 0; i < 3000 && ask("GET", "/ready", "", NULL) != 200; i++) poll(NULL, 0, 20);
    assert_int_equal(ask("GET", "/ready", "", NULL), 200);
    return 0;
}

static void alive(void)
{
    size_t bytes;
    assert_int_equal(ask("POST", "/v1/audio/speech", SHORT, &bytes), 200);
    assert_int_equal(bytes, SHORT_BYTES);
}

/* ---- many at once ------------------------------------------------------------------------------------------------------------ */

static void *client(void *context)
{
    static const struct {
        const char *method, *path, *body;
        int status;
    } asks[] = {
        {"POST", "/v1/audio/speech", SHORT, 200},
        {"POST", "/v1/audio/speech", "{\"input\":\"Hi.\",\"response_format\":\"pcm\",\"max_new_tokens\":6}", 200},
        {"POST", "/v1/tts", "{\"text\":\"Ho.\",\"max_new_tokens\":4}", 200},
        {"POST", "/v1/audio/speech", "{\"input\":\" \"}", 400},
        {"POST", "/v1/audio/speech/batch", "{\"max_new_tokens\":3,\"items\":[{\"input\":\"a\"},{\"input\":\"b\"}]}", 200},
        {"GET", "/metrics", "", 200},
        {"GET", "/v1/audio/voices", "", 200},
        {"GET", "/openapi.json", "", 200},
        {"DELETE", "/v1/audio/speech", "", 405},
    };
    intptr_t wrong = 0, number = (intptr_t)context;
    for (size_t i = 0; i < 18; i++) {
        size_t k = (i * 5 + (size_t)number) % (sizeof asks / sizeof *asks);
        int status = ask(asks[k].method, asks[k].path, asks[k].body, NULL);
        wrong += status != asks[k].status && status != 429;
    }
    return (void *)wrong;
}

static void many_at_once(void **unused)
{
    (void)unused;
    pthread_t thread[8];
    for (intptr_t i = 0; i < 8; i++) assert_int_equal(pthread_create(&thread[i], NULL, client, (void *)i), 0);
    for (int i = 0; i < 8; i++) {
        void *wrong;
        pthread_join(thread[i], &wrong);
        assert_int_equal((intptr_t)wrong, 0);
    }
    alive();
}

/* ---- leaving ----------------------------------------------------------------------------------------------------------------- */

/* A client that closes its sending side and goes on reading. */
static int half_closing(void)
{
    static const char request[] = "POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                                  "Content-Length: 43\r\n\r\n" SHORT;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)th_server_port(server))};
    char answer[64] = "";
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(sizeof SHORT - 1, 43);
    assert_true(send(fd, request, sizeof request - 1, MSG_NOSIGNAL) > 0);
    shutdown(fd, SHUT_WR);
    recv(fd, answer, sizeof answer - 1, MSG_WAITALL);
    close(fd);
    return strlen(answer) > 12 ? atoi(answer + 9) : 0;
}

static void half_closed_is_gone(void **unused)
{
    (void)unused;
    assert_int_not_equal(half_closing(), 200);
    alive();
}

static void half_closed_may_stay(void **unused)
{
    (void)unused;
    struct th_server_options o = made_options();
    struct th_server *first = server;
    thespis_error error;
    o.allow_half_close = 1;
    assert_int_equal(th_server_open(&o, &server, &error), THESPIS_OK);
    for (int i = 0; i < 3000 && ask("GET", "/ready", "", NULL) != 200; i++) poll(NULL, 0, 20);
    int status = half_closing();
    assert_int_equal(th_server_close(server, &error), THESPIS_OK);
    server = first;
    assert_int_equal(status, 200);
}

/* What systemd is told, at a socket in the file system and at one with an abstract name. */
static void systemd_is_told(void **unused)
{
    (void)unused;
    static const char *const names[] = {"/tmp/thespis-notify-test", "@thespis-notify-test"};
    for (int i = 0; i < 2; i++) {
        struct sockaddr_un at = {.sun_family = AF_UNIX};
        char got[32] = "";
        int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
        memcpy(at.sun_path, names[i], strlen(names[i]));
        if (i == 1) at.sun_path[0] = '\0';
        unlink(names[i]);
        socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(names[i]));
        assert_int_equal(bind(fd, (struct sockaddr *)&at, size), 0);
        setenv("NOTIFY_SOCKET", names[i], 1);
        th_notify("READY=1");
        unsetenv("NOTIFY_SOCKET");
        assert_int_equal(recv(fd, got, sizeof got - 1, MSG_DONTWAIT), 7);
        assert_string_equal(got, "READY=1");
        close(fd);
        unlink(names[i]);
    }
    setenv("NOTIFY_SOCKET", "relative", 1);
    th_notify("READY=1"); /* nobody there: nothing happens */
    unsetenv("NOTIFY_SOCKET");
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------ */

#ifdef TH_FAULTS
/* All allocations from the n-th on fail: the request gets an answer that says so, or none; the next one is as if nothing had been.
 */
static void memory_that_ends(const char *path, const char *body)
{
    int answered = 0, good = 0;
    for (long n = 1; n < 400 && good < 3; n++) {
        th_memory_fail_from(n);
        int status = ask("POST", path, body, NULL);
        th_memory_fail_from(0);
        if (status != 0 && status != 200 && status != 500 && status != 503 && status != 413)
            fail_msg("allocation %ld: %d", n, status);
        answered += status == 503;
        good = status == 200 ? good + 1 : 0;
        if (n % 4 == 0) alive();
    }
    assert_true(answered > 3);
    assert_int_equal(good, 3);
    alive();
}

static void memory_of_a_request(void **unused)
{
    (void)unused;
    memory_that_ends("/v1/audio/speech", SHORT);
}

static void memory_of_a_stream(void **unused)
{
    (void)unused;
    memory_that_ends("/v1/tts", "{\"text\":\"Hi.\",\"format\":\"flac\",\"max_new_tokens\":6}");
}
#endif

/* ---- the end ----------------------------------------------------------------------------------------------------------------- */

static void *speak_long(void *unused)
{
    (void)unused;
    static const char body[] =
        "{\"input\":\"The rain in Spain stays mainly in the plain, and nobody knows why it does so at all.\","
        "\"response_format\":\"pcm\"}";
    ask("POST", "/v1/audio/speech", body, NULL);
    return NULL;
}

/* Closed at once: threads that wait for speech come back, nothing is left. */
static int close_while_speaking(void **unused)
{
    (void)unused;
    pthread_t thread[3];
    thespis_error error;
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&thread[i], NULL, speak_long, NULL), 0);
    poll(NULL, 0, 100);
    assert_int_equal(th_server_close(server, &error), THESPIS_OK);
    for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
    return 0;
}

static void a_checkpoint_that_is_not_there(void **unused)
{
    (void)unused;
    struct th_server_options o = made_options();
    struct th_server *other;
    thespis_error error;
    o.engine.checkpoint = TEST_SOURCE_DIR "/nothing";
    assert_int_equal(th_server_open(&o, &other, &error), THESPIS_OK);
    struct pollfd done = {.fd = th_server_done(other), .events = POLLIN};
    assert_int_equal(poll(&done, 1, 60000), 1);
    assert_int_not_equal(th_server_close(other, &error), THESPIS_OK);
    assert_non_null(strstr(error.message, "nothing"));
    o = made_options();
    o.api_key_file = TEST_SOURCE_DIR "/nothing";
    assert_int_not_equal(th_server_open(&o, &other, &error), THESPIS_OK);
    o = made_options();
    o.prefix = "speech";
    assert_int_not_equal(th_server_open(&o, &other, &error), THESPIS_OK);
    o = made_options();
    o.port = th_server_port(server);
    assert_int_not_equal(th_server_open(&o, &other, &error), THESPIS_OK);
    assert_null(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_at_once),
                                       cmocka_unit_test(half_closed_is_gone),
                                       cmocka_unit_test(half_closed_may_stay),
                                       cmocka_unit_test(systemd_is_told),
#ifdef TH_FAULTS
                                       cmocka_unit_test(memory_of_a_request),
                                       cmocka_unit_test(memory_of_a_stream),
#endif
                                       cmocka_unit_test(a_checkpoint_that_is_not_there)};
    return cmocka_run_group_tests(tests, wait_until_ready, close_while_speaking);
}
