/* zip.c - see zip.h. Record layouts are those of the zip application note; every multi-byte field is little-endian. */
#include "checkpoint/zip.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { END_BYTES = 22, LOCATOR_BYTES = 20, END64_BYTES = 56, CENTRAL_BYTES = 46, LOCAL_BYTES = 30 };
enum { FLAG_ENCRYPTED = 0x0001, FLAG_STRONG = 0x0040, FLAG_MASKED = 0x2000, EXTRA_ZIP64 = 0x0001 };
#define MAX_ENTRIES 65536

static const uint32_t signature_end = 0x06054B50, signature_locator = 0x07064B50, signature_end64 = 0x06064B50;
static const uint32_t signature_central = 0x02014B50, signature_local = 0x04034B50;

/* What is being read, for every function below. */
struct archive {
    const uint8_t *data; /* [bytes] */
    size_t bytes;
    const char *label;
    uint64_t directory, directory_bytes, count; /* central directory: offset, size, entries */
    uint64_t limit;                             /* where the end records begin: nothing else may reach past this */
    uint64_t *begins;                           /* [count] offset of each entry's local header, in order of the directory */
    thespis_error *error;
};

static uint32_t u16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t u32(const uint8_t *p)
{
    return u16(p) | u16(p + 2) << 16;
}

static uint64_t u64(const uint8_t *p)
{
    return u32(p) | (uint64_t)u32(p + 4) << 32;
}

static int name_length(size_t bytes)
{
    return bytes < 200 ? (int)bytes : 200;
}

/* The end record: the last one whose comment ends exactly with the file. */
static thespis_status find_end(const struct archive *a, size_t *at)
{
    size_t furthest = a->bytes > END_BYTES + 65535 ? a->bytes - END_BYTES - 65535 : 0;
    for (size_t i = a->bytes < END_BYTES ? 0 : a->bytes - END_BYTES + 1; i > furthest; i--) {
        const uint8_t *p = a->data + i - 1;
        if (u32(p) == signature_end && u16(p + 20) == a->bytes - (i - 1) - END_BYTES) {
            *at = i - 1;
            return THESPIS_OK;
        }
    }
    return th_fail(a->error, THESPIS_FORMAT, "'%s': no zip directory at the end of the file (%zu bytes): it is cut short or no zip",
                   a->label, a->bytes);
}

/* The 64-bit end record, when a locator stands in front of the end record. */
static thespis_status read_end64(struct archive *a, size_t end, int *found)
{
    *found = 0;
    if (end < LOCATOR_BYTES || u32(a->data + end - LOCATOR_BYTES) != signature_locator) return THESPIS_OK;
    size_t locator = end - LOCATOR_BYTES;
    uint64_t at = u64(a->data + locator + 8);
    if (u32(a->data + locator + 4) != 0 || u32(a->data + locator + 16) > 1)
        return th_fail(a->error, THESPIS_FORMAT, "'%s': a zip of several disks is not read", a->label);
    if (locator < END64_BYTES || at > locator - END64_BYTES || u32(a->data + at) != signature_end64)
        return th_fail(a->error, THESPIS_FORMAT, "'%s': the zip64 locator points to offset %llu, where no zip64 end record is",
                       a->label, (unsigned long long)at);
    const uint8_t *p = a->data + at;
    uint64_t record = u64(p + 4); /* of what follows the size field itself */
    if (record < END64_BYTES - 12 || record > locator - at - 12)
        return th_fail(a->error, THESPIS_FORMAT, "'%s': the zip64 end record states %llu bytes", a->label,
                       (unsigned long long)record);
    if (u32(p + 16) != 0 || u32(p + 20) != 0 || u64(p + 24) != u64(p + 32))
        return th_fail(a->error, THESPIS_FORMAT, "'%s': a zip of several disks is not read", a->label);
    a->count = u64(p + 32);
    a->directory_bytes = u64(p + 40);
    a->directory = u64(p + 48);
    a->limit = at;
    *found = 1;
    return THESPIS_OK;
}

static thespis_status read_end(struct archive *a)
{
    size_t end = 0;
    int found = 0;
    TH_TRY(find_end(a, &end));
    const uint8_t *p = a->data + end;
    TH_TRY(read_end64(a, end, &found));
    if (!found) {
        if (u16(p + 4) != 0 || u16(p + 6) != 0 || u16(p + 8) != u16(p + 10))
            return th_fail(a->error, THESPIS_FORMAT, "'%s': a zip of several disks is not read", a->label);
        a->count = u16(p + 10);
        a->directory_bytes = u32(p + 12);
        a->directory = u32(p + 16);
        a->limit = end;
    }
    if (a->directory > a->limit || a->directory_bytes > a->limit - a->directory)
        return th_fail(a->error, THESPIS_FORMAT, "'%s': the zip directory (offset %llu, %llu bytes) lies outside of the file",
                       a->label, (unsigned long long)a->directory, (unsigned long long)a->directory_bytes);
    if (a->count > MAX_ENTRIES || a->count > a->directory_bytes / CENTRAL_BYTES)
        return th_fail(a->error, THESPIS_FORMAT,
                       "'%s': the zip states %llu entries in a directory of %llu bytes (at most %d are read)", a->label,
                       (unsigned long long)a->count, (unsigned long long)a->directory_bytes, MAX_ENTRIES);
    return THESPIS_OK;
}

