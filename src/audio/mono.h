/* mono.h - samples on their way into a recording: mixed down block by block at the file's own rate, within limits. */
#ifndef THESPIS_AUDIO_MONO_H
#define THESPIS_AUDIO_MONO_H

#include "base/error.h"

/* A recording without a limit in seconds still ends somewhere: 2 GiB of mono samples, more than three hours at 44.1 kHz. */
#define TH_MONO_MAX ((size_t)1 << 29)
#define TH_CHANNELS_MAX 64

struct th_mono {
    const char *name; /* for messages */
    double max_seconds;
    int rate, channels; /* of the file; set before the first block */
    char container[24];
    float *samples; /* [count], room for capacity */
    size_t count, capacity;
};
/* Room for so many samples in all, so that a file of known length needs one allocation. */
thespis_status th_mono_reserve(struct th_mono *mono, size_t samples, thespis_error *error);
/* Appends the mean over channels of block [frames][channels]. */
thespis_status th_mono_add(struct th_mono *mono, const float *block, size_t frames, thespis_error *error);

/* Everything that libsndfile reads, from memory. Fills mono's rate, channels, container and samples. */
thespis_status th_sndfile_decode(const void *bytes, size_t count, struct th_mono *mono, thespis_error *error);
/* Is this an MP3, perhaps behind ID3 tags? */
int th_mp3_is(const void *bytes, size_t count);
thespis_status th_mp3_decode(const void *bytes, size_t count, struct th_mono *mono, thespis_error *error);
/* The name of the container or file kind these bytes begin with, if it is one that cannot be read; else NULL. */
const char *th_sniff_refused(const void *bytes, size_t count);

#endif
