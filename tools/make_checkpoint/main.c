/* main.c - make_checkpoint: writes a generated checkpoint in the published layout. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/memory.h"
#include "make_checkpoint.h"

static const char help[] =
    "Usage: make_checkpoint --preset NAME [OPTIONS] OUT_FOLDER\n"
    "       make_checkpoint --no-model --codec NAME [OPTIONS] OUT_FOLDER\n"
    "\n"
    "Writes a checkpoint with random weights in the published layout: config.json, tokenizer.json,\n"
    "safetensors shards with their index, codec.pth. The same options and seed give the same bytes.\n"
    "\n"
    "Example: make_checkpoint --preset tiny --seed 1 /tmp/tiny\n"
    "\n"
    "  --preset NAME       shape of the model (--list names them)\n"
    "  --codec NAME        shape of the codec [the preset's]\n"
    "  --seed N            selects the weights [1]\n"
    "  --layout NAME       per-expert or stacked: one tensor a matrix, or all experts in one [per-expert]\n"
    "  --experts NAME      fp8 or bf16 [fp8]\n"
    "  --scales NAME       f32 or bf16: type of the FP8 scales [the preset's]\n"
    "  --shards N          files the tensors are spread over [the preset's]\n"
    "  --holes             write recipes of the large matrices instead of their values: a few megabytes that only\n"
    "                      the CUDA backend can open\n"
    "  --no-model          write codec.pth alone\n"
    "  --no-codec          write everything but codec.pth\n"
    "  --threads N         [all processors]\n"
    "  --dry-run           make everything, write nothing, print the speed\n"
    "  --list              print the presets with their sizes\n"
    "  --help              print this\n";

struct options {
    const char *preset, *codec, *layout, *experts, *scales, *folder;
    long long seed, shards, threads;
    int no_model, no_codec, holes, dry_run, list, help;
};

struct option {
    const char *name;
    const char **text;
    long long *number;
    long long least, most;
    int *flag;
};

/* ---- command line ------------------------------------------------------------------------------------------------------------ */

static thespis_status set_option(const struct option *option, const char *value, thespis_error *error)
{
    char *end;
    if (option->text != NULL) {
        *option->text = value;
        return THESPIS_OK;
    }
    errno = 0;
    *option->number = strtoll(value, &end, 10);
    if (errno != 0 || end == value || *end != 0 || *option->number < option->least || *option->number > option->most)
        return th_fail(error, THESPIS_INVALID, "%s is '%s', must be a whole number from %lld to %lld", option->name, value,
                       option->least, option->most);
    return THESPIS_OK;
}

static thespis_status parse(int count, char **arguments, const struct option *table, struct options *o, thespis_error *error)
{
    for (int i = 1; i < count; i++) {
        const struct option *option = table;
        if (arguments[i][0] != '-') {
            if (o->folder != NULL) return th_fail(error, THESPIS_INVALID, "two folders: '%s' and '%s'", o->folder, arguments[i]);
            o->folder = arguments[i];
            continue;
        }
        while (option->name != NULL && strcmp(option->name, arguments[i]) != 0) option++;
        if (option->name == NULL) return th_fail(error, THESPIS_INVALID, "unknown option '%s' (see --help)", arguments[i]);
        if (option->flag != NULL) {
            *option->flag = 1;
            continue;
        }
        if (i + 1 == count) return th_fail(error, THESPIS_INVALID, "%s needs a value", option->name);
        TH_TRY(set_option(option, arguments[++i], error));
    }
    return THESPIS_OK;
}

static thespis_status read_options(int count, char **arguments, struct options *o, thespis_error *error)
{
    const struct option table[] = {
        {.name = "--preset", .text = &o->preset},
        {.name = "--codec", .text = &o->codec},
        {.name = "--seed", .number = &o->seed, .least = 0, .most = INT64_MAX},
        {.name = "--layout", .text = &o->layout},
        {.name = "--experts", .text = &o->experts},
        {.name = "--scales", .text = &o->scales},
        {.name = "--shards", .number = &o->shards, .least = 1, .most = 99999},
        {.name = "--threads", .number = &o->threads, .least = 1, .most = 256},
        {.name = "--holes", .flag = &o->holes},
        {.name = "--no-model", .flag = &o->no_model},
        {.name = "--no-codec", .flag = &o->no_codec},
        {.name = "--dry-run", .flag = &o->dry_run},
        {.name = "--list", .flag = &o->list},
        {.name = "--help", .flag = &o->help},
        {.name = NULL},
    };
    return parse(count, arguments, table, o, error);
}

