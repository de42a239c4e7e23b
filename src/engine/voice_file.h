/* voice_file.h - one voice as a file: safetensors with the codes of each reference and, in its metadata, the words spoken and where
 * the codes come from.
 *
 *     tensors    reference.I.codes       I16 [codebooks][frames], I = 0, 1, ... without holes
 *     metadata   format                  "thespis-voice-1"
 *                name                    as it was added, lower case
 *                codec_id                of the codec that made the codes
 *                created                 seconds since 1970, decimal
 *                language, description, consent     as given; may be absent
 *                reference.I.transcript  may be empty
 *                reference.I.sha256, reference.I.suffix   of the recording kept beside the file; absent when it was made from codes
 *
 * The recording of reference I of "STEM.safetensors" lies beside it as "STEM.I.HASH.SUFFIX", HASH being the first 8 digits of its
 * SHA-256. The name is computed and never read, so that a file can name nothing but its own recordings. */
#ifndef THESPIS_ENGINE_VOICE_FILE_H
#define THESPIS_ENGINE_VOICE_FILE_H

#include "base/error.h"

#define TH_VOICE_FORMAT "thespis-voice-1"
#define TH_VOICE_ENDING ".safetensors"
#define TH_VOICE_HASH_DIGITS 8        /* of a recording's SHA-256, in its name */
#define TH_VOICE_NAME_MAX 255         /* bytes */
#define TH_VOICE_TRANSCRIPT_MAX 65536 /* bytes */
#define TH_VOICE_FACT_MAX 4096        /* bytes of language, description or consent */

struct th_voice_reference {
    char *transcript;
    size_t transcript_bytes;
    int32_t *codes; /* [books][frames], >= 0; NULL when read without them */
    size_t frames;  /* >= 1 */
    char suffix[8]; /* "wav", "flac", ...; "": no recording is kept */
    char sha256[65];
};

/* Strings are owned; language, description and consent may be NULL. */
struct th_voice_file {
    char name[TH_VOICE_NAME_MAX + 1];
    char codec_id[65];
    int64_t created;
    char *language, *description, *consent;
    int books;
    size_t count; /* 1..THESPIS_MAX_SPEAKERS */
    struct th_voice_reference *references;
};

/* Checks everything, whether the codes are kept or not: format, names, shapes, code values, transcripts. */
thespis_status th_voice_file_read(const char *path, int keep_codes, struct th_voice_file *file, thespis_error *error);
thespis_status th_voice_file_write(const char *path, const struct th_voice_file *file, thespis_error *error);
void th_voice_file_free(struct th_voice_file *file);

/* What would be a caller's mistake is the file's when it stands in one: INVALID and LIMIT become FORMAT. */
thespis_status th_voice_blame_file(thespis_status status, thespis_error *error);

size_t th_voice_file_frames(const struct th_voice_file *file); /* of all references */

/* Where the recording of reference `index` of the voice file at `path` lies; freed with th_free. */
thespis_status th_voice_recording_path(const char *path, const struct th_voice_reference *reference, size_t index, char **out,
                                       thespis_error *error);
/* How a recording's name ends, told by content. */
const char *th_voice_suffix(const void *bytes, size_t count);
int th_voice_is_suffix(const char *text);

#endif
