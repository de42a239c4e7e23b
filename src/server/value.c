/* value.c - see value.h. Bodies are measured before they are parsed: depth and number of items bound the memory of the tree. */
#include "server/value.h"

#include <msgpack.h>
#include <string.h>

#include "base/memory.h"

const char *th_value_kind(const struct th_value *value)
{
    static const char *const names[] = {"null", "a boolean", "an integer", "a number", "a string", "binary", "a list", "an object"};
    return names[value->kind];
}

const struct th_value *th_value_find(const struct th_value *map, const char *key)
{
    size_t n = strlen(key);
    for (size_t i = 0; i < map->count; i++)
        if (map->keys[i].count == n && memcmp(map->keys[i].text, key, n) == 0) return &map->items[i];
    return NULL;
}

static void value_free(struct th_value *value)
{
    for (size_t i = 0; value->items != NULL && i < value->count; i++) value_free(&value->items[i]);
    th_free(value->items);
    th_free(value->keys);
}

void th_tree_free(struct th_tree *tree)
{
    value_free(&tree->root);
    json_decref(tree->json);
    if (tree->zone != NULL) msgpack_zone_free(tree->zone);
    th_form_free(tree->form);
    memset(tree, 0, sizeof *tree);
}

static thespis_status no_memory(struct th_fault *fault, size_t bytes)
{
    thespis_error error;
    th_fail_memory(&error, "the request", bytes);
    return th_fault_from(fault, &error, "", NULL);
}

/* Room for the items of a list, and the keys of a map. */
static thespis_status make_items(struct th_value *value, enum th_value_kind kind, size_t count, struct th_fault *fault)
{
    value->kind = kind;
    value->items = th_alloc(count, sizeof *value->items);
    if (kind == TH_MAP) value->keys = th_alloc(count, sizeof *value->keys);
    if (value->items == NULL || (kind == TH_MAP && value->keys == NULL)) return no_memory(fault, count * sizeof *value->items);
    value->count = count;
    return THESPIS_OK;
}

