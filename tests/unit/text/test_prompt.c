/* test_prompt.c - the segments of the specification's example, messages with their place, and failing allocations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "text/prompt.h"

#define BOOKS 10

static const struct th_prompt_shape marks_shape = {BOOKS, 32, 0};
static thespis_error error;
static struct th_tokenizer *tokenizer;
static struct th_prompt_shape shape;

static int open_marks(void **state)
{
    (void)state;
    if (th_tokenizer_open(TEST_SOURCE_DIR "/tests/vectors/text/marks.json", &tokenizer, &error) != THESPIS_OK) return -1;
    shape = marks_shape;
    shape.semantic_start = th_tokenizer_id(tokenizer, "<|semantic:0|>", 14);
    return 0;
}

static int close_marks(void **state)
{
    (void)state;
    th_tokenizer_close(tokenizer);
    return 0;
}

/* What a walk saw, as one text: segments in quotes-free lines, audio as (frames). */
struct seen {
    char text[2048];
    size_t bytes, segments;
};

static void see(void *context, const struct th_prompt_segment *segment)
{
    struct seen *seen = context;
    size_t room = sizeof seen->text - seen->bytes;
    seen->segments++;
    seen->bytes +=
        (size_t)(segment->text != NULL ? snprintf(seen->text + seen->bytes, room, "T%.*s~", (int)segment->bytes, segment->text)
                                       : snprintf(seen->text + seen->bytes, room, "A%zu~", segment->frames));
    assert_true(seen->bytes < sizeof seen->text);
}

static void expect_walk(const struct th_prompt *prompt, const char *wanted)
{
    struct seen seen = {.bytes = 0};
    if (th_prompt_walk(tokenizer, &shape, prompt, see, &seen, &error) != THESPIS_OK) fail_msg("%s", error.message);
    assert_string_equal(seen.text, wanted);
}

static struct th_prompt_reference reference(const char *text, const int32_t *codes, size_t frames)
{
    return (struct th_prompt_reference){text, text == NULL ? 0 : strlen(text), codes, frames};
}

static struct th_prompt prompt_of(const char *text)
{
    return (struct th_prompt){.text = text, .text_bytes = strlen(text)};
}

static const int32_t zeros[BOOKS * 2];

static void test_worked_example(void **state)
{
    (void)state;
    struct th_prompt_reference references[] = {reference("  <|speaker:0|> One two.", zeros, 2), reference("Three.", zeros, 1)};
    struct th_prompt prompt = prompt_of("Hello there.");
    prompt.references = references;
    prompt.reference_count = 2;
    expect_walk(&prompt, "T<|im_start|>system\n~Tconvert the provided text to speech reference to the following:~"
                         "T\n\n[Reference 1]\nText: <|speaker:0|>   One two.\nSpeech: ~A2~"
                         "T\n\n[Reference 2]\nText: <|speaker:0|> Three.\nSpeech: ~A1~"
                         "T<|im_end|>\n~T<|im_start|>user\n~T<|speaker:0|> Hello there.~T<|im_end|>\n~"
                         "T<|im_start|>assistant\n<|voice|>~");
}

static void test_history(void **state)
{
    (void)state;
    struct th_prompt_turn turns[] = {{"First.", 6, zeros, 2}, {" <|speaker:3|>Then.", 19, zeros, 1}};
    struct th_prompt prompt = prompt_of("\n<|speaker:15|> Now.");
    prompt.history = turns;
    prompt.history_count = 2;
    expect_walk(&prompt,
                "T<|im_start|>system\n~Tconvert the provided text to speech~T<|im_end|>\n~"
                "T<|im_start|>user\n~T<|speaker:0|> First.~T<|im_end|>\n~T<|im_start|>assistant\n<|voice|>~A2~T<|im_end|>\n~"
                "T<|im_start|>user\n~T <|speaker:3|>Then.~T<|im_end|>\n~T<|im_start|>assistant\n<|voice|>~A1~T<|im_end|>\n~"
                "T<|im_start|>user\n~T\n<|speaker:15|> Now.~T<|im_end|>\n~T<|im_start|>assistant\n<|voice|>~");
}

static void test_empty_transcripts(void **state)
{
    (void)state;
    static const char *const transcripts[] = {"", NULL, "\xE3\x80\x80"};
    static const char *const bodies[] = {"", "", "\xE3\x80\x80"};
    for (int i = 0; i < 3; i++) {
        struct th_prompt_reference only = reference(transcripts[i], zeros, 1);
        struct th_prompt prompt = prompt_of(" Hm");
        char wanted[512];
        prompt.references = &only;
        prompt.reference_count = 1;
        snprintf(wanted, sizeof wanted,
                 "T<|im_start|>system\n~Tconvert the provided text to speech reference to the following:~"
                 "T\n\n[Reference 1]\nText: <|speaker:0|> %s\nSpeech: ~A1~T<|im_end|>\n~T<|im_start|>user\n~"
                 "T<|speaker:0|>  Hm~T<|im_end|>\n~T<|im_start|>assistant\n<|voice|>~",
                 bodies[i]);
        expect_walk(&prompt, wanted);
    }
}

