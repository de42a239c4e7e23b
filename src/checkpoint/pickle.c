/* pickle.c - see pickle.h. The bounds are far above what a codec needs (a few thousand opcodes) and keep memory within a small
 * multiple of the pickle's own size. */
#include "checkpoint/pickle.h"

#include <inttypes.h>
#include <string.h>

#include "base/memory.h"

#define MAX_PICKLE_BYTES (64u << 20)
#define MAX_OPCODES (1u << 22)
#define MAX_STACK (1u << 16)
#define MAX_MEMO (1u << 20)
#define MAX_KEY_BYTES 64

enum opcode {
    OP_PROTO = 0x80,
    OP_STOP = 0x2E,
    OP_MARK = 0x28,
    OP_EMPTY_TUPLE = 0x29,
    OP_TUPLE = 0x74,
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_EMPTY_DICT = 0x7D,
    OP_SETITEM = 0x73,
    OP_SETITEMS = 0x75,
    OP_EMPTY_LIST = 0x5D,
    OP_APPEND = 0x61,
    OP_APPENDS = 0x65,
    OP_BININT1 = 0x4B,
    OP_BININT2 = 0x4D,
    OP_BININT = 0x4A,
    OP_LONG1 = 0x8A,
    OP_BINUNICODE = 0x58,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_NONE = 0x4E,
    OP_BINPUT = 0x71,
    OP_LONG_BINPUT = 0x72,
    OP_BINGET = 0x68,
    OP_LONG_BINGET = 0x6A,
    OP_GLOBAL = 0x63,
    OP_BINPERSID = 0x51,
    OP_REDUCE = 0x52,
    OP_BUILD = 0x62
};

enum accepted { ORDERED_DICT, REBUILD_TENSOR, REBUILD_PARAMETER, STORAGE_TYPES };

/* The only names a pickle may mention. From STORAGE_TYPES on: kinds of storage, with their item type. */
static const struct {
    const char *module, *name;
    enum th_dtype dtype;
} accepted[] = {
    {"collections", "OrderedDict", TH_U8},
    {"torch._utils", "_rebuild_tensor_v2", TH_U8},
    {"torch._utils", "_rebuild_parameter", TH_U8},
    {"torch", "FloatStorage", TH_F32},
    {"torch", "BFloat16Storage", TH_BF16},
    {"torch", "HalfStorage", TH_F16},
    {"torch", "BoolStorage", TH_BOOL},
    {"torch", "LongStorage", TH_I64},
};

struct machine {
    const uint8_t *data; /* [bytes] */
    size_t bytes, at;
    const char *label;
    struct th_pickle *out;
    thespis_error *error;
};

static thespis_status wrong(const struct machine *m, const char *what)
{
    return th_fail(m->error, THESPIS_FORMAT, "%s: at byte %zu: %s", m->label, m->at, what);
}

/* The array with room for one more item of `size`, or NULL when memory is short; the old block then stays as it was. */
static void *grown(void *at, size_t count, size_t *room, size_t size)
{
    if (count < *room) return at;
    size_t wider = *room == 0 ? 16 : *room * 2;
    void *block = th_realloc(at, *room, wider, size);
    if (block != NULL) *room = wider;
    return block;
}
#define PUT(m, array, item)                                                                                                        \
    do {                                                                                                                           \
        void *block_ = grown((array).at, (array).count, &(array).room, sizeof *(array).at);                                        \
        if (block_ == NULL) return th_fail_memory((m)->error, "a pickle's contents", (array).count * sizeof *(array).at);          \
        (array).at = block_;                                                                                                       \
        (array).at[(array).count++] = (item);                                                                                      \
    } while (0)

static thespis_status push(struct machine *m, struct th_pickle_value value)
{
    if (m->out->stack.count >= MAX_STACK) return wrong(m, "the stack is deeper than 65536 values");
    PUT(m, m->out->stack, value);
    return THESPIS_OK;
}

static thespis_status push_number(struct machine *m, enum th_pickle_kind kind, int64_t number)
{
    return push(m, (struct th_pickle_value){.kind = kind, .number = number});
}

