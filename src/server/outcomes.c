/* outcomes.c - see outcomes.h. */
#include "server/outcomes.h"

#include <string.h>

void th_outcomes_open(struct th_outcomes *outcomes)
{
    memset(outcomes, 0, sizeof *outcomes);
    pthread_mutex_init(&outcomes->mutex, NULL);
}

void th_outcomes_close(struct th_outcomes *outcomes)
{
    pthread_mutex_destroy(&outcomes->mutex);
}

void th_outcomes_keep(struct th_outcomes *outcomes, const struct th_kept_outcome *outcome)
{
    pthread_mutex_lock(&outcomes->mutex);
    outcomes->kept[outcomes->next] = *outcome;
    outcomes->next = (outcomes->next + 1) % TH_OUTCOMES_KEPT;
    pthread_mutex_unlock(&outcomes->mutex);
}

int th_outcomes_find(struct th_outcomes *outcomes, const char *id, struct th_kept_outcome *outcome)
{
    int found = 0;
    pthread_mutex_lock(&outcomes->mutex);
    for (size_t i = 0; i < TH_OUTCOMES_KEPT && !found; i++) {
        const struct th_kept_outcome *kept = &outcomes->kept[(outcomes->next + TH_OUTCOMES_KEPT - 1 - i) % TH_OUTCOMES_KEPT];
        found = kept->id[0] != '\0' && strcmp(kept->id, id) == 0;
        if (found) *outcome = *kept;
    }
    pthread_mutex_unlock(&outcomes->mutex);
    return found;
}
