/* mp3_read.c - MP3 through libmpg123, from memory. libsndfile reads MP3 with the same decoder, but leaves it talking to standard
 * error about every broken frame; here it is told to be quiet. */
#include <mpg123.h>
#include <stdio.h>
#include <string.h>

#include "audio/mono.h"
#include "audio/recording.h"
#include "base/memory.h"

#define BLOCK_FRAMES 4096

/* ---- content ----------------------------------------------------------------------------------------------------------------- */

/* Where the audio begins behind any ID3v2 tags, each of which states its size in four bytes of seven bits. */
static size_t skip_tags(const uint8_t *bytes, size_t count)
{
    size_t at = 0;
    while (count - at >= 10 && memcmp(bytes + at, "ID3", 3) == 0) {
        const uint8_t *size = bytes + at + 6;
        size_t step =
            10 + ((size_t)(size[0] & 127) << 21 | (size_t)(size[1] & 127) << 14 | (size_t)(size[2] & 127) << 7 | (size[3] & 127));
        if (bytes[at + 5] & 0x10) step += 10; /* a footer */
        if (step >= count - at) break;
        at += step;
    }
    return at;
}

int th_mp3_is(const void *bytes, size_t count)
{
    static const char others[][5] = {"fLaC", "OggS", "RIFF", "FORM"};
    size_t at = skip_tags(bytes, count);
    const uint8_t *begin = (const uint8_t *)bytes + at;
    if (count - at < 4) return 0;
    if (at > 0) {
        /* A tag may stand in front of other kinds too; what is no such kind is an MP3, perhaps behind some padding. */
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            if (memcmp(begin, others[i], 4) == 0) return 0;
        return 1;
    }
    /* Eleven bits of sync; the reserved version, layer, bit rate and sample rate are no frame. */
    return begin[0] == 0xFF && (begin[1] & 0xE0) == 0xE0 && (begin[1] & 0x18) != 0x08 && (begin[1] & 0x06) != 0 &&
           (begin[2] & 0xF0) != 0xF0 && (begin[2] & 0x0C) != 0x0C;
}

/* ---- decoding ---------------------------------------------------------------------------------------------------------------- */

struct memory_file {
    const uint8_t *bytes;
    size_t count, at;
};

static ssize_t memory_read(void *file, void *out, size_t wanted)
{
    struct memory_file *m = file;
    size_t n = m->count - m->at < wanted ? m->count - m->at : wanted;
    memcpy(out, m->bytes + m->at, n);
    m->at += n;
    return (ssize_t)n;
}

static off_t memory_seek(void *file, off_t offset, int whence)
{
    struct memory_file *m = file;
    off_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? (off_t)m->at : (off_t)m->count, to;
    if (__builtin_add_overflow(base, offset, &to) || to < 0 || (size_t)to > m->count) return -1;
    m->at = (size_t)to;
    return to;
}

static thespis_status unreadable(const struct th_mono *mono, thespis_error *error)
{
    return th_fail(error, THESPIS_FORMAT, "%s: looks like MP3, but no frame of it can be decoded", mono->name);
}

static thespis_status set_up(mpg123_handle *decoder, struct memory_file *file, thespis_error *error)
{
    int wrong = mpg123_param(decoder, MPG123_REMOVE_FLAGS, MPG123_AUTO_RESAMPLE, 0) != MPG123_OK ||
                mpg123_param(decoder, MPG123_ADD_FLAGS, MPG123_QUIET | MPG123_FORCE_FLOAT | MPG123_GAPLESS, 0) != MPG123_OK ||
                mpg123_replace_reader_handle(decoder, memory_read, memory_seek, NULL) != MPG123_OK ||
                mpg123_open_handle(decoder, file) != MPG123_OK;
    return wrong ? th_fail(error, THESPIS_FORMAT, "the MP3 decoder refuses to start: %s", mpg123_strerror(decoder)) : THESPIS_OK;
}

/* Rate and channels, before the first block and when the stream says that they may have changed. */
static thespis_status check_format(mpg123_handle *decoder, struct th_mono *mono, thespis_error *error)
{
    long rate;
    int channels, encoding;
    if (mpg123_getformat(decoder, &rate, &channels, &encoding) != MPG123_OK || encoding != MPG123_ENC_FLOAT_32)
        return unreadable(mono, error);
    if (rate < TH_RATE_MIN || rate > TH_RATE_MAX || channels < 1 || channels > 2) return unreadable(mono, error);
    if (mono->rate != 0 && (mono->rate != rate || mono->channels != channels))
        return th_fail(error, THESPIS_FORMAT, "%s: MP3 that changes from %d Hz, %d channels to %ld Hz, %d channels", mono->name,
                       mono->rate, mono->channels, rate, channels);
    mono->rate = (int)rate;
    mono->channels = channels;
    return THESPIS_OK;
}

/* One block. *more is 0 at the end; a file cut short ends where its last whole frame does. */
static thespis_status read_block(mpg123_handle *decoder, float *block, struct th_mono *mono, int *more, thespis_error *error)
{
    size_t bytes = 0;
    int told = mpg123_read(decoder, (void *)block, BLOCK_FRAMES * (size_t)mono->channels * sizeof *block, &bytes);
    *more = told == MPG123_OK || told == MPG123_NEW_FORMAT;
    size_t frames = bytes / sizeof *block / (size_t)mono->channels;
    if (frames > 0) TH_TRY(th_mono_add(mono, block, frames, error));
    if (told == MPG123_NEW_FORMAT) return check_format(decoder, mono, error);
    if (told == MPG123_OK && frames == 0) *more = 0;
    if (told == MPG123_ERR)
        return th_fail(error, THESPIS_FORMAT, "%s: damaged MP3 data after %zu samples: %s", mono->name, mono->count,
                       mpg123_strerror(decoder));
    return THESPIS_OK;
}

static thespis_status read_blocks(mpg123_handle *decoder, struct th_mono *mono, thespis_error *error)
{
    float *block;
    int more = 1;
    TH_TRY(check_format(decoder, mono, error));
    TH_TRY(TH_ALLOC(&block, (size_t)BLOCK_FRAMES * (size_t)mono->channels, "a block of audio", error));
    thespis_status status = THESPIS_OK;
    while (more && status == THESPIS_OK) status = read_block(decoder, block, mono, &more, error);
    th_free(block);
    return status;
}

thespis_status th_mp3_decode(const void *bytes, size_t count, struct th_mono *mono, thespis_error *error)
{
    int reason;
    struct memory_file file = {.bytes = bytes, .count = count};
    snprintf(mono->container, sizeof mono->container, "MP3");
    if (mpg123_init() != MPG123_OK) return th_fail_memory(error, "the MP3 decoder", 0);
    mpg123_handle *decoder = mpg123_new(NULL, &reason);
    if (decoder == NULL)
        return th_fail(error, reason == MPG123_OUT_OF_MEM ? THESPIS_MEMORY : THESPIS_UNSUPPORTED,
                       "the MP3 decoder does not start: %s", mpg123_plain_strerror(reason));
    thespis_status status = set_up(decoder, &file, error);
    if (status == THESPIS_OK) status = read_blocks(decoder, mono, error);
    mpg123_delete(decoder);
    return status;
}
