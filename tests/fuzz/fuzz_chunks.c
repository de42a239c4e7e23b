/* fuzz_chunks.c - cutting of text: no word is lost, no chunk is empty. The first two bytes choose how it is cut. */
#include "fuzz.h"

#include "text/chunk.h"
#include "text/unicode.h"
#include "text/validate.h"

/* Hash of a text without speaker tags and white space. */
static uint64_t spoken(const char *text, size_t bytes, uint64_t hash)
{
    for (size_t at = 0; at < bytes;) {
        size_t from = at, tag = th_speaker_tag(text + at, bytes - at, NULL);
        if (tag > 0) {
            at += tag;
            continue;
        }
        if (th_is_white_space(th_utf8_next(text, bytes, &at))) continue;
        for (size_t i = from; i < at; i++) hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    }
    return hash;
}

static void check(const char *text, size_t bytes, const struct th_chunks *chunks, enum th_granularity granularity, size_t target)
{
    uint64_t all = 1;
    size_t at = 0;
    for (size_t i = 0; i < chunks->count; i++) {
        const struct th_chunk *c = &chunks->items[i];
        if (c->source_begin != at || c->source_end <= at) fuzz_bad("chunks", "the ranges do not tile the text");
        at = c->source_end;
        if (spoken(c->text, c->bytes, 1) != spoken(text + c->source_begin, at - c->source_begin, 1))
            fuzz_bad("chunks", "words differ");
        all = spoken(c->text, c->bytes, all);
        if (th_utf8_check(c->text, c->bytes, NULL) != THESPIS_OK) fuzz_bad("chunks", "a character is torn");
        if (granularity != TH_CUT_NONE && c->bytes > target && strpbrk(c->text, "]>") == NULL) fuzz_bad("chunks", "too long");
    }
    if (chunks->count > 0 && at != bytes) fuzz_bad("chunks", "the end is lost");
    if (all != spoken(text, bytes, 1)) fuzz_bad("chunks", "words are lost");
}

static void fuzz(const uint8_t *data, size_t size)
{
    struct th_chunks chunks;
    thespis_error error;
    if (size < 2) return;
    enum th_granularity granularity = (enum th_granularity)(data[0] & 3);
    size_t target = 40 + (size_t)data[1] * 2;
    const char *text = (const char *)data + 2;
    size -= 2;
    if (memchr(text, 0, size) != NULL || th_utf8_check(text, size, &error) != THESPIS_OK) return;
    thespis_status status = th_chunks_cut(text, size, granularity, target, 1 + (data[0] >> 2) % 4, &chunks, &error);
    if (!fuzz_told(status, &error)) return;
    check(text, size, &chunks, granularity, target);
    th_chunks_free(&chunks);
}

FUZZ_TARGET
