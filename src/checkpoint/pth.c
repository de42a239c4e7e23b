/* pth.c - see pth.h. */
#include "checkpoint/pth.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "checkpoint/pickle.h"

#define MAX_NAME_BYTES 200
#define MAX_TOP_BYTES 200 /* of the archive's one folder */

/* Where in the archive things are: every entry's name begins with "TOP/". */
struct top {
    const char *name; /* [bytes], without the slash */
    size_t bytes;
};

/* ---- the archive ------------------------------------------------------------------------------------------------------------- */

static const struct th_zip_entry *find_entry(const struct th_zip *zip, const struct top *top, const char *folder, const char *name,
                                             size_t name_bytes)
{
    char full[MAX_TOP_BYTES + 16 + MAX_NAME_BYTES];
    int n = snprintf(full, sizeof full, "%.*s/%s", (int)top->bytes, top->name, folder);
    if (n < 0 || (size_t)n + name_bytes > sizeof full) return NULL;
    memcpy(full + n, name, name_bytes);
    return th_zip_find(zip, full, (size_t)n + name_bytes);
}

/* The one entry that is called FOLDER/data.pkl. */
static thespis_status find_pickle(const struct th_zip *zip, const char *label, struct top *top, const struct th_zip_entry **pickle,
                                  thespis_error *error)
{
    static const char suffix[] = "/data.pkl";
    const size_t tail = sizeof suffix - 1;
    *pickle = NULL;
    for (size_t i = 0; i < zip->count; i++) {
        const struct th_zip_entry *entry = &zip->entries[i];
        if (entry->name_bytes <= tail || memcmp(entry->name + entry->name_bytes - tail, suffix, tail) != 0) continue;
        size_t bytes = entry->name_bytes - tail;
        if (bytes > MAX_TOP_BYTES || memchr(entry->name, '/', bytes) != NULL || memchr(entry->name, '\0', bytes) != NULL) continue;
        if (*pickle != NULL) return th_fail(error, THESPIS_FORMAT, "'%s' holds two pickles, one 'data.pkl' was expected", label);
        *pickle = entry;
        *top = (struct top){entry->name, bytes};
    }
    if (*pickle == NULL)
        return th_fail(error, THESPIS_FORMAT, "'%s' is a zip without 'FOLDER/data.pkl': torch.save did not write it", label);
    return THESPIS_OK;
}

static thespis_status check_byte_order(const struct th_zip *zip, const struct top *top, const char *label, thespis_error *error)
{
    const struct th_zip_entry *entry = find_entry(zip, top, "byteorder", "", 0);
    if (entry == NULL || (entry->bytes == 6 && memcmp(entry->data, "little", 6) == 0)) return THESPIS_OK;
    return th_fail(error, THESPIS_FORMAT, "'%s': its byte order is '%.*s', 'little' was expected", label,
                   entry->bytes < 20 ? (int)entry->bytes : 20, (const char *)entry->data);
}

static thespis_status check_start(const uint8_t *data, size_t bytes, const char *label, thespis_error *error)
{
    if (bytes >= 2 && data[0] == 'P' && data[1] == 'K') return THESPIS_OK;
    if (bytes >= 2 && data[0] == 0x80)
        return th_fail(error, THESPIS_FORMAT,
                       "'%s' is a bare pickle, as torch wrote before version 1.6: save it again with a newer torch", label);
    return th_fail(error, THESPIS_FORMAT, "'%s' (%zu bytes) is no zip archive, as torch.save writes", label, bytes);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------------------- */

struct reader {
    const struct th_zip *zip;
    const struct th_pickle *pickle;
    struct top top;
    const char *label;
    thespis_error *error;
};

static int is_contiguous(const struct th_pickle_tensor *tensor)
{
    int64_t expected = 1;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != expected) return 0;
        expected *= tensor->shape[i];
    }
    return 1;
}

