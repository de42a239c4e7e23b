/* sha256.c - see sha256.h. */
#include "base/sha256.h"

#include <stdint.h>

void th_sha256_begin(struct th_sha256 *hash)
{
    sha256_init(&hash->context);
}

void th_sha256_add(struct th_sha256 *hash, const void *data, size_t bytes)
{
    sha256_update(&hash->context, bytes, data);
}

void th_sha256_end(struct th_sha256 *hash, char hex[65])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_digest(&hash->context, sizeof digest, digest);
    for (int i = 0; i < SHA256_DIGEST_SIZE; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[64] = '\0';
}
