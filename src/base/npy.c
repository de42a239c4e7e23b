/* npy.c - see npy.h. The header of a .npy file is the text of a Python dictionary of three known keys; a small strict parser reads
 * just that and refuses everything else by name. */
#include "base/npy.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

#define MAGIC_BYTES 6
#define MAX_HEADER 65536

static const char magic[MAGIC_BYTES] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};

/* The text of the dictionary, at..end, and what was read from it. */
struct header {
    const char *at, *end;
    const char *name; /* of the file, for messages */
    char descr[16];
    int fortran;
    int rank;
    int64_t shape[TH_NPY_MAX_RANK];
};

/* ---- the header's text ------------------------------------------------------------------------------------------------------- */

static void skip_blanks(struct header *h)
{
    while (h->at < h->end && (*h->at == ' ' || *h->at == '\t' || *h->at == '\n' || *h->at == '\r')) h->at++;
}

static int take(struct header *h, char c)
{
    skip_blanks(h);
    if (h->at == h->end || *h->at != c) return 0;
    h->at++;
    return 1;
}

static int take_word(struct header *h, const char *word)
{
    size_t n = strlen(word);
    skip_blanks(h);
    if ((size_t)(h->end - h->at) < n || memcmp(h->at, word, n) != 0) return 0;
    h->at += n;
    return 1;
}

static thespis_status malformed(const struct header *h, const char *wanted, thespis_error *error)
{
    int left = h->end - h->at < 20 ? (int)(h->end - h->at) : 20;
    return th_fail(error, THESPIS_FORMAT, "%s: its .npy header has '%.*s' where %s was expected", h->name, left, h->at, wanted);
}

static thespis_status take_string(struct header *h, char *text, size_t capacity, thespis_error *error)
{
    skip_blanks(h);
    if (h->at == h->end || (*h->at != '\'' && *h->at != '"')) return malformed(h, "a string", error);
    char quote = *h->at;
    const char *start = h->at + 1, *stop = start;
    while (stop < h->end && *stop != quote && *stop != '\\') stop++;
    if (stop == h->end || *stop != quote || (size_t)(stop - start) >= capacity) return malformed(h, "a short string", error);
    memcpy(text, start, (size_t)(stop - start));
    text[stop - start] = '\0';
    h->at = stop + 1;
    return THESPIS_OK;
}

static thespis_status take_size(struct header *h, int64_t *value, thespis_error *error)
{
    skip_blanks(h);
    if (h->at == h->end || *h->at < '0' || *h->at > '9') return malformed(h, "a size", error);
    *value = 0;
    while (h->at < h->end && *h->at >= '0' && *h->at <= '9') {
        if (__builtin_mul_overflow(*value, 10, value) || __builtin_add_overflow(*value, *h->at - '0', value))
            return malformed(h, "a size below 2^63", error);
        h->at++;
    }
    return THESPIS_OK;
}

/* "()", "(5,)", "(2, 3)". Python asks for the comma of a one-item tuple; so do we. */
static thespis_status take_shape(struct header *h, thespis_error *error)
{
    if (!take(h, '(')) return malformed(h, "'('", error);
    int comma = 0;
    h->rank = 0;
    while (!take(h, ')')) {
        if (h->rank > 0 && !comma) return malformed(h, "',' or ')'", error);
        if (h->rank == TH_NPY_MAX_RANK)
            return th_fail(error, THESPIS_UNSUPPORTED, "%s: array of more than %d dimensions", h->name, TH_NPY_MAX_RANK);
        TH_TRY(take_size(h, &h->shape[h->rank++], error));
        comma = take(h, ',');
    }
    if (h->rank == 1 && !comma) return malformed(h, "a tuple such as (5,)", error);
    return THESPIS_OK;
}

