/* lm_kernels.c - the table of one instruction set. */
#include "backend/cpu/kernels/lm_parts.h"

extern const struct th_lm_kernels TH_NAME(th_lm_kernels);

const struct th_lm_kernels TH_NAME(th_lm_kernels) = {
    .product = TH_NAME(th_lm_product),
    .norm = TH_NAME(th_lm_norm),
    .add = TH_NAME(th_lm_add),
    .silu_mul = TH_NAME(th_lm_silu_mul),
    .sigmoid_mul = TH_NAME(th_lm_sigmoid_mul),
    .mix = TH_NAME(th_lm_mix),
    .quantise = TH_NAME(th_lm_quantise),
    .route = TH_NAME(th_lm_route),
    .attend = TH_NAME(th_lm_attend),
    .convolve = TH_NAME(th_lm_convolve),
    .unit = TH_NAME(th_lm_unit),
    .delta_gates = TH_NAME(th_lm_delta_gates),
    .delta = TH_NAME(th_lm_delta),
    .gated_norm = TH_NAME(th_lm_gated_norm),
    .sigmoid = TH_NAME(th_lm_sigmoid),
};
