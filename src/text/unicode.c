/* unicode.c - UTF-8 and the classes of code points. */
#include "text/unicode.h"

#include "text/unicode_tables.h"

uint32_t th_utf8_next(const char *text, size_t bytes, size_t *at)
{
    const uint8_t *s = (const uint8_t *)text + *at;
    size_t left = bytes - *at;
    if (s[0] < 0x80 || left < 2) {
        *at += 1;
        return s[0];
    }
    if (s[0] < 0xE0 || left < 3) {
        *at += 2;
        return (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    }
    if (s[0] < 0xF0 || left < 4) {
        *at += 3;
        return (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    }
    *at += 4;
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 | (uint32_t)(s[2] & 0x3F) << 6 | (s[3] & 0x3F);
}

int th_utf8_write(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

/* Bytes of the well-formed code point at s, or 0. */
static size_t sequence(const uint8_t *s, size_t left)
{
    if (s[0] < 0x80) return 1;
    size_t length = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || left < length) return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    if (s[0] == 0xE0 && s[1] < 0xA0) return 0; /* overlong */
    if (s[0] == 0xED && s[1] > 0x9F) return 0; /* surrogate */
    if (s[0] == 0xF0 && s[1] < 0x90) return 0; /* overlong */
    if (s[0] == 0xF4 && s[1] > 0x8F) return 0; /* past U+10FFFF */
    return length;
}

thespis_status th_utf8_check(const char *text, size_t bytes, thespis_error *error)
{
    const uint8_t *s = (const uint8_t *)text;
    for (size_t at = 0; at < bytes;) {
        if (s[at] == 0) return th_fail(error, THESPIS_INVALID, "byte %zu is zero: U+0000 is not allowed in text", at);
        size_t length = sequence(s + at, bytes - at);
        if (length == 0) return th_fail(error, THESPIS_INVALID, "byte %zu (0x%02X) does not begin valid UTF-8", at, s[at]);
        at += length;
    }
    return THESPIS_OK;
}

int th_is_white_space(uint32_t c)
{
    if (c < 0x80) return c == 0x20 || (c >= 0x09 && c <= 0x0D);
    switch (c) {
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000: return 1;
    default: return c >= 0x2000 && c <= 0x200A;
    }
}

int th_in_ranges(uint32_t c, const struct th_range *ranges, size_t count)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (c > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && c >= ranges[low].first;
}

int th_is_letter(uint32_t c)
{
    if (c < 0x80) return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
    return th_in_ranges(c, th_letters, th_letters_count);
}

int th_is_mark(uint32_t c)
{
    return c >= 0x300 && th_in_ranges(c, th_marks, th_marks_count);
}

int th_is_number(uint32_t c)
{
    if (c < 0x80) return c >= '0' && c <= '9';
    return th_in_ranges(c, th_numbers, th_numbers_count);
}
