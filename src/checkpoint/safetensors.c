/* safetensors.c - reads a safetensors file: 8 bytes of header length (little-endian), a JSON object of tensors, their data without
 * holes. */
#include "checkpoint/safetensors.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"

#define MAX_HEADER_BYTES 100000000u /* the limit of the format's own library */
#define LENGTH_BYTES 8
#define METADATA "__metadata__"

/* ---- element types ----------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [TH_BOOL] = {"BOOL", 1}, [TH_U8] = {"U8", 1},   [TH_I8] = {"I8", 1},   [TH_E4M3] = {"F8_E4M3", 1}, [TH_E5M2] = {"F8_E5M2", 1},
    [TH_I16] = {"I16", 2},   [TH_U16] = {"U16", 2}, [TH_F16] = {"F16", 2}, [TH_BF16] = {"BF16", 2},    [TH_I32] = {"I32", 4},
    [TH_U32] = {"U32", 4},   [TH_F32] = {"F32", 4}, [TH_F64] = {"F64", 8}, [TH_I64] = {"I64", 8},      [TH_U64] = {"U64", 8},
};

#define DTYPE_COUNT (sizeof dtypes / sizeof *dtypes)

const char *th_dtype_name(enum th_dtype dtype)
{
    return (size_t)dtype < DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

size_t th_dtype_size(enum th_dtype dtype)
{
    return (size_t)dtype < DTYPE_COUNT ? dtypes[dtype].size : 0;
}

/* ---- one entry of the header ------------------------------------------------------------------------------------------------- */

struct header {
    const json_t *root;
    const uint8_t *data; /* the data section, [data_bytes] */
    size_t data_bytes;
    thespis_error *error;
};

