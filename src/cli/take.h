/* take.h - one text into one file: what speaking and batches share. */
#ifndef THESPIS_CLI_TAKE_H
#define THESPIS_CLI_TAKE_H

#include "cli/options.h"
#include "engine/files.h"

struct cli_take {
    thespis_engine *engine;
    const struct cli_settings *settings; /* drawing, streaming, format */
    const char *text;
    size_t text_bytes;
    const thespis_voice *voice;                   /* NULL: the model's own choice */
    int64_t seed;                                 /* -1: drawn */
    const char *out;                              /* audio; "-" is standard output */
    const char *srt;                              /* subtitles; NULL: none */
    void (*heard)(void *context, size_t samples); /* as audio comes; NULL: nobody asks */
    void *context;
};

/* Opens the sound file `out` as --format, --sample-rate and --bitrate say, or as the file's ending does. */
thespis_status cli_sound_open(const struct cli_settings *settings, const char *out, struct th_sound_file *sound,
                              thespis_error *error);

/* Speaks and writes. A file that could not be finished is not left under its name. */
thespis_status cli_take_run(const struct cli_take *take, thespis_outcome *outcome, thespis_error *error);

#endif
