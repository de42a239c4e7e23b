/* test_chunk.c - where text is cut, case by case. With arguments it is the C side of tools/text/check_chunks.py:
 * test_chunk cut IN OUT
 *   IN:  cases, each u32 granularity, target, speakers, bytes, then the text
 *   OUT: for each u32 count, then for each chunk u32 source begin, source end, speakers, speaks, bytes, then its text */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "text/chunk.h"

#define SEPARATOR " | "
#define FOX "The quick brown fox jumps over the lazy dog and runs far away from here. "

static thespis_error error;

/* The chunks with bars in between. Freed by the caller. */
static char *cut_with(const char *text, enum th_granularity granularity, size_t target, int speakers)
{
    struct th_chunks chunks;
    memset(&error, 0, sizeof error);
    assert_int_equal(th_chunks_cut(text, strlen(text), granularity, target, speakers, &chunks, &error), THESPIS_OK);
    size_t bytes = 1;
    for (size_t i = 0; i < chunks.count; i++) bytes += chunks.items[i].bytes + sizeof SEPARATOR;
    char *joined = calloc(bytes, 1);
    assert_non_null(joined);
    for (size_t i = 0; i < chunks.count; i++) {
        assert_int_equal(strlen(chunks.items[i].text), chunks.items[i].bytes);
        if (i > 0) strcat(joined, SEPARATOR);
        strcat(joined, chunks.items[i].text);
    }
    th_chunks_free(&chunks);
    return joined;
}

static void expect(const char *text, enum th_granularity granularity, size_t target, int speakers, const char *wanted)
{
    char *seen = cut_with(text, granularity, target, speakers);
    assert_string_equal(seen, wanted);
    free(seen);
}

/* Each line is a text with a bar where a chunk ends, with blanks around it where the text has one. */
static void expect_bars(const char *const *lines, size_t count, enum th_granularity granularity)
{
    for (size_t i = 0; i < count; i++) {
        char text[1024], wanted[1024];
        size_t t = 0, w = 0;
        for (const char *c = lines[i]; *c != 0; c++) {
            int spaced = strncmp(c, SEPARATOR, 3) == 0, bar = spaced || *c == '|';
            if (!bar || spaced) text[t++] = *c;
            for (int k = 0; k < (bar ? 3 : 1); k++) wanted[w++] = bar ? SEPARATOR[k] : *c;
            c += spaced ? 2 : 0;
        }
        text[t] = wanted[w] = 0;
        expect(text, granularity, 300, 3, wanted);
    }
}

static void test_fitting_text_is_untouched(void **state)
{
    (void)state;
    static const char *const texts[] = {"Hello.\n\nHow are you?", "  one. \t two\n", "<|speaker:1|>a.\n<|speaker:2|>b", "x"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        expect(texts[i], TH_CUT_AUTO, 300, 3, texts[i]);
        expect(texts[i], TH_CUT_NONE, 300, 3, texts[i]);
        expect(texts[i], TH_CUT_NONE, 24, 1, texts[i]);
    }
    expect("One line\nand another", TH_CUT_SENTENCE, 300, 3, "One line\nand another");
    char text[400] = "One.";
    memset(text + 4, '\n', 300);
    expect(text, TH_CUT_SENTENCE, 300, 3, "One.");
    expect(text, TH_CUT_AUTO, 300, 3, "One.");
    expect("One two.\nthree four five.\n", TH_CUT_AUTO, 24, 3, "One two. | three four five.");
    for (int granularity = TH_CUT_NONE; granularity <= TH_CUT_CLAUSE; granularity++) {
        expect("", (enum th_granularity)granularity, 300, 3, "");
        expect(" \n \xE3\x80\x80 ", (enum th_granularity)granularity, 300, 3, "");
    }
    expect("<|speaker:1|> a <|speaker:2|> b <|speaker:3|> c <|speaker:4|> d", TH_CUT_AUTO, 300, 3,
           "<|speaker:1|> a\n<|speaker:2|> b\n<|speaker:3|> c | <|speaker:4|> d");
}

