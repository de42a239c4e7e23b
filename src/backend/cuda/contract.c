/* contract.c - see contract.h. */
#include "backend/cuda/contract.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/kernels.h"
#include "base/memory.h"

struct contract {
    const struct th_subject *subject;
    enum th_contract_fault fault;
    uint16_t *x;        /* [most][cols] */
    float *y, *z;       /* [most][width] */
    double *want, *far; /* [width] */
};

static size_t y_bytes(const struct contract *c, int columns)
{
    return (size_t)columns * (size_t)c->subject->width * sizeof(float);
}

static void make_inputs(const struct contract *c, int columns, uint32_t seed)
{
    const size_t cols = (size_t)c->subject->cols;
    for (size_t i = 0; i < (size_t)columns * cols; i++) c->x[i] = th_subject_value(seed, i);
}

static thespis_status run(const struct contract *c, int n, const uint16_t *x, float *y, thespis_error *error)
{
    return c->subject->run(c->subject, n, x, y, error);
}

/* ---- gates: "" or what is broken -----------------------------------------------------------------------------------------------
 */

static thespis_status gate_repeat(struct contract *c, char *broken, size_t room, thespis_error *error)
{
    const int n = c->subject->most_columns;
    make_inputs(c, n, 1);
    TH_TRY(run(c, n, c->x, c->y, error));
    for (int round = 0; round < 3; round++) {
        TH_TRY(run(c, n, c->x, c->z, error));
        if (c->fault == TH_CONTRACT_REPEAT_FAULT && round == 2) c->z[0] = nextafterf(c->z[0], INFINITY);
        if (memcmp(c->y, c->z, y_bytes(c, n)) != 0) snprintf(broken, room, "call %d gives other bytes than the first", round + 2);
    }
    return THESPIS_OK;
}

static thespis_status gate_edge(struct contract *c, char *broken, size_t room, thespis_error *error)
{
    const int columns[] = {1, 2, 7, c->subject->most_columns};
    if (c->subject->reference == NULL) return THESPIS_OK;
    for (int k = 0; k < 4; k++) {
        const int n = columns[k] < c->subject->most_columns ? columns[k] : c->subject->most_columns;
        make_inputs(c, n, 2 + (uint32_t)k);
        TH_TRY(run(c, n, c->x, c->y, error));
        for (int column = 0; column<n; column += n> 8 ? n / 5 : 1) {
            c->subject->reference(c->subject, c->x + (size_t)column * (size_t)c->subject->cols, c->want, c->far);
            for (int i = 0; i < c->subject->width; i++) {
                double got = c->y[(size_t)column * (size_t)c->subject->width + (size_t)i];
                if (c->fault == TH_CONTRACT_EDGE_FAULT && i == c->subject->width - 1) got += 3 * c->far[i] + 1e-3;
                if (!(fabs(got - c->want[i]) <= c->far[i]))
                    snprintf(broken, room, "%d columns: value %d of column %d is %g, float64 has %g (may be %g away)", n, i, column,
                             got, c->want[i], c->far[i]);
            }
        }
    }
    return THESPIS_OK;
}

/* Column 0 of a run of n, alone, and at the end of a run whose other columns hold something else. */
static thespis_status gate_order(struct contract *c, char *broken, size_t room, thespis_error *error)
{
    const struct th_subject *s = c->subject;
    const size_t cols = (size_t)s->cols, width = (size_t)s->width;
    make_inputs(c, 1, 9);
    TH_TRY(run(c, 1, c->x, c->y, error));
    for (int n = 2; n <= s->most_columns; n += n < 18 ? 1 : 13) {
        make_inputs(c, n, 10 + (uint32_t)n);
        for (size_t i = 0; i < cols; i++) c->x[(size_t)(n - 1) * cols + i] = th_subject_value(9, i);
        TH_TRY(run(c, n, c->x, c->z, error));
        float *last = c->z + (size_t)(n - 1) * width;
        if (c->fault == TH_CONTRACT_ORDER_FAULT && n == 9) last[0] = nextafterf(last[0], INFINITY);
        if (memcmp(c->y, last, width * sizeof(float)) != 0)
            snprintf(broken, room, "a column alone differs from itself as the last of %d", n);
    }
    return THESPIS_OK;
}

static int class_of(double value)
{
    return isnan(value) ? 3 : isinf(value) ? (value > 0 ? 1 : 2) : 0;
}

static thespis_status gate_class(struct contract *c, char *broken, size_t room, thespis_error *error)
{
    static const uint16_t special[] = {0x7FC0, 0x7F80, 0xFF80}; /* NaN, +inf, -inf */
    const struct th_subject *s = c->subject;
    const size_t cols = (size_t)s->cols, width = (size_t)s->width;
    const int n = s->most_columns < 11 ? s->most_columns : 11, where = n / 2;
    make_inputs(c, n, 30);
    TH_TRY(run(c, n, c->x, c->y, error));
    for (int k = 0; k < 3; k++) {
        make_inputs(c, n, 30);
        c->x[(size_t)where * cols + cols / 3] = special[k];
        TH_TRY(run(c, n, c->x, c->z, error));
        if (c->fault == TH_CONTRACT_CLASS_FAULT) c->z[(size_t)where * width] = 0.0f;
        for (int column = 0; column < n; column++)
            if (column != where && memcmp(c->y + (size_t)column * width, c->z + (size_t)column * width, width * sizeof(float)) != 0)
                snprintf(broken, room, "input class %d of column %d changes column %d", k, where, column);
        if (s->reference != NULL) s->reference(s, c->x + (size_t)where * cols, c->want, c->far);
        for (size_t i = 0; i < width; i++) {
            const int got = class_of(c->z[(size_t)where * width + i]);
            /* without a reference: nothing finite may come of it */
            const int wrong = s->reference != NULL ? got != class_of(c->want[i]) : got == 0;
            if (wrong)
                snprintf(broken, room, "value %zu is %g after input class %d", i, (double)c->z[(size_t)where * width + i], k);
        }
    }
    return THESPIS_OK;
}

