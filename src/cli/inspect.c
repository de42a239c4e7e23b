/* inspect.c - `thespis inspect`: prints what engine/inspect.h tells, as text or as JSON. */
#include "engine/inspect.h"

#include <stdlib.h>
#include <string.h>

#include "cli/options.h"
#include "cli/picture.h"

/* "name: value", objects indented below their name, arrays on one line. */
static void print_tree(const json_t *value, int indent)
{
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)value, key, item)
    {
        if (json_is_object(item)) {
            printf("%*s%s:\n", indent, "", key);
            print_tree(item, indent + 2);
        } else {
            char *text = json_dumps(item, JSON_ENCODE_ANY | JSON_COMPACT);
            printf("%*s%s: %s\n", indent, "", key, text != NULL ? text : "?");
            free(text);
        }
    }
}

static void print_tokens(const json_t *tree)
{
    const json_t *ids = json_object_get(tree, "ids"), *tokens = json_object_get(tree, "tokens");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        char *text = json_dumps(json_array_get(tokens, i), JSON_ENCODE_ANY);
        printf("%8lld  %s\n", (long long)json_integer_value(json_array_get(ids, i)), text != NULL ? text : "?");
        free(text);
    }
}

static void print_prompt(const json_t *tree)
{
    size_t i;
    json_t *segment;
    printf("%lld rows, %lld of them the system block\n", (long long)json_integer_value(json_object_get(tree, "row_count")),
           (long long)json_integer_value(json_object_get(tree, "system_rows")));
    json_array_foreach(json_object_get(tree, "segments"), i, segment)
    {
        json_t *text = json_object_get(segment, "text");
        char *quoted = text != NULL ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
        printf("%6lld  %4lld rows  ", (long long)json_integer_value(json_object_get(segment, "first_row")),
               (long long)json_integer_value(json_object_get(segment, "rows")));
        if (quoted != NULL)
            printf("%s\n", quoted);
        else
            printf("%lld frames of audio\n", (long long)json_integer_value(json_object_get(segment, "frames")));
        free(quoted);
    }
}

static void print_chunks(const json_t *tree)
{
    size_t i;
    json_t *chunk;
    json_array_foreach(json_object_get(tree, "chunks"), i, chunk)
    {
        char *quoted = json_dumps(json_object_get(chunk, "text"), JSON_ENCODE_ANY);
        printf("%4zu  %5lld bytes  %s\n", i, (long long)json_integer_value(json_object_get(chunk, "bytes")),
               quoted != NULL ? quoted : "?");
        free(quoted);
    }
}

static int print(const json_t *tree, const char *what, int json)
{
    if (json)
        json_dumpf(tree, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)), putchar('\n');
    else if (strcmp(what, "tokens") == 0)
        print_tokens(tree);
    else if (strcmp(what, "prompt") == 0)
        print_prompt(tree);
    else if (strcmp(what, "chunks") == 0)
        print_chunks(tree);
    else
        print_tree(tree, 0);
    if (fflush(stdout) == 0 && !ferror(stdout)) return 0;
    fputs("thespis: cannot write to standard output\n", stderr);
    return 1;
}

static thespis_status look(const struct cli_settings *s, const char *what, const char *folder, const char *word, json_t **tree,
                           thespis_error *error)
{
    if (strcmp(what, "checkpoint") == 0) return th_inspect_checkpoint(folder, tree, error);
    if (strcmp(what, "tokens") == 0) return th_inspect_tokens(folder, word, strlen(word), tree, error);
    if (strcmp(what, "chunks") == 0) return th_inspect_chunks(word, strlen(word), cli_granularity(s), s->chunk_bytes, tree, error);
    return th_inspect_prompt(folder, word, strlen(word), s->refs, s->ref_texts, s->ref_count, tree, error);
}

/* ---- recordings, codes, voices ----------------------------------------------------------------------------------------------- */

static thespis_status look_at(const struct cli_settings *s, const char *what, const char *folder, const char *word,
                              struct th_look *look, thespis_error *error)
{
    struct th_voice_store store;
    size_t n = strlen(word), ending = strlen(TH_VOICE_ENDING);
    if (strcmp(what, "recording") == 0) return th_look_recording(word, look, error);
    if (strcmp(what, "codes") == 0) return th_look_codes(folder, word, look, error);
    if (strchr(word, '/') != NULL || (n >= ending && strcmp(word + n - ending, TH_VOICE_ENDING) == 0))
        return th_look_voice(word, look, error);
    TH_TRY(th_voice_store_open(s->voices, folder, &store, error));
    thespis_status status = th_look_stored_voice(&store, word, look, error);
    th_voice_store_close(&store);
    return status;
}

/* Facts, then the picture below them; JSON has facts alone. */
static int show(const struct cli_settings *s, const char *what, const struct th_look *look)
{
    struct cli_picture picture;
    thespis_error error;
    if (print(look->facts, what, s->json) != 0) return 1;
    thespis_status status = cli_picture_open(s, &picture, &error);
    if (status == THESPIS_OK) status = cli_picture_of_look(&picture, look, s->json ? NULL : stdout, &error);
    cli_picture_close(&picture);
    if (status != THESPIS_OK) return cli_fail(&error);
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}

static int inspect_file(const struct cli_settings *s, const char *what, const char *word)
{
    struct th_look look;
    thespis_error error;
    const char *folder = cli_checkpoint(s);
    if (folder == NULL && strcmp(what, "codes") == 0) return cli_misuse("no checkpoint: give --checkpoint DIR");
    if (cli_replaces("--plot", s->plot, word) != 0) return 2;
    if (look_at(s, what, folder, word, &look, &error) != THESPIS_OK) return cli_fail(&error);
    int bad = show(s, what, &look);
    th_look_free(&look);
    return bad;
}

int cli_inspect(const struct cli_settings *s)
{
    static const char *const kinds[][2] = {{"checkpoint", "DIR"}, {"tokens", "TEXT"}, {"prompt", "TEXT"}, {"chunks", "TEXT"},
                                           {"recording", "FILE"}, {"codes", "FILE"},  {"voice", "NAME"}};
    const char *what = s->word_count > 0 ? s->words[0] : "", *word = s->word_count == 2 ? s->words[1] : NULL;
    size_t kind = 0, count = sizeof kinds / sizeof *kinds;
    while (kind < count && strcmp(what, kinds[kind][0]) != 0) kind++;
    if (kind == count) return cli_misuse("inspect takes checkpoint, tokens, prompt, chunks, recording, codes or voice");
    int checkpoint = kind == 0, is_file = kind >= 4;
    if (s->word_count > 2 || (!checkpoint && word == NULL)) return cli_misuse("inspect %s takes one %s", what, kinds[kind][1]);
    if (is_file) return inspect_file(s, what, word);
    if (s->plot != NULL) return cli_misuse("--plot draws recordings, codes and voices");
    struct cli_settings with = *s;
    if (checkpoint && word != NULL) with.checkpoint = word;
    thespis_engine_options options;
    int bad = cli_engine_options(&with, 0, &options);
    if (bad != 0) return bad;
    thespis_error error;
    json_t *tree = NULL;
    if (look(s, what, options.checkpoint, word, &tree, &error) != THESPIS_OK) return cli_fail(&error);
    bad = print(tree, what, s->json);
    json_decref(tree);
    return bad;
}
