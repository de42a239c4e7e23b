/* test_validate.c - which texts are refused, where, and what is nothing to speak. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "text/unicode.h"
#include "text/validate.h"

static thespis_error error;

static thespis_status check(const char *text, int flags)
{
    memset(&error, 0, sizeof error);
    return th_validate_text(text, strlen(text), flags, NULL, &error);
}

static void test_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t bytes;
        const char *where; /* NULL: valid */
    } cases[] = {
        {"a\xC3\xA9z", 4, NULL},       {"\xF0\x9F\x98\x80", 4, NULL},   {"\xF4\x8F\xBF\xBF", 4, NULL},
        {"\xEF\xBF\xBF", 3, NULL},     {"ab\xC0\xAF", 4, "byte 2"},     {"\xE0\x80\xAF", 3, "byte 0"},
        {"\xF0\x80\x80\xAF", 4, "0"},  {"a\xED\xA0\x80", 4, "byte 1"},  {"\xF4\x90\x80\x80", 4, "byte 0"},
        {"\xF5\x80\x80\x80", 4, "0"},  {"abc\x80", 4, "byte 3 (0x80)"}, {"ab\xE4\xBD", 4, "byte 2"},
        {"a\xC3", 2, "byte 1"},        {"ab\0c", 4, "byte 2 is zero"},  {"\xFF", 1, "byte 0"},
        {"\xE4\xBD\xA0\xC3(", 5, "3"}, {"\xC1\xBF", 2, "byte 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        thespis_status status = th_utf8_check(cases[i].text, cases[i].bytes, &error);
        assert_int_equal(status, cases[i].where == NULL ? THESPIS_OK : THESPIS_INVALID);
        if (cases[i].where != NULL) assert_non_null(strstr(error.message, cases[i].where));
    }
}

static void test_every_code_point_round_trips(void **state)
{
    (void)state;
    for (uint32_t c = 1; c < 0x110000; c++) {
        if (c >= 0xD800 && c < 0xE000) continue;
        char unit[4];
        size_t at = 0;
        int bytes = th_utf8_write(c, unit);
        assert_int_equal(th_utf8_check(unit, (size_t)bytes, NULL), THESPIS_OK);
        assert_int_equal(th_utf8_next(unit, (size_t)bytes, &at), c);
        assert_int_equal(at, bytes);
    }
}

static void test_classes(void **state)
{
    (void)state;
    int letters = 0, marks = 0, numbers = 0, spaces = 0;
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xD800 && c < 0xE000) continue;
        letters += th_is_letter(c);
        marks += th_is_mark(c);
        numbers += th_is_number(c);
        spaces += th_is_white_space(c);
    }
    assert_int_equal(letters, 141028);
    assert_int_equal(marks, 2501);
    assert_int_equal(numbers, 1911);
    assert_int_equal(spaces, 25);
    assert_false(th_is_white_space(0x1C) || th_is_white_space(0x180E) || th_is_white_space(0x200B) || th_is_white_space(0xFEFF));
}

static void test_blank(void **state)
{
    (void)state;
    static const char *const blank[] = {"", "   ", "\n\t", "\xE3\x80\x80", "\xC2\x85\xC2\xA0\xE2\x80\xA8"};
    for (size_t i = 0; i < sizeof blank / sizeof *blank; i++) {
        assert_int_equal(check(blank[i], 0), THESPIS_INVALID);
        assert_non_null(strstr(error.message, i == 0 ? "empty" : "white space"));
        assert_int_equal(check(blank[i], TH_TEXT_ALLOW_BLANK), THESPIS_OK);
        assert_int_equal(check(blank[i], TH_TEXT_NEED_SPEAKABLE), THESPIS_INVALID);
        assert_non_null(strstr(error.message, "nothing to speak"));
    }
    assert_int_equal(check("\x1C", 0), THESPIS_OK); /* not White_Space, whatever other libraries strip */
    assert_int_equal(check("\xE2\x80\x8B", 0), THESPIS_OK);
}

static void test_structural_tokens(void **state)
{
    (void)state;
    static const char *const refused[] = {"a<|im_start|>",   "a<|im_end|>b", "a<|voice|>",      "a<|text|>",
                                          "a<|interleave|>", "a<|semantic:", "a<|semantic:7|>", "a<<|semantic:x"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(check(refused[i], TH_TEXT_ALLOW_BLANK), THESPIS_INVALID);
        assert_non_null(strstr(error.message, refused[i][1] == '<' && refused[i][2] == '<' ? "byte 2 begins" : "byte 1 begins"));
    }
    static const char *const legal[] = {"<|IM_START|>", "<|im_start|", "<|semantic", "<|endoftext|>", "<|foo|>", "|im_end|>", "<|"};
    for (size_t i = 0; i < sizeof legal / sizeof *legal; i++) assert_int_equal(check(legal[i], 0), THESPIS_OK);
}

