/* takes.c - see takes.h. */
#include "engine/takes.h"

#include <string.h>

#include "base/memory.h"

#define TARGET_BYTES 300
#define MOST_SPEAKERS 3

static thespis_status copy_codes(const int32_t *codes, int codebooks, size_t frames, const int32_t **out, thespis_error *error)
{
    int32_t *copy;
    size_t count;
    if (__builtin_mul_overflow((size_t)codebooks, frames, &count)) return th_fail_memory(error, "codes", SIZE_MAX);
    TH_TRY(TH_ALLOC(&copy, count, "codes", error));
    memcpy(copy, codes, count * sizeof *copy);
    *out = copy;
    return THESPIS_OK;
}

static thespis_status copy_references(const struct th_prompt_reference *from, size_t count, int codebooks, struct th_takes *t,
                                      thespis_error *error)
{
    TH_TRY(TH_ALLOC(&t->references, count, "references", error));
    for (size_t i = 0; i < count; i++) {
        struct th_prompt_reference *r = &t->references[t->reference_count++];
        *r = (struct th_prompt_reference){NULL, from[i].transcript_bytes, NULL, from[i].frames};
        r->transcript = th_copy_string(from[i].transcript, from[i].transcript_bytes);
        if (r->transcript == NULL) return th_fail_memory(error, "a transcript", from[i].transcript_bytes);
        TH_TRY(copy_codes(from[i].codes, codebooks, from[i].frames, &r->codes, error));
    }
    return THESPIS_OK;
}

static thespis_status copy_history(const thespis_turn *from, size_t count, int codebooks, struct th_takes *t, thespis_error *error)
{
    TH_TRY(TH_ALLOC(&t->history, count, "history turns", error));
    for (size_t i = 0; i < count; i++) {
        if (from[i].text == NULL || from[i].codes == NULL || from[i].frames == 0 || from[i].frames > INT32_MAX)
            return th_fail(error, THESPIS_INVALID, "history.%zu: text and at least one frame of codes are needed", i);
        struct th_prompt_turn *h = &t->history[t->history_count++];
        *h = (struct th_prompt_turn){NULL, from[i].text_bytes, NULL, from[i].frames};
        h->text = th_copy_string(from[i].text, from[i].text_bytes);
        if (h->text == NULL) return th_fail_memory(error, "a history turn", from[i].text_bytes);
        TH_TRY(copy_codes(from[i].codes, codebooks, from[i].frames, &h->codes, error));
    }
    return THESPIS_OK;
}

static enum th_granularity granularity_of(thespis_granularity granularity)
{
    switch (granularity) {
    case THESPIS_GRANULARITY_NONE: return TH_CUT_NONE;
    case THESPIS_GRANULARITY_SENTENCE: return TH_CUT_SENTENCE;
    case THESPIS_GRANULARITY_CLAUSE: return TH_CUT_CLAUSE;
    default: return TH_CUT_AUTO;
    }
}

thespis_status th_takes_cut(const char *text, size_t bytes, thespis_granularity granularity, int chunk_bytes,
                            struct th_chunks *chunks, thespis_error *error)
{
    size_t target = chunk_bytes > 0 ? (size_t)chunk_bytes : TARGET_BYTES;
    return th_chunks_cut(text, bytes, granularity_of(granularity), target, MOST_SPEAKERS, chunks, error);
}

static thespis_status fill(const thespis_request_options *o, const struct th_prompt_reference *references, size_t reference_count,
                           int codebooks, struct th_takes *t, thespis_error *error)
{
    t->keep_history = !o->no_history;
    TH_TRY(th_takes_cut(o->text, o->text_bytes, o->granularity, o->chunk_bytes, &t->chunks, error));
    TH_TRY(TH_ALLOC(&t->take, t->chunks.count, "chunks", error));
    for (size_t i = 0; i < t->chunks.count; i++) t->take[i].first_frame = -1;
    TH_TRY(copy_references(references, reference_count, codebooks, t, error));
    return copy_history(o->history, o->history_count, codebooks, t, error);
}

thespis_status th_takes_open(const thespis_request_options *options, const struct th_prompt_reference *references,
                             size_t reference_count, int codebooks, struct th_takes *takes, thespis_error *error)
{
    memset(takes, 0, sizeof *takes);
    thespis_status status = fill(options, references, reference_count, codebooks, takes, error);
    if (status != THESPIS_OK) th_takes_close(takes);
    return status;
}

