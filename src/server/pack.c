/* pack.c - see pack.h. */
#include "server/pack.h"

#include <msgpack.h>

/* Each msgpack_pack_* tells of failure by a number other than 0. */
static int pack(msgpack_packer *p, const json_t *value);

static int pack_object(msgpack_packer *p, json_t *value)
{
    const char *key;
    json_t *item;
    int failed = msgpack_pack_map(p, json_object_size(value));
    json_object_foreach(value, key, item) failed |= msgpack_pack_str_with_body(p, key, strlen(key)) | pack(p, item);
    return failed;
}

static int pack_array(msgpack_packer *p, const json_t *value)
{
    size_t index;
    json_t *item;
    int failed = msgpack_pack_array(p, json_array_size(value));
    json_array_foreach(value, index, item) failed |= pack(p, item);
    return failed;
}

static int pack(msgpack_packer *p, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return pack_object(p, (json_t *)value);
    case JSON_ARRAY: return pack_array(p, value);
    case JSON_STRING: return msgpack_pack_str_with_body(p, json_string_value(value), json_string_length(value));
    case JSON_INTEGER: return msgpack_pack_int64(p, json_integer_value(value));
    case JSON_REAL: return msgpack_pack_double(p, json_real_value(value));
    case JSON_TRUE: return msgpack_pack_true(p);
    case JSON_FALSE: return msgpack_pack_false(p);
    default: return msgpack_pack_nil(p);
    }
}

char *th_pack_json(const json_t *value, size_t *count)
{
    msgpack_sbuffer buffer;
    msgpack_packer packer;
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
    int failed = pack(&packer, value);
    *count = buffer.size;
    char *bytes = msgpack_sbuffer_release(&buffer);
    if (!failed) return bytes;
    free(bytes);
    return NULL;
}
