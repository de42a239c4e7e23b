/* routes.c - see routes.h. */
#include "server/routes.h"

#include <stdio.h>
#include <string.h>

#include "server/ask.h"
#include "server/handlers.h"

#define BODY (TH_ROUTE_JSON | TH_ROUTE_MSGPACK | TH_ROUTE_FORM)
#define SPEAKS (TH_ROUTE_ENGINE | TH_ROUTE_QUEUE)

const struct th_route th_routes[] = {
    {"POST", "/v1/audio/speech", SPEAKS | TH_ROUTE_JSON, th_handle_speech, &th_openai_fields, "Speak a text."},
    {"GET", "/v1/audio/speech/{request_id}", 0, th_handle_outcome, NULL, "What became of a finished stream."},
    {"POST", "/v1/audio/speech/batch", SPEAKS | TH_ROUTE_JSON, th_handle_batch, NULL, "Speak up to 32 texts."},
    {"GET", "/v1/audio/voices", 0, th_handle_voices, NULL, "The voices there are."},
    {"POST", "/v1/audio/voices", TH_ROUTE_ENGINE | TH_ROUTE_FORM | TH_ROUTE_UPLOAD, th_handle_voice_add, NULL, "Store a voice."},
    {"GET", "/v1/audio/voices/{name}", 0, th_handle_voice, NULL, "One voice."},
    {"DELETE", "/v1/audio/voices/{name}", 0, th_handle_voice_delete, NULL, "Forget a voice."},
    {"GET", "/v1/models", 0, th_handle_models, NULL, "The served model."},
    {"GET", "/v1/models/{id}", 0, th_handle_model, NULL, "The served model, by name."},
    {"POST", "/v1/tts", SPEAKS | TH_ROUTE_FISH | BODY, th_handle_tts, &th_fish_fields, "Speak a text (Fish)."},
    {"POST", "/v1/references/add", TH_ROUTE_ENGINE | TH_ROUTE_FISH | BODY | TH_ROUTE_UPLOAD, th_handle_reference_add, NULL,
     "Store a voice (Fish)."},
    {"GET", "/v1/references/list", TH_ROUTE_FISH, th_handle_reference_list, NULL, "The stored voices (Fish)."},
    {"DELETE", "/v1/references/delete", TH_ROUTE_FISH | BODY, th_handle_reference_delete, NULL, "Forget a voice (Fish)."},
    {"POST", "/v1/references/update", TH_ROUTE_FISH | BODY, th_handle_reference_update, NULL, "Rename a voice (Fish)."},
    {"GET", "/v1/health", TH_ROUTE_OPEN | TH_ROUTE_FISH, th_handle_fish_health, NULL, "The Fish clients' probe."},
    {"POST", "/v1/health", TH_ROUTE_OPEN | TH_ROUTE_FISH, th_handle_fish_health, NULL, "The Fish clients' probe."},
    {"GET", "/health", TH_ROUTE_OPEN, th_handle_health, NULL, "Liveness."},
    {"GET", "/ready", TH_ROUTE_OPEN, th_handle_ready, NULL, "Readiness."},
    {"GET", "/metrics", TH_ROUTE_METRICS, th_handle_metrics, NULL, "For Prometheus."},
    {"GET", "/openapi.json", TH_ROUTE_OPEN, th_handle_openapi, NULL, "This interface as an OpenAPI document."},
};
const size_t th_route_count = sizeof th_routes / sizeof *th_routes;

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* %XX undone; 0 when that makes a zero byte, is cut off, or does not fit. */
static int decode(const char *from, char *to, size_t size)
{
    size_t n = 0;
    while (*from != '\0') {
        char c = *from++;
        if (c == '%') {
            int high = hex(from[0]), low = high >= 0 ? hex(from[1]) : -1;
            if (low < 0) return 0;
            c = (char)(high * 16 + low);
            from += 2;
        }
        if (c == '\0' || n + 1 == size) return 0;
        to[n++] = c;
    }
    to[n] = '\0';
    return 1;
}

static int matches(const char *pattern, const char *path, char *argument, size_t argument_size)
{
    const char *brace = strchr(pattern, '{');
    if (brace == NULL) return strcmp(pattern, path) == 0;
    size_t n = (size_t)(brace - pattern);
    const char *last = path + n;
    return strncmp(pattern, path, n) == 0 && *last != '\0' && strchr(last, '/') == NULL && decode(last, argument, argument_size);
}

static int has_word(const char *list, const char *word)
{
    return strstr(list, word) != NULL;
}

/* Is the path a route's own, without a name in it? */
static int is_plain(const char *path)
{
    for (size_t i = 0; i < th_route_count; i++)
        if (strcmp(th_routes[i].path, path) == 0) return 1;
    return 0;
}

const struct th_route *th_route_find(const char *method, const char *path, char *argument, size_t argument_size, char allowed[100])
{
    const struct th_route *found = NULL;
    const char *as = strcmp(method, "HEAD") == 0 ? "GET" : method;
    int plain = is_plain(path);
    allowed[0] = '\0';
    for (size_t i = 0; i < th_route_count; i++) {
        const struct th_route *r = &th_routes[i];
        /* A path without a name in it comes before one with: .../batch is no request id. */
        if (plain ? strcmp(r->path, path) != 0 : !matches(r->path, path, argument, argument_size)) continue;
        if (strcmp(r->method, as) == 0) found = r;
        size_t used = strlen(allowed);
        if (!has_word(allowed, r->method) && used < 80)
            snprintf(allowed + used, 100 - used, "%s%s%s", used > 0 ? ", " : "", r->method,
                     strcmp(r->method, "GET") == 0 ? ", HEAD" : "");
    }
    return found;
}

int th_route_is_fish(const char *path)
{
    /* The last three are what Fish's clients ask of Fish's own service and we have not: their 404 is one they can read. */
    static const char *const begins[] = {"/v1/tts", "/v1/references", "/v1/vqgan", "/v1/asr", "/model", "/wallet"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(path, begins[i], strlen(begins[i])) == 0) return 1;
    return 0;
}
