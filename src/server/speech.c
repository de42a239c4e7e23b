/* speech.c - see speech.h. */
#include "server/speech.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"

#define PIECE 16384 /* samples read at once */

/* ---- what is asked ----------------------------------------------------------------------------------------------------------- */

static size_t code_points(struct th_text text)
{
    size_t n = 0;
    for (size_t i = 0; i < text.count; i++) n += ((unsigned char)text.at[i] & 0xC0) != 0x80;
    return n;
}

static thespis_status check_text(const struct th_exchange *x, struct th_ask *ask, const struct th_speech_manner *m,
                                 struct th_fault *fault)
{
    const struct th_value *v = ask->input;
    int most = x->server->options.max_input_chars;
    if (v != NULL && (v->kind == TH_TEXT || v->kind == TH_BINARY)) ask->text = (struct th_text){v->text, v->count};
    if (th_text_is_blank(ask->text)) return th_fault_field(fault, m->prefix, m->text, "%s must be a non-empty string", m->text);
    const char *zero = memchr(ask->text.at, '\0', ask->text.count);
    if (zero != NULL)
        return th_fault_field(fault, m->prefix, m->text, "%s: byte %zu is U+0000, which no text has", m->text,
                              (size_t)(zero - ask->text.at));
    if (most == 0) most = ask->granularity == THESPIS_GRANULARITY_NONE ? 4096 : 100000;
    if (code_points(ask->text) > (size_t)most)
        return th_fault_field(fault, m->prefix, m->text, "%s has %zu characters, at most %d are allowed", m->text,
                              code_points(ask->text), most);
    return THESPIS_OK;
}

static thespis_status check_speed(const struct th_ask *ask, const struct th_speech_manner *m, struct th_fault *fault)
{
    if (ask->speed == 1) return THESPIS_OK;
    return th_fault_field(fault, m->prefix, ask->prosody != NULL ? "prosody.speed" : "speed", "speed is %g, only 1 is built in",
                          ask->speed);
}

/* splits are in the order of the table in ask.c */
static thespis_granularity granularity_of(const struct th_ask *ask)
{
    static const thespis_granularity of[] = {THESPIS_GRANULARITY_NONE, THESPIS_GRANULARITY_AUTO, THESPIS_GRANULARITY_SENTENCE,
                                             THESPIS_GRANULARITY_CLAUSE};
    return ask->chunk_bytes == 0 ? THESPIS_GRANULARITY_NONE : of[ask->granularity];
}

static void request_options(const struct th_exchange *x, const struct th_ask *ask, const thespis_voice *voice,
                            thespis_request_options *r)
{
    thespis_request_options_init(r);
    r->text = ask->text.at;
    r->text_bytes = ask->text.count;
    r->voice = voice;
    r->temperature = (float)ask->temperature;
    r->top_p = (float)ask->top_p;
    r->top_k = (int32_t)ask->top_k;
    if (ask->seed >= 0) r->seed = (uint64_t)ask->seed;
    r->max_frames = (int)ask->max_frames;
    r->granularity = granularity_of(ask);
    if (ask->chunk_bytes > 0)
        r->chunk_bytes = ask->chunk_bytes < 100 ? 100 : ask->chunk_bytes > 1000 ? 1000 : (int)ask->chunk_bytes;
    r->no_history = !ask->with_history;
    r->guard = x->server->options.guard;
    r->group = x->group;
}

/* ---- how it comes out -------------------------------------------------------------------------------------------------------- */

