/* bench.h - how fast this machine speaks: rates of the parts, each over several runs, in a form that can be compared. */
#ifndef THESPIS_ENGINE_BENCH_H
#define THESPIS_ENGINE_BENCH_H

#include "thespis.h"

#define TH_BENCH_RUNS 5

/* One measured rate. */
struct th_bench_row {
    char name[40]; /* "decode, 4 lanes" */
    const char *unit;
    int n; /* runs */
    double median, min, max;
    double bound; /* what the machine could do at most, in the same unit; NAN where that is not known */
};

struct th_bench {
    struct th_bench_row row[32];
    int count;
    char backend[16], device[256], precision[8]; /* what ran */
};

struct th_parts;
/* Writes down what parts run on. */
void th_bench_note(struct th_bench *bench, const struct th_parts *parts);

/* Rates of: generation at 1, 2, 4 and 8 lanes (frames a second in all, after `context` rows), prefill (rows a second), codec decode
 * and encode (times real time). Takes some seconds; options.lanes is not read. progress may be NULL. */
thespis_status th_bench_run(const thespis_engine_options *options, int context, struct th_bench *bench, thespis_error *error);

/* The named figures of `make gpu-check` instead: one_lane_fps, lanes_8_fps, prefill_46_ms, first_audio_plain_ms and so on, of a
 * device that is worth them; after `context` rows. */
thespis_status th_bench_figures(const thespis_engine_options *options, int context, struct th_bench *bench, thespis_error *error);

#endif
