/* codec_vmath.c - the functions of vmath.h over arrays, so that checks can hold every instruction set to the same bytes. */
#include "backend/cpu/kernels/codec.h"

void TH_NAME(th_codec_vmath)(enum th_vmath function, const float *in, float *out, int count)
{
    for (int i = 0; i < count; i += 16) {
        int n = count - i < 16 ? count - i : 16;
        v16 x = th_load(in + i, n), y;
        switch (function) {
        case TH_VMATH_EXP: y = v16_exp(x); break;
        case TH_VMATH_LOG: y = v16_log(x); break;
        case TH_VMATH_SIN: y = v16_sin(x); break;
        case TH_VMATH_TANH: y = v16_tanh(x); break;
        case TH_VMATH_ERF: y = v16_erf(x); break;
        case TH_VMATH_SIGMOID: y = v16_sigmoid(x); break;
        default: y = v16_silu(x); break;
        }
        th_store(out + i, y, n);
    }
}