static thespis_status open_encoder(struct th_speech *s, const struct th_ask *ask, const struct th_speech_manner *m,
                                   struct th_fault *fault)
{
    thespis_error error;
    const char *fallback = m->format != NULL ? m->format : s->x->server->options.default_format;
    s->format = ask->format != NULL ? ask->format : th_audio_format_find(ask->sse && m->streamed < 0 ? "pcm" : fallback);
    if (s->format == NULL) return th_fault_set(fault, 500, NULL, "the default format '%s' is not built in", fallback);
    s->streamed = m->streamed >= 0 ? m->streamed : ask->sse ? 1 : ask->stream >= 0 ? ask->stream : !s->format->needs_length;
    struct th_encoder_options o = {.format = s->format->name, .streamed = s->streamed, .sample_rate = (int)ask->sample_rate};
    if (o.sample_rate == 0 && strcmp(s->format->name, "pcm") == 0) o.sample_rate = m->pcm_rate;
    if (strcmp(s->format->name, "mp3") == 0) o.bitrate = (int)ask->mp3_bitrate;
    if (strcmp(s->format->name, "opus") == 0) o.bitrate = (int)ask->opus_bitrate;
    thespis_status status = th_encoder_open(&o, &s->encoder, &error);
    if (status != THESPIS_OK)
        return th_fault_from(fault, &error, m->prefix, ask->sample_rate != 0 ? "sample_rate" : m->format_field);
    s->rate = th_encoder_sample_rate(s->encoder);
    s->gain = ask->volume != 0 ? (float)pow(10, ask->volume / 20) : 1;
    s->most_samples = (uint64_t)(s->x->server->options.max_audio_seconds * THESPIS_SAMPLE_RATE);
    return THESPIS_OK;
}

/* ---- admission --------------------------------------------------------------------------------------------------------------- */

static thespis_status come_again(struct th_fault *fault, const char *code, const char *message)
{
    th_fault_set(fault, 429, NULL, "%s", message);
    fault->code = code;
    fault->retry_after = 1;
    return THESPIS_BUSY;
}

thespis_status th_speech_room(struct th_exchange *x, struct th_fault *fault)
{
    const struct th_server_options *o = &x->server->options;
    struct th_engine_load load;
    th_engine_get_load(x->server->engine, &load);
    if (load.waiting >= load.room + o->queue) return come_again(fault, "queue_full", "The request queue is full.");
    if (o->key_requests > 0 && th_engine_group_requests(x->server->engine, x->group) >= o->key_requests)
        return come_again(fault, "key_busy", "This key has as many requests at a time as one may have.");
    return THESPIS_OK;
}

/* One at a time: what is seen of the queue is still true when the request joins it. */
static thespis_status admit(struct th_speech *s, const thespis_request_options *options, const struct th_speech_manner *m,
                            struct th_fault *fault)
{
    struct th_server *server = s->x->server;
    thespis_error error;
    pthread_mutex_lock(&server->admission);
    thespis_status status = th_speech_room(s->x, fault);
    if (status == THESPIS_OK) {
        status = thespis_request_start(server->engine, options, &s->request, &error);
        if (status != THESPIS_OK) th_fault_from(fault, &error, m->prefix, m->text);
    }
    pthread_mutex_unlock(&server->admission);
    return status;
}

/* From now on the watch can cancel it. */
static thespis_status join(struct th_speech *s, struct th_fault *fault)
{
    struct th_exchange *x = s->x;
    int slot = 0;
    pthread_mutex_lock(&x->mutex);
    while (slot < TH_EXCHANGE_SPEECHES && x->speeches[slot] != NULL) slot++;
    if (slot < TH_EXCHANGE_SPEECHES) x->speeches[slot] = s;
    pthread_mutex_unlock(&x->mutex);
    th_link_set(x->link, TH_LINK_WORK, x->server->options.max_queue_seconds);
    if (slot == TH_EXCHANGE_SPEECHES) return th_fault_set(fault, 500, NULL, "too many at once for one request");
    if (th_link_gone(x->link)) thespis_request_cancel(s->request);
    return THESPIS_OK;
}

