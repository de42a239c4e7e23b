/* take.c - see take.h. */
#include "cli/take.h"

#include <string.h>

#include "base/file.h"
#include "cli/interrupt.h"
#include "cli/picture.h"

#define PIECE 8192 /* samples read at once */

static thespis_status start(const struct cli_take *t, thespis_request **request, thespis_error *error)
{
    const struct cli_settings *o = t->settings;
    thespis_request_options r;
    thespis_request_options_init(&r);
    r.text = t->text;
    r.text_bytes = t->text_bytes;
    r.voice = t->voice;
    r.temperature = (float)o->temperature;
    r.top_p = (float)o->top_p;
    r.top_k = (int32_t)o->top_k;
    if (t->seed >= 0) r.seed = (uint64_t)t->seed;
    r.greedy = o->greedy;
    r.max_frames = o->max_frames;
    r.first_chunk = o->first_chunk;
    r.chunk = o->chunk;
    r.strict_text = o->strict_text;
    r.granularity = cli_granularity(o);
    r.chunk_bytes = o->chunk_bytes;
    r.no_history = o->no_history;
    r.guard = o->guard;
    return thespis_request_start(t->engine, &r, request, error);
}

thespis_status cli_sound_open(const struct cli_settings *settings, const char *out, struct th_sound_file *sound,
                              thespis_error *error)
{
    const char *format = settings->format != NULL ? settings->format : th_sound_format_of(out);
    return th_sound_file_open(out, format, settings->sample_rate, settings->bitrate, sound, error);
}

/* Everything from the request into the sound, as it comes. */
static thespis_status pump(const struct cli_take *t, thespis_request *request, struct th_sound_file *sound,
                           struct cli_picture *picture, thespis_error *error)
{
    float samples[PIECE];
    size_t count, total = 0;
    for (;;) {
        TH_TRY(thespis_request_read(request, samples, PIECE, &count, error));
        if (count == 0) return THESPIS_OK;
        TH_TRY(th_sound_file_write(sound, samples, count, error));
        TH_TRY(cli_picture_add(picture, samples, count, error));
        total += count;
        if (t->heard != NULL) t->heard(t->context, total);
    }
}

/* ---- subtitles --------------------------------------------------------------------------------------------------------------- */

static int stamp(char out[32], int frame)
{
    int64_t ms = (int64_t)frame * THESPIS_FRAME_SAMPLES * 1000 / THESPIS_SAMPLE_RATE;
    return snprintf(out, 32, "%02lld:%02lld:%02lld,%03lld", (long long)(ms / 3600000), (long long)(ms / 60000 % 60),
                    (long long)(ms / 1000 % 60), (long long)(ms % 1000));
}

/* The chunk's words without <|speaker:N|> tags. */
static thespis_status write_words(struct th_output *out, const char *text, size_t bytes, thespis_error *error)
{
    static const char tag[] = "<|speaker:";
    size_t begin = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (bytes - i < sizeof tag - 1 || memcmp(text + i, tag, sizeof tag - 1) != 0) continue;
        const char *end = memchr(text + i, '>', bytes - i);
        if (end == NULL) break;
        if (i > begin) TH_TRY(th_output_write(out, text + begin, i - begin, error));
        begin = (size_t)(end - text) + 1;
        while (begin < bytes && text[begin] == ' ') begin++;
        i = begin - 1;
    }
    return th_output_write(out, text + begin, bytes - begin, error);
}

static thespis_status write_cue(struct th_output *out, int number, const thespis_chunk_info *chunk, thespis_error *error)
{
    char line[100], from[32], to[32];
    stamp(from, chunk->first_frame);
    stamp(to, chunk->first_frame + chunk->frames);
    int n = snprintf(line, sizeof line, "%d\n%s --> %s\n", number, from, to);
    TH_TRY(th_output_write(out, line, (size_t)n, error));
    TH_TRY(write_words(out, chunk->text, chunk->text_bytes, error));
    return th_output_write(out, "\n\n", 2, error);
}

static thespis_status write_cues(thespis_request *request, int chunks, struct th_output *out, thespis_error *error)
{
    for (int i = 0, number = 1; i < chunks; i++) {
        thespis_chunk_info chunk = {.size = sizeof chunk};
        TH_TRY(thespis_request_get_chunk(request, i, &chunk, error));
        if (chunk.frames > 0) TH_TRY(write_cue(out, number++, &chunk, error));
    }
    return THESPIS_OK;
}

/* Subtitles and picture are complete under their names before the sound is: whoever finds the sound, finds them. */
static thespis_status finish(const struct cli_take *t, thespis_request *request, struct th_output *cues,
                             struct cli_picture *picture, thespis_outcome *outcome, thespis_error *error)
{
    TH_TRY(thespis_request_get_outcome(request, outcome, error));
    TH_TRY(cli_picture_of_request(picture, request, error));
    if (t->srt == NULL) return THESPIS_OK;
    TH_TRY(write_cues(request, outcome->chunks, cues, error));
    return th_output_commit(cues, error);
}

static thespis_status write_sound(const struct cli_take *t, thespis_request *request, struct th_output *cues,
                                  struct cli_picture *picture, thespis_outcome *outcome, thespis_error *error)
{
    struct th_sound_file sound;
    TH_TRY(cli_sound_open(t->settings, t->out, &sound, error));
    int watch = cli_watch_part(sound.writer.output.part);
    thespis_status status = pump(t, request, &sound, picture, error);
    if (status == THESPIS_OK) status = finish(t, request, cues, picture, outcome, error);
    if (status == THESPIS_OK)
        status = th_sound_file_close(&sound, error);
    else
        th_sound_file_discard(&sound);
    cli_unwatch_part(watch);
    return status;
}

/* The subtitles' file is opened first: a path that cannot be written is told before anything is spoken. */
static thespis_status write_all(const struct cli_take *t, thespis_request *request, thespis_outcome *outcome, thespis_error *error)
{
    struct th_output cues = {.fd = -1};
    if (t->srt != NULL) TH_TRY(th_output_open(t->srt, &cues, error));
    int watch = cli_watch_part(cues.part);
    struct cli_picture picture;
    thespis_status status = cli_picture_open(t->settings, &picture, error);
    if (status == THESPIS_OK) status = write_sound(t, request, &cues, &picture, outcome, error);
    cli_picture_close(&picture);
    th_output_discard(&cues);
    cli_unwatch_part(watch);
    return status;
}

thespis_status cli_take_run(const struct cli_take *take, thespis_outcome *outcome, thespis_error *error)
{
    thespis_request *request;
    TH_TRY(start(take, &request, error));
    *outcome = (thespis_outcome){.size = sizeof *outcome};
    thespis_status status = write_all(take, request, outcome, error);
    thespis_request_free(request);
    return status;
}
