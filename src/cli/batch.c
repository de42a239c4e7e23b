/* batch.c - see batch.h. Each line of the file is a take of its own; workers, one a lane, draw lines in order. A take's bytes
 * depend on its line and its seed, so neither order nor lanes matter. */
#include "cli/batch.h"

#include <limits.h>
#include <pthread.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "cli/take.h"

#define MOST_BYTES ((size_t)256 << 20)

struct batch {
    const struct cli_settings *settings;
    thespis_engine *engine;
    json_t **lines;   /* [count], objects */
    int *line_number; /* [count] in the file */
    int count;

    pthread_mutex_t mutex; /* for all below, and for standard error */
    int next, done, kept, failed;
    int frames;
    struct cli_progress progress;
};

/* ---- reading ----------------------------------------------------------------------------------------------------------------- */

static int is_text(const json_t *line, const char *key, int needed)
{
    const json_t *value = json_object_get(line, key);
    return value == NULL || json_is_null(value) ? !needed : json_is_string(value);
}

static thespis_status check_line(const char *path, int number, const json_t *line, thespis_error *error)
{
    static const struct {
        const char *key;
        int needed;
    } texts[] = {{"text", 1}, {"out", 1}, {"voice", 0}, {"ref", 0}, {"ref_text", 0}, {"srt", 0}};
    const char *key;
    json_t *value;
    if (!json_is_object(line))
        return th_fail(error, THESPIS_FORMAT, "%s, line %d: expected an object, got %s", path, number, th_json_kind(line));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!is_text(line, texts[i].key, texts[i].needed))
            return th_fail(error, THESPIS_FORMAT, "%s, line %d: %s must be a string, got %s", path, number, texts[i].key,
                           th_json_kind(json_object_get(line, texts[i].key)));
    const json_t *seed = json_object_get(line, "seed");
    if (seed != NULL && !(json_is_integer(seed) && json_integer_value(seed) >= 0))
        return th_fail(error, THESPIS_FORMAT, "%s, line %d: seed must be a whole number from 0 to 2^63-1", path, number);
    json_object_foreach((json_t *)line, key, value)
    {
        int known = strcmp(key, "seed") == 0;
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) known |= strcmp(key, texts[i].key) == 0;
        if (!known) return th_fail(error, THESPIS_FORMAT, "%s, line %d: unknown field '%.60s'", path, number, key);
    }
    return THESPIS_OK;
}

static thespis_status read_lines(struct batch *b, const char *text, size_t bytes, thespis_error *error)
{
    const char *path = b->settings->batch;
    size_t most = 1;
    for (size_t i = 0; i < bytes; i++) most += text[i] == '\n';
    TH_TRY(TH_ALLOC(&b->lines, most, "the batch", error));
    TH_TRY(TH_ALLOC(&b->line_number, most, "the batch", error));
    int number = 0;
    for (const char *at = text, *end = text + bytes; at < end; number++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (stop == NULL) stop = end;
        size_t n = (size_t)(stop - at);
        if (strspn(at, " \t\r") < n) {
            char name[300];
            snprintf(name, sizeof name, "%.200s, line %d", path, number + 1);
            b->line_number[b->count] = number + 1;
            TH_TRY(th_json_parse(at, n, name, &b->lines[b->count], error));
            b->count++;
            TH_TRY(check_line(path, number + 1, b->lines[b->count - 1], error));
        }
        at = stop + 1;
    }
    if (b->count == 0) return th_fail(error, THESPIS_FORMAT, "%s: no line with a take", path);
    return THESPIS_OK;
}