/* One "key: value"; *seen collects which keys came. */
static thespis_status take_item(struct header *h, unsigned *seen, thespis_error *error)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    char key[24];
    unsigned which = 0;
    TH_TRY(take_string(h, key, sizeof key, error));
    while (which < 3 && strcmp(key, keys[which]) != 0) which++;
    if (which == 3) return th_fail(error, THESPIS_FORMAT, "%s: unknown key '%s' in its .npy header", h->name, key);
    if (*seen & 1u << which) return th_fail(error, THESPIS_FORMAT, "%s: key '%s' twice in its .npy header", h->name, key);
    *seen |= 1u << which;
    if (!take(h, ':')) return malformed(h, "':'", error);
    if (which == 0 && take(h, '['))
        return th_fail(error, THESPIS_UNSUPPORTED, "%s: holds records, an array of plain numbers is needed", h->name);
    if (which == 0) return take_string(h, h->descr, sizeof h->descr, error);
    if (which == 2) return take_shape(h, error);
    if (take_word(h, "True"))
        h->fortran = 1;
    else if (take_word(h, "False"))
        h->fortran = 0;
    else
        return malformed(h, "True or False", error);
    return THESPIS_OK;
}

static thespis_status take_dictionary(struct header *h, thespis_error *error)
{
    unsigned seen = 0;
    if (!take(h, '{')) return malformed(h, "'{'", error);
    while (!take(h, '}')) {
        TH_TRY(take_item(h, &seen, error));
        if (take(h, ',')) continue;
        if (!take(h, '}')) return malformed(h, "',' or '}'", error);
        break;
    }
    skip_blanks(h);
    if (h->at != h->end) return malformed(h, "the end", error);
    if (seen != 7) return th_fail(error, THESPIS_FORMAT, "%s: its .npy header lacks descr, fortran_order or shape", h->name);
    return THESPIS_OK;
}

/* Finds the dictionary's text behind the magic; *data_at is where the items begin. */
static thespis_status find_header(const uint8_t *bytes, size_t count, struct header *h, size_t *data_at, thespis_error *error)
{
    if (count < MAGIC_BYTES + 4 || memcmp(bytes, magic, MAGIC_BYTES) != 0)
        return th_fail(error, THESPIS_FORMAT, "%s: not a .npy file (%zu bytes)", h->name, count);
    int major = bytes[6], minor = bytes[7];
    if (major < 1 || major > 3 || minor != 0)
        return th_fail(error, THESPIS_UNSUPPORTED, "%s: .npy format %d.%d, 1.0 to 3.0 are read", h->name, major, minor);
    size_t length_bytes = major == 1 ? 2 : 4, length = 0;
    if (count < 8 + length_bytes) return th_fail(error, THESPIS_FORMAT, "%s: truncated .npy header", h->name);
    for (size_t i = 0; i < length_bytes; i++) length |= (size_t)bytes[8 + i] << 8 * i;
    if (length > MAX_HEADER)
        return th_fail(error, THESPIS_FORMAT, "%s: .npy header of %zu bytes, at most %d are read", h->name, length, MAX_HEADER);
    if (length > count - 8 - length_bytes)
        return th_fail(error, THESPIS_FORMAT, "%s: truncated .npy header (%zu bytes declared, %zu there)", h->name, length,
                       count - 8 - length_bytes);
    h->at = (const char *)bytes + 8 + length_bytes;
    h->end = h->at + length;
    *data_at = 8 + length_bytes + length;
    return THESPIS_OK;
}

/* ---- the items --------------------------------------------------------------------------------------------------------------- */

/* "<f4" and its kin into kind and size. One-byte items may carry any order mark. */
static thespis_status read_descr(const char *descr, const char *name, char *kind, int *item_size, thespis_error *error)
{
    size_t n = strlen(descr);
    int size = n == 3 ? descr[2] - '0' : 0;
    int known = n == 3 && strchr("<>|=", descr[0]) != NULL;
    switch (n == 3 ? descr[1] : '\0') {
    case 'f': known = known && (size == 4 || size == 8); break;
    case 'i':
    case 'u': known = known && (size == 1 || size == 2 || size == 4 || size == 8); break;
    case 'b': known = known && size == 1; break;
    default: known = 0;
    }
    if (!known || (size > 1 && descr[0] != '<' && descr[0] != '>'))
        return th_fail(error, THESPIS_UNSUPPORTED, "%s: items of type '%s', <f4 <f8 <i8 <i4 <i2 |i1 <u8 <u4 <u2 |u1 |b1 are read",
                       name, descr);
    if (size > 1 && descr[0] == '>')
        return th_fail(error, THESPIS_UNSUPPORTED, "%s: big-endian items ('%s'), little-endian ones ('<%s') are read", name, descr,
                       descr + 1);
    *kind = descr[1];
    *item_size = size;
    return THESPIS_OK;
}

