/* test_chunk_random.c - what holds for every text: seeded random texts in twelve scripts, and megabytes of one thing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

#include "text/chunk.h"
#include "text/unicode.h"
#include "text/validate.h"

/* Sanitizers are slow; what is not linear shows at a fifth of the size, too. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEGABYTE 200000
#else
#define MEGABYTE 1000000
#endif
#define SECONDS 0.8 /* of processor time; on an idle machine 0.1 s or less */

static thespis_error error;

/* ---- random texts ---- */

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static const char *pick(const char *const *list, size_t count, uint64_t *state)
{
    return list[next_random(state) % count];
}
#define PICK(list, state) pick(list, sizeof(list) / sizeof *(list), state)

static const char *const words[] = {"word",   "Dr",       "e.g",        "straße",    "Ωμέγα",   "слово",
                                    "Привет", "مرحبا",    "שלום",       "नमस्ते",      "สวัสดีครับ", "你好世界",
                                    "日本語", "カタカナ", "안녕하세요", "გამარჯობა", "բարև",    "ሰላም",
                                    "3",      "1999",     "x",          "U.S",       "J",       "antidisestablishmentarianism"};
static const char *const marks[] = {".",   "!",  "?",   ";", ",", ":", "。", "！", "？", "，", "、", "…",
                                    "...", "?!", ".\"", ")", "।", "؟", "۔",  "።",  "»",  "\"", "'"};
static const char *const spaces[] = {" ", " ", " ", " ", "  ", "\n", "\n\n", " \r\n ", "\t", "\u3000", "\u00A0", "\u2028", ""};
static const char *const silent[] = {"😀", "👩‍👩‍👧", "🇩🇪", "—", "-", "*", "e\u0301\u0323", "\u0301", "~"};
static const char *const whole[] = {"[laughs]",
                                    "[one, two. three]",
                                    "<whisper>soft. words</whisper>",
                                    "<a><a>x</a> y</a>",
                                    "<br/>",
                                    "<|token|>",
                                    "[a cue that is so long, that it. fits in no chunk of any size]"};
static const char *const stray[] = {"[",       "]",  "<",  ">",         "<a>",   "</a>",   "<|",    "|>",
                                    "<b c=\"", "[[", "</", "<|speaker", "&amp;", "\u200D", "\uFEFF"};

enum { WITH_TAGS = 1, WITH_STRAY = 2, WITH_WHOLE = 4 };

static size_t random_text(char *text, size_t room, int flags, uint64_t *state)
{
    size_t bytes = 0, parts = 1 + next_random(state) % 60;
    char tag[TH_SPEAKER_TAG_MAX];
    text[0] = 0;
    for (size_t i = 0; i < parts; i++) {
        uint64_t kind = next_random(state) % 100;
        const char *part = PICK(words, state);
        if (kind < 30)
            part = PICK(spaces, state);
        else if (kind < 50)
            part = PICK(marks, state);
        else if (kind < 54)
            part = PICK(silent, state);
        else if (kind < 60 && (flags & WITH_WHOLE))
            part = PICK(whole, state);
        else if (kind < 64 && (flags & WITH_STRAY))
            part = PICK(stray, state);
        else if (kind < 69 && (flags & WITH_TAGS)) {
            snprintf(tag, sizeof tag, "<|speaker:%d|>", (int)(next_random(state) % THESPIS_MAX_SPEAKERS));
            part = tag;
        }
        size_t length = strlen(part);
        if (bytes + length >= room) break;
        memcpy(text + bytes, part, length + 1);
        bytes += length;
    }
    return bytes;
}

/* ---- what holds for every text ---- */

/* Copies what is left of text without speaker tags and white space. */
static size_t strip(const char *text, size_t bytes, char *to)
{
    size_t count = 0;
    for (size_t at = 0; at < bytes;) {
        size_t from = at, tag = th_speaker_tag(text + at, bytes - at, NULL);
        if (tag > 0) {
            at += tag;
            continue;
        }
        if (th_is_white_space(th_utf8_next(text, bytes, &at))) continue;
        memcpy(to + count, text + from, at - from);
        count += at - from;
    }
    return count;
}

static void check_ranges(const char *text, size_t bytes, const struct th_chunks *chunks)
{
    static char source[65536], spoken[65536];
    size_t at = 0;
    for (size_t i = 0; i < chunks->count; i++) {
        const struct th_chunk *chunk = &chunks->items[i];
        assert_int_equal(chunk->source_begin, at);
        assert_true(chunk->source_end > at);
        at = chunk->source_end;
        size_t a = strip(text + chunk->source_begin, at - chunk->source_begin, source),
               b = strip(chunk->text, chunk->bytes, spoken);
        assert_int_equal(a, b);
        assert_memory_equal(source, spoken, a);
    }
    assert_int_equal(at, chunks->count > 0 ? bytes : 0);
    if (chunks->count == 0) assert_int_equal(strip(text, bytes, source), 0);
}

