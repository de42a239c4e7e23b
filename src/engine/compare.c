/* compare.c - see compare.h. */
#include "engine/compare.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

struct report {
    struct th_arrays *ours;
    const struct th_config *config;
    const char *folder;
    th_check_line line;
    void *context;
    int differences;
};

static void say(const struct report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(const struct report *r, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    r->line(r->context, text);
}

/* The reference's array of the same name, when both are there and have one shape. */
static const struct th_array *pair(const struct report *r, const char *name, struct th_npy *theirs)
{
    memset(theirs, 0, sizeof *theirs);
    const struct th_array *ours = th_arrays_find(r->ours, name);
    thespis_error error;
    if (ours == NULL || th_arrays_load(r->folder, name, theirs, &error) != THESPIS_OK) return NULL;
    int same = theirs->rank == ours->rank;
    for (int i = 0; i < ours->rank && same; i++) same = theirs->shape[i] == ours->shape[i];
    if (same) return ours;
    say(r, "%-18s not compared: the shapes differ", name);
    th_npy_free(theirs);
    return NULL;
}

/* ---- rows of layers ---------------------------------------------------------------------------------------------------------- */

/* 1 - cosine of two rows, as |a/|a| - b/|b||^2 / 2: exact where the rows are nearly equal. */
static double row_distance(const float *ours, const struct th_npy *theirs, int64_t at, int64_t n)
{
    double aa = 0, bb = 0, d = 0;
    for (int64_t i = 0; i < n; i++) {
        double a = th_npy_float(theirs, at + i), b = ours[at + i];
        aa += a * a;
        bb += b * b;
    }
    if (aa == 0 || bb == 0) return aa == bb ? 0 : 1;
    double ra = 1 / sqrt(aa), rb = 1 / sqrt(bb);
    for (int64_t i = 0; i < n; i++) {
        double x = th_npy_float(theirs, at + i) * ra - ours[at + i] * rb;
        d += x * x;
    }
    return d / 2;
}

static void compare_rows(struct report *r, const char *name, const char *label)
{
    struct th_npy theirs;
    const struct th_array *ours = pair(r, name, &theirs);
    if (ours == NULL) return;
    int layers = ours->rank == 3 ? (int)ours->shape[0] : 1;
    int64_t rows = ours->shape[ours->rank - 2], cols = ours->shape[ours->rank - 1];
    for (int layer = 0; layer < layers; layer++) {
        double worst = 0;
        int64_t where = 0;
        for (int64_t row = 0; row < rows; row++) {
            double d = row_distance(ours->data, &theirs, (layer * rows + row) * cols, cols);
            if (!(d <= worst)) where = row, worst = d;
        }
        char full[40];
        if (ours->rank == 3)
            snprintf(full, sizeof full, "%s %d", label, layer);
        else
            snprintf(full, sizeof full, "%s", label);
        say(r, "%-18s worst row %4lld: 1 - cosine %.2e, %6.2f %% of the allowed error", full, (long long)where, worst,
            100 * worst / TH_ALLOWED_ROW);
    }
    th_npy_free(&theirs);
}

/* ---- logits and picks -------------------------------------------------------------------------------------------------------- */

#define STEP_BINS 7 /* distances of picks: 0, <= 1, 2, 4, 8, 16 steps, more */

struct picks {
    int total, equal, clear;
    int bins[STEP_BINS];
};

/* One step of bfloat16 at the size of x. */
static double bf16_step(double x)
{
    return x == 0 ? 0 : exp2(floor(log2(fabs(x))) - 7);
}

static void count_steps(struct picks *p, double behind, double best)
{
    double step = bf16_step(best), steps = step > 0 ? behind / step : 0;
    int bin = 0;
    for (double most = 1; bin < STEP_BINS - 1 && steps > (bin == 0 ? 0 : most); bin++)
        if (bin > 0) most *= 2;
    p->bins[bin]++;
}

/* Row `at` of n logits: picks on both sides; tells of one that differs. */
static void compare_pick(struct report *r, const char *what, int64_t step, int head, const float *ours, const struct th_npy *theirs,
                         int64_t at, int64_t n, struct picks *p)
{
    int64_t a = 0, b = 0;
    double second = -INFINITY;
    for (int64_t i = 1; i < n; i++) {
        if (th_npy_float(theirs, at + i) > th_npy_float(theirs, at + a)) a = i;
        if (ours[at + i] > ours[at + b]) b = i;
    }
    for (int64_t i = 0; i < n; i++)
        if (i != a && th_npy_float(theirs, at + i) > second) second = th_npy_float(theirs, at + i);
    p->total++;
    if (a == b) {
        p->equal++;
        return;
    }
    double best = th_npy_float(theirs, at + a), behind = best - th_npy_float(theirs, at + b),
           our_behind = (double)ours[at + b] - ours[at + a];
    count_steps(p, behind, best);
    int clear = best - second > TH_CLEAR_MARGIN;
    p->clear += clear;
    say(r, "  %s differs at step %lld, head %d: reference %lld (ahead by %.3g), ours %lld (ahead by %.3g)%s", what, (long long)step,
        head, (long long)a, behind, (long long)b, our_behind, clear ? ", a clear one" : "");
}

static void compare_logits(struct report *r, const char *name, const char *label)
{
    struct th_npy theirs;
    const struct th_array *ours = pair(r, name, &theirs);
    if (ours == NULL) return;
    const float *values = ours->data;
    double largest = 0, apart = 0;
    for (int64_t i = 0; i < ours->count; i++) {
        double a = th_npy_float(&theirs, i);
        if (fabs(a) > largest) largest = fabs(a);
        if (!(fabs(a - values[i]) <= apart)) apart = fabs(a - values[i]);
    }
    double used = largest > 0 ? apart / largest : apart;
    say(r, "%-18s largest difference %.2e of the largest logit, %6.2f %% of the allowed error", label, used,
        100 * used / TH_ALLOWED_LOGIT);
    struct picks p = {0};
    int heads = ours->rank == 3 ? (int)ours->shape[1] : 1;
    int64_t n = ours->shape[ours->rank - 1];
    for (int64_t row = 0; row < ours->count / n; row++)
        compare_pick(r, ours->rank == 3 ? "code" : "main token", row / heads, (int)(row % heads), values, &theirs, row * n, n, &p);
    say(r, "%-18s %d of %d picks equal, %d clear differences; behind by 0/1/2/4/8/16/more bf16 steps: %d %d %d %d %d %d %d", label,
        p.equal, p.total, p.clear, p.bins[0], p.bins[1], p.bins[2], p.bins[3], p.bins[4], p.bins[5], p.bins[6]);
    r->differences += p.clear;
    th_npy_free(&theirs);
}

/* ---- experts ----------------------------------------------------------------------------------------------------------------- */

static int same_experts(const int64_t *ours, const struct th_npy *theirs, int64_t at, int64_t k)
{
    for (int64_t i = 0; i < k; i++) {
        int found = 0;
        for (int64_t j = 0; j < k; j++) found |= th_npy_int(theirs, at + j) == ours[at + i];
        if (!found) return 0;
    }
    return 1;
}

/* Last chosen minus first left-out router logit of the reference. */
static double router_gap(const struct th_npy *router, const struct th_npy *chosen, int64_t row, int64_t experts, int64_t k)
{
    double last = INFINITY, first = -INFINITY;
    for (int64_t e = 0; e < experts; e++) {
        int in = 0;
        for (int64_t j = 0; j < k; j++) in |= th_npy_int(chosen, row * k + j) == e;
        double logit = th_npy_float(router, row * experts + e);
        if (in && logit < last) last = logit;
        if (!in && logit > first) first = logit;
    }
    return last - first;
}

static void compare_experts(struct report *r)
{
    struct th_npy chosen, router = {0};
    const struct th_array *ours = pair(r, "moe_experts", &chosen);
    if (ours == NULL) return;
    thespis_error error;
    int have_router = th_arrays_load(r->folder, "moe_router_logits", &router, &error) == THESPIS_OK && router.rank == 3 &&
                      router.shape[0] * router.shape[1] == ours->shape[0] * ours->shape[1];
    int64_t k = ours->shape[2], rows = ours->shape[1], other = 0;
    for (int64_t row = 0; row < ours->shape[0] * rows; row++) {
        if (same_experts(ours->data, &chosen, row * k, k)) continue;
        other++;
        if (have_router)
            say(r, "  other experts in layer %lld, row %lld: gap between last chosen and first left out %.3g",
                (long long)(row / rows), (long long)(row % rows), router_gap(&router, &chosen, row, router.shape[2], k));
    }
    say(r, "%-18s %lld of %lld rows chose the same", "experts", (long long)(ours->shape[0] * rows - other),
        (long long)(ours->shape[0] * rows));
    th_npy_free(&router);
    th_npy_free(&chosen);
}

/* ---- frames, codes, samples -------------------------------------------------------------------------------------------------- */

static void compare_frames(struct report *r)
{
    struct th_npy theirs;
    thespis_error error;
    const struct th_array *ours = th_arrays_find(r->ours, "frames");
    if (ours == NULL || th_arrays_load(r->folder, "frames", &theirs, &error) != THESPIS_OK) return;
    int64_t width = ours->shape[1], n = ours->shape[0] < theirs.shape[0] ? ours->shape[0] : theirs.shape[0], equal = 0;
    const int64_t *frames = ours->data;
    if (theirs.rank != 2 || theirs.shape[1] != width) n = 0;
    for (; equal < n; equal++) {
        /* Codes drawn beside end of speech mean nothing. */
        int64_t cols = r->config != NULL && th_npy_int(&theirs, equal * width) == r->config->eos ? 1 : width, c = 0;
        while (c < cols && frames[equal * width + c] == th_npy_int(&theirs, equal * width + c)) c++;
        if (c < cols) break;
    }
    if (equal == n && ours->shape[0] == theirs.shape[0])
        say(r, "%-18s all %lld equal", "frames", (long long)n);
    else
        say(r, "%-18s the first %lld equal, of %lld here and %lld there", "frames", (long long)equal, (long long)ours->shape[0],
            (long long)theirs.shape[0]);
    th_npy_free(&theirs);
}

static void compare_codes(struct report *r)
{
    struct th_npy theirs;
    const struct th_array *ours = pair(r, "codes", &theirs);
    if (ours == NULL) return;
    for (int64_t book = 0; book < ours->shape[0]; book++) {
        int64_t n = ours->shape[1], equal = 0;
        for (int64_t f = 0; f < n; f++) equal += ((const int64_t *)ours->data)[book * n + f] == th_npy_int(&theirs, book * n + f);
        say(r, "codes of book %-4lld %lld of %lld equal", (long long)book, (long long)equal, (long long)n);
        r->differences += (int)(n - equal);
    }
    th_npy_free(&theirs);
}

static void compare_waveform(struct report *r)
{
    struct th_npy theirs;
    const struct th_array *ours = pair(r, "waveform", &theirs);
    if (ours == NULL) return;
    double signal = 0, noise = 0;
    for (int64_t i = 0; i < ours->count; i++) {
        double a = th_npy_float(&theirs, i), d = a - ((const float *)ours->data)[i];
        signal += a * a;
        noise += d * d;
    }
    say(r, "%-18s %lld samples, signal to difference %.1f dB", "waveform", (long long)ours->count,
        noise > 0 ? 10 * log10(signal / noise) : INFINITY);
    th_npy_free(&theirs);
}

thespis_status th_compare(struct th_arrays *ours, const struct th_config *config, const char *folder, th_check_line line,
                          void *context, int *differences, thespis_error *error)
{
    struct report r = {ours, config, folder, line, context, 0};
    struct th_npy rows;
    thespis_error none;
    if (th_arrays_find(ours, "rows") != NULL && th_arrays_load(folder, "rows", &rows, &none) == THESPIS_OK) {
        const struct th_array *mine = th_arrays_find(ours, "rows");
        int64_t i = 0;
        while (mine->count == rows.count && i < rows.count && ((const int64_t *)mine->data)[i] == th_npy_int(&rows, i)) i++;
        int equal = mine->count == rows.count && i == rows.count;
        th_npy_free(&rows);
        if (!equal)
            return th_fail(error, THESPIS_INVALID, "'%s' holds another prompt: its rows.npy differs from this request's rows",
                           folder);
    }
    compare_rows(&r, "embeds", "embedding");
    compare_rows(&r, "backbone_layers", "backbone");
    compare_rows(&r, "backbone_final", "final norm");
    compare_rows(&r, "tower_layers", "tower");
    compare_experts(&r);
    compare_logits(&r, "candidate_logits", "main tokens");
    compare_logits(&r, "code_logits", "codes");
    compare_frames(&r);
    compare_codes(&r);
    compare_waveform(&r);
    *differences = r.differences;
    return THESPIS_OK;
}
