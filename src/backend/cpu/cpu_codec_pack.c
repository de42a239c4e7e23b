/* cpu_codec_pack.c - the codec's weights in the orders that the kernels read, packed once. One walk over the network is made twice:
 * first to count floats, then to fill them. */
#include <math.h>
#include <string.h>

#include "backend/cpu/codec.h"
#include "base/memory.h"

#define CHAIN 256 /* products that one running sum of a convolution takes before its block is closed */

float *th_carve(struct th_carver *carver, size_t count, size_t size)
{
    size_t floats;
    if (__builtin_mul_overflow(count, size, &floats) || floats > SIZE_MAX / 8 || carver->used > SIZE_MAX / 8) {
        carver->overflow = 1;
        return NULL;
    }
    float *piece = carver->memory == NULL ? NULL : carver->memory + carver->used;
    carver->used += (floats + 15) / 16 * 16;
    return piece;
}

static size_t product(int a, int b, int c)
{
    return (size_t)a * (size_t)b * (size_t)c;
}

static void pack_snake(struct th_carver *carver, const float *alpha, int channels, struct th_packed_snake *snake)
{
    snake->alpha = alpha;
    snake->inverse = th_carve(carver, (size_t)channels, 1);
    if (snake->inverse == NULL) return;
    for (int c = 0; c < channels; c++) snake->inverse[c] = 1.0f / (alpha[c] + 1e-9f);
}

/* Weight of (row, input channel, tap) of a packed convolution in the source's order. Plain: row = output. Transposed, kernel 2s:
 * row = (output, phase), tap 0 reads the input column before. Strided, kernel 2s: input = (channel, phase). */
static float source_weight(const struct th_conv *source, int row, int in, int tap)
{
    const int s = source->stride, k = source->kernel;
    if (source->transposed)
        return source->weight[product(in, source->out, k) + product(row / s, k, 1) + (size_t)(row % s + (1 - tap) * s)];
    if (s > 1) return source->weight[product(row, source->in, k) + product(in / s, k, 1) + (size_t)(tap * s + in % s)];
    return source->weight[product(row, source->in, k) + product(in, k, 1) + (size_t)tap];
}

static void fill_conv(const struct th_conv *source, const struct th_packed_conv *conv)
{
    float *weight = conv->weight;
    memcpy(conv->bias, source->bias, (size_t)conv->out * sizeof(float));
    for (int set = 0; set < conv->sets; set++) {
        int begin = th_conv_set_begin(conv, set), rows = (th_conv_set_begin(conv, set + 1) - begin) * conv->phases;
        for (int g = 0; g < th_conv_groups(rows); g++)
            for (int in = 0; in < conv->in; in++)
                for (int tap = 0; tap < conv->taps; tap++)
                    for (int r = th_conv_group_begin(rows, g); r < th_conv_group_begin(rows, g + 1); r++)
                        *weight++ = source_weight(source, begin * conv->phases + r, in, tap);
    }
}

static void pack_conv(struct th_carver *carver, const struct th_conv *source, struct th_packed_conv *conv)
{
    const int strided = !source->transposed && source->stride > 1;
    conv->phases = source->transposed ? source->stride : 1;
    conv->in = strided ? source->in * source->stride : source->in;
    conv->out = source->out;
    conv->taps = source->transposed || strided ? 2 : source->kernel;
    conv->step = source->transposed || strided ? 1 : source->dilation;
    conv->context = (conv->taps - 1) * conv->step;
    int most = source->transposed ? TH_CONV_SET_PHASES / 8 : TH_CONV_GROUP;
    conv->sets = (conv->out + most - 1) / most;
    conv->block = CHAIN / conv->taps;
    conv->weight = th_carve(carver, product(conv->in, conv->out, conv->taps), (size_t)conv->phases);
    conv->bias = th_carve(carver, (size_t)conv->out, 1);
    if (conv->weight != NULL) fill_conv(source, conv);
}