/* The topmost value, which must not be a mark; it stays on the stack. */
static thespis_status peek(const struct machine *m, struct th_pickle_value *value)
{
    if (m->out->stack.count == 0) return wrong(m, "a value is taken from an empty stack");
    *value = m->out->stack.at[m->out->stack.count - 1];
    if (value->kind == TH_PICKLE_MARK) return wrong(m, "a mark stands where a value should be");
    return THESPIS_OK;
}

static thespis_status pop(struct machine *m, struct th_pickle_value *value)
{
    TH_TRY(peek(m, value));
    m->out->stack.count--;
    return THESPIS_OK;
}

/* Position of the item after the topmost mark. */
static thespis_status find_mark(const struct machine *m, size_t *first)
{
    for (size_t i = m->out->stack.count; i > 0; i--)
        if (m->out->stack.at[i - 1].kind == TH_PICKLE_MARK) {
            *first = i;
            return THESPIS_OK;
        }
    return wrong(m, "a mark is missing");
}

/* ---- operands ---------------------------------------------------------------------------------------------------------------- */

static thespis_status take(struct machine *m, size_t bytes, const uint8_t **p)
{
    if (bytes > m->bytes - m->at) return wrong(m, "the pickle ends inside an opcode");
    *p = m->data + m->at;
    m->at += bytes;
    return THESPIS_OK;
}

/* An unsigned little-endian operand of 1, 2 or 4 bytes. */
static thespis_status operand(struct machine *m, size_t bytes, uint32_t *number)
{
    const uint8_t *p = NULL;
    TH_TRY(take(m, bytes, &p));
    *number = 0;
    for (size_t i = 0; i < bytes; i++) *number |= (uint32_t)p[i] << 8 * i;
    return THESPIS_OK;
}

static thespis_status push_integer(struct machine *m, size_t bytes)
{
    uint32_t number = 0;
    TH_TRY(operand(m, bytes, &number));
    return push_number(m, TH_PICKLE_INT, bytes == 4 ? (int64_t)(int32_t)number : (int64_t)number);
}

static thespis_status push_long(struct machine *m)
{
    const uint8_t *p = NULL;
    uint32_t bytes = 0;
    uint64_t number = 0;
    TH_TRY(operand(m, 1, &bytes));
    if (bytes > 8) return wrong(m, "an integer has more than 8 bytes");
    TH_TRY(take(m, bytes, &p));
    for (uint32_t i = 0; i < bytes; i++) number |= (uint64_t)p[i] << 8 * i;
    /* Two's complement of `bytes` bytes: carry the sign up. */
    if (bytes > 0 && bytes < 8 && p[bytes - 1] & 0x80) number |= UINT64_MAX << 8 * bytes;
    return push_number(m, TH_PICKLE_INT, (int64_t)number);
}

static thespis_status push_text(struct machine *m)
{
    const uint8_t *p = NULL;
    uint32_t bytes = 0;
    TH_TRY(operand(m, 4, &bytes));
    TH_TRY(take(m, bytes, &p));
    return push(m, (struct th_pickle_value){.kind = TH_PICKLE_TEXT, .more.text = (const char *)p, .bytes = bytes});
}

static thespis_status line(struct machine *m, struct th_pickle_text *text)
{
    const uint8_t *begin = m->data + m->at, *end = memchr(begin, '\n', m->bytes - m->at);
    if (end == NULL) return wrong(m, "the name of a global does not end");
    text->data = (const char *)begin;
    text->bytes = (size_t)(end - begin);
    m->at += text->bytes + 1;
    return THESPIS_OK;
}

static int same(struct th_pickle_text text, const char *expected)
{
    return text.bytes == strlen(expected) && memcmp(text.data, expected, text.bytes) == 0;
}

static thespis_status push_global(struct machine *m)
{
    struct th_pickle_text module = {0}, name = {0};
    TH_TRY(line(m, &module));
    TH_TRY(line(m, &name));
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++)
        if (same(module, accepted[i].module) && same(name, accepted[i].name)) return push_number(m, TH_PICKLE_GLOBAL, (int64_t)i);
    return th_fail(m->error, THESPIS_FORMAT, "%s: at byte %zu: the global '%.*s %.*s' is not accepted: only tensors are read",
                   m->label, m->at, module.bytes < 100 ? (int)module.bytes : 100, module.data,
                   name.bytes < 100 ? (int)name.bytes : 100, name.data);
}

