/* model_loader.c - the table of all tensors of a checkpoint; see model_loader.h. */
#include "checkpoint/model_loader.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define BACKBONE "model.language_model."

/* ---- the table --------------------------------------------------------------------------------------------------------------- */

static int starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static int is_known_part(const char *name)
{
    static const char *const parts[] = {BACKBONE, "lm_head.", "audio_decoder.", "audio_decoder_mtp_shared.", "audio_decoder_mtp."};
    for (size_t i = 0; i < TH_COUNT(parts); i++)
        if (starts_with(name, parts[i])) return 1;
    return 0;
}

/* Derived tables and parts of other models that a checkpoint may carry inside the backbone. */
static int is_skipped(const char *name)
{
    if (!starts_with(name, BACKBONE)) return 0;
    name += strlen(BACKBONE);
    return strstr(name, "rotary_emb.inv_freq") != NULL || strstr(name, "mtp") != NULL || strstr(name, "visual") != NULL;
}

static int by_name(const void *left, const void *right)
{
    return strcmp(((const struct th_entry *)left)->tensor->name, ((const struct th_entry *)right)->tensor->name);
}

thespis_status th_loader_index(struct th_loader *loader)
{
    qsort(loader->entries, loader->count, sizeof *loader->entries, by_name);
    for (size_t i = 0; i < loader->count; i++) {
        struct th_entry *entry = &loader->entries[i];
        const char *name = entry->tensor->name;
        if (i > 0 && strcmp(entry[-1].tensor->name, name) == 0)
            return th_fail(loader->error, THESPIS_FORMAT, "tensor '%.150s' is twice in the checkpoint: in '%.100s' and '%.100s'",
                           name, entry[-1].shard->path, entry->shard->path);
        if (!is_known_part(name))
            return th_fail(loader->error, THESPIS_FORMAT,
                           "'%.120s': tensor '%.150s' belongs to no part of the model (%s*, lm_head.*, %s)", entry->shard->path,
                           name, BACKBONE, "audio_decoder.*, audio_decoder_mtp_shared.*, audio_decoder_mtp.*");
        entry->used = is_skipped(name);
    }
    return THESPIS_OK;
}

struct th_entry *th_loader_find(const struct th_loader *loader, const char *name)
{
    struct th_tensor tensor = {.name = name};
    struct th_entry key = {.tensor = &tensor};
    return loader->count == 0 ? NULL : bsearch(&key, loader->entries, loader->count, sizeof key, by_name);
}

