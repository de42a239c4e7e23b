/* added.c - see added.h. */
#include "text/added.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "text/unicode.h"

static int compare(const void *a, const void *b)
{
    const struct th_added *x = *(const struct th_added *const *)a, *y = *(const struct th_added *const *)b;
    size_t common = x->match_bytes < y->match_bytes ? x->match_bytes : y->match_bytes;
    int order = memcmp(x->match, y->match, common);
    return order != 0 ? order : (x->match_bytes > y->match_bytes) - (x->match_bytes < y->match_bytes);
}

static thespis_status index_set(struct th_added_set *set, thespis_error *error)
{
    qsort(set->sorted, set->count, sizeof *set->sorted, compare);
    for (size_t i = 0; i < set->count; i++) {
        set->first[(uint8_t)set->sorted[i]->match[0] + 1]++;
        if (i > 0 && compare(&set->sorted[i - 1], &set->sorted[i]) == 0)
            return th_fail(error, THESPIS_FORMAT, "added_tokens: ids %d and %d stand for the same text '%.60s'",
                           set->sorted[i - 1]->id, set->sorted[i]->id, set->sorted[i]->content);
    }
    for (int b = 0; b < 256; b++) set->first[b + 1] += set->first[b];
    return THESPIS_OK;
}

thespis_status th_added_set_open(const struct th_added *tokens, size_t count, int normalized, struct th_added_set *set,
                                 thespis_error *error)
{
    *set = (struct th_added_set){0};
    TH_TRY(TH_ALLOC(&set->sorted, count, "the added tokens", error));
    for (size_t i = 0; i < count; i++)
        if (tokens[i].normalized == normalized) set->sorted[set->count++] = &tokens[i];
    return index_set(set, error);
}

void th_added_set_close(struct th_added_set *set)
{
    th_free(set->sorted);
    *set = (struct th_added_set){0};
}

/* First of sorted[low..high) whose byte `depth` is at least `byte`; all are longer than depth and agree before it. */
static size_t narrow(const struct th_added_set *set, size_t low, size_t high, size_t depth, int byte)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uint8_t)set->sorted[middle]->match[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct th_added *th_added_at(const struct th_added_set *set, const char *text, size_t bytes, size_t at)
{
    const struct th_added *longest = NULL;
    int byte = (uint8_t)text[at];
    size_t low = set->first[byte], high = set->first[byte + 1];
    for (size_t depth = 1; low < high; depth++) {
        /* The shortest of those that agree so far sorts first. */
        if (set->sorted[low]->match_bytes == depth) longest = set->sorted[low++];
        if (at + depth == bytes) break;
        byte = (uint8_t)text[at + depth];
        low = narrow(set, low, high, depth, byte);
        high = narrow(set, low, high, depth, byte + 1);
    }
    return longest;
}

static thespis_status push(struct th_splits *splits, const struct th_added *token, size_t begin, size_t end, thespis_error *error)
{
    if (splits->count == splits->capacity) {
        size_t wanted = splits->capacity * 2 + 16;
        struct th_split *grown = th_realloc(splits->data, splits->count, wanted, sizeof *grown);
        if (grown == NULL) return th_fail_memory(error, "the stretches of a text", wanted * sizeof *grown);
        splits->data = grown;
        splits->capacity = wanted;
    }
    splits->data[splits->count++] = (struct th_split){token, begin, end};
    return THESPIS_OK;
}

/* Begin of the white space that ends at `at`, not before `floor`. */
static size_t space_before(const char *text, size_t floor, size_t at)
{
    while (at > floor) {
        size_t begin = at - 1;
        while (begin > floor && ((uint8_t)text[begin] & 0xC0) == 0x80) begin--;
        size_t next = begin;
        if (!th_is_white_space(th_utf8_next(text, at, &next))) break;
        at = begin;
    }
    return at;
}

static size_t space_after(const char *text, size_t bytes, size_t at)
{
    while (at < bytes) {
        size_t next = at;
        if (!th_is_white_space(th_utf8_next(text, bytes, &next))) break;
        at = next;
    }
    return at;
}

/* The reference searches on from the end of a token's own bytes, not of the white space it swallowed: a token that is itself white
 * space is found again there, and the text then goes on from that one's end. */
thespis_status th_added_split(const struct th_added_set *set, const char *text, size_t bytes, struct th_splits *splits,
                              thespis_error *error)
{
    size_t done = 0, swallowed = 0;
    splits->count = 0;
    for (size_t at = 0; at < bytes;) {
        const struct th_added *token = th_added_at(set, text, bytes, at);
        if (token == NULL) {
            at++;
            continue;
        }
        size_t begin = at, end = at + token->match_bytes;
        at = end;
        if (token->lstrip && begin > done) begin = space_before(text, done, begin);
        if (token->rstrip) swallowed = end < swallowed ? swallowed : space_after(text, bytes, end);
        if (token->rstrip) end = swallowed;
        if (done < begin) TH_TRY(push(splits, NULL, done, begin, error));
        TH_TRY(push(splits, token, begin, end, error));
        done = end;
    }
    if (done != bytes) TH_TRY(push(splits, NULL, done, bytes, error));
    return THESPIS_OK;
}
