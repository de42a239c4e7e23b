/* load.h - how busy an engine is and what it has done so far: for servers that admit, and tell their operators. */
#ifndef THESPIS_ENGINE_LOAD_H
#define THESPIS_ENGINE_LOAD_H

#include "thespis.h"

#define TH_LOAD_FRAME_BOUNDS 10
#define TH_LOAD_BATCH_BOUNDS 7
extern const double th_load_frame_bounds[TH_LOAD_FRAME_BOUNDS]; /* seconds */
extern const double th_load_batch_bounds[TH_LOAD_BATCH_BOUNDS]; /* lanes */

/* Counts of steps; counts[i] has those up to bounds[i], the last the rest. */
struct th_load_steps {
    uint64_t frames; /* drawn in all */
    uint64_t frame_counts[TH_LOAD_FRAME_BOUNDS + 1], batch_counts[TH_LOAD_BATCH_BOUNDS + 1];
    double frame_sum, batch_sum;
};
/* One step of n lanes took so long. */
void th_load_step(struct th_load_steps *steps, int n, double seconds);

struct th_engine_load {
    int lanes, active, waiting; /* lanes there are, taken; requests in line for one */
    int room;                   /* free lanes that may be given now: pace.h tells why not all */
    struct th_load_steps steps;
    uint64_t cache_hits, cache_misses, cache_bytes; /* codes of recordings */
};
/* From any thread. */
void th_engine_get_load(thespis_engine *engine, struct th_engine_load *load);
/* Requests of a group that are in line or on a lane. */
int th_engine_group_requests(thespis_engine *engine, uint64_t group);

#endif
