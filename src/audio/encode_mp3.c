/* encode_mp3.c - MP3 by LAME: constant bit rate, mono, without a tag frame in front.
 *
 * LAME's own tag would have to be written over at the end, which a stream cannot do; a whole file goes without it too, so that both
 * have the same bytes. What a decoder hears is therefore the encoder's delay (25 ms at 44,100 Hz), the speech, and the rest of the
 * last frame. */
#include <lame.h>
#include <stdarg.h>

#include "audio/encode_parts.h"
#include "base/memory.h"

#define QUALITY 5 /* LAME's scale from 0, best, to 9 */
#define MP3_FRAME 1152
#define ROOM(samples) ((samples)*5 / 4 + 7200) /* LAME's own worst case */

struct mp3 {
    lame_t lame;
    float gain; /* LAME turns everything down by 5 % at our bit rates; speech is to be as loud in every format */
    float block[MP3_FRAME];
};

static void say_nothing(const char *format, va_list arguments)
{
    (void)format, (void)arguments;
}

/* The most that MPEG 1, 2 and 2.5 have. Clients send one bit rate with any sample rate: more than there is becomes the most. */
static int most_bitrate(int sample_rate)
{
    return sample_rate >= 32000 ? 320 : sample_rate >= 16000 ? 160 : 64;
}

static void set_up(lame_t lame, int sample_rate, int bitrate)
{
    lame_set_errorf(lame, say_nothing);
    lame_set_msgf(lame, say_nothing);
    lame_set_debugf(lame, say_nothing);
    lame_set_num_channels(lame, 1);
    lame_set_mode(lame, MONO);
    lame_set_in_samplerate(lame, sample_rate);
    lame_set_out_samplerate(lame, sample_rate);
    lame_set_brate(lame, bitrate);
    lame_set_VBR(lame, vbr_off);
    lame_set_quality(lame, QUALITY);
    lame_set_bWriteVbrTag(lame, 0);
    lame_set_write_id3tag_automatic(lame, 0);
}

static thespis_status mp3_open(struct th_encoder *e, thespis_error *error)
{
    static const int rates[] = {8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000};
    int known = 0;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) known |= rates[i] == e->sample_rate;
    if (!known)
        return th_fail(error, THESPIS_INVALID,
                       "sample_rate is %d, mp3 has 8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100 and 48000",
                       e->sample_rate);
    if (e->bitrate == 0) e->bitrate = e->format->bitrate;
    if (e->bitrate > most_bitrate(e->sample_rate) && e->bitrate <= 320) e->bitrate = most_bitrate(e->sample_rate);
    struct mp3 *mp3;
    TH_TRY(TH_ALLOC(&mp3, 1, "an MP3 encoder", error));
    e->state = mp3;
    mp3->lame = lame_init();
    if (mp3->lame == NULL) return th_fail_memory(error, "an MP3 encoder", sizeof(void *));
    set_up(mp3->lame, e->sample_rate, e->bitrate);
    int failed = e->bitrate < 8 || e->bitrate > 320 || lame_init_params(mp3->lame) < 0;
    /* LAME takes the nearest it has; we do as we are told or say no. */
    if (failed || lame_get_brate(mp3->lame) != e->bitrate)
        return th_fail(error, THESPIS_INVALID, "bitrate is %d, mp3 at %d Hz has %s", e->bitrate, e->sample_rate,
                       e->sample_rate >= 32000   ? "32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256 and 320"
                       : e->sample_rate >= 16000 ? "8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144 and 160"
                                                 : "8, 16, 24, 32, 40, 48, 56 and 64");
    float scale = lame_get_scale(mp3->lame);
    mp3->gain = scale > 0 ? 1 / scale : 1;
    return THESPIS_OK;
}

static thespis_status take(struct th_bytes *out, int made, thespis_error *error)
{
    if (made < 0) return th_fail(error, THESPIS_MEMORY, "the MP3 encoder failed (%d)", made);
    out->count += (size_t)made;
    return THESPIS_OK;
}

static thespis_status mp3_write(struct th_encoder *e, const float *samples, size_t count, struct th_bytes *out,
                                thespis_error *error)
{
    struct mp3 *mp3 = e->state;
    size_t room = ROOM(count);
    TH_TRY(th_bytes_reserve(out, room, error));
    for (size_t i = 0; i < count; i++) mp3->block[i] = samples[i] * mp3->gain;
    uint8_t *to = out->at + out->count;
    return take(out, lame_encode_buffer_ieee_float(mp3->lame, mp3->block, mp3->block, (int)count, to, (int)room), error);
}

static thespis_status mp3_finish(struct th_encoder *e, struct th_bytes *out, thespis_error *error)
{
    size_t room = ROOM(0);
    TH_TRY(th_bytes_reserve(out, room, error));
    struct mp3 *mp3 = e->state;
    return take(out, lame_encode_flush(mp3->lame, out->at + out->count, (int)room), error);
}

static void mp3_close(struct th_encoder *e)
{
    struct mp3 *mp3 = e->state;
    if (mp3 == NULL) return;
    if (mp3->lame != NULL) lame_close(mp3->lame);
    th_free(mp3);
}

const struct th_encode_steps th_encode_mp3 = {MP3_FRAME, 0, mp3_open, NULL, mp3_write, mp3_finish, mp3_close};
