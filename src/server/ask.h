/* ask.h - what a client asks to hear, whichever route it came by. */
#ifndef THESPIS_SERVER_ASK_H
#define THESPIS_SERVER_ASK_H

#include "audio/encode.h"
#include "server/fields.h"

/* Filled by a table of ask.c from defaults of th_ask_init. Views of a request's body. */
struct th_ask {
    const struct th_value *input; /* as given; checked by th_ask_text */
    struct th_text text, model, reference_text, instructions;
    const struct th_value *voice;      /* text, or {"id": text}; NULL: none */
    const struct th_value *references; /* LIST; NULL: none */
    const struct th_value *ref_audio;  /* one more reference */
    const struct th_value *prosody;
    const struct th_audio_format *format; /* NULL: the route's default */
    double speed, volume;                 /* volume in dB */
    int stream;                           /* -1: absent */
    int sse;                              /* 1: stream_format "sse" */
    double temperature, top_p;
    int64_t top_k, max_frames; /* max_frames 0: as many as fit */
    int64_t seed;              /* -1: drawn */
    int64_t sample_rate;       /* 0: the route's default */
    int64_t chunk_bytes;       /* 0: the default; -1: absent */
    int granularity;           /* thespis_granularity, in the order of the table's choices */
    int with_history;
    int64_t mp3_bitrate, opus_bitrate; /* 0: the format's own */
    int latency, task, cache;
};

void th_ask_init(struct th_ask *ask);

extern const struct th_fields th_openai_fields, th_fish_fields, th_prosody_fields;

/* The fields of one reference; see references.h. */
struct th_reference_ask {
    const struct th_value *vq_codes, *data, *audio_path, *ref_audio, *audio;
    struct th_text media_type, text;
};
extern const struct th_fields th_reference_fields;

#endif
