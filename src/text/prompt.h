/* prompt.h - the rows of "reference-bracket-v1": the only place that knows the prompt's text. */
#ifndef THESPIS_TEXT_PROMPT_H
#define THESPIS_TEXT_PROMPT_H

#include "text/tokenizer.h"

/* What the prompt needs to know of the model. */
struct th_prompt_shape {
    int codebooks;      /* columns 1..codebooks of a row */
    int codebook_size;  /* codes are 0..codebook_size-1 */
    int semantic_start; /* main token of code 0 = 0 */
};

struct th_prompt_reference {
    const char *transcript; /* may be empty */
    size_t transcript_bytes;
    const int32_t *codes; /* [codebooks][frames] */
    size_t frames;        /* >= 1 */
};

struct th_prompt_turn {
    const char *text;
    size_t text_bytes;
    const int32_t *codes; /* [codebooks][frames] */
    size_t frames;        /* >= 1 */
};

struct th_prompt {
    const struct th_prompt_reference *references;
    size_t reference_count; /* 0..16 */
    const struct th_prompt_turn *history;
    size_t history_count;
    const char *text;
    size_t text_bytes;
};

/* Rows [count][1 + codebooks]; data is freed with th_free. */
struct th_rows {
    int32_t *data;
    size_t count, capacity;
    int width;           /* 1 + codebooks */
    size_t system_count; /* rows of the system block: they depend on the references alone */
};

/* Does the tokenizer fit the model? <|semantic:0|> must have the id semantic_start, the structural tokens must exist. */
thespis_status th_prompt_check_tokenizer(const struct th_tokenizer *tokenizer, const struct th_prompt_shape *shape,
                                         thespis_error *error);
/* Validates (th_validate_*), tags, tokenises segment by segment and lays out the rows. Messages begin with "input: ",
 * "references.I: " or "history.I: ". Unlike the doors of the product it accepts text without a letter or digit. */
thespis_status th_prompt_build(const struct th_tokenizer *tokenizer, const struct th_prompt_shape *shape,
                               const struct th_prompt *prompt, struct th_rows *rows, thespis_error *error);
void th_rows_free(struct th_rows *rows);

/* Segments as text, for `inspect prompt`: calls back with each segment's bytes (text) or frames (audio) in order. */
struct th_prompt_segment {
    const char *text; /* NULL for audio */
    size_t bytes;
    size_t frames;
    size_t first_row, rows;
};
typedef void (*th_prompt_visit)(void *context, const struct th_prompt_segment *segment);
thespis_status th_prompt_walk(const struct th_tokenizer *tokenizer, const struct th_prompt_shape *shape,
                              const struct th_prompt *prompt, th_prompt_visit visit, void *context, thespis_error *error);

#endif
