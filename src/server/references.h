/* references.h - recordings inside a request, as references of a voice. */
#ifndef THESPIS_SERVER_REFERENCES_H
#define THESPIS_SERVER_REFERENCES_H

#include "server/ask.h"
#include "server/exchange.h"

/* Adds the reference that `value` (a MAP) describes; `index` is its place for messages: params are prefix + "references.1.data". */
thespis_status th_reference_add(struct th_exchange *x, const struct th_value *value, size_t index, const char *prefix,
                                thespis_voice *voice, struct th_fault *fault);
/* The same of one source with its words, as ref_audio and ref_text give it. `name` is how params call it. */
thespis_status th_reference_add_source(struct th_exchange *x, const struct th_value *source, struct th_text text, const char *name,
                                       const char *prefix, thespis_voice *voice, struct th_fault *fault);

#endif