static void test_sentences(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "One. | Two! | Three? | Four; five, six: seven.",
        "Dr. Smith met Mr. Jones and Mrs. Miller at St. Mary's. | They left.",
        "J. R. R. Tolkien wrote it. | C. S. Lewis read it.",
        "Look, e.g. here, i.e. There. | No. 5 is it. | He said no. | Then he left.",
        "Tea, milk, etc. were there. | I like tea, etc. | You too.",
        "In the U.S. Army. | Born in the U.S. | The end.",
        "At 3.30 p.m. the train left at 5 p.m. | We waited. | At 9 a.m. it came.",
        "Pi is 3.14159. | It costs 1,000.50 at 12:30. | In 1999. | Then.",
        "See www.example.com/a.b?c=d&e=f;g. | Mail me@x.org. | Open file.txt now!",
        "Well ... maybe. | So... | Then what?! | No!!! | It was . . . odd.",
        "\"Stop.\" | (He did.) | \"Really?\" she asked. | \xE2\x80\x9CYes!\xE2\x80\x9D | \xC2\xABNon.\xC2\xBB | Bien.",
        "1. First thing. | 2. Second thing. | a. Third.",
        "Am 3. M\xC3\xA4rz kam Hr. Braun, z. B. mit Frl. Gr\xC3\xBCn, usw. und so. | Er ging.",
        "Plan B. | Then plan C. | So do I. | The end.",
        "A.B.C. is short. | Node.js is not.",
        "<whisper>One. Two.</whisper> | [sighs. loudly] Three. | <b>Four</b>. | Five.",
        "Hi.|[laughs] You.|<soft>Me.</soft> | Us.",
        "Now <break note=\"pause. So\"/> go. | a < bee. | Cee > d. | <never closed. | Yes.",
        "all in lower case. | it goes on. | like this.",
        "[sighs.] Fine. | Quoi.\xC2\xA0Non. | Si.",
        "Wait\xE2\x80\xA6 | Go on\xE2\x80\xA6 slowly. | well\xE2\x80\xA6maybe.",
    };
    expect_bars(lines, sizeof lines / sizeof *lines, TH_CUT_SENTENCE);
}

static void test_other_scripts(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "你好。|世界！|真的吗？|是的……我不知道。|完了",
        "「行こう。」と彼は言った。|「はい！」|次。",
        "価格は３．５です。|次。",
        "ليس الآن؟ | نعم، غدا. | ٣.١٤ عدد.",
        "یہ ہے۔ | وہ ہے۔ | بس",
        "यह एक वाक्य है। | दूसरा वाक्य।। | तीसरा?",
        "좋은 아침입니다.|그리고 안녕. | 끝",
        "Это А. С. Пушкин. | Он поэт. | Всё!",
        "Γεια σου; τι κάνεις. | Καλά.",
        "ሰላም። | እንዴት ነህ፧ | ደህና",
        "ស្វាស្តី។|បាទ។",
        "Բարև։ | Լավ։",
    };
    expect_bars(lines, sizeof lines / sizeof *lines, TH_CUT_SENTENCE);
}

static void test_clauses(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "One, | two; | three: four, | 1,000 and 12:30.",
        "\"Yes,\" | he said, | \"no.\"",
        "你好，|世界；|再见、朋友：是。",
        "[one, two] three, | <a>four, five</a>, | six.",
        "نعم، | لا.",
    };
    expect_bars(lines, sizeof lines / sizeof *lines, TH_CUT_CLAUSE);
}

static void test_paragraphs_end_units(void **state)
{
    (void)state;
    expect("Chapter One\n\nIt was\nlate\r\nand dark\r\n\r\nNo", TH_CUT_SENTENCE, 300, 3, "Chapter One | It was late and dark | No");
    expect("Chapter One\n \nIt was late and dark.", TH_CUT_AUTO, 30, 3, "Chapter One | It was late and dark.");
    expect("[one\n\ntwo] three", TH_CUT_SENTENCE, 300, 3, "[one\n\ntwo] three");
}

