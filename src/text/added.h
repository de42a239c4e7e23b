/* added.h - added tokens (<|speaker:0|> and the like) found in text: leftmost, and of those the longest. */
#ifndef THESPIS_TEXT_ADDED_H
#define THESPIS_TEXT_ADDED_H

#include "base/error.h"

#define TH_MAX_ADDED_BYTES 1024 /* of one content, which bounds the work at each position of a text */

struct th_added {
    char *content; /* as written; owned */
    size_t bytes;
    char *match; /* what is searched for: the content, normalised when it is looked for in normalised text; owned */
    size_t match_bytes;
    int32_t id;
    int lstrip, rstrip; /* swallow white space on that side */
    int normalized;     /* 1: looked for in normalised text, 0: in the raw text */
};

/* Tokens sorted by what is searched for, so that a position narrows them down byte by byte. The tokens stay the caller's. */
struct th_added_set {
    const struct th_added **sorted; /* [count] */
    size_t count;
    size_t first[257]; /* first[b]..first[b + 1]: those that begin with byte b */
};

/* A stretch of text: a token, or (token NULL) what lies between. */
struct th_split {
    const struct th_added *token;
    size_t begin, end;
};
struct th_splits {
    struct th_split *data; /* [count] */
    size_t count, capacity;
};

/* The set of the tokens with this value of `normalized`. Two that search for the same bytes are refused. */
thespis_status th_added_set_open(const struct th_added *tokens, size_t count, int normalized, struct th_added_set *set,
                                 thespis_error *error);
void th_added_set_close(struct th_added_set *set);
/* The longest token that begins at `at`, or NULL. */
const struct th_added *th_added_at(const struct th_added_set *set, const char *text, size_t bytes, size_t at);
/* Cuts text into splits (emptied first, freed by the caller with th_free(splits->data)). */
thespis_status th_added_split(const struct th_added_set *set, const char *text, size_t bytes, struct th_splits *splits,
                              thespis_error *error);

#endif
