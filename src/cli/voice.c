/* voice.c - `thespis voice`: voices kept under names. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/memory.h"
#include "cli/options.h"
#include "engine/voice_store.h"

#define FASTEST_SPEECH 40.0 /* bytes of text a second: nobody speaks so fast */

static double seconds_of(size_t frames)
{
    return (double)frames * THESPIS_FRAME_SAMPLES / THESPIS_SAMPLE_RATE;
}

static thespis_status open_store(const struct cli_settings *s, struct th_voice_store *store, thespis_error *error)
{
    return th_voice_store_open(s->voices, cli_checkpoint(s), store, error);
}

thespis_status cli_voice_of(const struct cli_settings *settings, thespis_engine *engine, const char *name, thespis_voice **voice,
                            thespis_error *error)
{
    struct th_voice_store store;
    *voice = NULL;
    if (name == NULL) return THESPIS_OK;
    size_t n = strlen(name), ending = strlen(TH_VOICE_ENDING);
    if (strchr(name, '/') != NULL || (n >= ending && strcmp(name + n - ending, TH_VOICE_ENDING) == 0))
        return th_voice_load_file(name, engine, voice, error);
    TH_TRY(open_store(settings, &store, error));
    thespis_status status = th_voice_store_load(&store, engine, name, voice, error);
    th_voice_store_close(&store);
    return status;
}

/* Standard output may be a full disk. */
static int printed(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return 0;
    fputs("thespis: cannot write to standard output\n", stderr);
    return 1;
}