/* ---- memo -------------------------------------------------------------------------------------------------------------------- */

static thespis_status memo_put(struct machine *m, size_t bytes)
{
    struct th_pickle_value value = {0};
    uint32_t index = 0;
    TH_TRY(operand(m, bytes, &index));
    TH_TRY(peek(m, &value));
    if (index >= MAX_MEMO) return wrong(m, "a memo index is above 1048575");
    /* Slots in between stay marks, which no opcode memoises. */
    while (m->out->memo.count <= index) PUT(m, m->out->memo, (struct th_pickle_value){.kind = TH_PICKLE_MARK});
    m->out->memo.at[index] = value;
    return THESPIS_OK;
}

static thespis_status memo_get(struct machine *m, size_t bytes)
{
    uint32_t index = 0;
    TH_TRY(operand(m, bytes, &index));
    if (index >= m->out->memo.count || m->out->memo.at[index].kind == TH_PICKLE_MARK)
        return wrong(m, "a memo slot is read that was never set");
    return push(m, m->out->memo.at[index]);
}

/* ---- containers -------------------------------------------------------------------------------------------------------------- */

/* Replaces the stack from `first` on by one tuple; `marked`: the mark below goes too. */
static thespis_status make_tuple(struct machine *m, size_t first, int marked)
{
    struct th_pickle *out = m->out;
    struct th_pickle_value tuple = {.kind = TH_PICKLE_TUPLE, .number = (int64_t)out->tuples.count};
    for (size_t i = first; i < out->stack.count; i++) {
        if (out->stack.at[i].kind == TH_PICKLE_MARK) return wrong(m, "a mark stands where a value should be");
        PUT(m, out->tuples, out->stack.at[i]);
    }
    tuple.more.items = (int64_t)(out->stack.count - first);
    out->stack.count = first - (marked ? 1 : 0);
    return push(m, tuple);
}

static thespis_status make_short_tuple(struct machine *m, size_t items)
{
    if (m->out->stack.count < items) return wrong(m, "a value is taken from an empty stack");
    return make_tuple(m, m->out->stack.count - items, 0);
}

static thespis_status make_marked_tuple(struct machine *m)
{
    size_t first = 0;
    TH_TRY(find_mark(m, &first));
    return make_tuple(m, first, 1);
}

static thespis_status make_dict(struct machine *m, int ordered)
{
    struct th_pickle_dict dict = {.ordered = ordered};
    int64_t index = (int64_t)m->out->dicts.count;
    PUT(m, m->out->dicts, dict);
    return push_number(m, TH_PICKLE_DICT, index);
}

/* Pairs of the stack from `first` on go into the dictionary that lies `below` positions under them. */
static thespis_status set_items(struct machine *m, size_t first, size_t below)
{
    struct th_pickle *out = m->out;
    if (first < below || out->stack.at[first - below].kind != TH_PICKLE_DICT)
        return wrong(m, "items are put into something that is no dict");
    if ((out->stack.count - first) % 2 != 0) return wrong(m, "a dict's key has no value");
    struct th_pickle_dict *dict = &out->dicts.at[out->stack.at[first - below].number];
    for (size_t i = first; i < out->stack.count; i += 2) {
        if (out->stack.at[i].kind == TH_PICKLE_MARK || out->stack.at[i + 1].kind == TH_PICKLE_MARK)
            return wrong(m, "a mark stands where a value should be");
        struct th_pickle_pair pair = {out->stack.at[i], out->stack.at[i + 1]};
        PUT(m, dict->pairs, pair);
    }
    out->stack.count = first - below + 1;
    return THESPIS_OK;
}

/* Lists are not kept, so appending only has to take the items away. */
static thespis_status append(struct machine *m, size_t first, size_t below)
{
    struct th_pickle *out = m->out;
    if (first < below || out->stack.at[first - below].kind != TH_PICKLE_LIST)
        return wrong(m, "items are appended to something that is no list");
    for (size_t i = first; i < out->stack.count; i++)
        if (out->stack.at[i].kind == TH_PICKLE_MARK) return wrong(m, "a mark stands where a value should be");
    out->stack.count = first - below + 1;
    return THESPIS_OK;
}

