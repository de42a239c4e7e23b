/* check.h - `thespis check`: runs the network over given frames and hands out every intermediate, in the arrays of the reference
 * (tools/oracle), so that the two can be compared value by value. */
#ifndef THESPIS_ENGINE_CHECK_H
#define THESPIS_ENGINE_CHECK_H

#include "thespis.h"

struct th_check_options {
    thespis_engine_options engine; /* checkpoint, precision, act_quant, threads, isa, max_rows */
    const char *request;           /* JSON: text, references [{transcript, codes: .npy beside it}], seed, temperature, ... */
    const char *frames;            /* .npy [n][1 + codebooks]: labels to force; NULL: none */
    const char *layer_local;       /* folder of the reference's --layer-local arrays: every layer alone from its inputs there */
    int generate;                  /* also draw freely: frames.npy */
    int greedy;
    int max_frames;      /* of --generate; 0: the request's own */
    const char *codec;   /* instead of all that: a recording to encode or codes to decode */
    const char *out;     /* folder for the arrays, made when missing; NULL: none written */
    const char *against; /* folder of arrays to compare with; NULL: none */
};

/* Takes one line of the report, without newline. */
typedef void (*th_check_line)(void *context, const char *line);

/* *differences counts picks and codes that differ clearly; it is 0 without `against`. */
thespis_status th_check_run(const struct th_check_options *options, th_check_line line, void *context, int *differences,
                            thespis_error *error);

/* The CUDA backend's register of kernels, a line "THREADS SHARED_BYTES NAME" each; none in a build without it. */
void th_check_list_kernels(th_check_line line, void *context);
/* The promises of the CUDA backend's kernels, on device `device`: a line for each; *broken counts those that do not hold. */
thespis_status th_check_kernels(int device, th_check_line line, void *context, int *broken, thespis_error *error);

#endif
