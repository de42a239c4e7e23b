/* test_file.c - files in and out: everything that can be wrong with a path, and nothing half-written under a name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

static char folder[] = "/tmp/thespis-file-XXXXXX";
static char name[64], part[80], fifo[64];

static int make_folder(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(name, sizeof name, "%s/a", folder);
    snprintf(part, sizeof part, "%s.part", name);
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    signal(SIGPIPE, SIG_IGN);
    return mkfifo(fifo, 0600);
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(name);
    unlink(fifo);
    return rmdir(folder);
}

static void put(const char *text)
{
    FILE *file = fopen(name, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

static void expect_content(const char *text)
{
    char *data;
    size_t bytes;
    assert_int_equal(th_file_read(name, 1 << 20, &data, &bytes, NULL), THESPIS_OK);
    assert_int_equal(bytes, strlen(text));
    assert_string_equal(data, text);
    th_free(data);
    assert_int_equal(access(part, F_OK), -1);
}

static void reading(void **state)
{
    struct th_map map;
    char *data;
    size_t bytes;
    thespis_error error;
    (void)state;
    put("hello");
    assert_int_equal(th_file_read(name, 5, &data, &bytes, NULL), THESPIS_OK);
    assert_string_equal(data, "hello");
    th_free(data);
    assert_int_equal(th_file_read(name, 4, &data, &bytes, &error), THESPIS_LIMIT);
    assert_null(data);
    assert_int_equal(th_map_open(name, &map, NULL), THESPIS_OK);
    assert_int_equal(map.bytes, 5);
    assert_memory_equal(map.data, "hello", 5);
    th_map_close(&map);
    th_map_close(&map);
    put("");
    assert_int_equal(th_file_read(name, 5, &data, &bytes, NULL), THESPIS_OK);
    assert_int_equal(bytes, 0);
    assert_string_equal(data, "");
    th_free(data);
    assert_int_equal(th_map_open(name, &map, NULL), THESPIS_OK);
    assert_int_equal(map.bytes, 0);
    assert_null(map.data);
    th_map_close(&map);
    assert_true(th_path_exists(name) && th_path_exists(folder) && !th_path_exists(part));
}

static void not_files(void **state)
{
    const char *const paths[] = {"/nonexistent", folder, fifo, "/dev/zero", "", "/dev/null/x"};
    const char *const words[] = {"No such file",       "folder",       "not a regular file",
                                 "not a regular file", "No such file", "Not a directory"};
    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct th_map map;
        char *data;
        size_t bytes;
        thespis_error error;
        assert_int_equal(th_map_open(paths[i], &map, &error), THESPIS_IO);
        assert_null(map.data);
        if (strstr(error.message, words[i]) == NULL) fail_msg("'%s' not in '%s'", words[i], error.message);
        assert_non_null(strstr(error.message, paths[i]));
        assert_int_equal(th_file_read(paths[i], 100, &data, &bytes, &error), THESPIS_IO);
        assert_null(data);
    }
    if (geteuid() == 0) return; /* root reads everything */
    put("secret");
    assert_int_equal(chmod(name, 0), 0);
    struct th_map map;
    thespis_error error;
    assert_int_equal(th_map_open(name, &map, &error), THESPIS_IO);
    assert_non_null(strstr(error.message, strerror(EACCES)));
    assert_int_equal(chmod(name, 0600), 0);
}

