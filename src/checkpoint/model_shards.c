/* model_shards.c - which safetensors files make up a checkpoint, opened and checked against the index that lists their tensors. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "checkpoint/model_loader.h"

#define INDEX "model.safetensors.index.json"
#define SINGLE "model.safetensors"
#define CODEC "codec.safetensors"
#define SUFFIX ".safetensors"
#define MAX_INDEX_BYTES (256u << 20)

/* Owned copies of file names, in order, each once. */
struct names {
    char **items;
    size_t count, capacity;
};

static void free_names(struct names *names)
{
    for (size_t i = 0; i < names->count; i++) th_free(names->items[i]);
    th_free(names->items);
    *names = (struct names){.items = NULL};
}

static thespis_status add_name(struct names *names, const char *name, thespis_error *error)
{
    if (names->count == names->capacity) {
        size_t capacity = names->capacity == 0 ? 16 : 2 * names->capacity;
        char **items = th_realloc(names->items, names->count, capacity, sizeof *items);
        if (items == NULL) return th_fail_memory(error, "the list of files", capacity * sizeof *items);
        names->items = items;
        names->capacity = capacity;
    }
    char *copy = th_copy_string(name, strlen(name));
    if (copy == NULL) return th_fail_memory(error, "a file name", strlen(name));
    names->items[names->count++] = copy;
    return THESPIS_OK;
}