/* Notes that line i writes the file `name`, or by the way NAME.part. */
static thespis_status note_path(const struct batch *b, json_t *seen, int i, const char *name, const char *path,
                                thespis_error *error)
{
    const json_t *other = json_object_get(seen, path);
    if (other != NULL)
        return th_fail(error, THESPIS_INVALID,
                       "%s: lines %lld and %d both write '%.100s': each out and srt needs a name of its own", b->settings->batch,
                       (long long)json_integer_value(other), b->line_number[i], name);
    /* A path may be no UTF-8; it is never printed from here. */
    if (json_object_set_new_nocheck(seen, path, json_integer(b->line_number[i])) != 0) return th_fail_memory(error, "the batch", 0);
    return THESPIS_OK;
}

/* Two lines, or sound and subtitles, that write one file would overwrite each other, however they spell its name. */
static thespis_status note_name(const struct batch *b, json_t *seen, int i, const char *key, thespis_error *error)
{
    const char *name = json_string_value(json_object_get(b->lines[i], key));
    char *path, part[PATH_MAX];
    if (name == NULL) return THESPIS_OK;
    const char *const read[] = {b->settings->batch, json_string_value(json_object_get(b->lines[i], "ref"))};
    for (int k = 0; k < 2 && strcmp(key, "srt") == 0; k++) /* an out that is there is kept */
        if (read[k] != NULL && th_path_same(name, read[k]))
            return th_fail(error, THESPIS_INVALID, "%s, line %d: srt '%.100s' would replace '%.100s', which is read",
                           b->settings->batch, b->line_number[i], name, read[k]);
    thespis_status status = th_path_resolve(name, &path, error);
    if (status != THESPIS_OK) {
        th_error_prefix(error, "%s, line %d, %s: ", b->settings->batch, b->line_number[i], key);
        return status;
    }
    status = note_path(b, seen, i, name, path, error);
    if (status == THESPIS_OK && (size_t)snprintf(part, sizeof part, "%s.part", path) < sizeof part)
        status = note_path(b, seen, i, name, part, error);
    th_free(path);
    return status;
}

static thespis_status check_names(const struct batch *b, thespis_error *error)
{
    json_t *seen = json_object();
    thespis_status status = seen != NULL ? THESPIS_OK : th_fail_memory(error, "the batch", 0);
    for (int i = 0; i < b->count && status == THESPIS_OK; i++) {
        status = note_name(b, seen, i, "out", error);
        if (status == THESPIS_OK) status = note_name(b, seen, i, "srt", error);
    }
    json_decref(seen);
    return status;
}

/* ---- rendering --------------------------------------------------------------------------------------------------------------- */

static const char *field(const json_t *line, const char *key)
{
    return json_string_value(json_object_get(line, key));
}

static thespis_status line_voice(struct batch *b, const json_t *line, thespis_voice **voice, thespis_error *error)
{
    const char *ref = field(line, "ref"), *text = field(line, "ref_text");
    *voice = NULL;
    const char *name = field(line, "voice") != NULL ? field(line, "voice") : b->settings->voice;
    if (ref == NULL) return cli_voice_of(b->settings, b->engine, name, voice, error);
    TH_TRY(thespis_voice_new(b->engine, voice, error));
    return th_voice_add_any(*voice, ref, text != NULL ? text : "", text != NULL ? strlen(text) : 0, error);
}

static thespis_status render(struct batch *b, const json_t *line, thespis_outcome *outcome, thespis_error *error)
{
    const json_t *text = json_object_get(line, "text"), *seed = json_object_get(line, "seed");
    thespis_voice *voice;
    thespis_status status = line_voice(b, line, &voice, error);
    struct cli_take take = {.engine = b->engine,
                            .settings = b->settings,
                            .text = json_string_value(text),
                            .text_bytes = json_string_length(text),
                            .voice = voice,
                            .seed = seed != NULL ? json_integer_value(seed) : b->settings->seed,
                            .out = field(line, "out"),
                            .srt = field(line, "srt")};
    if (status == THESPIS_OK) status = cli_take_run(&take, outcome, error);
    thespis_voice_free(voice);
    return status;
}

