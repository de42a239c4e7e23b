/* model.c - opens a checkpoint's folder: its configuration, its shards, every tensor in its place, and the name of it all. */
#include "checkpoint/model.h"

#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/holes.h"
#include "checkpoint/model_loader.h"

#define MAX_CONFIG_BYTES (16u << 20)

static thespis_status read_config(struct th_loader *loader)
{
    char *path, *text = NULL;
    size_t bytes;
    TH_TRY(th_path_join(loader->folder, "config.json", &path, loader->error));
    thespis_status status = th_file_read(path, MAX_CONFIG_BYTES, &text, &bytes, loader->error);
    if (status == THESPIS_OK) {
        th_sha256_add(&loader->hash, &bytes, sizeof bytes);
        th_sha256_add(&loader->hash, text, bytes);
        status = th_config_parse(text, bytes, path, &loader->model->config, loader->error);
    }
    th_free(text);
    th_free(path);
    return status;
}

/* Headers say names, types, shapes and places; the length in front of each keeps them apart. */
static void hash_headers(struct th_loader *loader)
{
    const struct th_model *model = loader->model;
    for (size_t i = 0; i < model->shard_count; i++) {
        const struct th_map *map = &model->shards[i].map;
        uint64_t bytes = 0;
        for (int k = 7; k >= 0; k--) bytes = bytes << 8 | map->data[k];
        th_sha256_add(&loader->hash, map->data, 8 + (size_t)bytes);
    }
}

static thespis_status load(struct th_loader *loader)
{
    TH_TRY(read_config(loader));
    TH_TRY(th_loader_open_shards(loader));
    loader->model->holes = json_object_get(loader->model->shards[0].metadata, TH_HOLES_KEY) != NULL;
    hash_headers(loader);
    TH_TRY(th_loader_take_network(loader));
    TH_TRY(th_loader_finish(loader));
    th_sha256_end(&loader->hash, loader->model->id);
    return THESPIS_OK;
}

thespis_status th_model_open(const char *folder, struct th_model **model, thespis_error *error)
{
    struct th_loader loader = {.folder = folder, .error = error};
    *model = NULL;
    TH_TRY(TH_ALLOC(&loader.model, 1, "the model", error));
    th_sha256_begin(&loader.hash);
    thespis_status status = load(&loader);
    th_free(loader.entries);
    if (status == THESPIS_OK)
        *model = loader.model;
    else
        th_model_close(loader.model);
    return status;
}

void th_model_close(struct th_model *model)
{
    if (model == NULL) return;
    for (size_t i = 0; i < model->owned_count; i++) th_free(model->owned[i]);
    th_free(model->owned);
    for (size_t i = 0; i < model->shard_count; i++) th_safetensors_close(&model->shards[i]);
    th_free(model->shards);
    th_free(model);
}
