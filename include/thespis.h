/* thespis.h - speak with Fish Audio Drama 3: the public interface of libthespis.
 *
 * Text goes in, with recordings of a voice to clone if wanted; audio comes out while it is being made:
 *
 *     thespis_engine_options options;
 *     thespis_engine_options_init(&options);
 *     options.checkpoint = "models/stage";
 *     thespis_engine *engine;
 *     thespis_error error;
 *     if (thespis_engine_open(&options, &engine, &error) != THESPIS_OK) ...   // error.message is one sentence
 *
 *     thespis_request_options ask;
 *     thespis_request_options_init(&ask);
 *     ask.text = "Hello there.";
 *     ask.text_bytes = 12;
 *     thespis_request *request;
 *     thespis_request_start(engine, &ask, &request, &error);
 *     float samples[4096];
 *     size_t count;
 *     while (thespis_request_read(request, samples, 4096, &count, &error) == THESPIS_OK && count > 0) play(samples, count);
 *     thespis_request_free(request);
 *     thespis_engine_close(engine);
 *
 * Rules that hold everywhere:
 *  - Audio is mono, 44,100 samples a second, 32-bit float in [-1, 1]. A *frame* is 2,048 samples (46.4 ms): one main token and
 *    `codebooks` codec codes. A *row* is one position of the model's sequence, text or frame.
 *  - Text is UTF-8, given by pointer and length in bytes; it need not end in a zero byte and is copied before the call returns.
 *  - A function that can fail returns a thespis_status and, when `error` is not NULL, fills it with the same status and one
 * sentence that names the thing at fault, its value, and what would be right. On failure output arguments are set to NULL or 0.
 *  - The library never prints, exits or aborts, keeps no global state, and changes no signal handler or locale.
 *  - Whoever makes an object frees it with its `_free` or `_close`, which accept NULL. Requests and voices must be freed before
 *    their engine is closed.
 *  - An engine may be used from any thread at any time. One request, voice or decoder is used by one thread at a time, except that
 *    thespis_request_cancel may be called from any thread.
 *  - For one checkpoint, backend and device model the samples of a request depend on the request and its seed alone: not on
 *    threads, chunk sizes, neighbours or what ran before. */
#ifndef THESPIS_H
#define THESPIS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define THESPIS_API __attribute__((visibility("default")))
#else
#define THESPIS_API
#endif

#define THESPIS_VERSION_MAJOR 0
#define THESPIS_VERSION_MINOR 1
#define THESPIS_VERSION_PATCH 0

#define THESPIS_SAMPLE_RATE 44100
#define THESPIS_FRAME_SAMPLES 2048
#define THESPIS_MAX_SPEAKERS 16

/* "0.1.0"; static storage. */
THESPIS_API const char *thespis_version(void);

/* ---- errors ------------------------------------------------------------------------------------------------------------------ */

typedef enum thespis_status {
    THESPIS_OK = 0,
    THESPIS_INVALID = 1,     /* an argument or a request is wrong: the caller can mend it */
    THESPIS_FORMAT = 2,      /* a file's content is wrong: checkpoint, codec, recording, codes */
    THESPIS_IO = 3,          /* opening, reading, writing or closing failed; the sentence holds the system's reason */
    THESPIS_MEMORY = 4,      /* an allocation failed */
    THESPIS_UNSUPPORTED = 5, /* legal, but not by this build, backend or model */
    THESPIS_LIMIT = 6,       /* more rows, frames, seconds or bytes than allowed */
    THESPIS_CANCELLED = 7,   /* thespis_request_cancel was called */
    THESPIS_NUMERIC = 8,     /* the network produced NaN or infinite logits */
    THESPIS_BUSY = 9,        /* no lane is free */
    THESPIS_DEVICE = 10      /* the accelerator failed */
} thespis_status;

typedef struct thespis_error {
    thespis_status status;
    char message[500]; /* one sentence, no newline, always ends in a zero byte */
} thespis_error;

/* A short lower-case name such as "invalid" or "io"; static storage. */
THESPIS_API const char *thespis_status_name(thespis_status status);

/* ---- engine ------------------------------------------------------------------------------------------------------------------ */

typedef struct thespis_engine thespis_engine;

typedef enum thespis_backend {
    THESPIS_BACKEND_AUTO = 0, /* CUDA when built in and a device answers, otherwise CPU */
    THESPIS_BACKEND_CPU = 1,
    THESPIS_BACKEND_CUDA = 2
} thespis_backend;

