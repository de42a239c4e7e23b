/* codec_kernels.c - the table of one instruction set. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/codec.h"

const struct th_codec_kernels TH_NAME(th_codec_kernels) = {
    .conv = TH_NAME(th_codec_conv),
    .linear = TH_NAME(th_codec_linear),
    .norm = TH_NAME(th_codec_norm),
    .depthwise = TH_NAME(th_codec_depthwise),
    .attention = TH_NAME(th_codec_attention),
    .snake_rows = TH_NAME(th_codec_snake_rows),
    .turn = TH_NAME(th_codec_turn),
    .unturn = TH_NAME(th_codec_unturn),
    .phases = TH_NAME(th_codec_phases),
    .tanh = TH_NAME(th_codec_tanh),
    .lookup = TH_NAME(th_codec_lookup),
    .quantise = TH_NAME(th_codec_quantise),
    .vmath = TH_NAME(th_codec_vmath),
};