static void report(struct batch *b, int index, thespis_status status, const thespis_outcome *outcome, const thespis_error *error)
{
    const char *out = field(b->lines[index], "out");
    int watched = cli_watched(b->settings);
    if (watched) fputs("\r\033[K", stderr);
    if (status != THESPIS_OK) {
        b->failed++;
        fprintf(stderr, "thespis: line %d, %s: %s\n", b->line_number[index], out, error->message);
    } else {
        b->frames += outcome->frames;
        if (!b->settings->quiet)
            fprintf(stderr, "%s: %.2f s, %s, seed %llu\n", out,
                    (double)outcome->frames * THESPIS_FRAME_SAMPLES / THESPIS_SAMPLE_RATE, thespis_finish_name(outcome->finish),
                    (unsigned long long)outcome->seed);
    }
    b->done++;
    b->progress.drawn = 0;
    if (watched) cli_progress_draw(&b->progress, "takes", (uint64_t)b->done, (uint64_t)b->count);
}

static void *worker(void *argument)
{
    struct batch *b = argument;
    pthread_mutex_lock(&b->mutex);
    while (b->next < b->count) {
        int index = b->next++;
        if (th_path_exists(field(b->lines[index], "out"))) {
            b->kept++;
            b->done++;
            continue;
        }
        pthread_mutex_unlock(&b->mutex);
        thespis_outcome outcome = {.size = sizeof outcome};
        thespis_error error = {0};
        thespis_status status = render(b, b->lines[index], &outcome, &error);
        pthread_mutex_lock(&b->mutex);
        report(b, index, status, &outcome, &error);
    }
    pthread_mutex_unlock(&b->mutex);
    return NULL;
}

/* One worker a lane; the caller is one of them. */
static void render_all(struct batch *b)
{
    pthread_t threads[64];
    int started = 0, want = b->settings->lanes < b->count ? b->settings->lanes : b->count;
    while (started < want - 1 && pthread_create(&threads[started], NULL, worker, b) == 0) started++;
    worker(b);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

static thespis_status run(struct batch *b, thespis_error *error)
{
    char *text;
    size_t bytes;
    thespis_engine_options options;
    if (cli_engine_options(b->settings, 0, &options) != 0) return th_fail(error, THESPIS_INVALID, "no checkpoint");
    TH_TRY(th_file_read(b->settings->batch, MOST_BYTES, &text, &bytes, error));
    thespis_status status = read_lines(b, text, bytes, error);
    th_free(text);
    if (status == THESPIS_OK) status = check_names(b, error);
    if (status == THESPIS_OK) status = thespis_engine_open(&options, &b->engine, error);
    if (status == THESPIS_OK) render_all(b);
    return status;
}

int cli_batch(const struct cli_settings *settings)
{
    if (settings->word_count > 0 || settings->text_file != NULL) return cli_misuse("--batch takes its texts from the file alone");
    if (settings->plot != NULL || settings->spectrogram) return cli_misuse("--batch draws no pictures");
    if (settings->ref_count > 0) return cli_misuse("--batch takes \"ref\" and \"ref_text\" from its lines");
    struct batch b = {.settings = settings};
    thespis_error error;
    pthread_mutex_init(&b.mutex, NULL);
    thespis_status status = run(&b, &error);
    if (status == THESPIS_OK && !settings->quiet)
        fprintf(stderr, "%d takes: %d rendered (%.1f s of audio), %d kept, %d failed\n", b.count, b.done - b.kept - b.failed,
                (double)b.frames * THESPIS_FRAME_SAMPLES / THESPIS_SAMPLE_RATE, b.kept, b.failed);
    thespis_engine_close(b.engine);
    for (int i = 0; i < b.count; i++) json_decref(b.lines[i]);
    th_free(b.lines);
    th_free(b.line_number);
    pthread_mutex_destroy(&b.mutex);
    if (status != THESPIS_OK) return cli_fail(&error);
    return b.failed > 0;
}
