/* draw.cu - the draws of a frame on the device, to the bit what src/sampler computes (draw.c says in which order numbers are made).
 * A block draws for one column. This file is compiled without contraction of operations, and its exp and log are those of
 * sampler/smath.h.
 *
 * What the portable draw does one after another is done side by side where that cannot show:
 *   - Z is a sum of doubles by index, rounded to float. Summed in another order it differs by less than 2^-38 of itself; only where
 * a float's border lies that near is it summed in the portable order.
 *   - The best 32 come from a bound that at least 32 of them reach, and a count of those above each.
 *   - Where more than 32 may stay, the last one that stays is found bit by bit from the sums of its betters, in integers of 2^-60;
 * where such a sum lies within 2^-39 of top_p, one rank is taken after the other instead. */
#include "backend/cuda/forward.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/label.cuh"
#include "backend/cuda/launch.cuh"

namespace
{

enum { THREADS = 1024, WARPS = THREADS / 32, FIRST_RANKS = 32, GROUPS = 128, MOST_LISTED = FIRST_RANKS * 8 * 8 };
static_assert(THREADS / GROUPS == 8, "eight threads a group");
#define MINIMUM_TEMPERATURE 1e-5f

typedef unsigned long long th_key; /* score's order in the upper half, inverted index below: see draw.c */

struct th_choice {
    float temperature, top_p;
    int top_k, exclude; /* exclude: the one that crosses top_p does not stay */
    unsigned long long seed, step;
    uint32_t row, stream;
    int greedy;
};

/* What a block shares. */
template <int items> struct th_draw_space {
    float weight[items * THREADS]; /* by index */
    th_key list[MOST_LISTED], best[FIRST_RANKS], group[GROUPS], warp_key[WARPS];
    double warp_sum[WARPS];
    unsigned long long warp_part[2][WARPS];
    unsigned warp_count[2][WARPS], warp_value[WARPS];
    th_key bound;
    int listed, kept, bad;
    float sum;
};

/* ---- sampler/smath.h and noise.c ----------------------------------------------------------------------------------------------
 */

__device__ float smath_exp(float x)
{
    const float lowest = -87.33654022216797f;
    const double shift = 0x1.8p52;
    float clamped = x < lowest ? lowest : x;
    double t = static_cast<double>(clamped) * 0x1.71547652b82fep+0 + shift;
    double k = t - shift;
    double r = (static_cast<double>(clamped) - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33;
    double p = 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    unsigned long long bits = (static_cast<unsigned long long>(__double_as_longlong(t)) + 1023) << 52; /* 2^k */
    float result = static_cast<float>(p * __longlong_as_double(static_cast<long long>(bits)));
    return x < lowest ? 0.0f : result;
}

__device__ float smath_log(float x)
{
    const unsigned long long root = 0x3fe6a09e667f3bcdull; /* sqrt 1/2 */
    unsigned long long offset = static_cast<unsigned long long>(__double_as_longlong(static_cast<double>(x))) - root;
    long long e = static_cast<long long>(offset) >> 52;
    double m = __longlong_as_double(static_cast<long long>((offset & 0xfffffffffffffull) + root));
    double f = m - 1.0, s = f / (m + 1.0), z = s * s;
    double p = 1.0 / 21;
    p = p * z + 1.0 / 19;
    p = p * z + 1.0 / 17;
    p = p * z + 1.0 / 15;
    p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    double series = 2.0 * s + 2.0 * s * (z * p);
    return static_cast<float>(static_cast<double>(e) * 0x1.62e42feep-1 + (static_cast<double>(e) * 0x1.a39ef35793c76p-33 + series));
}

__device__ float noise(const th_choice &choice, uint32_t index)
{
    uint32_t c0 = index, c1 = choice.row, c2 = choice.stream, c3 = static_cast<uint32_t>(choice.step);
    uint32_t k0 = static_cast<uint32_t>(choice.seed);
    uint32_t k1 = static_cast<uint32_t>(choice.seed >> 32) ^ static_cast<uint32_t>(choice.step >> 32);
    for (int round = 0; round < 10; round++) {
        unsigned long long a = 0xD2511F53ull * c0, b = 0xCD9E8D57ull * c2;
        c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
        c1 = static_cast<uint32_t>(b);
        c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
        c3 = static_cast<uint32_t>(a);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return -smath_log((static_cast<float>(c0 >> 9) + 0.5f) * 0x1p-23f);
}

/* ---- the block's parts ---------------------------------------------------------------------------------------------------------
 */

__device__ __forceinline__ th_key key_of(float score, int index)
{
    uint32_t bits = __float_as_uint(score + 0.0f); /* -0 becomes +0 */
    bits ^= bits >> 31 ? 0xFFFFFFFFu : 0x80000000u;
    return static_cast<th_key>(bits) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(index));
}
__device__ __forceinline__ int index_of(th_key key)
{
    return static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(key));
}
__device__ __forceinline__ int index_at(int item)
{
    return item * THREADS + static_cast<int>(threadIdx.x);
}
__device__ __forceinline__ th_key larger(th_key a, th_key b)
{
    return a > b ? a : b;
}

/* The largest of all threads' keys, to all. */
template <int items> __device__ th_key block_largest(th_key key, th_draw_space<items> *space)
{
    for (int bits = 16; bits > 0; bits >>= 1) key = larger(key, __shfl_xor_sync(0xFFFFFFFFu, key, bits));
    if (threadIdx.x % 32 == 0) space->warp_key[threadIdx.x / 32] = key;
    __syncthreads();
    key = space->warp_key[threadIdx.x % WARPS];
    for (int bits = 16; bits > 0; bits >>= 1) key = larger(key, __shfl_xor_sync(0xFFFFFFFFu, key, bits));
    __syncthreads();
    return key;
}

/* Z, rounded as the sum by ascending index is. */
template <int items> __device__ void sum_weights(const float (&weight)[items], int count, int slow, th_draw_space<items> *space)
{
    double sum = 0.0;
#pragma unroll
    for (int i = 0; i < items; i++) sum += static_cast<double>(weight[i]);
    for (int bits = 16; bits > 0; bits >>= 1) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, bits);
    if (threadIdx.x % 32 == 0) space->warp_sum[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = space->warp_sum[threadIdx.x];
        for (int bits = 16; bits > 0; bits >>= 1) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, bits);
        if (threadIdx.x == 0) {
            float low = static_cast<float>(sum * (1.0 - 0x1p-38)), high = static_cast<float>(sum * (1.0 + 0x1p-38));
            if (low != high || slow) {
                sum = 0.0;
                for (int i = 0; i < count; i++) sum += static_cast<double>(space->weight[i]);
                low = static_cast<float>(sum);
            }
            space->sum = low;
        }
    }
    __syncthreads();
}

