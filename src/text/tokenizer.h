/* tokenizer.h - a byte-level BPE tokenizer read from tokenizer.json, id for id equal to the `tokenizers` library. */
#ifndef THESPIS_TEXT_TOKENIZER_H
#define THESPIS_TEXT_TOKENIZER_H

#include "base/error.h"

struct th_tokenizer;

/* Refuses by name every setting that is not implemented. *tokenizer is released with th_tokenizer_close; it is read-only and may be
 * used from any thread. */
thespis_status th_tokenizer_open(const char *path, struct th_tokenizer **tokenizer, thespis_error *error);
void th_tokenizer_close(struct th_tokenizer *tokenizer);

/* A growing list of ids; data is freed with th_free. */
struct th_ids {
    int32_t *data;
    size_t count, capacity;
};

/* Appends the ids of one segment of valid UTF-8. Linear in its length but for a logarithm. */
thespis_status th_tokenizer_encode(const struct th_tokenizer *tokenizer, const char *text, size_t bytes, struct th_ids *ids,
                                   thespis_error *error);
/* The id of an added token or a vocabulary entry given by its content, or -1. */
int32_t th_tokenizer_id(const struct th_tokenizer *tokenizer, const char *content, size_t bytes);
/* The content of an id: for added tokens as written, for vocabulary entries the raw bytes they stand for. NULL: no such id. */
const char *th_tokenizer_content(const struct th_tokenizer *tokenizer, int32_t id, size_t *bytes);
/* Highest id + 1. */
int32_t th_tokenizer_size(const struct th_tokenizer *tokenizer);
/* Added tokens, in the file's order: content of token i (0..count-1), or NULL past the end. */
const char *th_tokenizer_added(const struct th_tokenizer *tokenizer, size_t i, size_t *bytes);

#endif
