/* bench.c - `thespis bench`: rates of this machine as a table, or as JSON for bench/results. */
#include "engine/bench.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/options.h"

#define CONTEXT 200

/* The processor's name as the system tells it; "unknown" where it does not. */
static void processor(char name[100])
{
    char line[300];
    FILE *in = fopen("/proc/cpuinfo", "r");
    strcpy(name, "unknown");
    while (in != NULL && fgets(line, sizeof line, in) != NULL) {
        if (strncmp(line, "model name", 10) != 0) continue;
        const char *value = strchr(line, ':');
        if (value != NULL) snprintf(name, 100, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
        break;
    }
    if (in != NULL) fclose(in);
}

static json_t *describe(const struct th_bench *bench, const thespis_engine_options *options)
{
    char device[100], date[20];
    time_t now = time(NULL);
    struct tm day;
    processor(device);
    if (strcmp(bench->backend, "cuda") == 0) snprintf(device, sizeof device, "%.99s", bench->device);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &day));
    const char *commit = getenv("THESPIS_COMMIT");
    json_t *rows = json_array();
    for (int i = 0; i < bench->count; i++) {
        const struct th_bench_row *r = &bench->row[i];
        json_array_append_new(rows, json_pack("{s:s,s:s,s:i,s:f,s:f,s:f,s:n,s:o}", "name", r->name, "unit", r->unit, "n", r->n,
                                              "median", r->median, "min", r->min, "max", r->max, "peer", "bound",
                                              isnan(r->bound) ? json_null() : json_real(r->bound)));
    }
    return json_pack("{s:i,s:s?,s:s,s:s,s:i,s:s?,s:s,s:s,s:i,s:o}", "schema", 1, "commit", commit, "date", date, "device", device,
                     "threads", options->threads, "checkpoint", options->checkpoint, "backend", bench->backend, "precision",
                     bench->precision, "context_rows", CONTEXT, "rows", rows);
}

int cli_bench(const struct cli_settings *settings)
{
    if (settings->word_count > 0) return cli_misuse("bench takes no argument");
    thespis_engine_options options;
    int bad = cli_engine_options(settings, 1, &options);
    if (bad != 0) return bad;
    struct th_bench bench;
    thespis_error error;
    thespis_status status =
        settings->figures ? th_bench_figures(&options, CONTEXT, &bench, &error) : th_bench_run(&options, CONTEXT, &bench, &error);
    if (status != THESPIS_OK) return cli_fail(&error);
    if (settings->json) {
        json_t *tree = describe(&bench, &options);
        json_dumpf(tree, stdout, JSON_INDENT(1));
        putchar('\n');
        json_decref(tree);
    } else {
        for (int i = 0; i < bench.count; i++) {
            const struct th_bench_row *r = &bench.row[i];
            printf("%-24s %9.1f %-12s (%.1f to %.1f in %d runs)\n", r->name, r->median, r->unit, r->min, r->max, r->n);
        }
    }
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}