/* space->best: the 32 largest keys in falling order, 0 where there are fewer. Every 8 threads are a group; the 32nd of the groups'
 * largest keys is a bound that 32 keys reach, and few more. */
template <int items> __device__ void find_first(const th_key (&key)[items], th_draw_space<items> *space)
{
    const int thread = static_cast<int>(threadIdx.x), part = thread % 8;
    th_key own = 0;
#pragma unroll
    for (int i = 0; i < items; i++) own = larger(own, key[i]);
    for (int bits = 4; bits > 0; bits >>= 1) own = larger(own, __shfl_xor_sync(0xFFFFFFFFu, own, bits));
    if (part == 0) space->group[thread / 8] = own;
    if (thread < FIRST_RANKS) space->best[thread] = 0;
    if (thread == 0) {
        space->bound = 0;
        space->listed = 0;
    }
    __syncthreads();
    int above = 0;
    for (int i = part; i < GROUPS; i += 8) above += space->group[i] > own;
    for (int bits = 4; bits > 0; bits >>= 1) above += __shfl_xor_sync(0xFFFFFFFFu, above, bits);
    if (part == 0 && above == FIRST_RANKS - 1 && own != 0) space->bound = own;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < items; i++)
        if (key[i] != 0 && key[i] >= space->bound) space->list[atomicAdd(&space->listed, 1)] = key[i];
    __syncthreads();
    const int listed = space->listed;
    for (int first = 0; first < listed; first += GROUPS) { /* the list's order is any, a key's rank is not */
        int at = first + thread / 8;
        th_key listed_key = at < listed ? space->list[at] : 0;
        above = 0;
        for (int i = part; i < listed; i += 8) above += space->list[i] > listed_key;
        for (int bits = 4; bits > 0; bits >>= 1) above += __shfl_xor_sync(0xFFFFFFFFu, above, bits);
        if (part == 0 && at < listed && above < FIRST_RANKS) space->best[above] = listed_key;
    }
    __syncthreads();
}

