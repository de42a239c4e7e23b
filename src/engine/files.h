/* files.h - what commands and servers need of files beside the public interface: references told by content, sound written as it
 * comes. */
#ifndef THESPIS_ENGINE_FILES_H
#define THESPIS_ENGINE_FILES_H

#include "audio/codes.h"
#include "audio/sound_file.h"
#include "thespis.h"

/* A recording or codes (.npy, JSON), by content, as the next reference of a voice. */
thespis_status th_voice_add_any(thespis_voice *voice, const char *path, const char *transcript, size_t transcript_bytes,
                                thespis_error *error);

#endif
