/* file.h - files in and out, with every call checked. */
#ifndef THESPIS_BASE_FILE_H
#define THESPIS_BASE_FILE_H

#include "base/error.h"

/* A file mapped read-only. An empty file has data NULL and bytes 0. */
struct th_map {
    const uint8_t *data;
    size_t bytes;
};
thespis_status th_map_open(const char *path, struct th_map *map, thespis_error *error);
void th_map_close(struct th_map *map);

/* The whole of a regular file, at most max_bytes, with a zero byte after it. *data is freed with th_free. */
thespis_status th_file_read(const char *path, size_t max_bytes, char **data, size_t *bytes, thespis_error *error);

/* Does this path name something (file or folder)? */
int th_path_exists(const char *path);
/* Do both paths lead to one regular file that is there? */
int th_path_same(const char *a, const char *b);
/* The one path under which a file to be written will lie: its folder without links and dots, and its name. Freed with th_free. */
thespis_status th_path_resolve(const char *path, char **resolved, thespis_error *error);
/* "folder/name", freed with th_free. */
thespis_status th_path_join(const char *folder, const char *name, char **path, thespis_error *error);

/* A file, pipe or device being written. A regular file appears under its name only when th_output_commit succeeded: until then the
 * bytes lie in "NAME.part" beside it, locked against a second writer, which th_output_discard removes. Devices, pipes and "-"
 * (standard output) are written directly. */
struct th_output {
    int fd;
    int seekable;     /* a new regular file: th_output_patch works */
    uint64_t written; /* bytes so far */
    char *path;       /* as given, for messages */
    char *part;       /* "NAME.part", or NULL when written directly */
};
thespis_status th_output_open(const char *path, struct th_output *output, thespis_error *error);
/* Retries short writes and EINTR. A closed pipe is THESPIS_IO (callers ignore SIGPIPE). */
thespis_status th_output_write(struct th_output *output, const void *data, size_t bytes, thespis_error *error);
/* Overwrites bytes already written, at `offset`. Only when seekable. */
thespis_status th_output_patch(struct th_output *output, uint64_t offset, const void *data, size_t bytes, thespis_error *error);
/* Goes on `bytes` further; what lies between is a hole that reads as zeros. Only where seekable. */
thespis_status th_output_skip(struct th_output *output, uint64_t bytes, thespis_error *error);
/* Syncs, closes and renames; on failure the part is removed. *output is closed in every case. */
thespis_status th_output_commit(struct th_output *output, thespis_error *error);
/* Closes and removes the part. Does nothing on a closed or zeroed output. */
void th_output_discard(struct th_output *output);

#endif
