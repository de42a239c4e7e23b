/* fuzz_tokenizer.c - encoding with the shipped tokenizer: any bytes are validated, and valid text comes back from its ids as its
 * NFC. */
#include "fuzz.h"

#include "text/tokenizer.h"
#include "text/unicode.h"
#include "text/validate.h"

static const struct th_tokenizer *shipped(void)
{
    static struct th_tokenizer *tokenizer;
    thespis_error error;
    if (tokenizer == NULL && th_tokenizer_open(TEST_SOURCE_DIR "/models/stage/tokenizer.json", &tokenizer, &error) != THESPIS_OK)
        fuzz_bad("the shipped tokenizer", error.message);
    return tokenizer;
}

/* Do the ids' contents, one after another, make the text's NFC? */
static void check(const struct th_tokenizer *tokenizer, const char *text, size_t size, const struct th_ids *ids)
{
    char *nfc;
    size_t bytes, at = 0;
    thespis_error error;
    if (!fuzz_told(th_nfc(text, size, &nfc, &bytes, &error), &error)) return;
    for (size_t i = 0; i < ids->count; i++) {
        size_t n;
        const char *content = th_tokenizer_content(tokenizer, ids->data[i], &n);
        if (content == NULL || n > bytes - at || memcmp(nfc + at, content, n) != 0) fuzz_bad("tokenizer", "other text");
        at += n;
    }
    if (at != bytes) fuzz_bad("tokenizer", "text is missing");
    th_free(nfc);
}

static void fuzz(const uint8_t *data, size_t size)
{
    struct th_ids ids = {0};
    thespis_error error;
    const struct th_tokenizer *tokenizer = shipped();
    const char *text = (const char *)data;
    fuzz_told(th_validate_text(text, size, TH_TEXT_NEED_SPEAKABLE, tokenizer, &error), &error);
    fuzz_told(th_validate_text(text, size, TH_TEXT_ALLOW_BLANK | TH_TEXT_STRICT, tokenizer, &error), &error);
    if (!fuzz_told(th_utf8_check(text, size, &error), &error)) return;
    if (fuzz_told(th_tokenizer_encode(tokenizer, text, size, &ids, &error), &error)) check(tokenizer, text, size, &ids);
    th_free(ids.data);
}

FUZZ_TARGET
