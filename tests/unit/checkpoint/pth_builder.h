/* pth_builder.h - writes small torch archives for tests, good and bad ones. Memory is malloc's: faults are planted in the code
 * under test only. */
#ifndef THESPIS_TESTS_PTH_BUILDER_H
#define THESPIS_TESTS_PTH_BUILDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes ------------------------------------------------------------------------------------------------------------------- */

struct bytes {
    uint8_t *at; /* [count], room for [room] */
    size_t count, room;
};

static inline void put(struct bytes *b, const void *data, size_t count)
{
    if (b->count + count > b->room) {
        b->room = (b->count + count) * 2;
        b->at = realloc(b->at, b->room);
        if (b->at == NULL) abort();
    }
    if (count > 0) memcpy(b->at + b->count, data, count);
    b->count += count;
}

/* The low `count` bytes of a number, little end first. */
static inline void put_number(struct bytes *b, uint64_t number, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint8_t byte = i < 8 ? (uint8_t)(number >> 8 * i) : 0;
        put(b, &byte, 1);
    }
}

static inline void drop(struct bytes *b)
{
    free(b->at);
    *b = (struct bytes){0};
}

/* ---- zip --------------------------------------------------------------------------------------------------------------------- */

/* What the next entry gets wrong; zero means right. */
struct zip_fault {
    uint16_t method, flags, local_method, disk;
    const char *local_name;
    uint64_t size, offset, local_size; /* instead of the true ones */
    size_t skew;                       /* bytes by which the payload misses the multiple of 64 */
    int no_crc, wide, short_wide;      /* wide: 64-bit fields in the extra block; short_wide: announced and missing */
};

struct zipper {
    struct bytes out, directory;
    size_t entries;
    struct zip_fault fault; /* of the next entry */
    size_t last_offset;     /* of the last entry's local header */
};

static inline uint32_t checksum(const uint8_t *data, size_t count)
{
    uint32_t table[256], crc = 0xFFFFFFFF;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int k = 0; k < 8; k++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xEDB88320 : 0);
    }
    for (size_t i = 0; i < count; i++) crc = crc >> 8 ^ table[(crc ^ data[i]) & 0xFF];
    return ~crc;
}

static inline void put_central(struct zipper *z, const char *name, uint64_t size, uint64_t offset, uint32_t crc)
{
    const struct zip_fault *f = &z->fault;
    struct bytes *d = &z->directory;
    uint32_t none = UINT32_MAX;
    put_number(d, 0x02014B50, 4);
    put_number(d, 0, 4);
    put_number(d, f->flags ? f->flags : 0x0808, 2);
    put_number(d, f->method, 2);
    put_number(d, 0, 4);
    put_number(d, crc, 4);
    put_number(d, f->wide || f->short_wide ? none : size, 4);
    put_number(d, f->wide || f->short_wide ? none : size, 4);
    put_number(d, strlen(name), 2);
    put_number(d, f->wide ? 28 : f->short_wide ? 12 : 0, 2);
    put_number(d, 0, 2);
    put_number(d, f->disk, 2);
    put_number(d, 0, 6);
    put_number(d, f->wide ? none : offset, 4);
    put(d, name, strlen(name));
    if (f->wide || f->short_wide) {
        put_number(d, 1, 2);
        put_number(d, f->wide ? 24 : 8, 2);
        put_number(d, size, 8);
        if (f->wide) put_number(d, size, 8);
        if (f->wide) put_number(d, offset, 8);
    }
}

/* As torch does: zeros for checksum and sizes in the local header, the payload at a multiple of 64. */
static inline void zip_add(struct zipper *z, const char *name, const void *data, size_t count)
{
    const struct zip_fault *f = &z->fault;
    const char *local_name = f->local_name ? f->local_name : name;
    size_t offset = z->out.count, head = offset + 30 + strlen(local_name) + 4, pad = (64 - head % 64) % 64 + f->skew;
    put_number(&z->out, 0x04034B50, 4);
    put_number(&z->out, 0, 2);
    put_number(&z->out, 0x0808, 2);
    put_number(&z->out, f->local_method, 2);
    put_number(&z->out, 0, 8);
    put_number(&z->out, f->local_size, 4);
    put_number(&z->out, f->local_size, 4);
    put_number(&z->out, strlen(local_name), 2);
    put_number(&z->out, pad + 4, 2);
    put(&z->out, local_name, strlen(local_name));
    put(&z->out, "FB", 2);
    put_number(&z->out, pad, 2);
    for (size_t i = 0; i < pad; i++) put(&z->out, "Z", 1);
    put(&z->out, data, count);
    put_central(z, name, f->size ? f->size : count, f->offset ? f->offset : offset, f->no_crc ? 0 : checksum(data, count));
    z->entries++;
    z->last_offset = offset;
    z->fault = (struct zip_fault){0};
}

