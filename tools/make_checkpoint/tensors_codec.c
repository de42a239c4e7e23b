/* tensors_codec.c - the codec's tensors in the order of its state dict, with gains that keep a random codec's waves inside (-1, 1).
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "make_checkpoint.h"

struct builder {
    const struct th_codec_sizes *sizes;
    struct th_recipes *list;
    thespis_status status;
    thespis_error *error;
    struct th_recipe nobody; /* what a failed put gives, so that rules can be set without asking */
};

/* A tensor of rank 1 to 3: trailing sizes of 0 do not count. */
static struct th_recipe *put(struct builder *b, enum th_dtype dtype, int64_t s0, int64_t s1, int64_t s2, const char *prefix,
                             const char *name)
{
    char full[2 * TH_RECIPE_NAME];
    struct th_recipe *recipe = &b->nobody;
    int rank = s2 > 0 ? 3 : s1 > 0 ? 2 : 1;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    if (b->status == THESPIS_OK) b->status = th_recipes_add(b->list, full, dtype, rank, (int64_t[]){s0, s1, s2}, &recipe, b->error);
    /* The file's name alone would give a codec the values of a model's tensor of the same name. */
    snprintf(recipe->source, sizeof recipe->source, "codec.%.*s", TH_RECIPE_NAME - 8, full);
    return recipe;
}

static void normal(struct builder *b, const char *prefix, const char *name, int64_t s0, int64_t s1, int64_t s2, double mean,
                   double deviation)
{
    struct th_recipe *recipe = put(b, TH_F32, s0, s1, s2, prefix, name);
    recipe->rule = TH_RULE_NORMAL;
    recipe->a = (float)mean;
    recipe->b = (float)deviation;
}

static void uniform(struct builder *b, const char *prefix, const char *name, int64_t s0, int64_t s1, int64_t s2, double low,
                    double high, double factor)
{
    struct th_recipe *recipe = put(b, TH_F32, s0, s1, s2, prefix, name);
    recipe->rule = TH_RULE_UNIFORM;
    recipe->a = (float)low;
    recipe->b = (float)high;
    recipe->factor = (float)factor;
}

static void alpha(struct builder *b, const char *prefix, const char *name, int64_t channels)
{
    uniform(b, prefix, name, 1, channels, 1, 0.3, 1.5, 1.0);
}

/* ---- convolutions under weight norm ------------------------------------------------------------------------------------------ */

/* A gain near 1 for each output channel: the direction is a unit vector, so the output has about the size of one input. */
static void conv(struct builder *b, const char *prefix, int64_t out, int64_t in, int64_t kernel, double gain)
{
    normal(b, prefix, "conv.bias", out, 0, 0, 0.0, 0.05);
    uniform(b, prefix, "conv.parametrizations.weight.original0", out, 1, 1, 0.8, 1.2, gain);
    normal(b, prefix, "conv.parametrizations.weight.original1", out, in, kernel, 0.0, 1.0);
}

/* Transposed: the gain belongs to an input channel, whose direction spreads over all outputs and taps, while an output sums
 * in * kernel / stride products. */
static void transposed_conv(struct builder *b, const char *prefix, int64_t in, int64_t out, int64_t kernel, int64_t stride,
                            double gain)
{
    double summed = (double)(in * kernel) / (double)stride;
    normal(b, prefix, "conv.bias", out, 0, 0, 0.0, 0.05);
    uniform(b, prefix, "conv.parametrizations.weight.original0", in, 1, 1, 0.8, 1.2, gain * sqrt((double)(out * kernel) / summed));
    normal(b, prefix, "conv.parametrizations.weight.original1", in, out, kernel, 0.0, 1.0);
}

static void residual_units(struct builder *b, const char *prefix, int first, int64_t channels)
{
    for (int unit = 0; unit < 3; unit++) {
        char name[TH_RECIPE_NAME], inner[2 * TH_RECIPE_NAME];
        snprintf(name, sizeof name, "%.64sblock.%d.", prefix, first + unit);
        alpha(b, name, "block.0.alpha", channels);
        snprintf(inner, sizeof inner, "%sblock.1.", name);
        conv(b, inner, channels, channels, 7, 0.7);
        alpha(b, name, "block.2.alpha", channels);
        snprintf(inner, sizeof inner, "%sblock.3.", name);
        conv(b, inner, channels, channels, 1, 0.7);
    }
}

