/* wav_read.c - the WAV reader of wav.h: chunks in any order, sizes that streaming writers leave open, files cut short. */
#include <math.h>
#include <string.h>

#include "audio/recording.h"
#include "audio/wav.h"
#include "audio/wav_layout.h"
#include "base/memory.h"

#define MAX_CHANNELS 64

enum { TAG_PCM = 1, TAG_FLOAT = 3, TAG_EXTENSIBLE = 0xFFFE };

/* What the walk over the chunks has found so far. */
struct walk {
    const uint8_t *bytes;
    size_t count;
    const char *name;
    int wide;           /* RF64 or BW64: sizes of 2^32 and more are in ds64 */
    uint64_t wide_data; /* data size from ds64 */
    int has_wide;       /* ds64 was seen */
    const uint8_t *format;
    size_t format_bytes;
    const uint8_t *data;
    size_t data_bytes;
    int saw_data; /* a data chunk, perhaps an empty one */
};

static uint32_t u16(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8;
}

static uint32_t u32(const uint8_t *at)
{
    return u16(at) | u16(at + 2) << 16;
}

static uint64_t u64(const uint8_t *at)
{
    return u32(at) | (uint64_t)u32(at + 4) << 32;
}

static int is(const uint8_t *at, const char *id)
{
    return memcmp(at, id, 4) == 0;
}

int th_wav_is(const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    return count >= 12 && (is(at, "RIFF") || is(at, "RF64") || is(at, "BW64") || is(at, "RIFX")) && is(at + 8, "WAVE");
}

/* ---- chunks ------------------------------------------------------------------------------------------------------------------ */

/* Does a chunk begin here? Decides whether a data chunk of size 0 is empty or was left open by a streaming writer. */
static int at_chunk(const struct walk *w, size_t at)
{
    static const char known[][5] = {"data", "fmt ", "LIST", "fact", "cue ", "PEAK", "bext", "JUNK", "junk", "id3 ", "ID3 ", "smpl",
                                    "inst", "iXML", "axml", "_PMX", "ds64", "PAD ", "FLLR", "levl", "chna", "acid", "cart", "DISP"};
    if (w->count - at < 8) return 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (is(w->bytes + at, known[i])) return 1;
    return 0;
}

/* Notes a data chunk whose content begins at `at`. Returns its size in the file, so that the walk can go on behind it. */
static size_t note_data(struct walk *w, size_t at, uint32_t declared)
{
    size_t left = w->count - at;
    uint64_t size = declared == UINT32_MAX && w->wide && w->has_wide ? w->wide_data : declared;
    w->saw_data = 1;
    if (size == 0 && at_chunk(w, at)) return 0;
    if (size == 0 || size > left) size = left;
    if (w->data_bytes == 0) {
        w->data = w->bytes + at;
        w->data_bytes = (size_t)size;
    }
    return (size_t)size;
}

/* Looks at the chunk at w->bytes[at], whose 8 bytes of id and size are there. *next is the place of the following one. */
static thespis_status note_chunk(struct walk *w, size_t at, size_t *next, thespis_error *error)
{
    const uint8_t *id = w->bytes + at;
    uint32_t declared = u32(id + 4);
    size_t left = w->count - at - 8, size = declared;
    if (is(id, "data")) {
        size = note_data(w, at + 8, declared);
    } else if (is(id, "fmt ") && w->format == NULL) {
        if (size < 16 || size > left)
            return th_fail(error, THESPIS_FORMAT, "%s: its fmt chunk has %zu bytes of which %zu are there, 16 at least are needed",
                           w->name, size, left);
        w->format = id + 8;
        w->format_bytes = size;
    } else if (is(id, "ds64") && w->wide && !w->has_wide) {
        if (size < 24 || size > left) return th_fail(error, THESPIS_FORMAT, "%s: its ds64 chunk is cut short", w->name);
        w->wide_data = u64(id + 16);
        w->has_wide = 1;
    }
    /* Chunks begin at even places. One that claims more than there is ends the walk. */
    *next = size >= left ? w->count : at + 8 + size + (size & 1);
    if (*next > w->count) *next = w->count;
    return THESPIS_OK;
}

