/* safetensors_write.c - writes a safetensors file: header from the tensors' names, types and shapes, data streamed from where it
 * lies. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "checkpoint/safetensors.h"

#define ALIGNMENT 64
#define LENGTH_BYTES 8

/* One tensor in the order of the file. */
struct placed {
    const struct th_tensor_out *tensor;
    size_t bytes;
    size_t given; /* place in the caller's array: keeps the order stable */
};

static thespis_status measure(const struct th_tensor_out *tensor, size_t *bytes, thespis_error *error)
{
    *bytes = th_dtype_size(tensor->dtype);
    if (*bytes == 0) return th_fail(error, THESPIS_INVALID, "tensor '%s': dtype %d is not known", tensor->name, (int)tensor->dtype);
    if (tensor->rank < 0 || tensor->rank > TH_TENSOR_MAX_RANK)
        return th_fail(error, THESPIS_INVALID, "tensor '%s': rank %d is not from 0 to %d", tensor->name, tensor->rank,
                       TH_TENSOR_MAX_RANK);
    for (int i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] < 0 || __builtin_mul_overflow(*bytes, (uint64_t)tensor->shape[i], bytes) || *bytes > INT64_MAX)
            return th_fail(error, THESPIS_INVALID, "tensor '%s': size %d of its shape is negative or too large", tensor->name, i);
    return THESPIS_OK;
}

/* The format allows no holes, so alignment comes from the order: multiples of 64 bytes first, then the others by falling item size.
 */
static int by_alignment(const void *left, const void *right)
{
    const struct placed *a = left, *b = right;
    size_t x = a->bytes % ALIGNMENT == 0 ? ALIGNMENT : th_dtype_size(a->tensor->dtype);
    size_t y = b->bytes % ALIGNMENT == 0 ? ALIGNMENT : th_dtype_size(b->tensor->dtype);
    if (x != y) return x > y ? -1 : 1;
    return a->given < b->given ? -1 : a->given > b->given;
}

static thespis_status place(const struct th_tensor_out *tensors, size_t count, struct placed *order, thespis_error *error)
{
    for (size_t i = 0; i < count; i++) {
        order[i] = (struct placed){.tensor = &tensors[i], .given = i};
        TH_TRY(measure(&tensors[i], &order[i].bytes, error));
    }
    qsort(order, count, sizeof *order, by_alignment);
    return THESPIS_OK;
}

/* Steals the reference of `value`, which may be NULL; 0 when it was not stored. */
static int put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

static json_t *describe(const struct placed *placed, size_t begin)
{
    const struct th_tensor_out *tensor = placed->tensor;
    json_t *entry = json_object(), *shape = json_array();
    for (int i = 0; i < tensor->rank; i++)
        if (json_array_append_new(shape, json_integer(tensor->shape[i])) != 0) goto failed;
    if (!put(entry, "dtype", json_string(th_dtype_name(tensor->dtype)))) goto failed;
    if (!put(entry, "shape", json_incref(shape))) goto failed;
    if (!put(entry, "data_offsets", json_pack("[I, I]", (json_int_t)begin, (json_int_t)(begin + placed->bytes)))) goto failed;
    json_decref(shape);
    return entry;
failed:
    json_decref(shape);
    json_decref(entry);
    return NULL;
}

static thespis_status fill_header(json_t *root, const struct placed *order, size_t count, const json_t *metadata,
                                  thespis_error *error)
{
    size_t begin = 0;
    if (metadata != NULL && !put(root, "__metadata__", json_incref((json_t *)metadata)))
        return th_fail_memory(error, "a safetensors header", 0);
    for (size_t i = 0; i < count; i++) {
        const char *name = order[i].tensor->name;
        if (name[0] == '\0' || strcmp(name, "__metadata__") == 0 || json_object_get(root, name) != NULL)
            return th_fail(error, THESPIS_INVALID, "tensor '%s': the name is empty, reserved or taken", name);
        if (!put(root, name, describe(&order[i], begin)))
            return th_fail(error, THESPIS_INVALID, "tensor '%s': the name is not UTF-8, or memory is short", name);
        begin += order[i].bytes;
    }
    return THESPIS_OK;
}

/* The header's text, padded with blanks so that the data starts at a multiple of 64, with its length in front. */
static thespis_status write_header(struct th_output *output, const json_t *root, thespis_error *error)
{
    static const char blanks[ALIGNMENT + 1] = "                                                                ";
    char *text = json_dumps(root, JSON_COMPACT);
    if (text == NULL) return th_fail_memory(error, "a safetensors header", 0);
    size_t bytes = strlen(text), pad = (ALIGNMENT - (LENGTH_BYTES + bytes) % ALIGNMENT) % ALIGNMENT;
    uint8_t length[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++) length[i] = (uint8_t)((uint64_t)(bytes + pad) >> (8 * i));
    thespis_status status = th_output_write(output, length, sizeof length, error);
    if (status == THESPIS_OK) status = th_output_write(output, text, bytes, error);
    if (status == THESPIS_OK) status = th_output_write(output, blanks, pad, error);
    free(text); /* Jansson's */
    return status;
}

static thespis_status write_all(const char *path, const json_t *root, const struct placed *order, size_t count,
                                thespis_error *error)
{
    struct th_output output;
    TH_TRY(th_output_open(path, &output, error));
    thespis_status status = write_header(&output, root, error);
    for (size_t i = 0; i < count && status == THESPIS_OK; i++)
        status = th_output_write(&output, order[i].tensor->data, order[i].bytes, error);
    if (status == THESPIS_OK) return th_output_commit(&output, error);
    th_output_discard(&output);
    return status;
}

static thespis_status check_metadata(const json_t *metadata, thespis_error *error)
{
    const char *key;
    json_t *value;
    if (metadata == NULL) return THESPIS_OK;
    if (!json_is_object(metadata)) return th_fail(error, THESPIS_INVALID, "safetensors metadata must be an object of strings");
    json_object_foreach((json_t *)metadata, key, value)
    {
        if (!json_is_string(value)) return th_fail(error, THESPIS_INVALID, "safetensors metadata '%s' must be a string", key);
    }
    return THESPIS_OK;
}

thespis_status th_safetensors_write(const char *path, const struct th_tensor_out *tensors, size_t count, const json_t *metadata,
                                    thespis_error *error)
{
    struct placed *order;
    TH_TRY(check_metadata(metadata, error));
    TH_TRY(TH_ALLOC(&order, count, "the order of tensors", error));
    json_t *root = json_object();
    thespis_status status = root == NULL ? th_fail_memory(error, "a safetensors header", 0) : THESPIS_OK;
    if (status == THESPIS_OK) status = place(tensors, count, order, error);
    if (status == THESPIS_OK) status = fill_header(root, order, count, metadata, error);
    if (status == THESPIS_OK) status = write_all(path, root, order, count, error);
    json_decref(root);
    th_free(order);
    return status;
}
