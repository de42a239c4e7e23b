/* test_reference_source.c - base64, data: URLs, the media folder and fetching: what is allowed, and every way around it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "server/reference_source.h"

static thespis_error error;

static void says(thespis_status got, thespis_status want, const char *words)
{
    if (got != want || strstr(error.message, words) == NULL)
        fail_msg("status %d, not %d with '%s': %s", (int)got, (int)want, words, got == THESPIS_OK ? "" : error.message);
}

/* ---- base64 -------------------------------------------------------------------------------------------------------------------
 */

static void decodes(const char *text, const char *want)
{
    struct th_bytes out = {0};
    error.message[0] = '\0';
    says(th_base64_decode(text, strlen(text), 1000, &out, &error), THESPIS_OK, "");
    assert_int_equal(out.count, strlen(want));
    assert_memory_equal(out.at, want, out.count);
    th_bytes_free(&out);
}

static void refuses(const char *text, thespis_status status, const char *words)
{
    struct th_bytes out = {0};
    says(th_base64_decode(text, strlen(text), 1000, &out, &error), status, words);
    assert_null(out.at); /* nothing was sized by it */
}

static void base64(void **state)
{
    (void)state;
    decodes("TQ==", "M");
    decodes("TQ", "M");
    decodes("TWE=", "Ma");
    decodes("TWE", "Ma");
    decodes("TWFu", "Man");
    decodes("TW\r\nFu\n", "Man");
    decodes("TQ=\n=\r\n", "M");
    decodes("Pj8+Pz4/", ">?>?>?");
    decodes("data:audio/x-wav;base64,TWFu", "Man");
    decodes("DATA:;BASE64,TWFu", "Man");
    decodes("data:audio/ogg; codecs=opus;base64,TWFu", "Man");
    refuses("", THESPIS_INVALID, "empty");
    refuses("\n\n", THESPIS_INVALID, "empty");
    refuses("====", THESPIS_INVALID, "'=' at position 0");
    refuses("TWFu=", THESPIS_INVALID, "'=' at position 4");
    refuses("TQ===", THESPIS_INVALID, "'=' at position 4");
    refuses("TQ==TQ==", THESPIS_INVALID, "'T' at position 4");
    refuses("T", THESPIS_INVALID, "middle of a byte");
    refuses("TWFuT", THESPIS_INVALID, "5 characters end");
    refuses("TW Fu", THESPIS_INVALID, "0x20 at position 2");
    refuses("TW\tFu", THESPIS_INVALID, "0x09 at position 2");
    refuses("TW-u", THESPIS_INVALID, "'-' at position 2");
    refuses("TWF_", THESPIS_INVALID, "'_' at position 3");
    refuses("TWF\xC3\xA9", THESPIS_INVALID, "0xC3 at position 3");
    refuses("data:audio/wav;base64,TW*u", THESPIS_INVALID, "'*' at position 24");
    refuses("data:audio/wav,TWFu", THESPIS_INVALID, ";base64");
    refuses("data:audio/wav;base64", THESPIS_INVALID, "comma");
    refuses("data:", THESPIS_INVALID, "comma");
    refuses("data:,", THESPIS_INVALID, ";base64");
    struct th_bytes out = {0};
    assert_int_equal(th_base64_decode("TW\0u", 4, 10, &out, &error), THESPIS_INVALID);
}

static void base64_size(void **state)
{
    (void)state;
    char text[1400];
    memset(text, 'A', sizeof text);
    struct th_bytes out = {0};
    says(th_base64_decode(text, 1336, 1000, &out, &error), THESPIS_LIMIT, "1002 bytes, at most 1000");
    text[7] = '*'; /* too large comes before wrong */
    says(th_base64_decode(text, 1336, 1000, &out, &error), THESPIS_LIMIT, "at most 1000");
    assert_null(out.at);
    memset(text, 'A', sizeof text);
    assert_int_equal(th_base64_decode(text, 1334, 1000, &out, &error), THESPIS_OK);
    assert_int_equal(out.count, 1000);
    th_bytes_free(&out);
}

