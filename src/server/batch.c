/* batch.c - POST /v1/audio/speech/batch: up to 32 items with shared defaults, answered together in their order. */
#include <nettle/base64.h>
#include <string.h>

#include "base/memory.h"
#include "server/answer.h"
#include "server/handlers.h"
#include "server/openai.h"

#define MOST_ITEMS TH_EXCHANGE_SPEECHES

struct item {
    char prefix[40];
    struct th_ask ask;
    struct th_speech_manner manner;
    struct th_speech *speech; /* asked for and not yet read */
    int failed;
    struct th_fault fault;
};

struct batch {
    const struct th_value *items;
    size_t begun;
    json_t *results;
    int succeeded;
    struct th_fault fault;
    struct item item[MOST_ITEMS];
};

/* The body without its items: what all of them share. */
static thespis_status read_defaults(struct th_exchange *x, struct th_ask *defaults, const struct th_value **items,
                                    struct th_fault *fault)
{
    struct th_value shared = x->tree.root;
    const struct th_value *list = th_value_find(&shared, "items");
    if (list == NULL || list->kind != TH_LIST) return th_fault_set(fault, 400, "items", "items must be a list");
    if (list->count == 0 || list->count > MOST_ITEMS)
        return th_fault_set(fault, 400, "items", "items has %zu entries, must have 1 to %d", list->count, MOST_ITEMS);
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i].kind != TH_MAP)
            return th_fault_set(fault, 400, "items", "items.%zu must be an object, not %s", i, th_value_kind(&list->items[i]));
    *items = list;
    size_t at = (size_t)(list - shared.items), last = shared.count - 1;
    /* The last entry takes the place of the list; which is put back, for the tree frees what it holds. */
    struct th_value kept = shared.items[at], kept_key = shared.keys[at];
    shared.items[at] = shared.items[last];
    shared.keys[at] = shared.keys[last];
    shared.count = last;
    th_ask_init(defaults);
    int flags = x->server->options.ignore_unknown_fields ? TH_FIELDS_IGNORE_UNKNOWN : 0;
    thespis_status status = th_fields_read(&th_openai_fields, &shared, flags, "", defaults, fault);
    shared.items[at] = kept;
    shared.keys[at] = kept_key;
    if (status == THESPIS_OK && (defaults->stream >= 0 || defaults->sse))
        status = th_fault_set(fault, 400, "stream", "a batch does not stream");
    return status;
}

static thespis_status start_item(struct th_exchange *x, const struct th_ask *defaults, struct item *item,
                                 const struct th_value *value, struct th_fault *fault)
{
    int flags = x->server->options.ignore_unknown_fields ? TH_FIELDS_IGNORE_UNKNOWN : 0;
    item->ask = *defaults;
    item->manner = th_openai_manner;
    item->manner.prefix = item->prefix;
    item->manner.streamed = 0;
    TH_TRY(th_fields_read(&th_openai_fields, value, flags, item->prefix, &item->ask, fault));
    if (item->ask.stream >= 0 || item->ask.sse) return th_fault_field(fault, item->prefix, "stream", "a batch does not stream");
    TH_TRY(th_openai_check(x, &item->ask, item->prefix, fault));
    return th_speech_start(x, &item->ask, &item->manner, &item->speech, fault);
}

/* Puts more items in line: as many as there are lanes, so that a batch cannot fill the queue by itself. */
static void begin_more(struct th_exchange *x, const struct th_ask *defaults, struct batch *b, size_t reading)
{
    size_t lanes = (size_t)x->server->options.engine.lanes;
    while (b->begun < b->items->count && b->begun < reading + lanes) {
        struct item *item = &b->item[b->begun];
        snprintf(item->prefix, sizeof item->prefix, "items.%zu.", b->begun);
        thespis_status status = start_item(x, defaults, item, &b->items->items[b->begun], &item->fault);
        item->failed = status != THESPIS_OK;
        /* The queue is full: later, when one of ours has ended. */
        if (item->failed && item->fault.http == 429 && b->begun > reading) return;
        b->begun++;
    }
}

static json_t *success(size_t index, const struct th_speech *s, const struct th_bytes *audio)
{
    size_t length = BASE64_ENCODE_RAW_LENGTH(audio->count);
    char *text = th_alloc(length, 1);
    if (text == NULL) return NULL;
    base64_encode_raw(text, audio->count, audio->at != NULL ? audio->at : (const uint8_t *)"");
    json_t *data = json_stringn_nocheck(text, length);
    th_free(text);
    return json_pack("{s:I,s:s,s:o,s:s,s:s,s:s,s:I,s:i}", "index", (json_int_t)index, "status", "success", "audio_data", data,
                     "format", s->format->name, "media_type", s->format->content_type, "finish_reason",
                     thespis_finish_name(s->outcome.finish), "seed", (json_int_t)s->seed, "sample_rate", s->rate);
}

static json_t *failure(size_t index, const struct th_fault *fault)
{
    json_t *error = th_fault_openai(fault), *inner = json_incref(json_object_get(error, "error"));
    json_decref(error);
    return json_pack("{s:I,s:s,s:o}", "index", (json_int_t)index, "status", "error", "error", inner);
}

/* Waits for one item's audio. */
static json_t *result_of(struct batch *b, size_t index)
{
    struct item *item = &b->item[index];
    struct th_bytes audio = {0};
    json_t *result;
    if (item->failed) return failure(index, &item->fault);
    if (th_speech_whole(item->speech, &audio, &item->fault) == THESPIS_OK) {
        result = success(index, item->speech, &audio);
        b->succeeded++;
    } else {
        result = failure(index, &item->fault);
    }
    th_speech_end(item->speech);
    th_bytes_free(&audio);
    return result;
}

static enum MHD_Result run(struct th_exchange *x, struct batch *b, const struct th_ask *defaults)
{
    b->results = json_array();
    for (size_t i = 0; i < b->items->count; i++) {
        begin_more(x, defaults, b, i);
        if (th_link_gone(x->link)) {
            json_decref(b->results);
            th_fault_set(&b->fault, 499, NULL, "the client has gone");
            return th_answer_fault(x, &b->fault);
        }
        json_t *result = result_of(b, i);
        if (result == NULL || json_array_append_new(b->results, result) != 0) {
            json_decref(b->results);
            return th_answer_json(x, 503, NULL);
        }
    }
    int total = (int)b->items->count;
    return th_answer_json(x, 200,
                          json_pack("{s:s,s:o,s:i,s:i,s:i}", "id", x->id, "results", b->results, "total", total, "succeeded",
                                    b->succeeded, "failed", total - b->succeeded));
}

enum MHD_Result th_handle_batch(struct th_exchange *x)
{
    struct th_ask defaults;
    struct th_fault fault;
    const struct th_value *items = NULL;
    if (th_exchange_parse(x, &fault) != THESPIS_OK || read_defaults(x, &defaults, &items, &fault) != THESPIS_OK)
        return th_answer_fault(x, &fault);
    struct batch *b = th_alloc(1, sizeof *b);
    if (b == NULL) return th_answer_json(x, 503, NULL);
    b->items = items;
    enum MHD_Result result = run(x, b, &defaults);
    th_free(b);
    return result;
}