/* End of the grapheme cluster that begins at `begin`. */
static size_t cluster_end(const char *text, size_t bytes, size_t begin)
{
    utf8proc_int32_t state = 0;
    size_t at = begin;
    uint32_t before = th_utf8_next(text, bytes, &at);
    while (at < bytes) {
        size_t from = at;
        uint32_t c = th_utf8_next(text, bytes, &at);
        int conjunct = before == 0x94D && th_is_letter(c); /* a newer rule than the library's, for the one such sign in the words */
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)before, (utf8proc_int32_t)c, &state) && !conjunct) return from;
        before = c;
    }
    return bytes;
}

/* No range begins inside a grapheme cluster of at most `limit` bytes. */
static void check_clusters(const char *text, size_t bytes, const struct th_chunks *chunks, size_t limit)
{
    size_t chunk = 1, end;
    for (size_t begin = 0; begin < bytes && chunk < chunks->count; begin = end) {
        end = cluster_end(text, bytes, begin);
        while (chunk < chunks->count && chunks->items[chunk].source_begin <= begin) chunk++;
        if (chunk < chunks->count && chunks->items[chunk].source_begin < end && end - begin <= limit)
            fail_msg("bytes %zu to %zu are one cluster, cut at %zu: %s", begin, end, chunks->items[chunk].source_begin, text);
    }
}

/* One chunk of a text that was cut: trimmed, of one line a turn, each with its tag, and no longer than it may be. */
static void check_chunk(const struct th_chunk *chunk, int tagged, size_t target, int max_speakers)
{
    uint32_t speakers = 0;
    for (const char *line = chunk->text; line != NULL;) {
        const char *end = strchr(line, '\n');
        size_t length = end != NULL ? (size_t)(end - line) : strlen(line);
        int speaker = 0;
        size_t tag = th_speaker_tag(line, length, &speaker);
        assert_int_equal(tag > 0, tagged);
        if (tagged) {
            assert_int_equal(line[tag], ' ');
            tag++;
        }
        assert_true(tag < length);
        assert_int_equal(th_leading_space(line + tag, length - tag), 0);
        speakers |= (uint32_t)1 << speaker;
        line = end != NULL ? end + 1 : NULL;
    }
    assert_int_equal(chunk->speakers, __builtin_popcount(speakers));
    assert_true(chunk->speakers <= max_speakers);
    assert_int_equal(th_utf8_check(chunk->text, chunk->bytes, NULL), THESPIS_OK);
    if (chunk->bytes > target) assert_true(strchr(chunk->text, ']') != NULL || strchr(chunk->text, '>') != NULL);
}

static size_t count_of(const char *text, const char *what)
{
    size_t count = 0;
    for (text = strstr(text, what); text != NULL; text = strstr(text + 1, what)) count++;
    return count;
}

/* A chunk of a text without stray marks holds each span whole. */
static void check_whole(const struct th_chunk *chunk)
{
    assert_int_equal(count_of(chunk->text, "["), count_of(chunk->text, "]"));
    assert_int_equal(count_of(chunk->text, "<whisper>"), count_of(chunk->text, "</whisper>"));
    assert_int_equal(count_of(chunk->text, "<a>"), count_of(chunk->text, "</a>"));
    assert_int_equal(count_of(chunk->text, "<|"), count_of(chunk->text, "|>"));
}

/* Cutting a chunk again changes nothing. */
static void check_again(const struct th_chunk *chunk, size_t target, int max_speakers)
{
    struct th_chunks again;
    assert_int_equal(th_chunks_cut(chunk->text, chunk->bytes, TH_CUT_AUTO, target, max_speakers, &again, &error), THESPIS_OK);
    assert_int_equal(again.count, 1);
    if (chunk->bytes <= target) assert_string_equal(again.items[0].text, chunk->text);
    th_chunks_free(&again);
}

static int has_tag(const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes; at++)
        if (th_speaker_tag(text + at, bytes - at, NULL) > 0) return 1;
    return 0;
}

static void check_text(const char *text, size_t bytes, enum th_granularity granularity, size_t target, int max_speakers, int flags)
{
    struct th_chunks chunks;
    assert_int_equal(th_chunks_cut(text, bytes, granularity, target, max_speakers, &chunks, &error), THESPIS_OK);
    int tagged = has_tag(text, bytes), untouched = chunks.count == 1 && chunks.items[0].bytes == bytes;
    check_ranges(text, bytes, &chunks);
    if (granularity == TH_CUT_NONE) assert_true(untouched || chunks.count == 0);
    if (untouched) assert_memory_equal(chunks.items[0].text, text, bytes);
    check_clusters(text, bytes, &chunks, target - (tagged ? 15 : 0));
    int speaks = 0;
    for (size_t i = 0; i < chunks.count; i++) speaks |= chunks.items[i].speaks;
    for (size_t i = 0; i < chunks.count && !untouched; i++) {
        check_chunk(&chunks.items[i], tagged, target, max_speakers);
        if (!(flags & WITH_STRAY)) check_whole(&chunks.items[i]);
        if (!(flags & WITH_STRAY) || !tagged) check_again(&chunks.items[i], target, max_speakers);
        if (!tagged && target >= 150) assert_int_equal(chunks.items[i].speaks, speaks);
    }
    th_chunks_free(&chunks);
}