/* A convolution over rows: weight [out][tap][in]. Transposed with kernel = stride: outputs (phase, out), one tap. Transposed with
 * kernel = 2 stride: outputs (phase, out), two taps, of which the first reads the row before. */
static void pack_linear(struct th_carver *carver, const struct th_conv *source, struct th_packed_linear *linear)
{
    const int taps = source->transposed ? source->kernel / source->stride : source->kernel,
              s = source->transposed ? source->stride : 1;
    linear->inputs = taps * source->in;
    linear->outputs = s * source->out;
    linear->weight = th_carve(carver, (size_t)linear->inputs, (size_t)linear->outputs);
    linear->bias = th_carve(carver, (size_t)linear->outputs, 1);
    if (linear->weight == NULL) return;
    float *to = linear->weight;
    for (int row = 0; row < linear->outputs; row++) {
        const int phase = row / source->out, out = row % source->out;
        linear->bias[row] = source->bias[out];
        for (int tap = 0; tap < taps; tap++)
            for (int in = 0; in < source->in; in++)
                *to++ =
                    source->transposed
                        ? source->weight[product(in, source->out, source->kernel) + product(out, source->kernel, 1) +
                                         (size_t)(phase + (taps - 1 - tap) * s)]
                        : source->weight[product(out, source->in, source->kernel) + product(in, source->kernel, 1) + (size_t)tap];
    }
}

static void pack_next(struct th_carver *carver, const struct th_convnext *source, struct th_packed_next *next)
{
    const int width = source->depthwise.out, kernel = source->depthwise.kernel;
    next->source = source;
    next->depthwise = th_carve(carver, (size_t)width, (size_t)kernel);
    if (next->depthwise == NULL) return;
    for (int k = 0; k < kernel; k++)
        for (int c = 0; c < width; c++)
            next->depthwise[product(k, width, 1) + (size_t)c] = source->depthwise.weight[product(c, kernel, 1) + (size_t)k];
}

static void pack_unit(struct th_carver *carver, const struct th_residual_unit *source, struct th_packed_unit *unit)
{
    pack_snake(carver, source->alpha1, source->dilated.in, &unit->snake1);
    pack_snake(carver, source->alpha2, source->dilated.out, &unit->snake2);
    pack_conv(carver, &source->dilated, &unit->dilated);
    pack_conv(carver, &source->pointwise, &unit->pointwise);
}

static void pack_decoder(struct th_carver *carver, const struct th_codec_decoder *source, struct th_packed_decoder *decoder)
{
    for (int i = 0; i < TH_CODEC_STAGES; i++) {
        pack_linear(carver, &source->up[i], &decoder->up[i]);
        pack_next(carver, &source->up_next[i], &decoder->up_next[i]);
    }
    pack_linear(carver, &source->first, &decoder->first);
    for (int b = 0; b < TH_CODEC_BLOCKS; b++) {
        const struct th_codec_block *block = &source->blocks[b];
        pack_snake(carver, block->alpha, block->conv.in, &decoder->snake[b]);
        if (b == 0)
            pack_linear(carver, &block->conv, &decoder->spread);
        else
            pack_conv(carver, &block->conv, &decoder->conv[b]);
        for (int u = 0; u < 3; u++) pack_unit(carver, &block->units[u], &decoder->unit[b][u]);
    }
    pack_snake(carver, source->alpha, source->last.in, &decoder->last_snake);
    pack_conv(carver, &source->last, &decoder->last);
}

static void pack_encoder(struct th_carver *carver, const struct th_codec_encoder *source, struct th_packed_encoder *encoder)
{
    pack_conv(carver, &source->first, &encoder->first);
    for (int b = 0; b < TH_CODEC_BLOCKS; b++) {
        const struct th_codec_block *block = &source->blocks[b];
        for (int u = 0; u < 3; u++) pack_unit(carver, &block->units[u], &encoder->unit[b][u]);
        pack_snake(carver, block->alpha, block->conv.in, &encoder->snake[b]);
        pack_conv(carver, &block->conv, &encoder->conv[b]);
    }
    pack_snake(carver, source->alpha, source->last.in, &encoder->last_snake);
    pack_linear(carver, &source->last, &encoder->last);
    for (int i = 0; i < TH_CODEC_STAGES; i++) {
        pack_linear(carver, &source->down[i], &encoder->down[i]);
        pack_next(carver, &source->down_next[i], &encoder->down_next[i]);
    }
}

