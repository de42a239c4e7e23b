/* draw.c - one draw: exact top-k and top-p selection on the whole tempered softmax, then a race of weight over noise.
 *
 * Numbers, in the order that counts:
 *   score s = logit / temperature (float division); weight w = exp(s - largest s) (float);
 *   Z = the weights summed in double by ascending index, rounded to float; p = w / Z (float);
 *   rank order = score descending, equal scores (and -0 with +0) by ascending index;
 *   cumulative c over ranks: in float, one addition a rank, as long as the first 32 ranks settle the cut; where they do not (top_k
 * > 32 and c of rank 31 <= top_p) in double, rounded to float for each comparison. The reference's kernels change their way of
 * summing at the same place. */
#include <math.h>

#include "base/memory.h"
#include "sampler/sampler.h"
#include "sampler/smath.h"

#define FIRST_RANKS 32
#define MINIMUM_TEMPERATURE 1e-5f

thespis_status th_draw_scratch_open(int count, struct th_draw_scratch *scratch, thespis_error *error)
{
    *scratch = (struct th_draw_scratch){0};
    if (count < 1) return th_fail(error, THESPIS_INVALID, "work space for %d candidates asked for; at least 1 is needed", count);
    thespis_status status = TH_ALLOC(&scratch->weight, (size_t)count, "weights of a draw", error);
    if (status == THESPIS_OK) status = TH_ALLOC(&scratch->order, (size_t)count, "order of a draw", error);
    if (status != THESPIS_OK) {
        th_draw_scratch_close(scratch);
        return status;
    }
    scratch->capacity = count;
    return THESPIS_OK;
}

void th_draw_scratch_close(struct th_draw_scratch *scratch)
{
    th_free(scratch->weight);
    th_free(scratch->order);
    *scratch = (struct th_draw_scratch){0};
}

/* A draw in progress. `order` is a heap of the ranks not yet taken, the best key at [0]; rank r, once taken, lies at [count - 1 -
 * r]. */
struct ranking {
    int count, taken;
    uint64_t *order;     /* [count] */
    const float *weight; /* [count] by index */
    float sum;           /* Z */
};

/* Bits that order as the scores do, then the inverted index: one comparison settles rank, ties included, and no two keys are equal.
 */
static inline uint64_t key_of(float score, uint32_t index)
{
    float positive = score + 0.0f; /* -0 becomes +0 */
    uint32_t bits;
    memcpy(&bits, &positive, sizeof bits);
    bits ^= bits >> 31 ? UINT32_C(0xffffffff) : UINT32_C(0x80000000);
    return (uint64_t)bits << 32 | (uint32_t)~index;
}

static inline int index_of(uint64_t key)
{
    return (int)(uint32_t) ~(uint32_t)key;
}

