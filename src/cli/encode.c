/* encode.c - `thespis encode`: a recording becomes codes. */
#include "cli/options.h"
#include "engine/files.h"

static thespis_status encode(const struct cli_settings *s, const thespis_engine_options *options, size_t *frames,
                             thespis_error *error)
{
    thespis_engine *engine;
    thespis_engine_info info = {.size = sizeof info};
    int32_t *codes = NULL;
    TH_TRY(thespis_engine_open(options, &engine, error));
    thespis_status status = thespis_encode_file(engine, s->words[0], s->max_seconds, &codes, frames, error);
    if (status == THESPIS_OK) status = thespis_engine_get_info(engine, &info, error);
    if (status == THESPIS_OK) status = th_codes_write(s->out, codes, info.codebooks, *frames, error);
    thespis_codes_free(codes);
    thespis_engine_close(engine);
    return status;
}

int cli_encode(const struct cli_settings *settings)
{
    if (settings->word_count != 1) return cli_misuse("encode takes one RECORDING");
    if (cli_replaces("--out", settings->out, settings->words[0]) != 0) return 2;
    struct cli_progress progress = {0};
    thespis_engine_options options;
    int bad = cli_engine_options(settings, 1, &options);
    if (bad != 0) return bad;
    options.max_rows = 0;
    if (cli_watched(settings)) {
        options.progress = cli_progress_draw;
        options.progress_context = &progress;
    }
    thespis_error error;
    size_t frames;
    if (encode(settings, &options, &frames, &error) != THESPIS_OK) return cli_fail(&error);
    if (!settings->quiet)
        fprintf(stderr, "%zu frames, %.2f s of audio\n", frames, (double)frames * THESPIS_FRAME_SAMPLES / THESPIS_SAMPLE_RATE);
    return 0;
}
