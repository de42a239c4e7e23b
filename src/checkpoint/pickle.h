/* pickle.h - reads the data.pkl of a torch archive with a small stack machine that can build dictionaries of tensors and nothing
 * else.
 *
 * No code is looked up or run: opcodes, callables and storage types outside of a short list are refused. What comes out are
 * descriptions; the numbers themselves lie in the archive's other entries. */
#ifndef THESPIS_CHECKPOINT_PICKLE_H
#define THESPIS_CHECKPOINT_PICKLE_H

#include "base/error.h"
#include "checkpoint/safetensors.h"

/* Bytes of the pickle, borrowed; not ended by a zero byte. */
struct th_pickle_text {
    const char *data;
    size_t bytes;
};

/* One storage: an entry "data/KEY" of the archive. */
struct th_pickle_storage {
    struct th_pickle_text key;
    enum th_dtype dtype;
    int64_t count; /* items */
};

/* A view of a storage. `offset + sum((shape - 1) * strides)` lies inside of it, and it holds no more items than the storage. */
struct th_pickle_tensor {
    int storage; /* index in storages */
    int rank;
    int64_t offset; /* items */
    int64_t shape[TH_TENSOR_MAX_RANK], strides[TH_TENSOR_MAX_RANK];
    int64_t items; /* product of shape */
};

enum th_pickle_kind {
    TH_PICKLE_MARK,
    TH_PICKLE_NONE,
    TH_PICKLE_BOOL,
    TH_PICKLE_INT,
    TH_PICKLE_TEXT,
    TH_PICKLE_GLOBAL, /* number: which of the accepted ones */
    TH_PICKLE_TUPLE,
    TH_PICKLE_LIST, /* its items are dropped: no list matters */
    TH_PICKLE_DICT,
    TH_PICKLE_STORAGE,
    TH_PICKLE_TENSOR
};

struct th_pickle_value {
    enum th_pickle_kind kind;
    int64_t number; /* BOOL, INT: the value; TUPLE: where its items begin; DICT, STORAGE, TENSOR: index */
    union {
        const char *text; /* TEXT */
        int64_t items;    /* TUPLE: how many */
    } more;
    uint32_t bytes; /* TEXT */
};

struct th_pickle_pair {
    struct th_pickle_value key, value;
};

/* A growing array. */
#define TH_PICKLE_ARRAY(type)                                                                                                      \
    struct {                                                                                                                       \
        type *at; /* [count], room for [room] */                                                                                   \
        size_t count, room;                                                                                                        \
    }

struct th_pickle_dict {
    TH_PICKLE_ARRAY(struct th_pickle_pair) pairs; /* in order of insertion; keys may repeat */
    int ordered;                                  /* made by collections.OrderedDict */
};

struct th_pickle {
    TH_PICKLE_ARRAY(struct th_pickle_value) stack;
    TH_PICKLE_ARRAY(struct th_pickle_value) memo;
    TH_PICKLE_ARRAY(struct th_pickle_value) tuples; /* items of all tuples, one after the other */
    TH_PICKLE_ARRAY(struct th_pickle_dict) dicts;
    TH_PICKLE_ARRAY(struct th_pickle_storage) storages;
    TH_PICKLE_ARRAY(struct th_pickle_tensor) tensors;
    struct th_pickle_value top; /* what the pickle holds */
};

/* The whole of `data` must be one pickle. `label` is how messages call it. *pickle borrows from data. */
thespis_status th_pickle_read(const uint8_t *data, size_t bytes, const char *label, struct th_pickle *pickle, thespis_error *error);
void th_pickle_close(struct th_pickle *pickle);
/* The last value under `key`, or NULL. */
const struct th_pickle_value *th_pickle_get(const struct th_pickle *pickle, const struct th_pickle_value *dict, const char *key);

#endif
