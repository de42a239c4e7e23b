/* codec_weights.c - finds the codec's tensors in either container and pairs gains with directions. Loading them is codec_fold.c. */
#include "checkpoint/codec_weights.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* How a pth spells a weight-normed tensor; both spellings occur in one file. */
enum part { PLAIN, GAIN_NEW, DIRECTION_NEW, GAIN_OLD, DIRECTION_OLD };
static const struct {
    const char *suffix;
    enum part part;
} spellings[] = {
    {".parametrizations.weight.original0", GAIN_NEW},
    {".parametrizations.weight.original1", DIRECTION_NEW},
    {".weight_g", GAIN_OLD},
    {".weight_v", DIRECTION_OLD},
};

/* Recomputed at run time and in newer checkpoints left out; 302 MB in the published one. */
static const char *const buffers[] = {
    "encoder.block.4.block.5.freqs_cis", "encoder.block.4.block.5.causal_mask", "quantizer.pre_module.freqs_cis",
    "quantizer.pre_module.causal_mask",  "quantizer.post_module.freqs_cis",     "quantizer.post_module.causal_mask",
};

/* One tensor of a pth and the folded name it belongs to. */
struct piece {
    const char *name;
    enum part part;
    const struct th_pth_tensor *tensor;
};

static int is_buffer(const char *name)
{
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (strcmp(name, buffers[i]) == 0) return 1;
    return 0;
}

/* Writes the folded name and its zero byte to `to`; the number of bytes written. No folded name is longer than the original. */
static size_t fold_name(const char *name, char *to, enum part *part)
{
    size_t n = strlen(name);
    *part = PLAIN;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        size_t tail = strlen(spellings[i].suffix);
        if (n <= tail || strcmp(name + n - tail, spellings[i].suffix) != 0) continue;
        *part = spellings[i].part;
        memcpy(to, name, n - tail);
        memcpy(to + n - tail, ".weight", sizeof ".weight");
        return n - tail + sizeof ".weight";
    }
    memcpy(to, name, n + 1);
    return n + 1;
}

static int by_piece(const void *left, const void *right)
{
    const struct piece *a = left, *b = right;
    int order = strcmp(a->name, b->name);
    return order != 0 ? order : (int)a->part - (int)b->part;
}

static thespis_status check_gain(const struct th_codec_weight *weight, thespis_error *error)
{
    const struct th_pth_tensor *gain = weight->gain;
    if (weight->dtype != TH_F32 || gain->dtype != TH_F32)
        return th_fail(error, THESPIS_FORMAT, "tensor '%s' has dtype %s, F32 was expected",
                       weight->dtype != TH_F32 ? weight->plain->name : gain->name,
                       th_dtype_name(weight->dtype != TH_F32 ? weight->dtype : gain->dtype));
    int fits = gain->rank == weight->rank && gain->rank > 0 && gain->shape[0] == weight->shape[0] && gain->items == gain->shape[0];
    if (fits) return THESPIS_OK;
    return th_fail(error, THESPIS_FORMAT, "tensor '%s' is not one gain for each row of '%s'", gain->name, weight->plain->name);
}

/* The folded tensor made of the pieces from `piece` on that share its name; *used says how many these are. */
static thespis_status pair_up(const struct piece *piece, size_t left, struct th_codec_weight *weight, size_t *used,
                              thespis_error *error)
{
    size_t n = 1;
    while (n < left && strcmp(piece[n].name, piece->name) == 0) n++;
    *used = n;
    int both = n == 2 && ((piece[0].part == GAIN_NEW && piece[1].part == DIRECTION_NEW) ||
                          (piece[0].part == GAIN_OLD && piece[1].part == DIRECTION_OLD));
    if (n == 1 && piece->part != PLAIN)
        return th_fail(error, THESPIS_FORMAT, "tensor '%s' stands alone: gain and direction of '%s' were expected",
                       piece->tensor->name, piece->name);
    if (n > 1 && !both)
        return th_fail(error, THESPIS_FORMAT, "tensors '%s' and '%s' are both about '%s'", piece[0].tensor->name,
                       piece[1].tensor->name, piece->name);
    const struct th_pth_tensor *plain = both ? piece[1].tensor : piece[0].tensor;
    weight->name = piece->name;
    weight->plain = plain;
    weight->gain = both ? piece[0].tensor : NULL;
    weight->dtype = plain->dtype;
    weight->rank = plain->rank;
    weight->items = plain->items;
    memcpy(weight->shape, plain->shape, sizeof weight->shape);
    return both ? check_gain(weight, error) : THESPIS_OK;
}

