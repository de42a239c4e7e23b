/* cpu.h - the CPU backend's own struct: what its files share. Weights are read from the map in place; the codec's are packed once.
 */
#ifndef THESPIS_BACKEND_CPU_CPU_H
#define THESPIS_BACKEND_CPU_CPU_H

#include "backend/backend.h"
#include "base/pool.h"

struct th_lm_kernels;    /* kernels/lm.h: one table for each instruction set */
struct th_codec_kernels; /* kernels/codec.h */
struct th_cpu_lm;        /* lm.h: lanes and work space of the language model; NULL without a model */
struct th_cpu_codec;     /* codec.h: packed weights of the codec; NULL without a codec */

struct th_cpu {
    struct th_backend base; /* first: a th_backend * is a th_cpu * */
    const struct th_model *model;
    const struct th_codec *codec;
    struct th_backend_options options;
    struct th_pool *pool; /* shared by the language model's thread and the codec's */
    const char *isa;      /* "avx2" or "portable" */
    const struct th_lm_kernels *lm_kernels;
    const struct th_codec_kernels *codec_kernels;
    struct th_cpu_lm *lm;
    struct th_cpu_codec *codec_part;
    th_probe probe; /* NULL: none */
    void *probe_context;
};

static inline struct th_cpu *th_cpu_of(struct th_backend *backend)
{
    return (struct th_cpu *)backend;
}

/* cpu_codec.c: packing, streams, encoding. The last four implement the codec_* entries of th_backend_ops. */
thespis_status th_cpu_codec_prepare(struct th_cpu *cpu, thespis_error *error); /* sets codec_part */
void th_cpu_codec_release(struct th_cpu *cpu);
uint64_t th_cpu_codec_bytes(const struct th_cpu *cpu);
thespis_status th_cpu_codec_open(struct th_backend *backend, struct th_codec_stream **stream, thespis_error *error);
void th_cpu_codec_close(struct th_backend *backend, struct th_codec_stream *stream);
void th_cpu_codec_reset(struct th_backend *backend, struct th_codec_stream *stream);
thespis_status th_cpu_codec_decode(struct th_backend *backend, struct th_codec_stream *stream, const int32_t *codes, int frames,
                                   float *samples, thespis_error *error);
thespis_status th_cpu_codec_encode(struct th_backend *backend, const float *samples, size_t count, int32_t *codes,
                                   thespis_progress progress, void *context, thespis_error *error);
/* The table of an instruction set: kernels/codec_kernels.c and kernels/lm_kernels.c, compiled once for each. */
extern const struct th_codec_kernels th_codec_kernels_portable, th_codec_kernels_avx2;
extern const struct th_lm_kernels th_lm_kernels_portable, th_lm_kernels_avx2;

#endif