static void test_auto_packs(void **state)
{
    (void)state;
    expect("One two. Three four. Five six. Seven.", TH_CUT_AUTO, 30, 3, "One two. Three four. Five six. | Seven.");
    expect("Alpha beta, gamma delta, epsilon zeta eta.", TH_CUT_AUTO, 30, 3, "Alpha beta, gamma delta, | epsilon zeta eta.");
    expect("你好世界你好你2026年", TH_CUT_AUTO, 24, 3, "你好世界你好你 | 2026年");
    expect("alpha beta gamma delta epsilon zeta eta", TH_CUT_AUTO, 24, 3, "alpha beta gamma delta | epsilon zeta eta");
    expect("abcdefghijklmnopqrstuvwxyz0123456789", TH_CUT_AUTO, 24, 3, "abcdefghijklmnopqrstuvwx | yz0123456789");
    expect("你好世界你好你2026年", TH_CUT_AUTO, 24, 3, "你好世界你好你 | 2026年");
    expect("alpha beta gamma delt\xC2\xA0"
           "epsilon zeta",
           TH_CUT_AUTO, 24, 3,
           "alpha beta gamma | delt\xC2\xA0"
           "epsilon zeta");
    expect("Mr.\xC2\xA0Long and\xC2\xA0so on it goes.", TH_CUT_AUTO, 24, 3, "Mr.\xC2\xA0Long and\xC2\xA0so on it | goes.");
}

static void test_spans_stay_whole(void **state)
{
    (void)state;
    expect("Hi. <whisper>one two, three. four five six</whisper> Bye.", TH_CUT_AUTO, 24, 3,
           "Hi. | <whisper>one two, three. four five six</whisper> | Bye.");
    expect("Hi. [a cue longer than the limit of bytes]. Bye.", TH_CUT_AUTO, 24, 3,
           "Hi. | [a cue longer than the limit of bytes]. | Bye.");
    expect("<a><a>one two three</a> four five six</a> seven", TH_CUT_AUTO, 24, 3,
           "<a><a>one two three</a> four five six</a> | seven");
    expect("<a>one two <b>three four five six</a> seven</b>", TH_CUT_AUTO, 24, 3,
           "<a>one two <b>three four five six</a> | seven</b>");
    expect("[one [two three four five six] seven eight nine ten", TH_CUT_AUTO, 24, 3,
           "[one | [two three four five six] | seven eight nine ten");
    expect("one two three <|some token, ab. cd ef|> four five", TH_CUT_AUTO, 24, 3,
           "one two three | <|some token, ab. cd ef|> | four five");
    expect("[one two <b>three] four five six seven</b> eight", TH_CUT_AUTO, 24, 3,
           "[one two <b>three] four five six seven</b> | eight");
    expect("<a>x <b>y</a> one two three four five six</a>", TH_CUT_AUTO, 24, 3, "<a>x <b>y</a> one two | three four five six</a>");
    expect("\xE2\x80\x94 [a cue longer than the limit of bytes] Bye.", TH_CUT_AUTO, 24, 3,
           "\xE2\x80\x94 [a cue longer than the limit of bytes] | Bye.");
    expect("<a>one two three four, five six. seven", TH_CUT_AUTO, 24, 3, "<a>one two three four, | five six. seven");
}

