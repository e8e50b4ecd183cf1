/* exp, sigmoid, tanh, silu and SiTU of math_c.c, step by step: bits equal to the reference. */
#ifndef SL_KERNELS_CUDA_MATH_CUH
#define SL_KERNELS_CUDA_MATH_CUH

#include <stdint.h>
#include "kernels/math_const.h"

static __device__ inline float sl_d_exp(float x)
{
    x = SL_EXP_MAX < x ? SL_EXP_MAX : x;
    x = SL_EXP_MIN > x ? SL_EXP_MIN : x;
    const float shifted = x * SL_EXP_LOG2E + SL_EXP_MAGIC;
    const uint32_t n = __float_as_uint(shifted) - __float_as_uint(SL_EXP_MAGIC);
    const float k = shifted - SL_EXP_MAGIC;
    const float r = (x - k * SL_EXP_LN2_HI) - k * SL_EXP_LN2_LO;
    float p = SL_EXP_P4;
    p = p * r + SL_EXP_P3;
    p = p * r + SL_EXP_P2;
    p = p * r + SL_EXP_P1;
    p = p * r + SL_EXP_P0;
    const float e = ((r * r) * p + r) + 1.0f;
    const uint32_t h = (uint32_t)((int32_t)n >> 1);
    return (e * __uint_as_float((h + 127) << 23)) * __uint_as_float((n - h + 127) << 23);
}

static __device__ inline float sl_d_sigmoid(float x)
{
    const float e = sl_d_exp(__uint_as_float(__float_as_uint(x) | 0x80000000u));
    const float num = x < 0.0f ? e : 1.0f;
    return num / (1.0f + e);
}

static __device__ inline float sl_d_tanh(float x)
{
    const uint32_t sign = __float_as_uint(x) & 0x80000000u;
    const float a = __uint_as_float(__float_as_uint(x) & 0x7fffffffu);
    const float z = a * a;
    float q = SL_TANH_Q4;
    q = q * z + SL_TANH_Q3;
    q = q * z + SL_TANH_Q2;
    q = q * z + SL_TANH_Q1;
    q = q * z + SL_TANH_Q0;
    const float near = a + (a * z) * q;
    const float far = 1.0f - 2.0f / (sl_d_exp(a + a) + 1.0f);
    const float t = a < SL_TANH_SPLIT ? near : far;
    return __uint_as_float(__float_as_uint(t) | sign);
}

static __device__ inline float sl_d_silu(float x)
{
    const float m = SL_SILU_MIN > x ? SL_SILU_MIN : x;
    return m * sl_d_sigmoid(x);
}

static __device__ inline float sl_d_situ(float g, float u, float beta, float lin)
{
    const float gate = (beta * sl_d_tanh(g / beta)) * sl_d_sigmoid(g);
    const float up = lin > 0.0f ? lin * sl_d_tanh(u / lin) : u;
    return gate * up;
}

#endif
