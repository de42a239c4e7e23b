/* encode.h - audio going out: 44,100 Hz mono in, the bytes of one file or stream in any format out, as they become ready.
 *
 * One encoder makes one container: header, body and end of a whole file, or of a stream whose length nobody knows yet. The bytes of
 * a format do not depend on how the samples were cut into writes. Nothing is printed. */
#ifndef THESPIS_AUDIO_ENCODE_H
#define THESPIS_AUDIO_ENCODE_H

#include "base/bytes.h"
#include "base/error.h"

#define TH_ENCODE_RATE_MIN 8000
#define TH_ENCODE_RATE_MAX 48000
#define TH_BITRATE_AUTO (-1000) /* opus: the encoder's own choice */

struct th_audio_format {
    const char *name; /* "mp3" */
    const char *extension, *content_type;
    int sample_rate; /* when none is asked for */
    int bitrate;     /* kb/s when none is asked for; 0: the format has none */
    int lossless;    /* decodes to the 16-bit samples */
    /* A whole file differs from a stream (its header knows the length), so it comes out at the end in one piece. */
    int needs_length;
};
/* The formats in the order they are listed to people; *count of them. Each can stream. */
const struct th_audio_format *th_audio_formats(size_t *count);
/* By name in lower case; NULL when there is no such format. */
const struct th_audio_format *th_audio_format_find(const char *name);
/* "wav, pcm, mp3, opus, flac or aac", for messages. */
const char *th_audio_format_names(void);

struct th_encoder_options {
    const char *format; /* a name from the table */
    int sample_rate;    /* of the output: TH_ENCODE_RATE_MIN to _MAX as the format allows; 0: the format's own */
    int bitrate; /* kb/s; 0: the format's own, TH_BITRATE_AUTO for opus only. MP3 and AAC at low rates have less: then their most */
    int streamed; /* the length is unknown while bytes go out: WAV sizes 0xFFFFFFFF, FLAC total 0 */
};

struct th_encoder;
/* THESPIS_UNSUPPORTED for a format that is not there (the message lists those that are), THESPIS_INVALID for a rate or bitrate that
 * the format has not. */
thespis_status th_encoder_open(const struct th_encoder_options *options, struct th_encoder **encoder, thespis_error *error);
/* What the encoder really does, after the options' zeros were filled in. */
const struct th_audio_format *th_encoder_format(const struct th_encoder *encoder);
int th_encoder_sample_rate(const struct th_encoder *encoder);
/* Samples are clamped to [-1, 1]; 16 bits are x * 32,767 rounded to nearest, ties to even. Appends to *out the bytes that are
 * ready: a header with the first call, even for no samples. After a failure only closing is left. */
thespis_status th_encoder_write(struct th_encoder *encoder, const float *samples, size_t count, struct th_bytes *out,
                                thespis_error *error);
/* Appends the end. */
thespis_status th_encoder_finish(struct th_encoder *encoder, struct th_bytes *out, thespis_error *error);
/* Also in the middle of a stream. NULL is allowed. */
void th_encoder_close(struct th_encoder *encoder);

#endif
