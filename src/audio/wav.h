/* wav.h - WAV files: our own reader with every rule people's files need, and a streaming writer. */
#ifndef THESPIS_AUDIO_WAV_H
#define THESPIS_AUDIO_WAV_H

#include "base/error.h"
#include "base/file.h"

/* Interleaved samples as floats. */
struct th_wav {
    float *samples; /* [frames][channels], freed with th_free */
    size_t frames;
    int channels, rate;
};
/* Does this look like RIFF/RF64/BW64/RIFX .. WAVE? */
int th_wav_is(const void *bytes, size_t count);
/* THESPIS_UNSUPPORTED for encodings that libsndfile may know (A-law, ADPCM, MP3 in WAV). max_seconds <= 0: no limit. */
thespis_status th_wav_parse(const void *bytes, size_t count, const char *name, double max_seconds, struct th_wav *wav,
                            thespis_error *error);

enum th_sound_format { TH_SOUND_WAV16, TH_SOUND_WAV32F, TH_SOUND_PCM16 };

/* Mono 44,100 Hz going out. In a new regular file a WAV's sizes are exact when th_sound_close succeeded; in a pipe they are
 * 0xFFFFFFFF. */
struct th_sound_writer {
    struct th_output output;
    enum th_sound_format format;
    uint64_t samples; /* so far */
    int rate;
    uint64_t rf64_from; /* a file of so many bytes becomes RF64: 2^32; only tests set less */
};
thespis_status th_sound_open(const char *path, enum th_sound_format format, int rate, struct th_sound_writer *writer,
                             thespis_error *error);
/* s16 = lrintf(clamp(x, -1, 1) * 32767), ties to even. */
thespis_status th_sound_write(struct th_sound_writer *writer, const float *samples, size_t count, thespis_error *error);
/* Patches the sizes, closes, commits. On failure nothing is left under the name. */
thespis_status th_sound_close(struct th_sound_writer *writer, thespis_error *error);
void th_sound_discard(struct th_sound_writer *writer);

/* The header of a mono file of so many samples (UINT64_MAX: nobody knows yet, the sizes are 0xFFFFFFFF), up to where they begin.
 * Returns its bytes: 44 for 16-bit. */
#define TH_WAV_HEADER_MAX 96
size_t th_wav_header(enum th_sound_format format, int rate, uint64_t samples, uint8_t header[TH_WAV_HEADER_MAX]);

/* One sample as 16-bit. */
int16_t th_sample_to_s16(float sample);

#endif
