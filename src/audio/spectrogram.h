/* spectrogram.h - how loud a sound is by time and pitch. */
#ifndef THESPIS_AUDIO_SPECTROGRAM_H
#define THESPIS_AUDIO_SPECTROGRAM_H

#include "base/error.h"

#define TH_SPECTROGRAM_LOW 60.0     /* Hz at the lower edge of the lowest band */
#define TH_SPECTROGRAM_HIGH 16000.0 /* at most, at the upper edge of the highest */
#define TH_SPECTROGRAM_FLOOR (-80)  /* dB below which nothing is told apart */

struct th_spectrogram {
    int columns, bands; /* time from the first sample to the last; bands of equal ratio from low to high */
    double high;        /* Hz at the upper edge: TH_SPECTROGRAM_HIGH or half the rate */
    float *level;       /* [columns][bands]: dB from TH_SPECTROGRAM_FLOOR to 0, the level of a full sine */
};

thespis_status th_spectrogram_make(const float *samples, size_t count, int rate, int columns, int bands, struct th_spectrogram *out,
                                   thespis_error *error);
void th_spectrogram_free(struct th_spectrogram *spectrogram);

/* The edge below band b, in Hz. */
double th_spectrogram_edge(const struct th_spectrogram *spectrogram, double b);

#endif
