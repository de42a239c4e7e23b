/* voice_stem.h - how a voice's name becomes a file's: what voice_store.c and voice_store_write.c share. */
#ifndef THESPIS_ENGINE_VOICE_STEM_H
#define THESPIS_ENGINE_VOICE_STEM_H

#include "engine/voice_file.h"

/* Bytes: file systems allow 255, of which the endings of recordings and of files being written take their share. */
#define TH_VOICE_STEM_MAX 200

/* The key itself, or "~" and its SHA-256 where it is longer. */
void th_voice_stem(const char *key, char stem[TH_VOICE_STEM_MAX + 1]);
/* The voice file of `key` in a folder; freed with th_free. */
thespis_status th_voice_path(const char *folder, const char *key, char **path, thespis_error *error);
/* "there is no voice named ..." */
thespis_status th_voice_unknown(const char *name, thespis_error *error);

#endif