/* All lengths and byte values, written by a plain encoder. */
static void base64_round(void **state)
{
    (void)state;
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t bytes[600];
    char text[900];
    for (size_t n = 1; n < sizeof bytes; n += 7) {
        size_t used = 0;
        for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(i * 37 + n);
        for (size_t bit = 0; bit < n * 8; bit += 6) {
            unsigned pair = (unsigned)bytes[bit / 8] << 8 | (bit / 8 + 1 < n ? bytes[bit / 8 + 1] : 0);
            text[used++] = digits[pair >> (10 - bit % 8) & 63];
        }
        struct th_bytes out = {0};
        assert_int_equal(th_base64_decode(text, used, 1000, &out, &error), THESPIS_OK);
        assert_int_equal(out.count, n);
        assert_memory_equal(out.at, bytes, n);
        th_bytes_free(&out);
    }
}

/* ---- the media folder ---------------------------------------------------------------------------------------------------------
 */

static char folder[64];

static void put(const char *name, const char *content)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(content, file);
    fclose(file);
}

static void link_to(const char *target, const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(symlink(target, path), 0);
}

static int make_folder(void **state)
{
    (void)state;
    char path[200];
    strcpy(folder, "/tmp/thespis-media-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/media", folder);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/media/deep", folder);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/media2", folder);
    mkdir(path, 0700);
    put("secret", "secret");
    put("media2/secret", "secret");
    put("media/a b.wav", "inside");
    put("media/deep/c.wav", "deep");
    put("media/large", "0123456789012345678901234567890123456789");
    link_to("../secret", "media/out");
    link_to("deep/c.wav", "media/in");
    link_to("..", "media/up");
    link_to("loop", "media/loop");
    snprintf(path, sizeof path, "%s/media/fifo", folder);
    return mkfifo(path, 0600);
}

