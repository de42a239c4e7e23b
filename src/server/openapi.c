/* openapi.c - the interface as an OpenAPI 3.1 document, made from the tables that serve it. */
#include <string.h>

#include "audio/encode.h"
#include "server/answer.h"
#include "server/ask.h"
#include "server/handlers.h"

extern const struct th_fields th_upload_fields, th_fish_add_fields, th_fish_name_fields;

static json_t *choices_of(const char *choices)
{
    json_t *list = json_array();
    for (const char *at = choices; list != NULL && *at != '\0';) {
        size_t n = strcspn(at, " ");
        json_array_append_new(list, json_stringn(at, n));
        at += n + (at[n] == ' ');
    }
    return list;
}

static json_t *format_names(void)
{
    size_t count;
    const struct th_audio_format *formats = th_audio_formats(&count);
    json_t *list = json_array();
    for (size_t i = 0; list != NULL && i < count; i++) json_array_append_new(list, json_string(formats[i].name));
    return list;
}

/* What stands for a VALUE field: a few shapes by name. */
static json_t *value_schema(const char *name)
{
    if (strcmp(name, "Voice") == 0)
        return json_pack("{s:[{s:s},{s:s,s:{s:{s:s}},s:[s],s:b}]}", "anyOf", "type", "string", "type", "object", "properties", "id",
                         "type", "string", "required", "id", "additionalProperties", 0);
    if (strcmp(name, "References") == 0)
        return json_pack("{s:s,s:i,s:{s:s}}", "type", "array", "maxItems", THESPIS_MAX_SPEAKERS, "items", "$ref",
                         "#/components/schemas/Reference");
    if (strcmp(name, "Prosody") == 0) return json_pack("{s:s}", "$ref", "#/components/schemas/Prosody");
    if (strcmp(name, "Codes") == 0)
        return json_pack("{s:s,s:{s:s,s:{s:s,s:i}}}", "type", "array", "items", "type", "array", "items", "type", "integer",
                         "minimum", 0);
    if (strcmp(name, "File") == 0) return json_pack("{s:s,s:s}", "type", "string", "format", "binary");
    return json_pack("{s:s,s:i}", "type", "string", "minLength", 1);
}

static json_t *number_schema(const struct th_field *f, const char *type)
{
    int whole = strcmp(type, "integer") == 0;
    json_t *schema = json_pack("{s:s}", "type", type);
    const char *low = f->above_low ? "exclusiveMinimum" : "minimum";
    json_object_set_new(schema, low, whole ? json_integer((json_int_t)f->low) : json_real(f->low));
    json_int_t high = f->high >= 0x1p63 ? INT64_MAX : (json_int_t)f->high;
    json_object_set_new(schema, "maximum", whole ? json_integer(high) : json_real(f->high));
    return schema;
}

static json_t *field_schema(const struct th_field *f)
{
    switch (f->kind) {
    case TH_FIELD_TEXT: return json_pack("{s:s}", "type", "string");
    case TH_FIELD_INTEGER: return number_schema(f, "integer");
    case TH_FIELD_NUMBER: return number_schema(f, "number");
    case TH_FIELD_BOOLEAN: return json_pack("{s:s}", "type", "boolean");
    case TH_FIELD_CHOICE: return json_pack("{s:s,s:o}", "type", "string", "enum", choices_of(f->choices));
    case TH_FIELD_FORMAT: return json_pack("{s:s,s:o}", "type", "string", "enum", format_names());
    case TH_FIELD_VALUE: return value_schema(f->choices);
    case TH_FIELD_ONLY: return json_pack("{s:f}", "const", f->low);
    default: return json_object();
    }
}

/* null means absent, wherever absence is allowed. */
static json_t *nullable(json_t *schema, const char *help)
{
    json_t *either = json_pack("{s:[o,{s:s}]}", "anyOf", schema, "type", "null");
    if (either != NULL && help != NULL) json_object_set_new(either, "description", json_string(help));
    return either;
}

