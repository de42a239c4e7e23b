/* file.c - see file.h. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

/* ---- in ---------------------------------------------------------------------------------------------------------------------- */

static thespis_status open_regular(const char *path, int *fd, size_t *bytes, thespis_error *error)
{
    struct stat about;
    /* Not blocking: a pipe without a writer must be refused, not waited for. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return th_fail_errno(error, "cannot open '%s'", path);
    thespis_status status = THESPIS_OK;
    if (fstat(*fd, &about) != 0)
        status = th_fail_errno(error, "cannot look at '%s'", path);
    else if (S_ISDIR(about.st_mode))
        status = th_fail(error, THESPIS_IO, "'%s' is a folder, a file was expected", path);
    else if (!S_ISREG(about.st_mode))
        status = th_fail(error, THESPIS_IO, "'%s' is not a regular file", path);
    if (status != THESPIS_OK) {
        close(*fd);
        return status;
    }
    *bytes = (size_t)about.st_size;
    return THESPIS_OK;
}

thespis_status th_map_open(const char *path, struct th_map *map, thespis_error *error)
{
    int fd;
    map->data = NULL;
    map->bytes = 0;
    TH_TRY(open_regular(path, &fd, &map->bytes, error));
    if (map->bytes == 0) {
        close(fd);
        return THESPIS_OK;
    }
    void *data = mmap(NULL, map->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    thespis_status status = data == MAP_FAILED ? th_fail_errno(error, "cannot map '%s' (%zu bytes)", path, map->bytes) : THESPIS_OK;
    close(fd);
    if (status == THESPIS_OK) map->data = data;
    if (status != THESPIS_OK) map->bytes = 0;
    return status;
}

void th_map_close(struct th_map *map)
{
    if (map->data != NULL) munmap((void *)map->data, map->bytes);
    map->data = NULL;
    map->bytes = 0;
}

/* Reads `expected` bytes; a file that shrinks meanwhile is refused. */
static thespis_status read_all(int fd, const char *path, char *data, size_t expected, thespis_error *error)
{
    size_t got = 0;
    while (got < expected) {
        ssize_t n = read(fd, data + got, expected - got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return th_fail_errno(error, "cannot read '%s'", path);
        if (n == 0) return th_fail(error, THESPIS_IO, "'%s' ended after %zu of %zu bytes", path, got, expected);
        got += (size_t)n;
    }
    return THESPIS_OK;
}

thespis_status th_file_read(const char *path, size_t max_bytes, char **data, size_t *bytes, thespis_error *error)
{
    int fd;
    size_t size = 0;
    *data = NULL;
    *bytes = 0;
    TH_TRY(open_regular(path, &fd, &size, error));
    thespis_status status = THESPIS_OK;
    if (size > max_bytes) status = th_fail(error, THESPIS_LIMIT, "'%s' has %zu bytes, at most %zu are read", path, size, max_bytes);
    if (status == THESPIS_OK) status = TH_ALLOC(data, size + 1, path, error);
    if (status == THESPIS_OK) status = read_all(fd, path, *data, size, error);
    close(fd);
    if (status != THESPIS_OK) {
        th_free(*data);
        *data = NULL;
        return status;
    }
    *bytes = size;
    return THESPIS_OK;
}

int th_path_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

thespis_status th_path_resolve(const char *path, char **resolved, thespis_error *error)
{
    const char *slash = strrchr(path, '/');
    size_t folder_bytes = slash == NULL ? 1 : slash == path ? 1 : (size_t)(slash - path);
    *resolved = NULL;
    char *folder = th_copy_string(slash != NULL ? path : ".", folder_bytes);
    if (folder == NULL) return th_fail_memory(error, "a path", folder_bytes);
    char *real = realpath(folder, NULL);
    thespis_status status = real != NULL ? THESPIS_OK : th_fail_errno(error, "cannot write into the folder '%s'", folder);
    if (status == THESPIS_OK) status = th_path_join(real, slash != NULL ? slash + 1 : path, resolved, error);
    free(real);
    th_free(folder);
    return status;
}

int th_path_same(const char *a, const char *b)
{
    struct stat first, second;
    return stat(a, &first) == 0 && stat(b, &second) == 0 && S_ISREG(first.st_mode) && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

thespis_status th_path_join(const char *folder, const char *name, char **path, thespis_error *error)
{
    size_t a = strlen(folder), b = strlen(name);
    int slash = a > 0 && folder[a - 1] != '/';
    TH_TRY(TH_ALLOC(path, a + b + 2, "a path", error));
    memcpy(*path, folder, a);
    if (slash) (*path)[a] = '/';
    memcpy(*path + a + slash, name, b);
    return THESPIS_OK;
}

/* ---- out --------------------------------------------------------------------------------------------------------------------- */

/* Standard output may be a pipe that someone else made non-blocking. errno stays what it was when waiting fails. */
static int wait_until_writable(int fd)
{
    int reason = errno;
    struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
    int ready = poll(&poll_fd, 1, -1);
    if (ready > 0 || (ready < 0 && errno == EINTR)) return 1;
    errno = reason;
    return 0;
}

static thespis_status write_at(int fd, const char *path, const char *data, size_t bytes, off_t offset, thespis_error *error)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = offset < 0 ? write(fd, data + done, bytes - done) : pwrite(fd, data + done, bytes - done, offset + (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN && wait_until_writable(fd)) continue;
        if (n < 0) return th_fail_errno(error, "cannot write to '%s'", path);
        if (n == 0) return th_fail(error, THESPIS_IO, "cannot write to '%s': nothing was accepted", path);
        done += (size_t)n;
    }
    return THESPIS_OK;
}

/* Is the locked file still the one under that name? Whoever held the lock before may have renamed or removed it. */
static int still_named(int fd, const char *path)
{
    struct stat opened, named;
    return fstat(fd, &opened) == 0 && lstat(path, &named) == 0 && opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

/* The part is locked while it is written: two writers of one name would mix their bytes. A part that a killed process left has no
 * lock and is written anew. File systems without locks, or without lasting inode numbers, are trusted to have one writer. */
static thespis_status lock_part(const char *path, struct th_output *output, thespis_error *error)
{
    for (int tries = 0;; tries++) {
        output->fd = open(output->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (output->fd < 0) return th_fail_errno(error, "cannot create '%s'", output->part);
        if (flock(output->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
            return th_fail(error, THESPIS_IO, "cannot write to '%s': something else is writing it just now, into '%s'", path,
                           output->part);
        if (still_named(output->fd, output->part) || tries == 1000) break;
        close(output->fd);
    }
    if (ftruncate(output->fd, 0) != 0) return th_fail_errno(error, "cannot empty '%s'", output->part);
    return THESPIS_OK;
}

static thespis_status open_part(const char *path, struct th_output *output, thespis_error *error)
{
    size_t n = strlen(path);
    TH_TRY(TH_ALLOC(&output->part, n + 6, "a path", error));
    memcpy(output->part, path, n);
    memcpy(output->part + n, ".part", 6);
    thespis_status status = lock_part(path, output, error);
    if (status != THESPIS_OK && output->fd >= 0) close(output->fd);
    output->seekable = 1;
    return status;
}

static thespis_status open_target(const char *path, struct th_output *output, thespis_error *error)
{
    struct stat about;
    if (path[0] == '\0') return th_fail(error, THESPIS_INVALID, "cannot write to a file without a name");
    if (strcmp(path, "-") == 0) {
        output->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
        if (output->fd < 0) return th_fail_errno(error, "cannot write to standard output");
        return THESPIS_OK;
    }
    if (stat(path, &about) == 0) {
        if (S_ISDIR(about.st_mode)) return th_fail(error, THESPIS_IO, "cannot write to '%s': it is a folder", path);
        if (!S_ISREG(about.st_mode)) {
            output->fd = open(path, O_WRONLY | O_CLOEXEC);
            if (output->fd < 0) return th_fail_errno(error, "cannot open '%s' for writing", path);
            return THESPIS_OK;
        }
        /* The rename at the end would replace a file that its owner has protected. */
        if (access(path, W_OK) != 0) return th_fail_errno(error, "cannot write to '%s'", path);
    }
    return open_part(path, output, error);
}

thespis_status th_output_open(const char *path, struct th_output *output, thespis_error *error)
{
    memset(output, 0, sizeof *output);
    output->fd = -1;
    output->path = th_copy_string(path, strlen(path));
    if (output->path == NULL) return th_fail_memory(error, "a path", strlen(path));
    thespis_status status = open_target(path, output, error);
    if (status != THESPIS_OK) {
        th_free(output->path);
        th_free(output->part);
        memset(output, 0, sizeof *output);
        output->fd = -1;
    }
    return status;
}

thespis_status th_output_write(struct th_output *output, const void *data, size_t bytes, thespis_error *error)
{
    TH_TRY(write_at(output->fd, output->path, data, bytes, -1, error));
    output->written += bytes;
    return THESPIS_OK;
}

thespis_status th_output_patch(struct th_output *output, uint64_t offset, const void *data, size_t bytes, thespis_error *error)
{
    return write_at(output->fd, output->path, data, bytes, (off_t)offset, error);
}

thespis_status th_output_skip(struct th_output *output, uint64_t bytes, thespis_error *error)
{
    const off_t end = (off_t)(output->written + bytes);
    if (ftruncate(output->fd, end) != 0 || lseek(output->fd, end, SEEK_SET) != end)
        return th_fail_errno(error, "cannot make a hole in '%s'", output->path);
    output->written += bytes;
    return THESPIS_OK;
}

static void forget(struct th_output *output)
{
    th_free(output->path);
    th_free(output->part);
    memset(output, 0, sizeof *output);
    output->fd = -1;
}

thespis_status th_output_commit(struct th_output *output, thespis_error *error)
{
    thespis_status status = THESPIS_OK;
    /* Pipes and terminals cannot be synced (EINVAL); a file system that is full may say so only here. */
    if (fsync(output->fd) != 0 && errno != EINVAL && errno != ENOTSUP && errno != EROFS)
        status = th_fail_errno(error, "cannot write all of '%s'", output->path);
    /* A second descriptor keeps the lock until the part has its name: closing may fail, and must come before. */
    int lock = output->part != NULL ? fcntl(output->fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (close(output->fd) != 0 && status == THESPIS_OK) status = th_fail_errno(error, "cannot close '%s'", output->path);
    output->fd = -1;
    if (status == THESPIS_OK && output->part != NULL && rename(output->part, output->path) != 0)
        status = th_fail_errno(error, "cannot rename '%s' to '%s'", output->part, output->path);
    if (status != THESPIS_OK && output->part != NULL) unlink(output->part);
    if (lock >= 0) close(lock);
    forget(output);
    return status;
}

void th_output_discard(struct th_output *output)
{
    if (output->path == NULL) return;
    if (output->part != NULL) unlink(output->part); /* while it is locked: afterwards it may be another's */
    if (output->fd >= 0) close(output->fd);
    forget(output);
}