/* How many of the first ranks stay, in space->kept; 0 when that does not settle it. Warp 0. */
template <int items> __device__ void cut_first(const th_choice &choice, int count, th_draw_space<items> *space)
{
    const int lane = static_cast<int>(threadIdx.x), ranks = min(choice.top_k, count),
              first = min(ranks, static_cast<int>(FIRST_RANKS));
    if (choice.top_p >= 1.0f) {
        if (lane == 0) space->kept = ranks <= FIRST_RANKS ? ranks : 0;
        return;
    }
    th_key key = space->best[lane];
    float probability = key != 0 ? space->weight[index_of(key)] / space->sum : 0.0f;
    float before = 0.0f;
    int kept = first;
    for (int rank = 0; rank < first; rank++) {
        float through = before + __shfl_sync(0xFFFFFFFFu, probability, rank);
        if (kept == first && rank > 0 && (choice.exclude ? through : before) > choice.top_p) kept = rank;
        if (kept == first) before = through;
    }
    if (lane == 0) space->kept = kept < first || choice.top_k <= FIRST_RANKS || before > choice.top_p ? kept : 0;
}

/* ---- more than 32 ranks: the key of the last that stays
 * -------------------------------------------------------------------------- */

/* top_p as a border between sums in units of 2^-60: what is above rounds to a float above top_p. */
__device__ __forceinline__ unsigned long long border_of(float top_p)
{
    double low = static_cast<double>(top_p), high = static_cast<double>(__uint_as_float(__float_as_uint(top_p) + 1));
    return static_cast<unsigned long long>((low + high) * 0.5 * 0x1p60);
}

/* Sum of numbers up to 2^61 over the lanes of a warp, in three parts. */
__device__ __forceinline__ unsigned long long warp_add(unsigned long long x)
{
    const unsigned mask = (1u << 20) - 1;
    unsigned long long low = __reduce_add_sync(0xFFFFFFFFu, static_cast<unsigned>(x) & mask);
    unsigned long long middle = __reduce_add_sync(0xFFFFFFFFu, static_cast<unsigned>(x >> 20) & mask);
    unsigned long long high = __reduce_add_sync(0xFFFFFFFFu, static_cast<unsigned>(x >> 40));
    return (high << 40) + (middle << 20) + low;
}

/* One rank after the other: the plain rule. */
template <int items>
__device__ th_key walk_ranks(const th_choice &choice, const th_key (&key)[items], int ranks, th_draw_space<items> *space)
{
    double sum = 0.0;
    th_key last = ~static_cast<th_key>(0);
    for (int rank = 0; rank < ranks; rank++) {
        if (choice.top_p < 1.0f && rank > 0 && static_cast<float>(sum) > choice.top_p) break;
        th_key next = 0;
        for (int i = 0; i < items; i++)
            if (key[i] < last) next = larger(next, key[i]);
        last = block_largest(next, space);
        sum += static_cast<double>(space->weight[index_of(last)] / space->sum);
    }
    return last;
}

/* The largest key whose betters and itself reach the border or the number of ranks; 0: all stay. Bit by bit, but for those bits in
 * which all keys agree. */
