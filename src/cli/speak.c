/* speak.c - `thespis speak`: text in, audio out while it is being made. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "cli/batch.h"
#include "cli/take.h"

#define MOST_TEXT ((size_t)16 << 20)

/* What speaking holds; all of it is released by close_all. */
struct speech {
    const struct cli_settings *settings;
    char *text; /* owned */
    size_t text_bytes;
    thespis_engine *engine;
    thespis_voice *voice;
    thespis_outcome outcome;
    struct cli_progress progress;
    double speaking; /* since when */
};

static thespis_status read_stream(FILE *in, struct speech *s, thespis_error *error)
{
    size_t capacity = 65536;
    s->text = malloc(capacity);
    while (s->text != NULL) {
        s->text_bytes += fread(s->text + s->text_bytes, 1, capacity - s->text_bytes, in);
        if (ferror(in)) return th_fail_errno(error, "cannot read the text");
        if (s->text_bytes < capacity) return THESPIS_OK;
        if (capacity >= MOST_TEXT) return th_fail(error, THESPIS_LIMIT, "the text has more than %zu bytes", MOST_TEXT);
        char *grown = realloc(s->text, capacity *= 2);
        if (grown == NULL) break;
        s->text = grown;
    }
    return th_fail_memory(error, "the text", capacity);
}

static thespis_status read_text(struct speech *s, thespis_error *error)
{
    const struct cli_settings *o = s->settings;
    if (o->word_count == 1) {
        s->text_bytes = strlen(o->words[0]);
        s->text = strdup(o->words[0]);
        return s->text != NULL ? THESPIS_OK : th_fail_memory(error, "the text", s->text_bytes);
    }
    if (o->text_file == NULL || strcmp(o->text_file, "-") == 0) return read_stream(stdin, s, error);
    FILE *in = fopen(o->text_file, "rb");
    if (in == NULL) return th_fail_errno(error, "cannot open '%s'", o->text_file);
    thespis_status status = read_stream(in, s, error);
    fclose(in);
    return status;
}

/* References in order; a .npy or .json holds codes. */
static thespis_status make_voice(struct speech *s, thespis_error *error)
{
    const struct cli_settings *o = s->settings;
    if (o->voice != NULL) return cli_voice_of(o, s->engine, o->voice, &s->voice, error);
    if (o->ref_count == 0) return THESPIS_OK;
    TH_TRY(thespis_voice_new(s->engine, &s->voice, error));
    for (int i = 0; i < o->ref_count; i++) {
        const char *text = o->ref_texts[i] != NULL ? o->ref_texts[i] : "";
        thespis_status status = th_voice_add_any(s->voice, o->refs[i], text, strlen(text), error);
        if (status != THESPIS_OK) return status;
        if (text[0] == '\0' && !o->quiet)
            fprintf(stderr, "thespis: '%s' has no --ref-text: the voice will be less like it\n", o->refs[i]);
    }
    return THESPIS_OK;
}

/* How long it takes is known only at the end, so this tells what is there and how fast it comes. */
static void draw_progress(void *context, size_t samples)
{
    struct speech *s = context;
    double now = th_now(), audio = (double)samples / THESPIS_SAMPLE_RATE;
    if (now - s->progress.drawn < 0.1) return;
    s->progress.drawn = now;
    fprintf(stderr, "\rspeaking: %.1f s of audio, %.1fx real time\033[K", audio, audio / (now - s->speaking));
}

/* The closing line: what came out, how fast, why it ended, and the seed that repeats it. */
static void tell(const struct speech *s)
{
    const thespis_outcome *o = &s->outcome;
    if (s->settings->quiet) return;
    double audio = (double)o->frames * THESPIS_FRAME_SAMPLES / THESPIS_SAMPLE_RATE;
    if (cli_watched(s->settings)) fputs("\r\033[K", stderr);
    if (o->chunks > 1) fprintf(stderr, "%d chunks, ", o->chunks);
    fprintf(stderr, "%d frames, %.2f s of audio, first audio after %.2f s, %.2fx real time, %s, seed %llu\n", o->frames, audio,
            o->first_audio_seconds, o->total_seconds > 0 ? audio / o->total_seconds : 0, thespis_finish_name(o->finish),
            (unsigned long long)o->seed);
}

