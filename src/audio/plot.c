/* plot.c - the PNG half of plot.h. */
#include "audio/plot.h"

#include <math.h>
#include <stdio.h>

#include "audio/spectrogram.h"

/* Pixels of a sound's picture. */
enum { LEFT = 58, RIGHT = 12, TOP = 12, WAVE = 140, GAP = 12, BANDS = 320, BOTTOM = 26, COLUMNS = 1200 };
enum { SCALE = 2, LETTER = 5 * SCALE };
/* And of a picture of codes. */
enum { CELL = 6, PER_ROW = 200, BETWEEN = 10 };

static const struct th_colour paper = {255, 255, 255}, ink = {60, 60, 70}, axis = {200, 200, 205}, wave = {40, 100, 140},
                              mark = {220, 60, 50};

/* The waveform's column x: from its least to its greatest sample, and at least a dot. */
static void draw_wave(const struct th_plot_sound *s, struct th_image *image)
{
    const int middle = TOP + WAVE / 2;
    th_image_fill(image, LEFT, middle, COLUMNS, 1, axis);
    for (int x = 0; x < COLUMNS; x++) {
        size_t begin = (size_t)((double)s->count * x / COLUMNS), end = (size_t)((double)s->count * (x + 1) / COLUMNS);
        float least = 0, most = 0;
        for (size_t i = begin; i < (end > begin ? end : begin + 1) && i < s->count; i++) {
            least = fminf(least, s->samples[i]);
            most = fmaxf(most, s->samples[i]);
        }
        int above = (int)lrintf(fminf(most, 1) * (WAVE / 2)), below = (int)lrintf(fminf(-least, 1) * (WAVE / 2));
        th_image_fill(image, LEFT + x, middle - above, 1, above + below + 1, wave);
    }
}

static void draw_pitches(const struct th_spectrogram *g, struct th_image *image)
{
    static const struct {
        double hertz;
        const char *name;
    } ticks[] = {{100, "100Hz"}, {300, "300Hz"}, {1000, "1kHz"}, {3000, "3kHz"}, {10000, "10kHz"}};
    const int bottom = TOP + WAVE + GAP + BANDS;
    for (size_t i = 0; i < sizeof ticks / sizeof *ticks; i++) {
        if (ticks[i].hertz >= g->high) break;
        double b = log(ticks[i].hertz / TH_SPECTROGRAM_LOW) / log(g->high / TH_SPECTROGRAM_LOW) * BANDS;
        int y = bottom - (int)lrint(b);
        th_image_fill(image, LEFT - 4, y, 4, 1, ink);
        th_image_text(image, LEFT - 6 - th_image_text_width(ticks[i].name, SCALE), y - LETTER / 2, ticks[i].name, SCALE, ink);
    }
}

static thespis_status draw_spectrogram(const struct th_plot_sound *s, struct th_image *image, thespis_error *error)
{
    struct th_spectrogram g;
    TH_TRY(th_spectrogram_make(s->samples, s->count, s->rate, COLUMNS, BANDS, &g, error));
    for (int x = 0; x < COLUMNS; x++)
        for (int b = 0; b < BANDS; b++) {
            double level = 1 - (double)g.level[(size_t)x * BANDS + (size_t)b] / TH_SPECTROGRAM_FLOOR;
            th_image_fill(image, LEFT + x, TOP + WAVE + GAP + BANDS - 1 - b, 1, 1, th_colour_scale(level));
        }
    draw_pitches(&g, image);
    th_spectrogram_free(&g);
    return THESPIS_OK;
}

/* Seconds below, at most a dozen of them, at 1, 2 or 5 times a power of ten. */
static void draw_times(double seconds, struct th_image *image)
{
    static const double steps[] = {1, 2, 5};
    double step = 0.01;
    for (int i = 0; seconds / step > 12; i++) step = 0.01 * pow(10, i / 3) * steps[i % 3];
    for (int i = 0; i * step <= seconds; i++) {
        char text[32];
        int x = LEFT + (int)lrint(i * step / seconds * COLUMNS), y = TOP + WAVE + GAP + BANDS;
        snprintf(text, sizeof text, step < 0.1 ? "%.2fs" : step < 1 ? "%.1fs" : "%.0fs", i * step);
        int width = th_image_text_width(text, SCALE), at = x - width / 2;
        th_image_fill(image, x, y, 1, 5, ink);
        if (at + width <= image->width) th_image_text(image, at, y + 9, text, SCALE, ink);
    }
}

thespis_status th_plot_sound(const struct th_plot_sound *s, struct th_image *image, thespis_error *error)
{
    TH_TRY(th_image_new(LEFT + COLUMNS + RIGHT, TOP + WAVE + GAP + BANDS + BOTTOM, paper, image, error));
    draw_wave(s, image);
    thespis_status status = draw_spectrogram(s, image, error);
    if (status != THESPIS_OK) {
        th_image_free(image);
        return status;
    }
    draw_times((double)s->count / s->rate, image);
    for (size_t i = 0; i < s->mark_count; i++) {
        int x = LEFT + (int)((double)s->marks[i] / (double)s->count * COLUMNS);
        th_image_fill(image, x, TOP, 1, WAVE + GAP + BANDS, mark);
    }
    return THESPIS_OK;
}

thespis_status th_plot_codes(const int32_t *codes, int codebooks, size_t frames, int size, struct th_image *image,
                             thespis_error *error)
{
    int columns = frames < PER_ROW ? (int)frames : PER_ROW, height = codebooks * CELL + BETWEEN;
    size_t most = (size_t)(TH_IMAGE_MOST / height) * PER_ROW, shown = frames < most ? frames : most;
    int bands = (int)((shown + PER_ROW - 1) / PER_ROW);
    TH_TRY(th_image_new(2 * BETWEEN + columns * CELL, BETWEEN + bands * height, paper, image, error));
    for (int b = 0; b < codebooks; b++)
        for (size_t f = 0; f < shown; f++) {
            int x = BETWEEN + (int)(f % PER_ROW) * CELL, y = BETWEEN + (int)(f / PER_ROW) * height + b * CELL;
            double value = (double)codes[(size_t)b * frames + f] / (size > 1 ? size - 1 : 1);
            th_image_fill(image, x, y, CELL, CELL, th_colour_scale(value));
        }
    return THESPIS_OK;
}
