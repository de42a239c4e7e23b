/* value.h - what a request body says, whether it came as JSON, MessagePack or a form: one tree.
 *
 * Texts are views into what was parsed and live as long as the tree. */
#ifndef THESPIS_SERVER_VALUE_H
#define THESPIS_SERVER_VALUE_H

#include <jansson.h>

#include "server/fault.h"

#define TH_VALUE_MAX_DEPTH 16
#define TH_VALUE_MAX_ITEMS 1000000 /* of all lists and maps: each costs more memory than its bytes */

enum th_value_kind { TH_NOTHING, TH_BOOLEAN, TH_INTEGER, TH_NUMBER, TH_TEXT, TH_BINARY, TH_LIST, TH_MAP };

struct th_value {
    enum th_value_kind kind; /* NOTHING: null, nil */
    int boolean;
    int huge; /* an integer beyond 63 bits */
    int64_t integer;
    double number;
    const char *text;       /* [count] bytes of TEXT and BINARY; not ended by a zero byte */
    size_t count;           /* of items, too */
    struct th_value *items; /* [count] of LIST and MAP */
    struct th_value *keys;  /* [count] of MAP: texts */
};

struct MHD_Connection;
struct th_form;

struct th_tree {
    struct th_value root; /* a MAP */
    int is_form;          /* numbers and booleans stand as text */
    json_t *json;
    void *zone;           /* msgpack's */
    struct th_form *form; /* names and values of a form */
};

/* Each sets *tree, released with th_tree_free also after a failure. The bytes must outlive the tree. */
thespis_status th_tree_json(const char *bytes, size_t count, struct th_tree *tree, struct th_fault *fault);
thespis_status th_tree_msgpack(const char *bytes, size_t count, struct th_tree *tree, struct th_fault *fault);
thespis_status th_tree_form(struct MHD_Connection *connection, const char *bytes, size_t count, struct th_tree *tree,
                            struct th_fault *fault);
void th_tree_free(struct th_tree *tree);

void th_form_free(struct th_form *form);

/* The value of a key, or NULL. */
const struct th_value *th_value_find(const struct th_value *map, const char *key);
/* "a number", "null", ...; for messages. */
const char *th_value_kind(const struct th_value *value);

#endif