static int by_text(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static void sort_names(struct names *names)
{
    size_t kept = 0;
    if (names->count > 0) qsort(names->items, names->count, sizeof *names->items, by_text);
    for (size_t i = 0; i < names->count; i++) {
        if (kept > 0 && strcmp(names->items[kept - 1], names->items[i]) == 0)
            th_free(names->items[i]);
        else
            names->items[kept++] = names->items[i];
    }
    names->count = kept;
}

/* ---- the files --------------------------------------------------------------------------------------------------------------- */

/* A shard lies in the checkpoint's own folder: its name must not lead out of it. */
static int is_plain_name(const char *name)
{
    return name[0] != '\0' && strchr(name, '/') == NULL && strchr(name, '\\') == NULL && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0;
}

static thespis_status names_from_map(const json_t *weight_map, struct names *names, thespis_error *error)
{
    const char *tensor, *last = "";
    json_t *file;
    json_object_foreach((json_t *)weight_map, tensor, file)
    {
        const char *name = json_string_value(file);
        if (name == NULL || !is_plain_name(name))
            return th_fail(error, THESPIS_FORMAT, "%s: weight_map of tensor '%.150s' must be a plain file name, got %s '%.100s'",
                           INDEX, tensor, th_json_kind(file), name != NULL ? name : "");
        if (strcmp(name, last) == 0) continue; /* neighbours mostly share a file */
        last = name;
        TH_TRY(add_name(names, name, error));
    }
    sort_names(names);
    return THESPIS_OK;
}

static int is_shard(const char *name)
{
    size_t n = strlen(name), suffix = strlen(SUFFIX);
    return n > suffix && strcmp(name + n - suffix, SUFFIX) == 0 && strcmp(name, CODEC) != 0;
}

static thespis_status names_from_folder(const char *folder, struct names *names, thespis_error *error)
{
    DIR *listing = opendir(folder);
    if (listing == NULL) return th_fail_errno(error, "cannot list the folder '%.300s'", folder);
    thespis_status status = THESPIS_OK;
    while (status == THESPIS_OK) {
        errno = 0;
        const struct dirent *item = readdir(listing);
        if (item == NULL) {
            if (errno != 0) status = th_fail_errno(error, "cannot list the folder '%.300s'", folder);
            break;
        }
        if (is_shard(item->d_name)) status = add_name(names, item->d_name, error);
    }
    closedir(listing);
    sort_names(names);
    if (status == THESPIS_OK && names->count == 0)
        status = th_fail(error, THESPIS_FORMAT, "'%.200s' holds no weights: no %s, %s or other *%s", folder, INDEX, SINGLE, SUFFIX);
    return status;
}

/* Is there such a file in the folder? */
static thespis_status has_file(const char *folder, const char *name, int *has, thespis_error *error)
{
    char *path;
    TH_TRY(th_path_join(folder, name, &path, error));
    *has = th_path_exists(path);
    th_free(path);
    return THESPIS_OK;
}

static thespis_status names_without_index(const char *folder, struct names *names, thespis_error *error)
{
    int single;
    TH_TRY(has_file(folder, SINGLE, &single, error));
    return single ? add_name(names, SINGLE, error) : names_from_folder(folder, names, error);
}

/* ---- the table --------------------------------------------------------------------------------------------------------------- */

static thespis_status open_shards(struct th_loader *loader, const struct names *names)
{
    struct th_model *model = loader->model;
    TH_TRY(TH_ALLOC(&model->shards, names->count, "the shards", loader->error));
    for (size_t i = 0; i < names->count; i++) {
        char *path;
        TH_TRY(th_path_join(loader->folder, names->items[i], &path, loader->error));
        thespis_status status = th_safetensors_open(path, &model->shards[i], loader->error);
        th_free(path);
        TH_TRY(status);
        model->shard_count++;
        model->mapped_bytes += model->shards[i].map.bytes;
        loader->count += model->shards[i].count;
    }
    return THESPIS_OK;
}

static thespis_status fill_table(struct th_loader *loader)
{
    const struct th_model *model = loader->model;
    TH_TRY(TH_ALLOC(&loader->entries, loader->count, "the table of tensors", loader->error));
    struct th_entry *entry = loader->entries;
    for (size_t i = 0; i < model->shard_count; i++)
        for (size_t k = 0; k < model->shards[i].count; k++)
            *entry++ = (struct th_entry){.tensor = &model->shards[i].tensors[k], .shard = &model->shards[i]};
    return th_loader_index(loader);
}

static thespis_status open_named(struct th_loader *loader, const struct names *names)
{
    TH_TRY(open_shards(loader, names));
    return fill_table(loader);
}

static const char *file_name(const struct th_safetensors *shard)
{
    const char *slash = strrchr(shard->path, '/');
    return slash != NULL ? slash + 1 : shard->path;
}

/* Index and shards must tell the same story, tensor by tensor. */
static thespis_status check_index(const struct th_loader *loader, const json_t *weight_map)
{
    const char *name;
    json_t *file;
    json_object_foreach((json_t *)weight_map, name, file)
    {
        const struct th_entry *entry = th_loader_find(loader, name);
        if (entry == NULL)
            return th_fail(loader->error, THESPIS_FORMAT, "%s lists tensor '%.150s' in '%.100s', but no shard has it", INDEX, name,
                           json_string_value(file));
        if (strcmp(file_name(entry->shard), json_string_value(file)) != 0)
            return th_fail(loader->error, THESPIS_FORMAT, "%s lists tensor '%.150s' in '%.100s', but it lies in '%.100s'", INDEX,
                           name, json_string_value(file), file_name(entry->shard));
    }
    for (size_t i = 0; i < loader->count; i++)
        if (json_object_get(weight_map, loader->entries[i].tensor->name) == NULL)
            return th_fail(loader->error, THESPIS_FORMAT, "%s does not list tensor '%.150s', which lies in '%.100s'", INDEX,
                           loader->entries[i].tensor->name, file_name(loader->entries[i].shard));
    return THESPIS_OK;
}

static thespis_status open_by_map(struct th_loader *loader, const json_t *weight_map)
{
    struct names names = {.items = NULL};
    thespis_status status = names_from_map(weight_map, &names, loader->error);
    if (status == THESPIS_OK) status = open_named(loader, &names);
    free_names(&names);
    TH_TRY(status);
    return check_index(loader, weight_map);
}

static thespis_status open_by_index(struct th_loader *loader)
{
    char *path;
    json_t *index;
    TH_TRY(th_path_join(loader->folder, INDEX, &path, loader->error));
    thespis_status status = th_json_read(path, MAX_INDEX_BYTES, &index, loader->error);
    th_free(path);
    TH_TRY(status);
    const json_t *weight_map = json_object_get(index, "weight_map");
    if (json_object_size(weight_map) == 0)
        status = th_fail(loader->error, THESPIS_FORMAT, "%s: weight_map must be an object of tensors, got %s", INDEX,
                         json_is_object(weight_map) ? "an empty one" : th_json_kind(weight_map));
    if (status == THESPIS_OK) status = open_by_map(loader, weight_map);
    json_decref(index);
    return status;
}

static thespis_status open_without_index(struct th_loader *loader)
{
    struct names names = {.items = NULL};
    thespis_status status = names_without_index(loader->folder, &names, loader->error);
    if (status == THESPIS_OK) status = open_named(loader, &names);
    free_names(&names);
    return status;
}

thespis_status th_loader_open_shards(struct th_loader *loader)
{
    int index;
    TH_TRY(has_file(loader->folder, INDEX, &index, loader->error));
    return index ? open_by_index(loader) : open_without_index(loader);
}
