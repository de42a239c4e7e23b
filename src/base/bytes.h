/* bytes.h - bytes that grow: what encoders and answers are collected in. */
#ifndef THESPIS_BASE_BYTES_H
#define THESPIS_BASE_BYTES_H

#include "base/error.h"

/* A zeroed one is empty and valid. Released with th_bytes_free. */
struct th_bytes {
    uint8_t *at; /* [count], room for capacity; NULL while nothing was ever added */
    size_t count, capacity;
};
/* Room for so many more; on failure nothing has changed. */
thespis_status th_bytes_reserve(struct th_bytes *bytes, size_t more, thespis_error *error);
thespis_status th_bytes_add(struct th_bytes *bytes, const void *data, size_t count, thespis_error *error);
thespis_status th_bytes_add_string(struct th_bytes *bytes, const char *text, thespis_error *error);
/* Forgets the first `count`; the rest moves down. */
void th_bytes_drop(struct th_bytes *bytes, size_t count);
/* Empty, the room is kept. */
void th_bytes_clear(struct th_bytes *bytes);
void th_bytes_free(struct th_bytes *bytes);

#endif
