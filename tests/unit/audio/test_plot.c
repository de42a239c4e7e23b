/* test_plot.c - pictures: levels of known sounds in the right place, what is drawn where, PNG files that another reader reads back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "audio/plot.h"
#include "audio/spectrogram.h"
#include "base/memory.h"

#define RATE 44100
#define COUNT (2 * RATE)

static thespis_error error;
static float sound[COUNT];

/* A sine of a frequency from begin to end, silence elsewhere. */
static void make_sine(double hertz, double amplitude, size_t begin, size_t end)
{
    memset(sound, 0, sizeof sound);
    for (size_t i = begin; i < end; i++) sound[i] = (float)(amplitude * sin(2 * 3.14159265358979 * hertz * (double)i / RATE));
}

static int loudest_band(const struct th_spectrogram *g, int column)
{
    int best = 0;
    for (int b = 1; b < g->bands; b++)
        if (g->level[column * g->bands + b] > g->level[column * g->bands + best]) best = b;
    return best;
}

static void a_sine_lies_in_its_band(void **state)
{
    static const double pitches[] = {110, 440, 1000, 5000, 12000};
    (void)state;
    for (int i = 0; i < 5; i++) {
        struct th_spectrogram g;
        make_sine(pitches[i], 0.5, 0, COUNT);
        assert_int_equal(th_spectrogram_make(sound, COUNT, RATE, 40, 48, &g, &error), THESPIS_OK);
        int band = loudest_band(&g, 20);
        /* 21.5 Hz is a bin: a low tone may come to lie beside its band. */
        assert_true(th_spectrogram_edge(&g, band) - 22 <= pitches[i] && pitches[i] <= th_spectrogram_edge(&g, band + 1) + 22);
        float level = g.level[20 * 48 + band];
        if (level < -8.0f || level > -5.9f) fail_msg("%g Hz at half of full scale has %g dB", pitches[i], (double)level);
        th_spectrogram_free(&g);
    }
}

static void time_runs_from_left_to_right(void **state)
{
    struct th_spectrogram g;
    (void)state;
    make_sine(1000, 0.9, COUNT / 2, COUNT);
    assert_int_equal(th_spectrogram_make(sound, COUNT, RATE, 40, 48, &g, &error), THESPIS_OK);
    for (int c = 0; c < 40; c++) {
        float level = g.level[c * 48 + loudest_band(&g, c)];
        if (c < 19 && level != TH_SPECTROGRAM_FLOOR) fail_msg("column %d of silence has %g dB", c, (double)level);
        if (c > 20 && level < -3) fail_msg("column %d of a sine has %g dB", c, (double)level);
    }
    th_spectrogram_free(&g);
}

static void odd_sounds_are_drawn(void **state)
{
    (void)state;
    struct th_spectrogram g;
    struct th_image image;
    make_sine(1000, 0.5, 0, COUNT);
    sound[5] = NAN;
    sound[6] = INFINITY;
    static const size_t counts[] = {1, 2, 2047, COUNT};
    for (int i = 0; i < 4; i++) {
        const struct th_plot_sound s = {sound, counts[i], RATE, NULL, 0};
        char *text;
        assert_int_equal(th_spectrogram_make(sound, counts[i], RATE, 7, 5, &g, &error), THESPIS_OK);
        for (int k = 0; k < 35; k++) assert_true(g.level[k] >= TH_SPECTROGRAM_FLOOR && g.level[k] <= 0);
        th_spectrogram_free(&g);
        assert_int_equal(th_plot_sound(&s, &image, &error), THESPIS_OK);
        th_image_free(&image);
        assert_int_equal(th_plot_sound_text(&s, 80, i % 2, &text, &error), THESPIS_OK);
        th_free(text);
    }
    assert_int_equal(th_spectrogram_make(sound, 0, RATE, 7, 5, &g, &error), THESPIS_INVALID);
    assert_int_equal(th_spectrogram_make(sound, 9, RATE, 0, 5, &g, &error), THESPIS_INVALID);
    assert_int_equal(th_spectrogram_make(sound, 9, 10, 7, 5, &g, &error), THESPIS_INVALID);
    assert_int_equal(th_image_new(0, 5, (struct th_colour){0, 0, 0}, &image, &error), THESPIS_INVALID);
    assert_int_equal(th_image_new(5, TH_IMAGE_MOST + 1, (struct th_colour){0, 0, 0}, &image, &error), THESPIS_INVALID);
}