/* Appends the directory and the end records; the result is z->out. */
static inline void zip_finish(struct zipper *z, int zip64)
{
    uint64_t directory = z->out.count, end64;
    put(&z->out, z->directory.at, z->directory.count);
    end64 = z->out.count;
    if (zip64) {
        put_number(&z->out, 0x06064B50, 4);
        put_number(&z->out, 44, 8);
        put_number(&z->out, 0, 12);
        put_number(&z->out, z->entries, 8);
        put_number(&z->out, z->entries, 8);
        put_number(&z->out, z->directory.count, 8);
        put_number(&z->out, directory, 8);
        put_number(&z->out, 0x07064B50, 4);
        put_number(&z->out, 0, 4);
        put_number(&z->out, end64, 8);
        put_number(&z->out, 1, 4);
    }
    put_number(&z->out, 0x06054B50, 4);
    put_number(&z->out, 0, 4);
    put_number(&z->out, zip64 ? UINT16_MAX : z->entries, 2);
    put_number(&z->out, zip64 ? UINT16_MAX : z->entries, 2);
    put_number(&z->out, zip64 ? UINT32_MAX : z->directory.count, 4);
    put_number(&z->out, zip64 ? UINT32_MAX : directory, 4);
    put_number(&z->out, 0, 2);
    drop(&z->directory);
}

/* ---- pickle ------------------------------------------------------------------------------------------------------------------ */

static inline void pickle_begin(struct bytes *p)
{
    put(p, "\x80\x02", 2);
}

static inline void pickle_text(struct bytes *p, const char *text)
{
    put(p, "X", 1);
    put_number(p, strlen(text), 4);
    put(p, text, strlen(text));
}

static inline void pickle_integer(struct bytes *p, int64_t number)
{
    if (number >= 0 && number < 256) {
        put(p, "K", 1);
        put_number(p, (uint64_t)number, 1);
    } else if (number >= 0 && number < 65536) {
        put(p, "M", 1);
        put_number(p, (uint64_t)number, 2);
    } else if (number >= INT32_MIN && number <= INT32_MAX) {
        put(p, "J", 1);
        put_number(p, (uint64_t)number, 4);
    } else {
        put(p, "\x8A\x08", 2);
        put_number(p, (uint64_t)number, 8);
    }
}

static inline void pickle_integers(struct bytes *p, int count, const int64_t *numbers)
{
    put(p, "(", 1);
    for (int i = 0; i < count; i++) pickle_integer(p, numbers[i]);
    put(p, "t", 1);
}

static inline void pickle_global(struct bytes *p, const char *module, const char *name)
{
    put(p, "c", 1);
    put(p, module, strlen(module));
    put(p, "\n", 1);
    put(p, name, strlen(name));
    put(p, "\n", 1);
}

static inline void pickle_storage(struct bytes *p, const char *type, const char *key, int64_t count)
{
    put(p, "(", 1);
    pickle_text(p, "storage");
    pickle_global(p, "torch", type);
    pickle_text(p, key);
    pickle_text(p, "cpu");
    pickle_integer(p, count);
    put(p, "tQ", 2);
}

static inline void pickle_ordered(struct bytes *p)
{
    pickle_global(p, "collections", "OrderedDict");
    put(p, ")R", 2);
}

struct view {
    const char *type, *key;
    int64_t count, offset; /* items of the storage; first item */
    int rank, stride_rank; /* stride_rank 0: as rank */
    int64_t shape[6], strides[6];
};

static inline void pickle_tensor(struct bytes *p, const struct view *v)
{
    pickle_global(p, "torch._utils", "_rebuild_tensor_v2");
    put(p, "(", 1);
    pickle_storage(p, v->type, v->key, v->count);
    pickle_integer(p, v->offset);
    pickle_integers(p, v->rank, v->shape);
    pickle_integers(p, v->stride_rank ? v->stride_rank : v->rank, v->strides);
    put(p, "\x89", 1);
    pickle_ordered(p);
    put(p, "tR", 2);
}

/* The view of a whole storage, row-major. */
static inline struct view whole(const char *type, const char *key, int rank, const int64_t *shape)
{
    struct view v = {.type = type, .key = key, .count = 1, .rank = rank};
    for (int i = rank - 1; i >= 0; i--) {
        v.shape[i] = shape[i];
        v.strides[i] = v.count;
        v.count *= shape[i];
    }
    return v;
}

/* ---- chance ------------------------------------------------------------------------------------------------------------------ */

static inline uint32_t chance(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

#endif