static void set_text(struct th_value *value, enum th_value_kind kind, const char *text, size_t count)
{
    value->kind = kind;
    value->text = text;
    value->count = count;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------------------- */

/* Depth and items, counted outside of strings; a text that is no JSON at all is left to the parser. */
static thespis_status measure_json(const char *bytes, size_t count, struct th_fault *fault)
{
    size_t depth = 0, items = 0;
    int quoted = 0;
    for (size_t i = 0; i < count; i++) {
        char c = bytes[i];
        if (c == '\0') return th_fault_set(fault, 400, NULL, "the request body must be valid JSON: byte %zu is U+0000", i);
        if (quoted) {
            if (c == '\\' && i + 1 < count && bytes[i + 1] != '\0') i++;
            if (c == '"') quoted = 0;
            continue;
        }
        if (c == '"') quoted = 1;
        if (c == ',' || c == '[' || c == '{') items++;
        if (c == '[' || c == '{') depth++;
        if ((c == ']' || c == '}') && depth > 0) depth--;
        if (depth > TH_VALUE_MAX_DEPTH)
            return th_fault_set(fault, 400, NULL, "the request body is nested more than %d deep at byte %zu", TH_VALUE_MAX_DEPTH,
                                i);
        if (items > TH_VALUE_MAX_ITEMS)
            return th_fault_set(fault, 400, NULL, "the request body has more than %d values", TH_VALUE_MAX_ITEMS);
    }
    return THESPIS_OK;
}

static thespis_status from_json(const json_t *json, struct th_value *value, struct th_fault *fault);

static thespis_status from_object(json_t *json, struct th_value *value, struct th_fault *fault)
{
    size_t i = 0;
    TH_TRY(make_items(value, TH_MAP, json_object_size(json), fault));
    for (void *at = json_object_iter(json); at != NULL && i < value->count; at = json_object_iter_next(json, at), i++) {
        const char *key = json_object_iter_key(at);
        set_text(&value->keys[i], TH_TEXT, key, strlen(key));
        TH_TRY(from_json(json_object_iter_value(at), &value->items[i], fault));
    }
    return THESPIS_OK;
}

static thespis_status from_array(const json_t *json, struct th_value *value, struct th_fault *fault)
{
    TH_TRY(make_items(value, TH_LIST, json_array_size(json), fault));
    for (size_t i = 0; i < value->count; i++) TH_TRY(from_json(json_array_get(json, i), &value->items[i], fault));
    return THESPIS_OK;
}

static thespis_status from_json(const json_t *json, struct th_value *value, struct th_fault *fault)
{
    switch (json_typeof(json)) {
    case JSON_OBJECT: return from_object((json_t *)json, value, fault);
    case JSON_ARRAY: return from_array(json, value, fault);
    case JSON_STRING: set_text(value, TH_TEXT, json_string_value(json), json_string_length(json)); break;
    case JSON_INTEGER:
        value->kind = TH_INTEGER;
        value->integer = json_integer_value(json);
        break;
    case JSON_REAL:
        value->kind = TH_NUMBER;
        value->number = json_real_value(json);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        value->kind = TH_BOOLEAN;
        value->boolean = json_is_true(json);
        break;
    default: break;
    }
    return THESPIS_OK;
}

thespis_status th_tree_json(const char *bytes, size_t count, struct th_tree *tree, struct th_fault *fault)
{
    json_error_t where;
    memset(tree, 0, sizeof *tree);
    TH_TRY(measure_json(bytes, count, fault));
    tree->json = json_loadb(count > 0 ? bytes : "", count, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);
    if (tree->json == NULL && json_error_code(&where) == json_error_out_of_memory) return no_memory(fault, count);
    if (tree->json == NULL)
        return th_fault_set(fault, 400, NULL, "the request body must be valid JSON: line %d, column %d: %s", where.line,
                            where.column, where.text);
    if (!json_is_object(tree->json)) return th_fault_set(fault, 400, NULL, "the request body must be a JSON object");
    return from_json(tree->json, &tree->root, fault);
}

/* ---- MessagePack ------------------------------------------------------------------------------------------------------------- */

/* A walk over the bytes before msgpack-c allocates what lengths in them declare. */
struct walk {
    const uint8_t *at, *end;
    size_t items;
    struct th_fault *fault;
};

static thespis_status broken(struct walk *w, const char *why)
{
    return th_fault_set(w->fault, 400, NULL, "the request body must be valid MessagePack: %s", why);
}

/* The big-endian number of `bytes` bytes that comes next. */
static thespis_status take_length(struct walk *w, size_t bytes, size_t *length)
{
    *length = 0;
    if ((size_t)(w->end - w->at) < bytes) return broken(w, "it is cut off");
    for (size_t i = 0; i < bytes; i++) *length = *length << 8 | *w->at++;
    return THESPIS_OK;
}

static thespis_status skip(struct walk *w, size_t bytes)
{
    if ((size_t)(w->end - w->at) < bytes) return broken(w, "it is cut off");
    w->at += bytes;
    return THESPIS_OK;
}

static thespis_status walk_value(struct walk *w, int depth);

static thespis_status walk_items(struct walk *w, size_t count, int depth)
{
    if (depth >= TH_VALUE_MAX_DEPTH) return broken(w, "it is nested more than 16 deep");
    if (count > (size_t)(w->end - w->at)) return broken(w, "it is cut off");
    w->items += count;
    if (w->items > TH_VALUE_MAX_ITEMS) return broken(w, "it has more than 1000000 values");
    for (size_t i = 0; i < count; i++) TH_TRY(walk_value(w, depth + 1));
    return THESPIS_OK;
}

static thespis_status walk_value(struct walk *w, int depth)
{
    static const uint8_t scalar[32] = {
        [0x0A] = 4, [0x0B] = 8, [0x0C] = 1, [0x0D] = 2, [0x0E] = 4, [0x0F] = 8, [0x10] = 1, [0x11] = 2, [0x12] = 4, [0x13] = 8};
    size_t n;
    TH_TRY(take_length(w, 1, &n));
    uint8_t head = (uint8_t)n;
    if (head < 0x80 || head >= 0xE0) return THESPIS_OK;
    if (head < 0x90) return walk_items(w, 2 * (size_t)(head & 15), depth);
    if (head < 0xA0) return walk_items(w, head & 15, depth);
    if (head < 0xC0) return skip(w, head & 31);
    switch (head) {
    case 0xC0:
    case 0xC2:
    case 0xC3: return THESPIS_OK;
    case 0xC1: return broken(w, "the byte 0xC1 is never used");
    case 0xC4:
    case 0xC5:
    case 0xC6: TH_TRY(take_length(w, (size_t)1 << (head - 0xC4), &n)); return skip(w, n);
    case 0xD9:
    case 0xDA:
    case 0xDB: TH_TRY(take_length(w, (size_t)1 << (head - 0xD9), &n)); return skip(w, n);
    case 0xDC:
    case 0xDD: TH_TRY(take_length(w, head == 0xDC ? 2 : 4, &n)); return walk_items(w, n, depth);
    case 0xDE:
    case 0xDF: TH_TRY(take_length(w, head == 0xDE ? 2 : 4, &n)); return walk_items(w, 2 * n, depth);
    default:
        if (scalar[head - 0xC0] == 0) return broken(w, "extension types are not known here");
        return skip(w, scalar[head - 0xC0]);
    }
}

static thespis_status from_msgpack(const msgpack_object *o, struct th_value *value, struct th_fault *fault);

static thespis_status from_msgpack_map(const msgpack_object_map *map, struct th_value *value, struct th_fault *fault)
{
    TH_TRY(make_items(value, TH_MAP, map->size, fault));
    for (size_t i = 0; i < value->count; i++) {
        const msgpack_object *key = &map->ptr[i].key;
        if (key->type != MSGPACK_OBJECT_STR) return th_fault_set(fault, 400, NULL, "keys in MessagePack must be strings");
        set_text(&value->keys[i], TH_TEXT, key->via.str.ptr, key->via.str.size);
        TH_TRY(from_msgpack(&map->ptr[i].val, &value->items[i], fault));
    }
    return THESPIS_OK;
}

static thespis_status from_msgpack_list(const msgpack_object_array *list, struct th_value *value, struct th_fault *fault)
{
    TH_TRY(make_items(value, TH_LIST, list->size, fault));
    for (size_t i = 0; i < value->count; i++) TH_TRY(from_msgpack(&list->ptr[i], &value->items[i], fault));
    return THESPIS_OK;
}

static thespis_status from_msgpack(const msgpack_object *o, struct th_value *value, struct th_fault *fault)
{
    switch (o->type) {
    case MSGPACK_OBJECT_MAP: return from_msgpack_map(&o->via.map, value, fault);
    case MSGPACK_OBJECT_ARRAY: return from_msgpack_list(&o->via.array, value, fault);
    case MSGPACK_OBJECT_STR: set_text(value, TH_TEXT, o->via.str.ptr, o->via.str.size); break;
    case MSGPACK_OBJECT_BIN: set_text(value, TH_BINARY, o->via.bin.ptr, o->via.bin.size); break;
    case MSGPACK_OBJECT_BOOLEAN:
        value->kind = TH_BOOLEAN;
        value->boolean = o->via.boolean;
        break;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        value->kind = TH_INTEGER;
        value->huge = o->via.u64 > INT64_MAX;
        value->integer = value->huge ? INT64_MAX : (int64_t)o->via.u64;
        break;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        value->kind = TH_INTEGER;
        value->integer = o->via.i64;
        break;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        value->kind = TH_NUMBER;
        value->number = o->via.f64;
        break;
    default: break;
    }
    return THESPIS_OK;
}

thespis_status th_tree_msgpack(const char *bytes, size_t count, struct th_tree *tree, struct th_fault *fault)
{
    memset(tree, 0, sizeof *tree);
    struct walk w = {(const uint8_t *)bytes, (const uint8_t *)bytes + count, 0, fault};
    TH_TRY(walk_value(&w, 0));
    if (w.at != w.end)
        return th_fault_set(fault, 400, NULL, "the request body has %zu bytes after its end", (size_t)(w.end - w.at));
    msgpack_zone *zone = msgpack_zone_new(8192);
    if (zone == NULL) return no_memory(fault, count);
    tree->zone = zone;
    msgpack_object root;
    size_t at = 0;
    if (msgpack_unpack(bytes, count, &at, zone, &root) != MSGPACK_UNPACK_SUCCESS || at != count)
        return th_fault_set(fault, 400, NULL, "the request body must be valid MessagePack");
    if (root.type != MSGPACK_OBJECT_MAP) return th_fault_set(fault, 400, NULL, "the request body must be a map");
    return from_msgpack(&root, &tree->root, fault);
}
