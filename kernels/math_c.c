/* Reference exp, sigmoid, tanh, silu and SiTU.
 *
 * Written without a branch and with comparisons in the form `bound < x ? bound : x`, which lets a NaN
 * through and is one min or max instruction in every ISA. Operations and their order are the
 * contract: vector code repeats them step by step.
 *
 * Largest error over all 2^32 floats against double precision (tests/kernels/test_math --all), in
 * units of the last place, results below 2^-126 included: exp 0.989, sigmoid 2.402, tanh 1.332. */
#include <stdint.h>
#include <string.h>
#include "kernels/math_const.h"
#include "kernels/reference.h"

static inline uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float exp1(float x)
{
    x = SL_EXP_MAX < x ? SL_EXP_MAX : x;
    x = SL_EXP_MIN > x ? SL_EXP_MIN : x;
    float shifted = x * SL_EXP_LOG2E + SL_EXP_MAGIC;
    uint32_t n = bits_of(shifted) - bits_of(SL_EXP_MAGIC); /* k as two's complement */
    float k = shifted - SL_EXP_MAGIC;
    float r = (x - k * SL_EXP_LN2_HI) - k * SL_EXP_LN2_LO;
    float p = SL_EXP_P4;
    p = p * r + SL_EXP_P3;
    p = p * r + SL_EXP_P2;
    p = p * r + SL_EXP_P1;
    p = p * r + SL_EXP_P0;
    float e = ((r * r) * p + r) + 1.0f;
    /* 2^k in two factors: k reaches 128 above and -151 below, where the second one rounds. */
    uint32_t h = (uint32_t)((int32_t)n >> 1);
    return (e * float_of((h + 127) << 23)) * float_of((n - h + 127) << 23);
}

static inline float sigmoid1(float x)
{
    float a = float_of(bits_of(x) | 0x80000000u); /* -|x|: e stays in (0, 1] */
    float e = exp1(a);
    float num = x < 0.0f ? e : 1.0f;
    return num / (1.0f + e);
}

static inline float tanh1(float x)
{
    uint32_t sign = bits_of(x) & 0x80000000u;
    float a = float_of(bits_of(x) & 0x7fffffffu);
    float z = a * a;
    float q = SL_TANH_Q4;
    q = q * z + SL_TANH_Q3;
    q = q * z + SL_TANH_Q2;
    q = q * z + SL_TANH_Q1;
    q = q * z + SL_TANH_Q0;
    float near = a + (a * z) * q;
    float far = 1.0f - 2.0f / (exp1(a + a) + 1.0f);
    float t = a < SL_TANH_SPLIT ? near : far;
    return float_of(bits_of(t) | sign);
}

static inline float silu1(float x)
{
    float m = SL_SILU_MIN > x ? SL_SILU_MIN : x;
    return m * sigmoid1(x);
}

void sl_exp_c(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i++) y[i] = exp1(x[i]);
}

void sl_sigmoid_c(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i++) y[i] = sigmoid1(x[i]);
}

void sl_tanh_c(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i++) y[i] = tanh1(x[i]);
}

void sl_silu_c(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i++) y[i] = silu1(x[i]);
}

void sl_situ_c(float *y, const float *g, const float *u, int n, float beta, float lin)
{
    for (int i = 0; i < n; i++) {
        float gate = (beta * tanh1(g[i] / beta)) * sigmoid1(g[i]);
        float up = lin > 0.0f ? lin * tanh1(u[i] / lin) : u[i];
        y[i] = gate * up;
    }
}
