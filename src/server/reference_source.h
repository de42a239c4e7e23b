/* reference_source.h - the bytes of a reference that a request names: base64, data: URLs, files of one folder, http(s) URLs.
 *
 * Everything here reads what strangers wrote. Failures are the client's (THESPIS_INVALID, THESPIS_LIMIT) or memory's. */
#ifndef THESPIS_SERVER_REFERENCE_SOURCE_H
#define THESPIS_SERVER_REFERENCE_SOURCE_H

#include "base/bytes.h"

#define TH_REFERENCE_MAX_BYTES ((size_t)10 << 20)

struct th_reference_rules {
    const char *media_dir; /* files may be read from here and below; NULL: none */
    int fetch;             /* http(s) URLs may be fetched */
    int fetch_private;     /* also from private and loopback addresses; for tests and closed networks */
    size_t max_bytes;      /* of one reference */
    double fetch_seconds;  /* all of a fetch, redirects too */
    int (*gone)(void *);   /* asked now and then while fetching; true: give up. May be NULL */
    void *context;
};
/* Nothing but inline bytes, 10 MiB, 10 seconds. */
void th_reference_rules_init(struct th_reference_rules *rules);

/* Base64 in the standard alphabet, perhaps behind "data:...;base64,". Line breaks and missing padding are allowed; any other
 * character is refused with its position (from 0, of the text as given). The size is checked before anything is decoded. */
thespis_status th_base64_decode(const char *text, size_t count, size_t max_bytes, struct th_bytes *out, thespis_error *error);

/* What a string names: a data: URL, an http(s) URL, a file: URL, or a path. Appends its bytes. */
thespis_status th_reference_read(const struct th_reference_rules *rules, const char *text, size_t count, struct th_bytes *out,
                                 thespis_error *error);

/* The two kinds on their own. A path is absolute or begins in media_dir; after all links are followed it must lie inside. What is
 * outside and what is not there get the same words. */
thespis_status th_reference_read_media(const struct th_reference_rules *rules, const char *text, size_t count, struct th_bytes *out,
                                       thespis_error *error);
/* At most 3 redirects. The address is checked as the connection is made, so no name can change its address in between. */
thespis_status th_reference_fetch(const struct th_reference_rules *rules, const char *text, size_t count, struct th_bytes *out,
                                  thespis_error *error);

struct sockaddr;
/* Is this an address of the public internet? Private, loopback, link-local, multicast and reserved ones are not, also when they are
 * wrapped in an IPv6 address. */
int th_address_is_public(const struct sockaddr *address);

#endif
