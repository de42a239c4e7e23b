/* codec_weights.c - the codec's weights to the device, in the orders that its kernels read. One walk over the network is made
 * twice: first to count floats, then to fill them. Layers go through the work space as they lie in the checkpoint and are packed on
 * the device; vectors are made ready on the host. */
#include <math.h>
#include <string.h>

#include "backend/cuda/codec.h"
#include "base/memory.h"

struct pack {
    struct th_cuda_codec *codec;
    struct th_cuda_carver carver;
    int layers;            /* of transformers, counted so far */
    size_t scratch_floats; /* the longest vector */
    size_t staging_floats; /* the largest layer as it lies in the checkpoint */
    float *scratch;        /* host; NULL while counting */
    cudaError_t code;      /* the first failure */
};

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void note(struct pack *pack, cudaError_t code)
{
    if (pack->code == cudaSuccess) pack->code = code;
}

/* ---- vectors ------------------------------------------------------------------------------------------------------------------
 */

/* Room for `count` floats on the device. *scratch is where they may be written first; NULL while counting. */
static float *begin_vector(struct pack *pack, size_t count, float **scratch)
{
    pack->scratch_floats = larger(pack->scratch_floats, count);
    *scratch = pack->scratch;
    if (*scratch != NULL) memset(*scratch, 0, count * sizeof(float));
    return th_cuda_carve(&pack->carver, count, 1);
}

static const float *end_vector(struct pack *pack, float *to, const void *from, size_t count)
{
    if (pack->scratch != NULL && pack->code == cudaSuccess)
        note(pack, cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyHostToDevice, pack->codec->launch.stream));
    return to;
}

/* count values in front of zeros up to `width`, all of it `repeats` times. */
static const float *put_vector(struct pack *pack, const float *source, int count, int width, int repeats)
{
    float *scratch, *to = begin_vector(pack, (size_t)width * (size_t)repeats, &scratch);
    for (int r = 0; r < repeats && scratch != NULL; r++)
        memcpy(scratch + (size_t)r * (size_t)width, source, (size_t)count * sizeof(float));
    return end_vector(pack, to, scratch, (size_t)width * (size_t)repeats);
}

/* source [rows][columns] as [columns][width], zeros behind the rows. */
static const float *put_turned(struct pack *pack, const float *source, int rows, int columns, int width)
{
    float *scratch, *to = begin_vector(pack, (size_t)columns * (size_t)width, &scratch);
    for (int r = 0; r < rows && scratch != NULL; r++)
        for (int c = 0; c < columns; c++)
            scratch[(size_t)c * (size_t)width + (size_t)r] = source[(size_t)r * (size_t)columns + (size_t)c];
    return end_vector(pack, to, scratch, (size_t)columns * (size_t)width);
}

static struct th_cuda_snake put_snake(struct pack *pack, const float *alpha, int channels, int repeats)
{
    const int width = th_cuda_codec_padded(channels);
    struct th_cuda_snake snake = {.alpha = put_vector(pack, alpha, channels, width, repeats)};
    float *scratch, *to = begin_vector(pack, (size_t)width * (size_t)repeats, &scratch);
    for (int i = 0; i < width * repeats && scratch != NULL; i++)
        scratch[i] = i % width < channels ? 1.0f / (alpha[i % width] + 1e-9f) : 0.0f;
    snake.inverse = end_vector(pack, to, scratch, (size_t)width * (size_t)repeats);
    return snake;
}

/* ---- layers -------------------------------------------------------------------------------------------------------------------
 */

/* The tile that wastes least; of equals the largest. */
static int tile_for(int outputs)
{
    int best = 96;
    for (int tile = 64; tile >= 32; tile -= 32)
        if ((outputs + tile - 1) / tile * tile < (outputs + best - 1) / best * best) best = tile;
    return best;
}