/* ---- transformers ------------------------------------------------------------------------------------------------------------ */

static void transformer(struct builder *b, const char *prefix, int layers, int64_t dim, int64_t inner)
{
    double wide = 1.0 / sqrt((double)dim);
    for (int layer = 0; layer < layers; layer++) {
        char p[TH_RECIPE_NAME];
        snprintf(p, sizeof p, "%.64slayers.%d.", prefix, layer);
        normal(b, p, "attention.wqkv.weight", 3 * dim, dim, 0, 0.0, wide);
        normal(b, p, "attention.wo.weight", dim, dim, 0, 0.0, wide);
        normal(b, p, "feed_forward.w1.weight", inner, dim, 0, 0.0, wide);
        normal(b, p, "feed_forward.w3.weight", inner, dim, 0, 0.0, wide);
        normal(b, p, "feed_forward.w2.weight", dim, inner, 0, 0.0, 1.0 / sqrt((double)inner));
        normal(b, p, "ffn_norm.weight", dim, 0, 0, 1.0, 0.1);
        normal(b, p, "attention_norm.weight", dim, 0, 0, 1.0, 0.1);
        normal(b, p, "attention_layer_scale.gamma", dim, 0, 0, 0.5, 0.1);
        normal(b, p, "ffn_layer_scale.gamma", dim, 0, 0, 0.5, 0.1);
    }
    normal(b, prefix, "norm.weight", dim, 0, 0, 1.0, 0.1);
}

/* ---- the parts --------------------------------------------------------------------------------------------------------------- */

static void encoder(struct builder *b)
{
    static const int strides[] = {2, 4, 8, 8};
    const struct th_codec_sizes *s = b->sizes;
    int64_t channels = s->encoder_dim;
    conv(b, "encoder.block.0.", channels, 1, 7, 6.0); /* speech has an rms near 0.1 */
    for (int block = 0; block < 4; block++) {
        char p[64], inner[96];
        snprintf(p, sizeof p, "encoder.block.%d.", block + 1);
        residual_units(b, p, 0, channels);
        snprintf(inner, sizeof inner, "%sblock.3.", p);
        alpha(b, inner, "alpha", channels);
        snprintf(inner, sizeof inner, "%sblock.4.", p);
        conv(b, inner, 2 * channels, channels, 2 * strides[block], 1.0);
        channels *= 2;
    }
    transformer(b, "encoder.block.4.block.5.", s->encoder_layers, channels, 3 * channels);
    alpha(b, "encoder.block.5.", "alpha", channels);
    conv(b, "encoder.block.6.", s->latent, channels, 3, 1.0);
}

static void codebook(struct builder *b, const char *prefix, int entries)
{
    const struct th_codec_sizes *s = b->sizes;
    normal(b, prefix, "in_proj.bias", s->code_width, 0, 0, 0.0, 0.05);
    uniform(b, prefix, "in_proj.weight_g", s->code_width, 1, 1, 0.8, 1.2, 1.0);
    normal(b, prefix, "in_proj.weight_v", s->code_width, s->latent, 1, 0.0, 1.0);
    normal(b, prefix, "out_proj.bias", s->latent, 0, 0, 0.0, 0.05);
    uniform(b, prefix, "out_proj.weight_g", s->latent, 1, 1, 0.8, 1.2, 1.0);
    normal(b, prefix, "out_proj.weight_v", s->latent, s->code_width, 1, 0.0, 1.0);
    normal(b, prefix, "codebook.weight", entries, s->code_width, 0, 0.0, 1.0);
}

