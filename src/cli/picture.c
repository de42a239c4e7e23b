/* picture.c - see picture.h. */
#include "cli/picture.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/memory.h"
#include "cli/interrupt.h"

thespis_status cli_picture_open(const struct cli_settings *settings, struct cli_picture *p, thespis_error *error)
{
    *p = (struct cli_picture){.settings = settings, .png = {.fd = -1}, .watch = -1};
    if (settings->plot == NULL) return THESPIS_OK;
    TH_TRY(th_output_open(settings->plot, &p->png, error));
    p->watch = cli_watch_part(p->png.part);
    return THESPIS_OK;
}

thespis_status cli_picture_add(struct cli_picture *p, const float *samples, size_t count, thespis_error *error)
{
    if (p->settings->plot == NULL && !p->settings->spectrogram) return THESPIS_OK;
    if (count > p->capacity - p->count) {
        size_t capacity = p->capacity == 0 ? 1 << 18 : 2 * p->capacity;
        while (capacity - p->count < count) capacity *= 2;
        float *grown = th_realloc(p->samples, p->capacity, capacity, sizeof *grown);
        if (grown == NULL) return th_fail_memory(error, "the picture's samples", capacity * sizeof *grown);
        p->samples = grown;
        p->capacity = capacity;
    }
    memcpy(p->samples + p->count, samples, count * sizeof *samples);
    p->count += count;
    return THESPIS_OK;
}

/* Columns of the terminal, or 80. */
static int width_of(FILE *out)
{
    struct winsize size;
    return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col >= 20 ? size.ws_col - 1 : 79;
}

static thespis_status write_png(struct cli_picture *p, thespis_status drawn, struct th_image *image, thespis_error *error)
{
    if (drawn == THESPIS_OK) drawn = th_image_write_png(image, &p->png, error);
    th_image_free(image);
    return drawn == THESPIS_OK ? th_output_commit(&p->png, error) : drawn;
}

static thespis_status draw_sound(struct cli_picture *p, const struct th_plot_sound *sound, FILE *out, thespis_error *error)
{
    if (p->settings->plot != NULL) {
        struct th_image image = {0};
        TH_TRY(write_png(p, th_plot_sound(sound, &image, error), &image, error));
    }
    if (out == NULL) return THESPIS_OK;
    char *text;
    TH_TRY(th_plot_sound_text(sound, width_of(out), isatty(fileno(out)), &text, error));
    fputs(text, out);
    th_free(text);
    return THESPIS_OK;
}

/* Where chunks 1, 2, ... begin; *marks is the caller's. */
static thespis_status find_marks(const thespis_request *request, size_t **marks, size_t *count, thespis_error *error)
{
    thespis_outcome outcome = {.size = sizeof outcome};
    TH_TRY(thespis_request_get_outcome(request, &outcome, error));
    TH_TRY(TH_ALLOC(marks, (size_t)outcome.chunks, "marks", error));
    for (int i = 1; i < outcome.chunks; i++) {
        thespis_chunk_info chunk = {.size = sizeof chunk};
        TH_TRY(thespis_request_get_chunk(request, i, &chunk, error));
        if (chunk.frames > 0) (*marks)[(*count)++] = (size_t)chunk.first_frame * THESPIS_FRAME_SAMPLES;
    }
    return THESPIS_OK;
}

thespis_status cli_picture_of_request(struct cli_picture *p, const thespis_request *request, thespis_error *error)
{
    size_t *marks = NULL, count = 0;
    if (p->count == 0) return THESPIS_OK; /* not asked for, or nothing was heard */
    thespis_status status = find_marks(request, &marks, &count, error);
    struct th_plot_sound sound = {p->samples, p->count, THESPIS_SAMPLE_RATE, marks, count};
    if (status == THESPIS_OK) status = draw_sound(p, &sound, p->settings->spectrogram ? stderr : NULL, error);
    th_free(marks);
    return status;
}

thespis_status cli_picture_of_look(struct cli_picture *p, const struct th_look *look, FILE *out, thespis_error *error)
{
    struct th_plot_sound sound = {look->samples, look->count, THESPIS_SAMPLE_RATE, NULL, 0};
    if (look->codes == NULL) return draw_sound(p, &sound, out, error);
    if (p->settings->plot != NULL) {
        struct th_image image = {0};
        thespis_status drawn = th_plot_codes(look->codes, look->codebooks, look->frames, look->codebook_size, &image, error);
        TH_TRY(write_png(p, drawn, &image, error));
    }
    if (out == NULL) return THESPIS_OK;
    char *text;
    TH_TRY(th_plot_codes_text(look->codes, look->codebooks, look->frames, look->codebook_size, width_of(out), isatty(fileno(out)),
                              &text, error));
    fputs(text, out);
    th_free(text);
    return THESPIS_OK;
}

void cli_picture_close(struct cli_picture *p)
{
    th_output_discard(&p->png);
    cli_unwatch_part(p->watch);
    th_free(p->samples);
    p->samples = NULL;
}