static int remove_folder(void **state)
{
    (void)state;
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static void media_gives(const char *text, const char *want)
{
    char media[100];
    snprintf(media, sizeof media, "%s/media", folder);
    struct th_reference_rules rules;
    th_reference_rules_init(&rules);
    rules.media_dir = media;
    rules.max_bytes = 30;
    struct th_bytes out = {0};
    thespis_status status = th_reference_read(&rules, text, strlen(text), &out, &error);
    if (want != NULL) {
        if (status != THESPIS_OK) fail_msg("%s: %s", text, error.message);
        assert_int_equal(out.count, strlen(want));
        assert_memory_equal(out.at, want, out.count);
    } else {
        says(status, THESPIS_INVALID, "no such file in the media folder");
        assert_int_equal(out.count, 0);
    }
    th_bytes_free(&out);
}

static void media(void **state)
{
    (void)state;
    char text[300];
    media_gives("a b.wav", "inside");
    media_gives("deep/c.wav", "deep");
    media_gives("deep/../a b.wav", "inside");
    media_gives("in", "deep");
    static const char *const outside[] = {"../secret",
                                          "out",
                                          "up/secret",
                                          "../media2/secret",
                                          "deep/../../secret",
                                          "loop",
                                          "missing",
                                          "deep",
                                          "fifo",
                                          "",
                                          ".",
                                          "..",
                                          "/",
                                          "/etc/passwd",
                                          "/proc/self/environ",
                                          "/dev/zero",
                                          "ftp://x/y",
                                          "file:///etc/passwd"};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) media_gives(outside[i], NULL);
    snprintf(text, sizeof text, "%s/media/deep/c.wav", folder);
    media_gives(text, "deep");
    snprintf(text, sizeof text, "file://%s/media/a%%20b.wav", folder);
    media_gives(text, "inside");
    snprintf(text, sizeof text, "FILE://localhost%s/media/a%%20b.wav", folder);
    media_gives(text, "inside");
    snprintf(text, sizeof text, "file:%s/media/a%%20b.wav", folder);
    media_gives(text, "inside");
    snprintf(text, sizeof text, "file://%s/media/%%2e%%2e/secret", folder);
    media_gives(text, NULL);
    snprintf(text, sizeof text, "file://%s/media/a%%20b.wav%%00", folder);
    media_gives(text, NULL);
    snprintf(text, sizeof text, "%s/media2/secret", folder);
    media_gives(text, NULL);
    char long_name[5000];
    memset(long_name, 'a', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    media_gives(long_name, NULL);
}

static void media_other(void **state)
{
    (void)state;
    char media[100];
    snprintf(media, sizeof media, "%s/media", folder);
    struct th_reference_rules rules;
    th_reference_rules_init(&rules);
    struct th_bytes out = {0};
    says(th_reference_read(&rules, "a b.wav", 7, &out, &error), THESPIS_INVALID, "reads no files");
    says(th_reference_read(&rules, "http://a/b", 10, &out, &error), THESPIS_INVALID, "fetches no URLs");
    rules.media_dir = media;
    rules.max_bytes = 30;
    says(th_reference_read(&rules, "large", 5, &out, &error), THESPIS_LIMIT, "40 bytes, at most 30");
    says(th_reference_read(&rules, "in\0x", 4, &out, &error), THESPIS_INVALID, "no such file");
    says(th_reference_read(&rules, "file://host/x", 13, &out, &error), THESPIS_INVALID, "another machine");
    says(th_reference_read(&rules, "file://", 7, &out, &error), THESPIS_INVALID, "another machine");
    says(th_reference_read(&rules, "file:///a%2", 11, &out, &error), THESPIS_INVALID, "lone '%'");
    says(th_reference_read(&rules, "file:///a%zz", 12, &out, &error), THESPIS_INVALID, "lone '%'");
    assert_int_equal(th_reference_read(&rules, "data:;base64,TWFu", 17, &out, &error), THESPIS_OK);
    assert_int_equal(out.count, 3);
    rules.max_bytes = 2;
    says(th_reference_read(&rules, "data:;base64,TWFu", 17, &out, &error), THESPIS_LIMIT, "at most 2");
    th_bytes_free(&out);
}

/* ---- addresses ----------------------------------------------------------------------------------------------------------------
 */

static int is_public(const char *text)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) return th_address_is_public((struct sockaddr *)&v4);
    assert_int_equal(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
    return th_address_is_public((struct sockaddr *)&v6);
}

static void addresses(void **state)
{
    (void)state;
    static const char *const open[] = {"8.8.8.8",         "1.1.1.1",        "9.255.255.255",        "11.0.0.0",
                                       "100.63.255.255",  "100.128.0.0",    "172.15.255.255",       "172.32.0.0",
                                       "192.167.255.255", "198.17.255.255", "198.20.0.0",           "223.255.255.255",
                                       "2606:4700::1111", "2001:4860::8",   "::ffff:8.8.8.8",       "64:ff9b::808:808",
                                       "169.253.0.1",     "2002:808:808::", "2a00:1450:4001:800::1"};
    static const char *const closed[] = {
        "0.0.0.0",      "0.1.2.3",         "10.0.0.1",         "10.255.255.255", "100.64.0.1",       "100.127.255.255",
        "127.0.0.1",    "127.255.255.254", "169.254.169.254",  "172.16.0.1",     "172.31.255.255",   "192.0.0.1",
        "192.0.2.1",    "192.88.99.1",     "192.168.1.1",      "198.18.0.1",     "198.19.255.255",   "198.51.100.7",
        "203.0.113.7",  "224.0.0.1",       "239.255.255.255",  "240.0.0.1",      "255.255.255.255",  "::",
        "::1",          "::ffff:10.0.0.1", "::ffff:127.0.0.1", "::7f00:1",       "64:ff9b::a00:1",   "64:ff9b:1::1",
        "100::1",       "2001::1",         "2001:db8::1",      "2002:7f00:1::",  "2002:c0a8:101::1", "fc00::1",
        "fd12:3456::1", "fe80::1",         "fec0::1",          "ff02::1",        "3fff::1",          "5f00::1"};
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        if (!is_public(open[i])) fail_msg("%s should be allowed", open[i]);
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++)
        if (is_public(closed[i])) fail_msg("%s should be refused", closed[i]);
    struct sockaddr_storage other = {.ss_family = AF_UNIX};
    assert_false(th_address_is_public((struct sockaddr *)&other));
}

