/* Every operation that kernels may use, on the emulator or on a GPU; and that the emulator finds mistakes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/kernels/vmath.h"
#include "backend/cuda/runtime.h"

cudaError_t test_sums(const struct th_cuda_launch *launch, const float *x, float *y, int blocks, int threads);
cudaError_t test_products(const struct th_cuda_launch *launch, const uint16_t *a, const uint16_t *b, float *c, const uint8_t *a8,
                          const uint8_t *b8, float *c8);
cudaError_t test_functions(const struct th_cuda_launch *launch, const float *x, float *y, int n);
cudaError_t test_mistakes(const struct th_cuda_launch *launch, int kind, float *y);

static struct th_cuda_launch launch;

static void *device(const void *from, size_t bytes)
{
    void *p;
    assert_int_equal(cudaMalloc(&p, bytes), cudaSuccess);
    if (from != NULL) assert_int_equal(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    return p;
}

static void read_back(void *to, void *from, size_t bytes)
{
    assert_int_equal(cudaStreamSynchronize(launch.stream), cudaSuccess);
    assert_int_equal(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_int_equal(cudaFree(from), cudaSuccess);
}

enum { BLOCKS = 3, THREADS = 96 };

static void check_sums(const float *x, const float *y)
{
    for (int b = 0; b < BLOCKS; b++) {
        float sum = 0;
        for (int t = 0; t < THREADS; t++) sum += 2 * x[b * THREADS + t];
        for (int t = 0; t < THREADS; t++) {
            float warp = 0;
            for (int i = 0; i < 32; i++) warp += x[b * THREADS + t / 32 * 32 + i];
            assert_float_equal(y[b * THREADS + t], sum * 1000 + warp, 0);
        }
    }
}

static void barriers_and_shuffles(void **state)
{
    (void)state;
    float x[BLOCKS * THREADS], y[BLOCKS * THREADS];
    for (int i = 0; i < BLOCKS * THREADS; i++) x[i] = (float)(i * 7 % 13);
    float *dx = device(x, sizeof x), *dy = device(NULL, sizeof y);
    assert_int_equal(test_sums(&launch, dx, dy, BLOCKS, THREADS), cudaSuccess);
    read_back(y, dy, sizeof y);
    check_sums(x, y);
    assert_int_equal(cudaFree(dx), cudaSuccess);
}

static void graphs_replay(void **state)
{
    (void)state;
    float x[BLOCKS * THREADS], y[BLOCKS * THREADS];
    float *dx = device(NULL, sizeof x), *dy = device(NULL, sizeof y);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    assert_int_equal(cudaStreamBeginCapture(launch.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    assert_int_equal(test_sums(&launch, dx, dy, BLOCKS, THREADS), cudaSuccess);
    assert_int_equal(cudaStreamEndCapture(launch.stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    for (int round = 1; round < 3; round++) {
        for (int i = 0; i < BLOCKS * THREADS; i++) x[i] = (float)(i * round % 11);
        assert_int_equal(cudaMemcpyAsync(dx, x, sizeof x, cudaMemcpyHostToDevice, launch.stream), cudaSuccess);
        assert_int_equal(cudaGraphLaunch(exec, launch.stream), cudaSuccess);
        assert_int_equal(cudaMemcpyAsync(y, dy, sizeof y, cudaMemcpyDeviceToHost, launch.stream), cudaSuccess);
        assert_int_equal(cudaStreamSynchronize(launch.stream), cudaSuccess);
        check_sums(x, y);
    }
    assert_int_equal(cudaGraphExecDestroy(exec), cudaSuccess);
    assert_int_equal(cudaFree(dx), cudaSuccess);
    assert_int_equal(cudaFree(dy), cudaSuccess);
}

static uint16_t bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)(bits >> 16);
}

/* Small whole numbers: every order of sums gives the same. */
static void matrix_instructions(void **state)
{
    (void)state;
    static const uint8_t codes[] = {0x00, 0x38, 0x40, 0x44, 0x48, 0xB8, 0xC0}; /* 0 1 2 3 4 -1 -2 */
    static const float values[] = {0, 1, 2, 3, 4, -1, -2};
    uint16_t a[16 * 16], b[8 * 16];
    uint8_t a8[16 * 32], b8[8 * 32];
    float c[128], c8[128];
    for (int i = 0; i < 16 * 16; i++) a[i] = bf16((float)(i * 5 % 17 - 8));
    for (int i = 0; i < 8 * 16; i++) b[i] = bf16((float)(i * 3 % 7 - 3));
    for (int i = 0; i < 16 * 32; i++) a8[i] = codes[i * 3 % 7];
    for (int i = 0; i < 8 * 32; i++) b8[i] = codes[(i * i + 1) % 7];
    void *da = device(a, sizeof a), *db = device(b, sizeof b), *da8 = device(a8, sizeof a8), *db8 = device(b8, sizeof b8);
    float *dc = device(NULL, sizeof c), *dc8 = device(NULL, sizeof c8);
    assert_int_equal(test_products(&launch, da, db, dc, da8, db8, dc8), cudaSuccess);
    read_back(c, dc, sizeof c);
    read_back(c8, dc8, sizeof c8);
    for (int r = 0; r < 16; r++)
        for (int n = 0; n < 8; n++) {
            float sum = 0, sum8 = 0;
            for (int k = 0; k < 16; k++) sum += th_bf16_to_float(a[r * 16 + k]) * th_bf16_to_float(b[n * 16 + k]);
            for (int k = 0; k < 32; k++) sum8 += values[(r * 32 + k) * 3 % 7] * values[((n * 32 + k) * (n * 32 + k) + 1) % 7];
            assert_float_equal(c[r * 8 + n], sum, 0);
            assert_float_equal(c8[r * 8 + n], sum8, 0);
        }
    cudaFree(da), cudaFree(db), cudaFree(da8), cudaFree(db8);
}