static void test_speakers(void **state)
{
    (void)state;
    expect("Before. <|speaker:3|> One two three. Four five six seven. <|speaker:12|>Yes.", TH_CUT_AUTO, 40, 3,
           "<|speaker:0|> Before. | <|speaker:3|> One two three. | <|speaker:3|> Four five six seven. | <|speaker:12|> Yes.");
    expect("<|speaker:1|> a. b. <|speaker:1|> c.", TH_CUT_SENTENCE, 300, 3, "<|speaker:1|> a. b. | <|speaker:1|> c.");
    expect("<|speaker:1|>   <|speaker:2|> Hi. You. ", TH_CUT_SENTENCE, 300, 3, "<|speaker:2|> Hi. | <|speaker:2|> You.");
    expect("<|speaker:1|> Hi. <|speaker:2|> ... <|speaker:1|> You.", TH_CUT_SENTENCE, 300, 3,
           "<|speaker:1|> Hi.\n<|speaker:2|> ... | <|speaker:1|> You.");
    expect("<a>one <|speaker:1|> two</a> three. Four.", TH_CUT_SENTENCE, 300, 3,
           "<|speaker:0|> <a>one | <|speaker:1|> two</a> three. | <|speaker:1|> Four.");
    expect("<|speaker:1|> [x <|speaker:2|> one two three four five six seven] eight", TH_CUT_AUTO, 40, 3,
           "<|speaker:1|> [x | <|speaker:2|> one two three four five | <|speaker:2|> six seven] eight");
    expect("<|speaker:1|> a <|speaker:2|> bcdefg", TH_CUT_SENTENCE, 36, 3, "<|speaker:1|> a | <|speaker:2|> bcdefg");
    expect("<|speaker:1|>a<|speaker:2|>bcdefghi", TH_CUT_AUTO, 36, 3, "<|speaker:1|>a<|speaker:2|>bcdefghi");
    expect("<|speaker:1|>a<|speaker:2|>bcdefg\n\n\n\n\n\n", TH_CUT_AUTO, 36, 3, "<|speaker:1|> a\n<|speaker:2|> bcdefg");
    expect("<|speaker:1|>a<|speaker:2|>bcdefgh\n\n\n\n\n\n", TH_CUT_AUTO, 36, 3, "<|speaker:1|> a | <|speaker:2|> bcdefgh");
    struct th_chunks chunks;
    const char *text = "<|speaker:1|> aaaa aaaa. <|speaker:2|> bbbb bbbb.\n\n<|speaker:1|> cccc.";
    assert_int_equal(th_chunks_cut(text, strlen(text), TH_CUT_AUTO, 60, 3, &chunks, &error), THESPIS_OK);
    assert_int_equal(chunks.count, 2);
    assert_int_equal(chunks.items[0].speakers, 2);
    assert_int_equal(chunks.items[1].speakers, 1);
    assert_int_equal(chunks.items[0].source_begin, 0);
    assert_int_equal(chunks.items[0].source_end, chunks.items[1].source_begin);
    assert_int_equal(strncmp(text + chunks.items[1].source_begin, "<|speaker:1|> cccc.", 19), 0);
    assert_int_equal(chunks.items[1].source_end, strlen(text));
    th_chunks_free(&chunks);
}

static void test_silent_parts_join(void **state)
{
    (void)state;
    expect("Hi. \xF0\x9F\x98\x80! You. --- ?", TH_CUT_SENTENCE, 300, 3, "Hi. \xF0\x9F\x98\x80! | You. --- ?");
    expect("... ! Hi. You.", TH_CUT_SENTENCE, 300, 3, "... ! Hi. | You.");
    expect("abcdefghijklmnopqrstuvwx.", TH_CUT_AUTO, 24, 3, "abcdefghijklmnopqrstuvw | x.");
    expect("abcdefgh ijklmnopqrs tuv ---------- ... xyz", TH_CUT_AUTO, 24, 3, "abcdefgh ijklmnopqrs | tuv ---------- ... xyz");
    expect("[sighs] [laughs] Hm. ", TH_CUT_SENTENCE, 300, 3, "[sighs] [laughs] Hm. ");
}

/* Is there something to say in the first chunk? */
static int first_speaks(const char *text)
{
    struct th_chunks chunks;
    assert_int_equal(th_chunks_cut(text, strlen(text), TH_CUT_AUTO, 300, 3, &chunks, &error), THESPIS_OK);
    int speaks = chunks.items[0].speaks;
    th_chunks_free(&chunks);
    return speaks;
}