/* Names come from the file: cut, so that the reason still fits behind them. */
static thespis_status refuse(const struct header *header, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static thespis_status refuse(const struct header *header, const char *name, const char *format, ...)
{
    char reason[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return th_fail(header->error, THESPIS_FORMAT, "tensor '%.160s': %s", name, reason);
}

static thespis_status parse_dtype(const struct header *header, const json_t *value, struct th_tensor *tensor)
{
    if (!json_is_string(value)) return refuse(header, tensor->name, "dtype must be a string, got %s", th_json_kind(value));
    for (size_t i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(dtypes[i].name, json_string_value(value)) == 0) {
            tensor->dtype = (enum th_dtype)i;
            return THESPIS_OK;
        }
    return refuse(header, tensor->name, "dtype '%.40s' is not known", json_string_value(value));
}

static thespis_status parse_shape(const struct header *header, const json_t *value, struct th_tensor *tensor)
{
    if (!json_is_array(value)) return refuse(header, tensor->name, "shape must be an array, got %s", th_json_kind(value));
    size_t rank = json_array_size(value);
    if (rank > TH_TENSOR_MAX_RANK) return refuse(header, tensor->name, "shape has %zu sizes, at most %d", rank, TH_TENSOR_MAX_RANK);
    tensor->rank = (int)rank;
    tensor->bytes = th_dtype_size(tensor->dtype);
    for (size_t i = 0; i < rank; i++) {
        const json_t *size = json_array_get(value, i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return refuse(header, tensor->name, "shape[%zu] must be an integer from 0, got %s%s", i,
                          json_is_integer(size) ? "a negative " : "", th_json_kind(size));
        tensor->shape[i] = json_integer_value(size);
        if (__builtin_mul_overflow(tensor->bytes, (uint64_t)tensor->shape[i], &tensor->bytes))
            return refuse(header, tensor->name, "shape has more bytes than any file");
    }
    return THESPIS_OK;
}

/* Needs the dtype and the bytes that the shape gives. */
static thespis_status parse_span(const struct header *header, const json_t *value, struct th_tensor *tensor)
{
    const json_t *first = json_array_get(value, 0), *last = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return refuse(header, tensor->name, "data_offsets must be two integers");
    json_int_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin)
        return refuse(header, tensor->name, "data_offsets [%" PRId64 ", %" PRId64 "] are not in order", (int64_t)begin,
                      (int64_t)end);
    if ((uint64_t)end > header->data_bytes)
        return refuse(header, tensor->name, "data_offsets end at %" PRId64 ", past the %zu bytes of data in the file (truncated?)",
                      (int64_t)end, header->data_bytes);
    if ((uint64_t)(end - begin) != tensor->bytes)
        return refuse(header, tensor->name, "data_offsets span %" PRId64 " bytes, but shape and dtype %s make %zu",
                      (int64_t)(end - begin), th_dtype_name(tensor->dtype), tensor->bytes);
    tensor->data = header->data + begin;
    if ((uintptr_t)tensor->data % th_dtype_size(tensor->dtype) != 0)
        return refuse(header, tensor->name, "its data is misaligned: %s must start at a multiple of %zu bytes in the file",
                      th_dtype_name(tensor->dtype), th_dtype_size(tensor->dtype));
    return THESPIS_OK;
}

static thespis_status parse_entry(const struct header *header, json_t *entry, struct th_tensor *tensor)
{
    const char *key;
    json_t *value;
    if (!json_is_object(entry)) return refuse(header, tensor->name, "must be an object, got %s", th_json_kind(entry));
    json_object_foreach(entry, key, value)
    {
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 && strcmp(key, "data_offsets") != 0)
            return refuse(header, tensor->name, "key '%.40s' is not known (dtype, shape, data_offsets are)", key);
    }
    TH_TRY(parse_dtype(header, json_object_get(entry, "dtype"), tensor));
    TH_TRY(parse_shape(header, json_object_get(entry, "shape"), tensor));
    return parse_span(header, json_object_get(entry, "data_offsets"), tensor);
}

/* ---- the whole header -------------------------------------------------------------------------------------------------------- */

static thespis_status check_metadata(const struct header *header, json_t *metadata)
{
    const char *key;
    json_t *value;
    if (metadata == NULL) return THESPIS_OK;
    if (!json_is_object(metadata))
        return th_fail(header->error, THESPIS_FORMAT, "%s must be an object, got %s", METADATA, th_json_kind(metadata));
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            return th_fail(header->error, THESPIS_FORMAT, "%s '%.160s' must be a string, got %s", METADATA, key,
                           th_json_kind(value));
    }
    return THESPIS_OK;
}

/* One block: the array, then the names it points to. */
static thespis_status make_tensors(const struct header *header, struct th_safetensors *file)
{
    const char *key;
    json_t *value;
    size_t count = 0, bytes = 0;
    json_object_foreach((json_t *)header->root, key, value)
    {
        if (strcmp(key, METADATA) == 0) continue;
        if (key[0] == '\0') return th_fail(header->error, THESPIS_FORMAT, "a tensor has an empty name");
        count++;
        bytes += strlen(key) + 1;
    }
    bytes += count * sizeof *file->tensors;
    char *block;
    TH_TRY(TH_ALLOC(&block, bytes, "a safetensors header", header->error));
    file->tensors = (void *)block;
    file->count = count;
    char *names = block + count * sizeof *file->tensors;
    struct th_tensor *tensor = file->tensors;
    json_object_foreach((json_t *)header->root, key, value)
    {
        if (strcmp(key, METADATA) == 0) continue;
        size_t length = strlen(key) + 1;
        tensor->name = memcpy(names, key, length);
        names += length;
        TH_TRY(parse_entry(header, value, tensor++));
    }
    return THESPIS_OK;
}