/* Replaces the fields that are all ones by their 64-bit values, which stand in the extra block in this order. */
static thespis_status read_zip64(const struct archive *a, const uint8_t *extra, size_t bytes, uint64_t *const fields[3],
                                 const int wide[3])
{
    while (bytes >= 4) {
        size_t block = u16(extra + 2);
        if (block > bytes - 4) break;
        if (u16(extra) == EXTRA_ZIP64) {
            const uint8_t *p = extra + 4;
            if (block < 8 * (size_t)(wide[0] + wide[1] + wide[2])) break;
            for (int i = 0; i < 3; i++) {
                if (!wide[i]) continue;
                *fields[i] = u64(p);
                p += 8;
            }
            return THESPIS_OK;
        }
        extra += 4 + block;
        bytes -= 4 + block;
    }
    return th_fail(a->error, THESPIS_FORMAT, "'%s': a zip entry announces 64-bit sizes and does not hold them", a->label);
}

/* Where the payload begins: only the local header knows how long its own extra block is. */
static thespis_status locate(const struct archive *a, uint64_t local, uint64_t bytes, struct th_zip_entry *entry)
{
    int n = name_length(entry->name_bytes);
    if (local > a->directory || a->directory - local < LOCAL_BYTES || u32(a->data + local) != signature_local)
        return th_fail(a->error, THESPIS_FORMAT, "'%s': zip entry '%.*s' points to offset %llu, where no entry begins", a->label, n,
                       entry->name, (unsigned long long)local);
    const uint8_t *p = a->data + local;
    if (u16(p + 8) != 0)
        return th_fail(a->error, THESPIS_FORMAT, "'%s': zip entry '%.*s' is compressed (method %u), only stored ones are read",
                       a->label, n, entry->name, u16(p + 8));
    uint64_t head = LOCAL_BYTES + (uint64_t)u16(p + 26) + u16(p + 28);
    if (head > a->directory - local || bytes > a->directory - local - head)
        return th_fail(a->error, THESPIS_FORMAT, "'%s': zip entry '%.*s' (%llu bytes at offset %llu) reaches past the data",
                       a->label, n, entry->name, (unsigned long long)bytes, (unsigned long long)local);
    if (u16(p + 26) != entry->name_bytes || memcmp(p + LOCAL_BYTES, entry->name, entry->name_bytes) != 0)
        return th_fail(a->error, THESPIS_FORMAT, "'%s': zip entry '%.*s' has another name in its own header", a->label, n,
                       entry->name);
    uint32_t packed = u32(p + 18), stated = u32(p + 22);
    if ((packed != 0 && packed != UINT32_MAX && packed != bytes) || (stated != 0 && stated != UINT32_MAX && stated != bytes))
        return th_fail(a->error, THESPIS_FORMAT, "'%s': zip entry '%.*s' has %u bytes in its own header and %llu in the directory",
                       a->label, n, entry->name, stated, (unsigned long long)bytes);
    entry->data = p + head;
    entry->bytes = (size_t)bytes;
    return THESPIS_OK;
}

/* The entry at `p` in the central directory, which holds `left` more bytes; *used is the size of its record. */
static thespis_status read_entry(const struct archive *a, const uint8_t *p, size_t left, size_t *used, struct th_zip_entry *entry,
                                 uint64_t *begin)
{
    if (left < CENTRAL_BYTES || u32(p) != signature_central)
        return th_fail(a->error, THESPIS_FORMAT, "'%s': the zip directory is damaged %zu bytes before its end", a->label, left);
    size_t name = u16(p + 28), extra = u16(p + 30), comment = u16(p + 32);
    *used = CENTRAL_BYTES + name + extra + comment;
    if (*used > left) return th_fail(a->error, THESPIS_FORMAT, "'%s': the zip directory ends inside an entry", a->label);
    entry->name = (const char *)p + CENTRAL_BYTES;
    entry->name_bytes = name;
    entry->crc = u32(p + 16);
    int n = name_length(name);
    if (name == 0) return th_fail(a->error, THESPIS_FORMAT, "'%s': a zip entry has no name", a->label);
    if (u16(p + 8) & (FLAG_ENCRYPTED | FLAG_STRONG | FLAG_MASKED))
        return th_fail(a->error, THESPIS_FORMAT, "'%s': zip entry '%.*s' is encrypted", a->label, n, entry->name);
    if (u16(p + 10) != 0)
        return th_fail(a->error, THESPIS_FORMAT, "'%s': zip entry '%.*s' is compressed (method %u), only stored ones are read",
                       a->label, n, entry->name, u16(p + 10));
    if (u16(p + 34) != 0 && u16(p + 34) != UINT16_MAX)
        return th_fail(a->error, THESPIS_FORMAT, "'%s': a zip of several disks is not read", a->label);
    uint64_t packed = u32(p + 20), bytes = u32(p + 24), local = u32(p + 42);
    int wide[3] = {bytes == UINT32_MAX, packed == UINT32_MAX, local == UINT32_MAX};
    if (wide[0] || wide[1] || wide[2]) {
        uint64_t *fields[3] = {&bytes, &packed, &local};
        TH_TRY(read_zip64(a, p + CENTRAL_BYTES + name, extra, fields, wide));
    }
    if (packed != bytes)
        return th_fail(a->error, THESPIS_FORMAT, "'%s': zip entry '%.*s' is stored and yet states %llu bytes packed, %llu unpacked",
                       a->label, n, entry->name, (unsigned long long)packed, (unsigned long long)bytes);
    *begin = local;
    return locate(a, local, bytes, entry);
}