static thespis_status walk_chunks(struct walk *w, thespis_error *error)
{
    for (size_t at = 12; w->count - at >= 8 && !(w->format != NULL && w->data_bytes > 0);) TH_TRY(note_chunk(w, at, &at, error));
    if (w->format == NULL) return th_fail(error, THESPIS_FORMAT, "%s: WAV file without a fmt chunk (%zu bytes)", w->name, w->count);
    if (!w->saw_data) return th_fail(error, THESPIS_FORMAT, "%s: WAV file without a data chunk (%zu bytes)", w->name, w->count);
    return THESPIS_OK;
}

/* ---- format ------------------------------------------------------------------------------------------------------------------ */

static const char *tag_name(uint32_t tag)
{
    switch (tag) {
    case 0x02: return "Microsoft ADPCM";
    case 0x06: return "A-law";
    case 0x07: return "mu-law";
    case 0x11: return "IMA ADPCM";
    case 0x31: return "GSM 6.10";
    case 0x50: return "MPEG";
    case 0x55: return "MP3";
    case 0xFF: return "AAC";
    default: return "an encoding unknown here";
    }
}

/* The tag that counts, from inside the extensible form where that is used. */
static thespis_status real_tag(const struct walk *w, uint32_t *tag, thespis_error *error)
{
    static const uint8_t tail[14] = {0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71};
    const uint8_t *f = w->format;
    *tag = u16(f);
    if (*tag != TAG_EXTENSIBLE) return THESPIS_OK;
    if (w->format_bytes < 40)
        return th_fail(error, THESPIS_FORMAT, "%s: its extensible fmt chunk has %zu bytes, 40 are needed", w->name,
                       w->format_bytes);
    if (memcmp(f + 26, tail, sizeof tail) != 0)
        return th_fail(error, THESPIS_UNSUPPORTED, "%s: WAV file with an unknown extensible encoding", w->name);
    *tag = u16(f + 24);
    uint32_t container = u16(f + 14), valid = u16(f + 18);
    if (valid > container || container % 8 != 0)
        return th_fail(error, THESPIS_FORMAT, "%s: %u valid bits in samples of %u bits", w->name, valid, container);
    return THESPIS_OK;
}

static thespis_status pick_encoding(const struct walk *w, uint32_t tag, uint32_t bits, struct th_wav_layout *layout,
                                    thespis_error *error)
{
    static const enum th_wav_encoding integers[] = {TH_WAV_U8, TH_WAV_S16, TH_WAV_S24, TH_WAV_S32};
    if (tag != TAG_PCM && tag != TAG_FLOAT)
        return th_fail(error, THESPIS_UNSUPPORTED, "%s: WAV file encoded as %s (tag 0x%04x), PCM and float are read", w->name,
                       tag_name(tag), tag);
    int fits = tag == TAG_PCM ? bits >= 8 && bits <= 32 : bits == 32 || bits == 64;
    if (!fits)
        return th_fail(error, THESPIS_UNSUPPORTED, "%s: WAV file of %u-bit %s samples, %s are read", w->name, bits,
                       tag == TAG_PCM ? "integer" : "float", tag == TAG_PCM ? "8 to 32 bits" : "32 and 64 bits");
    layout->item_size = (int)(bits + 7) / 8;
    layout->encoding = tag == TAG_PCM ? integers[layout->item_size - 1] : bits == 32 ? TH_WAV_F32 : TH_WAV_F64;
    return THESPIS_OK;
}

static thespis_status read_format(const struct walk *w, struct th_wav_layout *layout, thespis_error *error)
{
    const uint8_t *f = w->format;
    uint32_t tag, channels = u16(f + 2), rate = u32(f + 4), align = u16(f + 12);
    TH_TRY(real_tag(w, &tag, error));
    if (channels < 1 || channels > MAX_CHANNELS)
        return th_fail(error, THESPIS_FORMAT, "%s: %u channels, 1 to %d are read", w->name, channels, MAX_CHANNELS);
    if (rate < TH_RATE_MIN || rate > TH_RATE_MAX)
        return th_fail(error, THESPIS_FORMAT, "%s: sample rate is %u, must be %d to %d", w->name, rate, TH_RATE_MIN, TH_RATE_MAX);
    TH_TRY(pick_encoding(w, tag, u16(f + 14), layout, error));
    if (align != channels * (uint32_t)layout->item_size)
        return th_fail(error, THESPIS_FORMAT, "%s: block align is %u, must be %u for %u channels of %d bytes", w->name, align,
                       channels * (uint32_t)layout->item_size, channels, layout->item_size);
    layout->channels = (int)channels;
    layout->rate = (int)rate;
    return THESPIS_OK;
}

