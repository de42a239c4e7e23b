/* surprise.c - see surprise.h. The probabilities come out of the engine's own check (engine/check.h), which forces given frames. */
#include "surprise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/npy.h"
#include "checkpoint/config.h"
#include "engine/check.h"
#include "engine/voice_file.h"

struct sums {
    double token, code;
    int64_t tokens, codes;
};

static double surprise_of(const struct th_npy *logits, int64_t row, int64_t n, int64_t which)
{
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, th_npy_float(logits, row * n + i));
    for (int64_t i = 0; i < n; i++) sum += exp(th_npy_float(logits, row * n + i) - most);
    return log(sum) + most - th_npy_float(logits, row * n + which);
}

/* Label row i is [main token, code 0, code 1, ...]. Candidate 0 is end of speech, 1 + c the main token of code c; code 0 follows
 * from the main token, so the tower's heads are those of codes 1 and up. */
static thespis_status add_up(const char *folder, const struct th_npy *labels, struct sums *sums, thespis_error *error)
{
    char path[300];
    struct th_npy main = {0}, codes = {0};
    snprintf(path, sizeof path, "%s/candidate_logits.npy", folder);
    thespis_status status = th_npy_read(path, (size_t)1 << 28, &main, error);
    snprintf(path, sizeof path, "%s/code_logits.npy", folder);
    if (status == THESPIS_OK) status = th_npy_read(path, (size_t)1 << 28, &codes, error);
    int64_t frames = labels->shape[0], width = labels->shape[1];
    for (int64_t i = 0; i < frames && status == THESPIS_OK; i++) {
        sums->token += surprise_of(&main, i, main.shape[1], 1 + th_npy_int(labels, i * width + 1));
        sums->tokens++;
        for (int64_t head = 0; head < codes.shape[1]; head++, sums->codes++)
            sums->code += surprise_of(&codes, i * codes.shape[1] + head, codes.shape[2], th_npy_int(labels, i * width + 2 + head));
    }
    th_npy_free(&main);
    th_npy_free(&codes);
    return status;
}

/* labels.npy: the voice's frames as the network would have drawn them. */
static thespis_status write_labels(const char *path, const struct th_voice_file *voice, int start, thespis_error *error)
{
    int64_t shape[2] = {(int64_t)voice->references[0].frames, 1 + voice->books};
    int32_t *labels;
    TH_TRY(TH_ALLOC(&labels, (size_t)(shape[0] * shape[1]), "labels", error));
    for (int64_t i = 0; i < shape[0]; i++)
        for (int b = 0; b < voice->books; b++) labels[i * shape[1] + 1 + b] = voice->references[0].codes[b * shape[0] + i];
    for (int64_t i = 0; i < shape[0]; i++) labels[i * shape[1]] = start + labels[i * shape[1] + 1];
    thespis_status status = th_npy_write(path, "<i4", 2, shape, labels, error);
    th_free(labels);
    return status;
}

static thespis_status write_request(const char *path, int tag, const char *text, thespis_error *error)
{
    json_t *request = json_pack("{s:o, s:[], s:i, s:i}", "text", json_sprintf("<|speaker:%d|> %s", tag, text), "references", "seed",
                                1, "max_frames", 1);
    int written = request != NULL && json_dump_file(request, path, 0) == 0;
    json_decref(request);
    return written ? THESPIS_OK : th_fail(error, THESPIS_IO, "cannot write '%s'", path);
}

static void ignore_line(void *context, const char *line)
{
    (void)context;
    (void)line;
}

static thespis_status measure_voice(const char *checkpoint, const char *folder, const char *name, int tag, struct sums *sums,
                                    thespis_error *error)
{
    char path[700], request[300], frames[300];
    struct th_config config;
    struct th_voice_file voice;
    struct th_npy labels;
    snprintf(path, sizeof path, "%s/config.json", checkpoint);
    TH_TRY(th_config_read(path, &config, error));
    snprintf(path, sizeof path, "%s/voices/%s" TH_VOICE_ENDING, checkpoint, name);
    TH_TRY(th_voice_file_read(path, 1, &voice, error));
    snprintf(request, sizeof request, "%s/request.json", folder);
    snprintf(frames, sizeof frames, "%s/labels.npy", folder);
    thespis_status status = write_request(request, tag, voice.references[0].transcript, error);
    if (status == THESPIS_OK) status = write_labels(frames, &voice, config.semantic_start, error);
    th_voice_file_free(&voice);
    struct th_check_options check = {.request = request, .frames = frames, .out = folder};
    int differences;
    thespis_engine_options_init(&check.engine);
    check.engine.checkpoint = checkpoint;
    check.engine.backend = THESPIS_BACKEND_CPU;
    check.engine.max_rows = 512;
    if (status == THESPIS_OK) status = th_check_run(&check, ignore_line, NULL, &differences, error);
    if (status == THESPIS_OK) status = th_npy_read(frames, (size_t)1 << 20, &labels, error);
    if (status != THESPIS_OK) return status;
    status = add_up(folder, &labels, sums, error);
    th_npy_free(&labels);
    return status;
}

thespis_status surprise_measure(const char *checkpoint, const char *const *voices, int count, double *token, double *code,
                                thespis_error *error)
{
    char folder[] = "/tmp/thespis-surprise-XXXXXX", command[100];
    struct sums sums = {0};
    if (mkdtemp(folder) == NULL) return th_fail_errno(error, "cannot make '%s'", folder);
    thespis_status status = THESPIS_OK;
    for (int v = 0; v < count && status == THESPIS_OK; v++) status = measure_voice(checkpoint, folder, voices[v], v, &sums, error);
    snprintf(command, sizeof command, "rm -r %s", folder);
    if (system(command) != 0 && status == THESPIS_OK) status = th_fail(error, THESPIS_IO, "cannot remove '%s'", folder);
    *token = sums.token / (double)(sums.tokens > 0 ? sums.tokens : 1);
    *code = sums.code / (double)(sums.codes > 0 ? sums.codes : 1);
    return status;
}
