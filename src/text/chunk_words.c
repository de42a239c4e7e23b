/* chunk_words.c - full stops that belong to a word: titles, initials, abbreviations, numbers. When in doubt no sentence ends: a
 * chunk that is cut one sentence later sounds right, one that is cut after "Dr." does not. */
#include <string.h>
#include <utf8proc.h>

#include "text/chunk_parts.h"
#include "text/unicode.h"

#define WORD_BYTES 24 /* longer words are in no list */

/* Lists are words between blanks. A word in lower case is found in any case, others as they are written. */

/* Never the end of a sentence. */
static const char always[] = " dr mr mrs ms mx prof messrs mme mlle st capt sgt lt cmdr vs viz cf ca bzw vgl ggf evtl inkl exkl "
                             "sog zzgl fr hr dra sra srta dott "
                             "sig avv ing arq Gen Col Maj Adm Gov Sen Rep Pres Rev Hon Mt Ft Hrn Frl Dipl ";
/* Not the end when a number follows. */
static const char numbered[] =
    " no nos nr num p pp vol fig figs ch chap art sec eq ex op pt vers v s bd kap abb abs tel n pag cap ";
/* Not the end when the next word begins in lower case or with a digit. */
static const char soft[] =
    " etc inc ltd co corp jr sr ave blvd rd est approx dept ed eds ext max min misc usw ff al bros esp tbsp tsp oz lb lbs ft mi "
    "hrs mins secs "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun str tz ud uds pág núm ecc ";
/* After a number and a full stop: an ordinal. */
static const char months[] = " Januar Jänner Februar März April Mai Juni Juli August September Oktober November Dezember ";
/* Words that begin sentences, so that "in the U.S. The" ends one. */
static const char starters[] = " The A An He She It They We You I In On At But And So Then This That These Those There When While "
                               "If My His Her Our Their What Who "
                               "Why How Is Was Yes No Not For As After Before Now ";

static int is_ascii_upper(char c)
{
    return c >= 'A' && c <= 'Z';
}

/* Is word in the list, as written or in lower case? */
static int is_listed(const char *list, const char *word, size_t bytes)
{
    char key[WORD_BYTES + 3], lower[WORD_BYTES + 3];
    if (bytes == 0 || bytes > WORD_BYTES) return 0;
    key[0] = key[bytes + 1] = ' ';
    key[bytes + 2] = 0;
    memcpy(key + 1, word, bytes);
    for (size_t i = 0; i < bytes + 3; i++) lower[i] = is_ascii_upper(key[i]) ? (char)(key[i] + ('a' - 'A')) : key[i];
    return strstr(list, key) != NULL || strstr(list, lower) != NULL;
}

/* Where the word that ends at `stop` begins. */
static size_t word_begin(const char *text, size_t unit, size_t stop)
{
    size_t at = stop;
    while (at > unit) {
        size_t before = at;
        uint32_t c = th_utf8_before(text, unit, &before);
        if (c != '.' && !th_is_letter(c) && !th_is_number(c) && !th_is_mark(c)) break;
        at = before;
    }
    return at;
}

/* What the next word begins with. */
struct next {
    const char *word;
    size_t bytes; /* of its letters */
    int upper, lower, digit, letter;
};

static struct next read_next(const char *text, size_t at, size_t end)
{
    struct next next = {.word = text + at};
    size_t first = at;
    uint32_t c = th_utf8_next(text, end, &first);
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    next.letter = th_is_letter(c);
    next.digit = th_is_number(c);
    next.upper = category == UTF8PROC_CATEGORY_LU;
    next.lower = category == UTF8PROC_CATEGORY_LL;
    for (size_t i = at; i < end && next.bytes <= WORD_BYTES && th_is_letter(th_utf8_next(text, end, &i));) next.bytes = i - at;
    return next;
}

/* Does the next word begin a sentence for sure? Not an initial such as the A. of "J. A. Smith". */
static int is_starter(const struct next *next, const char *end)
{
    return is_listed(starters, next->word, next->bytes) && !(next->word + next->bytes < end && next->word[next->bytes] == '.');
}

/* Letters in parts of at most 3 with dots in between: U.S, e.g, Ph.D. */
static int is_dotted(const char *word, size_t bytes)
{
    int dots = 0, letters = 0;
    for (size_t at = 0; at < bytes;) {
        uint32_t c = th_utf8_next(word, bytes, &at);
        if (c == '.') {
            if (letters == 0) return 0;
            dots++;
            letters = 0;
        } else if (!th_is_letter(c) || ++letters > 3) {
            return 0;
        }
    }
    return dots > 0;
}

static int is_number_word(const char *word, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (word[i] < '0' || word[i] > '9') return 0;
    return bytes > 0;
}

static int is_same(const char *word, size_t bytes, const char *with)
{
    return strlen(with) == bytes && strncasecmp(word, with, bytes) == 0;
}

/* "1. First" in a list, "am 3. Mai". */
static int is_ordinal(const char *text, size_t unit, const char *word, size_t bytes, const struct next *next)
{
    size_t begin = (size_t)(word - text);
    int alone = th_skip_space(text, unit, begin) == begin;
    return (alone && bytes <= 3) || (bytes <= 2 && (next->lower || is_listed(months, next->word, next->bytes)));
}

/* Does a word begin here, and not the rest of one such as "Mary's" or of an address such as "?c=d"? */
static int is_word_begin(const char *text, size_t unit, size_t begin)
{
    if (begin == unit) return 1;
    size_t before = begin;
    uint32_t c = th_utf8_before(text, unit, &before);
    if (c == '\'' || c == 0x2019) return before == unit || !th_is_letter(th_utf8_before(text, unit, &before));
    return c >= 0x80 || strchr("=/&_@#%;:?+~\\", (int)c) == NULL;
}

int th_is_abbreviation(const char *text, size_t unit, size_t stop, size_t next_at, size_t end)
{
    size_t begin = word_begin(text, unit, stop), bytes = stop - begin;
    const char *word = text + begin;
    struct next next = read_next(text, next_at, end);
    if (bytes == 0) return stop == unit || word[-1] == ' '; /* ". . ." */
    if (is_number_word(word, bytes)) return is_ordinal(text, unit, word, bytes, &next);
    if (!is_word_begin(text, unit, begin)) return 0;
    size_t first = 0;
    uint32_t c = th_utf8_next(word, bytes, &first);
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    if (first == bytes && category == UTF8PROC_CATEGORY_LU) return !is_starter(&next, text + end);
    if (first == bytes && category == UTF8PROC_CATEGORY_LL) return next.letter || (next.digit && is_listed(numbered, word, bytes));
    if (is_same(word, bytes, "e.g") || is_same(word, bytes, "i.e")) return 1;
    if (is_dotted(word, bytes)) {
        int clock = is_same(word, bytes, "a.m") || is_same(word, bytes, "p.m");
        return !next.upper || (!clock && !is_starter(&next, text + end));
    }
    if (is_listed(always, word, bytes)) return 1;
    if (next.digit && is_listed(numbered, word, bytes)) return 1;
    return (next.lower || next.digit) && is_listed(soft, word, bytes);
}
