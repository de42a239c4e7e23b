/* stream.c - speech as the body of an answer: whole, as it comes, or as server-sent events. */
#include <nettle/base64.h>
#include <string.h>

#include "base/memory.h"
#include "server/answer.h"
#include "server/speech.h"

/* ---- server-sent events ------------------------------------------------------------------------------------------------------ */

/* data: {"type":"speech.audio.delta","audio":"BASE64"} */
static thespis_status add_delta(struct th_bytes *wire, const struct th_bytes *audio, thespis_error *error)
{
    size_t length = BASE64_ENCODE_RAW_LENGTH(audio->count);
    if (audio->count == 0) return THESPIS_OK;
    TH_TRY(th_bytes_add_string(wire, "data: {\"type\":\"speech.audio.delta\",\"audio\":\"", error));
    TH_TRY(th_bytes_reserve(wire, length, error));
    base64_encode_raw((char *)wire->at + wire->count, audio->count, audio->at);
    wire->count += length;
    return th_bytes_add_string(wire, "\"}\n\n", error);
}

static thespis_status add_event(struct th_bytes *wire, json_t *event, thespis_error *error)
{
    char *text = event != NULL ? json_dumps(event, JSON_COMPACT) : NULL;
    thespis_status status = text != NULL ? th_bytes_add_string(wire, "data: ", error) : th_fail_memory(error, "an event", 0);
    if (status == THESPIS_OK) status = th_bytes_add_string(wire, text, error);
    if (status == THESPIS_OK) status = th_bytes_add_string(wire, "\n\n", error);
    free(text);
    json_decref(event);
    return status;
}

static json_t *done_event(const thespis_outcome *o)
{
    return json_pack("{s:s,s:{s:i,s:i,s:i},s:s}", "type", "speech.audio.done", "usage", "input_tokens", o->prompt_rows,
                     "output_tokens", o->frames, "total_tokens", o->prompt_rows + o->frames, "finish_reason",
                     thespis_finish_name(o->finish));
}

static json_t *error_event(const struct th_fault *fault)
{
    json_t *event = th_fault_openai(fault);
    if (event != NULL) json_object_set_new(event, "type", json_string("error"));
    return event;
}

/* The end of what an event stream can say; a client that has gone is told nothing. */
static void add_error_event(struct th_exchange *x, const struct th_fault *fault)
{
    thespis_error error;
    x->out.over = 1;
    x->out.failed = fault->http == 499 || add_event(&x->out.wire, error_event(fault), &error) != THESPIS_OK;
}

static thespis_status fill_events(struct th_exchange *x, struct th_fault *fault)
{
    struct th_speech *s = x->out.speech;
    struct th_bytes audio = {0};
    thespis_error error;
    thespis_status status = th_speech_pull(s, &audio, fault);
    thespis_status added = add_delta(&x->out.wire, &audio, &error);
    if (added == THESPIS_OK && status == THESPIS_OK && s->ended) added = add_event(&x->out.wire, done_event(&s->outcome), &error);
    th_bytes_free(&audio);
    return added != THESPIS_OK ? th_fault_from(fault, &error, "", NULL) : status;
}

/* ---- filling ----------------------------------------------------------------------------------------------------------------- */

/* One pull, or more where an encoder keeps what it gets for a while. */
static thespis_status fill(struct th_exchange *x, struct th_fault *fault)
{
    struct th_speech *s = x->out.speech;
    while (x->out.wire.count == 0 && !s->ended) TH_TRY(x->out.sse ? fill_events(x, fault) : th_speech_pull(s, &x->out.wire, fault));
    x->out.over = s->ended;
    return THESPIS_OK;
}

void th_speech_fill(struct th_exchange *x)
{
    struct th_fault fault;
    if (fill(x, &fault) != THESPIS_OK) {
        if (x->out.sse)
            add_error_event(x, &fault);
        else
            x->out.failed = 1;
    }
    if (x->out.over || x->out.failed)
        th_speech_end(x->out.speech); /* its lane and memory are free before the client has read all */
}

/* ---- answering --------------------------------------------------------------------------------------------------------------- */

/* Values of headers, in order; each is a name and a value. */
struct headers {
    const char *list[24];
    char text[8][48];
    int count, texts;
};

static void add(struct headers *h, const char *name, const char *value)
{
    h->list[h->count++] = name;
    h->list[h->count++] = value;
}

static void add_number(struct headers *h, const char *name, const char *format, double value)
{
    char *text = h->text[h->texts++];
    snprintf(text, sizeof h->text[0], format, value);
    add(h, name, text);
}

static void add_seed(struct headers *h, uint64_t seed)
{
    char *text = h->text[h->texts++];
    snprintf(text, sizeof h->text[0], "%llu", (unsigned long long)seed);
    add(h, "X-Seed", text);
}

static void add_format(struct headers *h, const struct th_speech *s)
{
    const char *voice = th_exchange_header(s->x, "X-Voice");
    add_seed(h, s->seed);
    add_number(h, "X-Sample-Rate", "%.0f", s->rate);
    add(h, "X-Channels", "1");
    add(h, "X-Bit-Depth", "16");
    if (voice != NULL) add(h, "X-Voice", voice);
}

static enum MHD_Result answer_whole(struct th_exchange *x, struct th_speech *s, const char *filename)
{
    struct headers h = {0};
    struct th_fault fault;
    char disposition[80];
    const char *type = s->format->content_type;
    if (th_speech_whole(s, &x->out.wire, &fault) != THESPIS_OK) return th_answer_fault(x, &fault);
    snprintf(disposition, sizeof disposition, "attachment; filename=\"%s.%s\"", filename, s->format->extension);
    add(&h, MHD_HTTP_HEADER_CONTENT_DISPOSITION, disposition);
    add_format(&h, s);
    add(&h, "X-Finish-Reason", thespis_finish_name(s->outcome.finish));
    add_number(&h, "X-Prompt-Tokens", "%.0f", s->outcome.prompt_rows);
    add_number(&h, "X-Completion-Tokens", "%.0f", s->outcome.frames);
    add_number(&h, "X-Engine-Time", "%.3f", s->outcome.total_seconds);
    th_speech_end(s);
    return th_answer_bytes(x, 200, type, h.list);
}

enum MHD_Result th_speech_answer(struct th_exchange *x, struct th_speech *s, int sse, const char *filename)
{
    struct headers h = {0};
    struct th_fault fault;
    char disposition[80];
    const char *type = sse ? "text/event-stream" : s->format->content_type;
    if (!s->streamed) return answer_whole(x, s, filename);
    x->out.speech = s;
    x->out.sse = sse;
    /* Before the first audio is there nothing is sent: every error until now has its own status. */
    if (fill(x, &fault) != THESPIS_OK) return th_answer_fault(x, &fault);
    snprintf(disposition, sizeof disposition, "attachment; filename=\"%s.%s\"", filename, s->format->extension);
    if (!sse) add(&h, MHD_HTTP_HEADER_CONTENT_DISPOSITION, disposition);
    add_format(&h, s);
    add(&h, "X-Accel-Buffering", "no");
    if (x->out.over) th_speech_end(s);
    return th_answer_stream(x, type, h.list);
}
