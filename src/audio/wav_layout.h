/* wav_layout.h - where the samples of a WAV file lie and how they are stored, so that readers can decode them a block at a time. */
#ifndef THESPIS_AUDIO_WAV_LAYOUT_H
#define THESPIS_AUDIO_WAV_LAYOUT_H

#include "base/error.h"

enum th_wav_encoding { TH_WAV_U8, TH_WAV_S16, TH_WAV_S24, TH_WAV_S32, TH_WAV_F32, TH_WAV_F64 };

struct th_wav_layout {
    const uint8_t *data; /* [frames][channels] items, inside the file's bytes */
    size_t frames;
    int channels, rate;
    enum th_wav_encoding encoding;
    int item_size; /* bytes of one sample of one channel */
};
/* Finds format and samples with every rule of people's files; see th_wav_parse for the statuses. */
thespis_status th_wav_find(const void *bytes, size_t count, const char *name, struct th_wav_layout *layout, thespis_error *error);
/* Frames first..first+frames-1 as floats [frames][channels]: integers over 2^(bits-1), floats as they are. */
void th_wav_decode(const struct th_wav_layout *layout, size_t first, size_t frames, float *samples);
/* THESPIS_FORMAT when one of the samples is NaN or infinite. */
thespis_status th_check_finite(const float *samples, size_t count, const char *name, thespis_error *error);
/* THESPIS_LIMIT when frames at this rate last longer than max_seconds (<= 0: no limit). */
thespis_status th_check_seconds(double frames, int rate, double max_seconds, const char *name, thespis_error *error);

#endif