static json_t *schema_of(const struct th_fields *fields, int open)
{
    json_t *properties = json_object(), *schema = json_pack("{s:s,s:o}", "type", "object", "properties", properties);
    for (size_t i = 0; schema != NULL && i < fields->count; i++) {
        const struct th_field *f = &fields->fields[i];
        if (f->kind == TH_FIELD_REFUSED) continue;
        int required = fields->required != NULL && strcmp(fields->required, f->name) == 0;
        json_t *one = field_schema(f);
        if (required) json_object_set_new(one, "description", json_string(f->help));
        json_object_set_new(properties, f->name, required ? one : nullable(one, f->help));
    }
    if (schema != NULL && fields->required != NULL) json_object_set_new(schema, "required", json_pack("[s]", fields->required));
    if (schema != NULL) json_object_set_new(schema, "additionalProperties", json_boolean(open));
    return schema;
}

/* The fields of a route's body; forms have no table in the list of routes. */
static const struct th_fields *fields_of(const struct th_route *r)
{
    if (r->fields != NULL) return r->fields;
    if (r->handle == th_handle_voice_add) return &th_upload_fields;
    if (r->handle == th_handle_reference_add) return &th_fish_add_fields;
    if (r->flags & (TH_ROUTE_JSON | TH_ROUTE_FORM) && (r->flags & TH_ROUTE_FISH)) return &th_fish_name_fields;
    return NULL;
}

static json_t *body_of(const struct th_route *r)
{
    const struct th_fields *fields = fields_of(r);
    json_t *content = json_object();
    char reference[100];
    const char *name = fields != NULL ? fields->name : "SpeechBatch";
    snprintf(reference, sizeof reference, "#/components/schemas/%s", name);
    if (r->flags & TH_ROUTE_JSON)
        json_object_set_new(content, "application/json", json_pack("{s:{s:s}}", "schema", "$ref", reference));
    if (r->flags & TH_ROUTE_MSGPACK)
        json_object_set_new(content, "application/msgpack", json_pack("{s:{s:s}}", "schema", "$ref", reference));
    if (r->flags & TH_ROUTE_FORM)
        json_object_set_new(content, "multipart/form-data", json_pack("{s:{s:s}}", "schema", "$ref", reference));
    return json_pack("{s:b,s:o}", "required", 1, "content", content);
}

static json_t *audio_content(void)
{
    size_t count;
    const struct th_audio_format *formats = th_audio_formats(&count);
    json_t *content = json_object();
    for (size_t i = 0; content != NULL && i < count; i++)
        json_object_set_new(content, formats[i].content_type,
                            json_pack("{s:{s:s,s:s}}", "schema", "type", "string", "format", "binary"));
    return content;
}

static void add_answer(json_t *answers, const char *status, const char *description, const char *schema)
{
    json_t *answer = json_pack("{s:s}", "description", description);
    if (schema != NULL)
        json_object_set_new(answer, "content", json_pack("{s:{s:{s:s}}}", "application/json", "schema", "$ref", schema));
    json_object_set_new(answers, status, answer);
}

static json_t *answers_of(const struct th_route *r)
{
    json_t *answers = json_object();
    const char *error = r->flags & TH_ROUTE_FISH ? "#/components/schemas/FishError" : "#/components/schemas/Error";
    int speaks = r->handle == th_handle_speech || r->handle == th_handle_tts;
    if (speaks) {
        json_t *content = audio_content();
        if (r->handle == th_handle_speech) json_object_set_new(content, "text/event-stream", json_object());
        json_object_set_new(answers, "200", json_pack("{s:s,s:o}", "description", "Audio.", "content", content));
    } else if (r->handle == th_handle_metrics) {
        json_object_set_new(answers, "200", json_pack("{s:s,s:{s:{}}}", "description", "Metrics.", "content", "text/plain"));
    } else {
        add_answer(answers, "200", "Done.", "#/components/schemas/Answer");
    }
    add_answer(answers, "400", "Something in the request is wrong: the message says what.", error);
    if (!(r->flags & TH_ROUTE_OPEN)) add_answer(answers, "401", "No valid key.", error);
    if (strchr(r->path, '{') != NULL || (r->flags & TH_ROUTE_FISH)) add_answer(answers, "404", "Not there.", error);
    if (r->flags & TH_ROUTE_FISH) add_answer(answers, "409", "There already.", error);
    if (r->flags & (TH_ROUTE_JSON | TH_ROUTE_FORM)) {
        add_answer(answers, "408", "The body came too slowly.", "#/components/schemas/Error");
        add_answer(answers, "413", "Too large.", error);
        add_answer(answers, "415", "Another kind of body is wanted.", error);
    }
    if (r->flags & TH_ROUTE_QUEUE) add_answer(answers, "429", "The queue is full.", error);
    if (r->flags & TH_ROUTE_QUEUE) add_answer(answers, "500", "It could not be spoken.", error);
    add_answer(answers, "503", "Starting or draining.", r->flags & TH_ROUTE_OPEN ? "#/components/schemas/Answer" : error);
    return answers;
}

