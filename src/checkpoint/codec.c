/* codec.c - lays the codec's tensors out as the network uses them. Sizes are read from a few shapes; then every tensor is claimed
 * by name with the shape those sizes demand, and one that is missing or left over is refused. */
#include "checkpoint/codec.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "checkpoint/codec_weights.h"

#define NAME_BYTES 160
#define MAX_WIDTH 16384   /* of any layer; the published codec's widest has 4096 */
#define MAX_ENTRIES 32768 /* of a codebook: codes are kept in 16 bits */
#define MAX_WINDOW 65536

static const int encoder_strides[TH_CODEC_BLOCKS] = {2, 4, 8, 8};
static const int decoder_strides[TH_CODEC_BLOCKS] = {8, 8, 4, 2};
static const int dilations[3] = {1, 3, 9};
#define STAGE_STRIDE 2
#define POST_WINDOW 128 /* post and pre module, where the file does not say */
#define ENCODER_WINDOW 512
#define MODULE_ENCODER "encoder.block.4.block.5"
#define MODULE_PRE "quantizer.pre_module"
#define MODULE_POST "quantizer.post_module"

/* Does this tensor carry weight norm in a pth? */
enum form { ANY_PLAIN, NORMED };

/* Claims run one after the other; after the first failure the rest do nothing. */
struct claims {
    struct th_codec_weights *weights;
    int halves; /* who needs what is being claimed */
    thespis_status status;
    thespis_error *error;
};

struct shape {
    int rank;
    int64_t size[TH_TENSOR_MAX_RANK];
};
#define SHAPE1(a) ((struct shape){1, {(a)}})
#define SHAPE2(a, b) ((struct shape){2, {(a), (b)}})
#define SHAPE3(a, b, c) ((struct shape){3, {(a), (b), (c)}})

static const char *shape_text(int rank, const int64_t *size, char *text, size_t bytes)
{
    size_t used = 1;
    text[0] = '[';
    for (int i = 0; i < rank; i++) used += (size_t)snprintf(text + used, bytes - used, "%s%" PRId64, i > 0 ? ", " : "", size[i]);
    snprintf(text + used, bytes - used, "]");
    return text;
}

/* Names are made of known parts and fit. */
static void put_name(char name[NAME_BYTES], const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put_name(char name[NAME_BYTES], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, NAME_BYTES, format, arguments);
    va_end(arguments);
}

/* ---- claiming one tensor ----------------------------------------------------------------------------------------------------- */

static thespis_status check_tensor(const struct claims *c, const struct th_codec_weight *weight, enum form form, struct shape shape)
{
    char seen[120], expected[120];
    if (weight->dtype != TH_F32)
        return th_fail(c->error, THESPIS_FORMAT, "tensor '%s' has dtype %s, F32 was expected", weight->name,
                       th_dtype_name(weight->dtype));
    if (weight->rank != shape.rank || memcmp(weight->shape, shape.size, sizeof(int64_t) * (size_t)shape.rank) != 0)
        return th_fail(c->error, THESPIS_FORMAT, "tensor '%s' has shape %s, %s was expected", weight->name,
                       shape_text(weight->rank, weight->shape, seen, sizeof seen),
                       shape_text(shape.rank, shape.size, expected, sizeof expected));
    if (!c->weights->folded && (weight->gain != NULL) != (form == NORMED))
        return th_fail(c->error, THESPIS_FORMAT,
                       form == NORMED ? "tensor '%s' is plain, gain and direction were expected"
                                      : "tensor '%s' has gain and direction, a plain one was expected",
                       weight->name);
    if (weight->slot != NULL) return th_fail(c->error, THESPIS_FORMAT, "tensor '%s' is used twice", weight->name);
    return THESPIS_OK;
}

