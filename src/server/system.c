/* system.c - the routes for operators: alive, ready, counted. */
#include <string.h>

#include "server/answer.h"
#include "server/handlers.h"

static const char *stage_name(enum th_stage stage)
{
    static const char *const names[] = {"starting", "ready", "draining", "draining", "failed"};
    return names[stage];
}

/* Asks nothing of the engine: a process that can answer is alive. */
enum MHD_Result th_handle_health(struct th_exchange *x)
{
    enum th_stage stage = th_server_stage(x->server);
    const char *status = stage == TH_STAGE_READY ? "healthy" : stage_name(stage);
    return th_answer_json(
        x, 200, json_pack("{s:s,s:s,s:s}", "status", status, "version", thespis_version(), "model", x->server->options.model));
}

static enum MHD_Result not_yet(struct th_exchange *x, enum th_stage stage, json_t *body)
{
    if (body == NULL) return th_answer_json(x, 503, NULL);
    json_object_set_new(body, "status", json_string(stage_name(stage)));
    return th_answer_json(x, 503, body);
}

enum MHD_Result th_handle_ready(struct th_exchange *x)
{
    enum th_stage stage = th_server_stage(x->server);
    if (stage == TH_STAGE_READY) return th_answer_json(x, 200, json_pack("{s:s}", "status", "ready"));
    return not_yet(x, stage, json_object());
}

enum MHD_Result th_handle_fish_health(struct th_exchange *x)
{
    enum th_stage stage = th_server_stage(x->server);
    if (stage == TH_STAGE_READY) return th_answer_json(x, 200, json_pack("{s:s}", "status", "ok"));
    return not_yet(x, stage, json_object());
}

enum MHD_Result th_handle_metrics(struct th_exchange *x)
{
    struct th_server *s = x->server;
    struct th_metrics_now now = {.version = thespis_version(), .backend = "none", .model = s->options.model};
    enum th_stage stage = th_server_stage(s);
    thespis_error error;
    struct th_fault fault;
    now.ready = stage == TH_STAGE_READY;
    if (stage != TH_STAGE_STARTING && stage != TH_STAGE_FAILED) {
        thespis_engine_info info = {.size = sizeof info};
        th_engine_get_load(s->engine, &now.load);
        if (thespis_engine_get_info(s->engine, &info, NULL) == THESPIS_OK) now.backend = info.backend;
        if (strcmp(now.backend, "cuda") == 0) now.device_bytes = info.lane_bytes + info.weight_bytes;
    }
    if (th_metrics_write(&s->metrics, &now, &x->out.wire, &error) != THESPIS_OK) {
        th_fault_from(&fault, &error, "", NULL);
        return th_answer_fault(x, &fault);
    }
    return th_answer_bytes(x, 200, "text/plain; version=0.0.4; charset=utf-8", NULL);
}