/* Rows of unit length, turned, as the search reads them. */
static void fill_units(const struct th_codebook *source, int width, const struct th_packed_book *book)
{
    for (int i = 0; i < book->padded; i++) {
        const float *row = source->codebook + product(i < book->entries ? i : 0, width, 1);
        float square = 0.0f, unit_square = 0.0f;
        for (int k = 0; k < width && i < book->entries; k++) square += row[k] * row[k];
        float length = sqrtf(square) > 1e-12f ? sqrtf(square) : 1e-12f;
        for (int k = 0; k < width; k++) {
            float unit = i < book->entries ? row[k] / length : 0.0f;
            book->unit[product(k, book->padded, 1) + (size_t)i] = unit;
            unit_square += unit * unit;
        }
        book->unit_square[i] = i < book->entries ? unit_square : INFINITY;
    }
}

static void pack_book(struct th_carver *carver, const struct th_codec *codec, int index, struct th_packed_book *book)
{
    const struct th_codebook *source = &codec->book[index];
    const int width = codec->code_width, latent = codec->latent;
    book->entries = source->entries;
    book->padded = (source->entries + 15) / 16 * 16;
    book->codebook = source->codebook;
    book->out_bias = source->out_bias;
    book->in_weight = source->in_weight;
    book->in_bias = source->in_bias;
    book->out_weight = th_carve(carver, (size_t)width, (size_t)latent);
    if (book->out_weight != NULL)
        for (int c = 0; c < latent; c++)
            for (int k = 0; k < width; k++)
                book->out_weight[product(k, latent, 1) + (size_t)c] = source->out_weight[product(c, width, 1) + (size_t)k];
    if (!codec->has_encoder) return;
    book->unit = th_carve(carver, (size_t)width, (size_t)book->padded);
    book->unit_square = th_carve(carver, (size_t)book->padded, 1);
    if (book->unit != NULL) fill_units(source, width, book);
}

static void pack_all(struct th_cpu_codec *codec, struct th_carver *carver)
{
    const struct th_codec *source = codec->source;
    for (int i = 0; i < source->books; i++) pack_book(carver, source, i, &codec->books[i]);
    if (source->has_decoder) pack_decoder(carver, &source->decoder, &codec->decoder);
    if (source->has_encoder) pack_encoder(carver, &source->encoder, &codec->encoder);
}

/* What the kernels take for granted about one convolution of a block; the loader knows nothing of tiles. */
static thespis_status check_conv(const struct th_conv *conv, const char *where, thespis_error *error)
{
    const int strided = conv->transposed || conv->stride > 1;
    if (strided && conv->kernel != 2 * conv->stride)
        return th_fail(error, THESPIS_UNSUPPORTED, "codec: %s has kernel %d and stride %d; the kernel must be twice the stride",
                       where, conv->kernel, conv->stride);
    if (strided && conv->stride > 8)
        return th_fail(error, THESPIS_UNSUPPORTED, "codec: %s has stride %d, must be 8 at most", where, conv->stride);
    int context = strided ? 1 : (conv->kernel - 1) * conv->dilation;
    if (context > TH_CODEC_MARGIN)
        return th_fail(error, THESPIS_UNSUPPORTED, "codec: %s looks %d columns back, must be %d at most", where, context,
                       TH_CODEC_MARGIN);
    return THESPIS_OK;
}