/* ---- images ------------------------------------------------------------------------------------------------------------------ */

static int is(struct th_colour a, struct th_colour b)
{
    return a.red == b.red && a.green == b.green && a.blue == b.blue;
}

static int count_colour(const struct th_image *image, struct th_colour colour)
{
    int count = 0;
    for (int i = 0; i < image->width * image->height; i++) count += is(image->pixels[i], colour);
    return count;
}

static void nothing_is_drawn_outside(void **state)
{
    static const struct th_colour black = {0, 0, 0}, white = {255, 255, 255};
    struct th_image image;
    (void)state;
    assert_int_equal(th_image_new(10, 6, black, &image, &error), THESPIS_OK);
    th_image_fill(&image, -5, -5, 7, 7, white);
    assert_int_equal(count_colour(&image, white), 4);
    th_image_fill(&image, 8, 4, 100, 100, white);
    assert_int_equal(count_colour(&image, white), 8);
    th_image_fill(&image, 20, 20, 5, 5, white);
    th_image_fill(&image, 0, 0, 0, 5, white);
    assert_int_equal(count_colour(&image, white), 8);
    th_image_text(&image, -3, -3, "8kHz?", 2, white);
    th_image_free(&image);
    assert_int_equal(th_image_new(4, 6, black, &image, &error), THESPIS_OK);
    th_image_text(&image, 0, 0, "1", 1, white);
    assert_int_equal(count_colour(&image, white), 8); /* .#. ##. .#. .#. ### */
    assert_int_equal(th_image_text_width("12", 2), 14);
    th_image_free(&image);
}

/* Reads a file back with libpng's simple interface. */
static void assert_reads_back(const char *path, const struct th_image *want)
{
    png_image png = {.version = PNG_IMAGE_VERSION};
    assert_true(png_image_begin_read_from_file(&png, path));
    png.format = PNG_FORMAT_RGB;
    assert_int_equal(png.width, want->width);
    assert_int_equal(png.height, want->height);
    uint8_t *pixels = malloc(PNG_IMAGE_SIZE(png));
    assert_non_null(pixels);
    assert_true(png_image_finish_read(&png, NULL, pixels, 0, NULL));
    assert_memory_equal(pixels, want->pixels, PNG_IMAGE_SIZE(png));
    free(pixels);
}

static void a_file_holds_what_was_drawn(void **state)
{
    char path[] = "/tmp/thespis-plot-XXXXXX";
    struct th_output output;
    struct th_image image;
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    make_sine(700, 0.7, RATE / 2, COUNT);
    const size_t marks[] = {RATE, COUNT - 1};
    const struct th_plot_sound s = {sound, COUNT, RATE, marks, 2};
    assert_int_equal(th_plot_sound(&s, &image, &error), THESPIS_OK);
    assert_int_equal(th_output_open(path, &output, &error), THESPIS_OK);
    assert_int_equal(th_image_write_png(&image, &output, &error), THESPIS_OK);
    assert_int_equal(th_output_commit(&output, &error), THESPIS_OK);
    assert_reads_back(path, &image);
    unlink(path);

    /* A full device tells so. */
    assert_int_equal(th_output_open("/dev/full", &output, &error), THESPIS_OK);
    thespis_status status = th_image_write_png(&image, &output, &error);
    if (status == THESPIS_OK) status = th_output_commit(&output, &error);
    assert_int_equal(status, THESPIS_IO);
    assert_non_null(strstr(error.message, "No space left"));
    th_output_discard(&output);
    th_image_free(&image);
}