thespis_status th_loader_finish(const struct th_loader *loader)
{
    for (size_t i = 0; i < loader->count; i++)
        if (!loader->entries[i].used)
            return th_fail(loader->error, THESPIS_FORMAT,
                           "'%.150s': tensor '%.150s' is not expected in a model of this configuration",
                           loader->entries[i].shard->path, loader->entries[i].tensor->name);
    return THESPIS_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------ */

static thespis_status reserve_owned(struct th_loader *loader)
{
    struct th_model *model = loader->model;
    if (model->owned_count < loader->owned_capacity) return THESPIS_OK;
    size_t capacity = loader->owned_capacity == 0 ? 64 : 2 * loader->owned_capacity;
    void **owned = th_realloc(model->owned, model->owned_count, capacity, sizeof *owned);
    if (owned == NULL) return th_fail_memory(loader->error, "the model's list of arrays", capacity * sizeof *owned);
    model->owned = owned;
    loader->owned_capacity = capacity;
    return THESPIS_OK;
}

thespis_status th_loader_own(struct th_loader *loader, size_t count, size_t size, const char *what, void **block)
{
    struct th_model *model = loader->model;
    TH_TRY(reserve_owned(loader));
    TH_TRY(th_alloc_array(block, count, size, what, loader->error));
    model->owned[model->owned_count++] = *block;
    model->owned_bytes += count * size;
    return THESPIS_OK;
}

/* ---- names ------------------------------------------------------------------------------------------------------------------- */

struct th_scope th_scope_make(struct th_loader *loader, const char *format, ...)
{
    struct th_scope scope = {.loader = loader};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(scope.prefix, sizeof scope.prefix, format, arguments);
    va_end(arguments);
    return scope;
}

static struct th_entry *find(const struct th_scope *scope, const char *suffix, char name[256])
{
    snprintf(name, 256, "%s%s", scope->prefix, suffix);
    return th_loader_find(scope->loader, name);
}

int th_scope_has(const struct th_scope *scope, const char *suffix)
{
    char name[256];
    return find(scope, suffix, name) != NULL;
}

/* ---- taking a tensor --------------------------------------------------------------------------------------------------------- */

static void print_shape(int rank, const int64_t *shape, char *text, size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, "[");
    for (int i = 0; i < rank && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%" PRId64, i > 0 ? ", " : "", shape[i]);
    if (used < bytes) snprintf(text + used, bytes - used, "]");
}

static thespis_status refuse_shape(const struct th_loader *loader, const struct th_entry *entry, int rank, const int64_t *shape)
{
    char has[96], want[96];
    print_shape(entry->tensor->rank, entry->tensor->shape, has, sizeof has);
    print_shape(rank, shape, want, sizeof want);
    return th_fail(loader->error, THESPIS_FORMAT, "'%.120s': tensor '%s' has shape %s, %s is right for this configuration",
                   entry->shard->path, entry->tensor->name, has, want);
}

static thespis_status refuse_type(const struct th_loader *loader, const struct th_entry *entry, unsigned types)
{
    char want[64] = "";
    size_t used = 0;
    for (int dtype = TH_BOOL; dtype <= TH_U64; dtype++)
        if (types & 1u << dtype && used < sizeof want)
            used += (size_t)snprintf(want + used, sizeof want - used, "%s%s", used > 0 ? " or " : "",
                                     th_dtype_name((enum th_dtype)dtype));
    return th_fail(loader->error, THESPIS_FORMAT, "'%.120s': tensor '%s' has dtype %s, %s is right for this configuration",
                   entry->shard->path, entry->tensor->name, th_dtype_name(entry->tensor->dtype), want);
}

thespis_status th_scope_take(const struct th_scope *scope, const char *suffix, unsigned types, int rank, const int64_t *shape,
                             const struct th_tensor **tensor)
{
    char name[256];
    struct th_loader *loader = scope->loader;
    struct th_entry *entry = find(scope, suffix, name);
    *tensor = NULL;
    if (entry == NULL)
        return th_fail(loader->error, THESPIS_FORMAT, "'%.150s': tensor '%s' is missing from the checkpoint", loader->folder, name);
    if ((types & 1u << entry->tensor->dtype) == 0) return refuse_type(loader, entry, types);
    int same = entry->tensor->rank == rank;
    for (int i = 0; i < rank && same; i++) same = entry->tensor->shape[i] == shape[i];
    if (!same) return refuse_shape(loader, entry, rank, shape);
    entry->used = 1;
    *tensor = entry->tensor;
    return THESPIS_OK;
}

thespis_status th_scope_matrix(const struct th_scope *scope, const char *suffix, int rows, int cols, struct th_matrix *matrix)
{
    const struct th_tensor *tensor;
    TH_TRY(th_scope_take(scope, suffix, TH_IS_BF16, 2, (int64_t[]){rows, cols}, &tensor));
    *matrix = (struct th_matrix){.data = tensor->data, .rows = rows, .cols = cols};
    return THESPIS_OK;
}

void th_tensor_floats(const struct th_tensor *tensor, float *floats)
{
    if (tensor->dtype == TH_F32) {
        memcpy(floats, tensor->data, tensor->bytes);
        return;
    }
    const uint16_t *halves = tensor->data;
    for (size_t i = 0; i < tensor->bytes / 2; i++) {
        uint32_t bits = (uint32_t)halves[i] << 16;
        memcpy(&floats[i], &bits, sizeof bits);
    }
}

thespis_status th_scope_floats(const struct th_scope *scope, const char *suffix, int rank, const int64_t *shape, float **floats)
{
    const struct th_tensor *tensor;
    TH_TRY(th_scope_take(scope, suffix, TH_IS_REAL, rank, shape, &tensor));
    size_t count = tensor->bytes / th_dtype_size(tensor->dtype);
    TH_TRY(TH_OWN(scope->loader, floats, count, tensor->name));
    th_tensor_floats(tensor, *floats);
    th_sha256_add(&scope->loader->hash, *floats, count * sizeof **floats);
    return THESPIS_OK;
}

thespis_status th_scope_matrices(const struct th_scope *scope, const struct th_matrix_rule *rules, size_t count)
{
    for (size_t i = 0; i < count; i++)
        TH_TRY(th_scope_matrix(scope, rules[i].suffix, rules[i].rows, rules[i].cols, rules[i].matrix));
    return THESPIS_OK;
}

thespis_status th_scope_vectors(const struct th_scope *scope, const struct th_vector_rule *rules, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float *floats;
        TH_TRY(th_scope_floats(scope, rules[i].suffix, 1, (int64_t[]){rules[i].count}, &floats));
        *rules[i].vector = floats;
    }
    return THESPIS_OK;
}
