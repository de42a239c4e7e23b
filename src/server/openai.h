/* openai.h - what the single and the batch route share. */
#ifndef THESPIS_SERVER_OPENAI_H
#define THESPIS_SERVER_OPENAI_H

#include "server/speech.h"

extern const struct th_speech_manner th_openai_manner;
/* What the table of fields cannot tell: model and instructions. */
thespis_status th_openai_check(struct th_exchange *x, struct th_ask *ask, const char *prefix, struct th_fault *fault);

#endif
