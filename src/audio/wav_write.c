/* wav_write.c - the streaming WAV and PCM writer of wav.h.
 *
 * The header is written at once with open sizes, which is what a pipe keeps; in a new regular file they are patched at the end. A
 * file that grew past 32-bit sizes becomes RF64 then: its ds64 chunk has to come first, so everything behind moves 36 bytes on. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "audio/wav.h"
#include "base/memory.h"

#define BLOCK_SAMPLES 2048
#define MOVE_BYTES ((size_t)1 << 20)
#define DS64_BYTES 36 /* the chunk with its id and size */

struct bytes {
    uint8_t at[TH_WAV_HEADER_MAX];
    size_t used;
};

static void put(struct bytes *b, uint64_t value, int size)
{
    for (int i = 0; i < size; i++) b->at[b->used++] = (uint8_t)(value >> 8 * i);
}

static void put_id(struct bytes *b, const char *id)
{
    memcpy(b->at + b->used, id, 4);
    b->used += 4;
}

static size_t sample_bytes(enum th_sound_format format)
{
    return format == TH_SOUND_WAV32F ? 4 : 2;
}

/* RIFF, fmt, fact where floats ask for it, and the head of data. Sizes of UINT32_MAX are open (or in ds64, when `wide`). */
static void compose(struct bytes *b, enum th_sound_format format, int rate, uint64_t samples, int wide)
{
    int is_float = format == TH_SOUND_WAV32F;
    uint64_t item = sample_bytes(format), head = is_float ? 58 : 44, open = UINT32_MAX;
    uint64_t data = samples == UINT64_MAX ? open : samples * item, riff = samples == UINT64_MAX ? open : head - 8 + data;
    memset(b, 0, sizeof *b);
    put_id(b, wide ? "RF64" : "RIFF");
    put(b, wide ? open : riff, 4);
    put_id(b, "WAVE");
    if (wide) {
        put_id(b, "ds64");
        put(b, DS64_BYTES - 8, 4);
        put(b, riff + DS64_BYTES, 8);
        put(b, data, 8);
        put(b, samples, 8);
        put(b, 0, 4);
    }
    put_id(b, "fmt ");
    put(b, is_float ? 18 : 16, 4);
    put(b, is_float ? 3 : 1, 2);
    put(b, 1, 2);
    put(b, (uint64_t)rate, 4);
    put(b, (uint64_t)rate * item, 4);
    put(b, item, 2);
    put(b, item * 8, 2);
    if (is_float) {
        put(b, 0, 2);
        put_id(b, "fact");
        put(b, 4, 4);
        put(b, wide || samples > open ? open : samples, 4);
    }
    put_id(b, "data");
    put(b, wide ? open : data, 4);
}

size_t th_wav_header(enum th_sound_format format, int rate, uint64_t samples, uint8_t header[TH_WAV_HEADER_MAX])
{
    struct bytes b;
    compose(&b, format, rate, samples, 0);
    memcpy(header, b.at, b.used);
    return b.used;
}

thespis_status th_sound_open(const char *path, enum th_sound_format format, int rate, struct th_sound_writer *writer,
                             thespis_error *error)
{
    memset(writer, 0, sizeof *writer);
    writer->output.fd = -1;
    if (rate < 1) return th_fail(error, THESPIS_INVALID, "sample rate is %d, must be at least 1", rate);
    TH_TRY(th_output_open(path, &writer->output, error));
    writer->format = format;
    writer->rate = rate;
    writer->rf64_from = (uint64_t)1 << 32;
    if (format == TH_SOUND_PCM16) return THESPIS_OK;
    struct bytes header;
    compose(&header, format, rate, UINT64_MAX, 0);
    thespis_status status = th_output_write(&writer->output, header.at, header.used, error);
    if (status != THESPIS_OK) th_output_discard(&writer->output);
    return status;
}

int16_t th_sample_to_s16(float sample)
{
    if (!(sample == sample)) return 0;
    float clamped = sample > 1.0f ? 1.0f : sample < -1.0f ? -1.0f : sample;
    return (int16_t)lrintf(clamped * 32767.0f);
}