static void claim(struct claims *c, const float **slot, enum form form, struct shape shape, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

static void claim(struct claims *c, const float **slot, enum form form, struct shape shape, const char *format, ...)
{
    char name[NAME_BYTES];
    if (c->status != THESPIS_OK) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    struct th_codec_weight *weight = th_codec_weights_find(c->weights, name);
    if (weight == NULL) {
        c->status = th_fail(c->error, THESPIS_FORMAT, "tensor '%s' is missing", name);
        return;
    }
    c->status = check_tensor(c, weight, form, shape);
    if (c->status != THESPIS_OK) return;
    weight->slot = slot;
    weight->halves = c->halves;
}

/* ---- parts of the network ---------------------------------------------------------------------------------------------------- */

static void claim_conv(struct claims *c, struct th_conv *conv, struct th_conv sizes, enum form form, const char *prefix)
{
    *conv = sizes;
    struct shape shape =
        sizes.transposed ? SHAPE3(sizes.in, sizes.out, sizes.kernel) : SHAPE3(sizes.out, sizes.in / sizes.groups, sizes.kernel);
    claim(c, &conv->weight, form, shape, "%s.conv.weight", prefix);
    claim(c, &conv->bias, ANY_PLAIN, SHAPE1(sizes.out), "%s.conv.bias", prefix);
}

static struct th_conv conv_sizes(int in, int out, int kernel, int stride, int dilation)
{
    return (struct th_conv){.in = in, .out = out, .kernel = kernel, .stride = stride, .dilation = dilation, .groups = 1};
}

static void claim_unit(struct claims *c, struct th_residual_unit *unit, int width, int dilation, const char *prefix)
{
    char name[NAME_BYTES];
    claim(c, &unit->alpha1, ANY_PLAIN, SHAPE3(1, width, 1), "%s.block.0.alpha", prefix);
    put_name(name, "%s.block.1", prefix);
    claim_conv(c, &unit->dilated, conv_sizes(width, width, 7, 1, dilation), NORMED, name);
    claim(c, &unit->alpha2, ANY_PLAIN, SHAPE3(1, width, 1), "%s.block.2.alpha", prefix);
    put_name(name, "%s.block.3", prefix);
    claim_conv(c, &unit->pointwise, conv_sizes(width, width, 1, 1, 1), NORMED, name);
}

/* first_unit: position of the first residual unit, 0 in the encoder, 2 in the decoder. */
static void claim_block(struct claims *c, struct th_codec_block *block, struct th_conv sizes, int first_unit, const char *prefix)
{
    char name[NAME_BYTES];
    int after = first_unit == 0;
    claim(c, &block->alpha, ANY_PLAIN, SHAPE3(1, sizes.in, 1), "%s.block.%d.alpha", prefix, after ? 3 : 0);
    put_name(name, "%s.block.%d", prefix, after ? 4 : 1);
    claim_conv(c, &block->conv, sizes, NORMED, name);
    for (int i = 0; i < 3; i++) {
        put_name(name, "%s.block.%d", prefix, first_unit + i);
        claim_unit(c, &block->units[i], after ? sizes.in : sizes.out, dilations[i], name);
    }
}

static void claim_convnext(struct claims *c, struct th_convnext *next, int width, const char *prefix)
{
    char name[NAME_BYTES];
    struct th_conv sizes = conv_sizes(width, width, 7, 1, 1);
    sizes.groups = width;
    put_name(name, "%s.dwconv", prefix);
    claim_conv(c, &next->depthwise, sizes, ANY_PLAIN, name);
    claim(c, &next->norm_weight, ANY_PLAIN, SHAPE1(width), "%s.norm.weight", prefix);
    claim(c, &next->norm_bias, ANY_PLAIN, SHAPE1(width), "%s.norm.bias", prefix);
    claim(c, &next->w1, ANY_PLAIN, SHAPE2(4 * width, width), "%s.pwconv1.weight", prefix);
    claim(c, &next->b1, ANY_PLAIN, SHAPE1(4 * width), "%s.pwconv1.bias", prefix);
    claim(c, &next->w2, ANY_PLAIN, SHAPE2(width, 4 * width), "%s.pwconv2.weight", prefix);
    claim(c, &next->b2, ANY_PLAIN, SHAPE1(width), "%s.pwconv2.bias", prefix);
    claim(c, &next->gamma, ANY_PLAIN, SHAPE1(width), "%s.gamma", prefix);
}

/* Down- or upsampling: two times a convolution of stride 2 and a ConvNeXt block. */
static void claim_stages(struct claims *c, struct th_conv *convs, struct th_convnext *nexts, int width, int transposed,
                         const char *prefix)
{
    char name[NAME_BYTES];
    struct th_conv sizes = conv_sizes(width, width, STAGE_STRIDE, STAGE_STRIDE, 1);
    sizes.transposed = transposed;
    for (int i = 0; i < TH_CODEC_STAGES; i++) {
        put_name(name, "%s.%d.0", prefix, i);
        claim_conv(c, &convs[i], sizes, ANY_PLAIN, name);
        put_name(name, "%s.%d.1", prefix, i);
        claim_convnext(c, &nexts[i], width, name);
    }
}

static void claim_layer(struct claims *c, struct th_codec_layer *layer, int dim, int inner, const char *prefix)
{
    claim(c, &layer->attention_norm, ANY_PLAIN, SHAPE1(dim), "%s.attention_norm.weight", prefix);
    claim(c, &layer->ffn_norm, ANY_PLAIN, SHAPE1(dim), "%s.ffn_norm.weight", prefix);
    claim(c, &layer->wqkv, ANY_PLAIN, SHAPE2(3 * dim, dim), "%s.attention.wqkv.weight", prefix);
    claim(c, &layer->wo, ANY_PLAIN, SHAPE2(dim, dim), "%s.attention.wo.weight", prefix);
    claim(c, &layer->w1, ANY_PLAIN, SHAPE2(inner, dim), "%s.feed_forward.w1.weight", prefix);
    claim(c, &layer->w3, ANY_PLAIN, SHAPE2(inner, dim), "%s.feed_forward.w3.weight", prefix);
    claim(c, &layer->w2, ANY_PLAIN, SHAPE2(dim, inner), "%s.feed_forward.w2.weight", prefix);
    claim(c, &layer->attention_scale, ANY_PLAIN, SHAPE1(dim), "%s.attention_layer_scale.gamma", prefix);
    claim(c, &layer->ffn_scale, ANY_PLAIN, SHAPE1(dim), "%s.ffn_layer_scale.gamma", prefix);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------------------- */

/* Axis `axis` of a tensor that must exist and have `rank` axes. */
static thespis_status read_size(const struct claims *c, const char *name, int rank, int axis, int64_t most, int *size)
{
    const struct th_codec_weight *weight = th_codec_weights_find(c->weights, name);
    if (weight == NULL) return th_fail(c->error, THESPIS_FORMAT, "tensor '%s' is missing", name);
    if (weight->rank != rank)
        return th_fail(c->error, THESPIS_FORMAT, "tensor '%s' has %d axes, %d were expected", name, weight->rank, rank);
    if (weight->shape[axis] < 1 || weight->shape[axis] > most)
        return th_fail(c->error, THESPIS_FORMAT, "tensor '%s' has size %" PRId64 " on axis %d, 1 to %" PRId64 " was expected", name,
                       weight->shape[axis], axis, most);
    *size = (int)weight->shape[axis];
    return THESPIS_OK;
}

/* One more than the highest number N in names "PREFIX.N.*", so that a hole is later named as missing. */
static thespis_status count_numbered(const struct claims *c, const char *prefix, int most, int *count)
{
    size_t n = strlen(prefix);
    *count = 0;
    for (size_t i = 0; i < c->weights->count; i++) {
        const char *name = c->weights->weights[i].name;
        if (strncmp(name, prefix, n) != 0 || name[n] != '.' || name[n + 1] < '0' || name[n + 1] > '9') continue;
        long number = strtol(name + n + 1, NULL, 10);
        if (number >= most)
            return th_fail(c->error, THESPIS_FORMAT, "tensor '%s' is beyond the %d of '%s' that are read", name, most, prefix);
        if (number >= *count) *count = (int)number + 1;
    }
    if (*count > 0) return THESPIS_OK;
    return th_fail(c->error, THESPIS_FORMAT, "tensors '%s.0.*' are missing", prefix);
}

static thespis_status check_multiple(const struct claims *c, const char *what, int value, int of)
{
    if (value % of == 0) return THESPIS_OK;
    return th_fail(c->error, THESPIS_FORMAT, "the codec's %s is %d, a multiple of %d was expected", what, value, of);
}

static void claim_transformer(struct claims *c, struct th_codec_transformer *t, int dim, const char *prefix)
{
    char name[NAME_BYTES];
    if (c->status != THESPIS_OK) return;
    t->dim = dim;
    t->heads = dim / TH_CODEC_HEAD_DIM;
    put_name(name, "%s.layers", prefix);
    c->status = count_numbered(c, name, TH_CODEC_MAX_LAYERS, &t->layers);
    put_name(name, "%s.layers.0.feed_forward.w1.weight", prefix);
    if (c->status == THESPIS_OK) c->status = read_size(c, name, 2, 0, MAX_WIDTH, &t->inner);
    if (c->status == THESPIS_OK) c->status = TH_ALLOC(&t->layer, (size_t)t->layers, "the codec's layers", c->error);
    for (int i = 0; i < t->layers && c->status == THESPIS_OK; i++) {
        put_name(name, "%s.layers.%d", prefix, i);
        claim_layer(c, &t->layer[i], dim, t->inner, name);
    }
    claim(c, &t->norm, ANY_PLAIN, SHAPE1(dim), "%s.norm.weight", prefix);
}

/* ---- halves ------------------------------------------------------------------------------------------------------------------ */

/* Book 0 is the semantic one, the others the residual ones in their order. */
static void book_prefix(int index, char *name)
{
    if (index == 0)
        put_name(name, "quantizer.semantic_quantizer.quantizers.0");
    else
        put_name(name, "quantizer.quantizer.quantizers.%d", index - 1);
}

static void claim_book(struct claims *c, struct th_codec *codec, int index)
{
    char prefix[NAME_BYTES], name[NAME_BYTES];
    struct th_codebook *book = &codec->book[index];
    int width = codec->code_width, latent = codec->latent;
    if (c->status != THESPIS_OK) return;
    book_prefix(index, prefix);
    put_name(name, "%s.codebook.weight", prefix);
    c->status = read_size(c, name, 2, 0, MAX_ENTRIES, &book->entries);
    codec->book_entries[index] = book->entries;
    c->halves = TH_CODEC_BOTH;
    claim(c, &book->codebook, ANY_PLAIN, SHAPE2(book->entries, width), "%s.codebook.weight", prefix);
    claim(c, &book->out_weight, NORMED, SHAPE3(latent, width, 1), "%s.out_proj.weight", prefix);
    claim(c, &book->out_bias, ANY_PLAIN, SHAPE1(latent), "%s.out_proj.bias", prefix);
    c->halves = TH_CODEC_ENCODE;
    claim(c, &book->in_weight, NORMED, SHAPE3(width, latent, 1), "%s.in_proj.weight", prefix);
    claim(c, &book->in_bias, ANY_PLAIN, SHAPE1(width), "%s.in_proj.bias", prefix);
}

static void claim_encoder(struct claims *c, struct th_codec_encoder *encoder, int latent)
{
    char name[NAME_BYTES];
    int width = latent >> TH_CODEC_BLOCKS;
    c->halves = TH_CODEC_ENCODE;
    claim_conv(c, &encoder->first, conv_sizes(1, width, 7, 1, 1), NORMED, "encoder.block.0");
    for (int i = 0; i < TH_CODEC_BLOCKS; i++, width *= 2) {
        int stride = encoder_strides[i];
        put_name(name, "encoder.block.%d", i + 1);
        claim_block(c, &encoder->blocks[i], conv_sizes(width, 2 * width, 2 * stride, stride, 1), 0, name);
    }
    claim_transformer(c, &encoder->transformer, latent, MODULE_ENCODER);
    claim(c, &encoder->alpha, ANY_PLAIN, SHAPE3(1, latent, 1), "encoder.block.5.alpha");
    claim_conv(c, &encoder->last, conv_sizes(latent, latent, 3, 1, 1), NORMED, "encoder.block.6");
    claim_stages(c, encoder->down, encoder->down_next, latent, 0, "quantizer.downsample");
    claim_transformer(c, &encoder->pre, latent, MODULE_PRE);
}

static void claim_decoder(struct claims *c, struct th_codec_decoder *decoder, int latent, int channels)
{
    char name[NAME_BYTES];
    int width = channels;
    c->halves = TH_CODEC_DECODE;
    claim_transformer(c, &decoder->post, latent, MODULE_POST);
    claim_stages(c, decoder->up, decoder->up_next, latent, 1, "quantizer.upsample");
    claim_conv(c, &decoder->first, conv_sizes(latent, width, 7, 1, 1), NORMED, "decoder.model.0");
    for (int i = 0; i < TH_CODEC_BLOCKS; i++, width /= 2) {
        int stride = decoder_strides[i];
        struct th_conv sizes = conv_sizes(width, width / 2, 2 * stride, stride, 1);
        sizes.transposed = 1;
        put_name(name, "decoder.model.%d", i + 1);
        claim_block(c, &decoder->blocks[i], sizes, 2, name);
    }
    claim(c, &decoder->alpha, ANY_PLAIN, SHAPE3(1, width, 1), "decoder.model.5.alpha");
    claim_conv(c, &decoder->last, conv_sizes(width, 1, 7, 1, 1), NORMED, "decoder.model.6");
}

static thespis_status check_left_over(const struct claims *c)
{
    for (size_t i = 0; i < c->weights->count; i++)
        if (c->weights->weights[i].slot == NULL)
            return th_fail(c->error, THESPIS_FORMAT, "tensor '%s' does not belong to the codec", c->weights->weights[i].name);
    return THESPIS_OK;
}

static thespis_status claim_all(struct claims *c, struct th_codec *codec)
{
    int channels = 0, residual = 0;
    TH_TRY(read_size(c, "decoder.model.0.conv.weight", 3, 0, MAX_WIDTH, &channels));
    TH_TRY(read_size(c, "decoder.model.0.conv.weight", 3, 1, MAX_WIDTH / 4, &codec->latent));
    TH_TRY(check_multiple(c, "latent width", codec->latent, TH_CODEC_HEAD_DIM));
    TH_TRY(check_multiple(c, "decoder width", channels, 1 << TH_CODEC_BLOCKS));
    TH_TRY(count_numbered(c, "quantizer.quantizer.quantizers", TH_CODEC_MAX_BOOKS - 1, &residual));
    TH_TRY(read_size(c, "quantizer.semantic_quantizer.quantizers.0.codebook.weight", 2, 1, MAX_WIDTH, &codec->code_width));
    codec->books = residual + 1;
    for (int i = 0; i < codec->books; i++) claim_book(c, codec, i);
    claim_decoder(c, &codec->decoder, codec->latent, channels);
    claim_encoder(c, &codec->encoder, codec->latent);
    TH_TRY(c->status);
    return check_left_over(c);
}

/* ---- what the converted file states ------------------------------------------------------------------------------------------ */

/* Constants of the network: a file that states others is for another one. */
static const struct {
    const char *key, *value;
} constants[] = {
    {"format", TH_CODEC_FORMAT},
    {"sample_rate", "44100"},
    {"hop", "512"},
    {"frame", "2048"},
    {"head_dim", "64"},
    {"rope_base", "10000"},
    {"rope_table", "bf16"},
    {"dilations", "1,3,9"},
    {"decoder_strides", "8,8,4,2"},
    {"encoder_strides", "2,4,8,8"},
    {"quantizer_strides", "2,2"},
};

static thespis_status read_window(const json_t *metadata, const char *key, int *window, thespis_error *error)
{
    const char *text = json_string_value(json_object_get(metadata, key));
    char *end = NULL;
    if (text == NULL) return th_fail(error, THESPIS_FORMAT, "metadata '%s' is missing", key);
    long value = text[0] >= '1' && text[0] <= '9' ? strtol(text, &end, 10) : 0;
    if (value < 1 || value > MAX_WINDOW || *end != '\0')
        return th_fail(error, THESPIS_FORMAT, "metadata '%s' is '%.80s', 1 to %d was expected", key, text, MAX_WINDOW);
    *window = (int)value;
    return THESPIS_OK;
}

static thespis_status set_windows(const struct th_codec_weights *weights, struct th_codec *codec, thespis_error *error)
{
    const json_t *metadata = weights->file.metadata;
    codec->decoder.post.window = codec->encoder.pre.window = POST_WINDOW;
    codec->encoder.transformer.window = ENCODER_WINDOW;
    if (!weights->folded) return THESPIS_OK;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        const char *seen = json_string_value(json_object_get(metadata, constants[i].key));
        if (seen == NULL)
            return th_fail(error, THESPIS_FORMAT, "metadata '%s' is missing ('%s' was expected)", constants[i].key,
                           constants[i].value);
        if (strcmp(seen, constants[i].value) != 0)
            return th_fail(error, THESPIS_FORMAT, "metadata '%s' is '%.80s', '%s' was expected", constants[i].key, seen,
                           constants[i].value);
    }
    TH_TRY(read_window(metadata, "window_post", &codec->decoder.post.window, error));
    TH_TRY(read_window(metadata, "window_pre", &codec->encoder.pre.window, error));
    return read_window(metadata, "window_encoder", &codec->encoder.transformer.window, error);
}

int th_codec_state(const struct th_codec *codec, json_t *metadata)
{
    const struct {
        const char *key;
        int window;
    } windows[] = {{"window_post", codec->decoder.post.window},
                   {"window_pre", codec->encoder.pre.window},
                   {"window_encoder", codec->encoder.transformer.window}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (json_object_set_new(metadata, constants[i].key, json_string(constants[i].value)) != 0) return 0;
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++)
        if (json_object_set_new(metadata, windows[i].key, json_sprintf("%d", windows[i].window)) != 0) return 0;
    return 1;
}

/* ---- the codec --------------------------------------------------------------------------------------------------------------- */

static thespis_status fill_codec(struct th_codec *codec, struct th_codec_weights *weights, int halves, thespis_error *error)
{
    struct claims c = {.weights = weights, .status = THESPIS_OK, .error = error};
    TH_TRY(set_windows(weights, codec, error));
    TH_TRY(claim_all(&c, codec));
    TH_TRY(th_codec_weights_load(weights, halves, error));
    TH_TRY(th_codec_weights_id(weights, codec->id, error));
    codec->has_decoder = (halves & TH_CODEC_DECODE) != 0;
    codec->has_encoder = (halves & TH_CODEC_ENCODE) != 0;
    codec->owned_bytes = weights->owned_bytes;
    codec->mapped_bytes = weights->mapped_bytes;
    return THESPIS_OK;
}

thespis_status th_codec_open(const char *path, int halves, struct th_codec **out, thespis_error *error)
{
    struct th_codec *codec = NULL;
    struct th_codec_weights *weights = NULL;
    *out = NULL;
    if (halves < TH_CODEC_DECODE || halves > TH_CODEC_BOTH)
        return th_fail(error, THESPIS_INVALID, "halves of the codec is %d, 1 to 3 was expected", halves);
    TH_TRY(TH_ALLOC(&codec, 1, "the codec", error));
    thespis_status status = TH_ALLOC(&weights, 1, "the codec", error);
    codec->storage = weights;
    if (status == THESPIS_OK) status = th_codec_weights_open(path, weights, error);
    if (status == THESPIS_OK) {
        status = fill_codec(codec, weights, halves, error);
        if (status == THESPIS_FORMAT) th_error_prefix(error, "'%s': ", path);
    }
    if (status == THESPIS_OK)
        *out = codec;
    else
        th_codec_close(codec);
    return status;
}

void th_codec_close(struct th_codec *codec)
{
    if (codec == NULL) return;
    if (codec->storage != NULL) th_codec_weights_close(codec->storage);
    th_free(codec->storage);
    th_free(codec->decoder.post.layer);
    th_free(codec->encoder.transformer.layer);
    th_free(codec->encoder.pre.layer);
    th_free(codec);
}
