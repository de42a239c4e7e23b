/* codes.c - see codes.h. */
#include "audio/codes.h"

#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/npy.h"

/* An hour of speech is 78,000 frames: 6 MB as .npy, about as much as JSON. */
#define MAX_FILE_BYTES ((size_t)256 << 20)

static int is_npy(const void *bytes, size_t count)
{
    return count >= 6 && memcmp(bytes, "\x93NUMPY", 6) == 0;
}

int th_codes_is(const void *bytes, size_t count)
{
    const char *at = bytes, *end = at + count;
    if (is_npy(bytes, count)) return 1;
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) at++;
    return at < end && (*at == '[' || *at == '{');
}

/* ---- what both forms share --------------------------------------------------------------------------------------------------- */

/* What is being read and what it must look like. */
struct grid {
    const char *name;
    int codebooks, codebook_size;
    struct th_codes *codes;
};

static thespis_status allocate(const struct grid *grid, size_t frames, thespis_error *error)
{
    if (frames == 0) return th_fail(error, THESPIS_FORMAT, "%s: codes of no frames", grid->name);
    if (frames > INT32_MAX / (size_t)grid->codebooks)
        return th_fail(error, THESPIS_LIMIT, "%s: codes of %zu frames, at most %zu are read", grid->name, frames,
                       (size_t)INT32_MAX / (size_t)grid->codebooks);
    TH_TRY(TH_ALLOC(&grid->codes->codes, (size_t)grid->codebooks * frames, grid->name, error));
    grid->codes->codebooks = grid->codebooks;
    grid->codes->frames = frames;
    return THESPIS_OK;
}

static thespis_status put(const struct grid *grid, size_t codebook, size_t frame, int64_t code, thespis_error *error)
{
    if (code < 0 || code >= grid->codebook_size)
        return th_fail(error, THESPIS_FORMAT, "%s: code %lld of codebook %zu, frame %zu must be 0 to %d", grid->name,
                       (long long)code, codebook, frame, grid->codebook_size - 1);
    grid->codes->codes[codebook * grid->codes->frames + frame] = (int32_t)code;
    return THESPIS_OK;
}

/* ---- .npy -------------------------------------------------------------------------------------------------------------------- */

static thespis_status check_array(const struct grid *grid, const struct th_npy *array, thespis_error *error)
{
    if (array->kind != 'i' && array->kind != 'u')
        return th_fail(error, THESPIS_FORMAT, "%s: codes must be integers, the file holds %s", grid->name,
                       array->kind == 'f' ? "floats" : "booleans");
    const int64_t *shape = array->shape + (array->rank == 3 ? 1 : 0);
    int single = array->rank == 2 || (array->rank == 3 && array->shape[0] == 1);
    if (single && shape[0] == grid->codebooks) return THESPIS_OK;
    if (single && shape[1] == grid->codebooks)
        return th_fail(error, THESPIS_FORMAT,
                       "%s: codes of shape (%lld, %lld) are frames x codebooks; transpose them to (%d, frames)", grid->name,
                       (long long)shape[0], (long long)shape[1], grid->codebooks);
    if (single)
        return th_fail(error, THESPIS_FORMAT, "%s: codes of %lld codebooks, the model has %d: shape (%d, frames)", grid->name,
                       (long long)shape[0], grid->codebooks, grid->codebooks);
    return th_fail(error, THESPIS_FORMAT, "%s: array of %d dimensions, codes have shape (%d, frames) or (1, %d, frames)",
                   grid->name, array->rank, grid->codebooks, grid->codebooks);
}

