/* code_cache.c - see code_cache.h: a list in order of use. A server has hundreds of voices at most, so the list is searched from
 * its front, which costs nothing beside the encoding that it saves. */
#include "engine/code_cache.h"

#include <pthread.h>
#include <string.h>

#include "base/memory.h"
#include "base/sha256.h"

struct entry {
    struct entry *newer, *older;
    char key[65];
    int32_t *codes; /* [count], codebook-major */
    size_t count, frames;
};

struct th_code_cache {
    pthread_mutex_t mutex; /* guards all below */
    size_t limit;
    struct entry *newest, *oldest;
    struct th_code_cache_stats stats;
};

thespis_status th_code_cache_open(size_t limit, struct th_code_cache **cache, thespis_error *error)
{
    TH_TRY(TH_ALLOC(cache, 1, "a cache of codes", error));
    pthread_mutex_init(&(*cache)->mutex, NULL);
    (*cache)->limit = limit;
    return THESPIS_OK;
}

static size_t cost(const struct entry *e)
{
    return sizeof *e + e->count * sizeof *e->codes;
}

static void free_entry(struct entry *e)
{
    if (e == NULL) return;
    th_free(e->codes);
    th_free(e);
}

void th_code_cache_close(struct th_code_cache *cache)
{
    if (cache == NULL) return;
    for (struct entry *e = cache->newest, *older; e != NULL; e = older) {
        older = e->older;
        free_entry(e);
    }
    pthread_mutex_destroy(&cache->mutex);
    th_free(cache);
}

void th_code_cache_key(const char *codec_id, const void *bytes, size_t count, char key[65])
{
    /* The id's length in front, so that no two pairs of id and bytes run together into the same string. */
    uint64_t length = strlen(codec_id);
    uint8_t prefix[8];
    struct th_sha256 hash;
    for (int i = 0; i < 8; i++) prefix[i] = (uint8_t)(length >> (8 * i));
    th_sha256_begin(&hash);
    th_sha256_add(&hash, prefix, sizeof prefix);
    th_sha256_add(&hash, codec_id, (size_t)length);
    th_sha256_add(&hash, bytes, count);
    th_sha256_end(&hash, key);
}

/* ---- the list, under the mutex ----------------------------------------------------------------------------------------------- */

static void detach(struct th_code_cache *cache, struct entry *e)
{
    *(e->newer != NULL ? &e->newer->older : &cache->newest) = e->older;
    *(e->older != NULL ? &e->older->newer : &cache->oldest) = e->newer;
    cache->stats.entries--;
    cache->stats.bytes -= cost(e);
}

static void attach_newest(struct th_code_cache *cache, struct entry *e)
{
    e->newer = NULL;
    e->older = cache->newest;
    *(cache->newest != NULL ? &cache->newest->newer : &cache->oldest) = e;
    cache->newest = e;
    cache->stats.entries++;
    cache->stats.bytes += cost(e);
}

static struct entry *find(const struct th_code_cache *cache, const char *key)
{
    struct entry *e = cache->newest;
    while (e != NULL && memcmp(e->key, key, sizeof e->key) != 0) e = e->older;
    return e;
}

/* ---- in and out -------------------------------------------------------------------------------------------------------------- */

thespis_status th_code_cache_get(struct th_code_cache *cache, const char key[65], int32_t **codes, size_t *frames,
                                 thespis_error *error)
{
    thespis_status status = THESPIS_OK;
    *codes = NULL;
    *frames = 0;
    pthread_mutex_lock(&cache->mutex);
    struct entry *e = find(cache, key);
    if (e == NULL) {
        cache->stats.misses++;
    } else {
        detach(cache, e);
        attach_newest(cache, e);
        status = TH_ALLOC(codes, e->count, "codes", error);
        if (status == THESPIS_OK) {
            memcpy(*codes, e->codes, e->count * sizeof **codes);
            *frames = e->frames;
            cache->stats.hits++;
        }
    }
    pthread_mutex_unlock(&cache->mutex);
    return status;
}

static struct entry *new_entry(const char key[65], const int32_t *codes, size_t count, size_t frames)
{
    struct entry *e = th_alloc(1, sizeof *e);
    if (e == NULL) return NULL;
    e->codes = th_alloc(count, sizeof *codes);
    if (e->codes == NULL) {
        th_free(e);
        return NULL;
    }
    memcpy(e->key, key, sizeof e->key);
    memcpy(e->codes, codes, count * sizeof *codes);
    e->count = count;
    e->frames = frames;
    return e;
}

void th_code_cache_put(struct th_code_cache *cache, const char key[65], const int32_t *codes, int codebooks, size_t frames)
{
    size_t count, bytes;
    if (__builtin_mul_overflow((size_t)codebooks, frames, &count) || __builtin_mul_overflow(count, sizeof *codes, &bytes)) return;
    if (bytes > cache->limit || cache->limit - bytes < sizeof(struct entry)) return;
    struct entry *fresh = new_entry(key, codes, count, frames);
    if (fresh == NULL) return;
    pthread_mutex_lock(&cache->mutex);
    /* Two requests may have encoded the same recording side by side: the codes are equal, one copy is enough. */
    struct entry *there = find(cache, key);
    if (there != NULL) detach(cache, there);
    while (cache->stats.bytes > cache->limit - cost(fresh)) {
        struct entry *oldest = cache->oldest;
        detach(cache, oldest);
        free_entry(oldest);
    }
    attach_newest(cache, fresh);
    pthread_mutex_unlock(&cache->mutex);
    free_entry(there);
}

void th_code_cache_get_stats(struct th_code_cache *cache, struct th_code_cache_stats *stats)
{
    pthread_mutex_lock(&cache->mutex);
    *stats = cache->stats;
    pthread_mutex_unlock(&cache->mutex);
}
