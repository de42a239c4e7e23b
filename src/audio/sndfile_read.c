/* sndfile_read.c - recordings through libsndfile, from memory: FLAC, Ogg, AIFF and the rest. It tells kinds by content. */
#include <sndfile.h>
#include <stdio.h>
#include <string.h>

#include "audio/mono.h"
#include "audio/recording.h"
#include "base/memory.h"

#define BLOCK_FRAMES 4096

/* The file that libsndfile believes to read. */
struct memory_file {
    const uint8_t *bytes;
    sf_count_t count, at;
};

static sf_count_t memory_length(void *file)
{
    return ((struct memory_file *)file)->count;
}

static sf_count_t memory_seek(sf_count_t offset, int whence, void *file)
{
    struct memory_file *m = file;
    sf_count_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? m->at : m->count, to;
    if (__builtin_add_overflow(base, offset, &to) || to < 0) return -1;
    m->at = to < m->count ? to : m->count;
    return m->at;
}

static sf_count_t memory_read(void *out, sf_count_t wanted, void *file)
{
    struct memory_file *m = file;
    sf_count_t n = m->count - m->at < wanted ? m->count - m->at : wanted;
    if (n <= 0) return 0;
    memcpy(out, m->bytes + m->at, (size_t)n);
    m->at += n;
    return n;
}

static sf_count_t memory_write(const void *bytes, sf_count_t count, void *file)
{
    (void)bytes;
    (void)count;
    (void)file;
    return 0;
}

static sf_count_t memory_tell(void *file)
{
    return ((struct memory_file *)file)->at;
}

static void name_container(int format, char name[24])
{
    static const struct {
        int format;
        const char *name;
    } kinds[] = {{SF_FORMAT_WAV, "WAV"}, {SF_FORMAT_WAVEX, "WAV"}, {SF_FORMAT_RF64, "WAV"},  {SF_FORMAT_FLAC, "FLAC"},
                 {SF_FORMAT_OGG, "Ogg"}, {SF_FORMAT_MPEG, "MP3"},  {SF_FORMAT_AIFF, "AIFF"}, {SF_FORMAT_AU, "AU"},
                 {SF_FORMAT_CAF, "CAF"}, {SF_FORMAT_W64, "W64"}};
    const char *found = "audio file";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].format == (format & SF_FORMAT_TYPEMASK)) found = kinds[i].name;
    if ((format & SF_FORMAT_SUBMASK) == SF_FORMAT_OPUS) found = "Ogg Opus";
    if ((format & SF_FORMAT_SUBMASK) == SF_FORMAT_VORBIS) found = "Ogg Vorbis";
    snprintf(name, 24, "%s", found);
}

static thespis_status check_info(const SF_INFO *info, struct th_mono *mono, thespis_error *error)
{
    name_container(info->format, mono->container);
    if (info->channels < 1 || info->channels > TH_CHANNELS_MAX)
        return th_fail(error, THESPIS_FORMAT, "%s: %d channels, 1 to %d are read", mono->name, info->channels, TH_CHANNELS_MAX);
    if (info->samplerate < TH_RATE_MIN || info->samplerate > TH_RATE_MAX)
        return th_fail(error, THESPIS_FORMAT, "%s: sample rate is %d, must be %d to %d", mono->name, info->samplerate, TH_RATE_MIN,
                       TH_RATE_MAX);
    mono->rate = info->samplerate;
    mono->channels = info->channels;
    return THESPIS_OK;
}

/* Whatever length the header claims, reading ends at the end or at the limit. */
static thespis_status read_blocks(SNDFILE *file, struct th_mono *mono, thespis_error *error)
{
    float *block;
    TH_TRY(TH_ALLOC(&block, (size_t)BLOCK_FRAMES * (size_t)mono->channels, "a block of audio", error));
    thespis_status status = THESPIS_OK;
    while (status == THESPIS_OK) {
        sf_count_t frames = sf_readf_float(file, block, BLOCK_FRAMES);
        if (frames <= 0) break;
        status = th_mono_add(mono, block, (size_t)frames, error);
    }
    if (status == THESPIS_OK && sf_error(file) != SF_ERR_NO_ERROR)
        status = th_fail(error, THESPIS_FORMAT, "%s: damaged %s data after %zu samples: %s", mono->name, mono->container,
                         mono->count, sf_strerror(file));
    th_free(block);
    return status;
}

thespis_status th_sndfile_decode(const void *bytes, size_t count, struct th_mono *mono, thespis_error *error)
{
    SF_VIRTUAL_IO io = {
        .get_filelen = memory_length, .seek = memory_seek, .read = memory_read, .write = memory_write, .tell = memory_tell};
    struct memory_file memory = {.bytes = bytes, .count = (sf_count_t)count};
    SF_INFO info = {0};
    SNDFILE *file = sf_open_virtual(&io, SFM_READ, &info, &memory);
    /* Why it failed is kept by libsndfile in a variable that all threads share, so it is not asked. */
    if (file == NULL)
        return th_fail(error, THESPIS_FORMAT, "%s: not a recording that can be read (%zu bytes); WAV, FLAC, Ogg, MP3 and AIFF are",
                       mono->name, count);
    thespis_status status = check_info(&info, mono, error);
    if (status == THESPIS_OK) status = read_blocks(file, mono, error);
    sf_close(file);
    return status;
}
