/* chunk_spans.c - where the flat text may be cut: between grapheme clusters, and never inside <|...|>, <name>...</name>, <name/> or
 * a [cue]. One pass over each turn keeps a stack of open brackets and one of open tags. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/memory.h"
#include "text/chunk_parts.h"
#include "text/unicode.h"

#define NONE SIZE_MAX

enum kind { OPENS, CLOSES, ALONE };

struct tag {
    size_t begin, end;
    const char *name;
    size_t name_bytes, id; /* tags of equal names have equal ids */
    size_t below;          /* opening tag of this name that was the innermost open one before, or NONE */
    enum kind kind;
};

struct span {
    size_t begin, end;
};

struct scan {
    struct th_cut *cut;
    struct tag *tags; /* [tag_count], in order */
    size_t tag_count, tag_capacity;
    struct tag **by_name; /* [tag_count] */
    size_t *innermost;    /* [ids], the innermost open tag of a name, or NONE */
    size_t *open;         /* [open_count], open tags */
    size_t open_count;
    size_t *brackets; /* [bracket_count], places of open brackets */
    size_t bracket_count, bracket_capacity;
    struct span *spans; /* [span_count], ascending and apart */
    size_t span_count, span_capacity;
};

static int get(const uint64_t *bits, size_t at)
{
    return bits[at / 64] >> (at % 64) & 1;
}

static void set(uint64_t *bits, size_t at)
{
    bits[at / 64] |= (uint64_t)1 << (at % 64);
}

int th_cut_may(const struct th_cut *cut, size_t at)
{
    return at >= cut->bytes || get(cut->may_cut, at);
}

/* First set bit in [at, end), or end. */
static size_t find(const uint64_t *bits, size_t at, size_t end)
{
    while (at < end) {
        uint64_t word = bits[at / 64] >> (at % 64);
        if (word != 0) {
            at += (size_t)__builtin_ctzll(word);
            return at < end ? at : end;
        }
        at = (at / 64 + 1) * 64;
    }
    return end;
}

size_t th_cut_step(const struct th_cut *cut, size_t at, size_t end)
{
    return find(cut->may_cut, at + 1, end);
}

int th_cut_speaks(const struct th_cut *cut, size_t begin, size_t end)
{
    return find(cut->speech, begin, end) < end;
}

/* A cluster of more than `limit` bytes may be cut between its code points: nothing else could bound a chunk. */
static void open_cluster(struct th_cut *cut, size_t begin, size_t end, size_t limit)
{
    if (end - begin <= limit) return;
    for (size_t at = begin + 1; at < end; at++)
        if (((uint8_t)cut->text[at] & 0xC0) != 0x80) set(cut->may_cut, at);
}

/* Signs that stack the next letter of an Indic or Southeast Asian script on the letter before. */
static int is_linker(uint32_t c)
{
    static const uint16_t linkers[] = {0x94D, 0x9CD,  0xA4D,  0xACD,  0xB4D,  0xC4D,  0xCCD,
                                       0xD4D, 0x1039, 0x17D2, 0x1A60, 0x1B44, 0x1BAB, 0xA9C0};
    if (c < 0x94D) return 0;
    for (size_t i = 0; i < sizeof linkers / sizeof *linkers; i++)
        if (linkers[i] == c) return 1;
    return 0;
}

/* Between which code points a cluster ends. The library's rules are Unicode 15's; `linked` adds the later one that conjuncts stay
 * whole: a linker, joiners after it or not, holds on to the letter that follows. */
struct clusters {
    uint32_t before;
    utf8proc_int32_t state;
    int linked;
};

static int is_apart(struct clusters *clusters, uint32_t c)
{
    uint32_t before = clusters->before;
    int linked = clusters->linked;
    clusters->before = c;
    clusters->linked = is_linker(c) || (linked && c == 0x200D);
    if (before >= ' ' && before < 0x7F && c >= ' ' && c < 0x7F) { /* most of most texts */
        clusters->state = 0;
        return 1;
    }
    int apart = utf8proc_grapheme_break_stateful((utf8proc_int32_t)before, (utf8proc_int32_t)c, &clusters->state);
    return apart && !(linked && c >= 0x900 && th_is_letter(c));
}