static int total_items(int rank, const int64_t *shape, int item_size, int64_t *count, int64_t *bytes)
{
    *count = 1;
    for (int i = 0; i < rank; i++)
        if (shape[i] == 0) *count = 0;
    for (int i = 0; i<rank && * count> 0; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(*count, shape[i], count)) return 0;
    return !__builtin_mul_overflow(*count, (int64_t)item_size, bytes);
}

/* Fortran order runs the first index fastest; walks the source in its order and drops each item at its place in C order. */
static void transpose(const struct th_npy *array, const uint8_t *from)
{
    int64_t stride[TH_NPY_MAX_RANK], index[TH_NPY_MAX_RANK] = {0}, at = 0;
    size_t size = (size_t)array->item_size;
    for (int i = array->rank - 1, first = 1; i >= 0; i--, first = 0) stride[i] = first ? 1 : stride[i + 1] * array->shape[i + 1];
    for (int64_t n = 0; n < array->count; n++) {
        memcpy((uint8_t *)array->data + (size_t)at * size, from + (size_t)n * size, size);
        for (int i = 0; i < array->rank; i++) {
            at += stride[i];
            if (++index[i] < array->shape[i]) break;
            at -= stride[i] * array->shape[i];
            index[i] = 0;
        }
    }
}

static thespis_status copy_items(const struct header *h, const uint8_t *bytes, size_t count, struct th_npy *array,
                                 thespis_error *error)
{
    int64_t size;
    if (!total_items(h->rank, h->shape, array->item_size, &array->count, &size))
        return th_fail(error, THESPIS_FORMAT, "%s: its .npy shape has more items than memory could hold", h->name);
    if ((uint64_t)size != count)
        return th_fail(error, THESPIS_FORMAT, "%s: its .npy shape needs %lld bytes of items, the file has %zu", h->name,
                       (long long)size, count);
    array->rank = h->rank;
    memcpy(array->shape, h->shape, sizeof array->shape);
    array->data = th_alloc((size_t)array->count, (size_t)array->item_size);
    if (array->data == NULL) return th_fail_memory(error, h->name, count);
    if (h->fortran && h->rank > 1 && count > 0)
        transpose(array, bytes);
    else if (count > 0)
        memcpy(array->data, bytes, count);
    return THESPIS_OK;
}

thespis_status th_npy_parse(const void *bytes, size_t count, const char *name, struct th_npy *array, thespis_error *error)
{
    struct header h = {.name = name};
    size_t data_at = 0;
    memset(array, 0, sizeof *array);
    thespis_status status = find_header(bytes, count, &h, &data_at, error);
    if (status == THESPIS_OK) status = take_dictionary(&h, error);
    if (status == THESPIS_OK) status = read_descr(h.descr, name, &array->kind, &array->item_size, error);
    if (status == THESPIS_OK) status = copy_items(&h, (const uint8_t *)bytes + data_at, count - data_at, array, error);
    if (status != THESPIS_OK) th_npy_free(array);
    return status;
}

thespis_status th_npy_read(const char *path, size_t max_bytes, struct th_npy *array, thespis_error *error)
{
    struct th_map map;
    memset(array, 0, sizeof *array);
    TH_TRY(th_map_open(path, &map, error));
    thespis_status status = THESPIS_OK;
    if (map.bytes > max_bytes)
        status = th_fail(error, THESPIS_LIMIT, "'%s' has %zu bytes, at most %zu are read", path, map.bytes, max_bytes);
    if (status == THESPIS_OK) status = th_npy_parse(map.data, map.bytes, path, array, error);
    th_map_close(&map);
    return status;
}

void th_npy_free(struct th_npy *array)
{
    if (array == NULL) return;
    th_free(array->data);
    memset(array, 0, sizeof *array);
}