typedef enum thespis_precision {
    THESPIS_PRECISION_F32 = 0,  /* activations in 32-bit floats, weights as stored */
    THESPIS_PRECISION_BF16 = 1, /* activations rounded to bf16 where the reference rounds them (docs/model.md) */
    THESPIS_PRECISION_AUTO = 2  /* bf16 on cuda, which has no other; f32 on cpu */
} thespis_precision;

typedef enum thespis_isa {
    THESPIS_ISA_AUTO = 0, /* the best one this processor has; every choice gives the same bytes */
    THESPIS_ISA_PORTABLE = 1,
    THESPIS_ISA_AVX2 = 2
} thespis_isa;

/* done of total units of one long job ("load", "encode"); called on the thread that asked for the job. */
typedef void (*thespis_progress)(void *context, const char *job, uint64_t done, uint64_t total);

typedef struct thespis_engine_options {
    size_t size;            /* sizeof(thespis_engine_options), set by _init */
    const char *checkpoint; /* folder with config.json, tokenizer.json, *.safetensors and the codec; NULL: the codec alone */
    const char *codec; /* codec.pth or codec.safetensors; NULL: codec.safetensors, else codec.pth, in the checkpoint's folder */
    /* auto: cuda when this build has it, a device is there, and its kernels have the checkpoint's shape and the precision that is
     * asked for; otherwise cpu. cuda by name refuses and says why. */
    thespis_backend backend;
    thespis_precision precision; /* default auto */
    thespis_isa isa;
    int device;                /* CUDA device number, from 0 */
    int threads;               /* 1..256; 0: one for each processor this process may use */
    int lanes;                 /* requests that step together, 1..64; default 1 */
    int max_rows;              /* context of each lane, 2..16384 and <= the model's own; 0: 4096 */
    int prefill_rows;          /* prompt rows fed between two frames of running lanes, >= 1; default 64 */
    int voice_slots;           /* prompts of voices kept ready beside the lanes, each as large as a lane, 0..64; default 2 */
    int act_quant;             /* default 1: expert inputs are quantised as the published model does; 0 only for checks */
    thespis_progress progress; /* NULL: none */
    void *progress_context;
} thespis_engine_options;

THESPIS_API void thespis_engine_options_init(thespis_engine_options *options);

/* Maps the checkpoint, checks all of it, and makes the lanes. *engine is the caller's, to be closed with thespis_engine_close. */
THESPIS_API thespis_status thespis_engine_open(const thespis_engine_options *options, thespis_engine **engine,
                                               thespis_error *error);
THESPIS_API void thespis_engine_close(thespis_engine *engine);

typedef struct thespis_engine_info {
    size_t size;       /* sizeof(thespis_engine_info), set by the caller */
    int has_model;     /* 0: opened with a codec alone */
    int codebooks;     /* codec codes a frame; 10 in the published model */
    int codebook_size; /* codes the model can draw for each, 4096 in the published model */
    int max_rows;      /* context of a lane */
    int lanes;
    int threads;
    const char *backend;   /* "cpu" or "cuda"; static storage */
    const char *isa;       /* "avx2", "portable", or the device's name; lives as long as the engine */
    uint64_t lane_bytes;   /* memory of all lanes */
    uint64_t weight_bytes; /* weights held in memory beside the mapped files */
    uint64_t mapped_bytes; /* mapped files */
} thespis_engine_info;

THESPIS_API thespis_status thespis_engine_get_info(const thespis_engine *engine, thespis_engine_info *info, thespis_error *error);

/* ---- voices ------------------------------------------------------------------------------------------------------------------ */

/* A voice is a list of 1..16 references, each a recording (or its codec codes) with the words spoken in it. */
typedef struct thespis_voice thespis_voice;

THESPIS_API thespis_status thespis_voice_new(thespis_engine *engine, thespis_voice **voice, thespis_error *error);
THESPIS_API void thespis_voice_free(thespis_voice *voice);

/* Adds a recording from a file: WAV, FLAC, Ogg, MP3, AIFF and what else libsndfile reads, told by content, not by name; any rate
 * from 1,000 to 768,000 Hz, 1 to 64 channels, up to 60 seconds. Channels are averaged, then resampled to 44,100 Hz, then encoded,
 * which takes a while. An empty transcript is allowed but clones worse. A transcript may begin with <|speaker:N|>, N in 0..15, to
 * bind the reference to that speaker of the text. */
THESPIS_API thespis_status thespis_voice_add_file(thespis_voice *voice, const char *path, const char *transcript,
                                                  size_t transcript_bytes, thespis_error *error);
