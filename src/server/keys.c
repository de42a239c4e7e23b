/* keys.c - see keys.h. */
#include "server/keys.h"

#include <nettle/memops.h>
#include <nettle/sha2.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/memory.h"

#define MOST_BYTES ((size_t)1 << 20)
#define MOST_KEYS 10000

static void hash_key(const char *key, size_t bytes, uint8_t hash[32])
{
    struct sha256_ctx context;
    sha256_init(&context);
    sha256_update(&context, bytes, (const uint8_t *)key);
    sha256_digest(&context, 32, hash);
}

struct list {
    struct th_key *keys;
    size_t count, capacity;
};

static thespis_status add(struct list *list, const char *key, size_t bytes, thespis_error *error)
{
    if (list->count == MOST_KEYS) return th_fail(error, THESPIS_LIMIT, "more than %d API keys", MOST_KEYS);
    if (list->count == list->capacity) {
        size_t room = list->capacity * 2 + 16;
        struct th_key *grown = th_realloc(list->keys, list->count, room, sizeof *grown);
        if (grown == NULL) return th_fail_memory(error, "API keys", room * sizeof *grown);
        list->keys = grown;
        list->capacity = room;
    }
    hash_key(key, bytes, list->keys[list->count++].hash);
    return THESPIS_OK;
}

static thespis_status add_file(struct list *list, const char *path, thespis_error *error)
{
    char *text;
    size_t bytes;
    TH_TRY(th_file_read(path, MOST_BYTES, &text, &bytes, error));
    thespis_status status = THESPIS_OK;
    for (char *at = text; *at != '\0' && status == THESPIS_OK;) {
        size_t n = strcspn(at, "\n"), used = n;
        while (used > 0 && (at[used - 1] == '\r' || at[used - 1] == ' ' || at[used - 1] == '\t')) used--;
        size_t begin = strspn(at, " \t");
        if (begin < used && at[begin] != '#') status = add(list, at + begin, used - begin, error);
        at += n + (at[n] == '\n');
    }
    memset(text, 0, bytes);
    th_free(text);
    return status;
}

thespis_status th_keys_load(struct th_keys *keys, const char *const *given, int count, const char *file, thespis_error *error)
{
    struct list list = {0};
    thespis_status status = THESPIS_OK;
    for (int i = 0; i < count && status == THESPIS_OK; i++)
        status = given[i][0] != '\0' ? add(&list, given[i], strlen(given[i]), error)
                                     : th_fail(error, THESPIS_INVALID, "an API key is empty");
    if (status == THESPIS_OK && file != NULL) status = add_file(&list, file, error);
    if (status != THESPIS_OK) {
        th_free(list.keys);
        return status;
    }
    pthread_rwlock_wrlock(&keys->lock);
    th_free(keys->keys);
    keys->keys = list.keys;
    keys->count = list.count;
    keys->needed = count > 0 || file != NULL;
    pthread_rwlock_unlock(&keys->lock);
    return THESPIS_OK;
}

thespis_status th_keys_open(struct th_keys *keys, const char *const *given, int count, const char *file, thespis_error *error)
{
    memset(keys, 0, sizeof *keys);
    pthread_rwlock_init(&keys->lock, NULL);
    return th_keys_load(keys, given, count, file, error);
}

void th_keys_close(struct th_keys *keys)
{
    th_free(keys->keys);
    pthread_rwlock_destroy(&keys->lock);
    memset(keys, 0, sizeof *keys);
}

/* The token after "Bearer ", or NULL. */
static const char *token_of(const char *header)
{
    if (header == NULL || strncasecmp(header, "Bearer", 6) != 0 || (header[6] != ' ' && header[6] != '\t')) return NULL;
    return header + 6 + strspn(header + 6, " \t");
}

int th_keys_check(struct th_keys *keys, const char *header, uint64_t *group)
{
    const char *token = token_of(header);
    uint8_t hash[32] = {0};
    int found = 0;
    if (token != NULL) hash_key(token, strlen(token), hash);
    memcpy(group, hash, sizeof *group);
    pthread_rwlock_rdlock(&keys->lock);
    /* Every key is looked at, so that time tells nothing. */
    for (size_t i = 0; i < keys->count; i++) found |= memeql_sec(hash, keys->keys[i].hash, 32);
    int open = !keys->needed || (token != NULL && found);
    pthread_rwlock_unlock(&keys->lock);
    return open;
}
