/* scan.c - see scan.h. Each rule returns the end of the piece, or the begin when it does not apply. */
#include "text/scan.h"

#include <string.h>

#include "text/unicode.h"

static const char *const patterns[] = {
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
};

struct span {
    const char *text;
    size_t bytes;
    enum th_pattern pattern;
};

enum th_pattern th_pattern_find(const char *regex, size_t bytes)
{
    for (int i = 0; i < 2; i++)
        if (bytes == strlen(patterns[i]) && memcmp(regex, patterns[i], bytes) == 0) return (enum th_pattern)i;
    return TH_PATTERN_UNKNOWN;
}

static int is_word(const struct span *s, uint32_t c)
{
    return th_is_letter(c) || (s->pattern == TH_PATTERN_LETTERS_AND_MARKS && th_is_mark(c));
}

static int is_break(uint32_t c)
{
    return c == '\r' || c == '\n';
}

/* Letters, numbers and white space; marks too where they belong to words. */
static int is_symbol(const struct span *s, uint32_t c)
{
    return !th_is_white_space(c) && !is_word(s, c) && !th_is_number(c);
}

static size_t word_run(const struct span *s, size_t at)
{
    while (at < s->bytes) {
        size_t next = at;
        if (!is_word(s, th_utf8_next(s->text, s->bytes, &next))) break;
        at = next;
    }
    return at;
}

static size_t symbol_run(const struct span *s, size_t at)
{
    while (at < s->bytes) {
        size_t next = at;
        if (!is_symbol(s, th_utf8_next(s->text, s->bytes, &next))) break;
        at = next;
    }
    return at;
}

/* 's 't 're 've 'm 'll 'd in any letter case; U+017F folds to s. */
static size_t contraction(const struct span *s, size_t at)
{
    const uint8_t *t = (const uint8_t *)s->text + at;
    size_t left = s->bytes - at;
    if (left < 2 || t[0] != '\'') return at;
    if (left >= 3 && t[1] == 0xC5 && t[2] == 0xBF) return at + 3;
    int first = t[1] | 0x20;
    if (t[1] < 0x80 && (first == 's' || first == 't' || first == 'm' || first == 'd')) return at + 2;
    if (left < 3 || t[1] >= 0x80 || t[2] >= 0x80) return at;
    int second = t[2] | 0x20;
    if (((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l')) return at + 3;
    return at;
}

/* One code point that is neither a line break, a letter nor a number may lead a word. */
static size_t word(const struct span *s, size_t at)
{
    size_t next = at;
    uint32_t c = th_utf8_next(s->text, s->bytes, &next);
    if (!is_break(c) && !th_is_letter(c) && !th_is_number(c)) {
        size_t end = word_run(s, next);
        if (end > next) return end;
    }
    return word_run(s, at);
}

static size_t symbols(const struct span *s, size_t at)
{
    size_t begin = s->text[at] == ' ' ? at + 1 : at;
    size_t end = symbol_run(s, begin);
    if (end == begin) return at;
    while (end < s->bytes && is_break((uint8_t)s->text[end])) end++;
    return end;
}

/* A run of white space ends after its last line break; without one it leaves its last code point to what follows. */
static size_t space(const struct span *s, size_t at)
{
    size_t end = at, last = at, after_break = at;
    while (end < s->bytes) {
        size_t next = end;
        uint32_t c = th_utf8_next(s->text, s->bytes, &next);
        if (!th_is_white_space(c)) break;
        last = end;
        end = next;
        if (is_break(c)) after_break = end;
    }
    if (after_break > at) return after_break;
    if (end == s->bytes || last == at) return end;
    return last;
}

size_t th_scan_piece(enum th_pattern pattern, const char *text, size_t bytes, size_t at)
{
    struct span s = {text, bytes, pattern};
    size_t end = contraction(&s, at);
    if (end > at) return end;
    end = word(&s, at);
    if (end > at) return end;
    size_t next = at;
    if (th_is_number(th_utf8_next(text, bytes, &next))) return next;
    end = symbols(&s, at);
    if (end > at) return end;
    return space(&s, at);
}