/* The same from a file's bytes in memory. */
THESPIS_API thespis_status thespis_voice_add_bytes(thespis_voice *voice, const void *bytes, size_t count, const char *transcript,
                                                   size_t transcript_bytes, thespis_error *error);
/* The same from mono samples at 44,100 Hz. NaN and infinities are refused. */
THESPIS_API thespis_status thespis_voice_add_samples(thespis_voice *voice, const float *samples, size_t count,
                                                     const char *transcript, size_t transcript_bytes, thespis_error *error);
/* codes [codebooks][frames], each in 0..codebook_size-1. */
THESPIS_API thespis_status thespis_voice_add_codes(thespis_voice *voice, const int32_t *codes, size_t frames,
                                                   const char *transcript, size_t transcript_bytes, thespis_error *error);

/* ---- requests ---------------------------------------------------------------------------------------------------------------- */

typedef struct thespis_request thespis_request;

/* A finished turn that the new text continues: what was said and its frames' codes [codebooks][frames]. */
typedef struct thespis_turn {
    const char *text;
    size_t text_bytes;
    const int32_t *codes;
    size_t frames;
} thespis_turn;

#define THESPIS_SEED_RANDOM UINT64_MAX

/* Where a long text is cut into chunks, which are spoken one after another, each with the first and the latest chunk as history. */
typedef enum thespis_granularity {
    THESPIS_GRANULARITY_AUTO = 0, /* not at all up to chunk_bytes and three speakers, then packed sentences */
    THESPIS_GRANULARITY_NONE = 1, /* never: the text must fit one prompt */
    THESPIS_GRANULARITY_SENTENCE = 2,
    THESPIS_GRANULARITY_CLAUSE = 3
} thespis_granularity;

typedef struct thespis_request_options {
    size_t size;      /* sizeof(thespis_request_options), set by _init */
    const char *text; /* what to say; may hold <|speaker:N|> tags and [cues] */
    size_t text_bytes;
    const thespis_voice *voice; /* NULL: the model's own choice of voice. Not read after _start returns */
    const thespis_turn *history;
    size_t history_count;
    float temperature; /* 0..5; default 1.0; 0 is almost greedy, see docs/model.md */
    float top_p;       /* (0, 1]; default 0.9; 1 switches the cut off */
    int32_t top_k;     /* 1..INT32_MAX; default INT32_MAX; code heads use min(top_k, 30) */
    uint64_t seed;     /* 0..2^63-1, or THESPIS_SEED_RANDOM (default): drawn from the system and told in the outcome */
    int greedy;        /* default 0; 1: always the best logit and no repetition rule, for checks only */
    int max_frames;    /* of each chunk, 1..2048; 0: min(2048, max_rows - prompt rows) */
    int first_chunk;   /* frames decoded before the first audio, 1..64; 0: 4. Changes latency, never a sample */
    int chunk;         /* at most so many frames at once after that, 1..64; 0: windows grow 6, 10, 12, 32, 64 */
    int strict_text;   /* default 0; 1 refuses every special token of the tokenizer in text except speaker tags */
    thespis_granularity granularity;
    int chunk_bytes; /* target of a chunk in bytes of UTF-8, 40..4000; 0: 300 */
    int no_history;  /* default 0; 1: chunks do not hear what was said before them */
    int guard;       /* default 0; 1 ends speech that loops for 4 seconds or falls silent for 3 */
    uint64_t group;  /* default 0. Of those in line for a lane, one of the group that holds the fewest lanes comes next */
    int live;        /* default 0; 1: somebody listens while it is made. As long as there are such, no more requests get lanes than
                      * the machine can make faster than they sound; the others stay in line */
} thespis_request_options;

THESPIS_API void thespis_request_options_init(thespis_request_options *options);

/* Checks the text, builds the prompt and begins to generate on the engine's own threads. */
THESPIS_API thespis_status thespis_request_start(thespis_engine *engine, const thespis_request_options *options,
                                                 thespis_request **request, thespis_error *error);
/* Waits until audio is there and copies at most `capacity` samples. *count = 0 with THESPIS_OK is the end. The one way out:
 * a request whose audio is not read stops when about 18 seconds wait to be read, and waits on its lane, which nobody else gets
 * until it is read on, cancelled or freed: who may read slowly or not at all needs lanes to spare. When a request fails on the way
 * (a later chunk's prompt may not fit, memory may end), audio made before is given first; then this and every later call fail the
 * same way. */
THESPIS_API thespis_status thespis_request_read(thespis_request *request, float *samples, size_t capacity, size_t *count,
                                                thespis_error *error);