thespis_status th_wav_find(const void *bytes, size_t count, const char *name, struct th_wav_layout *layout, thespis_error *error)
{
    struct walk w = {.bytes = bytes, .count = count, .name = name};
    memset(layout, 0, sizeof *layout);
    if (!th_wav_is(bytes, count)) return th_fail(error, THESPIS_FORMAT, "%s: not a WAV file (%zu bytes)", name, count);
    if (is(bytes, "RIFX"))
        return th_fail(error, THESPIS_FORMAT, "%s: a big-endian WAV file (RIFX), little-endian ones (RIFF) are read", name);
    w.wide = !is(bytes, "RIFF");
    TH_TRY(walk_chunks(&w, error));
    TH_TRY(read_format(&w, layout, error));
    layout->data = w.data;
    layout->frames = w.data_bytes / ((size_t)layout->channels * (size_t)layout->item_size);
    if (layout->frames == 0) return th_fail(error, THESPIS_FORMAT, "%s: no audio in the WAV file", name);
    return THESPIS_OK;
}

/* ---- samples ----------------------------------------------------------------------------------------------------------------- */

static float decode_one(enum th_wav_encoding encoding, const uint8_t *at)
{
    uint32_t bits32;
    uint64_t bits64;
    float narrow;
    double wide;
    switch (encoding) {
    case TH_WAV_U8: return (float)((int)at[0] - 128) / 128.0f;
    case TH_WAV_S16: return (float)(int16_t)u16(at) / 32768.0f;
    case TH_WAV_S24: return (float)((int32_t)(u16(at) << 8 | (uint32_t)at[2] << 24) >> 8) / 8388608.0f;
    case TH_WAV_S32: return (float)(int32_t)u32(at) / 2147483648.0f;
    case TH_WAV_F32:
        bits32 = u32(at);
        memcpy(&narrow, &bits32, sizeof narrow);
        return narrow;
    default:
        bits64 = u64(at);
        memcpy(&wide, &bits64, sizeof wide);
        return (float)wide;
    }
}

void th_wav_decode(const struct th_wav_layout *layout, size_t first, size_t frames, float *samples)
{
    size_t channels = (size_t)layout->channels, size = (size_t)layout->item_size, items = frames * channels;
    const uint8_t *at = layout->data + first * channels * size;
    for (size_t i = 0; i < items; i++, at += size) samples[i] = decode_one(layout->encoding, at);
}

thespis_status th_check_finite(const float *samples, size_t count, const char *name, thespis_error *error)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(samples[i]))
            return th_fail(error, THESPIS_FORMAT, "%s: holds samples that are not numbers (NaN or infinite)", name);
    return THESPIS_OK;
}

thespis_status th_check_seconds(double frames, int rate, double max_seconds, const char *name, thespis_error *error)
{
    if (max_seconds <= 0 || frames <= max_seconds * rate) return THESPIS_OK;
    return th_fail(error, THESPIS_LIMIT, "%s: a recording of %.2f seconds or more, at most %g are taken", name, frames / rate,
                   max_seconds);
}

thespis_status th_wav_parse(const void *bytes, size_t count, const char *name, double max_seconds, struct th_wav *wav,
                            thespis_error *error)
{
    struct th_wav_layout layout;
    memset(wav, 0, sizeof *wav);
    TH_TRY(th_wav_find(bytes, count, name, &layout, error));
    TH_TRY(th_check_seconds((double)layout.frames, layout.rate, max_seconds, name, error));
    size_t items = layout.frames * (size_t)layout.channels;
    TH_TRY(TH_ALLOC(&wav->samples, items, name, error));
    th_wav_decode(&layout, 0, layout.frames, wav->samples);
    thespis_status status = th_check_finite(wav->samples, items, name, error);
    if (status != THESPIS_OK) {
        th_free(wav->samples);
        wav->samples = NULL;
        return status;
    }
    wav->frames = layout.frames;
    wav->channels = layout.channels;
    wav->rate = layout.rate;
    return THESPIS_OK;
}
