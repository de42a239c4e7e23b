/* vocab.c - see vocab.h. */
#include "text/vocab.h"

#include <string.h>

#include "base/memory.h"
#include "text/unicode.h"

#define MAX_PROBES 1024 /* a table that needs more was made to be slow */

/* Bytes of a string written in the byte alphabet, or -1 at a character outside it. out may hold as many bytes as written. */
static int64_t unmap(const char *written, size_t length, char *out)
{
    size_t count = 0;
    for (size_t at = 0; at < length;) {
        uint32_t c = th_utf8_next(written, length, &at);
        int direct = (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
        if (direct)
            out[count++] = (char)c;
        else if (c >= 0x100 && c <= 0x120)
            out[count++] = (char)(c - 0x100);
        else if (c >= 0x121 && c <= 0x142)
            out[count++] = (char)(c - 0x121 + 0x7F);
        else if (c == 0x143)
            out[count++] = (char)0xAD;
        else
            return -1;
    }
    return (int64_t)count;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    return x ^ x >> 32;
}

static uint64_t hash_bytes(const char *content, size_t length, int written)
{
    uint64_t h = mix(length * 2 + (size_t)written);
    while (length >= 8) {
        uint64_t word;
        memcpy(&word, content, 8);
        h = mix(h ^ word) + 0x9E3779B97F4A7C15u;
        content += 8;
        length -= 8;
    }
    uint64_t tail = 0;
    memcpy(&tail, content, length);
    return mix(h ^ tail);
}

static size_t table_mask(size_t items)
{
    size_t size = 16;
    while (size < items * 2) size *= 2;
    return size - 1;
}

/* The slot of a content: its own or the free one where it belongs. *slot is only set on 1. */
static int find_slot(const struct th_vocab *vocab, const char *content, size_t length, int written, size_t *slot)
{
    size_t at = hash_bytes(content, length, written) & vocab->slot_mask;
    for (int probe = 0; probe < MAX_PROBES; probe++, at = (at + 1) & vocab->slot_mask) {
        *slot = at;
        if (vocab->slots[at] == 0) return 1;
        const struct th_vocab_entry *e = &vocab->entries[vocab->slots[at] - 1];
        if (e->length == length && e->written == written && memcmp(vocab->bytes + e->offset, content, length) == 0) return 1;
    }
    return 0;
}

thespis_status th_vocab_begin(struct th_vocab *vocab, size_t entries, size_t bytes, thespis_error *error)
{
    *vocab = (struct th_vocab){.slot_mask = table_mask(entries), .byte_capacity = bytes};
    for (int i = 0; i < 256; i++) vocab->byte_ids[i] = -1;
    TH_TRY(TH_ALLOC(&vocab->bytes, bytes, "the vocabulary's strings", error));
    TH_TRY(TH_ALLOC(&vocab->entries, entries, "the vocabulary", error));
    return TH_ALLOC(&vocab->slots, vocab->slot_mask + 1, "the vocabulary's table", error);
}

thespis_status th_vocab_add(struct th_vocab *vocab, const char *written, size_t length, int32_t id, thespis_error *error)
{
    char *content = vocab->bytes + vocab->byte_count;
    int64_t raw = unmap(written, length, content);
    int is_written = raw < 0;
    if (is_written) {
        memcpy(content, written, length);
        raw = (int64_t)length;
    }
    size_t slot;
    if (!find_slot(vocab, content, (size_t)raw, is_written, &slot))
        return th_fail(error, THESPIS_FORMAT, "model.vocab: too many entries fall on one place of the table, as '%.60s' does",
                       written);
    struct th_vocab_entry *entry = &vocab->entries[vocab->count++];
    *entry = (struct th_vocab_entry){(uint32_t)vocab->byte_count, (uint32_t)raw, id, is_written};
    vocab->slots[slot] = (uint32_t)vocab->count;
    vocab->byte_count += (size_t)raw;
    if (raw == 1 && !is_written) vocab->byte_ids[(uint8_t)content[0]] = id;
    return THESPIS_OK;
}

thespis_status th_vocab_end(struct th_vocab *vocab, thespis_error *error)
{
    for (int i = 0; i < 256; i++)
        if (vocab->byte_ids[i] < 0)
            return th_fail(error, THESPIS_FORMAT, "model.vocab has no entry for byte 0x%02X; a byte-level vocabulary has all 256",
                           i);
    return THESPIS_OK;
}

int32_t th_vocab_find(const struct th_vocab *vocab, const char *content, size_t length)
{
    size_t slot;
    if (!find_slot(vocab, content, length, 0, &slot) || vocab->slots[slot] == 0) return -1;
    return vocab->entries[vocab->slots[slot] - 1].id;
}

int32_t th_vocab_find_written(const struct th_vocab *vocab, const char *written, size_t length, char *scratch)
{
    int64_t raw = unmap(written, length, scratch);
    size_t slot;
    int found = raw < 0 ? find_slot(vocab, written, length, 1, &slot) : find_slot(vocab, scratch, (size_t)raw, 0, &slot);
    return found && vocab->slots[slot] != 0 ? vocab->entries[vocab->slots[slot] - 1].id : -1;
}

thespis_status th_vocab_begin_merges(struct th_vocab *vocab, size_t merges, thespis_error *error)
{
    vocab->merge_mask = table_mask(merges);
    TH_TRY(TH_ALLOC(&vocab->merges, vocab->merge_mask + 1, "the merges", error));
    for (size_t i = 0; i <= vocab->merge_mask; i++) vocab->merges[i].left = -1;
    return THESPIS_OK;
}

static struct th_merge *merge_slot(const struct th_vocab *vocab, int32_t left, int32_t right)
{
    size_t at = mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right) & vocab->merge_mask;
    for (int probe = 0; probe < MAX_PROBES; probe++, at = (at + 1) & vocab->merge_mask) {
        struct th_merge *merge = &vocab->merges[at];
        if (merge->left < 0 || (merge->left == left && merge->right == right)) return merge;
    }
    return NULL;
}