static thespis_status pair_all(struct th_codec_weights *weights, struct piece *pieces, size_t count, thespis_error *error)
{
    size_t used = 0;
    qsort(pieces, count, sizeof *pieces, by_piece);
    for (size_t i = 0; i < count; i += used) {
        TH_TRY(pair_up(&pieces[i], count - i, &weights->weights[weights->count], &used, error));
        weights->count++;
    }
    return THESPIS_OK;
}

static thespis_status list_pth(struct th_codec_weights *weights, thespis_error *error)
{
    const struct th_pth *pth = &weights->pth;
    struct piece *pieces = NULL;
    size_t count = 0, bytes = 0;
    for (size_t i = 0; i < pth->count; i++) bytes += strlen(pth->tensors[i].name) + 1;
    TH_TRY(TH_ALLOC(&weights->weights, pth->count, "a list of tensors", error));
    TH_TRY(TH_ALLOC(&weights->names, bytes, "names of tensors", error));
    TH_TRY(TH_ALLOC(&pieces, pth->count, "a list of tensors", error));
    char *name = weights->names;
    for (size_t i = 0; i < pth->count; i++) {
        if (is_buffer(pth->tensors[i].name)) continue;
        pieces[count].name = name;
        pieces[count].tensor = &pth->tensors[i];
        name += fold_name(pth->tensors[i].name, name, &pieces[count].part);
        count++;
    }
    thespis_status status = pair_all(weights, pieces, count, error);
    th_free(pieces);
    return status;
}

static thespis_status list_folded(struct th_codec_weights *weights, thespis_error *error)
{
    const struct th_safetensors *file = &weights->file;
    TH_TRY(TH_ALLOC(&weights->weights, file->count, "a list of tensors", error));
    for (size_t i = 0; i < file->count; i++) {
        const struct th_tensor *tensor = &file->tensors[i];
        struct th_codec_weight *weight = &weights->weights[i];
        weight->name = tensor->name;
        weight->dtype = tensor->dtype;
        weight->rank = tensor->rank;
        weight->items = (int64_t)(tensor->bytes / th_dtype_size(tensor->dtype));
        weight->data = tensor->data;
        memcpy(weight->shape, tensor->shape, sizeof weight->shape);
    }
    weights->count = file->count;
    return THESPIS_OK;
}

/* A zip begins with "PK", a safetensors file with the length of a header that begins with '{'. */
static thespis_status look(const char *path, int *folded, thespis_error *error)
{
    struct th_map map = {0};
    thespis_status status = THESPIS_OK;
    TH_TRY(th_map_open(path, &map, error));
    int zip = map.bytes >= 2 && map.data[0] == 'P' && map.data[1] == 'K', pickle = map.bytes >= 2 && map.data[0] == 0x80;
    *folded = map.bytes > 8 && map.data[8] == '{';
    /* A bare pickle goes to the reader of pth, whose message explains. The byte 0x80 alone may as well begin a header's length. */
    if (zip || (pickle && !*folded))
        *folded = 0;
    else if (!*folded)
        status = th_fail(error, THESPIS_FORMAT, "'%s' (%zu bytes) is neither a codec.pth (a zip) nor a codec.safetensors", path,
                         map.bytes);
    th_map_close(&map);
    return status;
}

thespis_status th_codec_weights_open(const char *path, struct th_codec_weights *weights, thespis_error *error)
{
    memset(weights, 0, sizeof *weights);
    TH_TRY(look(path, &weights->folded, error));
    thespis_status status =
        weights->folded ? th_safetensors_open(path, &weights->file, error) : th_pth_open(path, &weights->pth, error);
    if (status != THESPIS_OK) {
        memset(weights, 0, sizeof *weights);
        return status;
    }
    status = weights->folded ? list_folded(weights, error) : list_pth(weights, error);
    if (status == THESPIS_FORMAT) th_error_prefix(error, "'%s': ", path);
    if (status != THESPIS_OK) th_codec_weights_close(weights);
    return status;
}

void th_codec_weights_close(struct th_codec_weights *weights)
{
    if (weights->folded)
        th_safetensors_close(&weights->file);
    else
        th_pth_close(&weights->pth);
    th_free(weights->weights);
    th_free(weights->names);
    th_free(weights->owned);
    memset(weights, 0, sizeof *weights);
}

static int by_name(const void *left, const void *right)
{
    return strcmp(((const struct th_codec_weight *)left)->name, ((const struct th_codec_weight *)right)->name);
}

struct th_codec_weight *th_codec_weights_find(const struct th_codec_weights *weights, const char *name)
{
    struct th_codec_weight key = {.name = name};
    if (weights->count == 0) return NULL;
    return bsearch(&key, weights->weights, weights->count, sizeof *weights->weights, by_name);
}