/* Carves the packed weights of job->conv and, when filling, makes them. */
static void pack_layer(struct pack *pack, struct th_cuda_pack_job *job)
{
    struct th_cuda_conv *conv = &job->conv;
    conv->tile = conv->split > 1 ? 32 : tile_for(conv->outputs);
    const size_t tiles = ((size_t)conv->outputs + (size_t)conv->tile - 1) / (size_t)conv->tile;
    const size_t pairs = (size_t)job->in * (size_t)job->out, floats = pairs * (size_t)job->kernel;
    conv->weight = th_cuda_carve(&pack->carver, tiles * (size_t)conv->tile, (size_t)conv->inputs * (size_t)conv->taps);
    pack->staging_floats = larger(pack->staging_floats, job->second != NULL ? 2 * floats : floats);
    if (pack->scratch == NULL || pack->code != cudaSuccess) return;
    const struct th_cuda_codec *codec = pack->codec;
    float *staging = codec->work.memory;
    note(pack, cudaMemcpyAsync(staging, job->source, floats * sizeof(float), cudaMemcpyHostToDevice, codec->launch.stream));
    job->source = staging;
    if (job->second != NULL) {
        note(pack,
             cudaMemcpyAsync(staging + floats, job->second, floats * sizeof(float), cudaMemcpyHostToDevice, codec->launch.stream));
        job->second = staging + floats;
    }
    if (pack->code == cudaSuccess) note(pack, th_cuda_codec_pack(&codec->launch, job));
}

/* For each row a power of two that brings its largest weight into 128..256 when divided by it. */
static const float *put_scales(struct pack *pack, const struct th_conv *source, int width, int phases)
{
    float *scratch, *to = begin_vector(pack, (size_t)width * (size_t)phases, &scratch);
    for (int row = 0; row < width && scratch != NULL; row++) {
        float most = 0.0f;
        const size_t kernel = (size_t)source->kernel, in = (size_t)source->in, out = (size_t)source->out;
        for (size_t i = 0; i < in && row < source->out; i++) {
            const size_t pair = source->transposed ? i * out + (size_t)row : (size_t)row * in + i;
            for (size_t k = 0; k < kernel; k++) most = fmaxf(most, fabsf(source->weight[pair * kernel + k]));
        }
        int exponent = 0;
        frexpf(most, &exponent);
        exponent = exponent < -100 ? -100 : exponent; /* weights that small stay small */
        for (int p = 0; p < phases; p++) scratch[p * width + row] = ldexpf(1.0f, exponent - 8);
    }
    return end_vector(pack, to, scratch, (size_t)width * (size_t)phases);
}

static struct th_cuda_conv put_conv(struct pack *pack, const struct th_conv *source, int split)
{
    struct th_cuda_pack_job job = {.kind = TH_CUDA_PACK_PLAIN,
                                   .in = source->in,
                                   .out = source->out,
                                   .kernel = source->kernel,
                                   .stride = source->stride,
                                   .in_width = th_cuda_codec_padded(source->in),
                                   .out_width = th_cuda_codec_padded(source->out),
                                   .source = source->weight};
    struct th_cuda_conv *conv = &job.conv;
    *conv = (struct th_cuda_conv){
        .inputs = job.in_width, .outputs = job.out_width, .taps = source->kernel, .step = source->dilation, .split = split};
    const int phases = source->transposed ? source->stride : 1;
    if (source->transposed || source->stride > 1) {
        job.kind = source->transposed ? TH_CUDA_PACK_TRANSPOSED : TH_CUDA_PACK_STRIDED;
        *(source->transposed ? &conv->outputs : &conv->inputs) *= source->stride;
        conv->taps = source->kernel / source->stride;
        conv->step = 1;
    }
    conv->bias = put_vector(pack, source->bias, source->out, job.out_width, phases);
    if (split == 1 && !pack->codec->plain) conv->scale = put_scales(pack, source, job.out_width, phases);
    pack_layer(pack, &job);
    return job.conv;
}