/* ---- fetching -----------------------------------------------------------------------------------------------------------------
 */

/* A web server in a thread: one answer for each path. */
static int listener, port;
static char hosted[100];

static void answer(int client, const char *request)
{
    char text[400];
    int n = 0;
    if (strncmp(request, "GET /ok", 7) == 0) {
        n = snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    } else if (strncmp(request, "GET /hop", 8) == 0 && request[8] > '0') {
        n = snprintf(text, sizeof text, "HTTP/1.1 302 Found\r\nLocation: /hop%c\r\nContent-Length: 4\r\n\r\njunk", request[8] - 1);
    } else if (strncmp(request, "GET /hop0", 9) == 0) {
        n = snprintf(text, sizeof text, "HTTP/1.1 302 Found\r\nLocation: %s/ok\r\nContent-Length: 0\r\n\r\n", hosted);
    } else if (strncmp(request, "GET /file", 9) == 0) {
        n = snprintf(text, sizeof text, "HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n");
    } else if (strncmp(request, "GET /missing", 12) == 0) {
        n = snprintf(text, sizeof text, "HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\nsecret");
    } else if (strncmp(request, "GET /empty", 10) == 0) {
        n = snprintf(text, sizeof text, "HTTP/1.1 204 No Content\r\n\r\n");
    } else if (strncmp(request, "GET /cut", 8) == 0) {
        n = snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello");
    } else if (strncmp(request, "GET /endless", 12) == 0) {
        static char junk[65536];
        n = snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\n\r\n");
        if (write(client, text, (size_t)n) == n)
            while (write(client, junk, sizeof junk) > 0) continue;
        n = 0;
    } else if (strncmp(request, "GET /slow", 9) == 0) {
        n = snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\n\r\n");
        while (write(client, text, (size_t)n) > 0) usleep(50000);
        n = 0;
    }
    if (n > 0 && write(client, text, (size_t)n) != n) perror("test server");
}

static void *serve(void *argument)
{
    (void)argument;
    for (int client; (client = accept(listener, NULL, NULL)) >= 0; close(client)) {
        char request[2000];
        ssize_t n = read(client, request, sizeof request - 1);
        if (n <= 0) continue;
        request[n] = '\0';
        answer(client, request);
    }
    return NULL;
}

static pthread_t server;

static int start_server(void **state)
{
    (void)state;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof here;
    signal(SIGPIPE, SIG_IGN);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&here, sizeof here), 0);
    assert_int_equal(listen(listener, 10), 0);
    getsockname(listener, (struct sockaddr *)&here, &size);
    port = ntohs(here.sin_port);
    snprintf(hosted, sizeof hosted, "http://127.0.0.1:%d", port);
    return pthread_create(&server, NULL, serve, NULL);
}

static int stop_server(void **state)
{
    (void)state;
    shutdown(listener, SHUT_RDWR);
    pthread_join(server, NULL);
    close(listener);
    return 0;
}

static struct th_reference_rules fetch_rules(int fetch_private)
{
    struct th_reference_rules rules;
    th_reference_rules_init(&rules);
    rules.fetch = 1;
    rules.fetch_private = fetch_private;
    rules.fetch_seconds = 5;
    rules.max_bytes = 100000;
    return rules;
}

