/* config_fields.c - see config_fields.h. */
#include "checkpoint/config_fields.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

static void describe(const json_t *value, char *text, size_t bytes)
{
    if (value == NULL)
        snprintf(text, bytes, "nothing");
    else if (json_is_string(value))
        snprintf(text, bytes, "string \"%.48s\"", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(text, bytes, "integer %" PRId64, (int64_t)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, bytes, "number %.17g", json_real_value(value));
    else if (json_is_boolean(value))
        snprintf(text, bytes, "boolean %s", json_is_true(value) ? "true" : "false");
    else if (json_is_array(value))
        snprintf(text, bytes, "array of %zu", json_array_size(value));
    else
        snprintf(text, bytes, "%s", th_json_kind(value));
}

thespis_status th_value_refuse(const struct th_fields *fields, const char *key, const json_t *value, thespis_status status,
                               const char *expected, ...)
{
    char want[192], got[96];
    va_list arguments;
    va_start(arguments, expected);
    vsnprintf(want, sizeof want, expected, arguments);
    va_end(arguments);
    describe(value, got, sizeof got);
    return th_fail(fields->error, status, "%.150s: field %s%.60s: expected %s, got %s", fields->file, fields->prefix, key, want,
                   got);
}

/* The field's value, or NULL where it is absent and may be. A null that does not count as absence stays: its kind is refused later.
 */
static const json_t *lookup(const struct th_fields *fields, const char *key, enum th_need need)
{
    const json_t *value = json_object_get(fields->object, key);
    return need == TH_NULLABLE && json_is_null(value) ? NULL : value;
}

thespis_status th_field_int(const struct th_fields *fields, const char *key, enum th_need need, int min, int *value)
{
    const json_t *found = lookup(fields, key, need);
    if (found == NULL && need != TH_REQUIRED) return THESPIS_OK;
    if (!json_is_integer(found) || json_integer_value(found) < min || json_integer_value(found) > INT_MAX)
        return th_field_refuse(fields, key, THESPIS_FORMAT, "an integer from %d to %d", min, INT_MAX);
    *value = (int)json_integer_value(found);
    return THESPIS_OK;
}

thespis_status th_field_number(const struct th_fields *fields, const char *key, enum th_need need, double max, double *value)
{
    const json_t *found = lookup(fields, key, need);
    if (found == NULL && need != TH_REQUIRED) return THESPIS_OK;
    double number = json_number_value(found); /* 0 for what is no number */
    if (!(number > 0.0 && number <= max && isfinite(number)))
        return isinf(max) ? th_field_refuse(fields, key, THESPIS_FORMAT, "a finite number above 0")
                          : th_field_refuse(fields, key, THESPIS_FORMAT, "a number above 0 and at most %g", max);
    *value = number;
    return THESPIS_OK;
}

thespis_status th_field_object(const struct th_fields *fields, const char *key, enum th_need need, const char *prefix,
                               struct th_fields *sub)
{
    const json_t *found = lookup(fields, key, need);
    *sub = (struct th_fields){.object = found, .file = fields->file, .prefix = prefix, .error = fields->error};
    if (found == NULL && need != TH_REQUIRED) return THESPIS_OK;
    if (!json_is_object(found)) return th_field_refuse(fields, key, THESPIS_FORMAT, "an object");
    return THESPIS_OK;
}

thespis_status th_field_array(const struct th_fields *fields, const char *key, enum th_need need, const json_t **value)
{
    *value = lookup(fields, key, need);
    if (*value == NULL && need != TH_REQUIRED) return THESPIS_OK;
    if (!json_is_array(*value)) return th_field_refuse(fields, key, THESPIS_FORMAT, "an array");
    return THESPIS_OK;
}

thespis_status th_fields_ints(const struct th_fields *fields, const struct th_int_rule *rules, size_t count, void *base)
{
    for (size_t i = 0; i < count; i++)
        TH_TRY(th_field_int(fields, rules[i].key, TH_REQUIRED, rules[i].min, (int *)((char *)base + rules[i].place)));
    return THESPIS_OK;
}

thespis_status th_fields_numbers(const struct th_fields *fields, const struct th_number_rule *rules, size_t count, void *base)
{
    for (size_t i = 0; i < count; i++)
        TH_TRY(th_field_number(fields, rules[i].key, TH_REQUIRED, rules[i].max, (double *)((char *)base + rules[i].place)));
    return THESPIS_OK;
}

static thespis_status check_word(const struct th_fields *fields, const struct th_word_rule *rule)
{
    const json_t *found = lookup(fields, rule->key, rule->need);
    if (found == NULL && rule->need != TH_REQUIRED) return THESPIS_OK;
    const char *word = json_string_value(found); /* NULL for what is no string */
    if (word != NULL && strcmp(word, rule->word) == 0) return THESPIS_OK;
    if (word != NULL && rule->synonym != NULL && strcmp(word, rule->synonym) == 0) return THESPIS_OK;
    thespis_status status = word != NULL ? THESPIS_UNSUPPORTED : THESPIS_FORMAT;
    if (rule->synonym != NULL) return th_field_refuse(fields, rule->key, status, "\"%s\" or \"%s\"", rule->word, rule->synonym);
    return th_field_refuse(fields, rule->key, status, "\"%s\"", rule->word);
}

thespis_status th_fields_words(const struct th_fields *fields, const struct th_word_rule *rules, size_t count)
{
    for (size_t i = 0; i < count; i++) TH_TRY(check_word(fields, &rules[i]));
    return THESPIS_OK;
}

thespis_status th_fields_flags(const struct th_fields *fields, const struct th_flag_rule *rules, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const json_t *found = lookup(fields, rules[i].key, rules[i].need);
        if (found == NULL && rules[i].need != TH_REQUIRED) continue;
        if (json_is_boolean(found) && json_is_true(found) == rules[i].value) continue;
        return th_field_refuse(fields, rules[i].key, json_is_boolean(found) ? THESPIS_UNSUPPORTED : THESPIS_FORMAT, "%s",
                               rules[i].value ? "true" : "false");
    }
    return THESPIS_OK;
}

static int same_object(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    if (json_object_size(a) != json_object_size(b)) return 0;
    json_object_foreach((json_t *)a, key, value)
    {
        if (!th_json_same(value, json_object_get(b, key))) return 0;
    }
    return 1;
}

/* Depth is bounded by the JSON reader's own limit. */
int th_json_same(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    if (json_is_object(a) && json_is_object(b)) return same_object(a, b);
    if (json_is_array(a) && json_is_array(b)) {
        if (json_array_size(a) != json_array_size(b)) return 0;
        for (size_t i = 0; i < json_array_size(a); i++)
            if (!th_json_same(json_array_get(a, i), json_array_get(b, i))) return 0;
        return 1;
    }
    return json_equal(a, b);
}
