/* prompt_slots.h - system blocks kept ready: the state after the rows of a voice's references, each on a backend lane of its own,
 * so that the next request in that voice feeds only its text. Least recently used out. The key is the content of the rows, all
 * columns, so that no two voices share one. */
#ifndef THESPIS_ENGINE_PROMPT_SLOTS_H
#define THESPIS_ENGINE_PROMPT_SLOTS_H

#include "backend/backend.h"
#include "text/prompt.h"

#define TH_SLOTS_MOST 64
#define TH_SLOT_LEAST_ROWS 24 /* shorter blocks are fed again faster than they are worth a slot */

struct th_prompt_slots {
    int count; /* slots; slot i is lane first_lane + i */
    int first_lane;
    struct {
        int used;      /* holds a block */
        uint64_t last; /* when it was used, by `clock` */
        char key[65];  /* SHA-256 of the rows */
    } slot[TH_SLOTS_MOST];
    uint64_t clock;
};

/* The key of a system block rows [system_count][width]. */
void th_slot_key(const struct th_rows *rows, char key[65]);
/* Lane that holds the block, or -1. Counts as a use. */
int th_slots_find(struct th_prompt_slots *slots, const char key[65]);
/* Copies `lane`, which has been fed exactly the block, into a slot. A failure only leaves the slot empty. */
void th_slots_keep(struct th_prompt_slots *slots, struct th_backend *backend, int lane, const char key[65]);

#endif
