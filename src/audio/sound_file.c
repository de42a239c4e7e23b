/* sound_file.c - see sound_file.h. */
#include "audio/sound_file.h"

#include <string.h>
#include <strings.h>

#include "audio/rate.h"

const char *th_sound_format_of(const char *path)
{
    static const struct {
        const char *ending, *format;
    } endings[] = {{".mp3", "mp3"}, {".opus", "opus"}, {".ogg", "opus"}, {".flac", "flac"}, {".aac", "aac"}};
    size_t n = strlen(path);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t m = strlen(endings[i].ending);
        if (n > m && strcasecmp(path + n - m, endings[i].ending) == 0) return endings[i].format;
    }
    return "wav";
}

/* The two kinds that wav.h writes, and RF64 with them; 32-bit floats are for files alone. */
static int is_plain(const char *format, enum th_sound_format *plain)
{
    static const char *const names[] = {[TH_SOUND_WAV16] = "wav", [TH_SOUND_WAV32F] = "wav32f", [TH_SOUND_PCM16] = "pcm"};
    for (int i = 0; i < 3; i++)
        if (strcmp(format, names[i]) == 0) {
            *plain = (enum th_sound_format)i;
            return 1;
        }
    return 0;
}

static thespis_status open_plain(const char *path, enum th_sound_format format, int sample_rate, int bitrate,
                                 struct th_sound_file *file, thespis_error *error)
{
    if (bitrate != 0) return th_fail(error, THESPIS_INVALID, "bitrate is %d, but WAV and PCM have none", bitrate);
    if (sample_rate == 0) sample_rate = THESPIS_SAMPLE_RATE;
    if (sample_rate < TH_ENCODE_RATE_MIN || sample_rate > TH_ENCODE_RATE_MAX)
        return th_fail(error, THESPIS_INVALID, "sample_rate is %d, must be %d to %d", sample_rate, TH_ENCODE_RATE_MIN,
                       TH_ENCODE_RATE_MAX);
    if (sample_rate != THESPIS_SAMPLE_RATE) TH_TRY(th_rate_open(THESPIS_SAMPLE_RATE, sample_rate, &file->rate, error));
    return th_sound_open(path, format, sample_rate, &file->writer, error);
}

/* What cannot go into the format is told before the file is touched. A pipe gets a stream's header. */
static thespis_status open_encoded(const char *path, const char *format, int sample_rate, int bitrate, struct th_sound_file *file,
                                   thespis_error *error)
{
    struct th_encoder_options options = {format, sample_rate, bitrate, 0};
    TH_TRY(th_encoder_open(&options, &file->encoder, error));
    TH_TRY(th_output_open(path, &file->writer.output, error));
    if (file->writer.output.seekable) return THESPIS_OK;
    th_encoder_close(file->encoder);
    options.streamed = 1;
    return th_encoder_open(&options, &file->encoder, error);
}

thespis_status th_sound_file_open(const char *path, const char *format, int sample_rate, int bitrate, struct th_sound_file *file,
                                  thespis_error *error)
{
    enum th_sound_format plain;
    memset(file, 0, sizeof *file);
    file->writer.output.fd = -1;
    thespis_status status = is_plain(format, &plain) ? open_plain(path, plain, sample_rate, bitrate, file, error)
                                                     : open_encoded(path, format, sample_rate, bitrate, file, error);
    if (status != THESPIS_OK) th_sound_file_discard(file);
    return status;
}

static thespis_status write_ready(struct th_sound_file *file, thespis_error *error)
{
    thespis_status status = th_output_write(&file->writer.output, file->ready.at, file->ready.count, error);
    th_bytes_clear(&file->ready);
    return status;
}

thespis_status th_sound_file_write(struct th_sound_file *file, const float *samples, size_t count, thespis_error *error)
{
    if (file->encoder != NULL) {
        TH_TRY(th_encoder_write(file->encoder, samples, count, &file->ready, error));
        return write_ready(file, error);
    }
    if (file->rate != NULL) TH_TRY(th_rate_write(file->rate, samples, count, &samples, &count, error));
    return th_sound_write(&file->writer, samples, count, error);
}

static thespis_status write_end(struct th_sound_file *file, thespis_error *error)
{
    const float *samples;
    size_t count;
    if (file->encoder != NULL) {
        TH_TRY(th_encoder_finish(file->encoder, &file->ready, error));
        TH_TRY(write_ready(file, error));
        return th_output_commit(&file->writer.output, error);
    }
    if (file->rate != NULL) {
        TH_TRY(th_rate_finish(file->rate, &samples, &count, error));
        TH_TRY(th_sound_write(&file->writer, samples, count, error));
    }
    return th_sound_close(&file->writer, error);
}

thespis_status th_sound_file_close(struct th_sound_file *file, thespis_error *error)
{
    thespis_status status = write_end(file, error);
    th_sound_file_discard(file); /* what is committed already stays */
    return status;
}

void th_sound_file_discard(struct th_sound_file *file)
{
    th_output_discard(&file->writer.output);
    th_encoder_close(file->encoder);
    th_rate_close(file->rate);
    th_bytes_free(&file->ready);
    file->encoder = NULL;
    file->rate = NULL;
}
