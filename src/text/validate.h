/* validate.h - which text a caller may give: UTF-8, no structural tokens, well-formed speaker tags. */
#ifndef THESPIS_TEXT_VALIDATE_H
#define THESPIS_TEXT_VALIDATE_H

#include "text/tokenizer.h"

#define TH_SPEAKER_TAG_MAX 15 /* bytes of <|speaker:15|> and a zero */

enum {
    TH_TEXT_ALLOW_BLANK = 1,    /* transcripts: empty or blank is legal */
    TH_TEXT_NEED_SPEAKABLE = 2, /* the product's doors: a letter, a digit or a [cue] must be left */
    TH_TEXT_STRICT = 4          /* refuse every added token but speaker tags */
};

/* Rules 1 to 5 of the prompt's specification on raw text. tokenizer may be NULL without TH_TEXT_STRICT. */
thespis_status th_validate_text(const char *text, size_t bytes, int flags, const struct th_tokenizer *tokenizer,
                                thespis_error *error);

/* Length of the speaker tag <|speaker:N|>, N = 0..15, that begins at text[0], or 0; *speaker gets N. */
size_t th_speaker_tag(const char *text, size_t bytes, int *speaker);
/* Bytes of white space at the beginning. */
size_t th_leading_space(const char *text, size_t bytes);

#endif