static thespis_status prepare(struct th_speech *s, struct th_ask *ask, const struct th_speech_manner *m, struct th_fault *fault)
{
    thespis_request_options options;
    TH_TRY(check_text(s->x, ask, m, fault));
    TH_TRY(check_speed(ask, m, fault));
    TH_TRY(open_encoder(s, ask, m, fault));
    double begin = th_now();
    TH_TRY(th_speech_voice(s->x, ask, m, &s->voice, fault));
    if (ask->references != NULL || ask->ref_audio != NULL)
        th_metrics_time(&s->x->server->metrics, TH_TIME_ENCODE, th_now() - begin);
    if (th_link_gone(s->x->link)) return th_fault_set(fault, 499, NULL, "the client has gone");
    request_options(s->x, ask, s->voice, &options);
    options.live = s->streamed;
    s->begun = th_now();
    return admit(s, &options, m, fault);
}

static void release(struct th_speech *s)
{
    thespis_request_free(s->request);
    thespis_voice_free(s->voice);
    th_encoder_close(s->encoder);
    th_free(s);
}

thespis_status th_speech_start(struct th_exchange *x, const struct th_ask *asked, const struct th_speech_manner *manner,
                               struct th_speech **speech, struct th_fault *fault)
{
    struct th_ask ask = *asked;
    struct th_speech *s = th_alloc(1, sizeof *s);
    *speech = NULL;
    if (s == NULL) {
        thespis_error error;
        th_fail_memory(&error, "a request", sizeof *s);
        return th_fault_from(fault, &error, "", NULL);
    }
    s->x = x;
    s->outcome.size = sizeof s->outcome;
    thespis_status status = prepare(s, &ask, manner, fault);
    if (status == THESPIS_OK) {
        thespis_request_get_outcome(s->request, &s->outcome, NULL);
        s->seed = s->outcome.seed;
        status = join(s, fault);
    }
    if (status != THESPIS_OK) {
        fault->hopeless = fault->http == 500 && ask.seed >= 0;
        release(s);
        return status;
    }
    *speech = s;
    return THESPIS_OK;
}

void th_speech_gone(void *exchange)
{
    struct th_exchange *x = exchange;
    pthread_mutex_lock(&x->mutex);
    for (int i = 0; i < TH_EXCHANGE_SPEECHES; i++)
        if (x->speeches[i] != NULL) thespis_request_cancel(x->speeches[i]->request);
    pthread_mutex_unlock(&x->mutex);
}

void th_speech_late(void *exchange)
{
    struct th_exchange *x = exchange;
    pthread_mutex_lock(&x->mutex);
    for (int i = 0; i < TH_EXCHANGE_SPEECHES; i++) {
        struct th_speech *s = x->speeches[i];
        thespis_outcome outcome = {.size = sizeof outcome};
        if (s == NULL) continue;
        thespis_request_get_outcome(s->request, &outcome, NULL);
        if (outcome.queue_seconds > 0) continue; /* it has its lane */
        s->late = 1;
        thespis_request_cancel(s->request);
    }
    pthread_mutex_unlock(&x->mutex);
}

static int gave_up(struct th_speech *s)
{
    pthread_mutex_lock(&s->x->mutex);
    int late = s->late;
    pthread_mutex_unlock(&s->x->mutex);
    return late;
}

/* ---- audio ------------------------------------------------------------------------------------------------------------------- */

/* Would a listener who began with the first audio have had to wait? Only time that we took counts, not a slow reader's. */
static void keep_time(struct th_speech *s, double asked, size_t count)
{
    double now = th_now();
    if (s->samples == 0) {
        s->play_at = now;
        if (s->x->first_audio == 0) s->x->first_audio = now - s->x->started;
        th_metrics_time(&s->x->server->metrics, TH_TIME_FIRST_AUDIO, now - s->x->started);
    }
    double needed = asked > s->play_at ? asked : s->play_at;
    if (now > needed) s->waited += now - needed;
    if (now > s->play_at) s->play_at = now;
    s->play_at += (double)count / THESPIS_SAMPLE_RATE;
}

