/* scan.h - the pieces that the tokenizer's split pattern makes, by a hand-written scanner instead of a regular expression. */
#ifndef THESPIS_TEXT_SCAN_H
#define THESPIS_TEXT_SCAN_H

#include <stddef.h>

/* The two patterns in use; they differ in whether combining marks belong to words. */
enum th_pattern { TH_PATTERN_UNKNOWN = -1, TH_PATTERN_LETTERS = 0, TH_PATTERN_LETTERS_AND_MARKS = 1 };

/* Which pattern is this regular expression, byte for byte? */
enum th_pattern th_pattern_find(const char *regex, size_t bytes);

/* End of the piece that begins at `at` (< bytes) of valid UTF-8. */
size_t th_scan_piece(enum th_pattern pattern, const char *text, size_t bytes, size_t at);

#endif
