/* decode.c - `thespis decode`: codes become audio, window by window. */
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "cli/interrupt.h"
#include "cli/take.h"

#define MOST_FRAMES 64

struct job {
    const struct cli_settings *settings;
    thespis_engine *engine;
    thespis_decoder *decoder;
    struct th_codes codes;
    struct th_sound_file sound;
    int sound_open, watch;
    struct cli_progress progress;
};

static int window(const struct job *j, size_t done)
{
    const struct cli_settings *s = j->settings;
    size_t left = j->codes.frames - done;
    int n = done == 0 && s->first_chunk > 0 ? s->first_chunk : s->chunk > 0 ? s->chunk : MOST_FRAMES;
    return left < (size_t)n ? (int)left : n;
}

static thespis_status run(struct job *j, thespis_error *error)
{
    thespis_engine_info info = {.size = sizeof info};
    TH_TRY(thespis_engine_get_info(j->engine, &info, error));
    TH_TRY(th_codes_read(j->settings->words[0], info.codebooks, INT32_MAX, &j->codes, error));
    TH_TRY(thespis_decoder_new(j->engine, &j->decoder, error));
    TH_TRY(cli_sound_open(j->settings, j->settings->out, &j->sound, error));
    j->sound_open = 1;
    j->watch = cli_watch_part(j->sound.writer.output.part);
    float *samples;
    TH_TRY(TH_ALLOC(&samples, (size_t)MOST_FRAMES * THESPIS_FRAME_SAMPLES, "samples", error));
    thespis_status status = THESPIS_OK;
    for (size_t done = 0; done < j->codes.frames && status == THESPIS_OK;) {
        int n = window(j, done);
        status = thespis_decoder_push(j->decoder, j->codes.codes, j->codes.frames, done, (size_t)n, samples, error);
        if (status == THESPIS_OK) status = th_sound_file_write(&j->sound, samples, (size_t)n * THESPIS_FRAME_SAMPLES, error);
        done += (size_t)n;
        if (cli_watched(j->settings)) cli_progress_draw(&j->progress, "decode", done, j->codes.frames);
    }
    th_free(samples);
    if (status != THESPIS_OK) return status;
    j->sound_open = 0;
    return th_sound_file_close(&j->sound, error);
}

int cli_decode(const struct cli_settings *settings)
{
    if (settings->word_count != 1) return cli_misuse("decode takes one file of CODES");
    if (cli_replaces("--out", settings->out, settings->words[0]) != 0) return 2;
    if (strcmp(settings->out, "-") == 0 && isatty(STDOUT_FILENO))
        return cli_misuse("audio is not written to a terminal: give --out FILE");
    thespis_engine_options options;
    int bad = cli_engine_options(settings, 1, &options);
    if (bad != 0) return bad;
    struct job j = {.settings = settings, .watch = -1};
    thespis_error error;
    thespis_status status = thespis_engine_open(&options, &j.engine, &error);
    if (status == THESPIS_OK) status = run(&j, &error);
    if (j.sound_open) th_sound_file_discard(&j.sound);
    cli_unwatch_part(j.watch);
    if (status == THESPIS_OK && !settings->quiet)
        fprintf(stderr, "%zu frames, %.2f s of audio\n", j.codes.frames,
                (double)j.codes.frames * THESPIS_FRAME_SAMPLES / THESPIS_SAMPLE_RATE);
    thespis_decoder_free(j.decoder);
    thespis_engine_close(j.engine);
    th_free(j.codes.codes);
    return status == THESPIS_OK ? 0 : cli_fail(&error);
}
