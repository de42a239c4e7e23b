/* unicode_tables.h - ranges of code points, ascending; unicode_tables.c is written by tools/text/make_tables.py. */
#ifndef THESPIS_TEXT_UNICODE_TABLES_H
#define THESPIS_TEXT_UNICODE_TABLES_H

#include <stddef.h>
#include <stdint.h>

struct th_range {
    uint32_t first, last;
};

/* Unicode 16 categories L, M and N, as the reference tokenizer's pattern has them. */
extern const struct th_range th_letters[], th_marks[], th_numbers[];
extern const size_t th_letters_count, th_marks_count, th_numbers_count;
/* Code points assigned in Unicode 9.0 or before: the ones its NFC knows. */
extern const struct th_range th_present_in_nine[];
extern const size_t th_present_in_nine_count;

/* Is c in one of the ranges? */
int th_in_ranges(uint32_t c, const struct th_range *ranges, size_t count);

#endif