static json_t *operation_of(const struct th_route *r)
{
    json_t *operation = json_pack("{s:s,s:o}", "summary", r->summary, "responses", answers_of(r));
    const char *brace = strchr(r->path, '{');
    if (r->flags & (TH_ROUTE_JSON | TH_ROUTE_FORM)) json_object_set_new(operation, "requestBody", body_of(r));
    if (brace != NULL)
        json_object_set_new(operation, "parameters",
                            json_pack("[{s:s%,s:s,s:b,s:{s:s,s:i}}]", "name", brace + 1, strlen(brace) - 2, "in", "path",
                                      "required", 1, "schema", "type", "string", "minLength", 1));
    if (r->flags & TH_ROUTE_OPEN) json_object_set_new(operation, "security", json_array());
    return operation;
}

static json_t *paths(void)
{
    json_t *all = json_object();
    for (size_t i = 0; all != NULL && i < th_route_count; i++) {
        const struct th_route *r = &th_routes[i];
        char method[10] = "";
        json_t *path = json_object_get(all, r->path);
        for (size_t c = 0; r->method[c] != '\0' && c < 9; c++) method[c] = (char)(r->method[c] | 0x20);
        if (path == NULL) {
            path = json_object();
            json_object_set_new(all, r->path, path);
        }
        json_object_set_new(path, method, operation_of(r));
    }
    return all;
}

static json_t *batch_schema(void)
{
    json_t *schema = schema_of(&th_openai_fields, 0), *properties = json_object_get(schema, "properties");
    json_object_set_new(
        properties, "items",
        json_pack("{s:s,s:i,s:i,s:{s:s}}", "type", "array", "minItems", 1, "maxItems", 32, "items", "type", "object"));
    json_object_del(properties, "stream");
    json_object_del(properties, "stream_format");
    json_object_set_new(schema, "required", json_pack("[s]", "items"));
    return schema;
}

static json_t *schemas(void)
{
    json_t *error = json_pack("{s:s,s:[s],s:{s:{s:s,s:[s,s,s,s]}}}", "type", "object", "required", "error", "properties", "error",
                              "type", "object", "required", "message", "type", "param", "code");
    json_t *fish = json_pack("{s:s,s:[s,s],s:{s:{s:s},s:{s:s}},s:b}", "type", "object", "required", "status", "message",
                             "properties", "status", "type", "integer", "message", "type", "string", "additionalProperties", 0);
    return json_pack("{s:o,s:o,s:{s:s},s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "Error", error, "FishError", fish, "Answer", "type",
                     "object", th_openai_fields.name, schema_of(&th_openai_fields, 0), th_fish_fields.name,
                     schema_of(&th_fish_fields, 1), th_prosody_fields.name, schema_of(&th_prosody_fields, 1),
                     th_reference_fields.name, schema_of(&th_reference_fields, 0), th_upload_fields.name,
                     schema_of(&th_upload_fields, 0), th_fish_add_fields.name, schema_of(&th_fish_add_fields, 1),
                     th_fish_name_fields.name, schema_of(&th_fish_name_fields, 1), "SpeechBatch", batch_schema());
}

static json_t *document(const struct th_server *s)
{
    json_t *all = json_pack("{s:s,s:{s:s,s:s},s:o,s:{s:o,s:{s:{s:s,s:s}}},s:[{s:[]}]}", "openapi", "3.1.0", "info", "title",
                            "Thespis", "version", thespis_version(), "paths", paths(), "components", "schemas", schemas(),
                            "securitySchemes", "key", "type", "http", "scheme", "bearer", "security", "key");
    if (all != NULL && s->options.prefix != NULL)
        json_object_set_new(all, "servers", json_pack("[{s:s}]", "url", s->options.prefix));
    return all;
}

enum MHD_Result th_handle_openapi(struct th_exchange *x)
{
    return th_answer_json(x, 200, document(x->server));
}
