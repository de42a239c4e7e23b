/* voices.h - the store of voices, as both spellings of the API use it. */
#ifndef THESPIS_SERVER_VOICES_H
#define THESPIS_SERVER_VOICES_H

#include "server/exchange.h"
#include "server/fields.h"

/* A voice on its way in. */
struct th_voice_form {
    struct th_text name, consent, transcript, description, type;
    const struct th_value *sample, *prompt;
};
/* Stores it. *existed tells whether there was one of that name; without `replace` that is refused with 409. */
thespis_status th_voice_store_form(struct th_exchange *x, const struct th_voice_form *form, const char *name_field, int replace,
                                   int *existed, struct th_fault *fault);
/* Removes one; 404 when there is none. */
thespis_status th_voice_forget(struct th_exchange *x, const char *name, const char *name_field, struct th_fault *fault);

#endif