/* weight [out][in]; with `second` of the same shape the gated pair. */
static struct th_cuda_conv put_matrix(struct pack *pack, const float *weight, const float *second, const float *bias, int in,
                                      int out)
{
    struct th_cuda_pack_job job = {.kind = second != NULL ? TH_CUDA_PACK_GATED : TH_CUDA_PACK_PLAIN,
                                   .in = in,
                                   .out = out,
                                   .kernel = 1,
                                   .stride = 1,
                                   .in_width = th_cuda_codec_padded(in),
                                   .out_width = th_cuda_codec_padded(out),
                                   .source = weight,
                                   .second = second};
    job.conv = (struct th_cuda_conv){.inputs = job.in_width,
                                     .outputs = second != NULL ? 2 * job.out_width : job.out_width,
                                     .taps = 1,
                                     .step = 1,
                                     .split = TH_CUDA_CODEC_SPLIT};
    if (bias != NULL) job.conv.bias = put_vector(pack, bias, out, job.out_width, 1);
    pack_layer(pack, &job);
    return job.conv;
}

static struct th_cuda_next put_next(struct pack *pack, const struct th_convnext *source)
{
    const int width = source->depthwise.out;
    return (struct th_cuda_next){.taps = source->depthwise.kernel,
                                 .weight = put_turned(pack, source->depthwise.weight, width, source->depthwise.kernel, width),
                                 .bias = put_vector(pack, source->depthwise.bias, width, width, 1),
                                 .norm_weight = put_vector(pack, source->norm_weight, width, width, 1),
                                 .norm_bias = put_vector(pack, source->norm_bias, width, width, 1),
                                 .gamma = put_vector(pack, source->gamma, width, width, 1),
                                 .inner = put_matrix(pack, source->w1, NULL, source->b1, width, 4 * width),
                                 .outer = put_matrix(pack, source->w2, NULL, source->b2, 4 * width, width)};
}

static struct th_cuda_unit put_unit(struct pack *pack, const struct th_residual_unit *source)
{
    return (struct th_cuda_unit){.snake1 = put_snake(pack, source->alpha1, source->dilated.in, 1),
                                 .snake2 = put_snake(pack, source->alpha2, source->dilated.out, 1),
                                 .dilated = put_conv(pack, &source->dilated, 1),
                                 .pointwise = put_conv(pack, &source->pointwise, 1)};
}

/* rows: most that pass together. */
static struct th_cuda_transformer put_transformer(struct pack *pack, const struct th_codec_transformer *source, int rows)
{
    const int dim = source->dim;
    struct th_cuda_transformer transformer = {.layers = source->layers,
                                              .heads = source->heads,
                                              .window = source->window,
                                              .slots = source->window + rows,
                                              .norm = put_vector(pack, source->norm, dim, dim, 1)};
    if (pack->codec->layers != NULL) transformer.layer = pack->codec->layers + pack->layers;
    pack->layers += source->layers;
    for (int i = 0; i < source->layers; i++) {
        const struct th_codec_layer *layer = &source->layer[i];
        struct th_cuda_codec_layer put = {.attention_norm = put_vector(pack, layer->attention_norm, dim, dim, 1),
                                          .ffn_norm = put_vector(pack, layer->ffn_norm, dim, dim, 1),
                                          .attention_scale = put_vector(pack, layer->attention_scale, dim, dim, 1),
                                          .ffn_scale = put_vector(pack, layer->ffn_scale, dim, dim, 1),
                                          .qkv = put_matrix(pack, layer->wqkv, NULL, NULL, dim, 3 * dim),
                                          .out = put_matrix(pack, layer->wo, NULL, NULL, dim, dim),
                                          .gated = put_matrix(pack, layer->w1, layer->w3, NULL, dim, source->inner),
                                          .down = put_matrix(pack, layer->w2, NULL, NULL, source->inner, dim)};
        if (transformer.layer != NULL) transformer.layer[i] = put;
    }
    return transformer;
}

/* ---- the network --------------------------------------------------------------------------------------------------------------
 */

