/* shards.c - safetensors shards and their index.
 *
 * Tensors go round-robin over the shards by sorted name, so that weights and their scales often lie in different files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "make_checkpoint.h"
#include "text.h"

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct th_recipe *)a)->name, ((const struct th_recipe *)b)->name);
}

/* Wide items first: then every tensor is aligned to its item without gaps. */
static int by_size_and_name(const void *a, const void *b)
{
    const struct th_recipe *left = *(const struct th_recipe *const *)a, *right = *(const struct th_recipe *const *)b;
    size_t left_size = th_dtype_size(left->dtype), right_size = th_dtype_size(right->dtype);
    if (left_size != right_size) return left_size < right_size ? 1 : -1;
    return strcmp(left->name, right->name);
}

static void header(const struct th_job *job, const struct th_recipe **part, size_t count, struct th_text *text,
                   thespis_error *error)
{
    uint64_t offset = 0;
    th_text_format(text, error, "{\"__metadata__\":{\"format\":\"pt\"%s}", job->holes ? ",\"" TH_HOLES_KEY "\":\"1\"" : "");
    for (size_t i = 0; i < count; i++) {
        const struct th_recipe *recipe = part[i];
        th_text_format(text, error, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", recipe->name, th_dtype_name(recipe->dtype));
        for (int k = 0; k < recipe->rank; k++) th_text_format(text, error, "%s%lld", k > 0 ? "," : "", (long long)recipe->shape[k]);
        th_text_format(text, error, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)offset,
                       (unsigned long long)(offset + recipe->bytes));
        offset += recipe->bytes;
    }
    th_text_format(text, error, "}");
    while (text->status == THESPIS_OK && text->used % 8 != 0) th_text_add(text, " ", 1, error);
}

static thespis_status stream_shard(const struct th_job *job, struct th_stream *stream, const struct th_recipe **part, size_t count,
                                   thespis_error *error)
{
    struct th_text text = {0};
    header(job, part, count, &text, error);
    thespis_status status = text.status;
    uint64_t length = text.used;
    if (status == THESPIS_OK) status = th_stream_bytes(stream, &length, sizeof length, error);
    if (status == THESPIS_OK) status = th_stream_bytes(stream, text.data, text.used, error);
    for (size_t i = 0; i < count && status == THESPIS_OK; i++)
        status = job->holes ? th_stream_hole(stream, part[i], error) : th_stream_recipe(stream, part[i], error);
    if (status == THESPIS_OK) status = th_stream_flush(stream, error);
    th_text_free(&text);
    return status;
}

static thespis_status write_shard(struct th_job *job, const char *name, const struct th_recipe **part, size_t count,
                                  thespis_error *error)
{
    struct th_output output = {.fd = -1};
    struct th_stream *stream = NULL;
    char *path = NULL;
    thespis_status status = th_path_join(job->folder, name, &path, error);
    if (status == THESPIS_OK && !job->dry_run) status = th_output_open(path, &output, error);
    if (status == THESPIS_OK) status = th_stream_open(job->pool, job->seed, job->dry_run ? NULL : &output, &stream, error);
    if (status == THESPIS_OK) status = stream_shard(job, stream, part, count, error);
    if (status == THESPIS_OK && !job->dry_run) status = th_output_commit(&output, error);
    if (status != THESPIS_OK) th_output_discard(&output);
    if (status == THESPIS_OK) job->bytes += th_stream_position(stream);
    th_stream_close(stream);
    th_free(path);
    return status;
}

static thespis_status write_index(struct th_job *job, const struct th_recipes *list, int shards, thespis_error *error)
{
    json_t *map = json_object();
    for (size_t i = 0; i < list->count; i++) {
        char file[64];
        snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", (int)(i % (size_t)shards) + 1, shards);
        json_object_set_new(map, list->items[i].name, json_string(file));
    }
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)list->bytes, "weight_map", map);
    return th_write_json(job, "model.safetensors.index.json", root, error);
}

thespis_status th_shards_write(struct th_job *job, struct th_recipes *list, thespis_error *error)
{
    const struct th_recipe **part = NULL;
    int shards = job->shards > 0 ? job->shards : job->preset->shards;
    thespis_status status = TH_ALLOC(&part, list->count, "a shard", error);
    qsort(list->items, list->count, sizeof *list->items, by_name);
    for (int shard = 0; shard < shards && status == THESPIS_OK; shard++) {
        char name[64];
        size_t count = 0;
        for (size_t i = (size_t)shard; i < list->count; i += (size_t)shards) part[count++] = &list->items[i];
        qsort(part, count, sizeof *part, by_size_and_name);
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", shard + 1, shards);
        status = write_shard(job, name, part, count, error);
    }
    if (status == THESPIS_OK) status = write_index(job, list, shards, error);
    th_free(part);
    return status;
}