/* ---- all of it -----------------------------------------------------------------------------------------------------------------
 */

static thespis_status make_room(struct contract *c, thespis_error *error)
{
    const size_t most = TH_CONTRACT_MOST_COLUMNS, width = (size_t)c->subject->width;
    TH_TRY(TH_ALLOC(&c->x, most * (size_t)c->subject->cols, "the contract", error));
    TH_TRY(TH_ALLOC(&c->y, most * width, "the contract", error));
    TH_TRY(TH_ALLOC(&c->z, most * width, "the contract", error));
    TH_TRY(TH_ALLOC(&c->want, width, "the contract", error));
    return TH_ALLOC(&c->far, width, "the contract", error);
}

static thespis_status check_subject(const struct th_subject *subject, enum th_contract_fault fault, th_backend_line line,
                                    void *context, int *broken, thespis_error *error)
{
    static const struct {
        const char *name;
        thespis_status (*gate)(struct contract *, char *, size_t, thespis_error *);
    } gates[] = {{"class", gate_class}, {"repeat", gate_repeat}, {"edge", gate_edge}, {"order", gate_order}};
    struct contract c = {.subject = subject, .fault = fault};
    thespis_status status = make_room(&c, error);
    int found = 0;
    for (size_t i = 0; i < sizeof gates / sizeof *gates && status == THESPIS_OK; i++) {
        char what[200] = "", text[400];
        status = gates[i].gate(&c, what, sizeof what, error);
        if (status != THESPIS_OK || what[0] == '\0') continue;
        snprintf(text, sizeof text, "%s: %s is broken: %s", subject->name, gates[i].name, what);
        line(context, text);
        found++;
    }
    if (status == THESPIS_OK && found == 0) line(context, subject->name);
    *broken += found;
    th_free(c.x), th_free(c.y), th_free(c.z), th_free(c.want), th_free(c.far);
    return status;
}

static thespis_status check_subjects(const struct th_cuda_launch *launch, enum th_contract_fault fault, th_backend_line line,
                                     void *context, int *broken, thespis_error *error)
{
    for (size_t number = 0;; number++) {
        struct th_subject subject = {0};
        int there = 0;
        thespis_status status = th_subject_make(number, launch, &subject, &there, error);
        if (status == THESPIS_OK && there) status = check_subject(&subject, fault, line, context, broken, error);
        th_subject_free(&subject);
        if (status != THESPIS_OK || !there) return status;
        if (fault != TH_CONTRACT_SOUND && *broken > 0) return THESPIS_OK; /* the gate has shown that it can fail */
    }
}

static void check_limits(enum th_contract_fault fault, th_backend_line line, void *context, int *broken)
{
    thespis_error error;
    char text[640];
    const struct th_cuda_kernel absurd = {"planted", NULL, 1 << 20, 0}, *list;
    int kernels = 0;
    for (size_t i = 0; (list = th_cuda_kernel_list(i)) != NULL; i++)
        for (; list->name != NULL; list++) {
            struct th_cuda_kernel kernel = *list;
            if (fault == TH_CONTRACT_LIMITS_FAULT) kernel.threads = absurd.threads;
            kernels++;
            if (th_cuda_check_kernel(&kernel, &error) == THESPIS_OK) continue;
            snprintf(text, sizeof text, "limits is broken: %s", error.message);
            line(context, text);
            ++*broken;
        }
    snprintf(text, sizeof text, "limits of %d kernels asked of the driver", kernels);
    line(context, text);
}

thespis_status th_cuda_check_kernels(int device, int fault, th_backend_line line, void *context, int *broken, thespis_error *error)
{
    struct th_cuda_launch launch = {0};
    *broken = 0;
    TH_CUDA(cudaSetDevice(device), "choosing the device", error);
    TH_CUDA(cudaStreamCreate(&launch.stream), "a stream", error);
#ifndef TH_CUDA_EMU
    int major = 0;
    launch.early = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
#endif
    check_limits((enum th_contract_fault)fault, line, context, broken);
    thespis_status status = THESPIS_OK;
    if (fault != TH_CONTRACT_LIMITS_FAULT)
        status = check_subjects(&launch, (enum th_contract_fault)fault, line, context, broken, error);
    cudaStreamDestroy(launch.stream);
    return status;
}

void th_cuda_list_kernels(th_backend_line line, void *context)
{
    const struct th_cuda_kernel *list;
    for (size_t i = 0; (list = th_cuda_kernel_list(i)) != NULL; i++)
        for (; list->name != NULL; list++) {
            char text[300];
            snprintf(text, sizeof text, "%d %zu %s", list->threads, list->shared, list->name);
            line(context, text);
        }
}
