/* arrays.c - see arrays.h. */
#include "engine/arrays.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/memory.h"

#define MOST_BYTES ((size_t)8 << 30) /* of one array */

static size_t item_size(const char *dtype)
{
    return (size_t)(dtype[2] - '0');
}

thespis_status th_arrays_add(struct th_arrays *arrays, const char *name, const char *dtype, int64_t d0, int64_t d1, int64_t d2,
                             int64_t d3, struct th_array **array, thespis_error *error)
{
    if (arrays->count == TH_ARRAYS_MAX) return th_fail(error, THESPIS_LIMIT, "more than %d arrays", TH_ARRAYS_MAX);
    struct th_array *a = &arrays->item[arrays->count];
    const int64_t shape[4] = {d0, d1, d2, d3};
    *a = (struct th_array){.name = name, .dtype = dtype, .count = 1};
    for (int i = 0; i < 4 && shape[i] > 0; i++) {
        a->shape[a->rank++] = shape[i];
        if (__builtin_mul_overflow(a->count, shape[i], &a->count)) return th_fail_memory(error, name, SIZE_MAX);
    }
    TH_TRY(th_alloc_array(&a->data, (size_t)a->count, item_size(dtype), name, error));
    arrays->count++;
    if (array != NULL) *array = a;
    return THESPIS_OK;
}

struct th_array *th_arrays_find(struct th_arrays *arrays, const char *name)
{
    for (int i = 0; i < arrays->count; i++)
        if (strcmp(arrays->item[i].name, name) == 0) return &arrays->item[i];
    return NULL;
}

float *th_arrays_floats(struct th_arrays *arrays, const char *name)
{
    struct th_array *a = th_arrays_find(arrays, name);
    return a != NULL ? a->data : NULL;
}

int64_t *th_arrays_ints(struct th_arrays *arrays, const char *name)
{
    struct th_array *a = th_arrays_find(arrays, name);
    return a != NULL ? a->data : NULL;
}

/* "FOLDER/NAME.npy" */
static thespis_status array_path(const char *folder, const char *name, char **path, thespis_error *error)
{
    char file[80];
    snprintf(file, sizeof file, "%s.npy", name);
    return th_path_join(folder, file, path, error);
}

static json_t *describe(const struct th_array *a)
{
    json_t *shape = json_array();
    for (int i = 0; i < a->rank; i++) json_array_append_new(shape, json_integer(a->shape[i]));
    return json_pack("{s:o, s:s}", "shape", shape, "dtype", a->dtype);
}

static thespis_status write_manifest(const struct th_arrays *arrays, const char *folder, thespis_error *error)
{
    json_t *all = json_object();
    for (int i = 0; i < arrays->count; i++) json_object_set_new(all, arrays->item[i].name, describe(&arrays->item[i]));
    json_t *root = json_pack("{s:s, s:o}", "command", "check", "arrays", all);
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (text == NULL) return th_fail_memory(error, "manifest.json", 0);
    char *path = NULL;
    struct th_output output = {.fd = -1};
    thespis_status status = th_path_join(folder, "manifest.json", &path, error);
    if (status == THESPIS_OK) status = th_output_open(path, &output, error);
    if (status == THESPIS_OK) status = th_output_write(&output, text, strlen(text), error);
    if (status == THESPIS_OK)
        status = th_output_commit(&output, error);
    else
        th_output_discard(&output);
    th_free(path);
    free(text);
    return status;
}

thespis_status th_arrays_write(const struct th_arrays *arrays, const char *folder, thespis_error *error)
{
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) return th_fail_errno(error, "cannot make the folder '%s'", folder);
    for (int i = 0; i < arrays->count; i++) {
        const struct th_array *a = &arrays->item[i];
        char *path;
        TH_TRY(array_path(folder, a->name, &path, error));
        thespis_status status = th_npy_write(path, a->dtype, a->rank, a->shape, a->data, error);
        th_free(path);
        if (status != THESPIS_OK) return status;
    }
    return write_manifest(arrays, folder, error);
}

void th_arrays_free(struct th_arrays *arrays)
{
    for (int i = 0; i < arrays->count; i++) th_free(arrays->item[i].data);
    arrays->count = 0;
}

thespis_status th_arrays_load(const char *folder, const char *name, struct th_npy *array, thespis_error *error)
{
    char *path;
    memset(array, 0, sizeof *array);
    TH_TRY(array_path(folder, name, &path, error));
    thespis_status status = th_npy_read(path, MOST_BYTES, array, error);
    th_free(path);
    return status;
}
