/* codec_builder.h - a small codec.pth with seeded values, tensor by tensor, so that tests can spoil any of them. */
#ifndef THESPIS_TESTS_CODEC_BUILDER_H
#define THESPIS_TESTS_CODEC_BUILDER_H

#include <stdarg.h>

#include "unit/checkpoint/pth_builder.h"

/* Latent width 64 is the least (one head), so 4 channels after the encoder's first convolution. */
enum { LATENT = 64, CHANNELS = 32, LAYERS = 2, INNER = 48, RESIDUAL_BOOKS = 2, ENTRIES = 16, RESIDUAL_ENTRIES = 8, CODE_WIDTH = 8 };

/* One tensor of the file. */
struct part {
    char name[128];
    int rank;
    int64_t shape[4], items;
    const char *type; /* storage type */
    float *values;    /* [items]; NULL: zeros, as for the buffers */
};

struct parts {
    struct part *at; /* [count], room for [room] */
    size_t count, room;
    uint64_t seed;
};

static inline struct part *add_part(struct parts *p, int rank, int64_t a, int64_t b, int64_t c, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

static inline struct part *add_part(struct parts *p, int rank, int64_t a, int64_t b, int64_t c, const char *format, ...)
{
    if (p->count == p->room) {
        p->room = p->room * 2 + 64;
        p->at = realloc(p->at, p->room * sizeof *p->at);
        if (p->at == NULL) abort();
    }
    struct part *part = &p->at[p->count++];
    *part = (struct part){.rank = rank, .shape = {a, b, c}, .items = 1, .type = "FloatStorage"};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(part->name, sizeof part->name, format, arguments);
    va_end(arguments);
    for (int i = 0; i < rank; i++) part->items *= part->shape[i];
    part->values = malloc((size_t)part->items * sizeof(float));
    if (part->values == NULL) abort();
    /* Values in (-1, 1), gains in (0.5, 1.5). */
    int gain = strstr(part->name, "original0") != NULL || strstr(part->name, "weight_g") != NULL;
    for (int64_t i = 0; i < part->items; i++) {
        float value = (float)((double)chance(&p->seed) / 1073741824.0 - 1.0);
        part->values[i] = gain ? 1.0f + value / 2 : value;
    }
    return part;
}

static inline void drop_parts(struct parts *p)
{
    for (size_t i = 0; i < p->count; i++) free(p->at[i].values);
    free(p->at);
    *p = (struct parts){0};
}

/* first, second: the weight's first two axes; `out` is one of them. */
static inline void add_normed(struct parts *p, int64_t first, int64_t second, int64_t kernel, int64_t out, const char *prefix)
{
    add_part(p, 1, out, 0, 0, "%s.conv.bias", prefix);
    add_part(p, 3, first, 1, 1, "%s.conv.parametrizations.weight.original0", prefix);
    add_part(p, 3, first, second, kernel, "%s.conv.parametrizations.weight.original1", prefix);
}

static inline void add_unit(struct parts *p, int64_t width, const char *prefix)
{
    char name[200];
    add_part(p, 3, 1, width, 1, "%s.block.0.alpha", prefix);
    snprintf(name, sizeof name, "%.100s.block.1", prefix);
    add_normed(p, width, width, 7, width, name);
    add_part(p, 3, 1, width, 1, "%s.block.2.alpha", prefix);
    snprintf(name, sizeof name, "%.100s.block.3", prefix);
    add_normed(p, width, width, 1, width, name);
}

static inline void add_transformer(struct parts *p, const char *prefix)
{
    for (int i = 0; i < LAYERS; i++) {
        add_part(p, 2, 3 * LATENT, LATENT, 0, "%s.layers.%d.attention.wqkv.weight", prefix, i);
        add_part(p, 2, LATENT, LATENT, 0, "%s.layers.%d.attention.wo.weight", prefix, i);
        add_part(p, 2, INNER, LATENT, 0, "%s.layers.%d.feed_forward.w1.weight", prefix, i);
        add_part(p, 2, INNER, LATENT, 0, "%s.layers.%d.feed_forward.w3.weight", prefix, i);
        add_part(p, 2, LATENT, INNER, 0, "%s.layers.%d.feed_forward.w2.weight", prefix, i);
        add_part(p, 1, LATENT, 0, 0, "%s.layers.%d.ffn_norm.weight", prefix, i);
        add_part(p, 1, LATENT, 0, 0, "%s.layers.%d.attention_norm.weight", prefix, i);
        add_part(p, 1, LATENT, 0, 0, "%s.layers.%d.attention_layer_scale.gamma", prefix, i);
        add_part(p, 1, LATENT, 0, 0, "%s.layers.%d.ffn_layer_scale.gamma", prefix, i);
    }
    add_part(p, 1, LATENT, 0, 0, "%s.norm.weight", prefix);
}

static inline void add_stages(struct parts *p, const char *prefix)
{
    for (int i = 0; i < 2; i++) {
        add_part(p, 3, LATENT, LATENT, 2, "%s.%d.0.conv.weight", prefix, i);
        add_part(p, 1, LATENT, 0, 0, "%s.%d.0.conv.bias", prefix, i);
        add_part(p, 1, LATENT, 0, 0, "%s.%d.1.gamma", prefix, i);
        add_part(p, 3, LATENT, 1, 7, "%s.%d.1.dwconv.conv.weight", prefix, i);
        add_part(p, 1, LATENT, 0, 0, "%s.%d.1.dwconv.conv.bias", prefix, i);
        add_part(p, 1, LATENT, 0, 0, "%s.%d.1.norm.weight", prefix, i);
        add_part(p, 1, LATENT, 0, 0, "%s.%d.1.norm.bias", prefix, i);
        add_part(p, 2, 4 * LATENT, LATENT, 0, "%s.%d.1.pwconv1.weight", prefix, i);
        add_part(p, 1, 4 * LATENT, 0, 0, "%s.%d.1.pwconv1.bias", prefix, i);
        add_part(p, 2, LATENT, 4 * LATENT, 0, "%s.%d.1.pwconv2.weight", prefix, i);
        add_part(p, 1, LATENT, 0, 0, "%s.%d.1.pwconv2.bias", prefix, i);
    }
}

static inline void add_book(struct parts *p, int64_t entries, const char *prefix)
{
    add_part(p, 1, CODE_WIDTH, 0, 0, "%s.in_proj.bias", prefix);
    add_part(p, 3, CODE_WIDTH, 1, 1, "%s.in_proj.weight_g", prefix);
    add_part(p, 3, CODE_WIDTH, LATENT, 1, "%s.in_proj.weight_v", prefix);
    add_part(p, 1, LATENT, 0, 0, "%s.out_proj.bias", prefix);
    add_part(p, 3, LATENT, 1, 1, "%s.out_proj.weight_g", prefix);
    add_part(p, 3, LATENT, CODE_WIDTH, 1, "%s.out_proj.weight_v", prefix);
    add_part(p, 2, entries, CODE_WIDTH, 0, "%s.codebook.weight", prefix);
}

static inline void add_encoder(struct parts *p)
{
    static const int strides[4] = {2, 4, 8, 8};
    char name[128];
    int64_t width = LATENT / 16;
    add_normed(p, width, 1, 7, width, "encoder.block.0");
    for (int b = 1; b <= 4; b++, width *= 2) {
        for (int u = 0; u < 3; u++) {
            snprintf(name, sizeof name, "encoder.block.%d.block.%d", b, u);
            add_unit(p, width, name);
        }
        add_part(p, 3, 1, width, 1, "encoder.block.%d.block.3.alpha", b);
        snprintf(name, sizeof name, "encoder.block.%d.block.4", b);
        add_normed(p, 2 * width, width, 2 * strides[b - 1], 2 * width, name);
    }
    add_transformer(p, "encoder.block.4.block.5");
    add_part(p, 3, 1, LATENT, 1, "encoder.block.5.alpha");
    add_normed(p, LATENT, LATENT, 3, LATENT, "encoder.block.6");
}

static inline void add_decoder(struct parts *p)
{
    static const int strides[4] = {8, 8, 4, 2};
    char name[128];
    int64_t width = CHANNELS;
    add_normed(p, width, LATENT, 7, width, "decoder.model.0");
    for (int b = 1; b <= 4; b++, width /= 2) {
        add_part(p, 3, 1, width, 1, "decoder.model.%d.block.0.alpha", b);
        snprintf(name, sizeof name, "decoder.model.%d.block.1", b);
        add_normed(p, width, width / 2, 2 * strides[b - 1], width / 2, name); /* transposed */
        for (int u = 2; u < 5; u++) {
            snprintf(name, sizeof name, "decoder.model.%d.block.%d", b, u);
            add_unit(p, width / 2, name);
        }
    }
    add_part(p, 3, 1, width, 1, "decoder.model.5.alpha");
    add_normed(p, 1, width, 7, 1, "decoder.model.6");
}

static inline struct parts codec_parts(void)
{
    struct parts p = {.seed = 7};
    char name[128];
    add_encoder(&p);
    add_book(&p, ENTRIES, "quantizer.semantic_quantizer.quantizers.0");
    for (int i = 0; i < RESIDUAL_BOOKS; i++) {
        snprintf(name, sizeof name, "quantizer.quantizer.quantizers.%d", i);
        add_book(&p, RESIDUAL_ENTRIES, name);
    }
    add_stages(&p, "quantizer.downsample");
    add_stages(&p, "quantizer.upsample");
    add_transformer(&p, "quantizer.pre_module");
    add_transformer(&p, "quantizer.post_module");
    add_decoder(&p);
    return p;
}

static inline struct part *find_part(const struct parts *p, const char *name)
{
    for (size_t i = 0; i < p->count; i++)
        if (strcmp(p->at[i].name, name) == 0) return &p->at[i];
    abort();
}

/* How the file is written. */
struct packing {
    int shared;          /* all tensors view one storage of as many floats as the largest needs: small files for tests of names */
    int no_crc;          /* checksums left out, as torch does when told to */
    int transposed;      /* tensors of two axes are stored column by column, their strides exchanged */
    size_t skew;         /* payloads are misaligned by so many bytes */
    const char *without; /* this tensor is left out */
};

static inline struct view part_view(const struct part *part, const char *key, const struct packing *packing, int64_t largest)
{
    struct view view = whole(part->type, key, part->rank, part->shape);
    if (packing->transposed && part->rank == 2) {
        view.strides[0] = 1;
        view.strides[1] = part->shape[0];
    }
    if (packing->shared) view.count = largest;
    return view;
}

static inline void add_storage(struct zipper *z, const struct part *part, const char *key, const struct packing *packing)
{
    size_t size = strcmp(part->type, "BoolStorage") == 0 ? 1 : strcmp(part->type, "FloatStorage") == 0 ? 4 : 2;
    uint8_t *data = calloc((size_t)part->items, size);
    char name[64];
    if (data == NULL) abort();
    float *floats = (float *)(void *)data;
    if (part->values != NULL && size == 4) {
        for (int64_t i = 0; i < part->items; i++) {
            int64_t rows = part->shape[0], columns = part->items / rows, at = i;
            if (packing->transposed && part->rank == 2) at = i % rows * columns + i / rows;
            floats[i] = part->values[at];
        }
    }
    snprintf(name, sizeof name, "codec/data/%s", key);
    z->fault.no_crc = packing->no_crc;
    z->fault.skew = packing->skew;
    zip_add(z, name, data, (size_t)part->items * size);
    free(data);
}

static inline struct bytes codec_archive(const struct parts *p, const struct packing *packing)
{
    struct zipper z = {0};
    struct bytes pickle = {0};
    const struct part *largest = &p->at[0];
    char key[32] = "0";
    for (size_t i = 0; i < p->count; i++)
        if (p->at[i].items > largest->items) largest = &p->at[i];
    pickle_begin(&pickle);
    put(&pickle, "}(", 2);
    for (size_t i = 0; i < p->count; i++) {
        if (packing->without != NULL && strcmp(packing->without, p->at[i].name) == 0) continue;
        if (!packing->shared) snprintf(key, sizeof key, "%zu", i);
        struct view view = part_view(&p->at[i], key, packing, largest->items);
        pickle_text(&pickle, p->at[i].name);
        pickle_tensor(&pickle, &view);
    }
    put(&pickle, "u.", 2);
    zip_add(&z, "codec/data.pkl", pickle.at, pickle.count);
    zip_add(&z, "codec/byteorder", "little", 6);
    for (size_t i = 0; i < p->count; i++) {
        if (packing->shared && &p->at[i] != largest) continue;
        if (!packing->shared) snprintf(key, sizeof key, "%zu", i);
        add_storage(&z, &p->at[i], key, packing);
    }
    zip_finish(&z, 1);
    drop(&pickle);
    return z.out;
}

#endif
