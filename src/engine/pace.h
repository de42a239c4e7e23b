/* pace.h - who gets the next free lane: fair between groups of requests, and never so many that those who listen while speech is
 * made would have to wait in the middle of it. */
#ifndef THESPIS_ENGINE_PACE_H
#define THESPIS_ENGINE_PACE_H

#include "thespis.h"

/* How fast the engine makes audio when it works, whatever shares the machine: a running mean over stretches of work. Times are of
 * th_now. Under the engine's mutex. */
struct th_pace {
    int working;              /* threads at work now: driver, codec */
    double since;             /* when the first of them began */
    double seconds;           /* worked since the last stretch was counted */
    int frames;               /* decoded in that time */
    double frames_per_second; /* 0: not known yet */
};
void th_pace_begin(struct th_pace *pace, double now);
void th_pace_end(struct th_pace *pace, int frames_decoded, double now);

/* Could n live requests be made faster than they sound? One always fits. */
int th_pace_fits(const struct th_pace *pace, int n);

struct thespis_engine;
struct thespis_request;
/* Seconds that r's audio is made ahead of its sound, for a listener who began with the first of it; 0 before that, HUGE_VAL when
 * nobody listens. */
double th_pace_lead(const struct thespis_request *request, double now);
/* A live request with less in hand has little time: its audio is made first, and in small pieces. */
#define TH_PACE_NEAR 1.0

/* Of the waiting requests the oldest of the group that holds the fewest lanes; NULL when none waits, or when it must go on waiting.
 */
struct thespis_request *th_pace_next(const struct thespis_engine *engine);
/* How many free lanes could be given now. */
int th_pace_room(const struct thespis_engine *engine);

#endif
