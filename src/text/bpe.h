/* bpe.h - byte-pair encoding of one piece. */
#ifndef THESPIS_TEXT_BPE_H
#define THESPIS_TEXT_BPE_H

#include "text/tokenizer.h"
#include "text/vocab.h"

/* Room for the symbols of a piece, kept between pieces; released with th_bpe_free. */
struct th_bpe {
    struct th_bpe_symbol *symbols; /* [capacity] */
    uint64_t *heap;                /* [2 * capacity], rank << 32 | position of the pair's left symbol */
    size_t heap_count, capacity;
};

/* Appends the ids of piece (its raw bytes). */
thespis_status th_bpe_encode(struct th_bpe *bpe, const struct th_vocab *vocab, const char *piece, size_t bytes, struct th_ids *ids,
                             thespis_error *error);
void th_bpe_free(struct th_bpe *bpe);
thespis_status th_ids_push(struct th_ids *ids, int32_t id, thespis_error *error);

#endif