static void put_decoder(struct pack *pack, const struct th_codec_decoder *source, struct th_cuda_decoder *decoder)
{
    decoder->post = put_transformer(pack, &source->post, TH_CUDA_CODEC_FRAMES);
    for (int i = 0; i < TH_CODEC_STAGES; i++) {
        decoder->up[i] = put_conv(pack, &source->up[i], TH_CUDA_CODEC_SPLIT);
        decoder->up_next[i] = put_next(pack, &source->up_next[i]);
    }
    decoder->first = put_conv(pack, &source->first, TH_CUDA_CODEC_SPLIT);
    for (int b = 0; b < TH_CODEC_BLOCKS; b++) {
        const struct th_codec_block *block = &source->blocks[b];
        decoder->snake[b] = put_snake(pack, block->alpha, block->conv.in, 1);
        decoder->conv[b] = put_conv(pack, &block->conv, b == 0 ? TH_CUDA_CODEC_SPLIT : 1);
        decoder->spread[b] = put_snake(pack, block->units[0].alpha1, block->conv.out, block->conv.stride);
        for (int u = 0; u < 3; u++) decoder->unit[b][u] = put_unit(pack, &block->units[u]);
    }
    decoder->last_snake = put_snake(pack, source->alpha, source->last.in, 1);
    decoder->last_taps = source->last.kernel;
    decoder->last_width = th_cuda_codec_padded(source->last.in);
    decoder->last_weight = put_turned(pack, source->last.weight, source->last.in, source->last.kernel, decoder->last_width);
    decoder->last_bias = put_vector(pack, source->last.bias, 1, 1, 1);
}

static void put_encoder(struct pack *pack, const struct th_codec_encoder *source, struct th_cuda_encoder *encoder)
{
    encoder->first_taps = source->first.kernel;
    encoder->first_width = th_cuda_codec_padded(source->first.out);
    encoder->first_weight = put_turned(pack, source->first.weight, source->first.out, source->first.kernel, encoder->first_width);
    encoder->first_bias = put_vector(pack, source->first.bias, source->first.out, encoder->first_width, 1);
    for (int b = 0; b < TH_CODEC_BLOCKS; b++) {
        const struct th_codec_block *block = &source->blocks[b];
        for (int u = 0; u < 3; u++) encoder->unit[b][u] = put_unit(pack, &block->units[u]);
        encoder->snake[b] = put_snake(pack, block->alpha, block->conv.in, 1);
        encoder->conv[b] = put_conv(pack, &block->conv, b + 1 == TH_CODEC_BLOCKS ? TH_CUDA_CODEC_SPLIT : 1);
    }
    encoder->inner = put_transformer(pack, &source->transformer, 4 * TH_CUDA_CODEC_FRAMES);
    encoder->last_snake = put_snake(pack, source->alpha, source->last.in, 1);
    encoder->last = put_conv(pack, &source->last, TH_CUDA_CODEC_SPLIT);
    for (int i = 0; i < TH_CODEC_STAGES; i++) {
        encoder->down[i] = put_conv(pack, &source->down[i], TH_CUDA_CODEC_SPLIT);
        encoder->down_next[i] = put_next(pack, &source->down_next[i]);
    }
    encoder->pre = put_transformer(pack, &source->pre, TH_CUDA_CODEC_FRAMES);
}

/* Rows of unit length, turned, and their squared lengths. */
static void put_units(struct pack *pack, const struct th_codebook *source, int width, struct th_cuda_book *book)
{
    const size_t entries = (size_t)source->entries;
    float *unit, *square, *to = begin_vector(pack, (size_t)width * entries, &unit);
    for (size_t i = 0; i < entries && unit != NULL; i++) {
        const float *row = source->codebook + i * (size_t)width;
        float sum = 0.0f;
        for (int k = 0; k < width; k++) sum += row[k] * row[k];
        const float length = sqrtf(sum) > 1e-12f ? sqrtf(sum) : 1e-12f;
        for (int k = 0; k < width; k++) unit[(size_t)k * entries + i] = row[k] / length;
    }
    book->unit = end_vector(pack, to, unit, (size_t)width * entries);
    to = begin_vector(pack, entries, &square);
    for (size_t i = 0; i < entries && square != NULL; i++) {
        const float *row = source->codebook + i * (size_t)width;
        float sum = 0.0f, unit_sum = 0.0f;
        for (int k = 0; k < width; k++) sum += row[k] * row[k];
        const float length = sqrtf(sum) > 1e-12f ? sqrtf(sum) : 1e-12f;
        for (int k = 0; k < width; k++) unit_sum += row[k] / length * (row[k] / length);
        square[i] = unit_sum;
    }
    book->unit_square = end_vector(pack, to, square, entries);
}

