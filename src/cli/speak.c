/* speak.c - `thespis speak`: text in, audio out while it is being made. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/options.h"
#include "engine/files.h"

#define MOST_TEXT ((size_t)16 << 20)
#define PIECE 8192 /* samples read at once */

/* What speaking holds; all of it is released by close_all. */
struct speech {
    const struct cli_settings *settings;
    char *text; /* owned */
    size_t text_bytes;
    thespis_engine *engine;
    thespis_voice *voice;
    thespis_request *request;
    struct th_sound_writer sound;
    int sound_open;
    struct cli_progress progress;
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

static thespis_status ask(struct speech *s, thespis_error *error)
{
    const struct cli_settings *o = s->settings;
    thespis_request_options r;
    thespis_request_options_init(&r);
    r.text = s->text;
    r.text_bytes = s->text_bytes;
    r.voice = s->voice;
    r.temperature = (float)o->temperature;
    r.top_p = (float)o->top_p;
    r.top_k = (int32_t)o->top_k;
    if (o->seed >= 0) r.seed = (uint64_t)o->seed;
    r.greedy = o->greedy;
    r.max_frames = o->max_frames;
    r.first_chunk = o->first_chunk;
    r.chunk = o->chunk;
    r.strict_text = o->strict_text;
    return thespis_request_start(s->engine, &r, &s->request, error);
}

/* How long it takes is known only at the end, so this tells what is there and how fast it comes. */
static void draw_progress(struct speech *s, size_t samples, double started)
{
    double now = th_now(), audio = (double)samples / THESPIS_SAMPLE_RATE;
    if (!cli_watched(s->settings) || now - s->progress.drawn < 0.1) return;
    s->progress.drawn = now;
    fprintf(stderr, "\rspeaking: %.1f s of audio, %.1fx real time\033[K", audio, audio / (now - started));
}

static thespis_status pump(struct speech *s, thespis_error *error)
{
    static const struct {
        const char *name;
        enum th_sound_format format;
    } formats[] = {{"wav", TH_SOUND_WAV16}, {"wav32f", TH_SOUND_WAV32F}, {"pcm", TH_SOUND_PCM16}};
    size_t f = 0, count = 0, total = 0;
    while (strcmp(formats[f].name, s->settings->format) != 0) f++;
    float samples[PIECE];
    double started = th_now();
    TH_TRY(th_sound_open(s->settings->out, formats[f].format, THESPIS_SAMPLE_RATE, &s->sound, error));
    s->sound_open = 1;
    for (;;) {
        TH_TRY(thespis_request_read(s->request, samples, PIECE, &count, error));
        if (count == 0) break;
        TH_TRY(th_sound_write(&s->sound, samples, count, error));
        draw_progress(s, total += count, started);
    }
    s->sound_open = 0;
    return th_sound_close(&s->sound, error);
}

/* The closing line: what came out, how fast, why it ended, and the seed that repeats it. */
static void tell(const struct speech *s)
{
    thespis_outcome o = {.size = sizeof o};
    thespis_error error;
    if (s->settings->quiet || thespis_request_get_outcome(s->request, &o, &error) != THESPIS_OK) return;
    double audio = (double)o.frames * THESPIS_FRAME_SAMPLES / THESPIS_SAMPLE_RATE;
    if (cli_watched(s->settings)) fputs("\r\033[K", stderr);
    fprintf(stderr, "%d frames, %.2f s of audio, first audio after %.2f s, %.2fx real time, %s, seed %llu\n", o.frames, audio,
            o.first_audio_seconds, o.total_seconds > 0 ? audio / o.total_seconds : 0, thespis_finish_name(o.finish),
            (unsigned long long)o.seed);
}

static thespis_status speak(struct speech *s, const thespis_engine_options *options, thespis_error *error)
{
    TH_TRY(read_text(s, error));
    TH_TRY(thespis_engine_open(options, &s->engine, error));
    TH_TRY(make_voice(s, error));
    TH_TRY(ask(s, error));
    return pump(s, error);
}

static void close_all(struct speech *s)
{
    if (s->sound_open) th_sound_discard(&s->sound);
    thespis_request_free(s->request);
    thespis_voice_free(s->voice);
    thespis_engine_close(s->engine);
    free(s->text);
}

int cli_speak(const struct cli_settings *settings)
{
    if (settings->word_count > 1) return cli_misuse("speak takes one TEXT: put it in quotes");
    if (settings->word_count == 1 && settings->text_file != NULL) return cli_misuse("give TEXT or --text-file, not both");
    if (settings->word_count == 0 && settings->text_file == NULL && isatty(STDIN_FILENO)) return cli_misuse("speak needs a TEXT");
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
