/* voice.h - what the engine's own rooms do with voices beside the public interface. */
#ifndef THESPIS_ENGINE_VOICE_H
#define THESPIS_ENGINE_VOICE_H

#include "thespis.h"

/* What a recording must be to be kept as a voice. */
#define TH_VOICE_MIN_SECONDS 0.5
#define TH_VOICE_MIN_PEAK 1e-5f
#define TH_VOICE_MAX_FILE ((size_t)10 << 20) /* bytes of one recording */

enum { TH_VOICE_TO_KEEP = 1 }; /* refuse recordings that are too short or silent */

/* A voice of an engine that may have been opened with a codec alone, to be stored and not spoken. */
thespis_status th_voice_new(thespis_engine *engine, thespis_voice **voice, thespis_error *error);

/* thespis_voice_add_bytes with a name for messages and flags. */
thespis_status th_voice_add_recording(thespis_voice *voice, const void *bytes, size_t count, const char *name, int flags,
                                      const char *transcript, size_t transcript_bytes, thespis_error *error);

#endif