static void put_books(struct pack *pack, const struct th_codec *source)
{
    struct th_cuda_book books[TH_CODEC_MAX_BOOKS] = {{0}};
    const int width = source->code_width, latent = source->latent;
    for (int i = 0; i < source->books; i++) {
        const struct th_codebook *book = &source->book[i];
        books[i].entries = book->entries;
        books[i].codebook = put_vector(pack, book->codebook, book->entries * width, book->entries * width, 1);
        books[i].out_weight = put_turned(pack, book->out_weight, latent, width, latent);
        books[i].out_bias = put_vector(pack, book->out_bias, latent, latent, 1);
        if (!source->has_encoder) continue;
        books[i].in_weight = put_vector(pack, book->in_weight, width * latent, width * latent, 1);
        books[i].in_bias = put_vector(pack, book->in_bias, width, width, 1);
        put_units(pack, book, width, &books[i]);
    }
    const size_t floats = sizeof(struct th_cuda_book) / sizeof(float) * TH_CODEC_MAX_BOOKS; /* pointers make it a whole number */
    float *scratch, *to = begin_vector(pack, floats, &scratch);
    pack->codec->books = (const struct th_cuda_book *)(const void *)end_vector(pack, to, books, floats);
}

static void put_frequencies(struct pack *pack)
{
    float frequency[TH_CUDA_CODEC_HEAD / 2];
    for (int m = 0; m < TH_CUDA_CODEC_HEAD / 2; m++)
        frequency[m] = 1.0f / powf(10000.0f, (float)(2 * m) / (float)TH_CUDA_CODEC_HEAD);
    pack->codec->frequency = put_vector(pack, frequency, TH_CUDA_CODEC_HEAD / 2, TH_CUDA_CODEC_HEAD / 2, 1);
}

static void put_all(struct pack *pack)
{
    struct th_cuda_codec *codec = pack->codec;
    put_frequencies(pack);
    put_books(pack, codec->source);
    if (codec->source->has_decoder) put_decoder(pack, &codec->source->decoder, &codec->decoder);
    if (codec->source->has_encoder) put_encoder(pack, &codec->source->encoder, &codec->encoder);
}

/* ---- what the kernels take for granted -----------------------------------------------------------------------------------------
 */

static thespis_status check_conv(const struct th_conv *conv, const char *where, thespis_error *error)
{
    const int strided = conv->transposed || conv->stride > 1;
    if (strided && conv->kernel != 2 * conv->stride)
        return th_fail(error, THESPIS_UNSUPPORTED, "codec: %s has kernel %d and stride %d; the kernel must be twice the stride",
                       where, conv->kernel, conv->stride);
    const int context = strided ? 1 : (conv->kernel - 1) * conv->dilation;
    if (context > TH_CUDA_CODEC_CONTEXT)
        return th_fail(error, THESPIS_UNSUPPORTED, "codec: %s looks %d columns back, must be %d at most", where, context,
                       TH_CUDA_CODEC_CONTEXT);
    return THESPIS_OK;
}

static thespis_status check_blocks(const struct th_codec_block *blocks, const char *where, thespis_error *error)
{
    int hop = TH_CUDA_CODEC_FRAME / 4;
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
        return th_fail(error, THESPIS_UNSUPPORTED, "codec: the strides of %s do not multiply to %d", where,
                       TH_CUDA_CODEC_FRAME / 4);
    return THESPIS_OK;
}

static thespis_status check_transformer(const struct th_codec_transformer *transformer, int latent, const char *where,
                                        thespis_error *error)
{
    if (transformer->dim != latent || transformer->heads * TH_CUDA_CODEC_HEAD != latent || transformer->window < 1 ||
        transformer->window > TH_CUDA_CODEC_WINDOW)
        return th_fail(error, THESPIS_UNSUPPORTED,
                       "codec: %s is %d wide with %d heads of %d and a window of %d; the latent width is %d, the longest window %d",
                       where, transformer->dim, transformer->heads, TH_CUDA_CODEC_HEAD, transformer->window, latent,
                       TH_CUDA_CODEC_WINDOW);
    return THESPIS_OK;
}