static thespis_status check_blocks(const struct th_codec_block *blocks, const char *where, thespis_error *error)
{
    int hop = TH_CODEC_FRAME / 4;
    for (int b = 0; b < TH_CODEC_BLOCKS; b++) {
        TH_TRY(check_conv(&blocks[b].conv, where, error));
        for (int u = 0; u < 3; u++) {
            TH_TRY(check_conv(&blocks[b].units[u].dilated, where, error));
            TH_TRY(check_conv(&blocks[b].units[u].pointwise, where, error));
        }
        if (hop % blocks[b].conv.stride != 0) hop = 0;
        hop /= blocks[b].conv.stride;
    }
    if (hop != 1)
        return th_fail(error, THESPIS_UNSUPPORTED, "codec: the strides of %s do not multiply to %d", where, TH_CODEC_FRAME / 4);
    return THESPIS_OK;
}

static thespis_status check_transformer(const struct th_codec_transformer *transformer, int latent, const char *where,
                                        thespis_error *error)
{
    if (transformer->dim != latent || transformer->heads * TH_CODEC_HEAD_DIM != latent || transformer->window < 1)
        return th_fail(error, THESPIS_UNSUPPORTED,
                       "codec: %s is %d wide with %d heads of %d and a window of %d; the latent width is %d", where,
                       transformer->dim, transformer->heads, TH_CODEC_HEAD_DIM, transformer->window, latent);
    return THESPIS_OK;
}

/* Convolutions over rows look back at most TH_CODEC_PAST rows. */
static thespis_status check_rows(const struct th_conv *last, const struct th_convnext *next, const char *where,
                                 thespis_error *error)
{
    for (int i = -1; i < TH_CODEC_STAGES; i++) {
        int kernel = i < 0 ? last->kernel : next[i].depthwise.kernel;
        if (kernel < 2 || kernel > TH_CODEC_PAST + 1)
            return th_fail(error, THESPIS_UNSUPPORTED, "codec: a kernel of %s has %d taps, must be 2 to %d", where, kernel,
                           TH_CODEC_PAST + 1);
    }
    return THESPIS_OK;
}

static thespis_status check(const struct th_codec *codec, thespis_error *error)
{
    if (codec->code_width < 1 || codec->code_width > TH_CODE_WIDTH_MAX)
        return th_fail(error, THESPIS_UNSUPPORTED, "codec: codebook vectors have %d values, must be 1 to %d", codec->code_width,
                       TH_CODE_WIDTH_MAX);
    if (codec->has_decoder) {
        TH_TRY(check_blocks(codec->decoder.blocks, "the decoder", error));
        TH_TRY(check_conv(&codec->decoder.last, "the decoder's last convolution", error));
        TH_TRY(check_rows(&codec->decoder.first, codec->decoder.up_next, "the decoder", error));
        TH_TRY(check_transformer(&codec->decoder.post, codec->latent, "the post transformer", error));
    }
    if (codec->has_encoder) {
        TH_TRY(check_blocks(codec->encoder.blocks, "the encoder", error));
        TH_TRY(check_conv(&codec->encoder.first, "the encoder's first convolution", error));
        TH_TRY(check_rows(&codec->encoder.last, codec->encoder.down_next, "the encoder", error));
        TH_TRY(check_transformer(&codec->encoder.transformer, codec->latent, "the encoder's transformer", error));
        TH_TRY(check_transformer(&codec->encoder.pre, codec->latent, "the pre transformer", error));
    }
    return THESPIS_OK;
}

thespis_status th_codec_pack(struct th_cpu_codec *codec, thespis_error *error)
{
    TH_TRY(check(codec->source, error));
    TH_TRY(TH_ALLOC(&codec->books, (size_t)codec->source->books, "the codec's codebooks", error));
    struct th_carver carver = {NULL, 0, 0};
    pack_all(codec, &carver);
    if (carver.overflow) return th_fail_memory(error, "the codec's packed weights", SIZE_MAX);
    TH_TRY(TH_ALLOC(&codec->packed, carver.used, "the codec's packed weights", error));
    codec->packed_floats = carver.used;
    carver = (struct th_carver){codec->packed, 0, 0};
    pack_all(codec, &carver);
    return THESPIS_OK;
}
