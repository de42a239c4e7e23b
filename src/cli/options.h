/* options.h - the one table of options: it parses command lines and prints help, and whatever else describes options is made from
 * it. */
#ifndef THESPIS_CLI_OPTIONS_H
#define THESPIS_CLI_OPTIONS_H

#include <stdio.h>

#include "server/server.h"

/* The commands, as bits: an option names the commands that know it. */
enum {
    CLI_SPEAK = 1,
    CLI_ENCODE = 2,
    CLI_DECODE = 4,
    CLI_INSPECT = 8,
    CLI_CHECK = 16,
    CLI_CONVERT = 32,
    CLI_VOICE = 64,
    CLI_BENCH = 128,
    CLI_SERVE = 256
};

/* Everything a command line can say. Strings belong to argv. */
struct cli_settings {
    const char *checkpoint, *codec, *backend, *precision, *isa;
    int device, threads, lanes, max_rows, prefill_rows, no_act_quant, figures;

    const char *refs[THESPIS_MAX_SPEAKERS], *ref_texts[THESPIS_MAX_SPEAKERS];
    int ref_count;
    const char *voice, *voices, *language;
    int replace;
    const char *speak_option; /* the last option given that `voice` knows only for `say` */
    const char *text_file;
    double temperature, top_p;
    int64_t top_k, seed; /* seed -1: drawn */
    int greedy, max_frames, first_chunk, chunk, strict_text;
    const char *granularity, *srt, *batch;
    int chunk_bytes, no_history, guard, voice_slots;

    const char *out, *format; /* format NULL: by the ending of out */
    int sample_rate, bitrate;
    const char *plot;
    int spectrogram;
    double max_seconds;

    const char *frames, *layer_local, *against, *check_codec;
    int generate;

    struct th_server_options server; /* of serve, but for what others have too */
    const char *config;
    char *config_text; /* owned: what options from the file point to */

    int json, quiet, help;

    const char *words[8]; /* what is left: positional arguments */
    int word_count;
};

struct cli_command {
    const char *name;
    int bit;
    const char *usage;   /* after "thespis " */
    const char *summary; /* one line */
    const char *text;    /* a paragraph or two, lines broken */
    const char *examples;
    int (*run)(const struct cli_settings *settings);
};

/* Fills *settings with defaults, then from the file that --config names, then from argv[0..argc-1]. Returns 0, or -1 with one line
 * in message. What it holds is released by cli_release. */
int cli_parse(const struct cli_command *command, int argc, char **argv, struct cli_settings *settings, char message[300]);
void cli_release(struct cli_settings *settings);
void cli_help(FILE *out, const struct cli_command *command);

/* What else is made from the table (man pages, shell completion) sees an option like this. */
struct cli_option_info {
    const char *group, *name;  /* "Voice", "--voice" */
    const char *value;         /* "NAME", "FILE", "DIR", ...; NULL: a flag */
    const char *choice, *help; /* choice "a b c", or NULL */
    const char *initial;       /* what holds when it is not given, or NULL */
};
/* Option `index` of a command, 0, 1, ... in the table's order. Returns 0 behind the last. */
int cli_option_at(const struct cli_command *command, size_t index, struct cli_option_info *info);

/* common.c: what commands share. */

/* Prints "thespis: MESSAGE" and returns 1, the exit status of every failure. */
int cli_fail(const thespis_error *error);
/* Bad use: prints one line and how to get help; returns 2. */
int cli_misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Bad use, when what `option` (--out, --srt) names is a file that the command reads: 2, otherwise 0. Either may be NULL or "-". */
int cli_replaces(const char *option, const char *out, const char *input);
/* Engine options from settings. codec_only: no model is opened when --codec is given. Returns 0, or 2 after telling. */
int cli_engine_options(const struct cli_settings *settings, int codec_only, thespis_engine_options *options);
/* The checkpoint's folder: as given, by the environment, or the shipped one; NULL when there is none. */
const char *cli_checkpoint(const struct cli_settings *settings);
/* The stored voice of that name; *voice is NULL for name NULL. The caller frees it. */
thespis_status cli_voice_of(const struct cli_settings *settings, thespis_engine *engine, const char *name, thespis_voice **voice,
                            thespis_error *error);
thespis_granularity cli_granularity(const struct cli_settings *settings);
/* Is there someone watching standard error? Progress is drawn only then, and not with --quiet. */
int cli_watched(const struct cli_settings *settings);
/* Draws "job 42 % 3.1 s left"; done == total clears the line. A thespis_progress. */
struct cli_progress {
    double started, drawn;
    const char *job;
};
void cli_progress_draw(void *context, const char *job, uint64_t done, uint64_t total);

int cli_speak(const struct cli_settings *settings);
int cli_encode(const struct cli_settings *settings);
int cli_decode(const struct cli_settings *settings);
int cli_inspect(const struct cli_settings *settings);
int cli_check(const struct cli_settings *settings);
int cli_convert(const struct cli_settings *settings);
int cli_bench(const struct cli_settings *settings);
int cli_voice(const struct cli_settings *settings);
int cli_serve(const struct cli_settings *settings);

/* The commands in the order of help, ended by a NULL name. */
extern const struct cli_command cli_commands[];

#endif
