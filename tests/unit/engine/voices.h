/* voices.h - what the tests of stored voices share: two recordings, a store in a fresh folder, an engine that stores and one that
 * speaks. */
#ifndef TESTS_UNIT_ENGINE_VOICES_H
#define TESTS_UNIT_ENGINE_VOICES_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/safetensors.h"
#include "engine/engine.h"
#include "engine/voice_store.h"

#define STAGE TEST_SOURCE_DIR "/models/stage"
#define RATE 44100
#define WAV_HEAD 44

static thespis_engine *codec, *model; /* a codec alone stores, a model speaks */
static char root[] = "/tmp/thespis-voices-XXXXXX";
static int folders;

struct wav {
    uint8_t bytes[WAV_HEAD + 2 * RATE * 2];
    size_t count;
};

static inline void put32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> (8 * i));
}

/* A buzz of another pitch for each seed, 16 bits, mono. */
static inline void make_wav(struct wav *wav, int seed, double seconds, int amplitude)
{
    uint32_t n = (uint32_t)(seconds * RATE);
    memset(wav, 0, sizeof *wav);
    memcpy(wav->bytes, "RIFF____WAVEfmt \x10\0\0\0\1\0\1\0", 24);
    put32(wav->bytes + 4, 36 + 2 * n);
    put32(wav->bytes + 24, RATE);
    put32(wav->bytes + 28, 2 * RATE);
    memcpy(wav->bytes + 32, "\2\0\x10\0data", 8);
    put32(wav->bytes + 40, 2 * n);
    for (uint32_t i = 0; i < n; i++) {
        int16_t sample = (int16_t)((int)(i % (100 + (uint32_t)seed * 17)) * amplitude / 100 - amplitude / 2);
        memcpy(wav->bytes + WAV_HEAD + 2 * (size_t)i, &sample, 2);
    }
    wav->count = WAV_HEAD + 2 * (size_t)n;
}

static struct wav first, second;

static inline struct th_voice_input input_of(const struct wav *wav, const char *transcript)
{
    return (struct th_voice_input){
        .bytes = wav->bytes, .count = wav->count, .transcript = transcript, .transcript_bytes = strlen(transcript)};
}

/* A store in a folder that is not there yet. */
static inline struct th_voice_store new_store(void)
{
    struct th_voice_store store;
    thespis_error error;
    char path[200];
    snprintf(path, sizeof path, "%s/%d/voices", root, folders++);
    assert_int_equal(th_voice_store_open(path, NULL, &store, &error), THESPIS_OK);
    return store;
}

static inline void add(const struct th_voice_store *store, const char *name, const struct wav *wav, const char *transcript,
                       int replace)
{
    thespis_error error;
    struct th_voice_input input = input_of(wav, transcript);
    if (th_voice_store_add(store, codec, name, &input, 1, NULL, replace, NULL, &error) != THESPIS_OK) fail_msg("%s", error.message);
}

/* Files in a folder, ".lock" aside; -1: no folder. */
static inline int files_in(const char *folder)
{
    int count = 0;
    const struct dirent *item;
    DIR *dir = opendir(folder);
    if (dir == NULL) return -1;
    while ((item = readdir(dir)) != NULL) count += item->d_name[0] != '.';
    closedir(dir);
    return count;
}

static inline char *path_of(const struct th_voice_store *store, const char *name)
{
    char *path;
    int builtin;
    thespis_error error;
    assert_int_equal(th_voice_store_find(store, name, &path, &builtin, &error), THESPIS_OK);
    assert_non_null(path);
    return path;
}

static inline void assert_same_voice(const thespis_voice *a, const thespis_voice *b)
{
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        const struct th_prompt_reference *x = &a->references[i], *y = &b->references[i];
        assert_int_equal(x->frames, y->frames);
        assert_memory_equal(x->codes, y->codes, x->frames * (size_t)model->parts.codebooks * sizeof *x->codes);
        assert_int_equal(x->transcript_bytes, y->transcript_bytes);
        assert_memory_equal(x->transcript, y->transcript, x->transcript_bytes);
    }
}

static inline thespis_voice *load(const struct th_voice_store *store, const char *name)
{
    thespis_voice *voice;
    thespis_error error;
    if (th_voice_store_load(store, model, name, &voice, &error) != THESPIS_OK) fail_msg("%s", error.message);
    return voice;
}

static inline void assert_load_fails(const struct th_voice_store *store, const char *name, thespis_status status, const char *words)
{
    thespis_voice *voice = (thespis_voice *)1;
    thespis_error error = {0};
    assert_int_equal(th_voice_store_load(store, model, name, &voice, &error), status);
    assert_null(voice);
    if (strstr(error.message, words) == NULL) fail_msg("'%s' does not say '%s'", error.message, words);
}

static inline int set_up(void **state)
{
    thespis_engine_options o;
    thespis_error error;
    (void)state;
    if (mkdtemp(root) == NULL) return -1;
    make_wav(&first, 1, 0.55, 9000);
    make_wav(&second, 2, 0.75, 9000);
    thespis_engine_options_init(&o);
    o.backend = THESPIS_BACKEND_CPU;
    o.threads = 1;
    o.max_rows = 256;
    o.checkpoint = STAGE;
    if (thespis_engine_open(&o, &model, &error) != THESPIS_OK) return -1;
    o.checkpoint = NULL;
    o.codec = STAGE "/codec.pth";
    return thespis_engine_open(&o, &codec, &error) == THESPIS_OK ? 0 : -1;
}

static inline int tear_down(void **state)
{
    char command[100];
    (void)state;
    thespis_engine_close(codec);
    thespis_engine_close(model);
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

#endif
