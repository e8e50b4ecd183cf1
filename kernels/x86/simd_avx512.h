/* Sixteen f32 lanes for the shared bodies (body_*.h): AVX-512 F, BW, DQ, VL. As simd_avx2.h. */
#ifndef SL_KERNELS_X86_SIMD_AVX512_H
#define SL_KERNELS_X86_SIMD_AVX512_H

#include <immintrin.h>

#define SL_ISA(name) name##_avx512
#define VW           16

typedef __m512 vf;
typedef __m512i vi;

static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}
static inline vf vf_set(float a)
{
    return _mm512_set1_ps(a);
}
static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
/* a * b + c, rounded once */
static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
/* a < b ? yes : no */
static inline vf vf_less(vf a, vf b, vf yes, vf no)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
static inline vf vf_abs(vf a)
{
    return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a);
}
static inline vf vf_neg_abs(vf a)
{
    return _mm512_or_ps(_mm512_set1_ps(-0.0f), a);
}
/* a with the sign bit of b joined in; a is not negative */
static inline vf vf_join_sign(vf a, vf b)
{
    return _mm512_or_ps(a, _mm512_and_ps(_mm512_set1_ps(-0.0f), b));
}
static inline vi vf_bits(vf a)
{
    return _mm512_castps_si512(a);
}
static inline vf vi_float(vi a)
{
    return _mm512_castsi512_ps(a);
}
static inline vi vi_set(int a)
{
    return _mm512_set1_epi32(a);
}
static inline vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
static inline vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
static inline vi vi_half(vi a)
{
    return _mm512_srai_epi32(a, 1);
}
static inline vi vi_shl23(vi a)
{
    return _mm512_slli_epi32(a, 23);
}

/* The four numbers of each of sixteen channels, p[4 * channel + j], as one vector for each j. */
static inline void vf_load_fours(const float *p, vf to[4])
{
    const vi at = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);
    for (int j = 0; j < 4; j++) to[j] = _mm512_i32gather_ps(at, p + j, 4);
}

#endif
