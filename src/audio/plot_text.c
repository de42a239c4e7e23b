/* plot_text.c - the terminal half of plot.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "audio/plot.h"
#include "audio/spectrogram.h"
#include "base/memory.h"

#define ROWS 16        /* lines of a spectrogram */
#define SHOWN (-60.0)  /* dB of the darkest sign: below is room noise */
#define CELL_BYTES 48  /* of one character with its colours */
#define LABEL_BYTES 16 /* at the beginning of a line */
#define LABEL_COLUMNS 6

static const char signs[] = " .:-=+*#%@";

struct lines {
    char *text;
    size_t used, room;
};

static thespis_status open_lines(struct lines *l, int rows, int columns, thespis_error *error)
{
    l->used = 0;
    l->room = (size_t)rows * ((size_t)columns * CELL_BYTES + LABEL_BYTES + 8) + 1;
    return TH_ALLOC(&l->text, l->room, "a picture", error);
}

/* The room is computed for the longest text. */
static void put(struct lines *l, const char *text)
{
    size_t n = strlen(text);
    if (n >= l->room - l->used) return;
    memcpy(l->text + l->used, text, n + 1);
    l->used += n;
}

/* A terminal's colour of 256 nearest to ours: 16 + 36 r + 6 g + b, each 0 to 5. */
static int colour_index(double value)
{
    struct th_colour c = th_colour_scale(value);
    return 16 + 36 * (c.red * 5 / 255) + 6 * (c.green * 5 / 255) + c.blue * 5 / 255;
}

static char sign_of(double value)
{
    const int last = (int)sizeof signs - 2;
    int at = (int)(value * (last + 1));
    return signs[at < 0 ? 0 : at > last ? last : at];
}

/* Two values, one over the other, as one character; without colours the greater. */
static void put_cell(struct lines *l, double upper, double lower, int colours)
{
    char cell[CELL_BYTES];
    if (colours)
        snprintf(cell, sizeof cell, "\033[38;5;%d;48;5;%dm\xE2\x96\x80", colour_index(upper), colour_index(lower));
    else
        snprintf(cell, sizeof cell, "%c", sign_of(upper > lower ? upper : lower));
    put(l, cell);
}

/* ---- sound ------------------------------------------------------------------------------------------------------------------- */

static double value_at(const struct th_spectrogram *g, int column, int band)
{
    double level = g->level[(size_t)column * (size_t)g->bands + (size_t)band];
    return level <= SHOWN ? 0 : 1 - level / SHOWN;
}

/* "10k", at the lines in which 100, 300, ... Hz lie. */
static void put_pitch(struct lines *l, const struct th_spectrogram *g, int row)
{
    static const double ticks[] = {100, 300, 1000, 3000, 10000};
    double low = th_spectrogram_edge(g, 2 * row), high = th_spectrogram_edge(g, 2 * row + 2);
    char label[LABEL_BYTES] = "      ";
    for (size_t i = 0; i < sizeof ticks / sizeof *ticks; i++)
        if (ticks[i] >= low && ticks[i] < high)
            snprintf(label, sizeof label, ticks[i] < 1000 ? "%5.0f " : "%4.0fk ", ticks[i] < 1000 ? ticks[i] : ticks[i] / 1000);
    put(l, label);
}

static void put_time(struct lines *l, double seconds, int columns)
{
    char line[64];
    int n = snprintf(line, sizeof line, "%.2f s", seconds);
    put(l, "      0");
    for (int i = 1; i < columns - n; i++) put(l, " ");
    put(l, line);
    put(l, "\n");
}

/* '|' under each mark. */
static void put_marks(struct lines *l, const struct th_plot_sound *s, int columns)
{
    size_t next = 0;
    if (s->mark_count == 0) return;
    put(l, "      ");
    for (int x = 0; x < columns && next < s->mark_count; x++) {
        size_t end = (size_t)((double)s->count * (x + 1) / columns);
        int here = 0;
        for (; next < s->mark_count && s->marks[next] < end; next++) here = 1;
        put(l, here ? "|" : " ");
    }
    put(l, "\n");
}

thespis_status th_plot_sound_text(const struct th_plot_sound *s, int width, int colours, char **text, thespis_error *error)
{
    struct th_spectrogram g;
    struct lines lines = {0};
    int columns = width - LABEL_COLUMNS < 10 ? 10 : width - LABEL_COLUMNS > 400 ? 400 : width - LABEL_COLUMNS;
    *text = NULL;
    TH_TRY(th_spectrogram_make(s->samples, s->count, s->rate, columns, 2 * ROWS, &g, error));
    thespis_status status = open_lines(&lines, ROWS + 2, columns, error);
    for (int row = ROWS - 1; row >= 0 && status == THESPIS_OK; row--) {
        put_pitch(&lines, &g, row);
        for (int x = 0; x < columns; x++) put_cell(&lines, value_at(&g, x, 2 * row + 1), value_at(&g, x, 2 * row), colours);
        put(&lines, colours ? "\033[0m\n" : "\n");
    }
    th_spectrogram_free(&g);
    if (status != THESPIS_OK) return status;
    put_marks(&lines, s, columns);
    put_time(&lines, (double)s->count / s->rate, columns);
    *text = lines.text;
    return THESPIS_OK;
}

/* ---- codes ------------------------------------------------------------------------------------------------------------------- */

thespis_status th_plot_codes_text(const int32_t *codes, int codebooks, size_t frames, int size, int width, int colours, char **text,
                                  thespis_error *error)
{
    struct lines lines = {0};
    int columns = width < 10 ? 10 : width > 400 ? 400 : width, step = colours ? 2 : 1, top = size > 1 ? size - 1 : 1;
    size_t bands = (frames + (size_t)columns - 1) / (size_t)columns, most = 24; /* more would run off the screen */
    *text = NULL;
    if (bands > most) bands = most;
    TH_TRY(open_lines(&lines, (int)bands * (codebooks + 1) + 1, columns, error));
    for (size_t band = 0; band < bands; band++) {
        size_t begin = band * (size_t)columns, end = begin + (size_t)columns < frames ? begin + (size_t)columns : frames;
        if (band > 0) put(&lines, "\n");
        for (int b = 0; b < codebooks; b += step) {
            for (size_t f = begin; f < end; f++) {
                double upper = (double)codes[(size_t)b * frames + f] / top;
                double lower = b + 1 < codebooks ? (double)codes[(size_t)(b + 1) * frames + f] / top : 0;
                put_cell(&lines, upper, colours ? lower : 0, colours);
            }
            put(&lines, colours ? "\033[0m\n" : "\n");
        }
    }
    if (bands == most && frames > most * (size_t)columns) put(&lines, "...\n");
    *text = lines.text;
    return THESPIS_OK;
}