template <int items>
__device__ th_key last_kept(const th_choice &choice, const th_key (&key)[items], int count, int slow, th_draw_space<items> *space)
{
    const int limited = choice.top_p < 1.0f, ranks = min(choice.top_k, count), warp = static_cast<int>(threadIdx.x) / 32;
    const unsigned long long border = limited ? border_of(choice.top_p) : 0;
    if (slow) return walk_ranks(choice, key, ranks, space);
    unsigned long long part[items];
    th_key differs = 0;
    const th_key any = space->best[0]; /* a key */
#pragma unroll
    for (int i = 0; i < items; i++) {
        part[i] = 0;
        if (key[i] == 0) continue;
        differs |= key[i] ^ any;
        if (limited)
            part[i] = static_cast<unsigned long long>(static_cast<double>(space->weight[index_at(i)] / space->sum) * 0x1p60);
    }
    for (int bits = 16; bits > 0; bits >>= 1) differs |= __shfl_xor_sync(0xFFFFFFFFu, differs, bits);
    if (threadIdx.x % 32 == 0) space->warp_key[warp] = differs;
    __syncthreads();
    differs = space->warp_key[threadIdx.x % WARPS];
    for (int bits = 16; bits > 0; bits >>= 1) differs |= __shfl_xor_sync(0xFFFFFFFFu, differs, bits);
    th_key found = any & ~differs;
    /* the first round asks whether all together reach it */
    for (int bit = 64, turn = 0; bit >= 0; bit--) {
        if (bit < 64 && (differs >> bit & 1) == 0) continue;
        const th_key least = bit < 64 ? found | static_cast<th_key>(1) << bit : 0;
        unsigned long long sum = 0;
        unsigned number = 0;
#pragma unroll
        for (int i = 0; i < items; i++)
            if (key[i] != 0 && key[i] >= least) {
                sum += part[i];
                number++;
            }
        sum = warp_add(sum);
        number = __reduce_add_sync(0xFFFFFFFFu, number);
        if (threadIdx.x % 32 == 0) {
            space->warp_part[turn][warp] = sum;
            space->warp_count[turn][warp] = number;
        }
        __syncthreads();
        sum = warp_add(space->warp_part[turn][threadIdx.x % WARPS]);
        number = __reduce_add_sync(0xFFFFFFFFu, space->warp_count[turn][threadIdx.x % WARPS]);
        turn ^= 1;
        const unsigned long long distance = sum > border ? sum - border : border - sum;
        if (limited && distance <= (1ull << 21)) {
            __syncthreads();
            return walk_ranks(choice, key, ranks, space);
        }
        const bool reached = (limited && sum > border) || number >= static_cast<unsigned>(ranks);
        if (bit == 64 && !reached) return 0;
        if (bit < 64 && reached) found = least;
    }
    return found;
}

/* ---- one draw ------------------------------------------------------------------------------------------------------------------
 */

/* The race among keys that are not 0: the largest weight / noise, the better rank among equals. To all threads. */
template <int items> __device__ th_key race(const th_choice &choice, const th_key *keys, int number, th_draw_space<items> *space)
{
    float best = -1.0f;
    th_key winner = 0;
    for (int i = 0; i < number; i++) {
        if (keys[i] == 0) continue;
        int index = index_of(keys[i]);
        float value = space->weight[index] / noise(choice, static_cast<uint32_t>(index));
        if (value > best || (value == best && keys[i] > winner)) {
            best = value;
            winner = keys[i];
        }
    }
    unsigned bits = winner != 0 ? __float_as_uint(best) + 1 : 0, most = __reduce_max_sync(0xFFFFFFFFu, bits);
    if (threadIdx.x % 32 == 0) space->warp_value[threadIdx.x / 32] = most;
    __syncthreads();
    most = __reduce_max_sync(0xFFFFFFFFu, space->warp_value[threadIdx.x % WARPS]);
    return block_largest(bits == most ? winner : 0, space);
}

/* The index drawn among logits [count] of which each thread holds `items`; -1 when the largest overflows. */
template <int items>
__device__ int draw_index(const th_choice &choice, const float (&logit)[items], int count, float largest_logit, int slow,
                          th_draw_space<items> *space)
{
    float temperature = choice.temperature > MINIMUM_TEMPERATURE ? choice.temperature : MINIMUM_TEMPERATURE;
    float largest = largest_logit / temperature;
    if (!(fabsf(largest) < INFINITY)) return -1;
    th_key key[items];
    float weight[items];
#pragma unroll
    for (int i = 0; i < items; i++) {
        bool there = index_at(i) < count;
        float score = logit[i] / temperature;
        key[i] = there ? key_of(score, index_at(i)) : 0;
        weight[i] = there ? smath_exp(score - largest) : 0.0f;
        if (there) space->weight[index_at(i)] = weight[i];
    }
    __syncthreads();
    if (choice.top_p < 1.0f) sum_weights(weight, count, slow, space);
    if (choice.top_k < count || choice.top_p < 1.0f) {
        find_first(key, space);
        if (threadIdx.x < 32) cut_first(choice, count, space);
        __syncthreads();
        const int kept = space->kept;
        __syncthreads();
        if (kept > 0) {
            th_key one[1] = {threadIdx.x < static_cast<unsigned>(kept) ? space->best[threadIdx.x % FIRST_RANKS] : 0};
            return index_of(race(choice, one, 1, space));
        }
        th_key last = last_kept(choice, key, count, slow, space);
#pragma unroll
        for (int i = 0; i < items; i++)
            if (key[i] < last) key[i] = 0;
    }
    return index_of(race(choice, key, items, space));
}

