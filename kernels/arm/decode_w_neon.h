/* Blocks of the trellis formats (block_w.h) on NEON: 32 weights at a time, values as int8 in column
 * order, then as f32. A table of 64 is one lookup; the rotations are those of decode_w_avx2.h. */
#ifndef SL_KERNELS_ARM_DECODE_W_NEON_H
#define SL_KERNELS_ARM_DECODE_W_NEON_H

#include <arm_neon.h>
#include <string.h>
#include "kernels/decode_w.h"
#include "kernels/simd_common.h"

struct w_pair {
    uint8x16_t a, b;
};

SL_INLINE struct w_pair w_lookup(uint8x16x4_t t, struct w_pair index)
{
    return (struct w_pair){vqtbl4q_u8(t, index.a), vqtbl4q_u8(t, index.b)};
}

SL_INLINE uint8x16_t w_rotate2(uint64x2_t v, int64_t r0, int64_t r1)
{
    const int64x2_t down = {-r0, -r1}, up = {64 - r0, 64 - r1};
    const uint64x2_t r = vorrq_u64(vshlq_u64(v, down), vshlq_u64(v, up));
    return vandq_u8(vreinterpretq_u8_u64(r), vdupq_n_u8(63));
}

/* Indices of a word with two bits a weight: byte j of rotation i is that of weight 4j + i. */
SL_INLINE struct w_pair w_index2(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
    const uint64x2_t v = vdupq_n_u64(word);
    return (struct w_pair){w_rotate2(v, 0, 2), w_rotate2(v, 4, 6)};
}

SL_INLINE uint8x16_t w_rotate1(uint32x4_t lo, uint32x4_t hi, int r)
{
    const int32x4_t down = {-r, -r - 1, -r - 2, -r - 3}, up = vaddq_s32(down, vdupq_n_s32(32));
    const uint32x4_t v = vorrq_u32(vshlq_u32(lo, down), vshlq_u32(hi, up));
    return vandq_u8(vreinterpretq_u8_u32(v), vdupq_n_u8(63));
}

/* Indices of half a word with one bit a weight: byte j of rotation i is that of weight 8j + i. */
SL_INLINE struct w_pair w_index1(const uint8_t *word, int half)
{
    uint32_t lo, hi;
    memcpy(&lo, word + half * 4, sizeof lo);
    memcpy(&hi, word + (half ^ 1) * 4, sizeof hi);
    const uint32x4_t l = vdupq_n_u32(lo), h = vdupq_n_u32(hi);
    return (struct w_pair){w_rotate1(l, h, 0), w_rotate1(l, h, 4)};
}

/* Plain bits as bytes 0 or 255, in the order of w_index2. */
SL_INLINE struct w_pair w_plain(const uint8_t *p)
{
    static const uint8_t at[16] = {0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3};
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
    const uint8x16_t v = vqtbl1q_u8(vreinterpretq_u8_u32(vdupq_n_u32(bits)), vld1q_u8(at));
    const uint64x2_t a = {0x1001100110011001, 0x2002200220022002};
    return (struct w_pair){vtstq_u8(v, vreinterpretq_u8_u64(a)),
                           vtstq_u8(v, vreinterpretq_u8_u64(vshlq_n_u64(a, 2)))};
}

SL_INLINE struct w_pair w_natural2(struct w_pair v)
{
    const uint16x8_t a = vreinterpretq_u16_u8(vzip1q_u8(v.a, vextq_u8(v.a, v.a, 8)));
    const uint16x8_t b = vreinterpretq_u16_u8(vzip1q_u8(v.b, vextq_u8(v.b, v.b, 8)));
    return (struct w_pair){vreinterpretq_u8_u16(vzip1q_u16(a, b)),
                           vreinterpretq_u8_u16(vzip2q_u16(a, b))};
}

SL_INLINE struct w_pair w_natural1(struct w_pair v)
{
    static const uint8_t turn[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    const uint8x16_t t = vld1q_u8(turn);
    const uint32x4_t a = vreinterpretq_u32_u8(vqtbl1q_u8(v.a, t));
    const uint32x4_t b = vreinterpretq_u32_u8(vqtbl1q_u8(v.b, t));
    return (struct w_pair){vreinterpretq_u8_u32(vzip1q_u32(a, b)),
                           vreinterpretq_u8_u32(vzip2q_u32(a, b))};
}

SL_INLINE void w_store16(float *out, uint8x16_t v, float scale)
{
    const int16x8_t a = vmovl_s8(vget_low_s8(vreinterpretq_s8_u8(v)));
    const int16x8_t b = vmovl_s8(vget_high_s8(vreinterpretq_s8_u8(v)));
    vst1q_f32(out, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(a))), scale));
    vst1q_f32(out + 4, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_high_s16(a))), scale));
    vst1q_f32(out + 8, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(b))), scale));
    vst1q_f32(out + 12, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_high_s16(b))), scale));
}

/* Blocks [b0, b0 + n) of a row to f32. */
static inline void w_decode(const struct sl_w_row *r, int b0, int n, float *out)
{
    const uint8x16x4_t t = vld1q_u8_x4(r->table);
    const uint8x16x4_t u = r->plain ? vld1q_u8_x4(r->table + 64) : t;
    for (int b = b0; b < b0 + n; b++, out += SL_W_BLOCK) {
        const float scale = r->row * (float)sl_w_scale(sl_w_nibble(r->scales, b));
        struct w_pair v;
        if (r->bits == 2) {
            const struct w_pair index = w_index2(r->words + (size_t)b * 8);
            v = w_lookup(t, index);
            if (r->plain) {
                const struct w_pair m = w_plain(r->plain + (size_t)b * 4), f = w_lookup(u, index);
                v = (struct w_pair){vbslq_u8(m.a, f.a, v.a), vbslq_u8(m.b, f.b, v.b)};
            }
            v = w_natural2(v);
        } else {
            v = w_natural1(w_lookup(t, w_index1(r->words + (size_t)(b >> 1) * 8, b & 1)));
        }
        w_store16(out, v.a, scale);
        w_store16(out + 16, v.b, scale);
    }
}

#endif