static void test_random_texts(void **state)
{
    (void)state;
    static const size_t targets[] = {24, 40, 64, 150, 300};
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        static char text[8192];
        uint64_t random = seed;
        int flags = (int)(seed % 8);
        size_t bytes = random_text(text, sizeof text, flags, &random), target = targets[next_random(&random) % 5];
        int speakers = 1 + (int)(next_random(&random) % 3);
        for (int granularity = TH_CUT_NONE; granularity <= TH_CUT_CLAUSE; granularity++)
            check_text(text, bytes, (enum th_granularity)granularity, target, speakers, flags);
    }
}

/* Any valid code points at all. */
static void test_random_code_points(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 600; seed++) {
        char text[2048];
        uint64_t random = seed ^ 0xC0DE;
        size_t bytes = 0, count = 1 + next_random(&random) % 300;
        for (size_t i = 0; i < count; i++) {
            static const uint32_t bounds[] = {0x80, 0x800, 0x3100, 0x10000, 0x20000, 0x110000};
            uint32_t c = 1 + (uint32_t)(next_random(&random) % (bounds[next_random(&random) % 6] - 1));
            if (c >= 0xD800 && c < 0xE000) c = 0x301;
            bytes += (size_t)th_utf8_write(c, text + bytes);
        }
        text[bytes] = 0;
        check_text(text, bytes, (enum th_granularity)(seed % 4), 24 + seed % 100, 3, WITH_STRAY);
    }
}

/* ---- megabytes of one thing ---- */

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static const struct {
    const char *first, *repeated, *last; /* the text: first, then repeated to a megabyte, then last */
    int close;                           /* 1: the second half of the megabyte is `last` repeated */
} floods[] = {
    {"", " ", "", 0},
    {"a", " ", "b", 0},
    {"", "\n", "", 0},
    {"", "a", "", 0},
    {"", "[", "", 0},
    {"", "[", "]", 1},
    {"", "<", "", 0},
    {"", "<|", "", 0},
    {"", "<|speaker:1|>", "", 0},
    {"", "<|speaker:1|>x", "", 0},
    {"", "<a>", "", 0},
    {"", "<a>", "</a>", 1},
    {"", "<a>", "</b>", 1},
    {"", "</", "", 0},
    {"", "<a", "", 0},
    {"a", "\u0301", "", 0},
    {"", "\u0301", "", 0},
    {"", "\u1100", "", 0},
    {"", "👩\u200D", "", 0},
    {"", "😀", "", 0},
    {"", "🇩", "", 0},
    {"", ".", "", 0},
    {"", ". ", "", 0},
    {"", "!\"", "", 0},
    {"", "a.", "", 0},
    {"", "a\n", "", 0},
    {"", "a\n\n", "", 0},
    {"", ",x", "", 0},
    {"", "\u00A0", "", 0},
    {"", "好", "", 0},
    {"", "。", "", 0},
    {"", "\u00A0.", "", 0},
    {"<", "a", ">", 0},
    {"[", "a ", "]", 0},
    {"", "😀 ", "", 0},
};

static size_t flood(size_t i, char *text)
{
    size_t bytes = strlen(floods[i].first), length = strlen(floods[i].repeated), last = strlen(floods[i].last);
    memcpy(text, floods[i].first, bytes);
    for (; bytes < (size_t)MEGABYTE / (1 + (size_t)floods[i].close); bytes += length)
        memcpy(text + bytes, floods[i].repeated, length);
    do {
        memcpy(text + bytes, floods[i].last, last);
        bytes += last;
    } while (floods[i].close && bytes < MEGABYTE);
    return bytes;
}

static void test_floods_take_no_time(void **state)
{
    (void)state;
    char *text = malloc(MEGABYTE + 64);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof floods / sizeof *floods; i++)
        for (int granularity = TH_CUT_AUTO; granularity <= TH_CUT_CLAUSE; granularity += 2) {
            struct th_chunks chunks;
            size_t bytes = flood(i, text), longest = 0;
            double begin = seconds();
            assert_int_equal(th_chunks_cut(text, bytes, (enum th_granularity)granularity, 300, 3, &chunks, &error), THESPIS_OK);
            double took = seconds() - begin;
            for (size_t k = 0; k < chunks.count; k++)
                if (chunks.items[k].bytes > longest) longest = chunks.items[k].bytes;
            int is_span = floods[i].last[0] == ']' || strcmp(floods[i].last, "</a>") == 0;
            if (longest > 300 && !is_span) fail_msg("'%s' gave a chunk of %zu bytes", floods[i].repeated, longest);
            if (took > SECONDS) fail_msg("%d bytes of '%s' took %.2f s", MEGABYTE, floods[i].repeated, took);
            th_chunks_free(&chunks);
        }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_texts),
        cmocka_unit_test(test_random_code_points),
        cmocka_unit_test(test_floods_take_no_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
