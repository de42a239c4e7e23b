/* The tables of fields: what each kind takes, what it says of the rest, and that every table is sound. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "server/ask.h"
#include "server/routes.h"

static thespis_status read_json(const struct th_fields *fields, int flags, const char *json, void *target, struct th_fault *fault)
{
    struct th_tree tree;
    thespis_status status = th_tree_json(json, strlen(json), &tree, fault);
    if (status == THESPIS_OK) status = th_fields_read(fields, &tree.root, flags, "items.3.", target, fault);
    th_tree_free(&tree); /* numbers have been copied; texts are not looked at after this */
    return status;
}

static void numbers(void **unused)
{
    (void)unused;
    struct th_ask ask;
    struct th_fault fault;
    th_ask_init(&ask);
    assert_int_equal(
        read_json(&th_openai_fields, 0,
                  "{\"temperature\":0,\"top_p\":1,\"top_k\":2147483647,\"seed\":9223372036854775807,\"stream\":false,"
                  "\"split_granularity\":\" Clause \",\"response_format\":\"WAV\",\"speed\":0.25,\"task_type\":\"BASE\"}",
                  &ask, &fault),
        THESPIS_OK);
    assert_true(ask.temperature == 0 && ask.top_p == 1 && ask.top_k == INT32_MAX && ask.seed == INT64_MAX && ask.stream == 0);
    assert_true(ask.granularity == 3 && ask.speed == 0.25);
    assert_string_equal(ask.format->name, "wav");
}

