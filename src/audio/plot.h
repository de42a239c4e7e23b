/* plot.h - sound and codes as pictures: PNG images, and lines of text for a terminal. */
#ifndef THESPIS_AUDIO_PLOT_H
#define THESPIS_AUDIO_PLOT_H

#include "audio/image.h"

/* Mono samples, with places that are marked: beginnings of chunks. */
struct th_plot_sound {
    const float *samples; /* [count], count > 0 */
    size_t count;
    int rate;
    const size_t *marks; /* [mark_count], in samples */
    size_t mark_count;
};

/* Waveform above, spectrogram below, seconds and kHz at the edges, marks through both. */
thespis_status th_plot_sound(const struct th_plot_sound *sound, struct th_image *image, thespis_error *error);

/* Codes [codebooks][frames] of 0..size-1 as coloured cells, first codebook on top; long ones in several bands. */
thespis_status th_plot_codes(const int32_t *codes, int codebooks, size_t frames, int size, struct th_image *image,
                             thespis_error *error);

/* Lines of at most `width` columns, ended by line feeds and a zero byte; freed with th_free. With colours for terminals of 256, or
 * in plain ASCII. */
thespis_status th_plot_sound_text(const struct th_plot_sound *sound, int width, int colours, char **text, thespis_error *error);
thespis_status th_plot_codes_text(const int32_t *codes, int codebooks, size_t frames, int size, int width, int colours, char **text,
                                  thespis_error *error);

#endif
