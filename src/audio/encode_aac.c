/* encode_aac.c - AAC (low complexity, ADTS) by vo-aacenc: constant bit rate, mono.
 *
 * The encoder takes 16-bit samples, a frame of 1,024 at a time. What a decoder hears begins 1,600 samples late; silence at the end
 * pushes the last of the speech out. */
#include <string.h>
#include <vo-aacenc/voAAC.h>

#include "audio/encode_parts.h"
#include "audio/wav.h"
#include "base/memory.h"

#define AAC_FRAME 1024
#define AAC_DELAY 1600
#define AAC_MOST 160        /* kb/s of one channel; beyond it vo-aacenc takes something else */
#define ADTS_FRAME_MAX 8192 /* 13 bits of length */

#define BLOCKS_MAX 32

struct aac {
    VO_AUDIO_CODECAPI api;
    VO_HANDLE handle;
    VO_MEM_OPERATOR memory;   /* the handle points here */
    void *blocks[BLOCKS_MAX]; /* that the library took while it opened */
    int64_t samples;          /* so far, silence too */
    int16_t block[AAC_FRAME];
};

/* ---- memory for the library: ours, so that tests can make it fail ------------------------------------------------------------ */

/* An encoder that could not be opened is not released by the library, and its callbacks do not tell whose memory they are asked
 * for. It takes memory only while it opens, on the thread that opens it: that thread notes what is out. */
static _Thread_local struct aac *opening;

static void **note(const void *block)
{
    for (int i = 0; opening != NULL && i < BLOCKS_MAX; i++)
        if (opening->blocks[i] == block) return &opening->blocks[i];
    return NULL;
}

static VO_U32 take_memory(VO_S32 id, VO_MEM_INFO *info)
{
    (void)id;
    void **place = note(NULL);
    info->VBuffer = place != NULL && info->Size > 0 ? th_alloc((size_t)info->Size, 1) : NULL;
    if (info->VBuffer == NULL) return VO_ERR_OUTOF_MEMORY;
    *place = info->VBuffer;
    return VO_ERR_NONE;
}

static VO_U32 give_memory(VO_S32 id, VO_PTR block)
{
    (void)id;
    void **place = block != NULL ? note(block) : NULL;
    if (place != NULL) *place = NULL;
    th_free(block);
    return VO_ERR_NONE;
}

static VO_U32 set_memory(VO_S32 id, VO_PTR to, VO_U8 value, VO_U32 count)
{
    (void)id;
    memset(to, value, count);
    return VO_ERR_NONE;
}

static VO_U32 copy_memory(VO_S32 id, VO_PTR to, VO_PTR from, VO_U32 count)
{
    (void)id;
    memcpy(to, from, count);
    return VO_ERR_NONE;
}

static VO_U32 check_memory(VO_S32 id, VO_PTR block, VO_U32 count)
{
    (void)id, (void)block, (void)count;
    return VO_ERR_NONE;
}

/* ---- opening ----------------------------------------------------------------------------------------------------------------- */

