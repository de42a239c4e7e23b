/* scratch.h - a folder for a test's files, removed with all that is in it; files written without any checks of what they say. */
#ifndef TESTS_CHECKPOINT_SCRATCH_H
#define TESTS_CHECKPOINT_SCRATCH_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SCRATCH_PATH 512

static char scratch_folder[] = "/tmp/thespis-test-XXXXXX";

static int scratch_make(void **state)
{
    (void)state;
    return mkdtemp(scratch_folder) == NULL ? -1 : 0;
}

static inline void scratch_path(char path[SCRATCH_PATH], const char *name)
{
    snprintf(path, SCRATCH_PATH, "%s/%s", scratch_folder, name);
}

/* Removes every file of the folder; there are no folders in it. */
static inline void scratch_empty(void)
{
    DIR *listing = opendir(scratch_folder);
    const struct dirent *item;
    while (listing != NULL && (item = readdir(listing)) != NULL) {
        char path[SCRATCH_PATH];
        scratch_path(path, item->d_name);
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0) unlink(path);
    }
    if (listing != NULL) closedir(listing);
}

static int scratch_remove(void **state)
{
    (void)state;
    scratch_empty();
    return rmdir(scratch_folder);
}

static inline FILE *scratch_create(const char *name)
{
    char path[SCRATCH_PATH];
    scratch_path(path, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL) abort();
    return file;
}

static inline void scratch_bytes(FILE *file, const void *data, size_t bytes)
{
    if (bytes > 0 && fwrite(data, 1, bytes, file) != bytes) abort();
}

static inline void scratch_close(FILE *file)
{
    if (fclose(file) != 0) abort();
}

static inline void scratch_text(const char *name, const char *text)
{
    FILE *file = scratch_create(name);
    scratch_bytes(file, text, strlen(text));
    scratch_close(file);
}

/* A safetensors file: the length, the header as given, `data_bytes` of data (zeros where data is NULL). */
static inline void scratch_safetensors(const char *name, unsigned long long length, const char *header, size_t header_bytes,
                                       const void *data, size_t data_bytes)
{
    FILE *file = scratch_create(name);
    for (int i = 0; i < 8; i++) fputc((int)(length >> (8 * i) & 255), file);
    scratch_bytes(file, header, header_bytes);
    if (data != NULL)
        scratch_bytes(file, data, data_bytes);
    else
        for (size_t i = 0; i < data_bytes; i++) fputc(0, file);
    scratch_close(file);
}

#endif