static void test_rows_of_frames(void **state)
{
    (void)state;
    int32_t codes[BOOKS * 3];
    struct th_rows rows;
    for (int i = 0; i < BOOKS * 3; i++) codes[i] = i % 32;
    struct th_prompt_reference only = reference("x", codes, 3);
    struct th_prompt prompt = prompt_of("Go");
    prompt.references = &only;
    prompt.reference_count = 1;
    assert_int_equal(th_prompt_build(tokenizer, &shape, &prompt, &rows, &error), THESPIS_OK);
    assert_int_equal(rows.width, 11);
    /* The system block ends with <|im_end|> and its line break, right after the three frames. */
    const int32_t *frame = rows.data + (rows.system_count - 5) * 11;
    for (int f = 0; f < 3; f++, frame += 11) {
        assert_int_equal(frame[0], shape.semantic_start + f);
        for (int k = 0; k < BOOKS; k++) assert_int_equal(frame[1 + k], (k * 3 + f) % 32);
    }
    for (int k = 0; k < BOOKS; k++) assert_int_equal(frame[1 + k], 0);
    th_rows_free(&rows);
    th_rows_free(&rows);
}

static void expect_refusal(const struct th_prompt *prompt, const char *message)
{
    struct th_rows rows;
    memset(&error, 0, sizeof error);
    assert_int_equal(th_prompt_build(tokenizer, &shape, prompt, &rows, &error), THESPIS_INVALID);
    assert_null(rows.data);
    if (strstr(error.message, message) != error.message) fail_msg("'%s' does not begin '%s'", error.message, message);
}

static void test_refusals(void **state)
{
    (void)state;
    struct th_prompt_reference references[17];
    struct th_prompt_turn turn = {" ", 1, zeros, 1};
    struct th_prompt prompt = prompt_of("a<|im_end|>");
    expect_refusal(&prompt, "input: byte 1 begins <|im_end|>");
    prompt = prompt_of(" ");
    expect_refusal(&prompt, "input: the text is only white space");
    prompt = prompt_of("...");
    prompt.references = references;
    for (int i = 0; i < 17; i++) references[i] = reference("x", zeros, 1);
    prompt.reference_count = 17;
    expect_refusal(&prompt, "references: there are 17");
    prompt.reference_count = 16;
    references[15].transcript = "\xC3";
    expect_refusal(&prompt, "references.15: byte 0");
    references[15].transcript = "x";
    references[3].frames = 0;
    expect_refusal(&prompt, "references.3: the codes have no frame");
    int32_t codes[BOOKS * 2] = {0};
    references[3] = reference("x", codes, 2);
    codes[7] = 32;
    expect_refusal(&prompt, "references.3: code 3 of frame 1 is 32; it must be in 0..31");
    codes[7] = -1;
    expect_refusal(&prompt, "references.3: code 3 of frame 1 is -1");
    codes[7] = 31;
    prompt.history = &turn;
    prompt.history_count = 1;
    expect_refusal(&prompt, "history.0: the text is only white space");
    turn = (struct th_prompt_turn){"x", 1, codes, 0};
    expect_refusal(&prompt, "history.0: the codes have no frame");
}

static void test_tokenizer_that_does_not_fit(void **state)
{
    (void)state;
    struct th_prompt_shape other = shape;
    assert_int_equal(th_prompt_check_tokenizer(tokenizer, &shape, &error), THESPIS_OK);
    other.semantic_start++;
    assert_int_equal(th_prompt_check_tokenizer(tokenizer, &other, &error), THESPIS_FORMAT);
    assert_non_null(strstr(error.message, "<|semantic:0|>"));
    other = shape;
    other.codebook_size = 33;
    assert_int_equal(th_prompt_check_tokenizer(tokenizer, &other, &error), THESPIS_FORMAT);
    assert_non_null(strstr(error.message, "<|semantic:32|>"));
}

#ifdef TH_FAULTS
static void ignore_segment(void *context, const struct th_prompt_segment *segment)
{
    (void)context;
    (void)segment;
}

static void test_allocation_failures(void **state)
{
    (void)state;
    struct th_prompt_reference only = reference("e\xCC\x81", zeros, 2);
    struct th_prompt_turn turn = {"x", 1, zeros, 1};
    struct th_prompt prompt = {&only, 1, &turn, 1, "caf\xC3\xA9 \xE4\xBD\xA0", 9};
    thespis_status status = THESPIS_MEMORY;
    long n = 1;
    for (; status != THESPIS_OK && n < 1000; n++) {
        struct th_rows rows;
        th_memory_fail_from(n);
        status = th_prompt_build(tokenizer, &shape, &prompt, &rows, &error);
        th_memory_fail_from(n);
        thespis_status walked = th_prompt_walk(tokenizer, &shape, &prompt, ignore_segment, NULL, &error);
        th_memory_fail_from(n);
        thespis_status checked = th_prompt_check_tokenizer(tokenizer, &shape, &error);
        th_memory_fail_from(0);
        if (status != THESPIS_OK) assert_int_equal(status, THESPIS_MEMORY);
        assert_true(walked == THESPIS_OK || walked == THESPIS_MEMORY);
        assert_true(checked == THESPIS_OK || checked == THESPIS_MEMORY);
        th_rows_free(&rows);
    }
    assert_int_equal(status, THESPIS_OK);
    assert_true(n > 20);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worked_example),
        cmocka_unit_test(test_history),
        cmocka_unit_test(test_empty_transcripts),
        cmocka_unit_test(test_rows_of_frames),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_tokenizer_that_does_not_fit),
#ifdef TH_FAULTS
        cmocka_unit_test(test_allocation_failures),
#endif
    };
    return cmocka_run_group_tests(tests, open_marks, close_marks);
}
