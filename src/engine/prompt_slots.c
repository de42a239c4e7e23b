/* prompt_slots.c - see prompt_slots.h. */
#include "engine/prompt_slots.h"

#include <string.h>

#include "base/sha256.h"

void th_slot_key(const struct th_rows *rows, char key[65])
{
    struct th_sha256 hash;
    uint64_t shape[2] = {rows->system_count, (uint64_t)rows->width};
    th_sha256_begin(&hash);
    th_sha256_add(&hash, shape, sizeof shape);
    th_sha256_add(&hash, rows->data, rows->system_count * (size_t)rows->width * sizeof *rows->data);
    th_sha256_end(&hash, key);
}

int th_slots_find(struct th_prompt_slots *slots, const char key[65])
{
    for (int i = 0; i < slots->count; i++) {
        if (!slots->slot[i].used || strcmp(slots->slot[i].key, key) != 0) continue;
        slots->slot[i].last = ++slots->clock;
        return slots->first_lane + i;
    }
    return -1;
}

void th_slots_keep(struct th_prompt_slots *slots, struct th_backend *backend, int lane, const char key[65])
{
    int oldest = 0;
    if (slots->count == 0) return;
    for (int i = 0; i < slots->count; i++) {
        if (slots->slot[i].used && strcmp(slots->slot[i].key, key) == 0) return;
        if (!slots->slot[oldest].used) continue;
        if (!slots->slot[i].used || slots->slot[i].last < slots->slot[oldest].last) oldest = i;
    }
    slots->slot[oldest].used = backend->ops->copy(backend, lane, slots->first_lane + oldest, NULL) == THESPIS_OK;
    memcpy(slots->slot[oldest].key, key, sizeof slots->slot[oldest].key);
    slots->slot[oldest].last = ++slots->clock;
}
