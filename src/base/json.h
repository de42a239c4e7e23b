/* json.h - strict reading of JSON files through Jansson: UTF-8, no duplicate keys, no trailing bytes, errors with positions. */
#ifndef THESPIS_BASE_JSON_H
#define THESPIS_BASE_JSON_H

#include <jansson.h>

#include "base/error.h"

/* `name` is how messages call the text. *root is the caller's, released with json_decref. */
thespis_status th_json_parse(const char *text, size_t bytes, const char *name, json_t **root, thespis_error *error);
thespis_status th_json_read(const char *path, size_t max_bytes, json_t **root, thespis_error *error);

/* "object", "integer", ...; for messages. */
const char *th_json_kind(const json_t *value);

#endif