static void sift(uint64_t *heap, int size, int at)
{
    uint64_t key = heap[at];
    for (int child = 2 * at + 1; child < size; child = 2 * at + 1) {
        if (child + 1 < size) child += heap[child + 1] > heap[child];
        if (heap[child] < key) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = key;
}

static void make_heap(struct ranking *ranking)
{
    for (int i = ranking->count / 2 - 1; i >= 0; i--) sift(ranking->order, ranking->count, i);
}

/* Index of the candidate of this rank; ranks are taken one after the other, as many as the cut needs. */
static int ranked(struct ranking *ranking, int rank)
{
    while (ranking->taken <= rank) {
        int last = ranking->count - 1 - ranking->taken;
        uint64_t best = ranking->order[0];
        ranking->order[0] = ranking->order[last];
        ranking->order[last] = best;
        sift(ranking->order, last, 0);
        ranking->taken++;
    }
    return index_of(ranking->order[ranking->count - 1 - rank]);
}

/* Ranks kept among the first `ranks`, cumulative sums in double or in float; *cumulative is that of the last rank looked at. */
static int kept_ranks(struct ranking *ranking, int ranks, float top_p, enum th_crossing crossing, int in_double, float *cumulative)
{
    double sum = 0;
    float before = 0;
    for (int rank = 0; rank < ranks; rank++) {
        float probability = ranking->weight[ranked(ranking, rank)] / ranking->sum;
        sum = in_double ? sum + (double)probability : (double)(before + probability);
        float through = (float)sum;
        *cumulative = through;
        if (rank > 0 && (crossing == TH_KEEP_CROSSING ? before : through) > top_p) return rank;
        before = through;
    }
    return ranks;
}

static int select_ranks(struct ranking *ranking, const struct th_draw *draw)
{
    int ranks = draw->top_k < ranking->count ? (int)draw->top_k : ranking->count;
    if (draw->top_p >= 1.0f) {
        if (ranks < ranking->count) ranked(ranking, ranks - 1);
        return ranks;
    }
    int first = ranks < FIRST_RANKS ? ranks : FIRST_RANKS;
    float cumulative = 0;
    int kept = kept_ranks(ranking, first, draw->top_p, draw->crossing, 0, &cumulative);
    if (kept < first || draw->top_k <= FIRST_RANKS || cumulative > draw->top_p) return kept;
    return kept_ranks(ranking, ranks, draw->top_p, draw->crossing, 1, &cumulative);
}

/* The largest weight / noise among the last `kept` places of the order; equal values go to the better rank, which has the larger
 * key. */
static int race(const struct ranking *ranking, const struct th_draw *draw, int kept, struct th_draw_report *report)
{
    float best = -1, second = -1;
    uint64_t winner = 0;
    for (int i = ranking->count - 1; i >= ranking->count - kept; i--) {
        uint64_t key = ranking->order[i];
        int index = index_of(key);
        float value = ranking->weight[index] / th_noise(draw->seed, draw->step, draw->row, draw->stream, (uint32_t)index);
        if (value > best || (value == best && key > winner)) {
            second = best;
            best = value;
            winner = key;
        } else if (value > second) {
            second = value;
        }
    }
    if (report) {
        report->kept = kept;
        report->margin = second > 0 ? best / second : INFINITY;
    }
    return index_of(winner);
}

static thespis_status check(const struct th_draw *draw, const float *logits, int count, int capacity, int *best,
                            thespis_error *error)
{
    if (count < 1 || (!draw->greedy && count > capacity))
        return th_fail(error, THESPIS_INVALID, "a draw among %d candidates; the work space holds 1 to %d", count, capacity);
    if (!draw->greedy && !(draw->temperature >= 0 && draw->temperature < INFINITY && draw->top_k >= 1 && draw->top_p > 0))
        return th_fail(error, THESPIS_INVALID,
                       "temperature %g, top_k %d, top_p %g; needed are temperature >= 0, top_k >= 1, top_p > 0",
                       (double)draw->temperature, (int)draw->top_k, (double)draw->top_p);
    *best = 0;
    for (int i = 0; i < count; i++) {
        if (!(logits[i] < INFINITY))
            return th_fail(error, THESPIS_NUMERIC, "non_finite_logits: logit %d of %d is %s", i, count,
                           isnan(logits[i]) ? "NaN" : "inf");
        if (logits[i] > logits[*best]) *best = i;
    }
    if (logits[*best] == -INFINITY) return th_fail(error, THESPIS_NUMERIC, "non_finite_logits: all %d logits are -inf", count);
    return THESPIS_OK;
}

/* Fills weights, keys and Z. */
static void weigh(const float *logits, int count, float temperature, float largest, struct th_draw_scratch *scratch,
                  struct ranking *ranking)
{
    float *restrict weight = scratch->weight;
    uint64_t *restrict order = scratch->order;
    for (int i = 0; i < count; i++) weight[i] = th_smath_exp(logits[i] / temperature - largest);
    for (int i = 0; i < count; i++) order[i] = key_of(logits[i] / temperature, (uint32_t)i);
    double sum = 0;
    for (int i = 0; i < count; i++) sum += (double)weight[i];
    *ranking = (struct ranking){.count = count, .order = order, .weight = weight, .sum = (float)sum};
}

thespis_status th_draw_index(const struct th_draw *draw, const float *logits, int count, struct th_draw_scratch *scratch,
                             int *index, struct th_draw_report *report, thespis_error *error)
{
    int best = 0;
    TH_TRY(check(draw, logits, count, scratch ? scratch->capacity : 0, &best, error));
    if (draw->greedy) {
        *index = best;
        if (report) *report = (struct th_draw_report){.kept = 1, .margin = INFINITY};
        return THESPIS_OK;
    }
    float temperature = draw->temperature > MINIMUM_TEMPERATURE ? draw->temperature : MINIMUM_TEMPERATURE;
    float largest = logits[best] / temperature;
    if (!isfinite(largest))
        return th_fail(error, THESPIS_NUMERIC, "non_finite_logits: logit %d, %g, overflows when divided by temperature %g", best,
                       (double)logits[best], (double)temperature);
    struct ranking ranking;
    weigh(logits, count, temperature, largest, scratch, &ranking);
    int all = draw->top_k >= count && draw->top_p >= 1.0f; /* nothing to cut: the race needs no order */
    if (!all) make_heap(&ranking);
    int kept = select_ranks(&ranking, draw);
    *index = race(&ranking, draw, kept, report);
    return THESPIS_OK;
}