static void mark_clusters(struct th_cut *cut, const struct th_turn *turn)
{
    size_t limit = cut->target - th_cut_tag_bytes(turn->speaker), begin = turn->body;
    struct clusters clusters = {0};
    for (size_t at = turn->body; at < turn->end;) {
        size_t from = at;
        uint32_t c = th_utf8_next(cut->text, turn->end, &at);
        if (is_apart(&clusters, c) && from > turn->body) {
            set(cut->may_cut, from);
            open_cluster(cut, begin, from, limit);
            begin = from;
        }
    }
    set(cut->may_cut, turn->body);
    open_cluster(cut, begin, turn->end, limit);
}

/* Adds a span. Spans come in the order of their ends, so only the latest ones can overlap it; they become one with it. */
static thespis_status add_span(struct scan *scan, size_t begin, size_t end, thespis_error *error)
{
    while (scan->span_count > 0 && scan->spans[scan->span_count - 1].end > begin) {
        struct span *last = &scan->spans[--scan->span_count];
        if (last->begin < begin) begin = last->begin;
    }
    TH_TRY(th_cut_grow(&scan->spans, scan->span_count, &scan->span_capacity, sizeof *scan->spans, "spans", error));
    scan->spans[scan->span_count++] = (struct span){begin, end};
    return THESPIS_OK;
}

/* End of <|...|> at text[at], or 0. Looks no further than the next '|' or '>', so a text full of "<|" is still read once. */
static size_t token_end(const char *text, size_t at, size_t end)
{
    for (at += 2; at < end && text[at] != '|' && text[at] != '>'; at++) continue;
    return end - at >= 2 && text[at] == '|' && text[at + 1] == '>' ? at + 2 : 0;
}

/* Reads <name ...>, <name/> or </name> at text[at] == '<': it ends at the first '>' and holds no other '<'. 0: it is plain text. */
static int read_tag(const char *text, size_t at, size_t end, struct tag *tag)
{
    *tag = (struct tag){.begin = at, .below = NONE, .kind = OPENS};
    at++;
    if (at < end && text[at] == '/') {
        tag->kind = CLOSES;
        at++;
    }
    tag->name = text + at;
    size_t first = at;
    if (at >= end || !th_is_letter(th_utf8_next(text, end, &first))) return 0;
    size_t name = at;
    while (at < end && text[at] != '<' && text[at] != '>' && text[at] != '/' && (uint8_t)text[at] > ' ') at++;
    tag->name_bytes = at - name;
    while (at < end && text[at] != '<' && text[at] != '>') at++;
    if (at >= end || text[at] == '<') return 0;
    if (tag->kind == OPENS && text[at - 1] == '/') tag->kind = ALONE;
    tag->end = at + 1;
    return 1;
}

static thespis_status collect_tags(struct scan *scan, thespis_error *error)
{
    const struct th_cut *cut = scan->cut;
    for (size_t at = 0; at < cut->bytes;) {
        const char *less = memchr(cut->text + at, '<', cut->bytes - at);
        if (less == NULL) break;
        struct tag tag;
        at = (size_t)(less - cut->text);
        if (read_tag(cut->text, at, cut->bytes, &tag)) {
            TH_TRY(th_cut_grow(&scan->tags, scan->tag_count, &scan->tag_capacity, sizeof *scan->tags, "tags", error));
            scan->tags[scan->tag_count++] = tag;
            at = tag.end;
        } else {
            at++;
        }
    }
    return THESPIS_OK;
}

static int compare_names(const void *a, const void *b)
{
    const struct tag *x = *(struct tag *const *)a, *y = *(struct tag *const *)b;
    if (x->name_bytes != y->name_bytes) return x->name_bytes < y->name_bytes ? -1 : 1;
    return memcmp(x->name, y->name, x->name_bytes);
}

/* Numbers the names by sorting them: no input makes that slow, as it could a hash table. */
static thespis_status number_tags(struct scan *scan, thespis_error *error)
{
    TH_TRY(TH_ALLOC(&scan->by_name, scan->tag_count, "tags by name", error));
    TH_TRY(TH_ALLOC(&scan->innermost, scan->tag_count, "open tags by name", error));
    TH_TRY(TH_ALLOC(&scan->open, scan->tag_count, "open tags", error));
    for (size_t i = 0; i < scan->tag_count; i++) {
        scan->by_name[i] = &scan->tags[i];
        scan->innermost[i] = NONE;
    }
    qsort(scan->by_name, scan->tag_count, sizeof *scan->by_name, compare_names);
    for (size_t i = 1; i < scan->tag_count; i++)
        scan->by_name[i]->id = scan->by_name[i - 1]->id + (compare_names(&scan->by_name[i - 1], &scan->by_name[i]) != 0);
    return THESPIS_OK;
}