static int by_place(const void *left, const void *right)
{
    const struct th_tensor *a = left, *b = right;
    if (a->data != b->data) return a->data < b->data ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static int by_name(const void *left, const void *right)
{
    return strcmp(((const struct th_tensor *)left)->name, ((const struct th_tensor *)right)->name);
}

/* Every byte of the data belongs to exactly one tensor. */
static thespis_status check_cover(const struct header *header, struct th_safetensors *file)
{
    const uint8_t *place = header->data;
    qsort(file->tensors, file->count, sizeof *file->tensors, by_place);
    for (size_t i = 0; i < file->count; i++) {
        const struct th_tensor *tensor = &file->tensors[i];
        const uint8_t *begin = tensor->data;
        if (begin < place) return refuse(header, tensor->name, "its data overlaps that of '%.80s'", file->tensors[i - 1].name);
        if (begin > place)
            return refuse(header, tensor->name, "%zu bytes before its data belong to no tensor", (size_t)(begin - place));
        place = begin + tensor->bytes;
    }
    size_t rest = (size_t)(header->data + header->data_bytes - place);
    if (rest != 0) return th_fail(header->error, THESPIS_FORMAT, "%zu trailing bytes belong to no tensor", rest);
    return THESPIS_OK;
}

static thespis_status read_header_length(const struct th_map *map, size_t *length, thespis_error *error)
{
    if (map->bytes < LENGTH_BYTES)
        return th_fail(error, THESPIS_FORMAT, "not a safetensors file: it has %zu bytes, the header's length alone takes 8",
                       map->bytes);
    uint64_t value = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) value = value << 8 | map->data[i];
    if (value > map->bytes - LENGTH_BYTES)
        return th_fail(error, THESPIS_FORMAT,
                       "not a safetensors file, or truncated: header length %" PRIu64 " does not fit in a file of %zu bytes", value,
                       map->bytes);
    if (value > MAX_HEADER_BYTES)
        return th_fail(error, THESPIS_FORMAT, "header length %" PRIu64 " is above the limit of %u", value, MAX_HEADER_BYTES);
    if (value < 2 || map->data[LENGTH_BYTES] != '{')
        return th_fail(error, THESPIS_FORMAT, "not a safetensors file: the header does not begin with '{'");
    *length = (size_t)value;
    return THESPIS_OK;
}

static thespis_status read_tensors(struct th_safetensors *file, json_t *root, size_t header_bytes, thespis_error *error)
{
    struct header header = {.root = root, .error = error};
    header.data = file->map.data + LENGTH_BYTES + header_bytes;
    header.data_bytes = file->map.bytes - LENGTH_BYTES - header_bytes;
    TH_TRY(check_metadata(&header, json_object_get(root, METADATA)));
    TH_TRY(make_tensors(&header, file));
    TH_TRY(check_cover(&header, file));
    qsort(file->tensors, file->count, sizeof *file->tensors, by_name);
    file->metadata = json_incref(json_object_get(root, METADATA));
    return THESPIS_OK;
}

static thespis_status read_mapped(struct th_safetensors *file, thespis_error *error)
{
    size_t bytes = 0;
    json_t *root;
    TH_TRY(read_header_length(&file->map, &bytes, error));
    TH_TRY(th_json_parse((const char *)file->map.data + LENGTH_BYTES, bytes, "safetensors header", &root, error));
    thespis_status status = read_tensors(file, root, bytes, error);
    json_decref(root);
    return status;
}

thespis_status th_safetensors_open(const char *path, struct th_safetensors *file, thespis_error *error)
{
    memset(file, 0, sizeof *file);
    file->path = th_copy_string(path, strlen(path));
    if (file->path == NULL) return th_fail_memory(error, "a path", strlen(path));
    thespis_status status = th_map_open(path, &file->map, error);
    if (status == THESPIS_OK) {
        status = read_mapped(file, error);
        if (status != THESPIS_OK) th_error_prefix(error, "'%s': ", path);
    }
    if (status != THESPIS_OK) th_safetensors_close(file);
    return status;
}

void th_safetensors_close(struct th_safetensors *file)
{
    json_decref(file->metadata);
    th_free(file->tensors);
    th_map_close(&file->map);
    th_free(file->path);
    memset(file, 0, sizeof *file);
}

const struct th_tensor *th_safetensors_find(const struct th_safetensors *file, const char *name)
{
    struct th_tensor key = {.name = name};
    return file->count == 0 ? NULL : bsearch(&key, file->tensors, file->count, sizeof key, by_name);
}
