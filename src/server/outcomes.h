/* outcomes.h - what became of the latest requests, by id: for clients of raw streams, whose headers went out before the end. */
#ifndef THESPIS_SERVER_OUTCOMES_H
#define THESPIS_SERVER_OUTCOMES_H

#include <pthread.h>

#include "thespis.h"

#define TH_OUTCOMES_KEPT 1024
#define TH_REQUEST_ID_MAX 64

struct th_kept_outcome {
    char id[TH_REQUEST_ID_MAX + 1];
    thespis_finish finish;
    int prompt_rows, frames;
};

struct th_outcomes {
    pthread_mutex_t mutex;
    struct th_kept_outcome kept[TH_OUTCOMES_KEPT]; /* a ring */
    size_t next;
};

void th_outcomes_open(struct th_outcomes *outcomes);
void th_outcomes_close(struct th_outcomes *outcomes);
/* The oldest goes. */
void th_outcomes_keep(struct th_outcomes *outcomes, const struct th_kept_outcome *outcome);
/* The latest of that id; 0 when there is none. */
int th_outcomes_find(struct th_outcomes *outcomes, const char *id, struct th_kept_outcome *outcome);

#endif
