/* codec_fold.c - brings the codec's tensors into memory: in place where the file already holds them as they are used, else gathered
 * and with their weight norm folded; and the name of what was read. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/sha256.h"
#include "checkpoint/codec_weights.h"

#define ALIGNED_FLOATS 16 /* 64 bytes */

static int is_wanted(const struct th_codec_weight *weight, int halves)
{
    return weight->slot != NULL && (weight->halves & halves) != 0;
}

/* Can the file's own bytes be used? */
static int is_in_place(const struct th_codec_weight *weight)
{
    if (weight->plain == NULL) return 1;
    return weight->gain == NULL && weight->plain->contiguous && (uintptr_t)weight->plain->data % sizeof(float) == 0;
}

/* values: [rows, columns]; each row becomes row * (gain / |row|). The norm is summed in double in the order of the row and each
 * product rounded once. */
static thespis_status fold(const struct th_codec_weight *weight, float *values, thespis_error *error)
{
    int64_t rows = weight->shape[0], columns = weight->items / rows;
    for (int64_t i = 0; i < rows; i++) {
        float *row = values + i * columns, gain;
        double sum = 0;
        for (int64_t k = 0; k < columns; k++) sum += (double)row[k] * (double)row[k];
        double norm = sqrt(sum);
        if (!(norm > 0) || !isfinite(norm))
            return th_fail(error, THESPIS_FORMAT, "tensor '%s': row %" PRId64 " has norm %g, a positive one was expected",
                           weight->plain->name, i, norm);
        memcpy(&gain, weight->gain->data + (size_t)(i * weight->gain->strides[0]) * sizeof gain, sizeof gain);
        double factor = (double)gain / norm;
        for (int64_t k = 0; k < columns; k++) row[k] = (float)((double)row[k] * factor);
    }
    return THESPIS_OK;
}

static thespis_status check_finite(const struct th_codec_weight *weight, thespis_error *error)
{
    const uint32_t exponent = 0x7F800000;
    int64_t bad = 0;
    for (int64_t i = 0; i < weight->items; i++) {
        uint32_t bits;
        memcpy(&bits, &weight->data[i], sizeof bits);
        bad += (bits & exponent) == exponent;
    }
    if (bad == 0) return THESPIS_OK;
    return th_fail(error, THESPIS_FORMAT, "tensor '%s': %" PRId64 " of its %" PRId64 " values are not finite", weight->name, bad,
                   weight->items);
}

static size_t room(const struct th_codec_weight *weight)
{
    return ((size_t)weight->items + ALIGNED_FLOATS - 1) / ALIGNED_FLOATS * ALIGNED_FLOATS;
}

thespis_status th_codec_weights_load(struct th_codec_weights *weights, int halves, thespis_error *error)
{
    size_t floats = 0, used = 0;
    for (size_t i = 0; i < weights->count; i++) {
        const struct th_codec_weight *weight = &weights->weights[i];
        if (!is_wanted(weight, halves) || is_in_place(weight)) continue;
        if (__builtin_add_overflow(floats, room(weight), &floats)) return th_fail_memory(error, "the codec's weights", SIZE_MAX);
    }
    TH_TRY(TH_ALLOC(&weights->owned, floats, "the codec's weights", error));
    weights->owned_bytes = floats * sizeof(float);
    for (size_t i = 0; i < weights->count; i++) {
        struct th_codec_weight *weight = &weights->weights[i];
        if (!is_wanted(weight, halves)) continue;
        if (is_in_place(weight)) {
            if (weight->plain != NULL) weight->data = (const float *)(const void *)weight->plain->data;
            weights->mapped_bytes += (uint64_t)weight->items * sizeof(float);
        } else {
            float *values = weights->owned + used;
            used += room(weight);
            th_pth_gather(weight->plain, values);
            if (weight->gain != NULL) TH_TRY(fold(weight, values, error));
            weight->data = values;
        }
        TH_TRY(check_finite(weight, error));
        *weight->slot = weight->data;
    }
    return THESPIS_OK;
}

/* ---- the name of what was read ----------------------------------------------------------------------------------------------- */

static void add_number(struct th_sha256 *hash, uint64_t number)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(number >> 8 * i);
    th_sha256_add(hash, bytes, sizeof bytes);
}

static void add_shape(struct th_sha256 *hash, int rank, const int64_t *numbers)
{
    add_number(hash, (uint64_t)rank);
    for (int i = 0; i < rank; i++) add_number(hash, (uint64_t)numbers[i]);
}

/* A storage counts by size and checksum; where the archive has none, by its bytes. */
static void add_tensor(struct th_sha256 *hash, const struct th_pth_tensor *tensor)
{
    th_sha256_add(hash, tensor->name, strlen(tensor->name) + 1);
    add_number(hash, (uint64_t)tensor->dtype);
    add_shape(hash, tensor->rank, tensor->shape);
    add_shape(hash, tensor->rank, tensor->strides);
    add_number(hash, (uint64_t)tensor->offset);
    add_number(hash, tensor->storage->bytes);
    add_number(hash, tensor->storage->crc);
    if (tensor->storage->crc == 0) th_sha256_add(hash, tensor->storage->data, tensor->storage->bytes);
}

static int is_id(const char *text)
{
    return text != NULL && strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64;
}

thespis_status th_codec_weights_id(const struct th_codec_weights *weights, char id[65], thespis_error *error)
{
    struct th_sha256 hash;
    const json_t *stated = weights->folded ? json_object_get(weights->file.metadata, "codec_id") : NULL;
    if (stated != NULL) {
        if (!is_id(json_string_value(stated)))
            return th_fail(error, THESPIS_FORMAT, "metadata 'codec_id' is '%.80s', 64 hexadecimal digits were expected",
                           json_string_value(stated));
        memcpy(id, json_string_value(stated), 65);
        return THESPIS_OK;
    }
    th_sha256_begin(&hash);
    for (size_t i = 0; i < weights->count; i++) {
        const struct th_codec_weight *weight = &weights->weights[i];
        if (weight->gain != NULL) add_tensor(&hash, weight->gain);
        if (weight->plain != NULL) {
            add_tensor(&hash, weight->plain);
            continue;
        }
        th_sha256_add(&hash, weight->name, strlen(weight->name) + 1);
        add_shape(&hash, weight->rank, weight->shape);
        th_sha256_add(&hash, weight->data, (size_t)weight->items * sizeof(float));
    }
    th_sha256_end(&hash, id);
    return THESPIS_OK;
}
