/* fuzz_body.c - the body of a request to the server, as JSON or MessagePack, and the fields of both kinds of speech requests. */
#include "fuzz.h"

#include "server/ask.h"
#include "server/fields.h"

static void told(thespis_status status, const struct th_fault *fault)
{
    if (status != THESPIS_OK && (fault->http < 400 || fault->http > 599 || fault->message[0] == '\0'))
        fuzz_bad("fault", fault->message);
}

static void fuzz(const uint8_t *data, size_t size)
{
    struct th_tree tree = {0};
    struct th_fault fault = {0};
    struct th_ask ask;
    if (size < 1) return;
    const char *bytes = (const char *)data + 1;
    thespis_status status =
        data[0] & 1 ? th_tree_msgpack(bytes, size - 1, &tree, &fault) : th_tree_json(bytes, size - 1, &tree, &fault);
    told(status, &fault);
    if (status == THESPIS_OK) {
        th_ask_init(&ask);
        told(th_fields_read(&th_openai_fields, &tree.root, 0, "", &ask, &fault), &fault);
        th_ask_init(&ask);
        told(th_fields_read(&th_fish_fields, &tree.root, TH_FIELDS_IGNORE_UNKNOWN, "items.0.", &ask, &fault), &fault);
    }
    th_tree_free(&tree);
}

FUZZ_TARGET