/* ---- one item ---------------------------------------------------------------------------------------------------------------- */

/* The bits of item i, the low item_size bytes of the result. */
static uint64_t item_bits(const struct th_npy *array, int64_t i)
{
    const uint8_t *at = (const uint8_t *)array->data + (size_t)i * (size_t)array->item_size;
    uint64_t bits = 0;
    for (int k = 0; k < array->item_size; k++) bits |= (uint64_t)at[k] << 8 * k;
    return bits;
}

static double float_item(const struct th_npy *array, int64_t i)
{
    uint64_t bits = item_bits(array, i);
    uint32_t low = (uint32_t)bits;
    double wide;
    float narrow;
    memcpy(&wide, &bits, sizeof wide);
    memcpy(&narrow, &low, sizeof narrow);
    return array->item_size == 8 ? wide : (double)narrow;
}

int64_t th_npy_int(const struct th_npy *array, int64_t i)
{
    if (array->kind == 'f') {
        /* Out-of-range conversions are undefined in C: clamped, NaN is 0. */
        double value = float_item(array, i);
        if (value != value) return 0;
        return value >= 9223372036854775808.0 ? INT64_MAX : value < -9223372036854775808.0 ? INT64_MIN : (int64_t)value;
    }
    uint64_t bits = item_bits(array, i);
    if (array->kind == 'b') return bits != 0;
    int spare = 64 - 8 * array->item_size;
    if (array->kind == 'i') return (int64_t)(bits << spare) >> spare;
    return bits > INT64_MAX ? INT64_MAX : (int64_t)bits;
}

double th_npy_float(const struct th_npy *array, int64_t i)
{
    if (array->kind == 'f') return float_item(array, i);
    if (array->kind == 'u') return (double)item_bits(array, i);
    return (double)th_npy_int(array, i);
}

/* ---- out --------------------------------------------------------------------------------------------------------------------- */

/* The dictionary padded with blanks so that the items begin at a multiple of 64, as NumPy writes it. Returns the bytes used. */
static size_t compose(char *text, size_t capacity, const char *dtype, int rank, const int64_t *shape)
{
    size_t used = 10;
    memcpy(text, magic, MAGIC_BYTES);
    text[6] = 1;
    text[7] = 0;
    used += (size_t)snprintf(text + used, capacity - used, "{'descr': '%s', 'fortran_order': False, 'shape': (", dtype);
    for (int i = 0; i < rank; i++)
        used += (size_t)snprintf(text + used, capacity - used,
                                 rank == 1 ? "%lld,"
                                 : i == 0  ? "%lld"
                                           : ", %lld",
                                 (long long)shape[i]);
    used += (size_t)snprintf(text + used, capacity - used, "), }");
    while ((used + 1) % 64 != 0) text[used++] = ' ';
    text[used++] = '\n';
    text[8] = (char)((used - 10) & 255);
    text[9] = (char)((used - 10) >> 8);
    return used;
}

thespis_status th_npy_write(const char *path, const char *dtype, int rank, const int64_t *shape, const void *data,
                            thespis_error *error)
{
    char kind, text[512]; /* 8 sizes of at most 19 digits and the fixed words take less than 320 bytes */
    int item_size;
    int64_t count, bytes;
    struct th_output output;
    TH_TRY(read_descr(dtype, path, &kind, &item_size, error));
    if (rank < 0 || rank > TH_NPY_MAX_RANK)
        return th_fail(error, THESPIS_INVALID, "%s: rank %d, 0 to %d can be written", path, rank, TH_NPY_MAX_RANK);
    if (!total_items(rank, shape, item_size, &count, &bytes))
        return th_fail(error, THESPIS_INVALID, "%s: shape with more items than memory could hold", path);
    size_t used = compose(text, sizeof text, dtype, rank, shape);
    TH_TRY(th_output_open(path, &output, error));
    thespis_status status = th_output_write(&output, text, used, error);
    if (status == THESPIS_OK && bytes > 0) status = th_output_write(&output, data, (size_t)bytes, error);
    if (status == THESPIS_OK) return th_output_commit(&output, error);
    th_output_discard(&output);
    return status;
}