static void test_speaker_tags(void **state)
{
    (void)state;
    char text[32];
    for (int i = 0; i <= 15; i++) {
        int speaker = -1;
        int bytes = snprintf(text, sizeof text, "<|speaker:%d|>x", i);
        assert_int_equal(th_speaker_tag(text, (size_t)bytes, &speaker), bytes - 1);
        assert_int_equal(speaker, i);
        assert_int_equal(th_speaker_tag(text, (size_t)bytes - 2, &speaker), 0);
        assert_int_equal(check(text, 0), THESPIS_OK);
    }
    static const char *const refused[] = {"<|speaker:00|>",
                                          "<|speaker:16|>",
                                          "<|speaker:01|>",
                                          "<|speaker|>",
                                          "<|speakers",
                                          "<|speaker",
                                          "<|speaker:+1|>",
                                          "<|speaker: 1|>",
                                          "<|speaker:1 |>",
                                          "<|speaker:1",
                                          "<|speaker:|>",
                                          "<|speaker:150|>",
                                          "<|speaker:99999999999999999999|>",
                                          "<|speaker:\xD9\xA1|>"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(check(refused[i], 0), THESPIS_INVALID);
        assert_non_null(strstr(error.message, "byte 0"));
    }
    assert_int_equal(check("ok <|speaker:1|> then <|speaker:20|>", 0), THESPIS_INVALID);
    assert_non_null(strstr(error.message, "byte 22"));
    assert_int_equal(check("<|Speaker:20|>", 0), THESPIS_OK);
}

static void test_nothing_to_speak(void **state)
{
    (void)state;
    static const char *const silent[] = {"...",
                                         "\xF0\x9F\x98\x80\xF0\x9F\x8E\x89",
                                         "\xE2\x80\x8B",
                                         "?!",
                                         "\xCC\x81",
                                         "<|speaker:3|>",
                                         "<|speaker:3|> ...",
                                         "[]",
                                         "[ ]",
                                         "[<|speaker:1|>]",
                                         "<whisper>...</whisper>",
                                         "<br/>",
                                         "<|endoftext|>",
                                         "]",
                                         "[",
                                         "] [",
                                         "<pause time=\"3\">",
                                         "[<b>]"};
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) {
        if (check(silent[i], TH_TEXT_NEED_SPEAKABLE) != THESPIS_INVALID) fail_msg("accepted '%s'", silent[i]);
        assert_non_null(strstr(error.message, "nothing to speak"));
        assert_int_equal(check(silent[i], 0), THESPIS_OK); /* the builder takes it, as the reference does */
    }
    static const char *const spoken[] = {"[laughs]",
                                         "a",
                                         "7",
                                         "\xE4\xBD\xA0",
                                         "... [sighs]",
                                         "<whisper>Hi</whisper>",
                                         "<3",
                                         "a < b",
                                         "\xC2\xBD",
                                         "<|speaker:3|>x",
                                         "<b",
                                         "[!]",
                                         "\xF0\x9F\x98\x80 [sighs",
                                         "1 > 0"};
    for (size_t i = 0; i < sizeof spoken / sizeof *spoken; i++)
        if (check(spoken[i], TH_TEXT_NEED_SPEAKABLE) != THESPIS_OK) fail_msg("refused '%s': %s", spoken[i], error.message);
}

static void test_strict(void **state)
{
    (void)state;
    struct th_tokenizer *tokenizer;
    assert_int_equal(th_tokenizer_open(TEST_SOURCE_DIR "/tests/vectors/text/added.json", &tokenizer, &error), THESPIS_OK);
    static const struct {
        const char *text, *message; /* NULL: accepted */
    } cases[] = {
        {"<|speaker:1|>Fine.", NULL},         {"a<|endoftext|>", "byte 1 begins the added token '<|endoftext|>'"},
        {"<think>", "byte 0 begins"},         {"say the word", "of the text in NFC"},
        {"e\xCC\x81!", "of the text in NFC"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        thespis_status status = th_validate_text(cases[i].text, strlen(cases[i].text), TH_TEXT_STRICT, tokenizer, &error);
        assert_int_equal(status, cases[i].message == NULL ? THESPIS_OK : THESPIS_INVALID);
        if (cases[i].message != NULL) assert_non_null(strstr(error.message, cases[i].message));
    }
    th_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_every_code_point_round_trips),
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_blank),
        cmocka_unit_test(test_structural_tokens),
        cmocka_unit_test(test_speaker_tags),
        cmocka_unit_test(test_nothing_to_speak),
        cmocka_unit_test(test_strict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
