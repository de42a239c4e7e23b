/* reference_fetch.c - http(s) URLs by libcurl, within rules; see reference_source.h.
 *
 * The address is checked in the callback that makes the socket: it is the very one that is connected to, for the first URL and for
 * each redirect. Proxies of the environment are not used, since one would connect where we cannot look. */
#include <curl/curl.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "server/reference_source.h"

#define MAX_REDIRECTS 3L
#define MAX_URL 2048

struct fetch {
    const struct th_reference_rules *rules;
    struct th_bytes *out;
    size_t begin; /* of out, before */
    thespis_error *error;
    int refused;           /* an address was not public */
    thespis_status failed; /* memory, or too large */
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode started;

static void start_curl(void)
{
    started = curl_global_init(CURL_GLOBAL_DEFAULT);
}

static curl_socket_t open_socket(void *context, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct fetch *f = context;
    (void)purpose;
    if (!f->rules->fetch_private && !th_address_is_public(&address->addr)) {
        f->refused = 1;
        return CURL_SOCKET_BAD;
    }
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

static size_t take(char *bytes, size_t size, size_t count, void *context)
{
    struct fetch *f = context;
    (void)size; /* always 1 */
    if (f->out->count - f->begin + count > f->rules->max_bytes)
        f->failed =
            th_fail(f->error, THESPIS_LIMIT, "the URL gives more than %zu bytes, which is the most allowed", f->rules->max_bytes);
    else
        f->failed = th_bytes_add(f->out, bytes, count, f->error);
    return f->failed == THESPIS_OK ? count : 0;
}

static int ask(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    struct fetch *f = context;
    (void)a, (void)b, (void)c, (void)d;
    return f->rules->gone != NULL && f->rules->gone(f->rules->context);
}

static CURLcode set_up(CURL *curl, const char *url, struct fetch *f)
{
    CURLcode code = CURLE_OK;
#define SET(option, value) code = code == CURLE_OK ? curl_easy_setopt(curl, option, value) : code
    SET(CURLOPT_URL, url);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_FOLLOWLOCATION, 1L);
    SET(CURLOPT_MAXREDIRS, MAX_REDIRECTS);
    SET(CURLOPT_PROXY, "");
    SET(CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
    SET(CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    SET(CURLOPT_TIMEOUT_MS, (long)(f->rules->fetch_seconds * 1000));
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_QUICK_EXIT, 1L); /* a resolver that hangs does not hold us */
    SET(CURLOPT_FAILONERROR, 1L);
    SET(CURLOPT_USERAGENT, "thespis");
    SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
    SET(CURLOPT_OPENSOCKETDATA, f);
    SET(CURLOPT_WRITEFUNCTION, take);
    SET(CURLOPT_WRITEDATA, f);
    SET(CURLOPT_NOPROGRESS, 0L);
    SET(CURLOPT_XFERINFOFUNCTION, ask);
    SET(CURLOPT_XFERINFODATA, f);
#undef SET
    return code;
}

/* The reasons are told without what the other side said: an answer is nothing that a stranger may read through us. */
static thespis_status tell(CURLcode code, long http, const struct fetch *f, thespis_error *error)
{
    if (f->failed != THESPIS_OK) return f->failed; /* with its own message */
    switch (code) {
    case CURLE_OK: return http == 200 ? THESPIS_OK : th_fail(error, THESPIS_INVALID, "the URL answers %ld, not 200", http);
    case CURLE_HTTP_RETURNED_ERROR: return th_fail(error, THESPIS_INVALID, "the URL answers %ld, not 200", http);
    case CURLE_OPERATION_TIMEDOUT: return th_fail(error, THESPIS_INVALID, "the URL took longer than %g s", f->rules->fetch_seconds);
    case CURLE_TOO_MANY_REDIRECTS: return th_fail(error, THESPIS_INVALID, "the URL redirects more than %ld times", MAX_REDIRECTS);
    case CURLE_COULDNT_CONNECT:
        if (f->refused) return th_fail(error, THESPIS_INVALID, "the URL leads to an address that is not public");
        return th_fail(error, THESPIS_INVALID, "the URL's server does not answer");
    case CURLE_ABORTED_BY_CALLBACK: return th_fail(error, THESPIS_CANCELLED, "the client has gone");
    case CURLE_OUT_OF_MEMORY: return th_fail_memory(error, "fetching a URL", 0);
    default: return th_fail(error, THESPIS_INVALID, "the URL cannot be fetched: %s", curl_easy_strerror(code));
    }
}

static thespis_status run(const char *url, struct fetch *f, thespis_error *error)
{
    long http = 0;
    CURL *curl = curl_easy_init();
    if (curl == NULL) return th_fail_memory(error, "fetching a URL", 0);
    CURLcode code = set_up(curl, url, f);
    if (code == CURLE_OK) code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &http);
    curl_easy_cleanup(curl);
    return tell(code, http, f, error);
}

thespis_status th_reference_fetch(const struct th_reference_rules *rules, const char *text, size_t count, struct th_bytes *out,
                                  thespis_error *error)
{
    char url[MAX_URL + 1];
    if (!rules->fetch)
        return th_fail(error, THESPIS_INVALID, "this server fetches no URLs: send the recording itself, as base64 or a data: URL");
    if (count > MAX_URL) return th_fail(error, THESPIS_LIMIT, "a URL of %zu bytes, at most %d are allowed", count, MAX_URL);
    for (size_t i = 0; i < count; i++)
        if ((unsigned char)text[i] <= 32 || text[i] == 127)
            return th_fail(error, THESPIS_INVALID, "a URL with byte 0x%02X at position %zu", (unsigned)(unsigned char)text[i], i);
    memcpy(url, text, count);
    url[count] = '\0';
    pthread_once(&once, start_curl);
    if (started != CURLE_OK) return th_fail_memory(error, "libcurl", 0);
    struct fetch f = {.rules = rules, .out = out, .begin = out->count, .error = error};
    thespis_status status = run(url, &f, error);
    if (status != THESPIS_OK) out->count = f.begin;
    return status;
}
