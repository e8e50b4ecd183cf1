/* Block decoders and dots of the integer product on NEON, with sdot where the machine has it.
 * Without: |code| <= 128 and |q| <= 127, so that a product fits 16 bits and sums are taken in 32. */
#include <arm_neon.h>
#include "kernels/act.h"
#include "kernels/a8_row.h"
#include "kernels/arm/decode_w_neon.h"

typedef struct {
    int8x16_t a, b;
} block;
typedef struct {
    float32x4_t a, b;
} sums;
typedef struct {
    uint8x16x4_t half[2];
} a8_table;

SL_INLINE block a8_T8(const struct sl_a8_row *r, int b)
{
    const int8_t *p = (const int8_t *)r->codes + (size_t)b * 32;
    return (block){vld1q_s8(p), vld1q_s8(p + 16)};
}

SL_INLINE block a8_T6(const struct sl_a8_row *r, int b)
{
    const uint8x16_t c = vld1q_u8(r->codes + (size_t)b * 16), three = vdupq_n_u8(3);
    const uint8x8_t h = vld1_u8(r->high + (size_t)b * 8);
    const uint8x16_t h0 = vandq_u8(vcombine_u8(h, vshr_n_u8(h, 2)), three);
    const uint8x16_t h1 = vandq_u8(vcombine_u8(vshr_n_u8(h, 4), vshr_n_u8(h, 6)), three);
    const uint8x16_t lo = vorrq_u8(vandq_u8(c, vdupq_n_u8(15)), vshlq_n_u8(h0, 4));
    const uint8x16_t hi = vorrq_u8(vshrq_n_u8(c, 4), vshlq_n_u8(h1, 4));
    const int8x16_t middle = vdupq_n_s8(32);
    return (block){vsubq_s8(vreinterpretq_s8_u8(lo), middle),
                   vsubq_s8(vreinterpretq_s8_u8(hi), middle)};
}

SL_INLINE block a8_pick(const int8_t *table, const uint8_t *p)
{
    const int8x16_t t = vld1q_s8(table);
    const uint8x16_t c = vld1q_u8(p);
    return (block){vqtbl1q_s8(t, vandq_u8(c, vdupq_n_u8(15))), vqtbl1q_s8(t, vshrq_n_u8(c, 4))};
}

SL_INLINE block a8_T4(const struct sl_a8_row *r, int b)
{
    return a8_pick(sl_t4_table, r->codes + (size_t)b * 16);
}

SL_INLINE block a8_MX(const struct sl_a8_row *r, int b)
{
    return a8_pick(sl_a8_e2m1, r->codes + (size_t)b * 16);
}

SL_INLINE a8_table a8_table_of(const struct sl_a8_row *r, int plain)
{
    a8_table t;
    t.half[0] = vld1q_u8_x4(r->w.table);
    t.half[1] = plain ? vld1q_u8_x4(r->w.table + 64) : t.half[0];
    return t;
}

SL_INLINE block a8_signed(struct w_pair v)
{
    return (block){vreinterpretq_s8_u8(v.a), vreinterpretq_s8_u8(v.b)};
}

SL_INLINE block a8_W2(const struct sl_a8_row *r, const a8_table *t, int b, int plain)
{
    const struct w_pair index = w_index2(r->w.words + (size_t)b * 8);
    struct w_pair v = w_lookup(t->half[0], index);
    if (plain) {
        const struct w_pair m = w_plain(r->w.plain + (size_t)b * 4);
        const struct w_pair f = w_lookup(t->half[1], index);
        v = (struct w_pair){vbslq_u8(m.a, f.a, v.a), vbslq_u8(m.b, f.b, v.b)};
    }
    return a8_signed(v);
}

SL_INLINE block a8_W1(const struct sl_a8_row *r, const a8_table *t, int b)
{
    return a8_signed(w_lookup(t->half[0], w_index1(r->w.words + (size_t)(b >> 1) * 8, b & 1)));
}

SL_INLINE void a8_scales(const struct sl_a8_row *r, enum sl_a8_kind k, int b, float *ws)
{
    (void)k;
    for (int i = 0; i < 8; i++) ws[i] = sl_a8_scale(r, b + i);
}

SL_INLINE void a8_factors(const float *ws, const float *scale, float *f)
{
    vst1q_f32(f, vmulq_f32(vld1q_f32(ws), vld1q_f32(scale)));
    vst1q_f32(f + 4, vmulq_f32(vld1q_f32(ws + 4), vld1q_f32(scale + 4)));
}

/* The scales are put where eight can be read. */
SL_INLINE void a8_few_factors(const struct sl_a8_row *r, enum sl_a8_kind k, int b, int n,
                              const float *scale, float *f)
{
    uint8_t left[16] = {0};
    float ws[8];
    struct sl_a8_row at = *r;
    const size_t first = (size_t)b, some = (size_t)n;
    if (k <= K_T4)
        memcpy(left, r->scales + 2 * first, 2 * some);
    else if (k == K_MX)
        memcpy(left, r->scales + first, some);
    else
        memcpy(left, (k >= K_W2 ? r->w.scales : r->scales) + first / 2, (some + 1) / 2);
    at.scales = at.w.scales = left;
    a8_scales(&at, k, 0, ws);
    for (int i = 0; i < n; i++) f[i] = ws[i] * scale[i];
}

SL_INLINE sums a8_load(const float *lane)
{
    return (sums){vld1q_f32(lane), vld1q_f32(lane + 4)};
}

SL_INLINE void a8_store(float *lane, sums s)
{
    vst1q_f32(lane, s.a);
    vst1q_f32(lane + 4, s.b);
}

SL_INLINE float a8_tree(sums even, sums odd)
{
    float lane[2 * SL_A8_QUADS];
    a8_store(lane, even);
    a8_store(lane + SL_A8_QUADS, odd);
    return sl_a8_tree(lane);
}

/* Four quads. */
SL_INLINE int32x4_t a8_quads(int8x16_t v, int8x16_t x)
{
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(vdupq_n_s32(0), v, x);
#else
    const int16x8_t p = vmull_s8(vget_low_s8(v), vget_low_s8(x));
    const int16x8_t s = vmull_s8(vget_high_s8(v), vget_high_s8(x));
    return vpaddq_s32(vpaddlq_s16(p), vpaddlq_s16(s));
#endif
}

SL_INLINE sums a8_step(sums s, block v, const int8_t *q, size_t plane, int planes, int whole,
                       const float *f)
{
    (void)whole;
    int32x4_t a = a8_quads(v.a, vld1q_s8(q)), b = a8_quads(v.b, vld1q_s8(q + 16));
    if (planes == 2) {
        const int8_t *rest = q + 2 * plane;
        a = vaddq_s32(vshlq_n_s32(a, 8), a8_quads(v.a, vld1q_s8(rest)));
        b = vaddq_s32(vshlq_n_s32(b, 8), a8_quads(v.b, vld1q_s8(rest + 16)));
    }
    const float32x4_t g = vdupq_n_f32(*f);
    return (sums){vfmaq_f32(s.a, vcvtq_f32_s32(a), g), vfmaq_f32(s.b, vcvtq_f32_s32(b), g)};
}

#ifdef SL_A8_NAME /* or else the decoders alone */
#include "kernels/body_a8.h"
#endif