static int print_json(json_t *tree)
{
    if (tree == NULL) {
        fputs("thespis: memory is short, or a path is not UTF-8\n", stderr);
        return 1;
    }
    json_dumpf(tree, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(tree);
    return printed();
}

/* ---- add --------------------------------------------------------------------------------------------------------------------- */

/* Storing a voice needs the codec alone, which opens at once where a model may take long. *codec is freed with th_free. */
static thespis_status codec_alone(thespis_engine_options *options, char **codec, thespis_error *error)
{
    static const char *const names[] = {"codec.safetensors", "codec.pth"};
    *codec = NULL;
    options->max_rows = 0;
    for (size_t i = 0; i < 2 && options->codec == NULL; i++) {
        TH_TRY(th_path_join(options->checkpoint, names[i], codec, error));
        if (th_path_exists(*codec)) {
            options->codec = *codec;
        } else {
            th_free(*codec);
            *codec = NULL;
        }
    }
    if (options->codec != NULL) options->checkpoint = NULL;
    return THESPIS_OK;
}

static thespis_status store_voice(const struct cli_settings *s, thespis_engine *engine, const struct th_voice_store *store,
                                  int *existed, thespis_error *error)
{
    struct th_voice_input inputs[THESPIS_MAX_SPEAKERS] = {0};
    struct th_voice_facts facts = {.language = s->language};
    for (int i = 0; i < s->ref_count; i++) {
        inputs[i].path = s->refs[i];
        inputs[i].transcript = s->ref_texts[i] != NULL ? s->ref_texts[i] : "";
        inputs[i].transcript_bytes = strlen(inputs[i].transcript);
    }
    return th_voice_store_add(store, engine, s->words[1], inputs, (size_t)s->ref_count, &facts, s->replace, existed, error);
}

/* A transcript that is missing, or cannot be of this recording, costs likeness or makes the recording's words leak. */
static void warn(const struct cli_settings *s, const struct th_voice_file *file)
{
    for (size_t i = 0; i < file->count && !s->quiet; i++) {
        const struct th_voice_reference *r = &file->references[i];
        double seconds = seconds_of(r->frames);
        if (r->transcript_bytes == 0)
            fprintf(stderr, "thespis: '%s' has no --ref-text: the voice will be less like it\n", s->refs[i]);
        else if ((double)r->transcript_bytes > FASTEST_SPEECH * seconds + 40)
            fprintf(stderr, "thespis: '%s' has %.1f seconds and a --ref-text of %zu bytes: are these its words?\n", s->refs[i],
                    seconds, r->transcript_bytes);
    }
}

static thespis_status add(const struct cli_settings *s, thespis_engine_options *options, struct th_voice_store *store,
                          thespis_error *error)
{
    thespis_engine *engine = NULL;
    struct th_voice_entry entry;
    char *codec = NULL;
    int existed = 0;
    thespis_status status = codec_alone(options, &codec, error);
    if (status == THESPIS_OK) status = thespis_engine_open(options, &engine, error);
    if (status == THESPIS_OK) status = store_voice(s, engine, store, &existed, error);
    thespis_engine_close(engine);
    th_free(codec);
    if (status != THESPIS_OK) return status;
    TH_TRY(th_voice_store_show(store, s->words[1], &entry, error));
    warn(s, &entry.file);
    size_t frames = th_voice_file_frames(&entry.file);
    if (!s->quiet)
        fprintf(stderr, "voice '%s' %s: %zu reference%s, %zu frames, %.2f s\n", entry.name, existed ? "replaced" : "added",
                entry.file.count, entry.file.count == 1 ? "" : "s", frames, seconds_of(frames));
    th_voice_entry_free(&entry);
    return THESPIS_OK;
}

static int run_add(const struct cli_settings *s, struct th_voice_store *store)
{
    struct cli_progress progress = {0};
    thespis_engine_options options;
    thespis_error error;
    char key[TH_VOICE_NAME_MAX + 1];
    if (s->ref_count == 0) return cli_misuse("voice add needs a --ref FILE, and its words in --ref-text TEXT");
    /* Before the engine is opened, which takes a moment. */
    if (th_voice_name_check(s->words[1], strlen(s->words[1]), key, &error) != THESPIS_OK) return cli_fail(&error);
    int bad = cli_engine_options(s, 1, &options);
    if (bad != 0) return bad;
    if (cli_watched(s)) {
        options.progress = cli_progress_draw;
        options.progress_context = &progress;
    }
    return add(s, &options, store, &error) == THESPIS_OK ? 0 : cli_fail(&error);
}

/* ---- list and show ----------------------------------------------------------------------------------------------------------- */

static void date_of(int64_t created, char text[32])
{
    struct tm parts;
    time_t at = (time_t)created;
    if (gmtime_r(&at, &parts) == NULL || strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) text[0] = '\0';
}

/* "s?" in json_pack: null where there is none. */
static json_t *entry_json(const struct th_voice_entry *e)
{
    char created[32];
    size_t frames = th_voice_file_frames(&e->file);
    if (e->problem.status != THESPIS_OK)
        return json_pack("{s:s, s:b, s:s, s:s}", "name", e->name, "builtin", e->builtin, "path", e->path, "problem",
                         e->problem.message);
    date_of(e->file.created, created);
    return json_pack("{s:s, s:b, s:s, s:I, s:I, s:f, s:s?, s:s, s:s}", "name", e->name, "builtin", e->builtin, "path", e->path,
                     "references", (json_int_t)e->file.count, "frames", (json_int_t)frames, "seconds", seconds_of(frames),
                     "language", e->file.language, "created", created, "codec_id", e->file.codec_id);
}

static int list_json(const struct th_voice_list *list, const struct th_voice_store *store)
{
    json_t *voices = json_array(), *tree = json_pack("{s:s, s:O?}", "folder", store->folder, "voices", voices);
    int good = tree != NULL && voices != NULL;
    for (size_t i = 0; i < list->count && good; i++) good = json_array_append_new(voices, entry_json(&list->entries[i])) == 0;
    json_decref(voices);
    if (good) return print_json(tree);
    json_decref(tree);
    return print_json(NULL);
}

static void list_text(const struct th_voice_list *list)
{
    int width = 4;
    for (size_t i = 0; i < list->count; i++)
        if ((int)strlen(list->entries[i].name) > width) width = (int)strlen(list->entries[i].name);
    printf("%-*s  references  seconds  language  created\n", width, "name");
    for (size_t i = 0; i < list->count; i++) {
        const struct th_voice_entry *e = &list->entries[i];
        char created[32];
        if (e->problem.status != THESPIS_OK) {
            printf("%-*s  damaged: %s\n", width, e->name, e->problem.message);
            continue;
        }
        date_of(e->file.created, created);
        printf("%-*s  %10zu  %7.2f  %-8s  %s%s\n", width, e->name, e->file.count, seconds_of(th_voice_file_frames(&e->file)),
               e->file.language != NULL ? e->file.language : "-", created, e->builtin ? ", built in" : "");
    }
}

static int run_list(const struct cli_settings *s, struct th_voice_store *store)
{
    struct th_voice_list list;
    thespis_error error;
    if (th_voice_store_list(store, &list, &error) != THESPIS_OK) return cli_fail(&error);
    int bad = 0;
    if (s->json) {
        bad = list_json(&list, store);
    } else if (list.count > 0) {
        list_text(&list);
        bad = printed();
    } else if (!s->quiet) {
        fprintf(stderr, "no voices in '%s': thespis voice add makes one\n", store->folder);
    }
    th_voice_list_free(&list);
    return bad;
}

/* The recording's file name where it is kept and there, else NULL; freed with th_free. */
static char *recording_of(const struct th_voice_entry *e, size_t index)
{
    char *path;
    const struct th_voice_reference *r = &e->file.references[index];
    if (r->suffix[0] == '\0' || th_voice_recording_path(e->path, r, index, &path, NULL) != THESPIS_OK) return NULL;
    if (th_path_exists(path)) return path;
    th_free(path);
    return NULL;
}

static int show_json(const struct th_voice_entry *e)
{
    json_t *tree = entry_json(e), *list = json_array();
    int good = tree != NULL && list != NULL;
    for (size_t i = 0; i < e->file.count && good; i++) {
        const struct th_voice_reference *r = &e->file.references[i];
        char *path = recording_of(e, i);
        good = json_array_append_new(list,
                                     json_pack("{s:s%, s:I, s:f, s:s?}", "transcript", r->transcript, r->transcript_bytes, "frames",
                                               (json_int_t)r->frames, "seconds", seconds_of(r->frames), "recording", path)) == 0;
        th_free(path);
    }
    good = good && json_object_set(tree, "references", list) == 0;
    json_decref(list);
    if (good) return print_json(tree);
    json_decref(tree);
    return print_json(NULL);
}

static int show_text(const struct th_voice_entry *e)
{
    char created[32];
    date_of(e->file.created, created);
    printf("name: %s%s\nfile: %s\nlanguage: %s\ncreated: %s\ncodec: %s\n", e->name, e->builtin ? " (built in)" : "", e->path,
           e->file.language != NULL ? e->file.language : "-", created, e->file.codec_id);
    for (size_t i = 0; i < e->file.count; i++) {
        const struct th_voice_reference *r = &e->file.references[i];
        char *path = recording_of(e, i);
        /* Quoted, so that what a file says cannot steer a terminal. */
        json_t *text = json_stringn(r->transcript, r->transcript_bytes);
        char *quoted = text != NULL ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
        printf("reference %zu: %zu frames, %.2f s\n  recording: %s\n  transcript: %s\n", i, r->frames, seconds_of(r->frames),
               path != NULL           ? path
               : r->suffix[0] != '\0' ? "missing"
                                      : "none, made from codes",
               quoted != NULL ? quoted : "?");
        free(quoted);
        json_decref(text);
        th_free(path);
    }
    return printed();
}

static int run_show(const struct cli_settings *s, struct th_voice_store *store)
{
    struct th_voice_entry entry;
    thespis_error error;
    if (th_voice_store_show(store, s->words[1], &entry, &error) != THESPIS_OK) return cli_fail(&error);
    int bad = s->json ? show_json(&entry) : show_text(&entry);
    th_voice_entry_free(&entry);
    return bad;
}

static int run_remove(const struct cli_settings *s, struct th_voice_store *store)
{
    thespis_error error;
    return th_voice_store_remove(store, s->words[1], &error) == THESPIS_OK ? 0 : cli_fail(&error);
}

/* ---- the command ------------------------------------------------------------------------------------------------------------- */

/* speak --voice NAME TEXT */
static int say(const struct cli_settings *s)
{
    struct cli_settings with = *s;
    if (s->word_count < 2) return cli_misuse("voice say needs a NAME and a TEXT");
    if (s->voice != NULL) return cli_misuse("voice say takes its voice's NAME as a word, not --voice");
    if (s->json || s->replace || s->language != NULL) return cli_misuse("voice say has no option --json, --replace or --language");
    with.voice = s->words[1];
    with.word_count -= 2;
    memmove(with.words, s->words + 2, (size_t)with.word_count * sizeof *with.words);
    return cli_speak(&with);
}

static const struct {
    const char *name;
    int words;
    int (*run)(const struct cli_settings *settings, struct th_voice_store *store);
} actions[] = {{"add", 2, run_add}, {"list", 1, run_list}, {"show", 2, run_show}, {"remove", 2, run_remove}};

/* Options that only other actions know; NULL when all fit. */
static const char *misfit(const struct cli_settings *s)
{
    int adds = strcmp(s->words[0], "add") == 0, shows = strcmp(s->words[0], "list") == 0 || strcmp(s->words[0], "show") == 0;
    if (s->speak_option != NULL) return s->speak_option;
    if (!adds && s->ref_count > 0) return "--ref";
    if (!adds && s->language != NULL) return "--language";
    if (!adds && s->replace) return "--replace";
    return !shows && s->json ? "--json" : NULL;
}

int cli_voice(const struct cli_settings *settings)
{
    const char *word = settings->word_count > 0 ? settings->words[0] : "";
    if (strcmp(word, "say") == 0) return say(settings);
    size_t i = 0, count = sizeof actions / sizeof *actions;
    while (i < count && strcmp(actions[i].name, word) != 0) i++;
    if (i == count) return cli_misuse("voice takes add, list, show, remove or say");
    if (settings->word_count != actions[i].words)
        return cli_misuse(actions[i].words == 1 ? "voice %s takes no name" : "voice %s takes one NAME: put it in quotes", word);
    const char *option = misfit(settings);
    if (option != NULL) return cli_misuse("voice %s has no option '%s'", word, option);
    struct th_voice_store store;
    thespis_error error;
    if (open_store(settings, &store, &error) != THESPIS_OK) return cli_fail(&error);
    int bad = actions[i].run(settings, &store);
    th_voice_store_close(&store);
    return bad;
}