static thespis_status failed(struct th_speech *s, thespis_error *error, struct th_fault *fault)
{
    thespis_request_get_outcome(s->request, &s->outcome, NULL);
    if (error->status == THESPIS_CANCELLED && gave_up(s)) {
        char message[100];
        snprintf(message, sizeof message, "The request has waited %g seconds in the queue.",
                 s->x->server->options.max_queue_seconds);
        return come_again(fault, "queue_full", message);
    }
    th_fault_from(fault, error, "", NULL);
    /* All that a client can mend is refused at the start. */
    if (error->status == THESPIS_INVALID) fault->http = 500;
    fault->hopeless = fault->http == 500;
    return error->status;
}

static thespis_status encode(struct th_speech *s, float *samples, size_t count, struct th_bytes *out, struct th_fault *fault)
{
    thespis_error error;
    for (size_t i = 0; s->gain != 1 && i < count; i++) samples[i] *= s->gain;
    thespis_status status = th_encoder_write(s->encoder, samples, count, out, &error);
    return status == THESPIS_OK ? status : failed(s, &error, fault);
}

static thespis_status finish(struct th_speech *s, struct th_bytes *out, struct th_fault *fault)
{
    thespis_error error;
    s->ended = 1;
    thespis_request_get_outcome(s->request, &s->outcome, NULL);
    if (s->samples >= s->most_samples) s->outcome.finish = THESPIS_FINISH_LENGTH; /* cut off by us */
    thespis_status status = th_encoder_finish(s->encoder, out, &error);
    return status == THESPIS_OK ? status : failed(s, &error, fault);
}

thespis_status th_speech_pull(struct th_speech *s, struct th_bytes *out, struct th_fault *fault)
{
    float samples[PIECE];
    thespis_error error;
    size_t count;
    uint64_t room = s->most_samples - s->samples;
    if (room == 0) return finish(s, out, fault);
    double asked = th_now();
    thespis_status status = thespis_request_read(s->request, samples, room < PIECE ? (size_t)room : PIECE, &count, &error);
    if (status != THESPIS_OK) return failed(s, &error, fault);
    if (count == 0) return finish(s, out, fault);
    keep_time(s, asked, count);
    s->samples += count;
    return encode(s, samples, count, out, fault);
}

thespis_status th_speech_whole(struct th_speech *s, struct th_bytes *out, struct th_fault *fault)
{
    while (!s->ended) TH_TRY(th_speech_pull(s, out, fault));
    return THESPIS_OK;
}

/* ---- the end ----------------------------------------------------------------------------------------------------------------- */

static void count_it(struct th_speech *s)
{
    struct th_server *server = s->x->server;
    struct th_kept_outcome kept = {.finish = s->outcome.finish, .prompt_rows = s->outcome.prompt_rows, .frames = s->outcome.frames};
    memcpy(kept.id, s->x->id, sizeof kept.id);
    th_outcomes_keep(&server->outcomes, &kept);
    th_metrics_finish(&server->metrics, s->outcome.finish, s->outcome.prompt_rows);
    th_metrics_time(&server->metrics, TH_TIME_QUEUE, s->outcome.queue_seconds);
    if (s->streamed && s->samples > 0) th_metrics_time(&server->metrics, TH_TIME_GAP, s->waited);
    s->x->frames += s->outcome.frames;
    s->x->finish = s->outcome.finish;
}

void th_speech_end(struct th_speech *s)
{
    struct th_exchange *x = s->x;
    pthread_mutex_lock(&x->mutex);
    for (int i = 0; i < TH_EXCHANGE_SPEECHES; i++)
        if (x->speeches[i] == s) x->speeches[i] = NULL;
    pthread_mutex_unlock(&x->mutex);
    if (x->out.speech == s) x->out.speech = NULL;
    if (!s->ended) {
        thespis_request_cancel(s->request);
        thespis_request_get_outcome(s->request, &s->outcome, NULL);
        if (s->outcome.finish == THESPIS_FINISH_NONE) s->outcome.finish = THESPIS_FINISH_CANCELLED;
    }
    count_it(s);
    release(s);
}

void th_speech_end_all(struct th_exchange *x)
{
    for (int i = 0; i < TH_EXCHANGE_SPEECHES; i++)
        if (x->speeches[i] != NULL) th_speech_end(x->speeches[i]);
}
