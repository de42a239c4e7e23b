/* arrays.h - a set of named arrays in memory, filled by probes, read from and written to a folder of .npy files. */
#ifndef THESPIS_ENGINE_ARRAYS_H
#define THESPIS_ENGINE_ARRAYS_H

#include "base/npy.h"

#define TH_ARRAYS_MAX 32

struct th_array {
    const char *name;  /* static */
    const char *dtype; /* "<f4" floats, "<i8" int64_t, "|u1" bytes */
    int rank;
    int64_t shape[4];
    int64_t count;
    void *data; /* owned */
};

struct th_arrays {
    struct th_array item[TH_ARRAYS_MAX];
    int count;
};

/* A new array of zeros. shape ends at the first 0 of the four. */
thespis_status th_arrays_add(struct th_arrays *arrays, const char *name, const char *dtype, int64_t d0, int64_t d1, int64_t d2,
                             int64_t d3, struct th_array **array, thespis_error *error);
struct th_array *th_arrays_find(struct th_arrays *arrays, const char *name);
float *th_arrays_floats(struct th_arrays *arrays, const char *name); /* data, or NULL */
int64_t *th_arrays_ints(struct th_arrays *arrays, const char *name);
/* FOLDER/NAME.npy for each, and manifest.json. */
thespis_status th_arrays_write(const struct th_arrays *arrays, const char *folder, thespis_error *error);
void th_arrays_free(struct th_arrays *arrays);

/* FOLDER/NAME.npy. THESPIS_IO when it is not there. */
thespis_status th_arrays_load(const char *folder, const char *name, struct th_npy *array, thespis_error *error);

#endif
