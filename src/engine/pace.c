/* pace.c - see pace.h. */
#include "engine/pace.h"

#include "engine/engine.h"

#define NEW_SHARE 0.1 /* of a new round in the mean */

void th_pace_round(struct th_pace *pace, int n, double seconds)
{
    double *mean = &pace->round[n];
    *mean = *mean == 0 ? seconds : *mean + NEW_SHARE * (seconds - *mean);
}

int th_pace_fits(const struct th_pace *pace, int n)
{
    if (n <= 1) return 1;
    if (pace->round[n] > 0 && pace->round[n] <= TH_PACE_FRAME_SECONDS) return 1;
    /* A slow moment with n lanes must not shut them out for ever: what fewer lanes take now is looked at, too. */
    int m = n - 1;
    while (m > 0 && pace->round[m] == 0) m--;
    return m > 0 && pace->round[m] * n / m <= TH_PACE_FRAME_SECONDS;
}

static int lanes_of(const struct thespis_engine *e, uint64_t group)
{
    int n = 0;
    for (int i = 0; i < e->lanes; i++) n += e->lane[i] != NULL && e->lane[i]->group == group;
    return n;
}

/* Lanes that are taken; *live: does anybody listen to what is made there? */
static int taken_lanes(const struct thespis_engine *e, int *live)
{
    int taken = 0;
    *live = 0;
    for (int i = 0; i < e->lanes; i++) {
        if (e->lane[i] == NULL) continue;
        *live |= e->lane[i]->live;
        taken++;
    }
    return taken;
}

struct thespis_request *th_pace_next(const struct thespis_engine *e)
{
    struct thespis_request *next = NULL;
    int fewest = 0, live;
    for (struct thespis_request *r = e->requests; r != NULL; r = r->next) {
        if (r->phase != TH_WAITING) continue;
        int lanes = lanes_of(e, r->group);
        if (next != NULL && lanes >= fewest) continue;
        next = r;
        fewest = lanes;
    }
    int taken = taken_lanes(e, &live);
    return next != NULL && (live || next->live) && !th_pace_fits(&e->pace, taken + 1) ? NULL : next;
}

int th_pace_room(const struct thespis_engine *e)
{
    int live, taken = taken_lanes(e, &live), room = 0;
    for (const struct thespis_request *r = e->requests; r != NULL; r = r->next) live |= r->phase == TH_WAITING && r->live;
    while (taken + room < e->lanes && (!live || th_pace_fits(&e->pace, taken + room + 1))) room++;
    return room;
}