/* 1 when value is `second`, 0 when it is `first` or absent. */
static thespis_status choose(const char *option, const char *value, const char *first, const char *second, int *chosen,
                             thespis_error *error)
{
    *chosen = value != NULL && strcmp(value, second) == 0;
    if (value == NULL || *chosen || strcmp(value, first) == 0) return THESPIS_OK;
    return th_fail(error, THESPIS_INVALID, "%s is '%s', must be %s or %s", option, value, first, second);
}

static thespis_status choose_codec(const struct options *o, struct th_job *job, struct th_codec_preset *codec, thespis_error *error)
{
    const char *name = o->codec != NULL ? o->codec : job->preset != NULL ? job->preset->codec : NULL;
    if (o->no_codec) return THESPIS_OK;
    if (name == NULL) return th_fail(error, THESPIS_INVALID, "--no-model needs --codec NAME (see --list)");
    const struct th_codec_preset *found = th_codec_preset_find(name);
    if (found == NULL) return th_fail(error, THESPIS_INVALID, "no codec preset '%s' (see --list)", name);
    *codec = *found;
    /* The codec of a model has as many codebooks as its frames. */
    if (job->preset != NULL) codec->sizes.books = job->preset->codebooks - 1;
    job->codec = codec;
    return THESPIS_OK;
}

static thespis_status make_job(const struct options *o, struct th_job *job, struct th_codec_preset *codec, thespis_error *error)
{
    job->seed = (uint64_t)o->seed;
    job->shards = (int)o->shards;
    job->dry_run = o->dry_run;
    job->holes = o->holes && !o->dry_run;
    job->folder = o->folder;
    int f32_or_bf16 = 0;
    TH_TRY(choose("--layout", o->layout, "per-expert", "stacked", &job->stacked, error));
    TH_TRY(choose("--experts", o->experts, "fp8", "bf16", &job->bf16_experts, error));
    TH_TRY(choose("--scales", o->scales, "f32", "bf16", &f32_or_bf16, error));
    if (o->scales != NULL) job->scales = f32_or_bf16 ? TH_SCALES_BF16 : TH_SCALES_F32;
    if (o->preset != NULL && (job->preset = th_preset_find(o->preset)) == NULL)
        return th_fail(error, THESPIS_INVALID, "no preset '%s' (see --list)", o->preset);
    if (job->preset == NULL && !o->no_model) return th_fail(error, THESPIS_INVALID, "--preset NAME is missing (see --list)");
    if (o->no_model && o->no_codec)
        return th_fail(error, THESPIS_INVALID, "--no-model and --no-codec together leave nothing to write");
    if (o->holes && job->stacked) return th_fail(error, THESPIS_INVALID, "--holes goes with --layout per-expert alone");
    if (o->folder == NULL && !o->dry_run) return th_fail(error, THESPIS_INVALID, "the folder to write is missing (see --help)");
    if (o->folder == NULL) job->folder = ".";
    return choose_codec(o, job, codec, error);
}

/* ---- the work ---------------------------------------------------------------------------------------------------------------- */

thespis_status th_write_json(const struct th_job *job, const char *name, json_t *root, thespis_error *error)
{
    struct th_output output = {.fd = -1};
    char *path = NULL;
    char *text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(root);
    if (text == NULL) return th_fail_memory(error, name, 0);
    thespis_status status = th_path_join(job->folder, name, &path, error);
    if (status == THESPIS_OK && !job->dry_run) {
        status = th_output_open(path, &output, error);
        if (status == THESPIS_OK) status = th_output_write(&output, text, strlen(text), error);
        if (status == THESPIS_OK) status = th_output_write(&output, "\n", 1, error);
        if (status == THESPIS_OK)
            status = th_output_commit(&output, error);
        else
            th_output_discard(&output);
    }
    th_free(path);
    free(text);
    return status;
}