/* Kernels of convolutions over few rows: their blocks look back 8 rows at most. */
static thespis_status check_rows(const struct th_conv *edge, const struct th_conv *last, const struct th_convnext *next,
                                 const char *where, thespis_error *error)
{
    if (edge->kernel > TH_CUDA_CODEC_LAST_TAPS || edge->kernel < 2 || edge->dilation != 1)
        return th_fail(error, THESPIS_UNSUPPORTED, "codec: the convolution at the samples of %s has %d taps, must be 2 to %d",
                       where, edge->kernel, TH_CUDA_CODEC_LAST_TAPS);
    for (int i = -1; i < TH_CODEC_STAGES; i++) {
        int kernel = i < 0 ? last->kernel : next[i].depthwise.kernel;
        if (kernel < 2 || kernel > 9)
            return th_fail(error, THESPIS_UNSUPPORTED, "codec: a kernel of %s has %d taps, must be 2 to 9", where, kernel);
    }
    return THESPIS_OK;
}

static thespis_status check(const struct th_codec *codec, thespis_error *error)
{
    if (codec->code_width < 1 || codec->code_width > TH_CUDA_CODEC_WIDTH)
        return th_fail(error, THESPIS_UNSUPPORTED, "codec: codebook vectors have %d values, must be 1 to %d", codec->code_width,
                       TH_CUDA_CODEC_WIDTH);
    if (codec->latent > TH_CUDA_CODEC_LATENT)
        return th_fail(error, THESPIS_UNSUPPORTED, "codec: latents are %d wide, must be %d at most", codec->latent,
                       TH_CUDA_CODEC_LATENT);
    if (codec->has_decoder) {
        const struct th_codec_decoder *decoder = &codec->decoder;
        TH_TRY(check_blocks(decoder->blocks, "the decoder", error));
        TH_TRY(check_rows(&decoder->last, &decoder->first, decoder->up_next, "the decoder", error));
        TH_TRY(check_transformer(&decoder->post, codec->latent, "the post transformer", error));
    }
    if (codec->has_encoder) {
        const struct th_codec_encoder *encoder = &codec->encoder;
        TH_TRY(check_blocks(encoder->blocks, "the encoder", error));
        TH_TRY(check_rows(&encoder->first, &encoder->last, encoder->down_next, "the encoder", error));
        TH_TRY(check_transformer(&encoder->transformer, codec->latent, "the encoder's transformer", error));
        TH_TRY(check_transformer(&encoder->pre, codec->latent, "the pre transformer", error));
    }
    return THESPIS_OK;
}

/* ---- loading ------------------------------------------------------------------------------------------------------------------
 */

static thespis_status make_memory(struct th_cuda_codec *codec, struct pack *pack, thespis_error *error)
{
    if (pack->carver.overflow) return th_fail_memory(error, "the codec's weights", SIZE_MAX);
    TH_TRY(TH_ALLOC(&codec->layers, (size_t)pack->layers, "the codec's layers", error));
    codec->packed_floats = pack->carver.used;
    codec->work.floats = larger(th_cuda_codec_work_floats(codec), pack->staging_floats);
    TH_CUDA(cudaMalloc((void **)&codec->packed, codec->packed_floats * sizeof(float)), "memory for the codec's weights", error);
    TH_CUDA(cudaMalloc((void **)&codec->work.memory, codec->work.floats * sizeof(float)), "memory for the codec's work", error);
    return THESPIS_OK;
}

thespis_status th_cuda_codec_load(struct th_cuda_codec *codec, thespis_error *error)
{
    TH_TRY(check(codec->source, error));
    struct pack pack = {.codec = codec};
    put_all(&pack);
    TH_TRY(make_memory(codec, &pack, error));
    float *scratch;
    TH_TRY(TH_ALLOC(&scratch, pack.scratch_floats, "the codec's vectors", error));
    pack.scratch = scratch;
    pack.carver = (struct th_cuda_carver){.memory = codec->packed};
    pack.layers = 0;
    put_all(&pack);
    note(&pack, cudaStreamSynchronize(codec->launch.stream));
    th_free(scratch);
    TH_TRY(th_cuda_status(pack.code, "packing the codec's weights", error));
    th_cuda_codec_work_assign(codec);
    return THESPIS_OK;
}