static thespis_status fill(struct machine *m, enum opcode opcode)
{
    size_t first = m->out->stack.count, single = opcode == OP_SETITEM ? 2 : 1;
    if (opcode == OP_SETITEMS || opcode == OP_APPENDS) {
        TH_TRY(find_mark(m, &first));
        return opcode == OP_SETITEMS ? set_items(m, first, 2) : append(m, first, 2);
    }
    if (first < single) return wrong(m, "a value is taken from an empty stack");
    return opcode == OP_SETITEM ? set_items(m, first - 2, 1) : append(m, first - 1, 1);
}

/* ---- torch's objects --------------------------------------------------------------------------------------------------------- */

static const struct th_pickle_value *item(const struct machine *m, const struct th_pickle_value *tuple, int64_t index)
{
    return &m->out->tuples.at[tuple->number + index];
}

static int is_text(const struct th_pickle_value *value, const char *expected)
{
    return value->kind == TH_PICKLE_TEXT && same((struct th_pickle_text){value->more.text, value->bytes}, expected);
}

/* ("storage", type, key, device, items) */
static thespis_status make_storage(struct machine *m)
{
    struct th_pickle_value id = {0};
    TH_TRY(pop(m, &id));
    if (id.kind != TH_PICKLE_TUPLE || id.more.items != 5 || !is_text(item(m, &id, 0), "storage"))
        return wrong(m, "a persistent id is not ('storage', type, key, device, count)");
    const struct th_pickle_value *type = item(m, &id, 1), *key = item(m, &id, 2), *count = item(m, &id, 4);
    if (type->kind != TH_PICKLE_GLOBAL || type->number < STORAGE_TYPES) return wrong(m, "a storage has no storage type");
    if (key->kind != TH_PICKLE_TEXT || key->bytes == 0 || key->bytes > MAX_KEY_BYTES)
        return wrong(m, "a storage's key is no short text");
    if (item(m, &id, 3)->kind != TH_PICKLE_TEXT) return wrong(m, "a storage's device is no text");
    if (count->kind != TH_PICKLE_INT || count->number < 0) return wrong(m, "a storage's count is no integer of at least 0");
    int64_t index = (int64_t)m->out->storages.count;
    struct th_pickle_storage storage = {
        .key = {key->more.text, key->bytes}, .dtype = accepted[type->number].dtype, .count = count->number};
    PUT(m, m->out->storages, storage);
    return push_number(m, TH_PICKLE_STORAGE, index);
}

/* The integers of a tuple of at most TH_TENSOR_MAX_RANK items, each at least `least`. */
static thespis_status integers(const struct machine *m, const struct th_pickle_value *tuple, int64_t least, int64_t *numbers,
                               const char *complaint)
{
    if (tuple->kind != TH_PICKLE_TUPLE || tuple->more.items > TH_TENSOR_MAX_RANK) return wrong(m, complaint);
    for (int64_t i = 0; i < tuple->more.items; i++) {
        const struct th_pickle_value *value = item(m, tuple, i);
        if (value->kind != TH_PICKLE_INT || value->number < least) return wrong(m, complaint);
        numbers[i] = value->number;
    }
    return THESPIS_OK;
}

/* Does the view lie in its storage, and does it hold no more items than there are (a stride of 0 could repeat one without end)? */
static thespis_status check_view(const struct machine *m, struct th_pickle_tensor *tensor, int64_t count)
{
    int64_t last = tensor->offset, span;
    tensor->items = 1;
    for (int i = 0; i < tensor->rank; i++) {
        if (__builtin_mul_overflow(tensor->shape[i] - 1, tensor->strides[i], &span) || __builtin_add_overflow(last, span, &last) ||
            __builtin_mul_overflow(tensor->items, tensor->shape[i], &tensor->items))
            return wrong(m, "a tensor's size overflows");
    }
    if (last < count && tensor->items <= count) return THESPIS_OK;
    return th_fail(m->error, THESPIS_FORMAT,
                   "%s: at byte %zu: a tensor of %" PRId64 " items that reaches item %" PRId64
                   " lies outside of its storage of %" PRId64,
                   m->label, m->at, tensor->items, last, count);
}

