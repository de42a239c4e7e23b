/* fields.h - one table of fields for each kind of body: it parses requests, and the OpenAPI document is made from it. */
#ifndef THESPIS_SERVER_FIELDS_H
#define THESPIS_SERVER_FIELDS_H

#include "server/value.h"

/* Text of a request: a view. at NULL: absent. */
struct th_text {
    const char *at;
    size_t count;
};

enum th_field_kind {
    TH_FIELD_TEXT,    /* struct th_text */
    TH_FIELD_INTEGER, /* int64_t, low..high */
    TH_FIELD_NUMBER,  /* double, low..high; low itself is refused when above_low */
    TH_FIELD_BOOLEAN, /* int: 0 or 1 */
    TH_FIELD_CHOICE,  /* int: the index in `choices`, letter case and blanks around it do not count */
    TH_FIELD_FORMAT,  /* const struct th_audio_format * */
    TH_FIELD_VALUE,   /* const struct th_value *: looked at later; `choices` names its schema */
    TH_FIELD_ONLY,    /* a number that can only be `low` */
    TH_FIELD_REFUSED, /* known elsewhere, not by this model */
    TH_FIELD_IGNORED  /* accepted, without effect */
};

struct th_field {
    const char *name;
    enum th_field_kind kind;
    size_t offset; /* in the struct that is filled */
    double low, high;
    int above_low;
    const char *choices; /* "none auto sentence clause" */
    const char *initial; /* what absence means, for people */
    const char *help;    /* one sentence */
};

struct th_fields {
    const char *name; /* of the schema: "SpeechRequest" */
    const char *what; /* "speech request": for "unknown speech request field: X" */
    const struct th_field *fields;
    size_t count;
    const char *required; /* a field's name, or NULL */
};

enum { TH_FIELDS_IGNORE_UNKNOWN = 1, TH_FIELDS_FORM = 2 };

/* Fills *target, whose defaults are there already, from a MAP. null counts as absent. prefix: of params, such as "items.3.". */
thespis_status th_fields_read(const struct th_fields *fields, const struct th_value *map, int flags, const char *prefix,
                              void *target, struct th_fault *fault);

int th_text_is(struct th_text text, const char *word); /* letter case counts */
int th_text_is_blank(struct th_text text);             /* no character but ASCII white space, or absent */
/* A copy that ends in a zero byte, freed with th_free; NULL when memory is short. */
char *th_text_copy(struct th_text text);

#endif
