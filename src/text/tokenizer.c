/* tokenizer.c - see tokenizer.h: added tokens in raw text, NFC, added tokens in normalised text, pieces, byte-pair encoding. */
#include "text/tokenizer.h"

#include <string.h>

#include "base/memory.h"
#include "text/bpe.h"
#include "text/tokenizer_file.h"
#include "text/unicode.h"

/* One call's working memory. */
struct encoding {
    const struct th_tokenizer *tokenizer;
    struct th_ids *ids;
    struct th_bpe bpe;
    struct th_splits raw, normalized;
    thespis_error *error;
};

thespis_status th_tokenizer_open(const char *path, struct th_tokenizer **tokenizer, thespis_error *error)
{
    struct th_tokenizer *fresh;
    *tokenizer = NULL;
    TH_TRY(TH_ALLOC(&fresh, 1, "the tokenizer", error));
    thespis_status status = th_tokenizer_read(path, fresh, error);
    if (status == THESPIS_OK)
        *tokenizer = fresh;
    else
        th_tokenizer_close(fresh);
    return status;
}

void th_tokenizer_close(struct th_tokenizer *tokenizer)
{
    if (tokenizer == NULL) return;
    for (size_t i = 0; i < tokenizer->added_count; i++) {
        th_free(tokenizer->added[i].content);
        th_free(tokenizer->added[i].match);
    }
    th_free(tokenizer->added);
    th_added_set_close(&tokenizer->raw);
    th_added_set_close(&tokenizer->normalized);
    th_free(tokenizer->by_id);
    th_vocab_free(&tokenizer->vocab);
    th_free(tokenizer);
}

/* A stretch that holds no added token. */
static thespis_status encode_plain(struct encoding *e, const char *text, size_t bytes)
{
    const struct th_tokenizer *t = e->tokenizer;
    for (size_t at = 0; at < bytes;) {
        size_t end = th_scan_piece(t->pattern, text, bytes, at);
        int32_t whole = t->ignore_merges ? th_vocab_find(&t->vocab, text + at, end - at) : -1;
        if (whole >= 0)
            TH_TRY(th_ids_push(e->ids, whole, e->error));
        else
            TH_TRY(th_bpe_encode(&e->bpe, &t->vocab, text + at, end - at, e->ids, e->error));
        at = end;
    }
    return THESPIS_OK;
}

static thespis_status encode_normalized(struct encoding *e, const char *text, size_t bytes)
{
    if (e->tokenizer->normalized.count == 0) return encode_plain(e, text, bytes);
    TH_TRY(th_added_split(&e->tokenizer->normalized, text, bytes, &e->normalized, e->error));
    for (size_t i = 0; i < e->normalized.count; i++) {
        struct th_split s = e->normalized.data[i];
        if (s.token != NULL)
            TH_TRY(th_ids_push(e->ids, s.token->id, e->error));
        else
            TH_TRY(encode_plain(e, text + s.begin, s.end - s.begin));
    }
    return THESPIS_OK;
}

static thespis_status encode_raw(struct encoding *e, const char *text, size_t bytes)
{
    if (!e->tokenizer->nfc) return encode_normalized(e, text, bytes);
    char *normal;
    size_t normal_bytes;
    TH_TRY(th_nfc(text, bytes, &normal, &normal_bytes, e->error));
    thespis_status status = encode_normalized(e, normal, normal_bytes);
    th_free(normal);
    return status;
}

static thespis_status encode_all(struct encoding *e, const char *text, size_t bytes)
{
    TH_TRY(th_added_split(&e->tokenizer->raw, text, bytes, &e->raw, e->error));
    for (size_t i = 0; i < e->raw.count; i++) {
        struct th_split s = e->raw.data[i];
        if (s.token != NULL)
            TH_TRY(th_ids_push(e->ids, s.token->id, e->error));
        else
            TH_TRY(encode_raw(e, text + s.begin, s.end - s.begin));
    }
    return THESPIS_OK;
}

thespis_status th_tokenizer_encode(const struct th_tokenizer *tokenizer, const char *text, size_t bytes, struct th_ids *ids,
                                   thespis_error *error)
{
    struct encoding e = {.tokenizer = tokenizer, .ids = ids, .error = error};
    thespis_status status = encode_all(&e, text, bytes);
    th_bpe_free(&e.bpe);
    th_free(e.raw.data);
    th_free(e.normalized.data);
    return status;
}

int32_t th_tokenizer_id(const struct th_tokenizer *tokenizer, const char *content, size_t bytes)
{
    for (size_t i = 0; i < tokenizer->added_count; i++)
        if (tokenizer->added[i].bytes == bytes && memcmp(tokenizer->added[i].content, content, bytes) == 0)
            return tokenizer->added[i].id;
    return th_vocab_find(&tokenizer->vocab, content, bytes);
}

const char *th_tokenizer_content(const struct th_tokenizer *tokenizer, int32_t id, size_t *bytes)
{
    *bytes = 0;
    int32_t place = id >= 0 && id < tokenizer->size ? tokenizer->by_id[id] : -1;
    if (place == -1) return NULL;
    if (place < -1) return th_tokenizer_added(tokenizer, (size_t)(-2 - place), bytes);
    const struct th_vocab_entry *entry = &tokenizer->vocab.entries[place];
    *bytes = entry->length;
    return tokenizer->vocab.bytes + entry->offset;
}

int32_t th_tokenizer_size(const struct th_tokenizer *tokenizer)
{
    return tokenizer->size;
}

const char *th_tokenizer_added(const struct th_tokenizer *tokenizer, size_t i, size_t *bytes)
{
    *bytes = 0;
    if (i >= tokenizer->added_count) return NULL;
    *bytes = tokenizer->added[i].bytes;
    return tokenizer->added[i].content;
}
