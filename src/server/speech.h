/* speech.h - one request to the engine on behalf of a client: from what was asked to encoded bytes. */
#ifndef THESPIS_SERVER_SPEECH_H
#define THESPIS_SERVER_SPEECH_H

#include "server/ask.h"
#include "server/exchange.h"

/* What routes do differently. */
struct th_speech_manner {
    const char *format;                      /* when none is asked for; NULL: the server's default */
    int pcm_rate;                            /* of pcm, when no rate is asked for */
    int unknown_voice;                       /* HTTP status */
    const char *text, *voice, *format_field; /* names of fields */
    const char *prefix;                      /* of params: "items.3." */
    int streamed;                            /* 1, 0; -1: as asked */
};

struct th_speech {
    struct th_exchange *x;
    thespis_request *request;
    thespis_voice *voice;
    struct th_encoder *encoder;
    const struct th_audio_format *format;
    int rate, streamed;
    float gain;
    uint64_t seed;
    double begun; /* th_now when the engine was asked */
    uint64_t samples, most_samples;
    double play_at, waited; /* when a listener has heard all so far; seconds of silence that had to wait for us */
    int ended;              /* the last bytes are out */
    int late;               /* given up in line; under x->mutex */
    thespis_outcome outcome;
};

/* Will there be room in the queue? 429 when not. */
thespis_status th_speech_room(struct th_exchange *x, struct th_fault *fault);
/* Checks everything, makes the voice, and asks the engine. The speech belongs to the exchange, which ends it. */
thespis_status th_speech_start(struct th_exchange *x, const struct th_ask *ask, const struct th_speech_manner *manner,
                               struct th_speech **speech, struct th_fault *fault);
/* Waits for the next audio and appends its bytes; the last call sets `ended`. */
thespis_status th_speech_pull(struct th_speech *speech, struct th_bytes *out, struct th_fault *fault);
/* The same until the end. */
thespis_status th_speech_whole(struct th_speech *speech, struct th_bytes *out, struct th_fault *fault);
/* Counts what became of it and lets go. */
void th_speech_end(struct th_speech *speech);
void th_speech_end_all(struct th_exchange *x);
/* A th_gone: the client has left this exchange. */
void th_speech_gone(void *exchange);
/* Another: what still waits for a lane has waited long enough. */
void th_speech_late(void *exchange);

/* stream.c */
/* Answers with the speech, streamed or whole. */
enum MHD_Result th_speech_answer(struct th_exchange *x, struct th_speech *speech, int sse, const char *filename);
/* Fills x->out.wire with the next bytes of x->out.speech; sets over or failed. */
void th_speech_fill(struct th_exchange *x);

/* voice_of.c */
/* The voice that is asked for; *voice is NULL for the model's own choice. */
thespis_status th_speech_voice(struct th_exchange *x, const struct th_ask *ask, const struct th_speech_manner *manner,
                               thespis_voice **voice, struct th_fault *fault);

#endif