static thespis_status resolve(const struct reader *r, const struct th_pickle_tensor *view, struct th_pth_tensor *tensor)
{
    const struct th_pickle_storage *storage = &r->pickle->storages.at[view->storage];
    int key = (int)storage->key.bytes; /* at most 64 */
    uint64_t bytes = 0;
    const struct th_zip_entry *entry = find_entry(r->zip, &r->top, "data/", storage->key.data, storage->key.bytes);
    if (entry == NULL)
        return th_fail(r->error, THESPIS_FORMAT, "'%s': tensor '%s' needs the archive's entry 'data/%.*s', which is missing",
                       r->label, tensor->name, key, storage->key.data);
    if (__builtin_mul_overflow((uint64_t)storage->count, th_dtype_size(storage->dtype), &bytes) || bytes != entry->bytes)
        return th_fail(r->error, THESPIS_FORMAT,
                       "'%s': tensor '%s' needs %" PRId64 " items of %s in 'data/%.*s', which has %zu bytes", r->label,
                       tensor->name, storage->count, th_dtype_name(storage->dtype), key, storage->key.data, entry->bytes);
    tensor->dtype = storage->dtype;
    tensor->rank = view->rank;
    memcpy(tensor->shape, view->shape, sizeof tensor->shape);
    memcpy(tensor->strides, view->strides, sizeof tensor->strides);
    tensor->items = view->items;
    tensor->offset = view->offset;
    tensor->data = entry->data + (size_t)view->offset * th_dtype_size(storage->dtype);
    tensor->storage = entry;
    tensor->contiguous = is_contiguous(view);
    return THESPIS_OK;
}

static const char generator[] = "generator.";

static int holds_generator(const struct th_pickle_value *key)
{
    return key->bytes > 0 && memmem(key->more.text, key->bytes, generator, sizeof generator - 1) != NULL;
}

/* Writes the name without any "generator." and its zero byte to `to`; the number of bytes written. */
static size_t write_name(const struct th_pickle_value *key, int strip, char *to)
{
    const size_t part = sizeof generator - 1;
    size_t n = 0;
    for (size_t i = 0; i < key->bytes;) {
        if (strip && key->bytes - i >= part && memcmp(key->more.text + i, generator, part) == 0)
            i += part;
        else
            to[n++] = key->more.text[i++];
    }
    to[n] = '\0';
    return n + 1;
}

static thespis_status check_key(const struct reader *r, const struct th_pickle_value *key)
{
    if (key->kind != TH_PICKLE_TEXT) return th_fail(r->error, THESPIS_FORMAT, "'%s': a tensor's name is no text", r->label);
    int printable = key->bytes > 0 && key->bytes <= MAX_NAME_BYTES;
    for (uint32_t i = 0; i < key->bytes && printable; i++) printable = key->more.text[i] > 0x20 && key->more.text[i] < 0x7F;
    if (printable) return THESPIS_OK;
    return th_fail(r->error, THESPIS_FORMAT, "'%s': a tensor's name must be 1 to %d printable bytes, got %u: '%.*s'", r->label,
                   MAX_NAME_BYTES, key->bytes, key->bytes < 80 ? (int)key->bytes : 80, key->more.text);
}

static int by_name(const void *left, const void *right)
{
    return strcmp(((const struct th_pth_tensor *)left)->name, ((const struct th_pth_tensor *)right)->name);
}

static thespis_status fill_tensors(const struct reader *r, const struct th_pickle_dict *dict, int strip, struct th_pth *pth)
{
    char *name = pth->names;
    for (size_t i = 0; i < dict->pairs.count; i++) {
        const struct th_pickle_pair *pair = &dict->pairs.at[i];
        if (strip && !holds_generator(&pair->key)) continue;
        struct th_pth_tensor *tensor = &pth->tensors[pth->count];
        tensor->name = name;
        name += write_name(&pair->key, strip, name);
        if (tensor->name[0] == '\0') return th_fail(r->error, THESPIS_FORMAT, "'%s': a tensor has no name", r->label);
        if (pair->value.kind != TH_PICKLE_TENSOR)
            return th_fail(r->error, THESPIS_FORMAT, "'%s': '%s' is no tensor", r->label, tensor->name);
        TH_TRY(resolve(r, &r->pickle->tensors.at[pair->value.number], tensor));
        pth->count++;
    }
    qsort(pth->tensors, pth->count, sizeof *pth->tensors, by_name);
    for (size_t i = 0; i + 1 < pth->count; i++)
        if (strcmp(pth->tensors[i].name, pth->tensors[i + 1].name) == 0)
            return th_fail(r->error, THESPIS_FORMAT, "'%s': tensor '%s' appears twice", r->label, pth->tensors[i].name);
    return THESPIS_OK;
}

