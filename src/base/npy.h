/* npy.h - NumPy .npy files, format 1.0 and 2.0, C order, little-endian. */
#ifndef THESPIS_BASE_NPY_H
#define THESPIS_BASE_NPY_H

#include "base/error.h"

#define TH_NPY_MAX_RANK 8

/* An array in memory; data is owned and freed with th_npy_free. Files of Fortran order are transposed while reading. */
struct th_npy {
    char kind;     /* 'f', 'i', 'u' or 'b' */
    int item_size; /* bytes an item: 1, 2, 4 or 8 */
    int rank;      /* 0..8 */
    int64_t shape[TH_NPY_MAX_RANK];
    int64_t count; /* product of shape */
    void *data;
};

thespis_status th_npy_read(const char *path, size_t max_bytes, struct th_npy *array, thespis_error *error);
thespis_status th_npy_parse(const void *bytes, size_t count, const char *name, struct th_npy *array, thespis_error *error);
void th_npy_free(struct th_npy *array);
/* Item i as an integer or a double, whatever the kind. */
int64_t th_npy_int(const struct th_npy *array, int64_t i);
double th_npy_float(const struct th_npy *array, int64_t i);

/* dtype such as "<f4", "<i8", "|u1". */
thespis_status th_npy_write(const char *path, const char *dtype, int rank, const int64_t *shape, const void *data,
                            thespis_error *error);

#endif
