/* prompt.c - see prompt.h. lay_out says which segments there are; the two entry points only differ in what becomes of a segment. */
#include "text/prompt.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "text/validate.h"

#define MAX_REFERENCES 16
#define MAX_TEXT_BYTES ((size_t)1 << 30)

static const char system_begin[] = "<|im_start|>system\n";
static const char instruction[] = "convert the provided text to speech";
static const char reference_instruction[] = "convert the provided text to speech reference to the following:";
static const char user_begin[] = "<|im_start|>user\n";
static const char turn_end[] = "<|im_end|>\n";
static const char assistant_begin[] = "<|im_start|>assistant\n<|voice|>";
static const char default_tag[] = "<|speaker:0|>";

/* A prompt on its way to rows (rows not NULL) or to a visitor (visit not NULL). */
struct layout {
    const struct th_tokenizer *tokenizer;
    const struct th_prompt_shape *shape;
    struct th_rows *rows;
    th_prompt_visit visit;
    void *context;
    size_t row_count;
    size_t system_count;
    struct th_ids ids; /* of the segment at hand */
    thespis_error *error;
};

static thespis_status reserve_rows(struct th_rows *rows, size_t more, thespis_error *error)
{
    if (rows->capacity - rows->count >= more) return THESPIS_OK;
    size_t wanted, width = (size_t)rows->width;
    if (__builtin_add_overflow(rows->count, more, &wanted) || __builtin_add_overflow(wanted, wanted / 2, &wanted))
        return th_fail_memory(error, "the prompt's rows", SIZE_MAX);
    int32_t *grown = th_realloc(rows->data, rows->count, wanted, width * sizeof *grown);
    if (grown == NULL) return th_fail_memory(error, "the prompt's rows", wanted);
    rows->data = grown;
    rows->capacity = wanted;
    return THESPIS_OK;
}

static void visit_segment(struct layout *l, const char *text, size_t bytes, size_t frames, size_t rows)
{
    struct th_prompt_segment segment = {text, bytes, frames, l->row_count, rows};
    if (l->visit != NULL) l->visit(l->context, &segment);
    l->row_count += rows;
}

/* Each segment is tokenised alone: joined first, the ids at the seams would differ. */
static thespis_status put_bytes(struct layout *l, const char *text, size_t bytes)
{
    l->ids.count = 0;
    TH_TRY(th_tokenizer_encode(l->tokenizer, text, bytes, &l->ids, l->error));
    if (l->rows != NULL) {
        struct th_rows *rows = l->rows;
        TH_TRY(reserve_rows(rows, l->ids.count, l->error));
        for (size_t i = 0; i < l->ids.count; i++, rows->count++) {
            int32_t *row = rows->data + rows->count * (size_t)rows->width;
            memset(row, 0, (size_t)rows->width * sizeof *row);
            row[0] = l->ids.data[i];
        }
    }
    visit_segment(l, text, bytes, 0, l->ids.count);
    return THESPIS_OK;
}

static thespis_status put(struct layout *l, const char *text)
{
    return put_bytes(l, text, strlen(text));
}

/* codes [codebooks][frames] become frames rows: the main token of code 0, then all codes. */
static thespis_status put_audio(struct layout *l, const int32_t *codes, size_t frames)
{
    if (l->rows != NULL) {
        struct th_rows *rows = l->rows;
        TH_TRY(reserve_rows(rows, frames, l->error));
        for (size_t f = 0; f < frames; f++, rows->count++) {
            int32_t *row = rows->data + rows->count * (size_t)rows->width;
            row[0] = l->shape->semantic_start + codes[f];
            for (int k = 0; k < l->shape->codebooks; k++) row[1 + k] = codes[(size_t)k * frames + f];
        }
    }
    visit_segment(l, NULL, 0, frames, frames);
    return THESPIS_OK;
}

/* The target or a turn: a text that a tag leads (after white space or not) stays as it is, any other gets the default tag and a
 * space. */
static thespis_status put_target(struct layout *l, const char *text, size_t bytes)
{
    size_t space = th_leading_space(text, bytes), head = sizeof default_tag - 1;
    if (th_speaker_tag(text + space, bytes - space, NULL) > 0) return put_bytes(l, text, bytes);
    char *tagged;
    TH_TRY(TH_ALLOC(&tagged, head + 1 + bytes, "the tagged text", l->error));
    memcpy(tagged, default_tag, head);
    tagged[head] = ' ';
    memcpy(tagged + head + 1, text, bytes);
    thespis_status status = put_bytes(l, tagged, head + 1 + bytes);
    th_free(tagged);
    return status;
}

