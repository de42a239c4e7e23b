/* recipe.c - lists of recipes, and the making of any part of a tensor. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "make_checkpoint.h"

#define CHUNK 2048

thespis_status th_recipes_add(struct th_recipes *list, const char *name, enum th_dtype dtype, int rank, const int64_t *shape,
                              struct th_recipe **added, thespis_error *error)
{
    if (list->count == list->capacity) {
        size_t wanted = list->capacity == 0 ? 512 : 2 * list->capacity;
        void *grown = th_realloc(list->items, list->capacity, wanted, sizeof *list->items);
        if (grown == NULL) return th_fail_memory(error, "the list of tensors", wanted * sizeof *list->items);
        list->items = grown;
        list->capacity = wanted;
    }
    struct th_recipe *recipe = &list->items[list->count++];
    memset(recipe, 0, sizeof *recipe);
    snprintf(recipe->name, sizeof recipe->name, "%s", name);
    snprintf(recipe->source, sizeof recipe->source, "%s", name);
    recipe->dtype = dtype;
    recipe->rank = rank;
    recipe->factor = 1.0f;
    recipe->loud_row = -1;
    recipe->slices = 1;
    recipe->rows = rank > 0 ? shape[0] : 1;
    recipe->cols = 1;
    for (int i = 0; i < rank; i++) recipe->shape[i] = shape[i];
    for (int i = 1; i < rank; i++) recipe->cols *= shape[i];
    recipe->bytes = (uint64_t)(recipe->rows * recipe->cols) * th_dtype_size(dtype);
    list->bytes += recipe->bytes;
    *added = recipe;
    return THESPIS_OK;
}

void th_recipes_free(struct th_recipes *list)
{
    th_free(list->items);
    memset(list, 0, sizeof *list);
}

static int is_blocked(const struct th_recipe *recipe)
{
    return recipe->rule == TH_RULE_E4M3 || recipe->rule == TH_RULE_SCALE;
}

static int64_t blocks(int64_t size)
{
    return (size + TH_SCALE_BLOCK - 1) / TH_SCALE_BLOCK;
}

int64_t th_recipe_units(const struct th_recipe *recipe)
{
    return is_blocked(recipe) ? blocks(recipe->rows) : recipe->rows * recipe->cols;
}

/* Rows of block row `block`: 128, or what is left of the matrix. */
static int64_t block_rows(const struct th_recipe *recipe, int64_t block)
{
    int64_t left = recipe->rows - block * TH_SCALE_BLOCK;
    return left < TH_SCALE_BLOCK ? left : TH_SCALE_BLOCK;
}

size_t th_part_bytes(const struct th_part *part)
{
    const struct th_recipe *recipe = part->recipe;
    int64_t items = part->end - part->begin;
    if (recipe->rule == TH_RULE_SCALE) items *= blocks(recipe->cols);
    if (recipe->rule == TH_RULE_E4M3) {
        int64_t last = part->end * TH_SCALE_BLOCK;
        items = ((last < recipe->rows ? last : recipe->rows) - part->begin * TH_SCALE_BLOCK) * recipe->cols;
    }
    return (size_t)items * th_dtype_size(recipe->dtype);
}

static uint64_t slice_key(const struct th_part *part, uint64_t seed)
{
    const struct th_recipe *recipe = part->recipe;
    char name[2 * TH_RECIPE_NAME];
    if (recipe->stack == TH_STACK_NONE) return th_random_key(seed, recipe->source);
    if (recipe->stack == TH_STACK_DOWN)
        snprintf(name, sizeof name, "%s%lld.down_proj.weight", recipe->source, (long long)part->slice);
    else
        snprintf(name, sizeof name, "%s%lld.%s_proj.weight", recipe->source, (long long)(part->slice / 2),
                 part->slice % 2 ? "up" : "gate");
    return th_random_key(seed, name);
}

int th_recipe_hole(const struct th_recipe *recipe, uint64_t seed, struct th_hole *hole)
{
    const int codes = recipe->rule == TH_RULE_E4M3, plain = recipe->rule == TH_RULE_NORMAL && recipe->dtype == TH_BF16;
    if (recipe->rank != 2 || recipe->stack != TH_STACK_NONE || !(codes || plain) || recipe->bytes < TH_HOLE_LEAST) return 0;
    *hole = (struct th_hole){.magic = TH_HOLE_MAGIC,
                             .key = th_random_key(seed, recipe->source),
                             .rows = recipe->rows,
                             .cols = recipe->cols,
                             .loud_row = recipe->loud_row,
                             .a = recipe->a,
                             .b = recipe->b,
                             .rule = codes ? TH_HOLE_E4M3 : TH_HOLE_NORMAL_BF16,
                             .scale_bf16 = recipe->scale_bf16};
    return 1;
}

/* ---- plain values ------------------------------------------------------------------------------------------------------------ */

static void values_normal(const struct th_recipe *recipe, uint64_t key, int64_t first, size_t count, float *out)
{
    th_random_normals(key, (uint64_t)first, count, out);
    for (size_t i = 0; i < count; i++) out[i] = recipe->a + recipe->b * out[i];
    if (recipe->loud_row < 0) return;
    for (size_t i = 0; i < count; i++)
        if ((first + (int64_t)i) / recipe->cols == recipe->loud_row) out[i] *= 2.0f;
}

