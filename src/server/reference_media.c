/* reference_media.c - files that the operator's media folder holds; see reference_source.h.
 *
 * Paths are resolved first, so that nothing outside is ever opened on the way that everybody takes. Then the opened file itself is
 * asked where it lies: a link that was changed between the two makes no difference. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "server/reference_source.h"

static thespis_status refuse(thespis_error *error)
{
    return th_fail(error, THESPIS_INVALID, "no such file in the media folder");
}

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The path of a file: URL, on this machine; *path [count + 1] is filled. */
static thespis_status url_path(const char *text, size_t count, char *path, thespis_error *error)
{
    size_t at = 5, n = 0; /* behind "file:" */
    if (count >= 7 && memcmp(text + 5, "//", 2) == 0) {
        const char *slash = memchr(text + 7, '/', count - 7);
        size_t host = slash != NULL ? (size_t)(slash - text) - 7 : count - 7;
        if (slash == NULL || (host > 0 && !(host == 9 && strncasecmp(text + 7, "localhost", 9) == 0)))
            return th_fail(error, THESPIS_INVALID, "file: URL of another machine");
        at = 7 + host;
    }
    for (; at < count; at++) {
        int high = -1, low = -1;
        if (text[at] == '%' && at + 2 < count) {
            high = hex(text[at + 1]);
            low = hex(text[at + 2]);
        }
        if (text[at] == '%' && (high < 0 || low < 0)) return th_fail(error, THESPIS_INVALID, "file: URL with a lone '%%'");
        path[n++] = text[at] == '%' ? (char)(high << 4 | low) : text[at];
        at += text[at] == '%' ? 2 : 0;
    }
    path[n] = '\0';
    return memchr(path, '\0', n) == NULL ? THESPIS_OK : refuse(error);
}

/* *path is absolute, freed with th_free. */
static thespis_status absolute(const char *folder, const char *text, size_t count, char **path, thespis_error *error)
{
    size_t before = strlen(folder) + 1;
    if (count == 0 || count >= PATH_MAX || memchr(text, '\0', count) != NULL) return refuse(error);
    TH_TRY(TH_ALLOC(path, before + count + 1, "a path", error));
    thespis_status status = THESPIS_OK;
    char *given = *path + before; /* behind the folder's name, which is put there for what is not absolute */
    if (count >= 5 && strncasecmp(text, "file:", 5) == 0)
        status = url_path(text, count, given, error);
    else
        memcpy(given, text, count);
    if (status == THESPIS_OK && given[0] == '/') {
        memmove(*path, given, strlen(given) + 1);
    } else if (status == THESPIS_OK) {
        memcpy(*path, folder, before - 1);
        (*path)[before - 1] = '/';
    } else {
        th_free(*path);
        *path = NULL;
    }
    return status;
}

static int is_inside(const char *folder, const char *path)
{
    size_t n = strlen(folder);
    if (strcmp(folder, "/") == 0) return 1;
    return strncmp(folder, path, n) == 0 && path[n] == '/';
}

/* Where the opened file lies now. */
static int lies_inside(const char *folder, int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = '\0';
    return is_inside(folder, path);
}

static thespis_status read_all(int fd, size_t max_bytes, struct th_bytes *out, thespis_error *error)
{
    size_t begin = out->count;
    for (;;) {
        TH_TRY(th_bytes_reserve(out, 65536, error));
        ssize_t n = read(fd, out->at + out->count, 65536);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return th_fail(error, THESPIS_INVALID, "the file cannot be read");
        if (n == 0) return THESPIS_OK;
        out->count += (size_t)n;
        if (out->count - begin > max_bytes)
            return th_fail(error, THESPIS_LIMIT, "the file has more than %zu bytes, which is the most allowed", max_bytes);
    }
}

static thespis_status read_inside(const char *folder, const char *path, size_t max_bytes, struct th_bytes *out,
                                  thespis_error *error)
{
    char *resolved = realpath(path, NULL);
    int inside = resolved != NULL && is_inside(folder, resolved);
    int fd = inside ? open(resolved, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
    free(resolved);
    if (fd < 0) return refuse(error);
    struct stat about;
    thespis_status status = THESPIS_OK;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || !lies_inside(folder, fd)) status = refuse(error);
    if (status == THESPIS_OK && (about.st_size < 0 || (uint64_t)about.st_size > max_bytes))
        status =
            th_fail(error, THESPIS_LIMIT, "the file has %lld bytes, at most %zu are allowed", (long long)about.st_size, max_bytes);
    size_t begin = out->count;
    if (status == THESPIS_OK) status = read_all(fd, max_bytes, out, error);
    if (status != THESPIS_OK) out->count = begin;
    close(fd);
    return status;
}

thespis_status th_reference_read_media(const struct th_reference_rules *rules, const char *text, size_t count, struct th_bytes *out,
                                       thespis_error *error)
{
    if (rules->media_dir == NULL)
        return th_fail(error, THESPIS_INVALID, "this server reads no files: send the recording itself, as base64 or a data: URL");
    char *folder = realpath(rules->media_dir, NULL), *path;
    if (folder == NULL) return refuse(error);
    thespis_status status = absolute(folder, text, count, &path, error);
    if (status == THESPIS_OK) {
        status = read_inside(folder, path, rules->max_bytes, out, error);
        th_free(path);
    }
    free(folder);
    return status;
}