static size_t pop_tag(struct scan *scan)
{
    size_t i = scan->open[--scan->open_count];
    scan->innermost[scan->tags[i].id] = scan->tags[i].below;
    return i;
}

/* A closing tag makes a span with the innermost open one of its name; tags opened in between were never closed: plain text. */
static thespis_status pass_tag(struct scan *scan, size_t i, thespis_error *error)
{
    struct tag *tag = &scan->tags[i];
    if (tag->kind == ALONE) return add_span(scan, tag->begin, tag->end, error);
    size_t partner = scan->innermost[tag->id];
    if (tag->kind == OPENS) {
        tag->below = partner;
        scan->innermost[tag->id] = i;
        scan->open[scan->open_count++] = i;
        return THESPIS_OK;
    }
    if (partner == NONE) return THESPIS_OK;
    while (pop_tag(scan) != partner) continue;
    return add_span(scan, scan->tags[partner].begin, tag->end, error);
}

static thespis_status pass_bracket(struct scan *scan, size_t at, size_t ink, thespis_error *error)
{
    if (scan->cut->text[at] == '[') {
        TH_TRY(
            th_cut_grow(&scan->brackets, scan->bracket_count, &scan->bracket_capacity, sizeof *scan->brackets, "brackets", error));
        scan->brackets[scan->bracket_count++] = at;
        return THESPIS_OK;
    }
    if (scan->bracket_count == 0) return THESPIS_OK;
    size_t begin = scan->brackets[--scan->bracket_count];
    if (ink > begin) set(scan->cut->speech, at);
    return add_span(scan, begin, at + 1, error);
}

/* Finds the spans and what is spoken in one turn. *next_tag walks through the tags. */
static thespis_status scan_turn(struct scan *scan, const struct th_turn *turn, size_t *next_tag, thespis_error *error)
{
    struct th_cut *cut = scan->cut;
    size_t ink = 0; /* the latest place that is neither white space nor a bracket */
    scan->bracket_count = scan->span_count = 0;
    while (scan->open_count > 0) pop_tag(scan);
    for (size_t at = turn->body; at < turn->end;) {
        char c = cut->text[at];
        size_t token = c == '<' && turn->end - at > 1 && cut->text[at + 1] == '|' ? token_end(cut->text, at, turn->end) : 0;
        while (*next_tag < scan->tag_count && scan->tags[*next_tag].begin < at) ++*next_tag;
        if (token > 0) {
            TH_TRY(add_span(scan, at, token, error));
            ink = at;
            at = token;
        } else if (*next_tag < scan->tag_count && scan->tags[*next_tag].begin == at) {
            TH_TRY(pass_tag(scan, *next_tag, error));
            ink = at;
            at = scan->tags[*next_tag].end;
        } else if (c == '[' || c == ']') {
            TH_TRY(pass_bracket(scan, at++, ink, error));
        } else {
            size_t from = at;
            uint32_t point = th_utf8_next(cut->text, turn->end, &at);
            if (th_is_letter(point) || th_is_number(point)) set(cut->speech, from);
            if (!th_is_white_space(point)) ink = from;
        }
    }
    for (size_t i = 0; i < scan->span_count; i++)
        for (size_t at = scan->spans[i].begin + 1; at < scan->spans[i].end; at++)
            cut->may_cut[at / 64] &= ~((uint64_t)1 << (at % 64));
    return THESPIS_OK;
}

thespis_status th_cut_mark(struct th_cut *cut, thespis_error *error)
{
    struct scan scan = {.cut = cut};
    size_t next_tag = 0, words = cut->bytes / 64 + 1;
    thespis_status status = TH_ALLOC(&cut->may_cut, words, "places to cut", error);
    if (status == THESPIS_OK) status = TH_ALLOC(&cut->speech, words, "places that speak", error);
    if (status == THESPIS_OK) status = collect_tags(&scan, error);
    if (status == THESPIS_OK) status = number_tags(&scan, error);
    for (size_t i = 0; status == THESPIS_OK && i < cut->turn_count; i++) {
        mark_clusters(cut, &cut->turns[i]);
        status = scan_turn(&scan, &cut->turns[i], &next_tag, error);
    }
    th_free(scan.tags);
    th_free(scan.by_name);
    th_free(scan.innermost);
    th_free(scan.open);
    th_free(scan.brackets);
    th_free(scan.spans);
    return status;
}
