/* tokenizer_file.h - what tokenizer.json holds, read strictly. */
#ifndef THESPIS_TEXT_TOKENIZER_FILE_H
#define THESPIS_TEXT_TOKENIZER_FILE_H

#include "text/added.h"
#include "text/scan.h"
#include "text/vocab.h"

struct th_tokenizer {
    struct th_vocab vocab;
    enum th_pattern pattern;
    int nfc;           /* 1: text is normalised to NFC */
    int ignore_merges; /* 1: a piece that is an entry is taken whole */
    struct th_added *added;
    size_t added_count;
    struct th_added_set raw, normalized; /* which of them are looked for in which text */
    int32_t *by_id;                      /* [size], entry i as i, added token i as -2 - i, no such id as -1 */
    int32_t size;
};

/* Fills a zeroed tokenizer from the file; what is filled is freed by th_tokenizer_close also after a failure. */
thespis_status th_tokenizer_read(const char *path, struct th_tokenizer *tokenizer, thespis_error *error);

#endif
