/* validate.c - see validate.h. Everything is searched for in the raw bytes: no normalisation, no letter case. */
#include "text/validate.h"

#include <string.h>

#include "base/memory.h"
#include "text/tokenizer_file.h"
#include "text/unicode.h"

/* What only the prompt itself may write; the last is a prefix. */
static const char *const structural[] = {"<|im_start|>", "<|im_end|>", "<|voice|>", "<|text|>", "<|interleave|>", "<|semantic:"};

static int begins(const char *text, size_t bytes, const char *with)
{
    size_t length = strlen(with);
    return bytes >= length && memcmp(text, with, length) == 0;
}

size_t th_speaker_tag(const char *text, size_t bytes, int *speaker)
{
    static const char head[] = "<|speaker:";
    size_t at = sizeof head - 1;
    if (!begins(text, bytes, head) || bytes < at + 3 || text[at] < '0' || text[at] > '9') return 0;
    int number = text[at++] - '0';
    if (number == 1 && text[at] >= '0' && text[at] <= '5') number = 10 + text[at++] - '0';
    if (!begins(text + at, bytes - at, "|>")) return 0;
    if (speaker != NULL) *speaker = number;
    return at + 2;
}

size_t th_leading_space(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        size_t next = at;
        if (!th_is_white_space(th_utf8_next(text, bytes, &next))) break;
        at = next;
    }
    return at;
}

static thespis_status check_markers(const char *text, size_t bytes, thespis_error *error)
{
    for (size_t at = 0; at + 1 < bytes; at++) {
        if (text[at] != '<' || text[at + 1] != '|') continue;
        for (size_t i = 0; i < sizeof structural / sizeof *structural; i++)
            if (begins(text + at, bytes - at, structural[i]))
                return th_fail(error, THESPIS_INVALID, "byte %zu begins %s, which only the prompt itself may hold", at,
                               structural[i]);
        if (begins(text + at, bytes - at, "<|speaker") && th_speaker_tag(text + at, bytes - at, NULL) == 0)
            return th_fail(error, THESPIS_INVALID,
                           "byte %zu begins '%.*s', which is no speaker tag; tags are written <|speaker:N|> with N in 0..%d and no "
                           "leading zero",
                           at, (int)(bytes - at < TH_SPEAKER_TAG_MAX ? bytes - at : TH_SPEAKER_TAG_MAX), text + at,
                           THESPIS_MAX_SPEAKERS - 1);
    }
    return THESPIS_OK;
}

/* Length of <name ...>, </name> or <|name|> at text[0] == '<', or 0. It ends at the first '>' and holds no other '<'. */
static size_t markup(const char *text, size_t bytes)
{
    size_t at = 1;
    if (at < bytes && (text[at] == '/' || text[at] == '|')) at++;
    size_t name = at;
    if (name >= bytes || !th_is_letter(th_utf8_next(text, bytes, &name))) return 0;
    while (at < bytes && text[at] != '<' && text[at] != '>') at++;
    return at < bytes && text[at] == '>' ? at + 1 : 0;
}

/* Is there a letter, a number or a [cue] with something in it, markup aside? */
static int is_speakable(const char *text, size_t bytes)
{
    int open = 0, filled = 0;
    for (size_t at = 0; at < bytes;) {
        size_t skip = text[at] == '<' ? markup(text + at, bytes - at) : 0;
        if (skip > 0) {
            at += skip;
            continue;
        }
        uint32_t c = th_utf8_next(text, bytes, &at);
        if (th_is_letter(c) || th_is_number(c)) return 1;
        if (c == ']' && open && filled) return 1;
        if (c == '[' || c == ']') {
            open = c == '[';
            filled = 0;
        } else if (!th_is_white_space(c)) {
            filled = 1;
        }
    }
    return 0;
}

/* Refuses any token of the set in text but speaker tags. */
static thespis_status refuse_tokens(const struct th_added_set *set, const char *text, size_t bytes, const char *in,
                                    thespis_error *error)
{
    for (size_t at = 0; at < bytes;) {
        const struct th_added *token = th_added_at(set, text, bytes, at);
        if (token != NULL && th_speaker_tag(token->content, token->bytes, NULL) != token->bytes)
            return th_fail(error, THESPIS_INVALID,
                           "byte %zu%s begins the added token '%.60s'; strict text may hold no added tokens but "
                           "speaker tags",
                           at, in, token->content);
        at += token != NULL ? token->match_bytes : 1;
    }
    return THESPIS_OK;
}

static thespis_status check_strict(const struct th_tokenizer *tokenizer, const char *text, size_t bytes, thespis_error *error)
{
    TH_TRY(refuse_tokens(&tokenizer->raw, text, bytes, "", error));
    if (tokenizer->normalized.count == 0) return THESPIS_OK;
    char *normal;
    size_t normal_bytes;
    TH_TRY(th_nfc(text, bytes, &normal, &normal_bytes, error));
    thespis_status status = refuse_tokens(&tokenizer->normalized, normal, normal_bytes, " of the text in NFC", error);
    th_free(normal);
    return status;
}

thespis_status th_validate_text(const char *text, size_t bytes, int flags, const struct th_tokenizer *tokenizer,
                                thespis_error *error)
{
    TH_TRY(th_utf8_check(text, bytes, error));
    int blank = th_leading_space(text, bytes) == bytes;
    if (blank && (flags & TH_TEXT_NEED_SPEAKABLE) && !(flags & TH_TEXT_ALLOW_BLANK))
        return th_fail(error, THESPIS_INVALID, "nothing to speak: the text is %s", bytes == 0 ? "empty" : "only white space");
    if (blank && !(flags & TH_TEXT_ALLOW_BLANK))
        return th_fail(error, THESPIS_INVALID, "the text is %s; it must hold something to speak",
                       bytes == 0 ? "empty" : "only white space");
    TH_TRY(check_markers(text, bytes, error));
    if ((flags & TH_TEXT_STRICT) && tokenizer != NULL) TH_TRY(check_strict(tokenizer, text, bytes, error));
    if ((flags & TH_TEXT_NEED_SPEAKABLE) && !blank && !is_speakable(text, bytes))
        return th_fail(error, THESPIS_INVALID, "nothing to speak: the text holds no letter, no number and no [cue]");
    return THESPIS_OK;
}
