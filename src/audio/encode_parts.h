/* encode_parts.h - what an encoder is made of: the formats' own steps behind one table of functions. Only src/audio/encode*.c. */
#ifndef THESPIS_AUDIO_ENCODE_PARTS_H
#define THESPIS_AUDIO_ENCODE_PARTS_H

#include "audio/encode.h"
#include "audio/rate.h"

/* Samples arrive at e->sample_rate, clamped to [-1, 1], never NaN, in blocks of exactly `block`; only the last may be shorter.
 * (LAME and Opus make other bytes of the same samples when they get them in other pieces.) */
struct th_encode_steps {
    size_t block;
    int at_once; /* the size of blocks does not matter: none waits for more samples */
    /* Checks sample_rate and bitrate, makes e->state. */
    thespis_status (*open)(struct th_encoder *e, thespis_error *error);
    thespis_status (*begin)(struct th_encoder *e, struct th_bytes *out, thespis_error *error); /* the header; NULL: none */
    thespis_status (*write)(struct th_encoder *e, const float *samples, size_t count, struct th_bytes *out, thespis_error *error);
    thespis_status (*finish)(struct th_encoder *e, struct th_bytes *out, thespis_error *error);
    void (*close)(struct th_encoder *e); /* e->state may be NULL or half made */
};

struct th_encoder {
    const struct th_audio_format *format;
    const struct th_encode_steps *steps;
    int sample_rate, bitrate, streamed;
    struct th_rate *rate; /* NULL at 44,100 Hz */
    void *state;          /* of the format */
    int begun;            /* the header is out */
    int over;             /* finished, or failed */
    float *block;         /* [steps->block], clamped samples that wait for the rest of their block */
    size_t waiting;
};

extern const struct th_encode_steps th_encode_wav, th_encode_pcm, th_encode_mp3, th_encode_opus, th_encode_flac, th_encode_aac;

#endif