/* Up- and downsampling by 2: a convolution without weight norm, then a ConvNeXt block. */
static void resample_stage(struct builder *b, const char *direction, int stage, double summed)
{
    int64_t dim = b->sizes->latent;
    char p[64];
    snprintf(p, sizeof p, "quantizer.%s.%d.", direction, stage);
    normal(b, p, "0.conv.weight", dim, dim, 2, 0.0, 1.0 / sqrt(summed));
    normal(b, p, "0.conv.bias", dim, 0, 0, 0.0, 0.05);
    normal(b, p, "1.gamma", dim, 0, 0, 0.5, 0.1);
    normal(b, p, "1.dwconv.conv.weight", dim, 1, 7, 0.0, 1.0 / sqrt(7.0));
    normal(b, p, "1.dwconv.conv.bias", dim, 0, 0, 0.0, 0.05);
    normal(b, p, "1.norm.weight", dim, 0, 0, 1.0, 0.1);
    normal(b, p, "1.norm.bias", dim, 0, 0, 0.0, 0.05);
    normal(b, p, "1.pwconv1.weight", 4 * dim, dim, 0, 0.0, 1.0 / sqrt((double)dim));
    normal(b, p, "1.pwconv1.bias", 4 * dim, 0, 0, 0.0, 0.05);
    normal(b, p, "1.pwconv2.weight", dim, 4 * dim, 0, 0.0, 1.0 / sqrt(4.0 * (double)dim));
    normal(b, p, "1.pwconv2.bias", dim, 0, 0, 0.0, 0.05);
}

static void quantizer(struct builder *b)
{
    const struct th_codec_sizes *s = b->sizes;
    codebook(b, "quantizer.semantic_quantizer.quantizers.0.", s->semantic_entries);
    for (int i = 0; i < s->books; i++) {
        char p[64];
        snprintf(p, sizeof p, "quantizer.quantizer.quantizers.%d.", i);
        codebook(b, p, s->entries);
    }
    for (int i = 0; i < 2; i++) resample_stage(b, "downsample", i, 2.0 * s->latent);
    for (int i = 0; i < 2; i++) resample_stage(b, "upsample", i, s->latent);
    transformer(b, "quantizer.pre_module.", s->quantizer_layers, s->latent, s->inner);
    transformer(b, "quantizer.post_module.", s->quantizer_layers, s->latent, s->inner);
}

static void decoder(struct builder *b)
{
    static const int strides[] = {8, 8, 4, 2};
    int64_t channels = b->sizes->decoder_dim;
    conv(b, "decoder.model.0.", channels, b->sizes->latent, 7, 1.0);
    for (int block = 0; block < 4; block++) {
        char p[64], inner[96];
        snprintf(p, sizeof p, "decoder.model.%d.", block + 1);
        snprintf(inner, sizeof inner, "%sblock.0.", p);
        alpha(b, inner, "alpha", channels);
        snprintf(inner, sizeof inner, "%sblock.1.", p);
        transposed_conv(b, inner, channels, channels / 2, 2 * strides[block], strides[block], 0.7);
        channels /= 2;
        residual_units(b, p, 2, channels);
    }
    alpha(b, "decoder.model.5.", "alpha", channels);
    conv(b, "decoder.model.6.", 1, channels, 7, 0.3); /* before tanh */
}

/* Rotary tables and masks that published files carry and loaders must not read. */
static void extra_pair(struct builder *b, const char *prefix, int64_t positions)
{
    put(b, TH_BF16, positions, 32, 2, prefix, "freqs_cis")->rule = TH_RULE_ZERO;
    put(b, TH_BOOL, positions, positions, 0, prefix, "causal_mask")->rule =
        positions > 1024 ? TH_RULE_ZERO : TH_RULE_LOWER_TRIANGLE;
}

thespis_status th_codec_recipes(const struct th_codec_sizes *sizes, int extra_keys, struct th_recipes *list, thespis_error *error)
{
    struct builder b = {.sizes = sizes, .list = list, .status = THESPIS_OK, .error = error};
    encoder(&b);
    quantizer(&b);
    decoder(&b);
    if (extra_keys == 1) extra_pair(&b, "quantizer.pre_module.", 64);
    if (extra_keys == 2) {
        extra_pair(&b, "encoder.block.4.block.5.", 16384);
        extra_pair(&b, "quantizer.pre_module.", 4096);
        extra_pair(&b, "quantizer.post_module.", 4096);
    }
    return b.status;
}
