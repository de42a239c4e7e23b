/* vocab.h - vocabulary entries and merges in hash tables: string to id, id to string, pair of ids to merge. */
#ifndef THESPIS_TEXT_VOCAB_H
#define THESPIS_TEXT_VOCAB_H

#include "base/error.h"

#define TH_MAX_TOKEN_ID 0xFFFFFF /* ids above are refused: tables are indexed by id */

struct th_vocab_entry {
    uint32_t offset, length; /* the content, in th_vocab.bytes */
    int32_t id;
    int32_t
        written; /* 1: the file's string holds characters outside the byte alphabet, so it is kept as written and never matches */
};

struct th_merge {
    int32_t left, right; /* ids of the pair; left -1: a free slot */
    uint32_t rank;       /* lower goes first */
    int32_t merged;      /* id of the result */
};

struct th_vocab {
    char *bytes; /* [byte_count], contents one after the other */
    size_t byte_count, byte_capacity;
    struct th_vocab_entry *entries; /* [count] */
    size_t count;
    uint32_t *slots; /* [slot_mask + 1], entry + 1 or 0 */
    size_t slot_mask;
    struct th_merge *merges; /* [merge_mask + 1], open addressing */
    size_t merge_mask;
    char *scratch; /* [scratch_bytes], a merge's strings while merges are added */
    size_t scratch_bytes;
    int32_t byte_ids[256]; /* the symbol each byte begins as */
};

/* Room for exactly `entries` entries of together `bytes` bytes. */
thespis_status th_vocab_begin(struct th_vocab *vocab, size_t entries, size_t bytes, thespis_error *error);
/* Adds an entry given as the file writes it (each byte one character of the byte alphabet). */
thespis_status th_vocab_add(struct th_vocab *vocab, const char *written, size_t length, int32_t id, thespis_error *error);
/* Checks that each of the 256 bytes has an entry. */
thespis_status th_vocab_end(struct th_vocab *vocab, thespis_error *error);

/* Room for `merges` merges; then one after the other in the order of their ranks, sides as the file writes them. */
thespis_status th_vocab_begin_merges(struct th_vocab *vocab, size_t merges, thespis_error *error);
thespis_status th_vocab_add_merge(struct th_vocab *vocab, uint32_t rank, const char *left, size_t left_bytes, const char *right,
                                  size_t right_bytes, thespis_error *error);
void th_vocab_free(struct th_vocab *vocab);

/* Entry whose content is these raw bytes, or -1. */
int32_t th_vocab_find(const struct th_vocab *vocab, const char *content, size_t length);
/* Entry that the file writes like this, or -1. scratch has room for `length` bytes. */
int32_t th_vocab_find_written(const struct th_vocab *vocab, const char *written, size_t length, char *scratch);
/* The merge of a pair, or NULL. */
const struct th_merge *th_vocab_merge(const struct th_vocab *vocab, int32_t left, int32_t right);

#endif