static int by_offset(const void *left, const void *right)
{
    const struct th_zip_entry *a = left, *b = right;
    if (a->data != b->data) return a->data < b->data ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static int compare_names(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    int order = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);
    if (order != 0) return order;
    return a_bytes < b_bytes ? -1 : a_bytes > b_bytes;
}

static int by_name(const void *left, const void *right)
{
    const struct th_zip_entry *a = left, *b = right;
    return compare_names(a->name, a->name_bytes, b->name, b->name_bytes);
}

static int by_value(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

/* Header and payload of every entry must end before the next one's header begins. Headers ascend as payloads do unless two overlap,
 * so both lists can be sorted on their own. */
static thespis_status check_overlap(struct archive *a, struct th_zip *zip)
{
    qsort(zip->entries, zip->count, sizeof *zip->entries, by_offset);
    qsort(a->begins, zip->count, sizeof *a->begins, by_value);
    for (size_t i = 0; i + 1 < zip->count; i++) {
        const struct th_zip_entry *entry = &zip->entries[i], *next = &zip->entries[i + 1];
        uint64_t end = (uint64_t)(entry->data - a->data) + entry->bytes;
        if (end > a->begins[i + 1])
            return th_fail(a->error, THESPIS_FORMAT, "'%s': zip entries '%.*s' and '%.*s' overlap", a->label,
                           name_length(entry->name_bytes), entry->name, name_length(next->name_bytes), next->name);
    }
    return THESPIS_OK;
}

static thespis_status check_names(const struct archive *a, struct th_zip *zip)
{
    qsort(zip->entries, zip->count, sizeof *zip->entries, by_name);
    for (size_t i = 0; i + 1 < zip->count; i++)
        if (by_name(&zip->entries[i], &zip->entries[i + 1]) == 0)
            return th_fail(a->error, THESPIS_FORMAT, "'%s': zip entry '%.*s' appears twice", a->label,
                           name_length(zip->entries[i].name_bytes), zip->entries[i].name);
    return THESPIS_OK;
}

static thespis_status read_directory(struct archive *a, struct th_zip *zip)
{
    const uint8_t *p = a->data + a->directory;
    size_t left = (size_t)a->directory_bytes, used = 0;
    for (size_t i = 0; i < a->count; i++) {
        TH_TRY(read_entry(a, p, left, &used, &zip->entries[i], &a->begins[i]));
        p += used;
        left -= used;
        zip->count = i + 1;
    }
    if (left != 0)
        return th_fail(a->error, THESPIS_FORMAT, "'%s': %zu bytes follow the last entry of the zip directory", a->label, left);
    TH_TRY(check_overlap(a, zip));
    return check_names(a, zip);
}

thespis_status th_zip_open(const uint8_t *data, size_t bytes, const char *label, struct th_zip *zip, thespis_error *error)
{
    struct archive a = {.data = data, .bytes = bytes, .label = label, .error = error};
    memset(zip, 0, sizeof *zip);
    TH_TRY(read_end(&a));
    thespis_status status = TH_ALLOC(&zip->entries, (size_t)a.count, "a zip directory", error);
    if (status == THESPIS_OK) status = TH_ALLOC(&a.begins, (size_t)a.count, "a zip directory", error);
    if (status == THESPIS_OK) status = read_directory(&a, zip);
    th_free(a.begins);
    if (status != THESPIS_OK) th_zip_close(zip);
    return status;
}

void th_zip_close(struct th_zip *zip)
{
    th_free(zip->entries);
    memset(zip, 0, sizeof *zip);
}

const struct th_zip_entry *th_zip_find(const struct th_zip *zip, const char *name, size_t name_bytes)
{
    struct th_zip_entry key = {.name = name, .name_bytes = name_bytes};
    if (zip->count == 0) return NULL;
    return bsearch(&key, zip->entries, zip->count, sizeof *zip->entries, by_name);
}
