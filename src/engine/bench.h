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
};

struct th_bench {
    struct th_bench_row row[32];
    int count;
};

/* Rates of: generation at 1, 2, 4 and 8 lanes (frames a second in all, after `context` rows), prefill (rows a second), codec decode
 * and encode (times real time). Takes some seconds; options.lanes is not read. progress may be NULL. */
thespis_status th_bench_run(const thespis_engine_options *options, int context, struct th_bench *bench, thespis_error *error);

#endif
