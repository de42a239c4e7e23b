/* config_fields.h - typed fields of a JSON object, with refusals that name the field, what is expected and what was found. Inside
 * the room only. */
#ifndef THESPIS_CHECKPOINT_CONFIG_FIELDS_H
#define THESPIS_CHECKPOINT_CONFIG_FIELDS_H

#include <jansson.h>

#include "base/error.h"

/* An object of a configuration and how messages call it. */
struct th_fields {
    const json_t *object;
    const char *file;   /* the file's name */
    const char *prefix; /* "" or "text_config." */
    thespis_error *error;
};

/* Is absence allowed, and does null count as absence? */
enum th_need { TH_REQUIRED, TH_OPTIONAL, TH_NULLABLE };

/* "FILE: field PREFIXkey: expected EXPECTED, got KIND VALUE"; value NULL is a missing field. Returns status. */
thespis_status th_value_refuse(const struct th_fields *fields, const char *key, const json_t *value, thespis_status status,
                               const char *expected, ...) __attribute__((format(printf, 5, 6)));
/* The same for the field's own value. */
#define th_field_refuse(fields, key, status, ...)                                                                                  \
    th_value_refuse((fields), (key), json_object_get((fields)->object, (key)), (status), __VA_ARGS__)

/* Getters: a field that is absent, where that is allowed, leaves *value as it was. */
thespis_status th_field_int(const struct th_fields *fields, const char *key, enum th_need need, int min, int *value);
/* A finite number in (0, max]; max may be INFINITY. Integers count as numbers. */
thespis_status th_field_number(const struct th_fields *fields, const char *key, enum th_need need, double max, double *value);
/* sub->object is NULL when absent. `prefix` is what the fields inside are called by. */
thespis_status th_field_object(const struct th_fields *fields, const char *key, enum th_need need, const char *prefix,
                               struct th_fields *sub);
thespis_status th_field_array(const struct th_fields *fields, const char *key, enum th_need need, const json_t **value);

/* Rules in tables; `count` entries each. */
struct th_int_rule {
    const char *key; /* required */
    int min;
    size_t place; /* of an int in `base` */
};
thespis_status th_fields_ints(const struct th_fields *fields, const struct th_int_rule *rules, size_t count, void *base);

struct th_number_rule {
    const char *key; /* required */
    double max;
    size_t place; /* of a double in `base` */
};
thespis_status th_fields_numbers(const struct th_fields *fields, const struct th_number_rule *rules, size_t count, void *base);

/* A string that may say one thing only (or its synonym). */
struct th_word_rule {
    const char *key;
    enum th_need need;
    const char *word, *synonym; /* synonym may be NULL */
};
thespis_status th_fields_words(const struct th_fields *fields, const struct th_word_rule *rules, size_t count);

/* A boolean that may have one value only. */
struct th_flag_rule {
    const char *key;
    enum th_need need;
    int value;
};
thespis_status th_fields_flags(const struct th_fields *fields, const struct th_flag_rule *rules, size_t count);

/* Do two values say the same? Numbers are compared by value: 10 is 10.0. */
int th_json_same(const json_t *a, const json_t *b);

#define TH_COUNT(array) (sizeof(array) / sizeof *(array))

#endif
