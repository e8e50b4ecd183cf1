/* Batch products (mul_batch.h) on aarch64 with sdot: rows of W are the lanes.
 *
 * An int16 activation is 256 * hi + lo, two planes of int8 a block; a quad of codes times a quad of a plane
 * is one lane of an sdot, so that eight sdots sum a block of four rows and one plane.
 *
 *   panel   int8 [block][8 quads][ROWS][4], turned once for all tokens
 *   q       int8 [block][2 planes][32], places in order */
#include <assert.h>
#include <string.h>
#include "kernels/arm/a8_neon.h"
#include "kernels/batch_pack.h"
#include "kernels/mul_batch.h"
#include "kernels/a8_block.h"

enum { B = 32, SEG = 8, VR = 4, NV = 2, ROWS = NV * VR, PANEL = B * ROWS, TILE = 4, TOKENS = 128 };
typedef int8_t panel_unit;

/* ---- panels */

SL_INLINE void turn4(int8x16_t v[4])
{
    const int32x4_t a = vreinterpretq_s32_s8(v[0]), b = vreinterpretq_s32_s8(v[1]);
    const int32x4_t c = vreinterpretq_s32_s8(v[2]), d = vreinterpretq_s32_s8(v[3]);
    const int64x2_t ab0 = vreinterpretq_s64_s32(vtrn1q_s32(a, b));
    const int64x2_t ab1 = vreinterpretq_s64_s32(vtrn2q_s32(a, b));
    const int64x2_t cd0 = vreinterpretq_s64_s32(vtrn1q_s32(c, d));
    const int64x2_t cd1 = vreinterpretq_s64_s32(vtrn2q_s32(c, d));
    v[0] = vreinterpretq_s8_s64(vtrn1q_s64(ab0, cd0));
    v[1] = vreinterpretq_s8_s64(vtrn1q_s64(ab1, cd1));
    v[2] = vreinterpretq_s8_s64(vtrn2q_s64(ab0, cd0));
    v[3] = vreinterpretq_s8_s64(vtrn2q_s64(ab1, cd1));
}

/* Block b of four rows. */
SL_INLINE void put_block(const struct sl_a8_row *r, const a8_table *t, enum sl_a8_kind k, int b,
                         int8_t *panel)
{
    int8x16_t lo[VR], hi[VR];
#pragma GCC unroll 4
    for (int i = 0; i < VR; i++) {
        const block v = one_block(&r[i], t, k, b);
        lo[i] = v.a;
        hi[i] = v.b;
    }
    turn4(lo);
    turn4(hi);
#pragma GCC unroll 4
    for (int j = 0; j < VR; j++) {
        vst1q_s8(panel + j * ROWS * 4, lo[j]);
        vst1q_s8(panel + (j + 4) * ROWS * 4, hi[j]);
    }
}

SL_INLINE void put_panel(const struct sl_a8_row *row, const a8_table *t, enum sl_a8_kind k, int b0,
                         int n, int8_t *panel, float *ws)
{
    for (int b = 0; b < n; b++) {
        for (int r = 0; r < ROWS; r++) ws[b * ROWS + r] = sl_a8_scale(&row[r], b0 + b);
        for (int g = 0; g < ROWS; g += VR)
            put_block(row + g, t, k, b0 + b, panel + b * PANEL + g * 4);
    }
}

/* ---- tiles */

/* Adds n blocks to the sums of nt <= TILE tokens. q and scale: of the first token, at the first block. */
SL_INLINE void tile(const int8_t *panel, const float *ws, const int8_t *q, size_t token,
                    const float *scale, size_t nb, int n, float *sum, const int nt)
{
    for (int b = 0; b < n; b++, panel += PANEL, ws += ROWS, q += 2 * B, scale++) {
        int32x4_t s[TILE][NV];
#pragma GCC unroll 4
        for (int t = 0; t < nt; t++)
#pragma GCC unroll 2
            for (int v = 0; v < NV; v++) s[t][v] = vdupq_n_s32(0);
        for (int plane = 0; plane < 2; plane++) {
            if (plane) {
#pragma GCC unroll 4
                for (int t = 0; t < nt; t++)
#pragma GCC unroll 2
                    for (int v = 0; v < NV; v++) s[t][v] = vshlq_n_s32(s[t][v], 8);
            }
            for (int h = 0; h < 2; h++) {
                int8x16_t x[TILE];
#pragma GCC unroll 4
                for (int t = 0; t < nt; t++)
                    x[t] = vld1q_s8(q + (size_t)t * token + plane * B + h * 16);
                const int8_t *w = panel + h * 4 * ROWS * 4;
#pragma GCC unroll 2
                for (int v = 0; v < NV; v++) {
                    const int8x16_t w0 = vld1q_s8(w + v * 16);
                    const int8x16_t w1 = vld1q_s8(w + ROWS * 4 + v * 16);
                    const int8x16_t w2 = vld1q_s8(w + ROWS * 8 + v * 16);
                    const int8x16_t w3 = vld1q_s8(w + ROWS * 12 + v * 16);
#pragma GCC unroll 4
                    for (int t = 0; t < nt; t++) {
                        s[t][v] = vdotq_laneq_s32(s[t][v], w0, x[t], 0);
                        s[t][v] = vdotq_laneq_s32(s[t][v], w1, x[t], 1);
                        s[t][v] = vdotq_laneq_s32(s[t][v], w2, x[t], 2);
                        s[t][v] = vdotq_laneq_s32(s[t][v], w3, x[t], 3);
                    }
                }
            }
        }
#pragma GCC unroll 4
        for (int t = 0; t < nt; t++) {
            const float xs = scale[(size_t)t * nb];
#pragma GCC unroll 2
            for (int v = 0; v < NV; v++) {
                float *at = sum + t * ROWS + v * VR;
                const float32x4_t f = vmulq_n_f32(vld1q_f32(ws + v * VR), xs);
                vst1q_f32(at, vfmaq_f32(vld1q_f32(at), vcvtq_f32_s32(s[t][v]), f));
            }
        }
    }
}

#include "kernels/body_batch.h"

/* ---- packing */

static void pack(enum sl_act_order order, const float *x, int cols, int8_t *q, float *scale)
{
    assert(order != SL_ACT_NONE && cols >= 0);
    const int nb = sl_t8_blocks(cols);
    int column[B];
    for (int i = 0; i < B; i++) column[i] = sl_a8_column(order, i);
    for (int b = 0; b < nb; b++, q += (size_t)2 * B) {
        const int n = cols - b * B < B ? cols - b * B : B;
        int16_t v[B];
        scale[b] = sl_batch_quantize(x + (size_t)b * B, n, v);
        for (int i = 0; i < B; i++) {
            const int hi = (v[column[i]] + 128) >> 8; /* -127 .. 127; what is left, -128 .. 127 */
            q[i] = (int8_t)hi;
            q[B + i] = (int8_t)(v[column[i]] - 256 * hi);
        }
    }
}

const struct sl_mul_batch sl_mul_batch_neondot = {"neon+dot", pack, mul};
