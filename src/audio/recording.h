/* recording.h - recordings that people bring, as mono samples at 44,100 Hz. */
#ifndef THESPIS_AUDIO_RECORDING_H
#define THESPIS_AUDIO_RECORDING_H

#include "base/error.h"

#define TH_RATE_MIN 1000
#define TH_RATE_MAX 768000
#define TH_RECORDING_MAX_FILE ((size_t)1 << 30) /* bytes */

/* Mono, 44,100 Hz; samples are freed with th_recording_free. */
struct th_recording {
    float *samples;
    size_t count;
    int source_rate, source_channels;
    char container[24]; /* "WAV", "FLAC", "MP3", ... */
};

/* Reads by content, averages channels in fp32, resamples as the reference does. max_seconds <= 0: no limit; the limit holds while
 * decoding, so that memory stays bounded whatever the file says. `name` is how messages call it. */
thespis_status th_recording_read_file(const char *path, double max_seconds, struct th_recording *recording, thespis_error *error);
thespis_status th_recording_read_bytes(const void *bytes, size_t count, const char *name, double max_seconds,
                                       struct th_recording *recording, thespis_error *error);
void th_recording_free(struct th_recording *recording);

#endif