static void values_uniform(const struct th_recipe *recipe, uint64_t key, int64_t first, size_t count, float *out)
{
    th_random_uniforms(key, (uint64_t)first, count, out);
    for (size_t i = 0; i < count; i++) out[i] = (recipe->a + (recipe->b - recipe->a) * out[i]) * recipe->factor;
    if (recipe->rule != TH_RULE_LOG_UNIFORM) return;
    for (size_t i = 0; i < count; i++) out[i] = (float)log((double)out[i]);
}

static void store(enum th_dtype dtype, const float *values, size_t count, uint8_t *out)
{
    if (dtype == TH_F32) {
        memcpy(out, values, count * sizeof *values);
        return;
    }
    uint16_t halves[CHUNK];
    for (size_t i = 0; i < count; i++) halves[i] = th_round_bf16(values[i]);
    memcpy(out, halves, count * sizeof *halves);
}

static void make_values(const struct th_part *part, uint64_t seed, uint8_t *out)
{
    const struct th_recipe *recipe = part->recipe;
    uint64_t key = slice_key(part, seed);
    size_t size = th_dtype_size(recipe->dtype);
    float values[CHUNK];
    for (int64_t at = part->begin; at < part->end; at += CHUNK) {
        size_t count = (size_t)(part->end - at < CHUNK ? part->end - at : CHUNK);
        if (recipe->rule == TH_RULE_NORMAL)
            values_normal(recipe, key, at, count, values);
        else
            values_uniform(recipe, key, at, count, values);
        store(recipe->dtype, values, count, out);
        out += count * size;
    }
}

/* ---- blocks with a scale ----------------------------------------------------------------------------------------------------- */

/* The largest magnitude; eight running maxima, so that a compiler can keep them in one register. */
static float largest_size(const float *values, int64_t count)
{
    float largest[8] = {0.0f};
    int64_t whole = count - count % 8;
    for (int64_t i = 0; i < whole; i += 8)
        for (int k = 0; k < 8; k++) {
            float size = fabsf(values[i + k]);
            largest[k] = size > largest[k] ? size : largest[k];
        }
    for (int64_t i = whole; i < count; i++) largest[0] = fmaxf(largest[0], fabsf(values[i]));
    for (int k = 1; k < 8; k++) largest[0] = fmaxf(largest[0], largest[k]);
    return largest[0];
}

/* Fills `values` [rows][width] with a block of the matrix and returns its scale as the file holds it. */
static float make_block(const struct th_recipe *recipe, uint64_t key, int64_t block_row, int64_t block_col, float *values)
{
    int64_t rows = block_rows(recipe, block_row), col = block_col * TH_SCALE_BLOCK;
    int64_t width = recipe->cols - col < TH_SCALE_BLOCK ? recipe->cols - col : TH_SCALE_BLOCK;
    for (int64_t row = 0; row < rows; row++) {
        int64_t first = (block_row * TH_SCALE_BLOCK + row) * recipe->cols + col;
        th_random_normals(key, (uint64_t)first, (size_t)width, values + row * width);
    }
    for (int64_t i = 0; i < rows * width; i++) values[i] *= recipe->b;
    float largest = largest_size(values, rows * width);
    float scale = largest / 448.0f;
    return recipe->scale_bf16 ? th_widen_bf16(th_round_bf16(scale)) : scale;
}

static void make_codes(const struct th_part *part, uint64_t seed, uint8_t *out)
{
    const struct th_recipe *recipe = part->recipe;
    uint64_t key = slice_key(part, seed);
    float values[TH_SCALE_BLOCK * TH_SCALE_BLOCK];
    for (int64_t block = part->begin; block < part->end; block++) {
        int64_t rows = block_rows(recipe, block);
        for (int64_t col = 0; col < recipe->cols; col += TH_SCALE_BLOCK) {
            int64_t width = recipe->cols - col < TH_SCALE_BLOCK ? recipe->cols - col : TH_SCALE_BLOCK;
            float scale = make_block(recipe, key, block, col / TH_SCALE_BLOCK, values);
            for (int64_t i = 0; i < rows * width; i++) values[i] /= scale;
            for (int64_t row = 0; row < rows; row++)
                th_round_e4m3(values + row * width, (size_t)width, out + row * recipe->cols + col);
        }
        out += rows * recipe->cols;
    }
}

static void make_scales(const struct th_part *part, uint64_t seed, uint8_t *out)
{
    const struct th_recipe *recipe = part->recipe;
    uint64_t key = slice_key(part, seed);
    float values[TH_SCALE_BLOCK * TH_SCALE_BLOCK];
    for (int64_t block = part->begin; block < part->end; block++) {
        for (int64_t col = 0; col < blocks(recipe->cols); col++) {
            float scale = make_block(recipe, key, block, col, values);
            store(recipe->dtype, &scale, 1, out);
            out += th_dtype_size(recipe->dtype);
        }
    }
}

void th_part_make(const struct th_part *part, uint64_t seed, void *out)
{
    const struct th_recipe *recipe = part->recipe;
    uint8_t *bytes = out;
    if (recipe->rule == TH_RULE_E4M3) {
        make_codes(part, seed, bytes);
    } else if (recipe->rule == TH_RULE_SCALE) {
        make_scales(part, seed, bytes);
    } else if (recipe->rule == TH_RULE_ZERO) {
        memset(bytes, 0, th_part_bytes(part));
    } else if (recipe->rule == TH_RULE_LOWER_TRIANGLE) {
        for (int64_t i = part->begin; i < part->end; i++) *bytes++ = i % recipe->cols <= i / recipe->cols;
    } else {
        make_values(part, seed, bytes);
    }
}