static thespis_status speak(struct speech *s, const thespis_engine_options *options, thespis_error *error)
{
    TH_TRY(read_text(s, error));
    TH_TRY(thespis_engine_open(options, &s->engine, error));
    TH_TRY(make_voice(s, error));
    s->speaking = th_now();
    struct cli_take take = {.engine = s->engine,
                            .settings = s->settings,
                            .text = s->text,
                            .text_bytes = s->text_bytes,
                            .voice = s->voice,
                            .seed = s->settings->seed,
                            .out = s->settings->out,
                            .srt = s->settings->srt,
                            .heard = cli_watched(s->settings) ? draw_progress : NULL,
                            .context = s};
    return cli_take_run(&take, &s->outcome, error);
}

static void close_all(struct speech *s)
{
    thespis_voice_free(s->voice);
    thespis_engine_close(s->engine);
    free(s->text);
}

static int one_file(const char *a, const char *b)
{
    char *first = NULL, *second = NULL;
    int same = a != NULL && b != NULL && strcmp(a, "-") != 0 && th_path_resolve(a, &first, NULL) == THESPIS_OK &&
               th_path_resolve(b, &second, NULL) == THESPIS_OK && strcmp(first, second) == 0;
    th_free(first);
    th_free(second);
    return same;
}

/* Would what is written take the place of what is read, or of the other? */
static int replaces(const struct cli_settings *s)
{
    const char *const outs[3][2] = {{"--out", s->out}, {"--srt", s->srt}, {"--plot", s->plot}};
    for (int o = 0; o < 3; o++) {
        if (cli_replaces(outs[o][0], outs[o][1], s->text_file) != 0) return 2;
        for (int i = 0; i < s->ref_count; i++)
            if (cli_replaces(outs[o][0], outs[o][1], s->refs[i]) != 0) return 2;
    }
    return 0;
}

int cli_speak(const struct cli_settings *settings)
{
    if (settings->batch != NULL) return cli_batch(settings);
    if (settings->word_count > 1) return cli_misuse("speak takes one TEXT: put it in quotes");
    if (settings->voice != NULL && settings->ref_count > 0) return cli_misuse("give --voice or --ref, not both");
    if (settings->word_count == 1 && settings->text_file != NULL) return cli_misuse("give TEXT or --text-file, not both");
    if (settings->word_count == 0 && settings->text_file == NULL && isatty(STDIN_FILENO)) return cli_misuse("speak needs a TEXT");
    if (one_file(settings->srt, settings->out)) return cli_misuse("--srt and --out name one file");
    if (one_file(settings->plot, settings->out) || one_file(settings->plot, settings->srt))
        return cli_misuse("--plot and another option name one file");
    if (replaces(settings) != 0) return 2;
    if (strcmp(settings->out, "-") == 0 && isatty(STDOUT_FILENO))
        return cli_misuse("audio is not written to a terminal: give --out FILE");
    struct speech s = {.settings = settings};
    thespis_engine_options options;
    int bad = cli_engine_options(settings, 0, &options);
    if (bad != 0) return bad;
    if (cli_watched(settings)) {
        options.progress = cli_progress_draw;
        options.progress_context = &s.progress;
    }
    thespis_error error;
    thespis_status status = speak(&s, &options, &error);
    if (status != THESPIS_OK && cli_watched(settings)) fputs("\r\033[K", stderr);
    if (status == THESPIS_OK) tell(&s);
    close_all(&s);
    return status == THESPIS_OK ? 0 : cli_fail(&error);
}