/* ---- a column ------------------------------------------------------------------------------------------------------------------
 */

__device__ th_choice choice_of(const th_cuda_column *column, int head)
{
    th_choice choice;
    choice.temperature = column->temperature;
    choice.top_p = column->top_p;
    choice.top_k = head == 0 ? column->top_k : min(column->top_k, TH_CODE_TOP_K);
    choice.exclude = head > 0;
    choice.seed = column->seed;
    choice.step = column->step;
    choice.row = column->row;
    choice.stream = static_cast<uint32_t>(head == 0 ? TH_STREAM_MAIN : TH_STREAM_CODES + head - 1);
    choice.greedy = column->greedy;
    return choice;
}

/* Candidates ascend by id: eos is the first when it lies below the band and the last when above. */
__device__ int token_of(const struct th_cuda_draw &at, int index)
{
    if (at.eos < at.semantic_start) return index == 0 ? at.eos : at.semantic_start + index - 1;
    return index == at.count - 1 ? at.eos : at.semantic_start + index;
}

__device__ bool seen(const th_cuda_column *column, int token)
{
    for (int i = 0; i < TH_RAS_WINDOW; i++)
        if (column->window[i] == token) return true;
    return false;
}

/* A failure of this head, by thread 0. */
__device__ void fail(const struct th_cuda_draw &at, struct th_cuda_drawn *drawn, int kind, int index, float value)
{
    drawn->failed = kind;
    drawn->head = at.head;
    drawn->index = index;
    drawn->value = value;
}

/* The candidate drawn, -1 after a failure; the same in all threads. */
template <int items>
__device__ int draw_column(const struct th_cuda_draw &at, const th_cuda_column *column, struct th_cuda_drawn *drawn,
                           const uint16_t *logits, th_draw_space<items> *space)
{
    float logit[items];
    th_key largest = 0;
    int bad = 0x7FFFFFFF;
#pragma unroll
    for (int i = 0; i < items; i++) {
        int index = index_at(i);
        logit[i] = index < at.count ? th_bf16_float(logits[index]) : 0.0f;
        if (index >= at.count) continue;
        if (!(fabsf(logit[i]) < INFINITY)) bad = min(bad, index);
        largest = larger(largest, key_of(logit[i], index));
    }
    if (threadIdx.x == 0) space->bad = 0x7FFFFFFF;
    __syncthreads();
    if (bad != 0x7FFFFFFF) atomicMin(&space->bad, bad);
    largest = block_largest(largest, space);
    bad = space->bad;
    if (bad != 0x7FFFFFFF) {
        if (threadIdx.x == 0) fail(at, drawn, TH_CUDA_NOT_FINITE, bad, th_bf16_float(logits[bad]));
        return -1;
    }
    if (column->forced) return 0;
    th_choice choice = choice_of(column, at.head);
    const int best = index_of(largest);
    if (choice.greedy) return best;
    const float largest_logit = th_bf16_float(logits[best]);
    int index = draw_index(choice, logit, at.count, largest_logit, at.slow, space);
    if (at.head == 0 && index >= 0) {
        int token = token_of(at, index);
        if (token != at.eos && seen(column, token)) {
            choice.temperature = TH_RAS_TEMPERATURE;
            choice.top_k = TH_RAS_TOP_K;
            choice.top_p = TH_RAS_TOP_P;
            choice.stream = TH_STREAM_RAS;
            index = draw_index(choice, logit, at.count, largest_logit, at.slow, space);
        }
    }
    if (index < 0 && threadIdx.x == 0) fail(at, drawn, TH_CUDA_OVERFLOWS, best, largest_logit);
    return index;
}