/* A transcript: its tag always comes first, before the white space that led it. Returns the bytes written; out holds 14 more than
 * it. */
static size_t tag_transcript(const char *text, size_t bytes, char *out)
{
    size_t space = th_leading_space(text, bytes), tag = th_speaker_tag(text + space, bytes - space, NULL);
    if (tag == 0) {
        size_t head = sizeof default_tag - 1;
        memcpy(out, default_tag, head);
        out[head] = ' ';
        memcpy(out + head + 1, text, bytes);
        return head + 1 + bytes;
    }
    memcpy(out, text + space, tag);
    memcpy(out + tag, text, space);
    memcpy(out + tag + space, text + space + tag, bytes - space - tag);
    return bytes;
}

static thespis_status put_reference(struct layout *l, size_t index, const struct th_prompt_reference *reference)
{
    char *text;
    const char *transcript = reference->transcript != NULL ? reference->transcript : "";
    TH_TRY(TH_ALLOC(&text, reference->transcript_bytes + 96, "the tagged transcript", l->error));
    size_t at = (size_t)snprintf(text, 64, "\n\n[Reference %zu]\nText: ", index + 1);
    at += tag_transcript(transcript, reference->transcript_bytes, text + at);
    memcpy(text + at, "\nSpeech: ", 9);
    thespis_status status = put_bytes(l, text, at + 9);
    th_free(text);
    TH_TRY(status);
    return put_audio(l, reference->codes, reference->frames);
}

static thespis_status put_user(struct layout *l, const char *text, size_t bytes)
{
    TH_TRY(put(l, user_begin));
    TH_TRY(put_target(l, text, bytes));
    TH_TRY(put(l, turn_end));
    return put(l, assistant_begin);
}

static thespis_status lay_out(struct layout *l, const struct th_prompt *prompt)
{
    TH_TRY(put(l, system_begin));
    TH_TRY(put(l, prompt->reference_count > 0 ? reference_instruction : instruction));
    for (size_t i = 0; i < prompt->reference_count; i++) TH_TRY(put_reference(l, i, &prompt->references[i]));
    TH_TRY(put(l, turn_end));
    l->system_count = l->row_count;
    for (size_t i = 0; i < prompt->history_count; i++) {
        const struct th_prompt_turn *turn = &prompt->history[i];
        TH_TRY(put_user(l, turn->text, turn->text_bytes));
        TH_TRY(put_audio(l, turn->codes, turn->frames));
        TH_TRY(put(l, turn_end));
    }
    return put_user(l, prompt->text, prompt->text_bytes);
}

static thespis_status check_text(const char *text, size_t bytes, int flags, thespis_error *error)
{
    if (bytes > MAX_TEXT_BYTES)
        return th_fail(error, THESPIS_LIMIT, "the text has %zu bytes; at most %zu are taken", bytes, MAX_TEXT_BYTES);
    return th_validate_text(text, bytes, flags, NULL, error);
}

static thespis_status check_codes(const struct th_prompt_shape *shape, const int32_t *codes, size_t frames, thespis_error *error)
{
    if (frames == 0 || codes == NULL) return th_fail(error, THESPIS_INVALID, "the codes have no frame; at least one is needed");
    for (int k = 0; k < shape->codebooks; k++)
        for (size_t f = 0; f < frames; f++) {
            int32_t code = codes[(size_t)k * frames + f];
            if (code < 0 || code >= shape->codebook_size)
                return th_fail(error, THESPIS_INVALID, "code %d of frame %zu is %d; it must be in 0..%d", k, f, code,
                               shape->codebook_size - 1);
        }
    return THESPIS_OK;
}

static thespis_status check_reference(const struct th_prompt_shape *shape, const struct th_prompt_reference *r,
                                      thespis_error *error)
{
    TH_TRY(check_text(r->transcript, r->transcript_bytes, TH_TEXT_ALLOW_BLANK, error));
    return check_codes(shape, r->codes, r->frames, error);
}

static thespis_status check_turn(const struct th_prompt_shape *shape, const struct th_prompt_turn *turn, thespis_error *error)
{
    TH_TRY(check_text(turn->text, turn->text_bytes, 0, error));
    return check_codes(shape, turn->codes, turn->frames, error);
}

