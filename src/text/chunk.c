/* chunk.c - see chunk.h: the whole text when it fits, otherwise pieces of turns put together to chunks. */
#include "text/chunk.h"

#include <string.h>

#include "base/memory.h"
#include "text/chunk_parts.h"
#include "text/unicode.h"
#include "text/validate.h"

/* A chunk being put together: pieces [first, first + count). */
struct group {
    size_t first, count;
    size_t bytes;      /* of its text */
    uint32_t speakers; /* bit N: speaker N; a text without tags counts as one speaker */
    int speaks;
};

struct groups {
    struct group *items; /* [count] */
    size_t count, capacity;
};

static int count_bits(uint32_t bits)
{
    return __builtin_popcount(bits);
}

/* The speakers of a raw text; what stands before the first tag is speaker 0's. */
static uint32_t speakers_of(const char *text, size_t bytes)
{
    uint32_t speakers = 0;
    size_t at = 0, blank = th_leading_space(text, bytes);
    if (blank < bytes && th_speaker_tag(text + blank, bytes - blank, NULL) == 0) speakers = 1;
    while (at < bytes) {
        const char *less = memchr(text + at, '<', bytes - at);
        if (less == NULL) break;
        at = (size_t)(less - text);
        int speaker;
        size_t tag = th_speaker_tag(less, bytes - at, &speaker);
        if (tag > 0) speakers |= (uint32_t)1 << speaker;
        at += tag > 0 ? tag : 1;
    }
    return speakers;
}

/* ---- pieces to chunks ---- */

static struct group group_of(const struct th_cut *cut, size_t i)
{
    const struct th_piece *piece = &cut->pieces[i];
    int speaker = cut->turns[piece->turn].speaker;
    return (struct group){.first = i,
                          .count = 1,
                          .bytes = th_cut_tag_bytes(speaker) + piece->text_end - piece->text_begin,
                          .speakers = (uint32_t)1 << (speaker < 0 ? 0 : speaker),
                          .speaks = piece->speaks};
}

static int fits(const struct th_cut *cut, const struct group *a, const struct group *b)
{
    return a->bytes + 1 + b->bytes <= cut->target && count_bits(a->speakers | b->speakers) <= cut->max_speakers;
}

static void join(struct group *a, const struct group *b)
{
    a->count += b->count;
    a->bytes += 1 + b->bytes;
    a->speakers |= b->speakers;
    a->speaks |= b->speaks;
}

/* Pieces in order; under AUTO turns share a chunk while they fit. One that has nothing to speak joins a neighbour if it can. */
static thespis_status group_pieces(const struct th_cut *cut, struct groups *groups, thespis_error *error)
{
    int tagged = cut->turn_count > 0 && cut->turns[0].speaker >= 0;
    for (size_t i = 0; i < cut->piece_count; i++) {
        struct group next = group_of(cut, i), *last = groups->count > 0 ? &groups->items[groups->count - 1] : NULL;
        int wanted = cut->granularity == TH_CUT_AUTO || (last != NULL && !last->speaks) || !next.speaks;
        if (tagged && last != NULL && wanted && fits(cut, last, &next)) {
            join(last, &next);
            continue;
        }
        TH_TRY(th_cut_grow(&groups->items, groups->count, &groups->capacity, sizeof *groups->items, "chunks", error));
        groups->items[groups->count++] = next;
    }
    return THESPIS_OK;
}

/* ---- chunks to text ---- */

static size_t write_piece(const struct th_cut *cut, const struct th_piece *piece, char *to)
{
    const struct th_turn *turn = &cut->turns[piece->turn];
    size_t tag = th_cut_tag_bytes(turn->speaker), bytes = piece->text_end - piece->text_begin;
    if (tag > 0) {
        memcpy(to, "<|speaker:", 10);
        if (turn->speaker >= 10) to[10] = '1';
        to[tag - 4] = (char)('0' + turn->speaker % 10);
        memcpy(to + tag - 3, "|> ", 3);
    }
    memcpy(to + tag, cut->text + piece->text_begin, bytes);
    return tag + bytes;
}

/* Where the source of a piece begins: at its turn's tag if it is the first of the turn. */
static size_t piece_source(const struct th_cut *cut, size_t i)
{
    const struct th_piece *piece = &cut->pieces[i];
    const struct th_turn *turn = &cut->turns[piece->turn];
    return th_cut_source(cut, i == 0 || cut->pieces[i - 1].turn != piece->turn ? turn->begin : piece->begin);
}

