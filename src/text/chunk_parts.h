/* chunk_parts.h - the steps of cutting, for chunk*.c alone: fold white space, find turns, mark what must stay whole, find
 * boundaries, cut and pack. */
#ifndef THESPIS_TEXT_CHUNK_PARTS_H
#define THESPIS_TEXT_CHUNK_PARTS_H

#include "text/chunk.h"

/* A run of white space that became one space, or nothing at the ends of the text. */
struct th_fold {
    size_t flat_end; /* where the space ends in the flat text */
    size_t shift;    /* source position - flat position, from flat_end on */
    int paragraph;   /* it held a blank line */
};

/* What one speaker says: [begin, end) of the flat text, the words from `body` on. */
struct th_turn {
    size_t begin, body, end;
    int speaker; /* -1: the text has no tags */
};

/* A part of a turn: the range [begin, end), of which [text_begin, text_end) is not white space at its edges. */
struct th_piece {
    size_t begin, end, text_begin, text_end;
    size_t turn;
    int speaks;
    int whole; /* longer than the limit because of a span */
};

struct th_cut {
    enum th_granularity granularity;
    size_t target;
    int max_speakers;
    char *text; /* [bytes], the flat text */
    size_t bytes;
    struct th_fold *folds; /* [fold_count], ascending */
    size_t fold_count, fold_capacity;
    struct th_turn *turns; /* [turn_count] */
    size_t turn_count, turn_capacity;
    uint64_t *may_cut;       /* [bytes / 64 + 1], bit p: text may be cut in front of byte p */
    uint64_t *speech;        /* [bytes / 64 + 1], bit p: byte p begins a letter or a number, or ends a cue */
    struct th_piece *pieces; /* [piece_count], in order */
    size_t piece_count, piece_capacity;
};

/* Levels of boundaries, from the ones that sound best to the last resort. */
enum th_level { TH_LEVEL_UNIT, TH_LEVEL_CLAUSE, TH_LEVEL_SPACE, TH_LEVEL_GRAPHEME };

/* Makes room for one more item in an array of `count` items. `array` is the address of the pointer to the items, of any type. */
thespis_status th_cut_grow(void *array, size_t count, size_t *capacity, size_t size, const char *what, thespis_error *error);

/* chunk_fold.c */
thespis_status th_cut_fold(struct th_cut *cut, const char *text, size_t bytes, thespis_error *error);
thespis_status th_cut_find_turns(struct th_cut *cut, thespis_error *error);
/* Did the space at this place of the flat text stand for a blank line? */
int th_cut_is_paragraph(const struct th_cut *cut, size_t space);
/* Where a place of the flat text lies in the source. */
size_t th_cut_source(const struct th_cut *cut, size_t flat);
/* Bytes in front of the words of a turn's piece: its tag and a blank, or nothing. */
size_t th_cut_tag_bytes(int speaker);
size_t th_skip_space(const char *text, size_t at, size_t end);
size_t th_trim_end(const char *text, size_t begin, size_t end);
/* The code point that ends at *at (> begin), moving *at to where it begins. */
uint32_t th_utf8_before(const char *text, size_t begin, size_t *at);

/* chunk_spans.c: fills may_cut and speech. */
thespis_status th_cut_mark(struct th_cut *cut, thespis_error *error);
int th_cut_may(const struct th_cut *cut, size_t at);
/* First place after `at` where the text may be cut, at most `end`. */
size_t th_cut_step(const struct th_cut *cut, size_t at, size_t end);
int th_cut_speaks(const struct th_cut *cut, size_t begin, size_t end);

/* chunk_sentences.c: where the unit, clause or word that begins at `at` ends, white space after it included; at most `end`. */
size_t th_cut_next(const struct th_cut *cut, size_t at, size_t end, enum th_level level);
/* chunk_words.c: does the full stop at `stop` belong to its word, so that no sentence ends there? `unit` is where the sentence
 * began, `next` where the following word begins. */
int th_is_abbreviation(const char *text, size_t unit, size_t stop, size_t next, size_t end);

/* chunk_pieces.c */
thespis_status th_cut_pieces(struct th_cut *cut, thespis_error *error);

#endif
