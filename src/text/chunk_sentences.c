/* chunk_sentences.c - where sentences, clauses and words end. A boundary lies after the mark, after what closes with it (further
 * marks, quotes, brackets, </name>) and after the white space that follows. */
#include <string.h>
#include <utf8proc.h>

#include "text/chunk_parts.h"
#include "text/unicode.h"

/* What a mark may end. */
enum mark {
    STOP = 1,  /* . which also ends abbreviations */
    END = 2,   /* ! ? */
    SEMI = 4,  /* ; and its like */
    DOTS = 8,  /* an ellipsis, which also hesitates inside a sentence */
    WIDE = 16, /* marks that nothing else is written with, white space after them or not */
    COMMA = 32,
    LIST = 64, /* : and the enumeration comma */
    DASH = 128,
    CLOSER = 256 /* a closing quote or bracket: ends nothing, but goes with the mark in front of it */
};

struct marked {
    uint32_t c;
    enum mark mark;
};

/* Ascending. Marks of Latin, Greek, Armenian, Arabic, Urdu, Syriac, Indic, Sinhala, Tibetan, Myanmar, Ethiopic, Canadian, Khmer,
 * Mongolian and East Asian writing. */
static const struct marked table[] = {
    {'!', END},       {'"', CLOSER},    {'\'', CLOSER},   {')', CLOSER},    {',', COMMA},     {'.', STOP},      {':', LIST},
    {';', SEMI},      {'?', END},       {']', CLOSER},    {'}', CLOSER},    {0xBB, CLOSER},   {0x37E, SEMI},    {0x589, WIDE},
    {0x60C, COMMA},   {0x61B, SEMI},    {0x61D, WIDE},    {0x61E, WIDE},    {0x61F, WIDE},    {0x6D4, WIDE},    {0x700, WIDE},
    {0x701, WIDE},    {0x702, WIDE},    {0x964, WIDE},    {0x965, WIDE},    {0xDF4, WIDE},    {0xF0D, WIDE},    {0xF0E, WIDE},
    {0x104A, COMMA},  {0x104B, WIDE},   {0x1362, WIDE},   {0x1363, COMMA},  {0x1365, LIST},   {0x1366, LIST},   {0x1367, WIDE},
    {0x1368, WIDE},   {0x166E, WIDE},   {0x17D4, WIDE},   {0x17D5, WIDE},   {0x1802, COMMA},  {0x1803, WIDE},   {0x1808, COMMA},
    {0x1809, WIDE},   {0x2014, DASH},   {0x2015, DASH},   {0x2019, CLOSER}, {0x201D, CLOSER}, {0x2026, DOTS},   {0x203A, CLOSER},
    {0x203C, WIDE},   {0x203D, WIDE},   {0x2047, WIDE},   {0x2048, WIDE},   {0x2049, WIDE},   {0x22EF, DOTS},   {0x2E3A, DASH},
    {0x3001, LIST},   {0x3002, WIDE},   {0x3009, CLOSER}, {0x300B, CLOSER}, {0x300D, CLOSER}, {0x300F, CLOSER}, {0x3011, CLOSER},
    {0x3015, CLOSER}, {0x3017, CLOSER}, {0x3019, CLOSER}, {0x301E, CLOSER}, {0x301F, CLOSER}, {0xFD3E, CLOSER}, {0xFE50, COMMA},
    {0xFE51, LIST},   {0xFE52, WIDE},   {0xFE54, SEMI},   {0xFE55, LIST},   {0xFE56, WIDE},   {0xFE57, WIDE},   {0xFF01, WIDE},
    {0xFF02, CLOSER}, {0xFF07, CLOSER}, {0xFF09, CLOSER}, {0xFF0C, COMMA},  {0xFF0E, STOP},   {0xFF1A, LIST},   {0xFF1B, SEMI},
    {0xFF1F, WIDE},   {0xFF3D, CLOSER}, {0xFF5D, CLOSER}, {0xFF60, CLOSER}, {0xFF61, WIDE},   {0xFF63, CLOSER}, {0xFF64, LIST},
};

