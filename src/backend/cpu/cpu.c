/* cpu.c - opening the CPU backend: which instruction set, which threads, which parts. */
#include "backend/cpu/cpu.h"

#ifdef TH_HAVE_AVX2
#include <cpuid.h>
#endif

#include "backend/cpu/lm.h"
#include "base/memory.h"

static int has_avx2(void)
{
#ifdef TH_HAVE_AVX2
    unsigned a, b, c, d;
    __builtin_cpu_init(); /* this also asks whether the system saves the wide registers; clang 14 knows no "f16c" */
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
#else
    return 0;
#endif
}

static thespis_status choose_isa(struct th_cpu *cpu, thespis_error *error)
{
    thespis_isa isa = cpu->options.isa;
    if (isa != THESPIS_ISA_AUTO && isa != THESPIS_ISA_PORTABLE && isa != THESPIS_ISA_AVX2)
        return th_fail(error, THESPIS_INVALID, "isa is %d, must be auto, portable or avx2", (int)isa);
    if (isa == THESPIS_ISA_AVX2 && !has_avx2())
        return th_fail(error, THESPIS_UNSUPPORTED,
                       "isa is avx2, but this processor or build lacks AVX2, FMA or F16C; ask for auto");
    cpu->isa = "portable";
    cpu->lm_kernels = &th_lm_kernels_portable;
    cpu->codec_kernels = &th_codec_kernels_portable;
#ifdef TH_HAVE_AVX2
    if (isa != THESPIS_ISA_PORTABLE && has_avx2()) {
        cpu->isa = "avx2";
        cpu->lm_kernels = &th_lm_kernels_avx2;
        cpu->codec_kernels = &th_codec_kernels_avx2;
    }
#endif
    return THESPIS_OK;
}

static void close_cpu(struct th_backend *backend)
{
    if (backend == NULL) return;
    struct th_cpu *cpu = th_cpu_of(backend);
    th_cpu_lm_release(cpu);
    th_cpu_codec_release(cpu);
    th_pool_close(cpu->pool);
    th_free(cpu);
}

static void set_probe(struct th_backend *backend, th_probe probe, void *context)
{
    struct th_cpu *cpu = th_cpu_of(backend);
    cpu->probe = probe;
    cpu->probe_context = context;
}

static void memory(const struct th_backend *backend, struct th_backend_memory *memory)
{
    const struct th_cpu *cpu = (const struct th_cpu *)backend;
    *memory = (struct th_backend_memory){0};
    th_cpu_lm_memory(cpu, memory);
    memory->codec = th_cpu_codec_bytes(cpu);
}

static const char *device(const struct th_backend *backend)
{
    return ((const struct th_cpu *)backend)->isa;
}

static const struct th_backend_ops cpu_ops = {
    .name = "cpu",
    .close = close_cpu,
    .lanes = th_cpu_lanes,
    .begin = th_cpu_begin,
    .feed = th_cpu_feed,
    .step = th_cpu_step,
    .copy = th_cpu_copy,
    .resample = th_cpu_resample,
    .rows = th_cpu_rows,
    .codec_open = th_cpu_codec_open,
    .codec_close = th_cpu_codec_close,
    .codec_reset = th_cpu_codec_reset,
    .codec_decode = th_cpu_codec_decode,
    .codec_encode = th_cpu_codec_encode,
    .probe = set_probe,
    .layer = th_cpu_layer,
    .head = th_cpu_head,
    .memory = memory,
    .device = device,
};

static thespis_status prepare(struct th_cpu *cpu, thespis_error *error)
{
    if (cpu->model != NULL && cpu->model->holes)
        return th_fail(
            error, THESPIS_UNSUPPORTED,
            "the checkpoint holds recipes instead of weights (make_checkpoint --holes): only the CUDA backend makes them");
    TH_TRY(choose_isa(cpu, error));
    TH_TRY(th_pool_open(cpu->options.threads, &cpu->pool, error));
    TH_TRY(th_cpu_lm_prepare(cpu, error));
    return cpu->codec != NULL ? th_cpu_codec_prepare(cpu, error) : THESPIS_OK;
}

thespis_status th_cpu_backend_open(const struct th_model *model, const struct th_codec *codec,
                                   const struct th_backend_options *options, struct th_backend **backend, thespis_error *error)
{
    *backend = NULL;
    struct th_cpu *cpu;
    TH_TRY(TH_ALLOC(&cpu, 1, "the CPU backend", error));
    cpu->base.ops = &cpu_ops;
    cpu->model = model;
    cpu->codec = codec;
    cpu->options = *options;
    thespis_status status = prepare(cpu, error);
    if (status != THESPIS_OK)
        close_cpu(&cpu->base);
    else
        *backend = &cpu->base;
    return status;
}