static float cpu_e4m3(float x)
{
    if (!(fabsf(x) < 448.0f)) return copysignf(448.0f, x);
    float size = fabsf(x), grid = size < 0x1p-6f ? 0x1p-9f : ldexpf(1.0f, ilogbf(size) - 3);
    return copysignf(rintf(size / grid) * grid, x);
}

static int same(float a, float b)
{
    return (a != a && b != b) || memcmp(&a, &b, 4) == 0;
}

/* The same bytes as the CPU backend's functions. */
static void functions(void **state)
{
    (void)state;
    enum { N = 40000 };
    static float x[N], y[9][N];
    for (int i = 0; i < N; i++) {
        uint32_t bits = (uint32_t)i * 107374u; /* over the whole range of floats */
        memcpy(&x[i], &bits, 4);
        if (i % 2) x[i] = (float)(i - N / 2) * 0.0011f;
    }
    x[0] = 0.0f, x[2] = -0.0f, x[4] = INFINITY, x[6] = -INFINITY, x[8] = NAN, x[10] = 449.0f, x[12] = 1000.0f;
    float *dx = device(x, sizeof x), *dy = device(NULL, sizeof y);
    assert_int_equal(test_functions(&launch, dx, dy, N), cudaSuccess);
    read_back(y, dy, sizeof y);
    for (int i = 0; i < N; i++) {
        const float expected[] = {th_exp1(x[i]),     th_log1(x[i]),  th_sin1(x[i]),       th_tanh1(x[i]), th_erf1(x[i]),
                                  th_sigmoid1(x[i]), th_silu1(x[i]), th_round_bf16(x[i]), cpu_e4m3(x[i])};
        for (int f = 0; f < 9; f++) {
            if (f == 2 && !(fabsf(x[i]) < 0x1p17f)) continue; /* far away the two differ, within a rounding */
            if (f == 8 && x[i] != x[i]) continue;             /* a NaN's code counts as 480 when it is read */
            if (!same(y[f][i], expected[f])) fail_msg("function %d of %a is %a, must be %a", f, x[i], y[f][i], expected[f]);
        }
    }
    assert_int_equal(cudaFree(dx), cudaSuccess);
}

#ifdef TH_CUDA_EMU
static void mistakes_are_found(void **state)
{
    (void)state;
    static const char *const words[] = {"deadlock", "different barriers", "deadlock"};
    float *y = device(NULL, 64 * sizeof(float));
    for (int kind = 0; kind < 3; kind++) {
        assert_int_equal(test_mistakes(&launch, kind, y), cudaErrorLaunchFailure);
        assert_non_null(strstr(th_emu_report(), words[kind]));
        assert_int_equal(cudaStreamSynchronize(launch.stream), cudaErrorLaunchFailure); /* as on a device: it stays lost */
        th_emu_fail_from(0, cudaSuccess);
    }
    assert_int_equal(cudaFree(y), cudaSuccess);
}

static void calls_can_be_made_to_fail(void **state)
{
    (void)state;
    void *p;
    thespis_error error;
    th_emu_fail_from(2, cudaErrorMemoryAllocation);
    assert_int_equal(cudaMalloc(&p, 16), cudaSuccess);
    assert_int_equal(cudaFree(p), cudaSuccess);
    assert_int_equal(th_cuda_status(cudaMalloc(&p, 16), "a test", &error), THESPIS_MEMORY);
    th_emu_fail_from(0, cudaSuccess);
    assert_int_equal(th_emu_used(), 0);
}
#endif

int main(void)
{
    if (cudaStreamCreate(&launch.stream) != cudaSuccess) return 77; /* no device */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(barriers_and_shuffles), cmocka_unit_test(graphs_replay),
        cmocka_unit_test(matrix_instructions),   cmocka_unit_test(functions),
#ifdef TH_CUDA_EMU
        cmocka_unit_test(mistakes_are_found),    cmocka_unit_test(calls_can_be_made_to_fail),
#endif
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return cudaStreamDestroy(launch.stream) == cudaSuccess ? failed : 1;
}