static enum mark mark_of(uint32_t c)
{
    size_t low = 0, high = sizeof table / sizeof *table;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (table[middle].c < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof table / sizeof *table && table[low].c == c ? table[low].mark : 0;
}

/* Marks that end a unit under each granularity: under SENTENCE and CLAUSE those of the reference server, other scripts added. */
static int unit_marks(enum th_granularity granularity)
{
    switch (granularity) {
    case TH_CUT_SENTENCE: return STOP | END | DOTS | WIDE;
    case TH_CUT_CLAUSE: return STOP | END | DOTS | WIDE | SEMI | COMMA;
    default: return STOP | END | DOTS | WIDE | SEMI;
    }
}

/* Scripts that are written without a space after a mark, or often are. */
static int is_unspaced(uint32_t c)
{
    return (c >= 0xE00 && c < 0x10A0) || (c >= 0x1780 && c < 0x1800) || (c >= 0x2E80 && c < 0xA000) ||
           (c >= 0xAC00 && c < 0xD7B0) || (c >= 0xF900 && c < 0xFB00) || (c >= 0xFF66 && c < 0xFFDD) ||
           (c >= 0x20000 && c < 0x40000);
}

static int is_digit(uint32_t c)
{
    return c < 0x80 ? c >= '0' && c <= '9' : utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND;
}

static int is_lower(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LL;
}

/* A mark with what belongs to it: [begin, end), and the next thing at `next`, white space in between or not. */
struct stop {
    size_t begin, end, next;
    enum mark kind;
    int quoted; /* a closing quote or bracket came after the mark */
    int closed; /* a closing tag came after it */
};

/* Reads on from the mark. A run of full stops is an ellipsis; a ! or ? in the run makes it an end. */
static void read_stop(const char *text, size_t end, struct stop *stop)
{
    int sentence = (stop->kind & (STOP | END | DOTS | WIDE | SEMI)) != 0;
    while (stop->end < end) {
        size_t next = stop->end;
        uint32_t c = th_utf8_next(text, end, &next);
        enum mark more = mark_of(c);
        if (sentence && (more & (STOP | END | DOTS | WIDE)) && !stop->quoted && !stop->closed) {
            if (more & (END | WIDE))
                stop->kind = stop->kind == WIDE ? WIDE : more;
            else if (stop->kind & (STOP | DOTS))
                stop->kind = DOTS;
        } else if (more == CLOSER) {
            stop->quoted = 1;
        } else if (c == '<' && next < end && text[next] == '/') {
            const char *close = memchr(text + next, '>', end - next < 64 ? end - next : 64);
            if (close == NULL) break;
            next = (size_t)(close - text) + 1;
            stop->closed = 1;
        } else {
            break;
        }
        stop->end = next;
    }
    stop->next = th_skip_space(text, stop->end, end);
}

/* The first code point of the next word, opening quotes and brackets passed over; 0 at the end. */
static uint32_t opening(const char *text, size_t at, size_t end)
{
    for (int i = 0; at < end && i < 4; i++) {
        uint32_t c = th_utf8_next(text, end, &at);
        utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
        if (c != '"' && c != '\'' && c != 0xBF && c != 0xA1 && category != UTF8PROC_CATEGORY_PS && category != UTF8PROC_CATEGORY_PI)
            return c;
    }
    return 0;
}

static int is_between_digits(const char *text, size_t begin, const struct stop *stop, size_t end)
{
    size_t before = stop->begin, after = stop->next;
    if (stop->next != stop->end || stop->begin == begin || after >= end || stop->quoted) return 0;
    return is_digit(th_utf8_before(text, begin, &before)) && is_digit(th_utf8_next(text, end, &after));
}

/* A mark with no white space after it, and c next. */
static int ends_unspaced(const struct stop *stop, uint32_t c)
{
    int latin = c < 0x80 && c != '<' && c != '[' && c != '(' && c != '"' && c != '\'';
    switch (stop->kind) {
    case STOP: return stop->quoted || stop->closed || c == '<' || c == '[' || is_unspaced(c);
    case SEMI: return !latin;
    case END: return !latin || (c >= 'A' && c <= 'Z') || stop->quoted || stop->closed;
    case DOTS: return !th_is_letter(c) && !th_is_number(c);
    case LIST: return !latin;
    default: return 1;
    }
}

/* Is this mark a boundary of its level? `unit` is where the unit began. */
static int is_boundary(const struct th_cut *cut, size_t unit, const struct stop *stop, size_t end, enum th_level level)
{
    size_t at = stop->next;
    uint32_t c = th_utf8_next(cut->text, end, &at);
    if (is_between_digits(cut->text, unit, stop, end)) return 0;
    if (stop->next == stop->end) {
        if (stop->kind == WIDE && stop->quoted && c == 0x3068) return 0; /* Japanese: "..." to iu, the sentence goes on */
        if (stop->kind == DOTS && level == TH_LEVEL_CLAUSE) return 1;
        return ends_unspaced(stop, c);
    }
    if (stop->kind == STOP && !stop->quoted && !stop->closed)
        return !th_is_abbreviation(cut->text, unit, stop->begin, stop->next, end);
    if (level == TH_LEVEL_CLAUSE) return 1;
    /* "Really?" she asked. Well ... maybe. */
    if (stop->kind == DOTS || ((stop->kind & (END | STOP)) && stop->quoted)) return !is_lower(opening(cut->text, stop->next, end));
    return 1;
}

/* May a line break here, or is all of the white space of the no-break kind? */
static int is_breakable(const char *text, size_t at, size_t end)
{
    while (at < end) {
        uint32_t c = th_utf8_next(text, end, &at);
        if (c != 0xA0 && c != 0x202F && c != 0x2007) return 1;
    }
    return 0;
}

size_t th_cut_next(const struct th_cut *cut, size_t at, size_t end, enum th_level level)
{
    size_t unit = at;
    int marks = level == TH_LEVEL_SPACE ? 0 : level == TH_LEVEL_UNIT ? unit_marks(cut->granularity) : CLOSER - 1;
    while (at < end) {
        size_t begin = at;
        uint32_t c = th_utf8_next(cut->text, end, &at);
        if (th_is_white_space(c)) {
            at = th_skip_space(cut->text, at, end);
            int cuts = level == TH_LEVEL_SPACE ? is_breakable(cut->text, begin, at)
                                               : level == TH_LEVEL_UNIT && th_cut_is_paragraph(cut, begin);
            if (cuts && th_cut_may(cut, at)) return at;
            continue;
        }
        struct stop stop = {.begin = begin, .end = at, .kind = mark_of(c)};
        if (!(marks & stop.kind)) continue;
        read_stop(cut->text, end, &stop);
        at = stop.end;
        if (stop.next >= end) return end;
        if (!th_cut_may(cut, stop.next) || (!stop.closed && !th_cut_may(cut, begin))) continue;
        if (stop.next > stop.end && !is_breakable(cut->text, stop.end, stop.next)) continue;
        if (is_boundary(cut, unit, &stop, end, level)) return stop.next;
    }
    return end;
}
