/* codes.h - files of codec codes: .npy as fish-speech writes them, and JSON. */
#ifndef THESPIS_AUDIO_CODES_H
#define THESPIS_AUDIO_CODES_H

#include "base/error.h"

/* codes [codebooks][frames], freed with th_free. */
struct th_codes {
    int32_t *codes;
    int codebooks;
    size_t frames;
};
/* Is this content a .npy or JSON rather than a recording? */
int th_codes_is(const void *bytes, size_t count);
/* .npy of <i8 <i4 <i2 <u2 |u1, shape (codebooks, F) or (1, codebooks, F); JSON [[...]...] or {"vq_codes": [[...]...]}. Values must
 * lie in 0..codebook_size-1. */
thespis_status th_codes_parse(const void *bytes, size_t count, const char *name, int codebooks, int codebook_size,
                              struct th_codes *codes, thespis_error *error);
thespis_status th_codes_read(const char *path, int codebooks, int codebook_size, struct th_codes *codes, thespis_error *error);
/* .npy, <i8, (codebooks, F), C order. */
thespis_status th_codes_write(const char *path, const int32_t *codes, int codebooks, size_t frames, thespis_error *error);

#endif
