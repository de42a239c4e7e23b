/* resample.h - the windowed-sinc resampler of torchaudio's function form (Hann, width 6, rolloff 0.99), its kernel in fp32. */
#ifndef THESPIS_AUDIO_RESAMPLE_H
#define THESPIS_AUDIO_RESAMPLE_H

#include "base/error.h"

/* *out is freed with th_free. Equal rates copy. */
thespis_status th_resample(const float *in, size_t count, int in_rate, int out_rate, float **out, size_t *out_count,
                           thespis_error *error);
/* ceil of n*N/o as the reference rounds it. */
size_t th_resample_length(size_t count, int in_rate, int out_rate);

#endif
