/* keys.h - API keys: from options and from a file that is read again on demand. Kept and compared as SHA-256, in constant time. */
#ifndef THESPIS_SERVER_KEYS_H
#define THESPIS_SERVER_KEYS_H

#include <pthread.h>

#include "base/error.h"

struct th_key {
    uint8_t hash[32];
};

struct th_keys {
    pthread_rwlock_t lock;
    struct th_key *keys;
    size_t count;
    int needed; /* keys were asked for: with none in the file nobody gets in */
};

/* To be closed also after a failure. */
thespis_status th_keys_open(struct th_keys *keys, const char *const *given, int count, const char *file, thespis_error *error);
void th_keys_close(struct th_keys *keys);
/* Reads again; after a failure the old keys stay. A file has one key a line; blank lines and those that begin with # do not count.
 */
thespis_status th_keys_load(struct th_keys *keys, const char *const *given, int count, const char *file, thespis_error *error);

/* Does the header "Bearer KEY" (NULL: absent) open the door? *group tells keys apart, for sharing lanes fairly; without any key set
 * everybody gets in, and the group is made of what the client calls itself. */
int th_keys_check(struct th_keys *keys, const char *header, uint64_t *group);

#endif