static void test_what_speaks(void **state)
{
    (void)state;
    static const char *const silent[] = {"...", "[ ]", "<a></a>", "<|token|>", "\xF0\x9F\x98\x80", "<|speaker:1|> ?"};
    static const char *const spoken[] = {"a", "\xE5\xA5\xBD", "[!]", "[ laughs ]", "<a>1</a>", "a < b", "<|speaker:1|> ? 1"};
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) assert_int_equal(first_speaks(silent[i]), 0);
    for (size_t i = 0; i < sizeof spoken / sizeof *spoken; i++) assert_int_equal(first_speaks(spoken[i]), 1);
}

/* A whole span takes in no more silent marks than the target. */
static void test_whole_span_is_bounded(void **state)
{
    (void)state;
    char text[1100] = "[a cue longer than the limit of bytes]";
    size_t span = strlen(text);
    memset(text + span, '!', 1000);
    struct th_chunks chunks;
    assert_int_equal(th_chunks_cut(text, span + 1000, TH_CUT_AUTO, 24, 3, &chunks, &error), THESPIS_OK);
    assert_true(chunks.count > 35);
    assert_true(chunks.items[0].bytes <= span + 24);
    for (size_t i = 1; i < chunks.count; i++) assert_true(chunks.items[i].bytes <= 24 && !chunks.items[i].speaks);
    th_chunks_free(&chunks);
}

static void test_graphemes(void **state)
{
    (void)state;
    expect("abcdefghij👩‍👩‍👧👩‍👩‍👧", TH_CUT_AUTO, 32, 3,
           "abcdefghij👩‍👩‍👧 | 👩‍👩‍👧");
    expect("abcdefghij👩‍👩‍👧x👩‍👩‍👧", TH_CUT_AUTO, 32, 3,
           "abcdefghij👩‍👩‍👧 | x👩‍👩‍👧");
    expect("abcdefghijklmnopqrक्षिx", TH_CUT_AUTO, 24, 3, "abcdefghijklmnopqr | क्षिx");
    expect("abcdefghijklmnopqक्\u200Dष", TH_CUT_AUTO, 24, 3, "abcdefghijklmnopq | क्\u200Dष");
    expect("abcdefghijklmnopqrstuvwe\xCC\x81xyz", TH_CUT_AUTO, 24, 3, "abcdefghijklmnopqrstuvw | e\xCC\x81xyz");
}

/* No end in sight: words without marks, one endless word, plain prose. */
static void test_text_without_marks(void **state)
{
    (void)state;
    char text[10001] = "";
    struct th_chunks chunks;
    for (size_t i = 0; i < 3000; i++) text[i] = i % 7 == 6 ? ' ' : (char)('a' + i % 26);
    assert_int_equal(th_chunks_cut(text, 3000, TH_CUT_AUTO, 300, 3, &chunks, &error), THESPIS_OK);
    assert_int_equal(chunks.count, 10);
    for (size_t i = 0; i < chunks.count; i++) assert_true(chunks.items[i].bytes >= 280 && chunks.items[i].bytes <= 300);
    th_chunks_free(&chunks);
    memset(text, 'x', 3000);
    assert_int_equal(th_chunks_cut(text, 3000, TH_CUT_AUTO, 300, 3, &chunks, &error), THESPIS_OK);
    assert_int_equal(chunks.count, 10);
    for (size_t i = 0; i < chunks.count; i++) assert_int_equal(chunks.items[i].bytes, 300);
    th_chunks_free(&chunks);
    for (size_t i = 0; i < 10000; i++) text[i] = FOX[i % (sizeof FOX - 1)];
    assert_int_equal(th_chunks_cut(text, 10000, TH_CUT_AUTO, 300, 3, &chunks, &error), THESPIS_OK);
    for (size_t i = 0; i + 1 < chunks.count; i++) {
        assert_int_equal(chunks.items[i].bytes, 4 * (sizeof FOX - 1) - 1);
        assert_int_equal(chunks.items[i].source_begin, i * 4 * (sizeof FOX - 1));
    }
    th_chunks_free(&chunks);
}

