/* lm.h - the language model's kernels, one table for each instruction set; all tables give the same bytes.
 *
 * `bf16` says that results are rounded to bf16 as they are written (docs/model.md lists the places); otherwise they stay 32-bit
 * floats. A kernel works on one row, or on weights times columns; no result depends on how many rows or columns there are. */
#ifndef THESPIS_BACKEND_CPU_KERNELS_LM_H
#define THESPIS_BACKEND_CPU_KERNELS_LM_H

#include <stdint.h>

#define TH_ATTENTION_BLOCK 64 /* positions scored together; blocks are counted from row 0 */
#define TH_DELTA_TILE 32      /* outputs of a DeltaNet head that lie together in its state */

/* y[c][r] = sum over k of weight[r][k] * x[c][k].
 *
 * bf16 weights: sixteen running sums (k mod 16), each a chain of fused multiply-adds from k = 0 on, then v16_sum.
 * E4M3 weights: sixteen running sums from zero for each block of 128 inputs, each then enters its total by one fused multiply-add
 * with (activation scale * weight scale), block after block; v16_sum of the totals at the end.
 * A short end counts as padded with zeros. */
struct th_product {
    const uint16_t *bf16; /* [rows][inner], or NULL */
    const uint8_t *codes; /* E4M3 [rows][inner], or NULL */
    const float *scales;  /* [ceil(rows/128)][ceil(inner/128)]; only with codes */
    int rows, inner, columns;
    const float *x;        /* column c is row x_rows[c], or row c without x_rows, of [*][x_stride] */
    const int *x_rows;     /* [columns], or NULL */
    const float *x_scales; /* [*][ceil(inner/128)] by the same rows, or NULL: ones; only with codes */
    int x_stride;
    float *y; /* [columns][y_stride], of which the first `rows` of a row are written */
    int y_stride;
    int round; /* to bf16 */
};

/* One query row against the keys and values of its lane: the `group` query heads that share a key head. */
struct th_attend {
    const float *query; /* [group][head_dim], normed and rotated */
    const float *keys;  /* [rows][stride]: this key head's part of each row */
    const float *values;
    int stride, rows, group, head_dim;
    float scale;
    float *out; /* [group][head_dim] */
};

/* One value head of Gated DeltaNet over consecutive rows of a lane. */
struct th_delta {
    float *state;             /* [ceil(value_dim/32)][key_dim][32] */
    const float *query, *key; /* row t at [t * stride]: key_dim, L2-normalised, the query scaled */
    const float *value;       /* row t at [t * stride]: value_dim */
    const float *decay;       /* row t at [t * gate_stride]: exp(g) */
    const float *beta;
    float *out; /* row t at [t * out_stride]: value_dim */
    int rows, key_dim, value_dim, stride, gate_stride, out_stride;
    int bf16;
};

struct th_lm_kernels {
    /* Rows begin..end-1 of the product. */
    void (*product)(const struct th_product *product, int begin, int end);
    /* y = x * rsqrt(mean(x^2) + eps) * (plus + w) over n values; y may be x */
    void (*norm)(const float *x, const float *w, float plus, float eps, int n, int bf16, float *y);
    /* y = x + add; y may be x */
    void (*add)(const float *x, const float *add, int n, int bf16, float *y);
    /* y = silu(gate) * up; y may be gate */
    void (*silu_mul)(const float *gate, const float *up, int n, int bf16, float *y);
    /* y = x * sigmoid(gate), the sigmoid rounded first if round_sigmoid */
    void (*sigmoid_mul)(const float *x, const float *gate, int n, int bf16, int round_sigmoid, float *y);
    /* y = (sum over slots of weights[s] * down[entries[s]], in slot order) + open * shared; down [*][n] */
    void (*mix)(const float *down, const int *entries, const float *weights, int top_k, const float *shared, float open, int n,
                int bf16, float *y);
    /* Groups of 128: E4M3 values of x * (1 / largest * 448) as floats, and largest / 448. */
    void (*quantise)(const float *x, int n, float *values, float *scales);
    /* Softmax over `experts` logits, the top_k best (ties to the lowest id) in falling order, weights divided by their sum.
     * scratch [experts]: probabilities. */
    void (*route)(const float *logits, int experts, int top_k, float *scratch, int *chosen, float *weights);
    void (*attend)(const struct th_attend *attend, int bf16);
    /* y[c] = silu(sum over j of taps[j][c] * inputs[j][c]); inputs oldest first */
    void (*convolve)(const float *const *inputs, const float *taps, int width, int taps_stride, int n, int bf16, float *y);
    /* y = x / sqrt(sum(x^2) + 1e-6) * scale; y may be x */
    void (*unit)(const float *x, float scale, int n, float *y);
    /* decay = exp(-exp(a_log) * softplus(a + dt_bias)), beta = sigmoid(b) rounded if round_beta */
    void (*delta_gates)(const float *a, const float *b, const float *a_log, const float *dt_bias, int n, int round_beta,
                        float *decay, float *beta);
    void (*delta)(const struct th_delta *delta);
    /* y = x * rsqrt(mean(x^2) + eps) * w * silu(z) */
    void (*gated_norm)(const float *x, const float *w, const float *z, float eps, int n, int bf16, float *y);
    float (*sigmoid)(float x);
};

#endif