/* Ends generation at the next frame; audio not yet read is dropped and _read returns THESPIS_CANCELLED. */
THESPIS_API void thespis_request_cancel(thespis_request *request);
THESPIS_API void thespis_request_free(thespis_request *request);

typedef enum thespis_finish {
    THESPIS_FINISH_NONE = 0, /* still running */
    THESPIS_FINISH_STOP = 1, /* the model ended its speech */
    THESPIS_FINISH_LENGTH = 2,
    THESPIS_FINISH_CANCELLED = 3,
    THESPIS_FINISH_ERROR = 4,  /* of a chunk: it fell into this one, whose frames are those before it */
    THESPIS_FINISH_LOOP = 5,   /* the guard ended it */
    THESPIS_FINISH_SILENCE = 6 /* the guard ended it */
} thespis_finish;

/* "stop", "length", ...; static storage. */
THESPIS_API const char *thespis_finish_name(thespis_finish finish);

typedef struct thespis_outcome {
    size_t size; /* sizeof(thespis_outcome), set by the caller */
    thespis_finish finish;
    uint64_t seed;
    int chunks;                 /* pieces the text was cut into */
    int chunks_done;            /* of them spoken */
    int prompt_rows;            /* of all chunks begun */
    int cached_rows;            /* of those, copied from a voice kept ready instead of fed */
    int frames;                 /* frames of audio drawn so far; samples = frames * 2048 once finished */
    double queue_seconds;       /* from _start to the first row on a lane */
    double prefill_seconds;     /* from then to the first frame */
    double first_audio_seconds; /* from _start to the first sample ready to read; 0 while there is none */
    double generate_seconds;    /* from the first row to the last frame */
    double decode_seconds;      /* time the codec worked */
    double total_seconds;       /* from _start to the end */
} thespis_outcome;

/* May be called at any time; final once _read has returned 0 samples or a failure. */
THESPIS_API thespis_status thespis_request_get_outcome(const thespis_request *request, thespis_outcome *outcome,
                                                       thespis_error *error);

typedef struct thespis_chunk_info {
    size_t size;      /* sizeof(thespis_chunk_info), set by the caller */
    const char *text; /* what was given to the model; not ended by a zero byte; alive until _free */
    size_t text_bytes;
    size_t source_begin, source_end; /* the bytes of the request's text it came from */
    int first_frame, frames;         /* where it lies in the audio; -1, 0 while it has not begun */
    thespis_finish finish;           /* NONE: not spoken yet */
} thespis_chunk_info;

/* Chunk 0..outcome.chunks-1. May be called at any time. */
THESPIS_API thespis_status thespis_request_get_chunk(const thespis_request *request, int index, thespis_chunk_info *info,
                                                     thespis_error *error);

/* Frames of a finished request: codes [codebooks][frames] as drawn (before the codec's clamp), the library's, alive until _free.
 * Fit for thespis_turn and thespis_voice_add_codes. Fails with THESPIS_INVALID before the end. */
THESPIS_API thespis_status thespis_request_get_codes(const thespis_request *request, const int32_t **codes, size_t *frames,
                                                     thespis_error *error);

/* ---- the codec alone --------------------------------------------------------------------------------------------------------- */

/* Recording to codes: reads a file as thespis_voice_add_file does, without the limit of 60 seconds when max_seconds <= 0.
 * *codes is [codebooks][*frames], freed with thespis_codes_free. */
THESPIS_API thespis_status thespis_encode_file(thespis_engine *engine, const char *path, double max_seconds, int32_t **codes,
                                               size_t *frames, thespis_error *error);
/* Mono samples at 44,100 Hz to codes; frames = ceil(count / 2048). */
THESPIS_API thespis_status thespis_encode_samples(thespis_engine *engine, const float *samples, size_t count, int32_t **codes,
                                                  size_t *frames, thespis_error *error);
THESPIS_API void thespis_codes_free(int32_t *codes);

/* A stream from codes to samples with carried state: any split into pushes gives the same samples. */
typedef struct thespis_decoder thespis_decoder;
THESPIS_API thespis_status thespis_decoder_new(thespis_engine *engine, thespis_decoder **decoder, thespis_error *error);
/* codes [codebooks][stride], of which columns first..first+frames-1 are decoded into samples [frames * 2048]. Codes at or above
 * a codebook's size count as its last entry, negative ones are refused. */
THESPIS_API thespis_status thespis_decoder_push(thespis_decoder *decoder, const int32_t *codes, size_t stride, size_t first,
                                                size_t frames, float *samples, thespis_error *error);
THESPIS_API void thespis_decoder_free(thespis_decoder *decoder);

#ifdef __cplusplus
}
#endif
#endif
