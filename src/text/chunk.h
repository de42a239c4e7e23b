/* chunk.h - long text cut into chunks that are spoken one after the other (docs/long-form.md). */
#ifndef THESPIS_TEXT_CHUNK_H
#define THESPIS_TEXT_CHUNK_H

#include "base/error.h"

#define TH_CHUNK_TARGET 300    /* bytes the model speaks best */
#define TH_CHUNK_SPEAKERS 3    /* different speakers in a chunk */
#define TH_CHUNK_MIN_TARGET 24 /* a speaker tag, its blank and a few letters */

enum th_granularity {
    TH_CUT_NONE,     /* one chunk, however long */
    TH_CUT_AUTO,     /* whole when it fits, otherwise sentences packed up to the target */
    TH_CUT_SENTENCE, /* a chunk for each sentence */
    TH_CUT_CLAUSE    /* a chunk for each clause */
};

struct th_chunk {
    const char *text; /* [bytes], then a zero; in th_chunks.storage */
    size_t bytes;
    size_t source_begin, source_end; /* bytes of the input it came from; the chunks' ranges tile the input */
    int speakers;                    /* how many different ones */
    int speaks;                      /* 0: no letter, number or cue in it, so there is nothing to say */
};

struct th_chunks {
    struct th_chunk *items; /* [count] */
    size_t count, capacity;
    char *storage; /* the chunks' text, one after the other */
};

/* Cuts text, which must be valid UTF-8 without zeros. Under NONE, or when nothing has to be cut and the text has at most
 * target_bytes and max_speakers, the one chunk holds its bytes untouched. Blank text gives no chunk. A chunk is longer than
 * target_bytes only when it holds a span that must stay whole. Linear in the text's length but for a logarithm. out need not be
 * initialised; after a failure it is empty. */
thespis_status th_chunks_cut(const char *text, size_t bytes, enum th_granularity granularity, size_t target_bytes, int max_speakers,
                             struct th_chunks *out, thespis_error *error);
void th_chunks_free(struct th_chunks *chunks);

#endif
