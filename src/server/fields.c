/* fields.c - see fields.h. */
#include "server/fields.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "audio/encode.h"
#include "base/memory.h"

int th_text_is(struct th_text text, const char *word)
{
    return text.at != NULL && text.count == strlen(word) && memcmp(text.at, word, text.count) == 0;
}

int th_text_is_blank(struct th_text text)
{
    for (size_t i = 0; i < text.count; i++)
        if (text.at[i] != ' ' && !(text.at[i] >= '\t' && text.at[i] <= '\r')) return 0;
    return 1;
}

char *th_text_copy(struct th_text text)
{
    return th_copy_string(text.at != NULL ? text.at : "", text.count);
}

/* One field being read. */
struct reading {
    const struct th_field *field;
    const struct th_value *value;
    const char *prefix;
    int flags;
    void *target; /* of the field's kind */
    struct th_fault *fault;
};

static thespis_status wrong_kind(const struct reading *r, const char *wanted)
{
    return th_fault_field(r->fault, r->prefix, r->field->name, "%s must be %s, not %s", r->field->name, wanted,
                          th_value_kind(r->value));
}

/* ---- numbers ----------------------------------------------------------------------------------------------------------------- */

/* "-1..9" as "a whole number from -1 to 9"; 2^63-1 is no double. */
static thespis_status out_of_range(const struct reading *r, const char *kind, const char *seen)
{
    const struct th_field *f = r->field;
    char high[40];
    snprintf(high, sizeof high, f->high >= 0x1p63 ? "2^63-1" : "%.12g", f->high);
    return th_fault_field(r->fault, r->prefix, f->name, "%s is %.40s, must be %s %s %.12g %s %s", f->name, seen, kind,
                          f->above_low ? "above" : "from", f->low, f->above_low ? "and at most" : "to", high);
}

/* A form has text where other bodies have numbers. */
static int form_number(const struct reading *r, char text[64])
{
    if (!(r->flags & TH_FIELDS_FORM) || r->value->kind != TH_TEXT || r->value->count == 0 || r->value->count > 60) return 0;
    memcpy(text, r->value->text, r->value->count);
    text[r->value->count] = '\0';
    return strspn(text, "0123456789+-.eE") == r->value->count;
}

static thespis_status read_integer(const struct reading *r)
{
    int64_t integer = r->value->integer;
    int huge = r->value->huge;
    char text[64], *end;
    if (form_number(r, text)) {
        errno = 0;
        integer = strtoll(text, &end, 10);
        huge = errno != 0;
        if (*end != '\0') return wrong_kind(r, "an integer");
    } else if (r->value->kind != TH_INTEGER) {
        return wrong_kind(r, "an integer");
    }
    snprintf(text, sizeof text, "%lld", (long long)integer);
    if (huge || (double)integer < r->field->low || (double)integer > r->field->high)
        return out_of_range(r, "an integer", huge ? "beyond 63 bits" : text);
    *(int64_t *)r->target = integer;
    return THESPIS_OK;
}

static thespis_status number_of(const struct reading *r, double *number)
{
    char text[64], *end;
    if (form_number(r, text)) {
        *number = strtod(text, &end);
        return *end == '\0' ? THESPIS_OK : wrong_kind(r, "a number");
    }
    if (r->value->kind != TH_NUMBER && r->value->kind != TH_INTEGER) return wrong_kind(r, "a number");
    *number = r->value->kind == TH_NUMBER ? r->value->number : (double)r->value->integer;
    return THESPIS_OK;
}

static thespis_status read_number(const struct reading *r)
{
    const struct th_field *f = r->field;
    char seen[40];
    double number;
    TH_TRY(number_of(r, &number));
    snprintf(seen, sizeof seen, "%.12g", number);
    if (!isfinite(number) || number < f->low || number > f->high || (f->above_low && number == f->low))
        return out_of_range(r, "a number", seen);
    *(double *)r->target = number;
    return THESPIS_OK;
}

static thespis_status read_only(const struct reading *r)
{
    double number;
    TH_TRY(number_of(r, &number));
    if (number == r->field->low) return THESPIS_OK;
    return th_fault_field(r->fault, r->prefix, r->field->name, "%s is %.12g, only %g is supported by this model", r->field->name,
                          number, r->field->low);
}

/* ---- the rest ---------------------------------------------------------------------------------------------------------------- */

static thespis_status read_boolean(const struct reading *r)
{
    const struct th_value *v = r->value;
    struct th_text text = {v->text, v->count};
    if ((r->flags & TH_FIELDS_FORM) && v->kind == TH_TEXT) {
        int yes = th_text_is(text, "true") || th_text_is(text, "1"), no = th_text_is(text, "false") || th_text_is(text, "0");
        if (!yes && !no) return wrong_kind(r, "true or false");
        *(int *)r->target = yes;
        return THESPIS_OK;
    }
    if (v->kind != TH_BOOLEAN) return wrong_kind(r, "a boolean");
    *(int *)r->target = v->boolean;
    return THESPIS_OK;
}

