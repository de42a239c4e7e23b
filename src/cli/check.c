/* check.c - `thespis check`: the arguments of engine/check.h. Exit 1 when clear picks or codes differ. */
#include "engine/check.h"

#include <string.h>

#include "cli/options.h"

static void print_line(void *context, const char *line)
{
    (void)context;
    puts(line);
}

static int check_kernels(const struct cli_settings *s)
{
    thespis_error error;
    int broken = 0;
    if (s->word_count == 2) { /* kernels list */
        th_check_list_kernels(print_line, NULL);
        return fflush(stdout) != 0;
    }
    if (th_check_kernels(s->device, print_line, NULL, &broken, &error) != THESPIS_OK) return cli_fail(&error);
    printf("%d broken\n", broken);
    return fflush(stdout) != 0 || broken > 0;
}

int cli_check(const struct cli_settings *settings)
{
    const struct cli_settings *s = settings;
    if (s->word_count == 1 && strcmp(s->words[0], "kernels") == 0) return check_kernels(s);
    if (s->word_count == 2 && strcmp(s->words[0], "kernels") == 0 && strcmp(s->words[1], "list") == 0) return check_kernels(s);
    if (s->word_count != (s->check_codec != NULL ? 1 : 2))
        return cli_misuse("check takes CHECKPOINT and REQUEST.json, or CHECKPOINT and --codec FILE");
    struct cli_settings with = *s;
    with.checkpoint = s->words[0];
    struct th_check_options options = {.request = s->word_count == 2 ? s->words[1] : NULL,
                                       .frames = s->frames,
                                       .layer_local = s->layer_local,
                                       .generate = s->generate,
                                       .greedy = s->greedy,
                                       .max_frames = s->max_frames,
                                       .codec = s->check_codec,
                                       .out = s->out,
                                       .against = s->against};
    int bad = cli_engine_options(&with, 0, &options.engine);
    if (bad != 0) return bad;
    thespis_error error;
    int differences;
    if (th_check_run(&options, print_line, NULL, &differences, &error) != THESPIS_OK) return cli_fail(&error);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("thespis: cannot write the report\n", stderr);
        return 1;
    }
    return differences > 0;
}