static thespis_status write_chunks(const struct th_cut *cut, const struct groups *groups, size_t source_bytes,
                                   struct th_chunks *out, thespis_error *error)
{
    size_t total = 0;
    for (size_t i = 0; i < groups->count; i++) total += groups->items[i].bytes + 1;
    TH_TRY(TH_ALLOC(&out->storage, total, "the chunks' text", error));
    TH_TRY(TH_ALLOC(&out->items, groups->count, "chunks", error));
    out->capacity = groups->count;
    char *to = out->storage;
    for (size_t i = 0; i < groups->count; i++) {
        const struct group *group = &groups->items[i];
        struct th_chunk *chunk = &out->items[out->count++];
        *chunk =
            (struct th_chunk){.text = to, .bytes = group->bytes, .speakers = count_bits(group->speakers), .speaks = group->speaks};
        for (size_t k = 0; k < group->count; k++) {
            if (k > 0) *to++ = '\n';
            to += write_piece(cut, &cut->pieces[group->first + k], to);
        }
        *to++ = 0;
        chunk->source_begin = i == 0 ? 0 : piece_source(cut, group->first);
        chunk->source_end = source_bytes;
        if (i > 0) out->items[i - 1].source_end = chunk->source_begin;
    }
    return THESPIS_OK;
}

/* ---- the whole ---- */

static thespis_status keep_whole(const char *text, size_t bytes, int speaks, struct th_chunks *out, thespis_error *error)
{
    TH_TRY(TH_ALLOC(&out->storage, bytes + 1, "the chunk's text", error));
    TH_TRY(TH_ALLOC(&out->items, 1, "a chunk", error));
    memcpy(out->storage, text, bytes);
    out->count = out->capacity = 1;
    out->items[0] = (struct th_chunk){out->storage, bytes, 0, bytes, count_bits(speakers_of(text, bytes)), speaks};
    return THESPIS_OK;
}

static void free_cut(struct th_cut *cut)
{
    th_free(cut->text);
    th_free(cut->folds);
    th_free(cut->turns);
    th_free(cut->may_cut);
    th_free(cut->speech);
    th_free(cut->pieces);
}

/* Cuts, or finds that nothing has to be cut. */
static thespis_status cut_text(struct th_cut *cut, const char *text, size_t bytes, struct groups *groups, struct th_chunks *out,
                               thespis_error *error)
{
    int few = bytes <= cut->target && count_bits(speakers_of(text, bytes)) <= cut->max_speakers;
    TH_TRY(th_cut_fold(cut, text, bytes, error));
    TH_TRY(th_cut_find_turns(cut, error));
    TH_TRY(th_cut_mark(cut, error));
    int speaks = 0;
    for (size_t i = 0; i < cut->turn_count; i++) speaks |= th_cut_speaks(cut, cut->turns[i].body, cut->turns[i].end);
    if (cut->granularity == TH_CUT_NONE || (cut->granularity == TH_CUT_AUTO && few))
        return keep_whole(text, bytes, speaks, out, error);
    TH_TRY(th_cut_pieces(cut, error));
    TH_TRY(group_pieces(cut, groups, error));
    if (groups->count == 1 && few) return keep_whole(text, bytes, speaks, out, error);
    return write_chunks(cut, groups, bytes, out, error);
}

thespis_status th_chunks_cut(const char *text, size_t bytes, enum th_granularity granularity, size_t target_bytes, int max_speakers,
                             struct th_chunks *out, thespis_error *error)
{
    *out = (struct th_chunks){0};
    if (target_bytes < TH_CHUNK_MIN_TARGET)
        return th_fail(error, THESPIS_INVALID, "chunks of at most %zu bytes are too short; give at least %d", target_bytes,
                       TH_CHUNK_MIN_TARGET);
    if (max_speakers < 1)
        return th_fail(error, THESPIS_INVALID, "chunks of %d speakers hold nothing; give at least 1", max_speakers);
    TH_TRY(th_utf8_check(text, bytes, error));
    if (th_leading_space(text, bytes) == bytes) return THESPIS_OK;
    struct th_cut cut = {.granularity = granularity, .target = target_bytes, .max_speakers = max_speakers};
    struct groups groups = {0};
    thespis_status status = cut_text(&cut, text, bytes, &groups, out, error);
    free_cut(&cut);
    th_free(groups.items);
    if (status != THESPIS_OK) th_chunks_free(out);
    return status;
}

void th_chunks_free(struct th_chunks *chunks)
{
    if (chunks == NULL) return;
    th_free(chunks->storage);
    th_free(chunks->items);
    *chunks = (struct th_chunks){0};
}