void th_takes_close(struct th_takes *t)
{
    for (size_t i = 0; i < t->reference_count; i++) {
        th_free((void *)t->references[i].transcript);
        th_free((void *)t->references[i].codes);
    }
    for (size_t i = 0; i < t->history_count; i++) {
        th_free((void *)t->history[i].text);
        th_free((void *)t->history[i].codes);
    }
    th_free(t->references);
    th_free(t->history);
    th_free(t->take);
    th_chunks_free(&t->chunks);
    memset(t, 0, sizeof *t);
}

/* The turn of a chunk already spoken; codes [codebooks][frames] owned by the caller. */
static thespis_status turn_of(const struct th_takes *t, size_t index, int codebooks, const int32_t *frames,
                              struct th_prompt_turn *turn, thespis_error *error)
{
    const struct th_take *take = &t->take[index];
    int32_t *codes;
    TH_TRY(TH_ALLOC(&codes, (size_t)codebooks * (size_t)take->frames, "codes", error));
    for (int f = 0; f < take->frames; f++)
        for (int b = 0; b < codebooks; b++)
            codes[(size_t)b * (size_t)take->frames + (size_t)f] =
                frames[(size_t)(take->first_frame + f) * (size_t)(1 + codebooks) + 1 + (size_t)b];
    *turn = (struct th_prompt_turn){t->chunks.items[index].text, t->chunks.items[index].bytes, codes, (size_t)take->frames};
    return THESPIS_OK;
}

/* Chunks whose turns the next one hears: the first that has frames, and the latest. At most two. */
static int heard(const struct th_takes *t, size_t which[2])
{
    int n = 0;
    for (size_t i = 0; i < t->at && n == 0; i++)
        if (t->take[i].frames > 0) which[n++] = i;
    for (size_t i = t->at; i-- > 0 && n == 1 && i > which[0];)
        if (t->take[i].frames > 0) which[n++] = i;
    return t->keep_history ? n : 0;
}

/* `turns` has room for history_count + 2; those past history_count own their codes. */
static thespis_status build(const struct th_takes *t, const struct th_tokenizer *tokenizer, const struct th_prompt_shape *shape,
                            const int32_t *frames, int hear, struct th_prompt_turn *turns, struct th_rows *rows,
                            thespis_error *error)
{
    size_t which[2], count = t->history_count;
    int n = hear ? heard(t, which) : 0;
    thespis_status status = THESPIS_OK;
    if (count > 0) memcpy(turns, t->history, count * sizeof *turns);
    for (int i = 0; i < n && status == THESPIS_OK; i++) {
        status = turn_of(t, which[i], shape->codebooks, frames, &turns[count], error);
        if (status == THESPIS_OK) count++;
    }
    const struct th_chunk *chunk = &t->chunks.items[t->at];
    struct th_prompt prompt = {t->references, t->reference_count, turns, count, chunk->text, chunk->bytes};
    if (status == THESPIS_OK) status = th_prompt_build(tokenizer, shape, &prompt, rows, error);
    for (size_t i = t->history_count; i < count; i++) th_free((void *)turns[i].codes);
    return status;
}

int th_frames_for(size_t bytes)
{
    return bytes < (TH_MAX_FRAMES - 43) / 3 ? (int)(3 * bytes) + 43 : TH_MAX_FRAMES;
}

thespis_status th_takes_prompt(const struct th_takes *takes, const struct th_tokenizer *tokenizer,
                               const struct th_prompt_shape *shape, const int32_t *frames, int most_rows, struct th_rows *rows,
                               thespis_error *error)
{
    struct th_prompt_turn *turns;
    TH_TRY(TH_ALLOC(&turns, takes->history_count + 2, "history turns", error));
    thespis_status status = build(takes, tokenizer, shape, frames, 1, turns, rows, error);
    if (status == THESPIS_OK && takes->at > 0 && (most_rows < 0 || rows->count > (size_t)most_rows)) {
        th_rows_free(rows);
        status = build(takes, tokenizer, shape, frames, 0, turns, rows, error);
    }
    th_free(turns);
    return status;
}
