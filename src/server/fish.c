/* fish.c - POST /v1/tts, as the Fish clients know it. */
#include <string.h>

#include "server/answer.h"
#include "server/handlers.h"
#include "server/speech.h"

static const struct th_speech_manner manner = {.format = "wav",
                                               .pcm_rate = THESPIS_SAMPLE_RATE,
                                               .unknown_voice = 404,
                                               .text = "text",
                                               .voice = "reference_id",
                                               .format_field = "format",
                                               .prefix = "",
                                               .streamed = -1};

static thespis_status read_ask(struct th_exchange *x, struct th_ask *ask, struct th_fault *fault)
{
    int flags = TH_FIELDS_IGNORE_UNKNOWN | (x->tree.is_form ? TH_FIELDS_FORM : 0);
    th_ask_init(ask);
    ask->stream = 1; /* what the Fish clients expect when they say nothing */
    TH_TRY(th_fields_read(&th_fish_fields, &x->tree.root, flags, "", ask, fault));
    if (ask->prosody == NULL) return THESPIS_OK;
    if (ask->prosody->kind != TH_MAP)
        return th_fault_field(fault, "", "prosody", "prosody must be an object, not %s", th_value_kind(ask->prosody));
    return th_fields_read(&th_prosody_fields, ask->prosody, TH_FIELDS_IGNORE_UNKNOWN, "prosody.", ask, fault);
}

enum MHD_Result th_handle_tts(struct th_exchange *x)
{
    struct th_fault fault;
    struct th_ask ask;
    struct th_speech *speech;
    if (th_exchange_parse(x, &fault) != THESPIS_OK) return th_answer_fault(x, &fault);
    if (read_ask(x, &ask, &fault) != THESPIS_OK || th_speech_start(x, &ask, &manner, &speech, &fault) != THESPIS_OK)
        return th_answer_fault(x, &fault);
    return th_speech_answer(x, speech, 0, "audio");
}