/* The value as a word: lower case, without blanks around it. Too long a word is none of ours. */
static thespis_status word_of(const struct reading *r, char word[32])
{
    const struct th_value *v = r->value;
    size_t begin = 0, end = v->count, n = 0;
    if (v->kind != TH_TEXT) return wrong_kind(r, "a string");
    while (begin < end && isspace((unsigned char)v->text[begin])) begin++;
    while (end > begin && isspace((unsigned char)v->text[end - 1])) end--;
    for (; begin < end && n < 31; begin++) word[n++] = (char)tolower((unsigned char)v->text[begin]);
    word[n] = '\0';
    return THESPIS_OK;
}

static thespis_status read_choice(const struct reading *r)
{
    char word[32];
    int index = 0;
    TH_TRY(word_of(r, word));
    for (const char *at = r->field->choices; *at != '\0'; index++) {
        size_t n = strcspn(at, " ");
        if (strlen(word) == n && memcmp(word, at, n) == 0) {
            *(int *)r->target = index;
            return THESPIS_OK;
        }
        at += n + (at[n] == ' ');
    }
    return th_fault_field(r->fault, r->prefix, r->field->name, "%s is '%s', must be one of: %s", r->field->name, word,
                          r->field->choices);
}

static thespis_status read_format(const struct reading *r)
{
    char word[32];
    TH_TRY(word_of(r, word));
    const struct th_audio_format *format = th_audio_format_find(word);
    if (format == NULL)
        return th_fault_field(r->fault, r->prefix, r->field->name, "%s is '%s', must be one of: %s", r->field->name, word,
                              th_audio_format_names());
    *(const struct th_audio_format **)r->target = format;
    return THESPIS_OK;
}

static thespis_status read_text(const struct reading *r)
{
    if (r->value->kind != TH_TEXT && r->value->kind != TH_BINARY) return wrong_kind(r, "a string");
    *(struct th_text *)r->target = (struct th_text){r->value->text, r->value->count};
    return THESPIS_OK;
}

static thespis_status read_one(const struct reading *r)
{
    switch (r->field->kind) {
    case TH_FIELD_TEXT: return read_text(r);
    case TH_FIELD_INTEGER: return read_integer(r);
    case TH_FIELD_NUMBER: return read_number(r);
    case TH_FIELD_BOOLEAN: return read_boolean(r);
    case TH_FIELD_CHOICE: return read_choice(r);
    case TH_FIELD_FORMAT: return read_format(r);
    case TH_FIELD_VALUE: *(const struct th_value **)r->target = r->value; return THESPIS_OK;
    case TH_FIELD_ONLY: return read_only(r);
    case TH_FIELD_REFUSED:
        return th_fault_field(r->fault, r->prefix, r->field->name, "%s is not supported by this model", r->field->name);
    default: return THESPIS_OK;
    }
}

static const struct th_field *find(const struct th_fields *fields, const struct th_value *key)
{
    for (size_t i = 0; i < fields->count; i++)
        if (strlen(fields->fields[i].name) == key->count && memcmp(fields->fields[i].name, key->text, key->count) == 0)
            return &fields->fields[i];
    return NULL;
}

static thespis_status unknown(const struct th_fields *fields, const struct th_value *key, const char *prefix,
                              struct th_fault *fault)
{
    char name[101];
    size_t n = key->count < 100 ? key->count : 100, zeros = 0;
    for (size_t i = 0; i < n; i++) zeros += (name[i] = key->text[i]) == '\0';
    for (size_t i = 0; zeros > 0 && i < n; i++)
        if (name[i] == '\0') name[i] = '?';
    name[n] = '\0';
    return th_fault_field(fault, prefix, name, "unknown %s field: %s", fields->what, name);
}

/* JSON's parser refuses a key that comes twice; MessagePack's and a form's do not. */
static int came_before(const struct th_value *map, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (map->keys[i].count == map->keys[index].count &&
            memcmp(map->keys[i].text, map->keys[index].text, map->keys[index].count) == 0)
            return 1;
    return 0;
}

thespis_status th_fields_read(const struct th_fields *fields, const struct th_value *map, int flags, const char *prefix,
                              void *target, struct th_fault *fault)
{
    for (size_t i = 0; i < map->count; i++) {
        const struct th_field *field = find(fields, &map->keys[i]);
        if (field == NULL && (flags & TH_FIELDS_IGNORE_UNKNOWN)) continue;
        if (field == NULL) return unknown(fields, &map->keys[i], prefix, fault);
        if (came_before(map, i)) return th_fault_field(fault, prefix, field->name, "%s is given twice", field->name);
        if (map->items[i].kind == TH_NOTHING) continue;
        struct reading r = {field, &map->items[i], prefix, flags, (char *)target + field->offset, fault};
        TH_TRY(read_one(&r));
    }
    return THESPIS_OK;
}