/* Room for the two sides of a merge, joined, and behind them for the bytes they stand for. */
static thespis_status reserve_scratch(struct th_vocab *vocab, size_t bytes, thespis_error *error)
{
    if (bytes <= vocab->scratch_bytes) return THESPIS_OK;
    th_free(vocab->scratch);
    vocab->scratch_bytes = 0;
    TH_TRY(TH_ALLOC(&vocab->scratch, bytes, "a merge", error));
    vocab->scratch_bytes = bytes;
    return THESPIS_OK;
}

thespis_status th_vocab_add_merge(struct th_vocab *vocab, uint32_t rank, const char *left, size_t left_bytes, const char *right,
                                  size_t right_bytes, thespis_error *error)
{
    size_t bytes = left_bytes + right_bytes;
    TH_TRY(reserve_scratch(vocab, 2 * bytes + 256, error));
    char *joined = vocab->scratch;
    memcpy(joined, left, left_bytes);
    memcpy(joined + left_bytes, right, right_bytes);
    int32_t a = th_vocab_find_written(vocab, joined, left_bytes, joined + bytes);
    int32_t b = th_vocab_find_written(vocab, joined + left_bytes, right_bytes, joined + bytes);
    int32_t merged = th_vocab_find_written(vocab, joined, bytes, joined + bytes);
    if (a < 0 || b < 0 || merged < 0)
        return th_fail(error, THESPIS_FORMAT, "model.merges[%u]: %s of '%.60s' + '%.60s' is not in model.vocab", rank,
                       a < 0   ? "the left side"
                       : b < 0 ? "the right side"
                               : "the result",
                       left, right);
    struct th_merge *merge = merge_slot(vocab, a, b);
    if (merge == NULL)
        return th_fail(error, THESPIS_FORMAT, "model.merges[%u]: too many merges fall on one place of the table", rank);
    *merge = (struct th_merge){a, b, rank, merged}; /* of a repeated pair the last rank holds */
    return THESPIS_OK;
}

const struct th_merge *th_vocab_merge(const struct th_vocab *vocab, int32_t left, int32_t right)
{
    const struct th_merge *merge = merge_slot(vocab, left, right);
    return merge == NULL || merge->left < 0 ? NULL : merge;
}

void th_vocab_free(struct th_vocab *vocab)
{
    th_free(vocab->bytes);
    th_free(vocab->entries);
    th_free(vocab->slots);
    th_free(vocab->merges);
    th_free(vocab->scratch);
    *vocab = (struct th_vocab){0};
}
