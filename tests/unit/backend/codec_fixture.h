/* codec_fixture.h - codecs for tests: a small one of seeded values with windows short enough that the rings wrap, and a CPU backend
 * around any codec without the rest of the engine. */
#ifndef THESPIS_TESTS_CODEC_FIXTURE_H
#define THESPIS_TESTS_CODEC_FIXTURE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/codec.h"

enum { FIX_LATENT = 64, FIX_CHANNELS = 48, FIX_BOOKS = 3, FIX_WIDTH = 8, FIX_INNER = 80 };

struct fixture {
    struct th_codec codec;
    struct th_codec_layer layers[3][2]; /* post, inner, pre */
    float *values[512];                 /* all that was made, to be freed */
    int count;
    uint32_t seed;
};

/* n values in (-scale, scale), around `middle`. */
static inline float *fix_values(struct fixture *f, size_t n, float scale, float middle)
{
    float *v = malloc((n == 0 ? 1 : n) * sizeof(float));
    if (v == NULL || f->count == 512) abort();
    f->values[f->count++] = v;
    for (size_t i = 0; i < n; i++) {
        f->seed = f->seed * 1664525u + 1013904223u;
        v[i] = middle + scale * ((float)(f->seed >> 8) / 8388608.0f - 1.0f);
    }
    return v;
}

/* Weights that keep the size of a signal: about sqrt(3 / fan-in). */
static inline float *fix_weight(struct fixture *f, size_t outputs, size_t inputs)
{
    return fix_values(f, outputs * inputs, sqrtf(2.0f / (float)inputs), 0.0f);
}

static inline struct th_conv fix_conv(struct fixture *f, int in, int out, int kernel, int stride, int dilation, int groups,
                                      int transposed)
{
    size_t taps = (size_t)(in / groups) * (size_t)kernel;
    struct th_conv conv = {
        .in = in, .out = out, .kernel = kernel, .stride = stride, .dilation = dilation, .groups = groups, .transposed = transposed};
    conv.weight = fix_values(f, (size_t)out * taps, sqrtf(2.0f * (float)(transposed ? stride : 1) / (float)taps), 0.0f);
    conv.bias = fix_values(f, (size_t)out, 0.1f, 0.0f);
    return conv;
}

static inline struct th_codec_block fix_block(struct fixture *f, int in, int out, int stride, int decoder)
{
    struct th_codec_block block = {.alpha = fix_values(f, (size_t)in, 0.5f, 1.0f)};
    block.conv = fix_conv(f, in, out, 2 * stride, stride, 1, 1, decoder);
    int width = decoder ? out : in, dilation = 1;
    for (int u = 0; u < 3; u++, dilation *= 3) {
        block.units[u].alpha1 = fix_values(f, (size_t)width, 0.5f, 1.0f);
        block.units[u].alpha2 = fix_values(f, (size_t)width, 0.5f, 1.0f);
        block.units[u].dilated = fix_conv(f, width, width, 7, 1, dilation, 1, 0);
        block.units[u].pointwise = fix_conv(f, width, width, 1, 1, 1, 1, 0);
    }
    return block;
}

static inline struct th_convnext fix_next(struct fixture *f)
{
    const size_t d = FIX_LATENT;
    struct th_convnext next = {.depthwise = fix_conv(f, FIX_LATENT, FIX_LATENT, 7, 1, 1, FIX_LATENT, 0)};
    next.norm_weight = fix_values(f, d, 0.2f, 1.0f);
    next.norm_bias = fix_values(f, d, 0.2f, 0.0f);
    next.w1 = fix_weight(f, 4 * d, d);
    next.b1 = fix_values(f, 4 * d, 0.1f, 0.0f);
    next.w2 = fix_weight(f, d, 4 * d);
    next.b2 = fix_values(f, d, 0.1f, 0.0f);
    next.gamma = fix_values(f, d, 0.5f, 0.0f);
    return next;
}

static inline struct th_codec_transformer fix_transformer(struct fixture *f, int index, int window)
{
    const size_t d = FIX_LATENT;
    struct th_codec_transformer t = {
        .layers = 2, .dim = FIX_LATENT, .heads = 1, .inner = FIX_INNER, .window = window, .layer = f->layers[index]};
    for (int i = 0; i < 2; i++)
        f->layers[index][i] = (struct th_codec_layer){.attention_norm = fix_values(f, d, 0.2f, 1.0f),
                                                      .ffn_norm = fix_values(f, d, 0.2f, 1.0f),
                                                      .wqkv = fix_weight(f, 3 * d, d),
                                                      .wo = fix_weight(f, d, d),
                                                      .w1 = fix_weight(f, FIX_INNER, d),
                                                      .w3 = fix_weight(f, FIX_INNER, d),
                                                      .w2 = fix_weight(f, d, FIX_INNER),
                                                      .attention_scale = fix_values(f, d, 0.5f, 0.0f),
                                                      .ffn_scale = fix_values(f, d, 0.5f, 0.0f)};
    t.norm = fix_values(f, d, 0.2f, 1.0f);
    return t;
}

