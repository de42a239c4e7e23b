/* look.c - see look.h. */
#include "engine/look.h"

#include <math.h>
#include <string.h>

#include "audio/codes.h"
#include "audio/recording.h"
#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/config.h"
#include "engine/voice_file.h"

#define MOST_SECONDS 3600.0

static double seconds_of(size_t frames)
{
    return (double)frames * THESPIS_FRAME_SAMPLES / THESPIS_SAMPLE_RATE;
}

/* dB of an amplitude; silence is shown as -120. */
static double decibels(double amplitude)
{
    return amplitude > 1e-6 ? 20 * log10(amplitude) : -120;
}

/* Keeps facts, or frees all when they could not be made. */
static thespis_status keep(json_t *facts, struct th_look *look, thespis_error *error)
{
    look->facts = facts;
    if (facts != NULL) return THESPIS_OK;
    th_look_free(look);
    return th_fail(error, THESPIS_MEMORY, "memory is short, or a name is not UTF-8");
}

/* ---- recordings -------------------------------------------------------------------------------------------------------------- */

thespis_status th_look_recording(const char *path, struct th_look *look, thespis_error *error)
{
    struct th_recording r;
    double peak = 0, sum = 0;
    *look = (struct th_look){0};
    TH_TRY(th_recording_read_file(path, MOST_SECONDS, &r, error));
    for (size_t i = 0; i < r.count; i++) {
        peak = fmax(peak, fabs((double)r.samples[i]));
        sum += (double)r.samples[i] * (double)r.samples[i];
    }
    look->samples = r.samples;
    look->count = r.count;
    json_t *facts = json_pack("{s:s, s:s, s:i, s:i, s:f, s:f, s:f}", "file", path, "container", r.container, "rate", r.source_rate,
                              "channels", r.source_channels, "seconds", (double)r.count / THESPIS_SAMPLE_RATE, "peak_db",
                              decibels(peak), "loudness_db", decibels(r.count > 0 ? sqrt(sum / (double)r.count) : 0));
    return keep(facts, look, error);
}

/* ---- codes ------------------------------------------------------------------------------------------------------------------- */

/* How many different codes each codebook has among its frames. */
static json_t *count_different(const struct th_look *look)
{
    json_t *counts = json_array();
    uint8_t *seen;
    if (TH_ALLOC(&seen, (size_t)look->codebook_size, "codes", NULL) != THESPIS_OK) {
        json_decref(counts);
        return NULL;
    }
    for (int b = 0; b < look->codebooks; b++) {
        int different = 0;
        memset(seen, 0, (size_t)look->codebook_size);
        for (size_t f = 0; f < look->frames; f++) {
            uint8_t *code = &seen[look->codes[(size_t)b * look->frames + f]];
            different += !*code;
            *code = 1;
        }
        json_array_append_new(counts, json_integer(different));
    }
    th_free(seen);
    return counts;
}

thespis_status th_look_codes(const char *folder, const char *path, struct th_look *look, thespis_error *error)
{
    struct th_config config;
    struct th_codes codes;
    char *name;
    *look = (struct th_look){0};
    TH_TRY(th_path_join(folder, "config.json", &name, error));
    thespis_status status = th_config_read(name, &config, error);
    th_free(name);
    if (status != THESPIS_OK) return status;
    look->codebooks = config.tower.codebooks;
    look->codebook_size = config.tower.codebook_size;
    TH_TRY(th_codes_read(path, look->codebooks, look->codebook_size, &codes, error));
    look->codes = codes.codes;
    look->frames = codes.frames;
    json_t *facts =
        json_pack("{s:s, s:i, s:I, s:f, s:o?}", "file", path, "codebooks", look->codebooks, "frames", (json_int_t)look->frames,
                  "seconds", seconds_of(look->frames), "different_codes", count_different(look));
    return keep(facts, look, error);
}

/* ---- voices ------------------------------------------------------------------------------------------------------------------ */

/* All references' codes, one after another: a list of [books][frames] becomes one. */
static thespis_status join_codes(const struct th_voice_file *file, struct th_look *look, thespis_error *error)
{
    look->codebooks = file->books;
    look->frames = th_voice_file_frames(file);
    TH_TRY(TH_ALLOC(&look->codes, (size_t)file->books * look->frames, "codes", error));
    size_t at = 0;
    for (size_t i = 0; i < file->count; i++) {
        const struct th_voice_reference *r = &file->references[i];
        for (int b = 0; b < file->books; b++)
            for (size_t f = 0; f < r->frames; f++) {
                int32_t code = r->codes[(size_t)b * r->frames + f];
                look->codes[(size_t)b * look->frames + at + f] = code;
                if (code >= look->codebook_size) look->codebook_size = code + 1;
            }
        at += r->frames;
    }
    return THESPIS_OK;
}

static json_t *describe_references(const struct th_voice_file *file)
{
    json_t *list = json_array();
    for (size_t i = 0; i < file->count; i++) {
        const struct th_voice_reference *r = &file->references[i];
        json_array_append_new(list, json_pack("{s:s%, s:I, s:f, s:b}", "transcript", r->transcript, r->transcript_bytes, "frames",
                                              (json_int_t)r->frames, "seconds", seconds_of(r->frames), "recording_kept",
                                              r->suffix[0] != '\0'));
    }
    return list;
}

thespis_status th_look_voice(const char *path, struct th_look *look, thespis_error *error)
{
    struct th_voice_file file;
    *look = (struct th_look){0};
    TH_TRY(th_voice_file_read(path, 1, &file, error));
    thespis_status status = join_codes(&file, look, error);
    json_t *facts =
        json_pack("{s:s, s:s, s:s?, s:i, s:I, s:f, s:o?, s:o?}", "name", file.name, "codec_id", file.codec_id, "language",
                  file.language, "codebooks", file.books, "frames", (json_int_t)look->frames, "seconds", seconds_of(look->frames),
                  "different_codes", status == THESPIS_OK ? count_different(look) : NULL, "references", describe_references(&file));
    th_voice_file_free(&file);
    if (status == THESPIS_OK) return keep(facts, look, error);
    json_decref(facts);
    th_look_free(look);
    return status;
}

thespis_status th_look_stored_voice(const struct th_voice_store *store, const char *name, struct th_look *look,
                                    thespis_error *error)
{
    char *path;
    int builtin;
    *look = (struct th_look){0};
    TH_TRY(th_voice_store_find(store, name, &path, &builtin, error));
    if (path == NULL)
        return th_fail(error, THESPIS_INVALID, "there is no voice named '%.60s': thespis voice list names those there are", name);
    thespis_status status = th_look_voice(path, look, error);
    th_free(path);
    return status;
}

void th_look_free(struct th_look *look)
{
    json_decref(look->facts);
    th_free(look->samples);
    th_free(look->codes);
    *look = (struct th_look){0};
}