static void paths_join(void **state)
{
    static const char *const cases[][3] = {{"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path;
        assert_int_equal(th_path_join(cases[i][0], cases[i][1], &path, NULL), THESPIS_OK);
        assert_string_equal(path, cases[i][2]);
        th_free(path);
    }
}

static void committed_and_discarded(void **state)
{
    struct th_output output;
    (void)state;
    put("old");
    assert_int_equal(th_output_open(name, &output, NULL), THESPIS_OK);
    assert_true(output.seekable);
    assert_int_equal(th_output_write(&output, "abcdef", 6, NULL), THESPIS_OK);
    assert_int_equal(th_output_write(&output, NULL, 0, NULL), THESPIS_OK);
    assert_int_equal(output.written, 6);
    th_output_discard(&output);
    th_output_discard(&output);
    expect_content("old");
    assert_int_equal(th_output_open(name, &output, NULL), THESPIS_OK);
    assert_int_equal(th_output_write(&output, "abcdef", 6, NULL), THESPIS_OK);
    assert_int_equal(th_output_patch(&output, 1, "XY", 2, NULL), THESPIS_OK);
    assert_int_equal(th_output_write(&output, "g", 1, NULL), THESPIS_OK);
    assert_int_equal(th_output_commit(&output, NULL), THESPIS_OK);
    expect_content("aXYdefg");
    struct th_output zeroed = {0};
    th_output_discard(&zeroed);
}

/* Two writers of one name: the second is refused, and neither a left part nor a finished file is in the way of the next. */
static void one_writer(void **state)
{
    (void)state;
    struct th_output first, second;
    thespis_error error;
    assert_int_equal(th_output_open(name, &first, NULL), THESPIS_OK);
    assert_int_equal(th_output_write(&first, "first", 5, NULL), THESPIS_OK);
    assert_int_equal(th_output_open(name, &second, &error), THESPIS_IO);
    assert_non_null(strstr(error.message, "something else is writing it"));
    assert_int_equal(th_output_commit(&first, NULL), THESPIS_OK);
    expect_content("first");
    FILE *left = fopen(part, "wb");
    assert_non_null(left);
    assert_int_equal(fputs("left by a killed process", left) >= 0, 1);
    assert_int_equal(fclose(left), 0);
    assert_int_equal(th_output_open(name, &second, NULL), THESPIS_OK);
    assert_int_equal(th_output_write(&second, "2nd", 3, NULL), THESPIS_OK);
    assert_int_equal(th_output_commit(&second, NULL), THESPIS_OK);
    expect_content("2nd");
}

static void failures(void **state)
{
    struct th_output output;
    thespis_error error;
    char text[128];
    (void)state;
    assert_int_equal(th_output_open(folder, &output, &error), THESPIS_IO);
    assert_non_null(strstr(error.message, "folder"));
    assert_int_equal(th_output_open("", &output, &error), THESPIS_INVALID);
    snprintf(text, sizeof text, "%s/none/a", folder);
    assert_int_equal(th_output_open(text, &output, &error), THESPIS_IO);
    th_output_discard(&output);
    assert_int_equal(th_output_open("/dev/full", &output, &error), THESPIS_OK);
    assert_false(output.seekable);
    assert_int_equal(th_output_write(&output, "x", 1, &error), THESPIS_IO);
    assert_non_null(strstr(error.message, strerror(ENOSPC)));
    th_output_discard(&output);
    /* The name turned into a folder that is not empty while the file was written. */
    unlink(name);
    assert_int_equal(th_output_open(name, &output, NULL), THESPIS_OK);
    snprintf(text, sizeof text, "%s/inside", name);
    assert_int_equal(mkdir(name, 0700), 0);
    assert_int_equal(mkdir(text, 0700), 0);
    assert_int_equal(th_output_commit(&output, &error), THESPIS_IO);
    assert_non_null(strstr(error.message, "rename"));
    assert_int_equal(access(part, F_OK), -1);
    assert_int_equal(rmdir(text), 0);
    assert_int_equal(rmdir(name), 0);
    /* A link planted under the part's name is not followed. */
    assert_int_equal(symlink("/dev/null", part), 0);
    assert_int_equal(th_output_open(name, &output, &error), THESPIS_IO);
    assert_int_equal(unlink(part), 0);
    if (geteuid() == 0) return; /* root may write everywhere */
    put("kept");
    assert_int_equal(chmod(name, 0400), 0);
    assert_int_equal(th_output_open(name, &output, &error), THESPIS_IO);
    assert_int_equal(chmod(name, 0600), 0);
    expect_content("kept");
}

static void closed_pipe(void **state)
{
    struct th_output output;
    thespis_error error;
    (void)state;
    int reader = open(fifo, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_int_equal(th_output_open(fifo, &output, NULL), THESPIS_OK);
    assert_int_equal(th_output_write(&output, "abc", 3, NULL), THESPIS_OK);
    close(reader);
    assert_int_equal(th_output_write(&output, "abc", 3, &error), THESPIS_IO);
    assert_non_null(strstr(error.message, strerror(EPIPE)));
    th_output_discard(&output);
    assert_true(th_path_exists(fifo));
}

#define MUCH 300000

static void *slow_reader(void *argument)
{
    static char buffer[4096];
    long got = 0, n;
    usleep(20000);
    while ((n = read(*(int *)argument, buffer, sizeof buffer)) > 0) got += n;
    return (void *)(intptr_t)got;
}

/* Standard output is a pipe, non-blocking because someone else made it so, and its reader is slow. */
static void standard_output(void **state)
{
    struct th_output output;
    pthread_t thread;
    void *got;
    int ends[2], old = dup(STDOUT_FILENO);
    char *data = test_calloc(MUCH, 1);
    (void)state;
    fflush(stdout);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[1]);
    pthread_create(&thread, NULL, slow_reader, &ends[0]);
    thespis_status opened = th_output_open("-", &output, NULL);
    thespis_status wrote = th_output_write(&output, data, MUCH, NULL);
    thespis_status committed = th_output_commit(&output, NULL);
    dup2(old, STDOUT_FILENO);
    close(old);
    pthread_join(thread, &got);
    close(ends[0]);
    test_free(data);
    assert_int_equal(opened, THESPIS_OK);
    assert_int_equal(wrote, THESPIS_OK);
    assert_int_equal(committed, THESPIS_OK);
    assert_int_equal((intptr_t)got, MUCH);
}

static void on_alarm(int number)
{
    (void)number;
}

/* A signal comes every half millisecond, without SA_RESTART: writes are interrupted before a byte or cut short after some, and all
 * arrive in order. */
static void interrupted(void **state)
{
    struct sigaction action = {.sa_handler = on_alarm}, before;
    const struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    struct th_output output;
    pthread_t thread;
    void *got;
    int ends[2], old = dup(STDOUT_FILENO);
    char *data = test_calloc(MUCH, 1);
    sigset_t alarm_set, mask;
    (void)state;
    fflush(stdout);
    sigemptyset(&alarm_set);
    sigaddset(&alarm_set, SIGALRM);
    assert_int_equal(pipe(ends), 0);
    pthread_sigmask(SIG_BLOCK, &alarm_set, &mask); /* the reader shall not be interrupted */
    pthread_create(&thread, NULL, slow_reader, &ends[0]);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[1]);
    sigaction(SIGALRM, &action, &before);
    setitimer(ITIMER_REAL, &often, NULL);
    thespis_status opened = th_output_open("-", &output, NULL);
    thespis_status wrote = th_output_write(&output, data, MUCH, NULL);
    thespis_status committed = th_output_commit(&output, NULL);
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &before, NULL);
    dup2(old, STDOUT_FILENO);
    close(old);
    pthread_join(thread, &got);
    close(ends[0]);
    test_free(data);
    assert_int_equal(opened, THESPIS_OK);
    assert_int_equal(wrote, THESPIS_OK);
    assert_int_equal(committed, THESPIS_OK);
    assert_int_equal((intptr_t)got, MUCH);
}

