/* bpe.c - see bpe.h. Symbols form a linked list; a heap of candidate pairs, ordered by rank and then position, says which is next,
 * so that a piece of n bytes takes n log n steps however it is made. */
#include "text/bpe.h"

#include "base/memory.h"

#define MAX_PIECE 0x3FFFFFFF /* bytes; positions are int32 */

struct th_bpe_symbol {
    int32_t id; /* -1: swallowed by the symbol before */
    int32_t previous, next;
};

thespis_status th_ids_push(struct th_ids *ids, int32_t id, thespis_error *error)
{
    if (ids->count == ids->capacity) {
        size_t wanted = ids->capacity * 2 + 64;
        int32_t *grown = th_realloc(ids->data, ids->count, wanted, sizeof *grown);
        if (grown == NULL) return th_fail_memory(error, "token ids", wanted * sizeof *grown);
        ids->data = grown;
        ids->capacity = wanted;
    }
    ids->data[ids->count++] = id;
    return THESPIS_OK;
}

/* n bytes offer at most n - 1 pairs, and each of the fewer than n merges takes one out and offers at most two: 2 n pairs at a time.
 */
static thespis_status make_room(struct th_bpe *bpe, size_t bytes, thespis_error *error)
{
    if (bytes > MAX_PIECE)
        return th_fail(error, THESPIS_LIMIT, "a word of %zu bytes is longer than the tokenizer takes (%d)", bytes, MAX_PIECE);
    if (bytes <= bpe->capacity) return THESPIS_OK;
    size_t wanted = bytes < 256 ? 256 : bytes;
    th_bpe_free(bpe);
    TH_TRY(TH_ALLOC(&bpe->symbols, wanted, "the symbols of a word", error));
    TH_TRY(TH_ALLOC(&bpe->heap, wanted * 2, "the pairs of a word", error));
    bpe->capacity = wanted;
    return THESPIS_OK;
}

static void push(struct th_bpe *bpe, uint64_t key)
{
    uint64_t *heap = bpe->heap;
    size_t at = bpe->heap_count++;
    while (at > 0 && heap[(at - 1) / 2] > key) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = key;
}

static uint64_t pop(struct th_bpe *bpe)
{
    uint64_t *heap = bpe->heap, top = heap[0], key = heap[--bpe->heap_count];
    size_t at = 0, count = bpe->heap_count;
    for (size_t child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= key) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = key;
    return top;
}

/* The merge of symbol `left` with its neighbour, or NULL. */
static const struct th_merge *merge_at(const struct th_bpe *bpe, const struct th_vocab *vocab, int32_t left)
{
    const struct th_bpe_symbol *symbol = &bpe->symbols[left];
    return symbol->id < 0 || symbol->next < 0 ? NULL : th_vocab_merge(vocab, symbol->id, bpe->symbols[symbol->next].id);
}

static void offer(struct th_bpe *bpe, const struct th_vocab *vocab, int32_t left)
{
    const struct th_merge *merge = left < 0 ? NULL : merge_at(bpe, vocab, left);
    if (merge != NULL) push(bpe, (uint64_t)merge->rank << 32 | (uint32_t)left);
}

static void merge_all(struct th_bpe *bpe, const struct th_vocab *vocab)
{
    struct th_bpe_symbol *symbols = bpe->symbols;
    while (bpe->heap_count > 0) {
        uint64_t key = pop(bpe);
        int32_t left = (int32_t)(uint32_t)key;
        /* A rank belongs to one pair alone: if it is still the rank here, the pair is still the one that was offered. */
        const struct th_merge *merge = merge_at(bpe, vocab, left);
        if (merge == NULL || merge->rank != key >> 32) continue;
        int32_t right = symbols[left].next;
        symbols[left].id = merge->merged;
        symbols[left].next = symbols[right].next;
        symbols[right].id = -1;
        if (symbols[left].next >= 0) symbols[symbols[left].next].previous = left;
        offer(bpe, vocab, symbols[left].previous);
        offer(bpe, vocab, left);
    }
}

thespis_status th_bpe_encode(struct th_bpe *bpe, const struct th_vocab *vocab, const char *piece, size_t bytes, struct th_ids *ids,
                             thespis_error *error)
{
    TH_TRY(make_room(bpe, bytes, error));
    int32_t count = (int32_t)bytes;
    for (int32_t i = 0; i < count; i++)
        bpe->symbols[i] = (struct th_bpe_symbol){vocab->byte_ids[(uint8_t)piece[i]], i - 1, i + 1 < count ? i + 1 : -1};
    bpe->heap_count = 0;
    for (int32_t i = 0; i + 1 < count; i++) offer(bpe, vocab, i);
    merge_all(bpe, vocab);
    for (int32_t i = 0; i >= 0 && count > 0; i = bpe->symbols[i].next) TH_TRY(th_ids_push(ids, bpe->symbols[i].id, error));
    return THESPIS_OK;
}

void th_bpe_free(struct th_bpe *bpe)
{
    th_free(bpe->symbols);
    th_free(bpe->heap);
    *bpe = (struct th_bpe){0};
}
