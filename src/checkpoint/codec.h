/* codec.h - the codec's weights ("ModifiedDAC"): read from codec.pth or codec.safetensors, weight norm folded, every name and shape
 * checked. All values are 32-bit floats in the file's axis order. Widths come from the shapes, so that every size of codec loads.
 */
#ifndef THESPIS_CHECKPOINT_CODEC_H
#define THESPIS_CHECKPOINT_CODEC_H

#include <jansson.h>

#include "base/error.h"

#define TH_CODEC_FORMAT "fish-dac-v1" /* of codec.safetensors */
#define TH_CODEC_MAX_BOOKS 32
#define TH_CODEC_MAX_LAYERS 64
#define TH_CODEC_HEAD_DIM 64
#define TH_CODEC_BLOCKS 4 /* of encoder and decoder */
#define TH_CODEC_STAGES 2 /* of up- and downsampling in the quantiser */

/* A causal convolution. Plain: weight [out][in/groups][kernel]. Transposed: weight [in][out][kernel], kernel = 2*stride or stride.
 */
struct th_conv {
    const float *weight, *bias; /* bias [out] */
    int in, out, kernel, stride, dilation, groups;
    int transposed;
};

/* x + pointwise(snake2(dilated(snake1(x)))), all C -> C. */
struct th_residual_unit {
    const float *alpha1, *alpha2; /* [C] */
    struct th_conv dilated;       /* kernel 7, dilation 1, 3 or 9 */
    struct th_conv pointwise;     /* kernel 1 */
};

/* Decoder: snake, transposed conv, units. Encoder: units, snake, strided conv. */
struct th_codec_block {
    const float *alpha; /* [in channels of conv] */
    struct th_conv conv;
    struct th_residual_unit units[3];
};

/* x + gamma * (W2 gelu(W1 norm(depthwise(x)) + b1) + b2) */
struct th_convnext {
    struct th_conv depthwise;             /* kernel 7, groups = C */
    const float *norm_weight, *norm_bias; /* [C]; LayerNorm, eps 1e-6 */
    const float *w1, *b1;                 /* [4C, C], [4C] */
    const float *w2, *b2;                 /* [C, 4C], [C] */
    const float *gamma;                   /* [C] */
};

struct th_codec_layer {
    const float *attention_norm, *ffn_norm;   /* [dim]; RMSNorm, eps 1e-5, plain w */
    const float *wqkv;                        /* [3*dim, dim]: q, k, v */
    const float *wo;                          /* [dim, dim] */
    const float *w1, *w3;                     /* [inner, dim] */
    const float *w2;                          /* [dim, inner] */
    const float *attention_scale, *ffn_scale; /* [dim]; multiplies the branch */
};

/* Causal transformer over a window of past positions, the current one included. */
struct th_codec_transformer {
    int layers, dim, heads, inner, window;
    struct th_codec_layer *layer; /* [layers] */
    const float *norm;            /* [dim], after the last layer */
};

struct th_codebook {
    int entries;
    const float *codebook;              /* [entries][width], as stored */
    const float *in_weight, *in_bias;   /* [width][D], [width]; encode only, else NULL */
    const float *out_weight, *out_bias; /* [D][width], [D] */
};

struct th_codec_encoder {
    struct th_conv first;                          /* 1 -> C */
    struct th_codec_block blocks[TH_CODEC_BLOCKS]; /* strides 2, 4, 8, 8 */
    struct th_codec_transformer transformer;       /* after the last block; window 512 */
    const float *alpha;                            /* [D] */
    struct th_conv last;                           /* D -> D, kernel 3 */
    struct th_conv down[TH_CODEC_STAGES];          /* kernel 2, stride 2 */
    struct th_convnext down_next[TH_CODEC_STAGES];
    struct th_codec_transformer pre; /* window 128 */
};

struct th_codec_decoder {
    struct th_codec_transformer post;   /* window 128 */
    struct th_conv up[TH_CODEC_STAGES]; /* transposed, kernel 2, stride 2 */
    struct th_convnext up_next[TH_CODEC_STAGES];
    struct th_conv first;                          /* D -> channels, kernel 7 */
    struct th_codec_block blocks[TH_CODEC_BLOCKS]; /* strides 8, 8, 4, 2 */
    const float *alpha;                            /* [channels / 16] */
    struct th_conv last;                           /* channels / 16 -> 1, kernel 7 */
};

struct th_codec {
    int latent;     /* D */
    int books;      /* codebooks: 0 is the semantic one */
    int code_width; /* 8 */
    int book_entries[TH_CODEC_MAX_BOOKS];
    int has_decoder, has_encoder;
    struct th_codebook book[TH_CODEC_MAX_BOOKS];
    struct th_codec_encoder encoder;
    struct th_codec_decoder decoder;

    char id[65]; /* names this codec in caches, whichever halves are loaded; see below */
    uint64_t owned_bytes, mapped_bytes;
    void *storage; /* what codec_*.c needs to release it all */
};

/* Which halves to load. */
enum { TH_CODEC_DECODE = 1, TH_CODEC_ENCODE = 2, TH_CODEC_BOTH = 3 };

/* Reads codec.pth (zip with pickle) or a converted codec.safetensors, told apart by content. *codec is released with
 * th_codec_close.
 *
 * Refused by name, whichever halves are asked for: a tensor that is missing, extra, not F32, of another shape than the widths
 * demand, in a pth one whose weight norm is absent or superfluous; in codec.safetensors metadata other than that of th_codec_state.
 * Of the halves asked for, values that are not finite and directions of norm zero.
 *
 * th_codec.id is a SHA-256 in hexadecimal over, for each tensor of a pth but its six buffers, in the order of the folded names:
 * name, type, shape, strides, offset, and its storage's size and CRC-32 as the archive's directory states them (the storage's bytes
 * too where that is 0). So it costs no reading, and saving the same tensors again keeps it. The converted file carries it as
 * metadata "codec_id"; without that it is a SHA-256 over names, shapes and all folded values. It tells codecs apart, but is no
 * proof against forgery. */
thespis_status th_codec_open(const char *path, int halves, struct th_codec **codec, thespis_error *error);
void th_codec_close(struct th_codec *codec);

/* Writes the folded weights of a codec.pth as codec.safetensors; nothing is left at out_path when it fails. */
thespis_status th_codec_convert(const char *pth_path, const char *out_path, thespis_error *error);
/* Sets the metadata that codec.safetensors must carry (format, rates, strides, windows: all strings) in an object, for writers of
 * such files; only the codec's three windows are looked at. 0 when memory is short. */
int th_codec_state(const struct th_codec *codec, json_t *metadata);

#endif
