/* rate.h - the sample rate of audio that goes out: soxr, fed as samples come. (Recordings that come in use resample.h, whose filter
 * is the reference's.) */
#ifndef THESPIS_AUDIO_RATE_H
#define THESPIS_AUDIO_RATE_H

#include "base/error.h"

struct th_rate;
/* Mono. The filter is linear in phase and cuts at 0.913 of the lower rate's half. */
thespis_status th_rate_open(int in_rate, int out_rate, struct th_rate **rate, thespis_error *error);
/* *out [*out_count] is what is ready; valid until the next call. The samples do not depend on how the input was cut. */
thespis_status th_rate_write(struct th_rate *rate, const float *samples, size_t count, const float **out, size_t *out_count,
                             thespis_error *error);
/* The rest: in all, th_rate_length(samples written) come out. */
thespis_status th_rate_finish(struct th_rate *rate, const float **out, size_t *out_count, thespis_error *error);
void th_rate_close(struct th_rate *rate);

/* count * out_rate / in_rate, rounded to nearest. */
uint64_t th_rate_length(uint64_t count, int in_rate, int out_rate);

#endif
