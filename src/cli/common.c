/* common.c - what the commands share: failures, engine options, progress. */
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "cli/options.h"

#define SHIPPED_CHECKPOINT "models/stage"

int cli_fail(const thespis_error *error)
{
    fprintf(stderr, "thespis: %s\n", error->message);
    return 1;
}

int cli_misuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("thespis: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs(" (thespis help tells more)\n", stderr);
    va_end(arguments);
    return 2;
}

int cli_replaces(const char *option, const char *out, const char *input)
{
    if (out == NULL || input == NULL || strcmp(out, "-") == 0 || strcmp(input, "-") == 0 || !th_path_same(out, input)) return 0;
    return cli_misuse("%s '%s' would replace '%s', which is read: give another name", option, out, input);
}

static int one_of(const char *value, const char *first, const char *second)
{
    if (value == NULL || strcmp(value, first) == 0) return 0;
    return strcmp(value, second) == 0 ? 1 : 2;
}

/* PREFIX/share/thespis/models/stage of a program in PREFIX/bin: installed, perhaps under another prefix than it was built for. The
 * main thread asks before any other starts, so the path is written once. */
static const char *installed_checkpoint(void)
{
    static char found[PATH_MAX + 64];
    char path[PATH_MAX + 64];
    if (found[0] != '\0') return found;
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
    if (n <= 0) return NULL;
    path[n] = '\0';
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(path, '/');
        if (slash == NULL) return NULL;
        *slash = '\0';
    }
    strcat(path, "/share/thespis/models/stage");
    if (!th_path_exists(path)) return NULL;
    return strcpy(found, path);
}

static const char *default_checkpoint(void)
{
    const char *named = getenv("THESPIS_CHECKPOINT");
    if (named != NULL && named[0] != '\0') return named;
    if (th_path_exists(SHIPPED_CHECKPOINT)) return SHIPPED_CHECKPOINT;
#ifdef THESPIS_MODELS_DIR
    if (th_path_exists(THESPIS_MODELS_DIR "/stage")) return THESPIS_MODELS_DIR "/stage";
#endif
    return installed_checkpoint();
}

const char *cli_checkpoint(const struct cli_settings *s)
{
    return s->checkpoint != NULL ? s->checkpoint : default_checkpoint();
}

int cli_engine_options(const struct cli_settings *s, int codec_only, thespis_engine_options *options)
{
    thespis_engine_options_init(options);
    options->codec = s->codec;
    if (!(codec_only && s->codec != NULL)) {
        options->checkpoint = cli_checkpoint(s);
        if (options->checkpoint == NULL)
            return cli_misuse("no checkpoint: give --checkpoint DIR, or set THESPIS_CHECKPOINT, or run where " SHIPPED_CHECKPOINT
                              " is");
    }
    options->backend = (thespis_backend)one_of(s->backend, "auto", "cpu");
    options->precision = (thespis_precision)one_of(s->precision, "f32", "bf16");
    options->isa = (thespis_isa)one_of(s->isa, "auto", "portable");
    options->device = s->device;
    options->threads = s->threads;
    options->max_rows = s->max_rows;
    options->prefill_rows = s->prefill_rows;
    options->voice_slots = s->voice_slots;
    if (s->lanes > 0) options->lanes = s->lanes;
    options->act_quant = !s->no_act_quant;
    return 0;
}

thespis_granularity cli_granularity(const struct cli_settings *settings)
{
    static const char *const names[] = {"auto", "none", "sentence", "clause"};
    int i = 0;
    while (i < THESPIS_GRANULARITY_CLAUSE && strcmp(names[i], settings->granularity) != 0) i++;
    return (thespis_granularity)i;
}

int cli_watched(const struct cli_settings *settings)
{
    return !settings->quiet && isatty(STDERR_FILENO);
}

void cli_progress_draw(void *context, const char *job, uint64_t done, uint64_t total)
{
    struct cli_progress *p = context;
    double now = th_now();
    if (p->job == NULL || strcmp(p->job, job) != 0) {
        p->job = job;
        p->started = now;
        p->drawn = 0;
    }
    if (done >= total) {
        fputs("\r\033[K", stderr);
        return;
    }
    if (now - p->drawn < 0.1) return;
    p->drawn = now;
    double left = done > 0 ? (now - p->started) * (double)(total - done) / (double)done : 0;
    fprintf(stderr, "\r%s %3.0f %%, %.0f s left\033[K", job, 100.0 * (double)done / (double)total, left);
}
