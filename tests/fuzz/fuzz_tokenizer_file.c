/* fuzz_tokenizer_file.c - tokenizer.json; what is accepted encodes, into ids that it has. */
#include "fuzz.h"

#include "text/tokenizer.h"

static void fuzz(const uint8_t *data, size_t size)
{
    static const char text[] = "Hello there, it's 12:30. <|speaker:1|> e\xCC\x81 \xE4\xBD\xA0\xE5\xA5\xBD <|im_end|>\n";
    struct th_tokenizer *tokenizer;
    struct th_ids ids = {0};
    thespis_error error;
    if (!fuzz_told(th_tokenizer_open(fuzz_file(data, size), &tokenizer, &error), &error)) return;
    if (fuzz_told(th_tokenizer_encode(tokenizer, text, sizeof text - 1, &ids, &error), &error))
        for (size_t i = 0; i < ids.count; i++) {
            size_t bytes;
            if (th_tokenizer_content(tokenizer, ids.data[i], &bytes) == NULL) fuzz_bad("an id without content", "");
        }
    th_free(ids.data);
    th_tokenizer_close(tokenizer);
}

FUZZ_TARGET
