/* Four f32 lanes for the shared bodies (body_*.h): aarch64 NEON.
 *
 * vf_min and vf_max return b when either is a NaN, as the reference's comparisons do (fmin would
 * return the NaN). Only vf_fma fuses a product with a sum: elsewhere vmul and vadd, never vmla. */
#ifndef SL_KERNELS_ARM_SIMD_NEON_H
#define SL_KERNELS_ARM_SIMD_NEON_H

#include <arm_neon.h>

#define SL_ISA(name) name##_neon
#define VW           4

typedef float32x4_t vf;
typedef int32x4_t vi;

static inline vf vf_load(const float *p)
{
    return vld1q_f32(p);
}
static inline void vf_store(float *p, vf a)
{
    vst1q_f32(p, a);
}
static inline vf vf_set(float a)
{
    return vdupq_n_f32(a);
}
static inline vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
/* a * b + c, rounded once */
static inline vf vf_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
static inline vf vf_max(vf a, vf b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
/* a < b ? yes : no */
static inline vf vf_less(vf a, vf b, vf yes, vf no)
{
    return vbslq_f32(vcltq_f32(a, b), yes, no);
}
static inline vf vf_abs(vf a)
{
    return vabsq_f32(a);
}
static inline vf vf_neg_abs(vf a)
{
    return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(0x80000000u)));
}
/* a with the sign bit of b joined in; a is not negative */
static inline vf vf_join_sign(vf a, vf b)
{
    return vbslq_f32(vdupq_n_u32(0x80000000u), b, a);
}
static inline vi vf_bits(vf a)
{
    return vreinterpretq_s32_f32(a);
}
static inline vf vi_float(vi a)
{
    return vreinterpretq_f32_s32(a);
}
static inline vi vi_set(int a)
{
    return vdupq_n_s32(a);
}
static inline vi vi_add(vi a, vi b)
{
    return vaddq_s32(a, b);
}
static inline vi vi_sub(vi a, vi b)
{
    return vsubq_s32(a, b);
}
static inline vi vi_half(vi a)
{
    return vshrq_n_s32(a, 1);
}
static inline vi vi_shl23(vi a)
{
    return vshlq_n_s32(a, 23);
}

/* The four numbers of each of four channels, p[4 * channel + j], as one vector for each j. */
static inline void vf_load_fours(const float *p, vf to[4])
{
    const float32x4x4_t v = vld4q_f32(p);
    for (int j = 0; j < 4; j++) to[j] = v.val[j];
}

#endif
