/* sniff.c - names the kinds of files that people bring and that cannot be read, so that a refusal says what it saw. */
#include <string.h>

#include "audio/mono.h"

struct kind {
    const char *name;
    size_t at; /* where the mark lies */
    const char *mark;
    size_t bytes;
};

#define MARK(name, at, mark)                                                                                                       \
    {                                                                                                                              \
        name, at, mark, sizeof(mark) - 1                                                                                           \
    }

static const struct kind kinds[] = {
    MARK("WebM or Matroska", 0, "\x1A\x45\xDF\xA3"),
    MARK("MP4 (M4A, AAC)", 4, "ftyp"),
    MARK("WMA or WMV (ASF)", 0, "\x30\x26\xB2\x75\x8E\x66\xCF\x11"),
    MARK("AVI video", 8, "AVI "),
    MARK("AMR", 0, "#!AMR"),
    MARK("MIDI", 0, "MThd"),
    MARK("FLV video", 0, "FLV\x01"),
    MARK("Monkey's Audio", 0, "MAC "),
    MARK("WavPack", 0, "wvpk"),
    MARK("a .npy array", 0, "\x93NUMPY"),
    MARK("a ZIP archive", 0, "PK\x03\x04"),
    MARK("a gzip archive", 0, "\x1F\x8B"),
    MARK("a PDF document", 0, "%PDF"),
    MARK("a PNG picture", 0, "\x89PNG"),
    MARK("a JPEG picture", 0, "\xFF\xD8\xFF"),
    MARK("an HTML page", 0, "<!DOCTYPE"),
    MARK("an HTML page", 0, "<!doctype"),
    MARK("an HTML page", 0, "<html"),
};

const char *th_sniff_refused(const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const struct kind *k = &kinds[i];
        if (count >= k->at + k->bytes && memcmp(at + k->at, k->mark, k->bytes) == 0) return k->name;
    }
    /* An AAC stream begins like an MP3 frame, but with layer 0. */
    if (count >= 2 && at[0] == 0xFF && (at[1] & 0xF6) == 0xF0) return "an AAC stream";
    return NULL;
}