/* (storage, offset, size, stride, requires_grad, hooks[, metadata]) */
static thespis_status rebuild_tensor(struct machine *m, const struct th_pickle_value *arguments)
{
    struct th_pickle_tensor tensor = {0};
    if (arguments->more.items != 6 && arguments->more.items != 7)
        return wrong(m, "_rebuild_tensor_v2 has neither 6 nor 7 arguments");
    const struct th_pickle_value *storage = item(m, arguments, 0), *offset = item(m, arguments, 1), *size = item(m, arguments, 2);
    const struct th_pickle_value *stride = item(m, arguments, 3), *hooks = item(m, arguments, 5);
    if (storage->kind != TH_PICKLE_STORAGE) return wrong(m, "a tensor has no storage");
    if (offset->kind != TH_PICKLE_INT || offset->number < 0) return wrong(m, "a tensor's offset is no integer of at least 0");
    TH_TRY(integers(m, size, 1, tensor.shape, "a tensor's size is not a tuple of at most 4 positive integers"));
    TH_TRY(integers(m, stride, 0, tensor.strides, "a tensor's strides are not a tuple of at most 4 integers of at least 0"));
    if (size->more.items != stride->more.items) return wrong(m, "a tensor's size and strides have different lengths");
    if (item(m, arguments, 4)->kind != TH_PICKLE_BOOL) return wrong(m, "a tensor's requires_grad is no boolean");
    if (hooks->kind != TH_PICKLE_DICT || m->out->dicts.at[hooks->number].pairs.count != 0)
        return wrong(m, "a tensor has backward hooks");
    tensor.storage = (int)storage->number;
    tensor.rank = (int)size->more.items;
    tensor.offset = offset->number;
    TH_TRY(check_view(m, &tensor, m->out->storages.at[storage->number].count));
    int64_t index = (int64_t)m->out->tensors.count;
    PUT(m, m->out->tensors, tensor);
    return push_number(m, TH_PICKLE_TENSOR, index);
}

static thespis_status reduce(struct machine *m)
{
    struct th_pickle_value arguments = {0}, callable = {0};
    TH_TRY(pop(m, &arguments));
    TH_TRY(pop(m, &callable));
    if (callable.kind != TH_PICKLE_GLOBAL || callable.number >= STORAGE_TYPES)
        return wrong(m, "REDUCE calls something that cannot be called");
    if (arguments.kind != TH_PICKLE_TUPLE) return wrong(m, "REDUCE has no tuple of arguments");
    if (callable.number == REBUILD_TENSOR) return rebuild_tensor(m, &arguments);
    if (callable.number == ORDERED_DICT) {
        if (arguments.more.items != 0) return wrong(m, "OrderedDict is called with arguments");
        return make_dict(m, 1);
    }
    /* A parameter is its tensor; the other two arguments matter for training only. */
    if (arguments.more.items != 3 || item(m, &arguments, 0)->kind != TH_PICKLE_TENSOR)
        return wrong(m, "_rebuild_parameter has no tensor");
    return push(m, *item(m, &arguments, 0));
}

/* A state dictionary carries its module versions as an attribute, which is dropped. */
static thespis_status build(struct machine *m)
{
    struct th_pickle_value state = {0}, object = {0};
    TH_TRY(pop(m, &state));
    TH_TRY(peek(m, &object));
    if (object.kind != TH_PICKLE_DICT || !m->out->dicts.at[object.number].ordered || state.kind != TH_PICKLE_DICT)
        return wrong(m, "BUILD is accepted on an OrderedDict with a dict as state only");
    return THESPIS_OK;
}

/* ---- the machine ------------------------------------------------------------------------------------------------------------- */

