/* engine.h - the engine's inside: two threads around the parts.
 *
 *     caller          prompt ──> request ──────────────────────────────────────────────> samples (thespis_request_read)
 *     driver thread              feed, step: frames of all lanes ──> request.frames
 *     codec thread                                                   windows of frames ──> request.ring
 *
 * One mutex guards every field that says so; the backend is called without it. */
#ifndef THESPIS_ENGINE_ENGINE_H
#define THESPIS_ENGINE_ENGINE_H

#include <pthread.h>

#include "engine/code_cache.h"
#include "engine/load.h"
#include "engine/pace.h"
#include "engine/parts.h"
#include "engine/prompt_slots.h"
#include "engine/takes.h"

#define TH_MAX_PROMPT_ROWS 8192
#define TH_MAX_REFERENCE_SECONDS 60.0
#define TH_MAX_WAITING 1024 /* requests in line for a lane */
#define TH_AHEAD_FRAMES 256 /* drawn but not yet decoded: more, and the lane waits for its reader */
#define TH_RING_FRAMES 128  /* decoded but not yet read */
#define TH_LOOP_FRAMES 86   /* 4 s of the same few main tokens: the guard calls it a loop */
#define TH_SILENT_FRAMES 65 /* 3 s: the guard calls it silence */

struct thespis_voice {
    thespis_engine *engine;
    struct th_prompt_reference *references; /* [count]; transcripts and codes [codebooks][frames] owned */
    size_t count, capacity;
};

enum th_phase {
    TH_WAITING,  /* in line for a lane */
    TH_PREFILL,  /* on a lane, prompt of the current chunk not yet fed whole */
    TH_GENERATE, /* on a lane, drawing */
    TH_DRAWN,    /* off its lane: all frames are there (or it failed) */
    TH_DONE      /* all audio is in the ring (or it failed): neither thread touches it again */
};

struct thespis_request {
    thespis_engine *engine;
    struct thespis_request *next; /* engine.requests, oldest first */

    /* Set at start, then read-only. */
    struct th_sampling sampling; /* of the first chunk; others have their index as row */
    int frame_limit;             /* of one chunk; 0: as many as fit */
    int first_chunk, chunk;      /* windows of audio */
    int guard;
    uint64_t group;
    int live;
    double started; /* th_now */

    /* The driver's own, but for takes.take and takes.at. */
    struct th_takes takes; /* chunks of the text, voice, history */
    struct th_rows rows;   /* the current chunk's prompt; empty: not built yet */
    int lane;              /* -1: none */
    size_t fed;            /* prompt rows so far */
    size_t copied;         /* of them, from a slot */
    int max_frames;        /* of the current chunk */
    int held;              /* 1: the last frame drawn waits to see whether speech goes on */

    /* Under engine.mutex. */
    enum th_phase phase;
    int cancelled;
    thespis_finish finish;
    thespis_status status; /* not OK: failed, with error */
    thespis_error error;
    int32_t *frames; /* [capacity][1 + codebooks]; the first `ready` are final */
    int capacity;
    int drawn; /* frames drawn, end of speech not counted; ready <= drawn <= ready + 1 */
    int ready;
    int32_t *codes;             /* [codebooks][ready], filled when it is done */
    int prompt_rows;            /* of all chunks begun */
    int cached_rows;            /* of them, copied from a slot */
    int silent;                 /* frames of silence at the end of what is decoded, for the guard */
    int cut;                    /* the guard ended it: `ready` grows no more */
    int undecodable;            /* its codec stream failed: no more of it is decoded */
    int decoded;                /* frames whose samples went into the ring */
    int windows;                /* decoded so far */
    uint64_t turn;              /* when the last of them was decoded, by engine.turns */
    int in_codec;               /* the codec thread works on it now */
    float *ring;                /* [TH_RING_FRAMES * 2048] */
    size_t ring_at, ring_count; /* samples */
    double first_row, first_frame, last_frame, first_audio, decode_seconds, ended; /* times by th_now, 0: not yet */

    struct th_codec_stream *stream;
    pthread_cond_t changed; /* ring, phase, status, in_codec */
};

struct thespis_engine {
    struct th_parts parts;
    struct th_code_cache *code_cache; /* locks itself */
    int lanes, prefill_rows;
    thespis_progress progress;
    void *progress_context;
    struct th_prompt_slots slots; /* the driver's: system blocks kept ready on lanes of their own */

    pthread_t driver, codec;
    int threads_started; /* 1: driver, 2: codec too */
    pthread_mutex_t mutex;
    pthread_cond_t driver_wake, codec_wake;
    int closing;
    struct thespis_request *requests; /* all that are not freed, oldest first */
    int waiting;                      /* of them in TH_WAITING */
    struct thespis_request *lane[64]; /* who sits on a lane, or NULL */
    int prefill_turn;                 /* lane whose prompt gets the next piece */
    uint64_t turns;                   /* windows decoded, of all requests */
    struct th_load_steps steps;       /* of the driver */
    struct th_pace pace;              /* how fast both threads are */
    float *window;                    /* [TH_DECODE_MAX_FRAMES * 2048], the codec thread's */

    pthread_mutex_t decode_mutex, encode_mutex; /* the backend's codec: one decode and one encode at a time */
};

/* driver.c, audio.c: the threads. */
void *th_driver_main(void *engine);
void *th_codec_main(void *engine);

/* Frames of window number `index` (0, 1, ...) of a stream. */
int th_window_frames(int first_chunk, int chunk, int index);

/* The frame limit of the prompt in r->rows, and that both fit the context together. */
thespis_status th_request_plan(const struct thespis_engine *engine, struct thespis_request *request, thespis_error *error);

/* Ends a request that failed, or was cancelled, under the mutex. The first reason stands. What was drawn before a failure is still
 * decoded and read; a cancelled request's is dropped. */
void th_request_fail_cancelled(struct thespis_request *request);
void th_request_fail(struct thespis_request *request, thespis_status status, const thespis_error *error);

#endif