static void fetch(const struct th_reference_rules *rules, const char *path, thespis_status status, const char *words)
{
    char url[200];
    struct th_bytes out = {0};
    snprintf(url, sizeof url, "%s%s", hosted, path);
    error.message[0] = '\0';
    says(th_reference_read(rules, url, strlen(url), &out, &error), status, status == THESPIS_OK ? "" : words);
    assert_int_equal(out.count, status == THESPIS_OK ? strlen(words) : 0);
    if (out.count > 0) assert_memory_equal(out.at, words, out.count);
    th_bytes_free(&out);
}

static void fetching(void **state)
{
    (void)state;
    struct th_reference_rules rules = fetch_rules(1);
    setenv("http_proxy", "http://127.0.0.1:9", 1); /* a proxy connects where we cannot look: none is used */
    fetch(&rules, "/ok", THESPIS_OK, "hello");
    unsetenv("http_proxy");
    fetch(&rules, "/hop2", THESPIS_OK, "hello");
    fetch(&rules, "/hop3", THESPIS_INVALID, "more than 3 times");
    fetch(&rules, "/file", THESPIS_INVALID, "cannot be fetched");
    fetch(&rules, "/missing", THESPIS_INVALID, "answers 404");
    fetch(&rules, "/empty", THESPIS_INVALID, "answers 204");
    fetch(&rules, "/cut", THESPIS_INVALID, "cannot be fetched");
    fetch(&rules, "/endless", THESPIS_LIMIT, "more than 100000 bytes");
    fetch(&rules, "/nothing", THESPIS_INVALID, "cannot be fetched");
    fetch(&rules, "/with blank", THESPIS_INVALID, "0x20 at position");
    rules.fetch_seconds = 0.3;
    fetch(&rules, "/slow", THESPIS_INVALID, "longer than 0.3 s");
}

/* Each of these reaches the server above when private addresses are allowed. */
static void fetching_inside(void **state)
{
    (void)state;
    static const char *const hosts[] = {"127.0.0.1", "localhost", "2130706433",         "0x7f000001", "0177.0.0.1",
                                        "127.1",     "0.0.0.0",   "[::ffff:127.0.0.1]", "LOCALHOST.", "127.0.0.1."};
    struct th_reference_rules rules = fetch_rules(0);
    char url[200];
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        struct th_bytes out = {0};
        snprintf(url, sizeof url, "http://%s:%d/ok", hosts[i], port);
        assert_int_equal(th_reference_read(&rules, url, strlen(url), &out, &error), THESPIS_INVALID);
        if (i < 2 && strstr(error.message, "not public") == NULL) fail_msg("%s: %s", url, error.message);
        assert_int_equal(out.count, 0);
        th_bytes_free(&out);
    }
    struct th_bytes out = {0};
    snprintf(url, sizeof url, "http://user:word@127.0.0.1:%d/ok", port);
    rules.fetch_private = 1;
    assert_int_equal(th_reference_read(&rules, url, strlen(url), &out, &error), THESPIS_INVALID);
    char long_url[3000];
    memset(long_url, 'a', sizeof long_url);
    memcpy(long_url, "http://", 7);
    says(th_reference_read(&rules, long_url, sizeof long_url, &out, &error), THESPIS_LIMIT, "at most 2048");
}

static int yes(void *context)
{
    ++*(int *)context;
    return 1;
}

static void fetching_for_nobody(void **state)
{
    (void)state;
    int asked = 0;
    struct th_reference_rules rules = fetch_rules(1);
    rules.gone = yes;
    rules.context = &asked;
    fetch(&rules, "/slow", THESPIS_CANCELLED, "gone");
    assert_true(asked > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(base64),
        cmocka_unit_test(base64_size),
        cmocka_unit_test(base64_round),
        cmocka_unit_test_setup_teardown(media, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(media_other, make_folder, remove_folder),
        cmocka_unit_test(addresses),
        cmocka_unit_test_setup_teardown(fetching, start_server, stop_server),
        cmocka_unit_test_setup_teardown(fetching_inside, start_server, stop_server),
        cmocka_unit_test_setup_teardown(fetching_for_nobody, start_server, stop_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
