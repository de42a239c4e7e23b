/* sampler.h - drawing one frame: counted Philox noise, exact top-k and top-p selection, a race, and the repetition-aware redraw.
 * The portable reference; a device backend must reproduce it. */
#ifndef THESPIS_SAMPLER_SAMPLER_H
#define THESPIS_SAMPLER_SAMPLER_H

#include "base/error.h"

#define TH_RAS_WINDOW 16
#define TH_RAS_TEMPERATURE 1.0f
#define TH_RAS_TOP_K 30
#define TH_RAS_TOP_P 0.95f
#define TH_CODE_TOP_K 30
#define TH_TOP_K_UNLIMITED INT32_MAX

enum { TH_STREAM_MAIN = 0, TH_STREAM_RAS = 1, TH_STREAM_CODES = 2 }; /* code head j (codes 1..) uses TH_STREAM_CODES + j - 1 */

/* Philox 4x32-10: counter c, key k, all four words of the block. */
void th_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* E = -ln u of the counted uniform: seed, step and row of the request, stream of the head, index of the candidate. */
float th_noise(uint64_t seed, uint64_t step, uint32_t row, uint32_t stream, uint32_t index);

enum th_crossing {
    TH_KEEP_CROSSING,   /* main head: the token that crosses top-p stays */
    TH_EXCLUDE_CROSSING /* code heads: it does not; the best one always stays */
};

struct th_draw {
    float temperature; /* clamped to >= 1e-5 */
    int32_t top_k;     /* >= 1 */
    float top_p;       /* (0, 1]; >= 1 switches the cut off */
    enum th_crossing crossing;
    uint64_t seed, step;
    uint32_t row, stream;
    int greedy; /* lowest index of the largest logit; nothing else is read */
};

/* What a draw did, for checks; any pointer to it may be NULL. */
struct th_draw_report {
    int kept;     /* candidates in the race */
    float margin; /* best race value over the second best; infinity when alone */
};

/* Work space of th_draw_index for up to `count` candidates. */
struct th_draw_scratch {
    int capacity;
    float *weight;   /* [capacity] */
    uint64_t *order; /* [capacity] */
};
thespis_status th_draw_scratch_open(int count, struct th_draw_scratch *scratch, thespis_error *error);
void th_draw_scratch_close(struct th_draw_scratch *scratch);

/* Index of the drawn candidate among logits [count]. THESPIS_NUMERIC when a logit is NaN or +inf, or all are -inf. */
thespis_status th_draw_index(const struct th_draw *draw, const float *logits, int count, struct th_draw_scratch *scratch,
                             int *index, struct th_draw_report *report, thespis_error *error);

/* Settings of one request (or one chunk of it). */
struct th_sampling {
    float temperature, top_p;
    int32_t top_k;
    uint64_t seed;
    uint32_t row; /* chunk index */
    int greedy;
};

/* The sampler's part of a lane. */
struct th_sampler {
    struct th_sampling settings;
    uint64_t step;                 /* of the frame being drawn: 1 for the first, 0 before it */
    int32_t window[TH_RAS_WINDOW]; /* main tokens of the last rows, -1 where there were none; newest last */
};

void th_sampler_begin(struct th_sampler *sampler, const struct th_sampling *settings);
/* A row of the prompt or a forced frame passes by. */
void th_sampler_see(struct th_sampler *sampler, int32_t main_token);

/* What th_sampler_main must know of the model. */
struct th_main_head {
    int candidates;          /* eos and the band, ascending by id */
    int eos, semantic_start; /* token ids */
};
/* Draws the main token of the next frame: advances step, draws, redraws when the window holds it, slides the window.
 * logits [candidates] are in candidate order. */
thespis_status th_sampler_main(struct th_sampler *sampler, const struct th_main_head *head, const float *logits,
                               struct th_draw_scratch *scratch, int32_t *main_token, struct th_draw_report reports[2],
                               thespis_error *error);
/* Draws code j = 1..codebooks-1 of the frame begun by th_sampler_main. logits [count]. */
thespis_status th_sampler_code(struct th_sampler *sampler, int j, const float *logits, int count, struct th_draw_scratch *scratch,
                               int32_t *code, struct th_draw_report *report, thespis_error *error);

#endif
