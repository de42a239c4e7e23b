/* takes.h - a long text as a row of takes: each chunk of it is a prompt of its own that holds the first and the latest take as
 * history, so that voice, pace and mood carry over; all of them go through one codec stream, so that no seam is heard. */
#ifndef THESPIS_ENGINE_TAKES_H
#define THESPIS_ENGINE_TAKES_H

#include "text/chunk.h"
#include "text/prompt.h"
#include "thespis.h"

#define TH_MAX_FRAMES 2048 /* of one chunk */

/* One chunk's outcome. Times are frames of the whole request. */
struct th_take {
    int first_frame, frames; /* -1, 0 before it begins */
    int prompt_rows;
    thespis_finish finish;
};

/* What all prompts of a request share; everything is the request's own copy. */
struct th_takes {
    struct th_chunks chunks;
    struct th_take *take;                   /* [chunks.count] */
    size_t at;                              /* the chunk being spoken */
    struct th_prompt_reference *references; /* [reference_count] */
    size_t reference_count;
    struct th_prompt_turn *history; /* [history_count], the caller's */
    size_t history_count;
    int keep_history; /* later chunks hear earlier ones */
};

/* Cuts a text as a request would. */
thespis_status th_takes_cut(const char *text, size_t bytes, thespis_granularity granularity, int chunk_bytes,
                            struct th_chunks *chunks, thespis_error *error);

/* Cuts the text and copies voice and history. */
thespis_status th_takes_open(const thespis_request_options *options, const struct th_prompt_reference *references,
                             size_t reference_count, int codebooks, struct th_takes *takes, thespis_error *error);
void th_takes_close(struct th_takes *takes);

/* Frames that a text of so many bytes surely finds enough where no limit is given: three a byte, several times what speech takes,
 * and two seconds. Earlier chunks are heard only where the context leaves this much to the next. */
int th_frames_for(size_t bytes);

/* The prompt of chunk takes->at. frames [..][1 + codebooks] are the request's so far. With more rows than most_rows, which may be
 * negative, the turns of earlier chunks are left out. */
thespis_status th_takes_prompt(const struct th_takes *takes, const struct th_tokenizer *tokenizer,
                               const struct th_prompt_shape *shape, const int32_t *frames, int most_rows, struct th_rows *rows,
                               thespis_error *error);

#endif
