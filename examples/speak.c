/* speak.c - the smallest program that speaks: text in, raw 16-bit samples out as they come.
 *
 *     cc speak.c $(pkg-config --cflags --libs thespis) -o speak
 *     ./speak CHECKPOINT "Hello there." out.pcm
 *
 * With a seed as fourth argument it says the same bytes every time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "thespis.h"

static int complain(const thespis_error *error)
{
    fprintf(stderr, "speak: %s\n", error->message);
    return 1;
}

/* Reads audio as it is made and writes it at once. */
static thespis_status stream(thespis_request *request, FILE *out, thespis_error *error)
{
    float samples[4096];
    size_t count;
    for (;;) {
        thespis_status status = thespis_request_read(request, samples, 4096, &count, error);
        if (status != THESPIS_OK || count == 0) return status;
        for (size_t i = 0; i < count; i++) {
            short s16 = (short)(samples[i] * 32767.0); /* samples lie in [-1, 1] */
            if (fwrite(&s16, sizeof s16, 1, out) != 1) {
                snprintf(error->message, sizeof error->message, "cannot write");
                return THESPIS_IO;
            }
        }
    }
}

int main(int argc, char **argv)
{
    thespis_error error;
    thespis_engine_options options;
    thespis_engine *engine;
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "usage: speak CHECKPOINT TEXT OUT.pcm [SEED]\n");
        return 2;
    }
    thespis_engine_options_init(&options);
    options.checkpoint = argv[1];
    if (thespis_engine_open(&options, &engine, &error) != THESPIS_OK) return complain(&error);

    thespis_request_options ask;
    thespis_request *request;
    thespis_request_options_init(&ask);
    ask.text = argv[2];
    ask.text_bytes = strlen(argv[2]);
    if (argc == 5) ask.seed = strtoull(argv[4], NULL, 10);
    thespis_status status = thespis_request_start(engine, &ask, &request, &error);

    FILE *out = status == THESPIS_OK ? fopen(argv[3], "wb") : NULL;
    if (status == THESPIS_OK && out == NULL) {
        snprintf(error.message, sizeof error.message, "cannot open %s", argv[3]);
        status = THESPIS_IO;
    }
    if (status == THESPIS_OK) status = stream(request, out, &error);
    if (out != NULL && fclose(out) != 0 && status == THESPIS_OK) {
        snprintf(error.message, sizeof error.message, "cannot write all of %s", argv[3]);
        status = THESPIS_IO;
    }
    thespis_request_free(request);
    thespis_engine_close(engine);
    return status == THESPIS_OK ? 0 : complain(&error);
}
