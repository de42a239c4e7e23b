/* pace.c - see pace.h. */
#include "engine/pace.h"

#include <math.h>

#include "base/clock.h"
#include "engine/engine.h"

#define FRAMES_A_SECOND ((double)THESPIS_SAMPLE_RATE / THESPIS_FRAME_SAMPLES)
#define SPARE 0.93     /* of the speed is counted on: it varies */
#define STRETCH 0.25   /* seconds of work that give one measurement */
#define NEW_SHARE 0.3  /* of a measurement in the mean */
#define LEAST_LEAD 0.4 /* seconds that all live audio must be ahead of its sound before another lane is given, */
#define PLENTY 3       /* unless the engine is so many times as fast as needed: a new one's prompt takes time, too */

/* ---- how fast ---------------------------------------------------------------------------------------------------------------- */

void th_pace_begin(struct th_pace *pace, double now)
{
    if (pace->working++ == 0) pace->since = now;
}

void th_pace_end(struct th_pace *pace, int frames, double now)
{
    pace->frames += frames;
    /* Also while the other thread goes on. */
    pace->seconds += now - pace->since;
    pace->since = now;
    pace->working--;
    if (pace->seconds < STRETCH) return;
    double rate = pace->frames / pace->seconds;
    pace->frames_per_second =
        pace->frames_per_second == 0 ? rate : pace->frames_per_second + NEW_SHARE * (rate - pace->frames_per_second);
    pace->seconds = 0;
    pace->frames = 0;
}

/* How many times as fast as n live requests need. */
static double speed_for(const struct th_pace *pace, int n)
{
    return pace->frames_per_second / (n * FRAMES_A_SECOND);
}

int th_pace_fits(const struct th_pace *pace, int n)
{
    return n <= 1 || SPARE * speed_for(pace, n) >= 1;
}

/* ---- who is next ------------------------------------------------------------------------------------------------------------- */

static int lanes_of(const struct thespis_engine *e, uint64_t group)
{
    int n = 0;
    for (int i = 0; i < e->lanes; i++) n += e->lane[i] != NULL && e->lane[i]->group == group;
    return n;
}

double th_pace_lead(const struct thespis_request *r, double now)
{
    if (!r->live) return HUGE_VAL;
    if (r->first_audio == 0) return 0;
    /* A reader slower than sound leaves audio lying in the ring: that is no want of ours. */
    double ahead = (double)r->decoded / FRAMES_A_SECOND - (now - r->first_audio);
    return fmax(ahead, (double)r->ring_count / THESPIS_SAMPLE_RATE);
}

/* Lanes that are taken; *live: does anybody listen to what is made there? *ahead: and is all of that ahead? */
static int taken_lanes(const struct thespis_engine *e, int *live, int *ahead)
{
    int taken = 0;
    double now = th_now();
    *live = 0;
    *ahead = 1;
    for (int i = 0; i < e->lanes; i++) {
        const struct thespis_request *r = e->lane[i];
        if (r == NULL) continue;
        taken++;
        if (!r->live) continue;
        *live = 1;
        *ahead &= th_pace_lead(r, now) >= LEAST_LEAD;
    }
    return taken;
}

struct thespis_request *th_pace_next(const struct thespis_engine *e)
{
    struct thespis_request *next = NULL;
    int fewest = 0, live, ahead;
    for (struct thespis_request *r = e->requests; r != NULL; r = r->next) {
        if (r->phase != TH_WAITING) continue;
        int lanes = lanes_of(e, r->group);
        if (next != NULL && lanes >= fewest) continue;
        next = r;
        fewest = lanes;
    }
    if (next == NULL) return NULL;
    int taken = taken_lanes(e, &live, &ahead);
    int fits = th_pace_fits(&e->pace, taken + 1) && (ahead || speed_for(&e->pace, taken + 1) >= PLENTY);
    return taken > 0 && (live || next->live) && !fits ? NULL : next;
}

int th_pace_room(const struct thespis_engine *e)
{
    int live, ahead, taken = taken_lanes(e, &live, &ahead), room = 0;
    for (const struct thespis_request *r = e->requests; r != NULL; r = r->next) live |= r->phase == TH_WAITING && r->live;
    while (taken + room < e->lanes && (!live || th_pace_fits(&e->pace, taken + room + 1))) room++;
    return room;
}