static void faults(void **unused)
{
    (void)unused;
    static const struct {
        const char *json, *param, *message;
    } cases[] = {
        {"{\"top_p\":0}", "items.3.top_p", "top_p is 0, must be a number above 0 and at most 1"},
        {"{\"temperature\":5.5}", "items.3.temperature", "temperature is 5.5, must be a number from 0 to 5"},
        {"{\"top_k\":30.0}", "items.3.top_k", "top_k must be an integer, not a number"},
        {"{\"seed\":-1}", "items.3.seed", "seed is -1, must be an integer from 0 to 2^63-1"},
        {"{\"stream\":1}", "items.3.stream", "stream must be a boolean, not an integer"},
        {"{\"model\":7}", "items.3.model", "model must be a string, not an integer"},
        {"{\"stream_format\":\"x\"}", "items.3.stream_format", "stream_format is 'x', must be one of: audio sse"},
        {"{\"repetition_penalty\":1.1}", "items.3.repetition_penalty",
         "repetition_penalty is 1.1, only 1 is supported by this model"},
        {"{\"language\":\"en\"}", "items.3.language", "language is not supported by this model"},
        {"{\"tone\\u0007\":1}", "items.3.tone?", "unknown speech request field: tone?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct th_ask ask;
        struct th_fault fault;
        th_ask_init(&ask);
        assert_int_not_equal(read_json(&th_openai_fields, 0, cases[i].json, &ask, &fault), THESPIS_OK);
        assert_int_equal(fault.http, 400);
        assert_string_equal(fault.param, cases[i].param);
        assert_string_equal(fault.message, cases[i].message);
    }
}

static void null_is_absent(void **unused)
{
    (void)unused;
    struct th_ask ask, before;
    struct th_fault fault;
    th_ask_init(&ask);
    before = ask;
    assert_int_equal(
        read_json(&th_openai_fields, 0, "{\"seed\":null,\"language\":null,\"voice\":null,\"speed\":null}", &ask, &fault),
        THESPIS_OK);
    assert_memory_equal(&ask, &before, sizeof ask);
    assert_int_not_equal(read_json(&th_openai_fields, 0, "{\"x\":null}", &ask, &fault), THESPIS_OK);
    assert_int_equal(read_json(&th_openai_fields, TH_FIELDS_IGNORE_UNKNOWN, "{\"x\":null}", &ask, &fault), THESPIS_OK);
}

static void forms_have_text(void **unused)
{
    (void)unused;
    struct th_ask ask;
    struct th_fault fault;
    th_ask_init(&ask);
    assert_int_equal(
        read_json(&th_fish_fields, TH_FIELDS_FORM, "{\"seed\":\"5\",\"top_p\":\"0.5\",\"streaming\":\"false\"}", &ask, &fault),
        THESPIS_OK);
    assert_true(ask.seed == 5 && ask.top_p == 0.5 && ask.stream == 0);
    static const char *const wrong[] = {"{\"seed\":\"5x\"}",   "{\"seed\":\"\"}",     "{\"seed\":\"99999999999999999999\"}",
                                        "{\"top_p\":\"nan\"}", "{\"top_p\":\"0x1\"}", "{\"streaming\":\"yes\"}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_not_equal(read_json(&th_fish_fields, TH_FIELDS_FORM, wrong[i], &ask, &fault), THESPIS_OK);
    assert_int_not_equal(read_json(&th_fish_fields, 0, "{\"seed\":\"5\"}", &ask, &fault), THESPIS_OK);
}

/* Names are unique, ranges are ranges, everything is explained. */
static void tables_are_sound(void **unused)
{
    (void)unused;
    const struct th_fields *tables[] = {&th_openai_fields, &th_fish_fields, &th_prosody_fields, &th_reference_fields};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (size_t i = 0; i < tables[t]->count; i++) {
            const struct th_field *f = &tables[t]->fields[i];
            assert_true(f->help != NULL && f->help[0] != '\0');
            if (f->kind == TH_FIELD_INTEGER || f->kind == TH_FIELD_NUMBER) assert_true(f->low < f->high);
            if (f->kind == TH_FIELD_CHOICE || f->kind == TH_FIELD_VALUE) assert_non_null(f->choices);
            for (size_t k = 0; k < i; k++) assert_string_not_equal(f->name, tables[t]->fields[k].name);
        }
}

/* ---- routes ------------------------------------------------------------------------------------------------------------------ */

static void route_is(const char *method, const char *path, const char *found, const char *argument, const char *allowed)
{
    char got[64] = "", methods[100];
    const struct th_route *r = th_route_find(method, path, got, sizeof got, methods);
    if ((r == NULL) != (found == NULL) || (r != NULL && strcmp(r->path, found) != 0))
        fail_msg("%s %s went to %s", method, path, r != NULL ? r->path : "nothing");
    if (argument != NULL) assert_string_equal(got, argument);
    if (allowed != NULL) assert_string_equal(methods, allowed);
}

static void routes(void **unused)
{
    (void)unused;
    route_is("POST", "/v1/audio/speech", "/v1/audio/speech", NULL, "POST");
    route_is("GET", "/v1/audio/speech", NULL, NULL, "POST");
    route_is("POST", "/v1/audio/speech/batch", "/v1/audio/speech/batch", NULL, NULL);
    route_is("GET", "/v1/audio/speech/req_1", "/v1/audio/speech/{request_id}", "req_1", "GET, HEAD");
    route_is("HEAD", "/health", "/health", NULL, "GET, HEAD");
    route_is("DELETE", "/v1/audio/voices/a%20b", "/v1/audio/voices/{name}", "a b", "GET, HEAD, DELETE");
    route_is("GET", "/v1/audio/voices/%2e%2e", "/v1/audio/voices/{name}", "..", NULL);
    route_is("GET", "/v1/audio/voices/a%00b", NULL, NULL, "");
    route_is("GET", "/v1/audio/voices/%4", NULL, NULL, "");
    route_is("GET", "/v1/audio/voices/a/b", NULL, NULL, "");
    route_is("GET", "/v1/audio/voices/", NULL, NULL, "");
    route_is("GET", "//health", NULL, NULL, "");
    route_is("GET", "/health/", NULL, NULL, "");
    route_is("GET", "", NULL, NULL, "");
    route_is("BREW", "/v1/tts", NULL, NULL, "POST");
    char longer[200];
    memset(longer, 'a', sizeof longer);
    memcpy(longer, "/v1/audio/voices/", 17);
    longer[199] = '\0';
    route_is("GET", longer, NULL, NULL, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers),          cmocka_unit_test(faults),
                                       cmocka_unit_test(null_is_absent),   cmocka_unit_test(forms_have_text),
                                       cmocka_unit_test(tables_are_sound), cmocka_unit_test(routes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
