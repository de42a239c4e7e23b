/* spectrogram.c - see spectrogram.h. Transforms by kissfft. */
#include "audio/spectrogram.h"

#include <kissfft/kiss_fftr.h>
#include <math.h>

#include "base/memory.h"

#define WINDOW 2048
#define BINS (WINDOW / 2 + 1)
#define MOST_SIDE 16384
#define PI 3.14159265358979323846

struct work {
    const float *samples;
    size_t count;
    int rate;
    kiss_fftr_cfg fft;
    float hann[WINDOW], windowed[WINDOW];
    kiss_fft_cpx bins[BINS];
    float power[BINS]; /* the largest of a column's windows; 1: a full sine */
};

double th_spectrogram_edge(const struct th_spectrogram *s, double b)
{
    return TH_SPECTROGRAM_LOW * pow(s->high / TH_SPECTROGRAM_LOW, b / s->bands);
}

/* The window around sample `centre`; silence lies before and after the sound. */
static void add_window(struct work *w, int64_t centre)
{
    for (int i = 0; i < WINDOW; i++) {
        int64_t at = centre - WINDOW / 2 + i;
        float sample = at >= 0 && at < (int64_t)w->count ? w->samples[at] : 0;
        w->windowed[i] = isfinite(sample) ? sample * w->hann[i] : 0;
    }
    kiss_fftr(w->fft, w->windowed, w->bins);
    const float full = (WINDOW / 4.0f) * (WINDOW / 4.0f); /* a Hann window halves a sine's WINDOW / 2 */
    for (int k = 0; k < BINS; k++) {
        float power = (w->bins[k].r * w->bins[k].r + w->bins[k].i * w->bins[k].i) / full;
        if (power > w->power[k]) w->power[k] = power;
    }
}

/* Windows of column c, half a window apart or one in its middle. */
static void add_column(struct work *w, const struct th_spectrogram *s, int c)
{
    double begin = (double)w->count * c / s->columns, end = (double)w->count * (c + 1) / s->columns;
    int windows = 1 + (int)((end - begin) / (WINDOW / 2.0));
    for (int k = 0; k < BINS; k++) w->power[k] = 0;
    for (int i = 0; i < windows; i++) add_window(w, (int64_t)(begin + (end - begin) * (i + 0.5) / windows));
}

/* The loudest bin between the edges, or the one nearest to the middle of a band narrower than a bin. */
static float band_level(const struct work *w, const struct th_spectrogram *s, int b)
{
    double width = (double)w->rate / WINDOW;
    int first = (int)ceil(th_spectrogram_edge(s, b) / width), last = (int)floor(th_spectrogram_edge(s, b + 1) / width);
    if (first > last) first = last = (int)lrint(th_spectrogram_edge(s, b + 0.5) / width);
    float most = 0;
    for (int k = first; k <= last && k < BINS; k++)
        if (w->power[k] > most) most = w->power[k];
    float level = most > 0 ? 10 * log10f(most) : TH_SPECTROGRAM_FLOOR;
    return level < TH_SPECTROGRAM_FLOOR ? TH_SPECTROGRAM_FLOOR : level > 0 ? 0 : level;
}

static thespis_status fill(struct work *w, struct th_spectrogram *s, thespis_error *error)
{
    w->fft = kiss_fftr_alloc(WINDOW, 0, NULL, NULL);
    if (w->fft == NULL) return th_fail_memory(error, "a transform", WINDOW);
    for (int i = 0; i < WINDOW; i++) w->hann[i] = (float)(0.5 - 0.5 * cos(2 * PI * i / WINDOW));
    for (int c = 0; c < s->columns; c++) {
        add_column(w, s, c);
        for (int b = 0; b < s->bands; b++) s->level[(size_t)c * (size_t)s->bands + (size_t)b] = band_level(w, s, b);
    }
    kiss_fftr_free(w->fft);
    return THESPIS_OK;
}

thespis_status th_spectrogram_make(const float *samples, size_t count, int rate, int columns, int bands, struct th_spectrogram *out,
                                   thespis_error *error)
{
    *out = (struct th_spectrogram){0};
    if (count == 0 || rate < 1000) return th_fail(error, THESPIS_INVALID, "a spectrogram of %zu samples at %d Hz", count, rate);
    if (columns < 1 || columns > MOST_SIDE || bands < 1 || bands > MOST_SIDE)
        return th_fail(error, THESPIS_INVALID, "a spectrogram of %d columns and %d bands: each must be 1 to %d", columns, bands,
                       MOST_SIDE);
    double high = rate / 2.0 < TH_SPECTROGRAM_HIGH ? rate / 2.0 : TH_SPECTROGRAM_HIGH;
    struct work *w;
    TH_TRY(TH_ALLOC(&w, 1, "a spectrogram", error));
    *out = (struct th_spectrogram){.columns = columns, .bands = bands, .high = high};
    w->samples = samples;
    w->count = count;
    w->rate = rate;
    thespis_status status = TH_ALLOC(&out->level, (size_t)columns * (size_t)bands, "a spectrogram", error);
    if (status == THESPIS_OK) status = fill(w, out, error);
    th_free(w);
    if (status != THESPIS_OK) th_spectrogram_free(out);
    return status;
}

void th_spectrogram_free(struct th_spectrogram *s)
{
    th_free(s->level);
    *s = (struct th_spectrogram){0};
}