static thespis_status check_prompt(const struct th_prompt_shape *shape, const struct th_prompt *prompt, thespis_error *error)
{
    if (shape->codebooks < 1 || shape->codebook_size < 1 || shape->semantic_start < 0)
        return th_fail(error, THESPIS_INVALID,
                       "the prompt's shape has %d codebooks of %d codes from token %d; all must be positive", shape->codebooks,
                       shape->codebook_size, shape->semantic_start);
    if (prompt->reference_count > MAX_REFERENCES)
        return th_fail(error, THESPIS_INVALID, "references: there are %zu; at most %d are allowed", prompt->reference_count,
                       MAX_REFERENCES);
    thespis_status status = THESPIS_OK;
    for (size_t i = 0; i < prompt->reference_count && status == THESPIS_OK; i++) {
        status = check_reference(shape, &prompt->references[i], error);
        if (status != THESPIS_OK) th_error_prefix(error, "references.%zu: ", i);
    }
    for (size_t i = 0; i < prompt->history_count && status == THESPIS_OK; i++) {
        status = check_turn(shape, &prompt->history[i], error);
        if (status != THESPIS_OK) th_error_prefix(error, "history.%zu: ", i);
    }
    TH_TRY(status);
    status = check_text(prompt->text, prompt->text_bytes, 0, error);
    if (status != THESPIS_OK) th_error_prefix(error, "input: ");
    return status;
}

thespis_status th_prompt_build(const struct th_tokenizer *tokenizer, const struct th_prompt_shape *shape,
                               const struct th_prompt *prompt, struct th_rows *rows, thespis_error *error)
{
    *rows = (struct th_rows){.width = 1 + shape->codebooks};
    TH_TRY(check_prompt(shape, prompt, error));
    struct layout l = {.tokenizer = tokenizer, .shape = shape, .rows = rows, .error = error};
    thespis_status status = lay_out(&l, prompt);
    rows->system_count = l.system_count;
    th_free(l.ids.data);
    if (status != THESPIS_OK) th_rows_free(rows);
    return status;
}

void th_rows_free(struct th_rows *rows)
{
    th_free(rows->data);
    *rows = (struct th_rows){0};
}

thespis_status th_prompt_walk(const struct th_tokenizer *tokenizer, const struct th_prompt_shape *shape,
                              const struct th_prompt *prompt, th_prompt_visit visit, void *context, thespis_error *error)
{
    TH_TRY(check_prompt(shape, prompt, error));
    struct layout l = {.tokenizer = tokenizer, .shape = shape, .visit = visit, .context = context, .error = error};
    thespis_status status = lay_out(&l, prompt);
    th_free(l.ids.data);
    return status;
}

/* A token must be one id wherever it stands, so encoding it is the test. */
static thespis_status check_token(const struct th_tokenizer *tokenizer, const char *content, int32_t id, thespis_error *error)
{
    struct th_ids ids = {0};
    thespis_status status = th_tokenizer_encode(tokenizer, content, strlen(content), &ids, error);
    if (status == THESPIS_OK && ids.count != 1)
        status = th_fail(error, THESPIS_FORMAT, "the tokenizer has no token %s, which this model's prompt needs", content);
    else if (status == THESPIS_OK && id >= 0 && ids.data[0] != id)
        status = th_fail(error, THESPIS_FORMAT, "the tokenizer's %s has id %d; by the model's config it must be %d", content,
                         ids.data[0], id);
    th_free(ids.data);
    return status;
}

thespis_status th_prompt_check_tokenizer(const struct th_tokenizer *tokenizer, const struct th_prompt_shape *shape,
                                         thespis_error *error)
{
    static const char *const needed[] = {"<|im_start|>", "<|im_end|>", "<|voice|>"};
    char content[40];
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) TH_TRY(check_token(tokenizer, needed[i], -1, error));
    for (int i = 0; i < THESPIS_MAX_SPEAKERS; i++) {
        snprintf(content, sizeof content, "<|speaker:%d|>", i);
        TH_TRY(check_token(tokenizer, content, -1, error));
    }
    TH_TRY(check_token(tokenizer, "<|semantic:0|>", shape->semantic_start, error));
    snprintf(content, sizeof content, "<|semantic:%d|>", shape->codebook_size - 1);
    return check_token(tokenizer, content, shape->semantic_start + shape->codebook_size - 1, error);
}
