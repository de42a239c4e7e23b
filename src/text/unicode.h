/* unicode.h - code points, their classes, and NFC as the reference tokenizer sees them (docs/model.md, Text). */
#ifndef THESPIS_TEXT_UNICODE_H
#define THESPIS_TEXT_UNICODE_H

#include "base/error.h"

/* The next code point of valid UTF-8 at text[*at], advancing *at. */
uint32_t th_utf8_next(const char *text, size_t bytes, size_t *at);
/* Writes 1..4 bytes. */
int th_utf8_write(uint32_t code_point, char out[4]);
/* THESPIS_INVALID with the byte's position for overlong forms, surrogates, anything past U+10FFFF, truncation, and U+0000. */
thespis_status th_utf8_check(const char *text, size_t bytes, thespis_error *error);

int th_is_white_space(uint32_t c); /* the 25 code points of Unicode White_Space */
int th_is_letter(uint32_t c);      /* Unicode 16 categories */
int th_is_mark(uint32_t c);
int th_is_number(uint32_t c);

/* NFC with Unicode 9.0 data: a code point assigned later neither decomposes, nor composes, nor reorders. *out is freed with
 * th_free. */
thespis_status th_nfc(const char *text, size_t bytes, char **out, size_t *out_bytes, thespis_error *error);

#endif
