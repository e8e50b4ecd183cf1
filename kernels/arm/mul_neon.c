/* Packed products on aarch64 NEON: block decoders for body_mul.h, four lanes.
 *
 * A block is eight registers in column order. MXFP4 codes are looked up as the high and low bytes of
 * their bf16 values (mx_table.h); a bf16 number goes to the upper half of a lane by zipping it with
 * zeros. */
#include "kernels/variants.h"
#include "kernels/arm/simd_neon.h"
#include "kernels/mx_table.h"
#include "kernels/simd_common.h"
#include "kernels/block_m4.h"
#include "kernels/block_t4.h"
#include "kernels/arm/decode_w_neon.h"

#define TILE     6
#define MX_ORDER 0

SL_INLINE void dec_f32(const struct sl_row *r, int b, vf *w)
{
    const uint8_t *p = r->codes + (size_t)b * 128;
#pragma GCC unroll 16
    for (int i = 0; i < 8; i++) w[i] = vreinterpretq_f32_u8(vld1q_u8(p + i * 16));
}

/* Eight bf16 to two vectors. */
SL_INLINE void widen_bf16(uint16x8_t h, vf *w)
{
    const uint16x8_t zero = vdupq_n_u16(0);
    w[0] = vreinterpretq_f32_u16(vzip1q_u16(zero, h));
    w[1] = vreinterpretq_f32_u16(vzip2q_u16(zero, h));
}

SL_INLINE void dec_bf16(const struct sl_row *r, int b, vf *w)
{
    const uint8_t *p = r->codes + (size_t)b * 64;
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) widen_bf16(vreinterpretq_u16_u8(vld1q_u8(p + i * 16)), w + 2 * i);
}

SL_INLINE void dec_f16(const struct sl_row *r, int b, vf *w)
{
    const uint8_t *p = r->codes + (size_t)b * 64;
#pragma GCC unroll 16
    for (int i = 0; i < 8; i++) w[i] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + i * 8)));
}

SL_INLINE void dec_t8(const struct sl_row *r, int b, vf *w)
{
    const uint8_t *p = r->codes + (size_t)b * 32;
    uint16_t half;
    memcpy(&half, r->scales + (size_t)b * 2, sizeof half);
    const vf scale = vdupq_laneq_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0);
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        const int16x8_t c = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p + i * 8)));
        w[2 * i] = vf_mul(vcvtq_f32_s32(vmovl_s16(vget_low_s16(c))), scale);
        w[2 * i + 1] = vf_mul(vcvtq_f32_s32(vmovl_s16(vget_high_s16(c))), scale);
    }
}

SL_INLINE vf block_scale(const struct sl_row *r, int b)
{
    uint16_t half;
    memcpy(&half, r->scales + (size_t)b * 2, sizeof half);
    return vdupq_laneq_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0);
}

SL_INLINE void widen_i8(int8x16_t v, vf scale, vf *w)
{
    const int16x8_t a = vmovl_s8(vget_low_s8(v)), b = vmovl_s8(vget_high_s8(v));
    w[0] = vf_mul(vcvtq_f32_s32(vmovl_s16(vget_low_s16(a))), scale);
    w[1] = vf_mul(vcvtq_f32_s32(vmovl_s16(vget_high_s16(a))), scale);
    w[2] = vf_mul(vcvtq_f32_s32(vmovl_s16(vget_low_s16(b))), scale);
    w[3] = vf_mul(vcvtq_f32_s32(vmovl_s16(vget_high_s16(b))), scale);
}

SL_INLINE void dec_t6(const struct sl_row *r, int b, vf *w)
{
    const uint8x16_t c = vld1q_u8(r->codes + (size_t)b * 16), three = vdupq_n_u8(3);
    const uint8x8_t h = vld1_u8(r->high + (size_t)b * 8);
    const uint8x16_t h0 = vandq_u8(vcombine_u8(h, vshr_n_u8(h, 2)), three);
    const uint8x16_t h1 = vandq_u8(vcombine_u8(vshr_n_u8(h, 4), vshr_n_u8(h, 6)), three);
    const uint8x16_t lo = vorrq_u8(vandq_u8(c, vdupq_n_u8(15)), vshlq_n_u8(h0, 4));
    const uint8x16_t hi = vorrq_u8(vshrq_n_u8(c, 4), vshlq_n_u8(h1, 4));
    const int8x16_t middle = vdupq_n_s8(32);
    const vf scale = block_scale(r, b);
    widen_i8(vsubq_s8(vreinterpretq_s8_u8(lo), middle), scale, w);
    widen_i8(vsubq_s8(vreinterpretq_s8_u8(hi), middle), scale, w + 4);
}

SL_INLINE void dec_t4(const struct sl_row *r, int b, vf *w)
{
    const int8x16_t table = vld1q_s8(sl_t4_table);
    const uint8x16_t c = vld1q_u8(r->codes + (size_t)b * 16);
    const vf scale = block_scale(r, b);
    widen_i8(vqtbl1q_s8(table, vandq_u8(c, vdupq_n_u8(15))), scale, w);
    widen_i8(vqtbl1q_s8(table, vshrq_n_u8(c, 4)), scale, w + 4);
}

/* Sixteen codes, one a byte, to four vectors. */
SL_INLINE void pick16(uint8x16_t n, uint8x16_t hi_table, uint8x16_t lo_table, vf *w)
{
    const uint8x16_t hi = vqtbl1q_u8(hi_table, n), lo = vqtbl1q_u8(lo_table, n);
    widen_bf16(vreinterpretq_u16_u8(vzip1q_u8(lo, hi)), w);
    widen_bf16(vreinterpretq_u16_u8(vzip2q_u8(lo, hi)), w + 2);
}

SL_INLINE void dec_mx(const uint8_t *codes, uint8_t s, vf *w)
{
    const uint8x16_t hi = vld1q_u8(sl_mx_table[s]), lo = vld1q_u8(sl_mx_table[s] + 16);
    const uint8x16_t c = vld1q_u8(codes);
    const uint8x16_t even = vandq_u8(c, vdupq_n_u8(15)), odd = vshrq_n_u8(c, 4);
    pick16(vzip1q_u8(even, odd), hi, lo, w);
    pick16(vzip2q_u8(even, odd), hi, lo, w + 4);
}

SL_INLINE void dec_mxfp4(const struct sl_row *r, int b, vf *w)
{
    dec_mx(r->codes + (size_t)b * 16, r->scales[b], w);
}

SL_INLINE void dec_m4(const struct sl_row *r, int b, vf *w)
{
    dec_mx(r->codes + (size_t)b * 16, sl_m4_scale(r->scales, r->e, b), w);
}

#define TURN 4

/* Four by four numbers, turned in registers. */
SL_INLINE void turn(const float *from, size_t ldf, float *to, size_t ldt)
{
    float32x4_t r[4];
    for (int i = 0; i < 4; i++) r[i] = vld1q_f32(from + (size_t)i * ldf);
    const float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);
    vst1q_f32(to, vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0])));
    vst1q_f32(to + ldt, vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1])));
    vst1q_f32(to + 2 * ldt, vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0])));
    vst1q_f32(to + 3 * ldt, vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1])));
}

#include "kernels/body_mul.h"