static void one_file_has_one_path(void **state)
{
    (void)state;
    char *a, *b, *cwd = getcwd(NULL, 0), spelled[1200], link[600];
    thespis_error error;
    put("here");
    const char *last = strrchr(name, '/') + 1;
    snprintf(spelled, sizeof spelled, "%.*s/./../%s/%s", (int)(last - 1 - name), name, strrchr(folder, '/') + 1, last);
    assert_int_equal(th_path_resolve(name, &a, &error), THESPIS_OK);
    assert_int_equal(th_path_resolve(spelled, &b, &error), THESPIS_OK);
    assert_string_equal(a, b);
    assert_true(th_path_same(name, spelled));
    th_free(b);
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(th_path_resolve(last, &b, &error), THESPIS_OK);
    assert_string_equal(a, b);
    assert_int_equal(chdir(cwd), 0);
    free(cwd);
    th_free(a);
    th_free(b);
    assert_int_equal(th_path_resolve("/not-there.wav", &a, &error), THESPIS_OK);
    assert_string_equal(a, "/not-there.wav");
    th_free(a);
    assert_int_equal(th_path_resolve("/nonexistent/x.wav", &a, &error), THESPIS_IO);
    assert_null(a);
    assert_non_null(strstr(error.message, "/nonexistent"));

    snprintf(link, sizeof link, "%s.link", name);
    assert_int_equal(symlink(name, link), 0);
    assert_true(th_path_same(name, link));
    assert_int_equal(unlink(link), 0);
    assert_false(th_path_same(name, link));
    assert_false(th_path_same("/dev/null", "/dev/null"));
    assert_false(th_path_same(name, folder));
}

#ifdef TH_FAULTS
static void allocations_may_fail(void **state)
{
    (void)state;
    put("hello");
    for (long n = 1, done = 0; !done; n++) {
        struct th_output output;
        char *data = NULL;
        size_t bytes;
        th_memory_fail_from(n);
        thespis_status status = th_file_read(name, 100, &data, &bytes, NULL);
        if (status == THESPIS_OK) status = th_output_open(name, &output, NULL);
        if (status == THESPIS_OK) th_output_discard(&output);
        th_memory_fail_from(0);
        done = status == THESPIS_OK;
        if (!done) assert_int_equal(status, THESPIS_MEMORY);
        th_free(data);
        assert_true(n < 10);
    }
    expect_content("hello");
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reading),
        cmocka_unit_test(not_files),
        cmocka_unit_test(paths_join),
        cmocka_unit_test(committed_and_discarded),
        cmocka_unit_test(one_writer),
        cmocka_unit_test(failures),
        cmocka_unit_test(closed_pipe),
        cmocka_unit_test(standard_output),
        cmocka_unit_test(interrupted),
        cmocka_unit_test(one_file_has_one_path),
#ifdef TH_FAULTS
        cmocka_unit_test(allocations_may_fail),
#endif
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
