/* contract.h - what every kernel that computes columns promises, checked on the device at hand (`thespis check kernels`):
 *
 *   class   a NaN or an infinity in one column shows in that column as float64 says, and no other column changes
 *   repeat  the same call gives the same bytes
 *   edge    odd shapes agree with float64 within a stated bound
 *   order   a column's bytes do not depend on how many others there are, where it stands, or what they hold
 *   limits  the device can launch every kernel as it is registered (kernels.h)
 *
 * A subject is one launcher at one shape. */
#ifndef THESPIS_BACKEND_CUDA_CONTRACT_H
#define THESPIS_BACKEND_CUDA_CONTRACT_H

#include "backend/backend.h"
#include "backend/cuda/runtime.h"

/* Mistakes that tests plant, one for each gate: results are spoilt on their way to the comparison. */
enum th_contract_fault {
    TH_CONTRACT_SOUND,
    TH_CONTRACT_CLASS_FAULT,
    TH_CONTRACT_REPEAT_FAULT,
    TH_CONTRACT_EDGE_FAULT,
    TH_CONTRACT_ORDER_FAULT,
    TH_CONTRACT_LIMITS_FAULT
};

#define TH_CONTRACT_MOST_COLUMNS 150

struct th_subject {
    char name[80];
    int cols;         /* bf16 inputs of a column */
    int width;        /* values of a column's result, as floats */
    int most_columns; /* <= TH_CONTRACT_MOST_COLUMNS */
    const struct th_cuda_launch *launch;
    /* x bf16 [n][cols] to y float [n][width]; both on the host */
    thespis_status (*run)(const struct th_subject *subject, int n, const uint16_t *x, float *y, thespis_error *error);
    /* One column in float64; slack[i]: how far y[i] may be away. NULL: no reference, the edge gate is left to the unit tests. */
    void (*reference)(const struct th_subject *subject, const uint16_t *x, double *y, double *slack);
    void *own; /* the subject's weights and so on */
};

/* subjects.c: the subjects of every shape, made one after another: number 0, 1, ...; *there = 0 behind the last. */
thespis_status th_subject_make(size_t number, const struct th_cuda_launch *launch, struct th_subject *subject, int *there,
                               thespis_error *error);
void th_subject_free(struct th_subject *subject);

/* Deterministic bf16 values, roughly uniform in -1..1. */
uint16_t th_subject_value(uint32_t seed, size_t i);

#endif
