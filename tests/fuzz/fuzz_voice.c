/* fuzz_voice.c - a voice file. */
#include "fuzz.h"

#include "engine/voice_file.h"

static void fuzz(const uint8_t *data, size_t size)
{
    struct th_voice_file file;
    thespis_error error;
    if (!fuzz_told(th_voice_file_read(fuzz_file(data, size), 1, &file, &error), &error)) return;
    if (file.count < 1 || file.count > THESPIS_MAX_SPEAKERS || strchr(file.name, '/') != NULL) fuzz_bad("voice", file.name);
    for (size_t i = 0; i < file.count; i++)
        for (size_t k = 0; k < (size_t)file.books * file.references[i].frames; k++)
            if (file.references[i].codes[k] < 0) fuzz_bad("voice", "a negative code");
    th_voice_file_free(&file);
}

FUZZ_TARGET