static thespis_status write_model(struct th_job *job, thespis_error *error)
{
    struct th_vocabulary vocabulary = {0};
    struct th_recipes list = {0};
    json_t *tokenizer = NULL;
    TH_TRY(th_tokenizer_make(job->preset, &vocabulary, &tokenizer, error));
    TH_TRY(th_write_json(job, "tokenizer.json", tokenizer, error));
    TH_TRY(th_write_json(job, "config.json", th_config_json(job, &vocabulary), error));
    thespis_status status = th_model_recipes(job, &vocabulary, &list, error);
    if (status == THESPIS_OK) status = th_shards_write(job, &list, error);
    if (status == THESPIS_OK)
        printf("model: %zu tensors, %llu bytes, vocabulary %d\n", list.count, (unsigned long long)list.bytes, vocabulary.vocab);
    th_recipes_free(&list);
    return status;
}

static thespis_status write_codec(struct th_job *job, thespis_error *error)
{
    struct th_recipes list = {0};
    thespis_status status = th_codec_recipes(&job->codec->sizes, job->codec->extra_keys, &list, error);
    if (status == THESPIS_OK) status = th_pth_write(job, &list, error);
    if (status == THESPIS_OK) printf("codec: %zu tensors, %llu bytes\n", list.count, (unsigned long long)list.bytes);
    th_recipes_free(&list);
    return status;
}

static thespis_status list_presets(thespis_error *error)
{
    printf("models (--preset)\n");
    for (size_t i = 0; th_preset_at(i) != NULL; i++) {
        struct th_job job = {.preset = th_preset_at(i)};
        struct th_vocabulary vocabulary;
        struct th_recipes list = {0};
        TH_TRY(th_tokenizer_make(job.preset, &vocabulary, NULL, error));
        thespis_status status = th_model_recipes(&job, &vocabulary, &list, error);
        printf("  %-18s %14llu bytes  %s (codec %s)\n", job.preset->name, (unsigned long long)list.bytes, job.preset->about,
               job.preset->codec);
        th_recipes_free(&list);
        TH_TRY(status);
    }
    printf("codecs (--codec)\n");
    for (size_t i = 0; th_codec_preset_at(i) != NULL; i++) {
        const struct th_codec_preset *codec = th_codec_preset_at(i);
        struct th_recipes list = {0};
        thespis_status status = th_codec_recipes(&codec->sizes, codec->extra_keys, &list, error);
        printf("  %-18s %14llu bytes  %s\n", codec->name, (unsigned long long)list.bytes, codec->about);
        th_recipes_free(&list);
        TH_TRY(status);
    }
    return THESPIS_OK;
}

static thespis_status run(const struct options *o, thespis_error *error)
{
    struct th_job job = {0};
    struct th_codec_preset codec;
    TH_TRY(make_job(o, &job, &codec, error));
    if (!job.dry_run && mkdir(job.folder, 0777) != 0 && errno != EEXIST)
        return th_fail_errno(error, "cannot make the folder '%s'", job.folder);
    TH_TRY(th_pool_open(o->threads > 0 ? (int)o->threads : th_processor_count(), &job.pool, error));
    double start = th_now();
    thespis_status status = o->no_model ? THESPIS_OK : write_model(&job, error);
    if (status == THESPIS_OK && job.codec != NULL) status = write_codec(&job, error);
    double seconds = th_now() - start;
    if (status == THESPIS_OK)
        printf("%s %.1f MB in %.2f s (%.0f MB/s)\n", job.dry_run ? "made" : "wrote", 1e-6 * (double)job.bytes, seconds,
               1e-6 * (double)job.bytes / (seconds > 1e-9 ? seconds : 1e-9));
    th_pool_close(job.pool);
    return status;
}

int main(int count, char **arguments)
{
    struct options o = {.seed = 1};
    thespis_error error = {0};
    thespis_status status = read_options(count, arguments, &o, &error);
    if (status == THESPIS_OK && o.help) return fputs(help, stdout) < 0 || fflush(stdout) != 0;
    if (status == THESPIS_OK) status = o.list ? list_presets(&error) : run(&o, &error);
    if (status == THESPIS_OK && fflush(stdout) != 0) status = th_fail_errno(&error, "cannot write to standard output");
    if (status == THESPIS_OK) return 0;
    fprintf(stderr, "make_checkpoint: %s\n", error.message);
    return status == THESPIS_INVALID ? 2 : 1;
}