static thespis_status check_rate(struct th_encoder *e, thespis_error *error)
{
    static const int rates[] = {8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (rates[i] == e->sample_rate) return THESPIS_OK;
    return th_fail(error, THESPIS_INVALID,
                   "sample_rate is %d, aac has 8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100 and 48000", e->sample_rate);
}

/* A frame has at most 6,144 bits, so that slow rates have less; more than there is becomes the most, as with mp3. */
static thespis_status check_bitrate(struct th_encoder *e, thespis_error *error)
{
    int most = e->sample_rate * 6 / 1000 < AAC_MOST ? e->sample_rate * 6 / 1000 : AAC_MOST;
    if (e->bitrate == 0) e->bitrate = e->format->bitrate;
    if (e->bitrate < 16 || e->bitrate > 320)
        return th_fail(error, THESPIS_INVALID, "bitrate is %d, aac at %d Hz has 16 to %d", e->bitrate, e->sample_rate, most);
    if (e->bitrate > most) e->bitrate = most;
    return THESPIS_OK;
}

static int open_library(struct aac *a)
{
    a->memory =
        (VO_MEM_OPERATOR){.Alloc = take_memory, .Free = give_memory, .Set = set_memory, .Copy = copy_memory, .Check = check_memory};
    VO_CODEC_INIT_USERDATA user = {.memflag = VO_IMF_USERMEMOPERATOR, .memData = &a->memory};
    opening = a;
    int opened = voGetAACEncAPI(&a->api) == VO_ERR_NONE && a->api.Init(&a->handle, VO_AUDIO_CodingAAC, &user) == VO_ERR_NONE;
    opening = NULL;
    if (opened) return 1;
    a->handle = NULL;
    for (int i = 0; i < BLOCKS_MAX; i++) th_free(a->blocks[i]);
    return 0;
}

static thespis_status aac_open(struct th_encoder *e, thespis_error *error)
{
    struct aac *a;
    TH_TRY(check_rate(e, error));
    TH_TRY(check_bitrate(e, error));
    TH_TRY(TH_ALLOC(&a, 1, "an AAC encoder", error));
    e->state = a;
    if (!open_library(a)) return th_fail_memory(error, "an AAC encoder", sizeof *a);
    AACENC_PARAM parameters = {.sampleRate = e->sample_rate, .bitRate = e->bitrate * 1000, .nChannels = 1, .adtsUsed = 1};
    if (a->api.SetParam(a->handle, VO_PID_AAC_ENCPARAM, &parameters) != VO_ERR_NONE)
        return th_fail(error, THESPIS_INVALID, "aac has no %d kb/s at %d Hz", e->bitrate, e->sample_rate);
    return THESPIS_OK;
}

/* ---- frames ------------------------------------------------------------------------------------------------------------------ */

/* The block as it is. */
static thespis_status encode_block(struct aac *a, struct th_bytes *out, thespis_error *error)
{
    TH_TRY(th_bytes_reserve(out, ADTS_FRAME_MAX, error));
    VO_CODECBUFFER in = {.Buffer = (VO_PBYTE)a->block, .Length = sizeof a->block};
    VO_CODECBUFFER made = {.Buffer = out->at + out->count, .Length = ADTS_FRAME_MAX};
    VO_AUDIO_OUTPUTINFO info;
    if (a->api.SetInputData(a->handle, &in) != VO_ERR_NONE || a->api.GetOutputData(a->handle, &made, &info) != VO_ERR_NONE)
        return th_fail(error, THESPIS_MEMORY, "the AAC encoder failed");
    out->count += made.Length;
    a->samples += AAC_FRAME;
    return THESPIS_OK;
}

static thespis_status aac_write(struct th_encoder *e, const float *samples, size_t count, struct th_bytes *out,
                                thespis_error *error)
{
    struct aac *a = e->state;
    memset(a->block, 0, sizeof a->block);
    for (size_t i = 0; i < count; i++) a->block[i] = th_sample_to_s16(samples[i]);
    TH_TRY(encode_block(a, out, error));
    a->samples -= (int64_t)(AAC_FRAME - count); /* the last may be short: its silence is part of the end */
    return THESPIS_OK;
}

static thespis_status aac_finish(struct th_encoder *e, struct th_bytes *out, thespis_error *error)
{
    struct aac *a = e->state;
    int64_t speech = a->samples, sent = (speech + AAC_FRAME - 1) / AAC_FRAME * AAC_FRAME;
    memset(a->block, 0, sizeof a->block);
    for (; sent < speech + AAC_DELAY; sent += AAC_FRAME) TH_TRY(encode_block(a, out, error));
    return THESPIS_OK;
}

static void aac_close(struct th_encoder *e)
{
    struct aac *a = e->state;
    if (a == NULL) return;
    if (a->handle != NULL) a->api.Uninit(a->handle);
    th_free(a);
}

const struct th_encode_steps th_encode_aac = {AAC_FRAME, 0, aac_open, NULL, aac_write, aac_finish, aac_close};
