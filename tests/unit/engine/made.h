/* made.h - what the tests of whole requests on generated checkpoints share: a checkpoint from its seed, an engine, a request, and
 * the print of its samples. */
#ifndef TESTS_UNIT_ENGINE_MADE_H
#define TESTS_UNIT_ENGINE_MADE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/safetensors.h"
#include "engine/inspect.h"
#include "thespis.h"

#define MADE_FOLDER TEST_BINARY_DIR "/engine-checkpoints"

/* FNV-1a over all samples, and their count. */
struct made_print {
    uint64_t hash;
    size_t count;
};

static inline struct made_print made_print_begin(void)
{
    return (struct made_print){14695981039346656037u, 0};
}

static inline void made_print_add(struct made_print *print, const float *samples, size_t count)
{
    for (size_t i = 0; i < count * sizeof(float); i++)
        print->hash = (print->hash ^ ((const unsigned char *)samples)[i]) * 1099511628211u;
    print->count += count;
}

/* Has make_checkpoint write MADE_FOLDER/NAME. Programs run side by side: each takes names of its own. */
static inline void made_checkpoint(const char *preset, const char *name)
{
    char command[2000];
    snprintf(command, sizeof command,
             "mkdir -p '" MADE_FOLDER "' && '" TEST_BINARY_DIR "/make_checkpoint' --preset %s --seed 3 '" MADE_FOLDER
             "/%s' >/dev/null",
             preset, name);
    assert_int_equal(system(command), 0);
}

/* Number of tokens of a text, and the first of them. */
static inline int made_tokens(const char *folder, const char *text, json_int_t *first)
{
    json_t *tree;
    thespis_error error;
    if (th_inspect_tokens(folder, text, strlen(text), &tree, &error) != THESPIS_OK) fail_msg("%s", error.message);
    const json_t *ids = json_object_get(tree, "ids");
    int count = (int)json_array_size(ids);
    *first = json_integer_value(json_array_get(ids, 0));
    json_decref(tree);
    return count;
}

/* Sets a token's row of a bf16 matrix [vocabulary][..], or all rows for NULL, to one value. */
static inline void made_fill_row(const char *folder, const char *matrix, const char *token, uint16_t value)
{
    char path[600];
    struct th_safetensors file;
    thespis_error error;
    json_int_t id = 0;
    if (token != NULL) assert_int_equal(made_tokens(folder, token, &id), 1);
    snprintf(path, sizeof path, "%s/model-00001-of-00001.safetensors", folder);
    if (th_safetensors_open(path, &file, &error) != THESPIS_OK) fail_msg("%s", error.message);
    const struct th_tensor *tensor = th_safetensors_find(&file, matrix);
    if (tensor == NULL) fail_msg("no tensor %s", matrix);
    assert_int_equal(tensor->dtype, TH_BF16);
    int64_t columns = tensor->shape[1], count = token != NULL ? columns : columns * tensor->shape[0];
    long at = (long)((const uint8_t *)tensor->data - file.map.data) + (long)(id * columns * 2);
    th_safetensors_close(&file);
    FILE *out = fopen(path, "r+b");
    assert_non_null(out);
    assert_int_equal(fseek(out, at, SEEK_SET), 0);
    for (int64_t i = 0; i < count; i++) assert_int_equal(fwrite(&value, 2, 1, out), 1);
    assert_int_equal(fclose(out), 0);
}

/* A checkpoint whose greedy speech never ends by itself: the logit of its end is 0, and one of the others is above. */
static inline void made_endless(const char *name, const char *folder)
{
    made_checkpoint("edges", name);
    made_fill_row(folder, "lm_head.weight", "<|im_end|>", 0);
}

/* The CPU, whatever the machine has; THESPIS_TEST_BACKEND=cuda asks for the other (gpu-check does). */
static inline thespis_engine_options made_options(const char *folder, int lanes, int max_rows)
{
    thespis_engine_options o;
    const char *wanted = getenv("THESPIS_TEST_BACKEND");
    thespis_engine_options_init(&o);
    o.backend = wanted != NULL && strcmp(wanted, "cuda") == 0 ? THESPIS_BACKEND_CUDA : THESPIS_BACKEND_CPU;
    o.checkpoint = folder;
    o.lanes = lanes;
    o.max_rows = max_rows;
    o.threads = 2;
    return o;
}

static inline thespis_engine *made_open(const thespis_engine_options *options)
{
    thespis_engine *engine;
    thespis_error error;
    if (thespis_engine_open(options, &engine, &error) != THESPIS_OK) fail_msg("%s", error.message);
    return engine;
}

static inline thespis_request_options made_request(const char *text, const thespis_voice *voice, uint64_t seed, int max_frames)
{
    thespis_request_options o;
    thespis_request_options_init(&o);
    o.text = text;
    o.text_bytes = strlen(text);
    o.voice = voice;
    o.seed = seed;
    o.max_frames = max_frames;
    return o;
}

static inline thespis_request *made_start(thespis_engine *engine, const thespis_request_options *options)
{
    thespis_request *request;
    thespis_error error;
    if (thespis_request_start(engine, options, &request, &error) != THESPIS_OK) fail_msg("%s", error.message);
    return request;
}

static inline void made_refused(thespis_engine *engine, const thespis_request_options *options, thespis_status status,
                                const char *word)
{
    thespis_request *request = (thespis_request *)&status;
    thespis_error error;
    assert_int_equal(thespis_request_start(engine, options, &request, &error), status);
    assert_null(request);
    if (strstr(error.message, word) == NULL) fail_msg("'%s' does not name '%s'", error.message, word);
}

/* Reads to the end or to a failure. */
static inline thespis_status made_drain(thespis_request *request, struct made_print *print, thespis_error *error)
{
    float samples[3000];
    size_t count;
    thespis_status status;
    *print = made_print_begin();
    while ((status = thespis_request_read(request, samples, 3000, &count, error)) == THESPIS_OK && count > 0)
        made_print_add(print, samples, count);
    return status;
}

/* A whole request that must succeed. */
static inline thespis_outcome made_speak(thespis_engine *engine, const thespis_request_options *options, struct made_print *print)
{
    thespis_request *request = made_start(engine, options);
    thespis_outcome outcome = {.size = sizeof outcome};
    thespis_error error;
    if (made_drain(request, print, &error) != THESPIS_OK) fail_msg("%s", error.message);
    assert_int_equal(thespis_request_get_outcome(request, &outcome, &error), THESPIS_OK);
    assert_int_equal(print->count, (size_t)outcome.frames * THESPIS_FRAME_SAMPLES);
    thespis_request_free(request);
    return outcome;
}

static inline void made_same(struct made_print want, struct made_print got, const char *when)
{
    if (want.hash != got.hash || want.count != got.count)
        fail_msg("%s: %zu samples with hash %016llx, not %zu with %016llx", when, got.count, (unsigned long long)got.hash,
                 want.count, (unsigned long long)want.hash);
}

#endif
