/* code_cache.h - codec codes of recordings that were encoded lately, kept within a limit of bytes, the least recently used out
 * first.
 *
 * A key is made of the codec's id and the recording's bytes; what is kept is codes and nothing else. A transcript is no part of
 * either, so that a corrected one can never bring back the old. */
#ifndef THESPIS_ENGINE_CODE_CACHE_H
#define THESPIS_ENGINE_CODE_CACHE_H

#include "base/error.h"

#define TH_CODE_CACHE_BYTES ((size_t)16 << 20)    /* of an engine: five hours of recordings at ten codebooks */
#define TH_CODE_CACHE_MAX_FILE ((size_t)64 << 20) /* longer files are not worth the hashing */

struct th_code_cache;

/* limit: bytes of codes and of what keeps them in order; 0 keeps nothing. */
thespis_status th_code_cache_open(size_t limit, struct th_code_cache **cache, thespis_error *error);
void th_code_cache_close(struct th_code_cache *cache);

void th_code_cache_key(const char *codec_id, const void *bytes, size_t count, char key[65]);

/* A copy of the codes [codebooks][*frames], freed with th_free; *codes is NULL when they are not there. From any thread. */
thespis_status th_code_cache_get(struct th_code_cache *cache, const char key[65], int32_t **codes, size_t *frames,
                                 thespis_error *error);
/* Keeps a copy of codes [codebooks][frames]. Where memory is short or the codes exceed the limit they are not kept, and that is no
 * failure. From any thread. */
void th_code_cache_put(struct th_code_cache *cache, const char key[65], const int32_t *codes, int codebooks, size_t frames);

/* What it holds at the moment. */
struct th_code_cache_stats {
    size_t entries, bytes;
    uint64_t hits, misses;
};
void th_code_cache_get_stats(struct th_code_cache *cache, struct th_code_cache_stats *stats);

#endif
