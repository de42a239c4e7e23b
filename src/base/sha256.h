/* sha256.h - names of contents, through Nettle. */
#ifndef THESPIS_BASE_SHA256_H
#define THESPIS_BASE_SHA256_H

#include <nettle/sha2.h>
#include <stddef.h>

struct th_sha256 {
    struct sha256_ctx context;
};
void th_sha256_begin(struct th_sha256 *hash);
void th_sha256_add(struct th_sha256 *hash, const void *data, size_t bytes);
/* 64 hexadecimal digits and a zero byte. */
void th_sha256_end(struct th_sha256 *hash, char hex[65]);

#endif
