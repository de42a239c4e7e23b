/* client.c - see client.h. */
#include "client.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

struct client {
    CURLM *multi;
    char base[200];
    size_t running;
};

double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void die(const char *what)
{
    fprintf(stderr, "serve_bench: %s\n", what);
    exit(1);
}

char *copy_text(const char *text)
{
    char *copy = strdup(text);
    if (copy == NULL) die("out of memory");
    return copy;
}

static void note_arrival(struct call *c)
{
    if (c->arrival_count == c->arrival_room) {
        c->arrival_room = c->arrival_room > 0 ? 2 * c->arrival_room : 64;
        c->arrivals = realloc(c->arrivals, c->arrival_room * sizeof *c->arrivals);
        if (c->arrivals == NULL) die("out of memory");
    }
    c->last = now();
    if (c->arrival_count == 0) c->first = c->last;
    c->arrivals[c->arrival_count++] = (struct arrival){c->last, c->bytes};
}

static void keep_text(struct call *c, const char *bytes, size_t count)
{
    size_t before = c->bytes - count;
    if (c->bytes + 1 > c->text_room) {
        c->text_room = 2 * (c->bytes + 1);
        c->text = realloc(c->text, c->text_room);
        if (c->text == NULL) die("out of memory");
    }
    memcpy(c->text + before, bytes, count);
    c->text[c->bytes] = '\0';
}

static size_t take(char *bytes, size_t size, size_t count, void *context)
{
    struct call *c = context;
    (void)size;
    c->bytes += count;
    note_arrival(c);
    if (c->keep) keep_text(c, bytes, count);
    if (c->bytes < c->leave_after) return count;
    c->left = 1;
    return 0;
}

static size_t take_header(char *line, size_t size, size_t count, void *context)
{
    struct call *c = context;
    (void)size;
    if (count > 15 && strncasecmp(line, "x-sample-rate:", 14) == 0) c->rate = atoi(line + 14);
    if (count > 13 && strncasecmp(line, "retry-after:", 12) == 0) c->retry = atof(line + 12);
    return count;
}

/* Leaving before the first byte, or after a time. */
static int look(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    struct call *call = context;
    (void)a, (void)b, (void)c, (void)d;
    call->left |= call->leave_seconds > 0 && now() - call->begun > call->leave_seconds;
    return call->left;
}

struct client *client_open(const char *base)
{
    struct client *client = calloc(1, sizeof *client);
    if (client == NULL || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) die("cannot start libcurl");
    client->multi = curl_multi_init();
    if (client->multi == NULL) die("cannot start libcurl");
    curl_multi_setopt(client->multi, CURLMOPT_MAXCONNECTS, 64L);
    snprintf(client->base, sizeof client->base, "%s", base);
    return client;
}

void client_close(struct client *client)
{
    curl_multi_cleanup(client->multi);
    free(client);
}

static void set_up(struct client *client, struct call *c, CURL *curl)
{
    char url[400];
    snprintf(url, sizeof url, "%s%s", client->base, c->path);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, c->method);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_PRIVATE, c);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, c);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, look);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, c);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, 300L);
    if (c->bytes_per_second > 0) {
        curl_easy_setopt(curl, CURLOPT_MAX_RECV_SPEED_LARGE, (curl_off_t)c->bytes_per_second);
        curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 1024L);
    }
    struct curl_slist *headers = curl_slist_append(NULL, "Expect:");
    if (c->type[0] != '\0') {
        char line[80];
        snprintf(line, sizeof line, "Content-Type: %s", c->type);
        headers = curl_slist_append(headers, line);
    }
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    c->headers = headers;
    if (c->body == NULL) return;
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->body_bytes);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, c->body);
}

int client_start(struct client *client, struct call *c)
{
    CURL *curl = curl_easy_init();
    if (curl == NULL) return 0;
    c->http = c->left = c->rate = 0;
    c->bytes = c->arrival_count = 0;
    c->first = c->last = c->retry = 0;
    c->begun = now();
    c->handle = curl;
    c->client = client;
    set_up(client, c, curl);
    if (curl_multi_add_handle(client->multi, curl) != CURLM_OK) return 0;
    client->running++;
    return 1;
}

size_t client_running(const struct client *client)
{
    return client->running;
}

static void finish(struct client *client, CURL *curl, CURLcode code)
{
    struct call *c;
    long http = 0;
    curl_easy_getinfo(curl, CURLINFO_PRIVATE, &c);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &http);
    c->http = (int)http;
    c->transport = (int)code;
    if (c->last == 0) c->last = now();
    curl_multi_remove_handle(client->multi, curl);
    curl_easy_cleanup(curl);
    curl_slist_free_all(c->headers);
    c->handle = c->headers = NULL;
    client->running--;
    if (c->ended != NULL) c->ended(c);
}

void client_work(struct client *client, double seconds)
{
    int left, running;
    CURLMsg *message;
    curl_multi_perform(client->multi, &running);
    if ((message = curl_multi_info_read(client->multi, &left)) == NULL) {
        curl_multi_poll(client->multi, NULL, 0, (int)(seconds * 1000), NULL);
        curl_multi_perform(client->multi, &running);
        message = curl_multi_info_read(client->multi, &left);
    }
    for (; message != NULL; message = curl_multi_info_read(client->multi, &left))
        if (message->msg == CURLMSG_DONE) finish(client, message->easy_handle, message->data.result);
}

int client_simple(struct client *client, const char *method, const char *path, const char *type, const char *body, char **text)
{
    struct call c = {.leave_after = SIZE_MAX, .keep = text != NULL};
    snprintf(c.method, sizeof c.method, "%s", method);
    snprintf(c.path, sizeof c.path, "%s", path);
    snprintf(c.type, sizeof c.type, "%s", type != NULL ? type : "");
    if (body != NULL) {
        c.body = copy_text(body);
        c.body_bytes = strlen(body);
    }
    if (!client_start(client, &c)) die("out of memory");
    while (c.handle != NULL) client_work(client, 1);
    if (text != NULL) {
        *text = c.text != NULL ? c.text : copy_text("");
        c.text = NULL;
    }
    call_free(&c);
    return c.http;
}

void call_free(struct call *c)
{
    free(c->body);
    free(c->arrivals);
    free(c->text);
    c->body = c->text = NULL;
    c->arrivals = NULL;
    c->arrival_room = c->text_room = 0;
}
