/* reference_base64.c - base64 and data: URLs; see reference_source.h. */
#include <string.h>
#include <strings.h>

#include "server/reference_source.h"

static int value_of(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

static int is_break(char c)
{
    return c == '\n' || c == '\r';
}

/* The first position behind "data:...;base64,"; 0 for text without it. */
static thespis_status skip_prefix(const char *text, size_t count, size_t *begin, thespis_error *error)
{
    static const char mark[] = ";base64";
    *begin = 0;
    if (count < 5 || strncasecmp(text, "data:", 5) != 0) return THESPIS_OK;
    const char *comma = memchr(text, ',', count < 300 ? count : 300);
    if (comma == NULL) return th_fail(error, THESPIS_INVALID, "data: URL without a comma in its first 300 characters");
    size_t head = (size_t)(comma - text);
    if (head < 5 + strlen(mark) || strncasecmp(comma - strlen(mark), mark, strlen(mark)) != 0)
        return th_fail(error, THESPIS_INVALID, "data: URL without ';base64' before its comma");
    *begin = head + 1;
    return THESPIS_OK;
}

static thespis_status refuse(char c, size_t at, thespis_error *error)
{
    unsigned byte = (unsigned char)c;
    if (byte > 32 && byte < 127) return th_fail(error, THESPIS_INVALID, "invalid base64: '%c' at position %zu", c, at);
    return th_fail(error, THESPIS_INVALID, "invalid base64: byte 0x%02X at position %zu", byte, at);
}

/* *digits before the padding. Padding, if any, fills the last group of four and is followed by line breaks alone. */
static thespis_status check(const char *text, size_t begin, size_t count, size_t *digits, thespis_error *error)
{
    size_t pads = 0;
    *digits = 0;
    for (size_t i = begin; i < count; i++) {
        if (is_break(text[i])) continue;
        int pad = text[i] == '=' && *digits % 4 >= 2 && *digits % 4 + pads < 4;
        if (!pad && (pads > 0 || value_of(text[i]) < 0)) return refuse(text[i], i, error);
        if (pad)
            pads++;
        else
            ++*digits;
    }
    if (*digits == 0) return th_fail(error, THESPIS_INVALID, "base64 is empty");
    if (*digits % 4 == 1)
        return th_fail(error, THESPIS_INVALID, "invalid base64: %zu characters end in the middle of a byte", *digits);
    return THESPIS_OK;
}

/* Of all that could be digits; a few that are not make no difference to what is too large. */
static thespis_status check_size(const char *text, size_t begin, size_t count, size_t max_bytes, thespis_error *error)
{
    size_t digits = 0;
    for (size_t i = begin; i < count; i++) digits += !is_break(text[i]) && text[i] != '=';
    size_t bytes = digits / 4 * 3 + (digits % 4 > 0 ? digits % 4 - 1 : 0);
    if (bytes <= max_bytes) return THESPIS_OK;
    return th_fail(error, THESPIS_LIMIT, "base64 holds %zu bytes, at most %zu are allowed", bytes, max_bytes);
}

thespis_status th_base64_decode(const char *text, size_t count, size_t max_bytes, struct th_bytes *out, thespis_error *error)
{
    size_t begin, digits;
    TH_TRY(skip_prefix(text, count, &begin, error));
    TH_TRY(check_size(text, begin, count, max_bytes, error));
    TH_TRY(check(text, begin, count, &digits, error));
    TH_TRY(th_bytes_reserve(out, digits / 4 * 3 + 3, error));
    uint32_t bits = 0;
    int held = 0;
    for (size_t i = begin; i < count; i++) {
        int value = value_of(text[i]);
        if (value < 0) continue; /* a break or padding */
        bits = bits << 6 | (uint32_t)value;
        held += 6;
        if (held < 8) continue;
        held -= 8;
        out->at[out->count++] = (uint8_t)(bits >> held);
    }
    return THESPIS_OK;
}
