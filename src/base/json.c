/* json.c - see json.h. */
#include "base/json.h"

#include <string.h>

#include "base/file.h"
#include "base/memory.h"

thespis_status th_json_parse(const char *text, size_t bytes, const char *name, json_t **root, thespis_error *error)
{
    json_error_t where;
    *root = NULL;
    /* Jansson takes a zero byte between tokens for the end of its buffer and goes on. */
    if (bytes > 0 && memchr(text, '\0', bytes) != NULL)
        return th_fail(error, THESPIS_FORMAT, "%s: not valid JSON: it holds a zero byte", name);
    *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);
    if (*root != NULL) return THESPIS_OK;
    return th_fail(error, THESPIS_FORMAT, "%s: not valid JSON at line %d, column %d: %s", name, where.line, where.column,
                   where.text);
}

thespis_status th_json_read(const char *path, size_t max_bytes, json_t **root, thespis_error *error)
{
    char *text;
    size_t bytes;
    *root = NULL;
    TH_TRY(th_file_read(path, max_bytes, &text, &bytes, error));
    thespis_status status = th_json_parse(text, bytes, path, root, error);
    th_free(text);
    return status;
}

const char *th_json_kind(const json_t *value)
{
    if (value == NULL) return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "object";
    case JSON_ARRAY: return "array";
    case JSON_STRING: return "string";
    case JSON_INTEGER: return "integer";
    case JSON_REAL: return "number";
    case JSON_TRUE:
    case JSON_FALSE: return "boolean";
    default: return "null";
    }
}
