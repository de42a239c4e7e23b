/* test_vmath.c - the kernels' own functions against the math library in double, over all of single precision; and every instruction
 * set against the portable one, byte for byte. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/codec.h"

#define STRIDE 4093 /* of bit patterns: a prime, so that every exponent and many mantissas come by */
#define BATCH 4096

static double sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

static double silu(double x)
{
    return x * sigmoid(x);
}

/* Distance in units of the last place of the true value, denormal ones included. */
static double ulps(float value, double truth)
{
    if (isnan(truth) || isnan(value)) return isnan(truth) && isnan(value) ? 0 : INFINITY;
    if (value == (float)truth) return 0;
    int exponent;
    frexp(fabs(truth), &exponent);
    if (truth == 0 || exponent < -125) exponent = -125;
    return fabs((double)value - truth) / ldexp(1, exponent - 24);
}

static const struct {
    const char *name;
    double (*truth)(double);
    double bound; /* ulp */
    float from;   /* arguments below are not held to the bound */
} functions[TH_VMATH_COUNT] = {
    [TH_VMATH_EXP] = {"exp", exp, 1.1, -INFINITY}, [TH_VMATH_LOG] = {"log", log, 1.0, -INFINITY},
    [TH_VMATH_SIN] = {"sin", sin, 2.0, -INFINITY}, [TH_VMATH_TANH] = {"tanh", tanh, 1.6, -INFINITY},
    [TH_VMATH_ERF] = {"erf", erf, 1.1, -INFINITY}, [TH_VMATH_SIGMOID] = {"sigmoid", sigmoid, 2.5, -INFINITY},
    [TH_VMATH_SILU] = {"silu", silu, 3.0, -87.0f},
};

static void hold_to_truth(int function, const float *in, int count)
{
    float out[BATCH];
    th_codec_kernels_portable.vmath((enum th_vmath)function, in, out, count);
    for (int i = 0; i < count; i++) {
        if (in[i] < functions[function].from) continue;
        double error = ulps(out[i], functions[function].truth((double)in[i]));
        if (!(error <= functions[function].bound))
            fail_msg("%s(%a) = %a is %.2f ulp off", functions[function].name, in[i], out[i], error);
    }
#ifdef TH_HAVE_AVX2
    float wide[BATCH];
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return;
    th_codec_kernels_avx2.vmath((enum th_vmath)function, in, wide, count);
    for (int i = 0; i < count; i++)
        if (!isnan(out[i]) && memcmp(&out[i], &wide[i], sizeof(float)) != 0)
            fail_msg("%s(%a): portable gives %a, avx2 %a", functions[function].name, in[i], out[i], wide[i]);
#endif
}

static void whole_range(void **state)
{
    (void)state;
    float in[BATCH];
    for (int f = 0; f < TH_VMATH_COUNT; f++) {
        int n = 0;
        for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += STRIDE) {
            uint32_t pattern = (uint32_t)bits;
            memcpy(&in[n++], &pattern, sizeof pattern);
            if (n == BATCH || bits + STRIDE >= UINT64_C(1) << 32) {
                hold_to_truth(f, in, n);
                n = 0;
            }
        }
    }
}

/* Where the network's arguments lie, densely. */
static void small_arguments(void **state)
{
    (void)state;
    float in[BATCH];
    for (int f = 0; f < TH_VMATH_COUNT; f++)
        for (int part = 0; part < 24; part++) {
            for (int i = 0; i < BATCH; i++) in[i] = (float)(((double)i + 0.37) / BATCH - 0.5) * ldexpf(1.0f, part - 8);
            hold_to_truth(f, in, BATCH);
        }
}

/* The largest relative errors of a reduction sit beside the multiples of pi. */
static void sines_near_multiples_of_pi(void **state)
{
    (void)state;
    float in[3 * 1024];
    for (int start = 1; start < 40000; start += 1024) {
        for (int i = 0; i < 1024; i++) {
            float middle = (float)((start + i) * 3.14159265358979323846);
            in[3 * i] = nextafterf(middle, 0.0f);
            in[3 * i + 1] = middle;
            in[3 * i + 2] = nextafterf(middle, INFINITY);
        }
        hold_to_truth(TH_VMATH_SIN, in, 3 * 1024);
    }
}

static void edges(void **state)
{
    (void)state;
    float in[] = {0.0f,    -0.0f, INFINITY, -INFINITY, NAN, 1e-45f, -1e-45f, 0x1.fffffep127f, 0x1p17f, nextafterf(0x1p17f, 0.0f),
                  -0x1p24f};
    const int count = sizeof in / sizeof *in;
    float out[16];
    for (int f = 0; f < TH_VMATH_COUNT; f++) hold_to_truth(f, in, f == TH_VMATH_SILU ? 3 : count);
    th_codec_kernels_portable.vmath(TH_VMATH_EXP, in, out, count);
    assert_true(out[0] == 1.0f && isinf(out[2]) && out[3] == 0.0f && isnan(out[4]));
    th_codec_kernels_portable.vmath(TH_VMATH_SIN, in, out, count);
    assert_true(isnan(out[2]) && isnan(out[3]) && out[5] == 1e-45f);
    th_codec_kernels_portable.vmath(TH_VMATH_LOG, in, out, count);
    assert_true(out[0] == -INFINITY && out[1] == -INFINITY && out[2] == INFINITY && isnan(out[3]) && isnan(out[6]));
    float denormal[1] = {-100.0f};
    th_codec_kernels_portable.vmath(TH_VMATH_EXP, denormal, out, 1);
    assert_true(out[0] > 0.0f && out[0] < 0x1p-126f); /* not flushed */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_range),
        cmocka_unit_test(small_arguments),
        cmocka_unit_test(sines_near_multiples_of_pi),
        cmocka_unit_test(edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
