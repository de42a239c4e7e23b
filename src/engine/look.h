/* look.h - what a recording, a file of codes or a stored voice holds, as facts and as what a picture is drawn from. */
#ifndef THESPIS_ENGINE_LOOK_H
#define THESPIS_ENGINE_LOOK_H

#include <jansson.h>

#include "audio/plot.h"
#include "engine/voice_store.h"
#include "thespis.h"

struct th_look {
    json_t *facts;
    float *samples; /* [count] at 44,100 Hz; NULL: it is no sound */
    size_t count;
    int32_t *codes; /* [codebooks][frames], references one after another; NULL: there are none */
    int codebooks, codebook_size;
    size_t frames;
};

/* A recording as an engine would hear it: mono, resampled. */
thespis_status th_look_recording(const char *path, struct th_look *look, thespis_error *error);
/* A .npy or .json of codes, which must be those of the checkpoint in `folder`. */
thespis_status th_look_codes(const char *folder, const char *path, struct th_look *look, thespis_error *error);
/* A voice by its file. */
thespis_status th_look_voice(const char *path, struct th_look *look, thespis_error *error);
/* A stored voice by its name. */
thespis_status th_look_stored_voice(const struct th_voice_store *store, const char *name, struct th_look *look,
                                    thespis_error *error);
void th_look_free(struct th_look *look);

#endif
