/* chunk_fold.c - line breaks folded into spaces, with the way back to the source, and the turns of the speakers. */
#include <stdint.h>
#include <string.h>

#include "base/memory.h"
#include "text/chunk_parts.h"
#include "text/unicode.h"
#include "text/validate.h"

thespis_status th_cut_grow(void *array, size_t count, size_t *capacity, size_t size, const char *what, thespis_error *error)
{
    if (count < *capacity) return THESPIS_OK;
    size_t wanted = *capacity == 0 ? 16 : *capacity + *capacity / 2;
    void *items;
    memcpy(&items, array, sizeof items);
    void *grown = th_realloc(items, *capacity, wanted, size);
    if (grown == NULL) return th_fail_memory(error, what, wanted * size);
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return THESPIS_OK;
}

size_t th_skip_space(const char *text, size_t at, size_t end)
{
    return at + th_leading_space(text + at, end - at);
}

uint32_t th_utf8_before(const char *text, size_t begin, size_t *at)
{
    size_t end = *at;
    do *at -= 1;
    while (*at > begin && ((uint8_t)text[*at] & 0xC0) == 0x80);
    size_t from = *at;
    return th_utf8_next(text, end, &from);
}

size_t th_trim_end(const char *text, size_t begin, size_t end)
{
    while (end > begin) {
        size_t at = end;
        if (!th_is_white_space(th_utf8_before(text, begin, &at))) break;
        end = at;
    }
    return end;
}

/* How many lines a code point ends: 2 for one that ends a paragraph by itself. */
static int line_breaks(uint32_t c, uint32_t before)
{
    if (c == '\n') return before != '\r';
    if (c == 0x2029) return 2;
    return (c >= 0x0B && c <= 0x0D) || c == 0x85 || c == 0x2028;
}

/* Adds the run of white space [begin, end) of the source, which holds `breaks` line breaks. */
static thespis_status add_run(struct th_cut *cut, const char *text, size_t bytes, size_t begin, size_t end, int breaks,
                              thespis_error *error)
{
    if (breaks == 0) {
        memcpy(cut->text + cut->bytes, text + begin, end - begin);
        cut->bytes += end - begin;
        return THESPIS_OK;
    }
    TH_TRY(th_cut_grow(&cut->folds, cut->fold_count, &cut->fold_capacity, sizeof *cut->folds, "folded white space", error));
    if (begin > 0 && end < bytes) cut->text[cut->bytes++] = ' ';
    cut->folds[cut->fold_count++] = (struct th_fold){cut->bytes, end - cut->bytes, breaks > 1};
    return THESPIS_OK;
}

thespis_status th_cut_fold(struct th_cut *cut, const char *text, size_t bytes, thespis_error *error)
{
    TH_TRY(TH_ALLOC(&cut->text, bytes + 1, "the text to cut", error));
    for (size_t at = 0; at < bytes;) {
        size_t begin = at, next = at;
        uint32_t c = th_utf8_next(text, bytes, &next), before = 0;
        if (!th_is_white_space(c)) {
            memcpy(cut->text + cut->bytes, text + at, next - at);
            cut->bytes += next - at;
            at = next;
            continue;
        }
        int breaks = 0;
        while (th_is_white_space(c)) {
            breaks = breaks > 1 ? 2 : breaks + line_breaks(c, before);
            before = c;
            at = next;
            if (at == bytes) break;
            c = th_utf8_next(text, bytes, &next);
        }
        TH_TRY(add_run(cut, text, bytes, begin, at, breaks, error));
    }
    return THESPIS_OK;
}

/* Index of the first fold whose space ends after `at`. */
static size_t fold_after(const struct th_cut *cut, size_t at)
{
    size_t low = 0, high = cut->fold_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (cut->folds[middle].flat_end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int th_cut_is_paragraph(const struct th_cut *cut, size_t space)
{
    size_t i = fold_after(cut, space);
    return i < cut->fold_count && cut->folds[i].flat_end == space + 1 && cut->folds[i].paragraph;
}

size_t th_cut_source(const struct th_cut *cut, size_t flat)
{
    size_t i = fold_after(cut, flat);
    return flat + (i == 0 ? 0 : cut->folds[i - 1].shift);
}

size_t th_cut_tag_bytes(int speaker)
{
    return speaker < 0 ? 0 : speaker < 10 ? strlen("<|speaker:0|> ") : strlen("<|speaker:10|> ");
}

/* Adds a turn unless nothing is said in it. */
static thespis_status add_turn(struct th_cut *cut, size_t begin, size_t body, size_t end, int speaker, thespis_error *error)
{
    if (th_skip_space(cut->text, body, end) == end) return THESPIS_OK;
    TH_TRY(th_cut_grow(&cut->turns, cut->turn_count, &cut->turn_capacity, sizeof *cut->turns, "speakers' turns", error));
    cut->turns[cut->turn_count++] = (struct th_turn){begin, body, end, speaker};
    return THESPIS_OK;
}

thespis_status th_cut_find_turns(struct th_cut *cut, thespis_error *error)
{
    size_t begin = 0, body = 0;
    int speaker = -1;
    for (size_t at = 0; at < cut->bytes;) {
        const char *less = memchr(cut->text + at, '<', cut->bytes - at);
        if (less == NULL) break;
        at = (size_t)(less - cut->text);
        int next = 0;
        size_t tag = th_speaker_tag(less, cut->bytes - at, &next);
        if (tag == 0) {
            at++;
            continue;
        }
        TH_TRY(add_turn(cut, begin, body, at, speaker < 0 ? 0 : speaker, error));
        begin = at;
        body = at += tag;
        speaker = next;
    }
    return add_turn(cut, begin, body, cut->bytes, speaker, error);
}
