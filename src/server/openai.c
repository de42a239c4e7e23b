/* openai.c - the routes that OpenAI's clients know. */
#include <string.h>

#include "server/answer.h"
#include "server/handlers.h"
#include "server/openai.h"
#include "server/speech.h"

const struct th_speech_manner th_openai_manner = {.pcm_rate = 24000,
                                                  .unknown_voice = 400,
                                                  .text = "input",
                                                  .voice = "voice",
                                                  .format_field = "response_format",
                                                  .prefix = "",
                                                  .streamed = -1};

thespis_status th_openai_check(struct th_exchange *x, struct th_ask *ask, const char *prefix, struct th_fault *fault)
{
    const struct th_server_options *o = &x->server->options;
    if (ask->model.at != NULL && th_text_is_blank(ask->model))
        return th_fault_field(fault, prefix, "model", "model must be a non-empty string");
    if (o->strict_model && ask->model.at != NULL && !th_text_is(ask->model, o->model)) {
        th_fault_field(fault, prefix, "model", "the model is '%s', no other is served", o->model);
        fault->http = 404;
        fault->code = "model_not_found";
        return THESPIS_INVALID;
    }
    if (!th_text_is_blank(ask->instructions) && !o->ignore_instructions)
        return th_fault_field(fault, prefix, "instructions", "instructions is not supported; write cues in brackets in input");
    return THESPIS_OK;
}

enum MHD_Result th_handle_speech(struct th_exchange *x)
{
    struct th_fault fault;
    struct th_ask ask;
    struct th_speech *speech;
    int flags = x->server->options.ignore_unknown_fields ? TH_FIELDS_IGNORE_UNKNOWN : 0;
    th_ask_init(&ask);
    if (th_exchange_parse(x, &fault) != THESPIS_OK ||
        th_fields_read(&th_openai_fields, &x->tree.root, flags, "", &ask, &fault) != THESPIS_OK ||
        th_openai_check(x, &ask, "", &fault) != THESPIS_OK ||
        th_speech_start(x, &ask, &th_openai_manner, &speech, &fault) != THESPIS_OK)
        return th_answer_fault(x, &fault);
    return th_speech_answer(x, speech, ask.sse, "speech");
}

enum MHD_Result th_handle_outcome(struct th_exchange *x)
{
    struct th_kept_outcome o;
    struct th_fault fault;
    if (!th_outcomes_find(&x->server->outcomes, x->argument, &o)) {
        th_fault_set(&fault, 404, NULL, "no finished request has this id, or it is too long ago");
        return th_answer_fault(x, &fault);
    }
    return th_answer_json(x, 200,
                          json_pack("{s:s,s:s,s:{s:i,s:i,s:i}}", "request_id", o.id, "finish_reason", thespis_finish_name(o.finish),
                                    "usage", "prompt_tokens", o.prompt_rows, "completion_tokens", o.frames, "total_tokens",
                                    o.prompt_rows + o.frames));
}

static json_t *model_object(const struct th_exchange *x)
{
    return json_pack("{s:s,s:s,s:I,s:s}", "id", x->server->options.model, "object", "model", "created",
                     (json_int_t)x->server->started, "owned_by", "thespis");
}

enum MHD_Result th_handle_models(struct th_exchange *x)
{
    return th_answer_json(x, 200, json_pack("{s:s,s:[o]}", "object", "list", "data", model_object(x)));
}

enum MHD_Result th_handle_model(struct th_exchange *x)
{
    struct th_fault fault;
    if (strcmp(x->argument, x->server->options.model) == 0) return th_answer_json(x, 200, model_object(x));
    th_fault_set(&fault, 404, "model", "the model is '%s', no other is served", x->server->options.model);
    fault.code = "model_not_found";
    return th_answer_fault(x, &fault);
}
