/* nfc.c - canonical composition with utf8proc's data, held to what Unicode 9.0 knew. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/memory.h"
#include "text/unicode.h"
#include "text/unicode_tables.h"

#define MAX_DECOMPOSITION 18 /* far above the 4 code points a canonical decomposition can have */

/* Code points being normalised, all in int32 because utf8proc composes in place on such a buffer. */
struct buffer {
    utf8proc_int32_t *data; /* [capacity] */
    size_t count, capacity;
};

static int present(uint32_t c)
{
    return c < 0x300 || th_in_ranges(c, th_present_in_nine, th_present_in_nine_count);
}

static int combining_class(utf8proc_int32_t c)
{
    return utf8proc_get_property(c)->combining_class;
}

static thespis_status reserve(struct buffer *buffer, size_t more, thespis_error *error)
{
    if (buffer->capacity - buffer->count >= more) return THESPIS_OK;
    size_t wanted = buffer->capacity * 2 + more + 64;
    utf8proc_int32_t *grown = th_realloc(buffer->data, buffer->count, wanted, sizeof *grown);
    if (grown == NULL) return th_fail_memory(error, "the normalised text", wanted * sizeof *grown);
    buffer->data = grown;
    buffer->capacity = wanted;
    return THESPIS_OK;
}

/* Stable counting sort of one run of marks by combining class: utf8proc's own ordering is an insertion sort, which a hostile run of
 * marks would make quadratic. */
static void order_marks(utf8proc_int32_t *marks, size_t count, utf8proc_int32_t *scratch)
{
    size_t place[257] = {0};
    int sorted = 1;
    for (size_t i = 0; i < count; i++) {
        place[combining_class(marks[i]) + 1]++;
        if (i > 0 && combining_class(marks[i - 1]) > combining_class(marks[i])) sorted = 0;
    }
    if (sorted) return;
    for (int i = 1; i < 257; i++) place[i] += place[i - 1];
    for (size_t i = 0; i < count; i++) scratch[place[combining_class(marks[i])]++] = marks[i];
    memcpy(marks, scratch, count * sizeof *marks);
}

/* Puts each run of marks of a decomposed stretch in canonical order; scratch is [count]. */
static void order_stretch(utf8proc_int32_t *data, size_t count, utf8proc_int32_t *scratch)
{
    for (size_t begin = 0; begin < count;) {
        size_t end = begin;
        while (end < count && combining_class(data[end]) != 0) end++;
        if (end - begin > 1) order_marks(data + begin, end - begin, scratch);
        begin = end + 1;
    }
}

/* Normalises data[begin..count): a stretch of code points that Unicode 9.0 knew, decomposed already. */
static thespis_status close_stretch(struct buffer *buffer, size_t begin, thespis_error *error)
{
    size_t count = buffer->count - begin;
    if (count == 0) return THESPIS_OK;
    utf8proc_int32_t *scratch;
    TH_TRY(TH_ALLOC(&scratch, count, "the order of combining marks", error));
    order_stretch(buffer->data + begin, count, scratch);
    th_free(scratch);
    utf8proc_ssize_t left =
        utf8proc_normalize_utf32(buffer->data + begin, (utf8proc_ssize_t)count, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (left < 0) return th_fail(error, THESPIS_INVALID, "cannot normalise the text: %s", utf8proc_errmsg(left));
    buffer->count = begin + (size_t)left;
    return THESPIS_OK;
}

static thespis_status decompose(struct buffer *buffer, uint32_t c, thespis_error *error)
{
    int last_class = 0;
    TH_TRY(reserve(buffer, MAX_DECOMPOSITION, error));
    utf8proc_ssize_t count = utf8proc_decompose_char((utf8proc_int32_t)c, buffer->data + buffer->count, MAX_DECOMPOSITION,
                                                     UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &last_class);
    if (count < 0 || count > MAX_DECOMPOSITION)
        return th_fail(error, THESPIS_INVALID, "cannot normalise U+%04X: %s", c, utf8proc_errmsg(count));
    buffer->count += (size_t)count;
    return THESPIS_OK;
}

/* A code point assigned after Unicode 9.0 is a starter that takes part in nothing: it ends a stretch and stands between two. */
static thespis_status normalise(const char *text, size_t bytes, struct buffer *buffer, thespis_error *error)
{
    size_t begin = 0;
    for (size_t at = 0; at < bytes;) {
        uint32_t c = th_utf8_next(text, bytes, &at);
        if (present(c)) {
            TH_TRY(decompose(buffer, c, error));
            continue;
        }
        TH_TRY(close_stretch(buffer, begin, error));
        TH_TRY(reserve(buffer, 1, error));
        buffer->data[buffer->count++] = (utf8proc_int32_t)c;
        begin = buffer->count;
    }
    return close_stretch(buffer, begin, error);
}

static thespis_status write_out(const struct buffer *buffer, char **out, size_t *out_bytes, thespis_error *error)
{
    size_t bytes = 0;
    char unit[4];
    for (size_t i = 0; i < buffer->count; i++) bytes += (size_t)th_utf8_write((uint32_t)buffer->data[i], unit);
    TH_TRY(TH_ALLOC(out, bytes + 1, "the normalised text", error));
    size_t at = 0;
    for (size_t i = 0; i < buffer->count; i++) {
        int length = th_utf8_write((uint32_t)buffer->data[i], unit);
        memcpy(*out + at, unit, (size_t)length);
        at += (size_t)length;
    }
    *out_bytes = bytes;
    return THESPIS_OK;
}

/* Everything below U+0300 is in normal form: lead bytes below 0xCC. */
static int is_plain(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((uint8_t)text[i] >= 0xCC) return 0;
    return 1;
}

thespis_status th_nfc(const char *text, size_t bytes, char **out, size_t *out_bytes, thespis_error *error)
{
    *out = NULL;
    *out_bytes = 0;
    if (is_plain(text, bytes)) {
        *out = th_copy_string(text, bytes);
        if (*out == NULL) return th_fail_memory(error, "the normalised text", bytes);
        *out_bytes = bytes;
        return THESPIS_OK;
    }
    struct buffer buffer = {0};
    thespis_status status = normalise(text, bytes, &buffer, error);
    if (status == THESPIS_OK) status = write_out(&buffer, out, out_bytes, error);
    th_free(buffer.data);
    return status;
}