static inline void fix_decoder(struct fixture *f)
{
    static const int strides[TH_CODEC_BLOCKS] = {8, 8, 4, 2};
    struct th_codec_decoder *decoder = &f->codec.decoder;
    decoder->post = fix_transformer(f, 0, 5);
    for (int i = 0; i < TH_CODEC_STAGES; i++) {
        decoder->up[i] = fix_conv(f, FIX_LATENT, FIX_LATENT, 2, 2, 1, 1, 1);
        decoder->up_next[i] = fix_next(f);
    }
    int width = FIX_CHANNELS;
    decoder->first = fix_conv(f, FIX_LATENT, width, 7, 1, 1, 1, 0);
    for (int b = 0; b < TH_CODEC_BLOCKS; b++, width /= 2) decoder->blocks[b] = fix_block(f, width, width / 2, strides[b], 1);
    decoder->alpha = fix_values(f, (size_t)width, 0.5f, 1.0f);
    decoder->last = fix_conv(f, width, 1, 7, 1, 1, 1, 0);
}

static inline void fix_encoder(struct fixture *f)
{
    static const int strides[TH_CODEC_BLOCKS] = {2, 4, 8, 8};
    struct th_codec_encoder *encoder = &f->codec.encoder;
    int width = FIX_LATENT / 16;
    encoder->first = fix_conv(f, 1, width, 7, 1, 1, 1, 0);
    for (int b = 0; b < TH_CODEC_BLOCKS; b++, width *= 2) encoder->blocks[b] = fix_block(f, width, 2 * width, strides[b], 0);
    encoder->transformer = fix_transformer(f, 1, 19);
    encoder->alpha = fix_values(f, FIX_LATENT, 0.5f, 1.0f);
    encoder->last = fix_conv(f, FIX_LATENT, FIX_LATENT, 3, 1, 1, 1, 0);
    for (int i = 0; i < TH_CODEC_STAGES; i++) {
        encoder->down[i] = fix_conv(f, FIX_LATENT, FIX_LATENT, 2, 2, 1, 1, 0);
        encoder->down_next[i] = fix_next(f);
    }
    encoder->pre = fix_transformer(f, 2, 5);
}

static inline struct fixture *fix_make(int decoder, int encoder)
{
    struct fixture *f = calloc(1, sizeof *f);
    if (f == NULL) abort();
    f->seed = 7;
    f->codec.latent = FIX_LATENT;
    f->codec.books = FIX_BOOKS;
    f->codec.code_width = FIX_WIDTH;
    f->codec.has_decoder = decoder;
    f->codec.has_encoder = encoder;
    for (int i = 0; i < FIX_BOOKS; i++) {
        int entries = i == 0 ? 40 : 23; /* no multiple of 16 */
        f->codec.book_entries[i] = entries;
        f->codec.book[i] = (struct th_codebook){.entries = entries,
                                                .codebook = fix_values(f, (size_t)entries * FIX_WIDTH, 1.0f, 0.0f),
                                                .in_weight = fix_weight(f, FIX_WIDTH, FIX_LATENT),
                                                .in_bias = fix_values(f, FIX_WIDTH, 0.1f, 0.0f),
                                                .out_weight = fix_weight(f, FIX_LATENT, FIX_WIDTH),
                                                .out_bias = fix_values(f, FIX_LATENT, 0.1f, 0.0f)};
    }
    if (decoder) fix_decoder(f);
    if (encoder) fix_encoder(f);
    return f;
}

static inline void fix_drop(struct fixture *f)
{
    for (int i = 0; i < f->count; i++) free(f->values[i]);
    free(f);
}

/* The instruction sets of this machine. */
static inline int fix_sets(const struct th_codec_kernels **sets)
{
    int n = 0;
    sets[n++] = &th_codec_kernels_portable;
#ifdef TH_HAVE_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets[n++] = &th_codec_kernels_avx2;
#endif
    return n;
}

/* A backend with nothing but the codec. kernels NULL: the best of this machine. */
static inline thespis_status fix_open(struct th_cpu *cpu, const struct th_codec *codec, const struct th_codec_kernels *kernels,
                                      int threads, thespis_error *error)
{
    const struct th_codec_kernels *sets[4];
    *cpu = (struct th_cpu){.codec = codec, .codec_kernels = kernels};
    if (kernels == NULL) cpu->codec_kernels = sets[fix_sets(sets) - 1];
    TH_TRY(th_pool_open(threads, &cpu->pool, error));
    thespis_status status = th_cpu_codec_prepare(cpu, error);
    if (status != THESPIS_OK) th_pool_close(cpu->pool);
    return status;
}

static inline void fix_close(struct th_cpu *cpu)
{
    th_cpu_codec_release(cpu);
    th_pool_close(cpu->pool);
}

#endif
