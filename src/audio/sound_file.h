/* sound_file.h - speech into a file, pipe or device, in any format: wav.h's writer or an encoder, a rate, and an output. */
#ifndef THESPIS_AUDIO_SOUND_FILE_H
#define THESPIS_AUDIO_SOUND_FILE_H

#include "audio/encode.h"
#include "audio/wav.h"

struct th_sound_file {
    struct th_sound_writer writer; /* of wav, wav32f and pcm; of the others only its output is used */
    struct th_rate *rate;          /* in front of the writer; NULL at 44,100 Hz */
    struct th_encoder *encoder;    /* of the others; NULL */
    struct th_bytes ready;         /* what the encoder gave last */
};
/* The format that a file's name asks for by its ending (.mp3, .opus, .ogg, .flac, .aac), else "wav". */
const char *th_sound_format_of(const char *path);
/* "wav", "wav32f", "pcm", or another format of encode.h. 0 for rate and bitrate: the format's own. */
thespis_status th_sound_file_open(const char *path, const char *format, int sample_rate, int bitrate, struct th_sound_file *file,
                                  thespis_error *error);
/* Mono, 44,100 Hz. */
thespis_status th_sound_file_write(struct th_sound_file *file, const float *samples, size_t count, thespis_error *error);
/* The file is under its name when this succeeded, and nothing is left when it failed. Everything is released. */
thespis_status th_sound_file_close(struct th_sound_file *file, thespis_error *error);
/* Nothing is left. Does nothing when there is nothing open. */
void th_sound_file_discard(struct th_sound_file *file);

#endif