static thespis_status read_tensors(const struct reader *r, struct th_pth *pth)
{
    const struct th_pickle_value *top = &r->pickle->top, *inner = th_pickle_get(r->pickle, top, "state_dict");
    if (inner != NULL) top = inner;
    if (top->kind != TH_PICKLE_DICT)
        return th_fail(r->error, THESPIS_FORMAT, "'%s' does not hold a dictionary of tensors", r->label);
    const struct th_pickle_dict *dict = &r->pickle->dicts.at[top->number];
    size_t bytes = 0;
    int strip = 0;
    for (size_t i = 0; i < dict->pairs.count; i++) {
        TH_TRY(check_key(r, &dict->pairs.at[i].key));
        bytes += dict->pairs.at[i].key.bytes + 1;
        if (holds_generator(&dict->pairs.at[i].key)) strip = 1;
    }
    TH_TRY(TH_ALLOC(&pth->tensors, dict->pairs.count, "a list of tensors", r->error));
    TH_TRY(TH_ALLOC(&pth->names, bytes, "names of tensors", r->error));
    return fill_tensors(r, dict, strip, pth);
}

/* ---- the file ---------------------------------------------------------------------------------------------------------------- */

static thespis_status read_archive(const char *label, struct th_pth *pth, thespis_error *error)
{
    struct th_pickle pickle = {0};
    struct reader r = {.zip = &pth->zip, .pickle = &pickle, .label = label, .error = error};
    const struct th_zip_entry *entry = NULL;
    TH_TRY(find_pickle(&pth->zip, label, &r.top, &entry, error));
    TH_TRY(check_byte_order(&pth->zip, &r.top, label, error));
    TH_TRY(th_pickle_read(entry->data, entry->bytes, label, &pickle, error));
    thespis_status status = read_tensors(&r, pth);
    th_pickle_close(&pickle);
    return status;
}

thespis_status th_pth_read(const uint8_t *data, size_t bytes, const char *label, struct th_pth *pth, thespis_error *error)
{
    memset(pth, 0, sizeof *pth);
    TH_TRY(check_start(data, bytes, label, error));
    TH_TRY(th_zip_open(data, bytes, label, &pth->zip, error));
    thespis_status status = read_archive(label, pth, error);
    if (status != THESPIS_OK) th_pth_close(pth);
    return status;
}

thespis_status th_pth_open(const char *path, struct th_pth *pth, thespis_error *error)
{
    struct th_map map = {0};
    memset(pth, 0, sizeof *pth);
    TH_TRY(th_map_open(path, &map, error));
    thespis_status status = th_pth_read(map.data, map.bytes, path, pth, error);
    if (status == THESPIS_OK)
        pth->map = map;
    else
        th_map_close(&map);
    return status;
}

void th_pth_close(struct th_pth *pth)
{
    th_free(pth->tensors);
    th_free(pth->names);
    th_zip_close(&pth->zip);
    th_map_close(&pth->map);
    memset(pth, 0, sizeof *pth);
}

const struct th_pth_tensor *th_pth_find(const struct th_pth *pth, const char *name)
{
    struct th_pth_tensor key = {.name = name};
    if (pth->count == 0) return NULL;
    return bsearch(&key, pth->tensors, pth->count, sizeof *pth->tensors, by_name);
}

void th_pth_gather(const struct th_pth_tensor *tensor, void *items)
{
    size_t size = th_dtype_size(tensor->dtype);
    if (tensor->contiguous) {
        memcpy(items, tensor->data, (size_t)tensor->items * size);
        return;
    }
    /* Missing axes count as length 1 in front. */
    int64_t shape[TH_TENSOR_MAX_RANK], strides[TH_TENSOR_MAX_RANK];
    for (int i = 0; i < TH_TENSOR_MAX_RANK; i++) {
        int from = i - (TH_TENSOR_MAX_RANK - tensor->rank);
        shape[i] = from < 0 ? 1 : tensor->shape[from];
        strides[i] = from < 0 ? 0 : tensor->strides[from];
    }
    char *to = items;
    for (int64_t a = 0; a < shape[0]; a++)
        for (int64_t b = 0; b < shape[1]; b++)
            for (int64_t c = 0; c < shape[2]; c++)
                for (int64_t d = 0; d < shape[3]; d++) {
                    int64_t at = a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3];
                    memcpy(to, tensor->data + (size_t)at * size, size);
                    to += size;
                }
}