/* In the picture of a sound of two seconds with a mark after one, the mark stands in the middle. */
static void marks_stand_where_chunks_begin(void **state)
{
    static const struct th_colour mark = {220, 60, 50};
    struct th_image image;
    (void)state;
    make_sine(700, 0.7, 0, COUNT);
    const size_t marks[] = {COUNT / 2};
    struct th_plot_sound s = {sound, COUNT, RATE, NULL, 0};
    assert_int_equal(th_plot_sound(&s, &image, &error), THESPIS_OK);
    assert_int_equal(count_colour(&image, mark), 0);
    th_image_free(&image);
    s.marks = marks;
    s.mark_count = 1;
    assert_int_equal(th_plot_sound(&s, &image, &error), THESPIS_OK);
    assert_true(count_colour(&image, mark) > 400);
    for (int y = 20; y < 400; y++) assert_true(is(image.pixels[y * image.width + 58 + 600], mark));
    th_image_free(&image);
}

/* ---- text -------------------------------------------------------------------------------------------------------------------- */

static void lines_fit_the_terminal(void **state)
{
    static int32_t codes[10 * 1000];
    (void)state;
    make_sine(1000, 0.9, COUNT / 2, COUNT);
    const size_t marks[] = {COUNT / 2};
    const struct th_plot_sound s = {sound, COUNT, RATE, marks, 1};
    for (int i = 0; i < 10 * 1000; i++) codes[i] = i % 512;
    for (int width = 20; width <= 200; width += 60) {
        for (int what = 0; what < 2; what++) {
            char *text;
            thespis_status status = what == 0 ? th_plot_sound_text(&s, width, 0, &text, &error)
                                              : th_plot_codes_text(codes, 10, 1000, 512, width, 0, &text, &error);
            assert_int_equal(status, THESPIS_OK);
            int lines = 0;
            for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1, lines++) {
                assert_true(end - line <= width);
                for (const char *c = line; c < end; c++) assert_true(*c >= ' ' && *c < 0x7F);
            }
            assert_in_range(lines, what == 0 ? 18 : 10, what == 0 ? 18 : 24 * 11 + 1);
            assert_int_equal(text[strlen(text) - 1], '\n');
            th_free(text);
        }
    }
    /* The second half is not blank, in one of the lines; the first is. */
    char *text;
    assert_int_equal(th_plot_sound_text(&s, 86, 0, &text, &error), THESPIS_OK);
    int left = 0, right = 0, row = 0;
    for (char *line = text, *end; row < 16; line = end + 1, row++) {
        end = strchr(line, '\n');
        for (int i = 6; i < 44; i++) left += line[i] != ' ';
        for (int i = 48; i < 86; i++) right += line[i] != ' ';
    }
    assert_int_equal(left, 0);
    assert_true(right >= 38);
    th_free(text);
}

static void allocations_may_fail(void **state)
{
    (void)state;
#ifndef TH_FAULTS
    skip();
#endif
    const struct th_plot_sound s = {sound, 5000, RATE, NULL, 0};
    int32_t codes[20] = {0};
    for (int what = 0; what < 4; what++) {
        thespis_status status = THESPIS_MEMORY;
        for (long n = 1; status != THESPIS_OK; n++) {
            struct th_image image = {0};
            char *text = NULL;
            assert_true(n < 20);
            th_memory_fail_from(n);
            if (what == 0) status = th_plot_sound(&s, &image, &error);
            if (what == 1) status = th_plot_codes(codes, 10, 2, 5, &image, &error);
            if (what == 2) status = th_plot_sound_text(&s, 80, 1, &text, &error);
            if (what == 3) status = th_plot_codes_text(codes, 10, 2, 5, 80, 1, &text, &error);
            th_memory_fail_from(0);
            if (status != THESPIS_OK) {
                assert_int_equal(status, THESPIS_MEMORY);
                assert_null(image.pixels);
                assert_null(text);
            }
            th_image_free(&image);
            th_free(text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sine_lies_in_its_band),     cmocka_unit_test(time_runs_from_left_to_right),
        cmocka_unit_test(odd_sounds_are_drawn),        cmocka_unit_test(nothing_is_drawn_outside),
        cmocka_unit_test(a_file_holds_what_was_drawn), cmocka_unit_test(marks_stand_where_chunks_begin),
        cmocka_unit_test(lines_fit_the_terminal),      cmocka_unit_test(allocations_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
