/* zip.h - the entries of a zip archive in memory, all of them stored uncompressed; nothing is copied or unpacked.
 *
 * Only the central directory is believed for sizes: torch writes local headers whose checksum and sizes are zero. Entry checksums
 * are reported, not verified. */
#ifndef THESPIS_CHECKPOINT_ZIP_H
#define THESPIS_CHECKPOINT_ZIP_H

#include "base/error.h"

/* One stored file; borrows from the archive's bytes. */
struct th_zip_entry {
    const char *name; /* [name_bytes], not ended by a zero byte */
    size_t name_bytes;
    const uint8_t *data; /* [bytes] */
    size_t bytes;
    uint32_t crc; /* as the central directory states it; 0 when the writer left it out */
};

struct th_zip {
    size_t count;
    struct th_zip_entry *entries; /* sorted by name, bytewise */
};

/* `label` is how messages call the archive. Refuses: no end record, several disks, encryption, compression, entries outside of the
 * file or overlapping, local headers that name another entry, duplicate and empty names, more than 65,536 entries. */
thespis_status th_zip_open(const uint8_t *data, size_t bytes, const char *label, struct th_zip *zip, thespis_error *error);
void th_zip_close(struct th_zip *zip);
const struct th_zip_entry *th_zip_find(const struct th_zip *zip, const char *name, size_t name_bytes);

#endif
