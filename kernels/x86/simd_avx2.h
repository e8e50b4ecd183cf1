/* Eight f32 lanes for the shared bodies (body_*.h): AVX2 names for the few operations they need.
 *
 * vf_min and vf_max return b when either is a NaN, as the reference's comparisons do. Only vf_fma
 * fuses a product with a sum. */
#ifndef SL_KERNELS_X86_SIMD_AVX2_H
#define SL_KERNELS_X86_SIMD_AVX2_H

#include <immintrin.h>

#define SL_ISA(name) name##_avx2
#define VW           8

typedef __m256 vf;
typedef __m256i vi;

static inline vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
static inline void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}
static inline vf vf_set(float a)
{
    return _mm256_set1_ps(a);
}
static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
/* a * b + c, rounded once */
static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
/* a < b ? yes : no */
static inline vf vf_less(vf a, vf b, vf yes, vf no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
static inline vf vf_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
static inline vf vf_neg_abs(vf a)
{
    return _mm256_or_ps(_mm256_set1_ps(-0.0f), a);
}
/* a with the sign bit of b joined in; a is not negative */
static inline vf vf_join_sign(vf a, vf b)
{
    return _mm256_or_ps(a, _mm256_and_ps(_mm256_set1_ps(-0.0f), b));
}
static inline vi vf_bits(vf a)
{
    return _mm256_castps_si256(a);
}
static inline vf vi_float(vi a)
{
    return _mm256_castsi256_ps(a);
}
static inline vi vi_set(int a)
{
    return _mm256_set1_epi32(a);
}
static inline vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
static inline vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}
static inline vi vi_half(vi a)
{
    return _mm256_srai_epi32(a, 1);
}
static inline vi vi_shl23(vi a)
{
    return _mm256_slli_epi32(a, 23);
}

/* The four numbers of each of eight channels, p[4 * channel + j], as one vector for each j. */
static inline void vf_load_fours(const float *p, vf to[4])
{
    const vf a = vf_load(p), b = vf_load(p + 8), c = vf_load(p + 16), d = vf_load(p + 24);
    const vf r0 = _mm256_permute2f128_ps(a, c, 0x20), r1 = _mm256_permute2f128_ps(a, c, 0x31);
    const vf r2 = _mm256_permute2f128_ps(b, d, 0x20), r3 = _mm256_permute2f128_ps(b, d, 0x31);
    const vf lo01 = _mm256_unpacklo_ps(r0, r1), hi01 = _mm256_unpackhi_ps(r0, r1);
    const vf lo23 = _mm256_unpacklo_ps(r2, r3), hi23 = _mm256_unpackhi_ps(r2, r3);
    to[0] = _mm256_shuffle_ps(lo01, lo23, 0x44);
    to[1] = _mm256_shuffle_ps(lo01, lo23, 0xee);
    to[2] = _mm256_shuffle_ps(hi01, hi23, 0x44);
    to[3] = _mm256_shuffle_ps(hi01, hi23, 0xee);
}

#endif