static thespis_status step(struct machine *m, enum opcode opcode)
{
    switch (opcode) {
    case OP_MARK: return push_number(m, TH_PICKLE_MARK, 0);
    case OP_EMPTY_TUPLE: return make_short_tuple(m, 0);
    case OP_TUPLE: return make_marked_tuple(m);
    case OP_TUPLE1: return make_short_tuple(m, 1);
    case OP_TUPLE2: return make_short_tuple(m, 2);
    case OP_TUPLE3: return make_short_tuple(m, 3);
    case OP_EMPTY_DICT: return make_dict(m, 0);
    case OP_EMPTY_LIST: return push_number(m, TH_PICKLE_LIST, 0);
    case OP_SETITEM:
    case OP_SETITEMS:
    case OP_APPEND:
    case OP_APPENDS: return fill(m, opcode);
    case OP_BININT1: return push_integer(m, 1);
    case OP_BININT2: return push_integer(m, 2);
    case OP_BININT: return push_integer(m, 4);
    case OP_LONG1: return push_long(m);
    case OP_BINUNICODE: return push_text(m);
    case OP_NEWTRUE: return push_number(m, TH_PICKLE_BOOL, 1);
    case OP_NEWFALSE: return push_number(m, TH_PICKLE_BOOL, 0);
    case OP_NONE: return push_number(m, TH_PICKLE_NONE, 0);
    case OP_BINPUT: return memo_put(m, 1);
    case OP_LONG_BINPUT: return memo_put(m, 4);
    case OP_BINGET: return memo_get(m, 1);
    case OP_LONG_BINGET: return memo_get(m, 4);
    case OP_GLOBAL: return push_global(m);
    case OP_BINPERSID: return make_storage(m);
    case OP_REDUCE: return reduce(m);
    case OP_BUILD: return build(m);
    default: break;
    }
    return th_fail(m->error, THESPIS_FORMAT, "%s: at byte %zu: pickle opcode 0x%02X is not accepted: only tensors are read",
                   m->label, m->at - 1, (unsigned)opcode);
}

static thespis_status execute(struct machine *m)
{
    const uint8_t *p = NULL;
    if (m->bytes < 2 || m->data[0] != OP_PROTO || m->data[1] != 2) return wrong(m, "this is no pickle of protocol 2");
    m->at = 2;
    for (size_t count = 0;; count++) {
        if (count >= MAX_OPCODES) return wrong(m, "the pickle has more than 4194304 opcodes");
        TH_TRY(take(m, 1, &p));
        if (*p == OP_STOP) break;
        TH_TRY(step(m, (enum opcode) * p));
    }
    TH_TRY(pop(m, &m->out->top));
    if (m->out->stack.count != 0) return wrong(m, "values are left on the stack at the end");
    if (m->at != m->bytes) return wrong(m, "bytes follow the end of the pickle");
    return THESPIS_OK;
}

thespis_status th_pickle_read(const uint8_t *data, size_t bytes, const char *label, struct th_pickle *pickle, thespis_error *error)
{
    struct machine m = {.data = data, .bytes = bytes, .label = label, .out = pickle, .error = error};
    memset(pickle, 0, sizeof *pickle);
    if (bytes > MAX_PICKLE_BYTES)
        return th_fail(error, THESPIS_LIMIT, "%s: the pickle has %zu bytes, at most %u are read", label, bytes, MAX_PICKLE_BYTES);
    thespis_status status = execute(&m);
    if (status != THESPIS_OK) th_pickle_close(pickle);
    return status;
}

void th_pickle_close(struct th_pickle *pickle)
{
    for (size_t i = 0; i < pickle->dicts.count; i++) th_free(pickle->dicts.at[i].pairs.at);
    th_free(pickle->stack.at);
    th_free(pickle->memo.at);
    th_free(pickle->tuples.at);
    th_free(pickle->dicts.at);
    th_free(pickle->storages.at);
    th_free(pickle->tensors.at);
    memset(pickle, 0, sizeof *pickle);
}

const struct th_pickle_value *th_pickle_get(const struct th_pickle *pickle, const struct th_pickle_value *dict, const char *key)
{
    if (dict->kind != TH_PICKLE_DICT) return NULL;
    const struct th_pickle_dict *d = &pickle->dicts.at[dict->number];
    for (size_t i = d->pairs.count; i > 0; i--)
        if (is_text(&d->pairs.at[i - 1].key, key)) return &d->pairs.at[i - 1].value;
    return NULL;
}
