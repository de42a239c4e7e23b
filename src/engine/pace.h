/* pace.h - who gets the next free lane: fair between groups of requests, and never so many that those who listen while speech is made
 * would have to wait in the middle of it. */
#ifndef THESPIS_ENGINE_PACE_H
#define THESPIS_ENGINE_PACE_H

#include "thespis.h"

#define TH_PACE_LANES 64
/* A frame must take less time than it sounds, with a little to spare for what varies. */
#define TH_PACE_FRAME_SECONDS (0.93 * THESPIS_FRAME_SAMPLES / THESPIS_SAMPLE_RATE)

struct th_pace {
    double round[TH_PACE_LANES + 1]; /* seconds of a round with so many lanes, a running mean; 0: never seen */
};
/* A round in which n lanes drew a frame took so long, prompts of others and all. */
void th_pace_round(struct th_pace *pace, int n, double seconds);
/* Would n lanes all be faster than their audio sounds? What was never seen is judged from fewer lanes, for a lane more costs at most
 * its share. One lane always fits. */
int th_pace_fits(const struct th_pace *pace, int n);

struct thespis_engine;
/* Of the waiting requests the oldest of the group that holds the fewest lanes; NULL when none waits, or when it must go on waiting.
 * Under the engine's mutex. */
struct thespis_request *th_pace_next(const struct thespis_engine *engine);
/* How many free lanes could be given now. */
int th_pace_room(const struct thespis_engine *engine);

#endif
