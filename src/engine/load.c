/* load.c - see load.h. */
#include "engine/load.h"

#include <string.h>

#include "engine/engine.h"

const double th_load_frame_bounds[TH_LOAD_FRAME_BOUNDS] = {.001, .002, .005, .01, .02, .0464, .1, .2, .5, 1};
const double th_load_batch_bounds[TH_LOAD_BATCH_BOUNDS] = {1, 2, 4, 8, 16, 32, 64};

static int bucket(const double *bounds, int count, double value)
{
    int i = 0;
    while (i < count && value > bounds[i]) i++;
    return i;
}

void th_load_step(struct th_load_steps *steps, int n, double seconds)
{
    steps->frames += (uint64_t)n;
    steps->frame_counts[bucket(th_load_frame_bounds, TH_LOAD_FRAME_BOUNDS, seconds)]++;
    steps->frame_sum += seconds;
    steps->batch_counts[bucket(th_load_batch_bounds, TH_LOAD_BATCH_BOUNDS, n)]++;
    steps->batch_sum += n;
}

void th_engine_get_load(thespis_engine *e, struct th_engine_load *load)
{
    struct th_code_cache_stats cache;
    memset(load, 0, sizeof *load);
    pthread_mutex_lock(&e->mutex);
    load->lanes = e->lanes;
    for (int i = 0; i < e->lanes; i++) load->active += e->lane[i] != NULL;
    load->waiting = e->waiting;
    load->room = th_pace_room(e);
    load->steps = e->steps;
    pthread_mutex_unlock(&e->mutex);
    th_code_cache_get_stats(e->code_cache, &cache);
    load->cache_hits = cache.hits;
    load->cache_misses = cache.misses;
    load->cache_bytes = cache.bytes;
}

int th_engine_group_requests(thespis_engine *e, uint64_t group)
{
    int n = 0;
    pthread_mutex_lock(&e->mutex);
    for (const struct thespis_request *r = e->requests; r != NULL; r = r->next) n += r->group == group && r->phase < TH_DRAWN;
    pthread_mutex_unlock(&e->mutex);
    return n;
}