static thespis_status from_npy(const struct grid *grid, const void *bytes, size_t count, thespis_error *error)
{
    struct th_npy array;
    TH_TRY(th_npy_parse(bytes, count, grid->name, &array, error));
    thespis_status status = check_array(grid, &array, error);
    size_t frames = status == THESPIS_OK ? (size_t)array.shape[array.rank - 1] : 0;
    if (status == THESPIS_OK) status = allocate(grid, frames, error);
    for (size_t q = 0; q < (size_t)grid->codebooks && status == THESPIS_OK; q++)
        for (size_t t = 0; t < frames && status == THESPIS_OK; t++)
            status = put(grid, q, t, th_npy_int(&array, (int64_t)(q * frames + t)), error);
    th_npy_free(&array);
    return status;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------------------- */

static thespis_status from_list(const struct grid *grid, size_t codebook, const json_t *list, thespis_error *error)
{
    if (!json_is_array(list))
        return th_fail(error, THESPIS_FORMAT, "%s: codebook %zu is %s, must be an array of codes", grid->name, codebook,
                       th_json_kind(list));
    if (codebook == 0) TH_TRY(allocate(grid, json_array_size(list), error));
    if (json_array_size(list) != grid->codes->frames)
        return th_fail(error, THESPIS_FORMAT, "%s: codebook %zu has %zu codes, codebook 0 has %zu", grid->name, codebook,
                       json_array_size(list), grid->codes->frames);
    for (size_t t = 0; t < grid->codes->frames; t++) {
        const json_t *item = json_array_get(list, t);
        if (!json_is_integer(item))
            return th_fail(error, THESPIS_FORMAT, "%s: code of codebook %zu, frame %zu is %s, must be an integer", grid->name,
                           codebook, t, th_json_kind(item));
        TH_TRY(put(grid, codebook, t, json_integer_value(item), error));
    }
    return THESPIS_OK;
}

static thespis_status from_json(const struct grid *grid, const void *bytes, size_t count, thespis_error *error)
{
    json_t *root;
    TH_TRY(th_json_parse(bytes, count, grid->name, &root, error));
    const json_t *lists = json_is_object(root) ? json_object_get(root, "vq_codes") : root;
    thespis_status status = THESPIS_OK;
    if (lists == NULL)
        status = th_fail(error, THESPIS_FORMAT, "%s: JSON object without vq_codes", grid->name);
    else if (!json_is_array(lists) || json_array_size(lists) != (size_t)grid->codebooks)
        status = th_fail(error, THESPIS_FORMAT, "%s: codes are %s of %zu, must be an array of %d arrays, one for each codebook",
                         grid->name, th_json_kind(lists), json_array_size(lists), grid->codebooks);
    for (size_t q = 0; q < (size_t)grid->codebooks && status == THESPIS_OK; q++)
        status = from_list(grid, q, json_array_get(lists, q), error);
    json_decref(root);
    return status;
}

/* ---- in and out -------------------------------------------------------------------------------------------------------------- */

thespis_status th_codes_parse(const void *bytes, size_t count, const char *name, int codebooks, int codebook_size,
                              struct th_codes *codes, thespis_error *error)
{
    struct grid grid = {.name = name, .codebooks = codebooks, .codebook_size = codebook_size, .codes = codes};
    memset(codes, 0, sizeof *codes);
    if (codebooks < 1) return th_fail(error, THESPIS_INVALID, "%d codebooks, at least 1 is needed", codebooks);
    if (!th_codes_is(bytes, count))
        return th_fail(error, THESPIS_FORMAT, "%s: neither a .npy file nor JSON (%zu bytes)", name, count);
    thespis_status status = is_npy(bytes, count) ? from_npy(&grid, bytes, count, error) : from_json(&grid, bytes, count, error);
    if (status != THESPIS_OK) {
        th_free(codes->codes);
        memset(codes, 0, sizeof *codes);
    }
    return status;
}

thespis_status th_codes_read(const char *path, int codebooks, int codebook_size, struct th_codes *codes, thespis_error *error)
{
    char *bytes;
    size_t count;
    memset(codes, 0, sizeof *codes);
    TH_TRY(th_file_read(path, MAX_FILE_BYTES, &bytes, &count, error));
    thespis_status status = th_codes_parse(bytes, count, path, codebooks, codebook_size, codes, error);
    th_free(bytes);
    return status;
}

thespis_status th_codes_write(const char *path, const int32_t *codes, int codebooks, size_t frames, thespis_error *error)
{
    size_t count;
    int64_t *wide, shape[2] = {codebooks, (int64_t)frames};
    if (codebooks < 1 || __builtin_mul_overflow((size_t)codebooks, frames, &count))
        return th_fail(error, THESPIS_INVALID, "%s: cannot write codes of %d codebooks and %zu frames", path, codebooks, frames);
    TH_TRY(TH_ALLOC(&wide, count, "codes", error));
    for (size_t i = 0; i < count; i++) wide[i] = codes[i];
    thespis_status status = th_npy_write(path, "<i8", 2, shape, wide, error);
    th_free(wide);
    return status;
}