static void test_refusals(void **state)
{
    (void)state;
    struct th_chunks chunks;
    assert_int_equal(th_chunks_cut("a\xFFz", 3, TH_CUT_AUTO, 300, 3, &chunks, &error), THESPIS_INVALID);
    assert_non_null(strstr(error.message, "byte 1"));
    assert_int_equal(th_chunks_cut("a", 1, TH_CUT_AUTO, 23, 3, &chunks, &error), THESPIS_INVALID);
    assert_non_null(strstr(error.message, "23"));
    assert_int_equal(th_chunks_cut("a", 1, TH_CUT_AUTO, 300, 0, &chunks, &error), THESPIS_INVALID);
    assert_null(chunks.items);
    th_chunks_free(&chunks);
    th_chunks_free(NULL);
}

static void test_failing_allocations(void **state)
{
    (void)state;
#ifdef TH_FAULTS
    static const char text[] =
        "Zero. <|speaker:1|> One <a>two</a> [three]. Four\n\nfive. <|speaker:2|> Six seven eight. Nine ten eleven twelve. "
        "a. b! c? d! e! f! g! h! i! j! k! l! m! n! o! p! q! r! s! t!";
    thespis_status status = THESPIS_MEMORY;
    long n = 0;
    while (status != THESPIS_OK) {
        struct th_chunks chunks;
        th_memory_fail_from(++n);
        status = th_chunks_cut(text, sizeof text - 1, TH_CUT_SENTENCE, 40, 2, &chunks, &error);
        th_memory_fail_from(0);
        assert_true(status == THESPIS_OK || status == THESPIS_MEMORY);
        if (status != THESPIS_OK) {
            assert_null(chunks.items);
            assert_null(chunks.storage);
            assert_non_null(strstr(error.message, "out of memory"));
        }
        th_chunks_free(&chunks);
    }
    assert_true(n > 12);
#else
    skip();
#endif
}

/* ---- the C side of check_chunks.py ---- */

static void put(FILE *file, size_t number)
{
    uint32_t value = (uint32_t)number;
    if (fwrite(&value, sizeof value, 1, file) != 1) exit(2);
}

static int cut_file(const char *in, const char *out)
{
    FILE *source = fopen(in, "rb"), *target = fopen(out, "wb");
    uint32_t head[4];
    if (source == NULL || target == NULL) return 2;
    while (fread(head, sizeof head, 1, source) == 1) {
        char *text = malloc(head[3] + 1);
        struct th_chunks chunks;
        if (text == NULL || fread(text, 1, head[3], source) != head[3]) return 2;
        if (th_chunks_cut(text, head[3], (enum th_granularity)head[0], head[1], (int)head[2], &chunks, &error) != THESPIS_OK) {
            fprintf(stderr, "%s\n", error.message);
            return 1;
        }
        put(target, chunks.count);
        for (size_t i = 0; i < chunks.count; i++) {
            const struct th_chunk *chunk = &chunks.items[i];
            put(target, chunk->source_begin);
            put(target, chunk->source_end);
            put(target, (size_t)chunk->speakers);
            put(target, (size_t)chunk->speaks);
            put(target, chunk->bytes);
            if (fwrite(chunk->text, 1, chunk->bytes, target) != chunk->bytes) return 2;
        }
        th_chunks_free(&chunks);
        free(text);
    }
    fclose(source);
    return fclose(target) == 0 ? 0 : 2;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "cut") == 0) return cut_file(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fitting_text_is_untouched),
        cmocka_unit_test(test_sentences),
        cmocka_unit_test(test_other_scripts),
        cmocka_unit_test(test_clauses),
        cmocka_unit_test(test_paragraphs_end_units),
        cmocka_unit_test(test_auto_packs),
        cmocka_unit_test(test_spans_stay_whole),
        cmocka_unit_test(test_speakers),
        cmocka_unit_test(test_silent_parts_join),
        cmocka_unit_test(test_what_speaks),
        cmocka_unit_test(test_whole_span_is_bounded),
        cmocka_unit_test(test_graphemes),
        cmocka_unit_test(test_text_without_marks),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
