/* text.h - a growing run of bytes, for headers and pickles. */
#ifndef THESPIS_MAKE_CHECKPOINT_TEXT_H
#define THESPIS_MAKE_CHECKPOINT_TEXT_H

#include "base/error.h"

struct th_text {
    char *data;
    size_t used, capacity;
    thespis_status status; /* the first failure; later additions do nothing */
};
void th_text_add(struct th_text *text, const void *data, size_t bytes, thespis_error *error);
void th_text_format(struct th_text *text, thespis_error *error, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* A little-endian integer of 1, 2, 4 or 8 bytes. */
void th_text_integer(struct th_text *text, uint64_t value, int bytes, thespis_error *error);
void th_text_free(struct th_text *text);

#endif