/* The main token and what follows from it, by thread 0. */
__device__ void write_main(const struct th_cuda_draw &at, th_cuda_column *column, int index)
{
    int token = token_of(at, index), code = token - at.semantic_start;
    column->label[0] = token;
    column->label[1] = token == at.eos ? 0 : code < 0 ? 0 : code >= at.codebook_size ? at.codebook_size - 1 : code;
    for (int i = 2; i < at.width; i++) column->label[i] = 0;
}

__device__ void make_labels(const struct th_cuda_draw &at, int i, const th_cuda_column *column)
{
    const int width = at.label.width, pairs = width / 2;
    for (int k = 0; k < at.labels; k++) {
        uint32_t *out = reinterpret_cast<uint32_t *>(at.label.out + static_cast<size_t>(k) * at.label_step +
                                                     static_cast<size_t>(i) * static_cast<size_t>(width));
        for (int pair = static_cast<int>(threadIdx.x); pair < pairs; pair += THREADS)
            out[pair] = th_label_pair(at.label, at.tables[k], k == 0 ? at.label.first : 0, column, pair);
    }
}

template <int items> __global__ void __launch_bounds__(THREADS) draw_kernel(const struct th_cuda_draw at)
{
    TH_DYNAMIC_SHARED(th_draw_space<items>, space);
    th_dependency_release();
    th_dependency_wait();
    const int i = static_cast<int>(blockIdx.x);
    if (i >= at.pass->tower_count) return;
    th_cuda_column *column = &at.pass->column[at.pass->capacity + i];
    struct th_cuda_drawn *drawn = &at.drawn[i];
    if (at.head == 0) {
        if (threadIdx.x == 0) drawn->failed = TH_CUDA_DRAWN;
        __syncthreads();
    }
    if (drawn->failed == TH_CUDA_DRAWN && (at.head == 0 || column->label[0] != at.eos)) {
        int index =
            draw_column<items>(at, column, drawn, at.logits + static_cast<size_t>(i) * static_cast<size_t>(at.stride), space);
        if (threadIdx.x == 0 && index >= 0 && !column->forced) {
            if (at.head == 0)
                write_main(at, column, index);
            else
                column->label[1 + at.head] = index;
        }
    }
    __syncthreads();
    make_labels(at, i, column);
    if (at.result == nullptr) return;
    struct th_cuda_drawn *result = &at.result[i];
    if (threadIdx.x < static_cast<unsigned>(at.width)) result->frame[threadIdx.x] = column->label[threadIdx.x];
    if (threadIdx.x != 0) return;
    result->failed = drawn->failed;
    result->head = drawn->head;
    result->index = drawn->index;
    result->value = drawn->value;
}

} // namespace

extern "C" cudaError_t th_cuda_draw(const struct th_cuda_launch *launch, const struct th_cuda_draw *draw)
{
    const dim3 grid(static_cast<unsigned>(draw->columns));
    if (draw->count <= 2 * THREADS) return th_launch(launch, draw_kernel<2>, grid, dim3(THREADS), sizeof(th_draw_space<2>), *draw);
    if (draw->count <= 5 * THREADS) return th_launch(launch, draw_kernel<5>, grid, dim3(THREADS), sizeof(th_draw_space<5>), *draw);
    if (draw->count <= 8 * THREADS) return th_launch(launch, draw_kernel<8>, grid, dim3(THREADS), sizeof(th_draw_space<8>), *draw);
    return cudaErrorInvalidValue;
}

TH_CUDA_KERNELS(draw) = {TH_CUDA_KERNEL(THREADS, sizeof(th_draw_space<2>), draw_kernel<2>),
                         TH_CUDA_KERNEL(THREADS, sizeof(th_draw_space<5>), draw_kernel<5>),
                         TH_CUDA_KERNEL(THREADS, sizeof(th_draw_space<8>), draw_kernel<8>), TH_CUDA_KERNELS_END};