/* At most BLOCK_SAMPLES samples as the format's little-endian bytes. */
static size_t convert(enum th_sound_format format, const float *samples, size_t count, uint8_t *bytes)
{
    for (size_t i = 0; i < count; i++) {
        if (format == TH_SOUND_WAV32F) {
            uint32_t bits;
            memcpy(&bits, &samples[i], sizeof bits);
            for (int k = 0; k < 4; k++) bytes[4 * i + (size_t)k] = (uint8_t)(bits >> 8 * k);
        } else {
            uint16_t value = (uint16_t)th_sample_to_s16(samples[i]);
            bytes[2 * i] = (uint8_t)(value & 255);
            bytes[2 * i + 1] = (uint8_t)(value >> 8);
        }
    }
    return count * sample_bytes(format);
}

static thespis_status already_closed(thespis_error *error)
{
    return th_fail(error, THESPIS_IO, "cannot write sound: its file is closed after an earlier failure");
}

thespis_status th_sound_write(struct th_sound_writer *writer, const float *samples, size_t count, thespis_error *error)
{
    uint8_t bytes[BLOCK_SAMPLES * 4];
    if (writer->output.path == NULL) return already_closed(error);
    while (count > 0) {
        size_t n = count < BLOCK_SAMPLES ? count : BLOCK_SAMPLES;
        thespis_status status = th_output_write(&writer->output, bytes, convert(writer->format, samples, n, bytes), error);
        if (status != THESPIS_OK) {
            th_output_discard(&writer->output);
            return status;
        }
        writer->samples += n;
        samples += n;
        count -= n;
    }
    return THESPIS_OK;
}

static thespis_status read_at(const struct th_output *output, uint8_t *data, size_t bytes, uint64_t offset, thespis_error *error)
{
    for (size_t got = 0; got < bytes;) {
        ssize_t n = pread(output->fd, data + got, bytes - got, (off_t)(offset + got));
        if (n < 0) return th_fail_errno(error, "cannot read '%s' back", output->path);
        if (n == 0) return th_fail(error, THESPIS_IO, "cannot read '%s' back: it ends too early", output->path);
        got += (size_t)n;
    }
    return THESPIS_OK;
}

/* Moves all from byte `from` on by DS64_BYTES, from the end so that nothing is overwritten before it was read. */
static thespis_status make_room(struct th_output *output, uint64_t from, thespis_error *error)
{
    uint8_t *block;
    TH_TRY(TH_ALLOC(&block, MOVE_BYTES, "a block of the file", error));
    thespis_status status = THESPIS_OK;
    for (uint64_t end = output->written; end > from && status == THESPIS_OK;) {
        size_t n = end - from < MOVE_BYTES ? (size_t)(end - from) : MOVE_BYTES;
        end -= n;
        status = read_at(output, block, n, end, error);
        if (status == THESPIS_OK) status = th_output_patch(output, end + DS64_BYTES, block, n, error);
    }
    th_free(block);
    return status;
}

static thespis_status patch_sizes(struct th_sound_writer *writer, thespis_error *error)
{
    struct bytes header;
    int wide = writer->output.written >= writer->rf64_from;
    if (wide) TH_TRY(make_room(&writer->output, 12, error));
    compose(&header, writer->format, writer->rate, writer->samples, wide);
    return th_output_patch(&writer->output, 0, header.at, header.used, error);
}

thespis_status th_sound_close(struct th_sound_writer *writer, thespis_error *error)
{
    if (writer->output.path == NULL) return already_closed(error);
    thespis_status status = THESPIS_OK;
    if (writer->output.seekable && writer->format != TH_SOUND_PCM16) status = patch_sizes(writer, error);
    if (status == THESPIS_OK) return th_output_commit(&writer->output, error);
    th_output_discard(&writer->output);
    return status;
}

void th_sound_discard(struct th_sound_writer *writer)
{
    th_output_discard(&writer->output);
}
