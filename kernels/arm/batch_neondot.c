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

enum { B = 32, SEG = 8, VR = 4, NV = 2, ROWS = NV * VR, QUADS = 8, TILE = 4, TOKENS = 128 };

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

SL_INLINE block any_block(const struct sl_a8_row *r, const a8_table *t, enum sl_a8_kind k, int b)
{
    switch (k) {
    case K_T8:
        return a8_T8(r, b);
    case K_T6:
        return a8_T6(r, b);
    case K_T4:
        return a8_T4(r, b);
    case K_MX:
    case K_M4:
        return a8_MX(r, b);
    case K_W2:
        return a8_W2(r, t, b, 0);
    case K_W2_PLAIN:
        return a8_W2(r, t, b, 1);
    default:
        return a8_W1(r, t, b);
    }
}

/* Block b of four rows. */
SL_INLINE void put_block(const struct sl_a8_row *r, const a8_table *t, enum sl_a8_kind k, int b,
                         int8_t *panel)
{
    int8x16_t lo[VR], hi[VR];
#pragma GCC unroll 4
    for (int i = 0; i < VR; i++) {
        const block v = any_block(&r[i], t, k, b);
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

/* ---- tiles */

/* Adds n blocks to the sums of nt <= TILE tokens. q and scale: of the first token, at the first block. */
SL_INLINE void tile(const int8_t *panel, const float *ws, const int8_t *q, size_t token,
                    const float *scale, size_t nb, int n, float *sum, const int nt)
{
    for (int b = 0; b < n; b++, panel += B * ROWS, ws += ROWS, q += 2 * B, scale++) {
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

static void tiles(const int8_t *panel, const float *ws, const int8_t *q, size_t token,
                  const float *scale, size_t nb, int n, float *sum, int nt)
{
    for (; nt >= TILE; nt -= TILE) {
        tile(panel, ws, q, token, scale, nb, n, sum, TILE);
        q += TILE * token;
        scale += TILE * nb;
        sum += TILE * ROWS;
    }
    if (nt == 1) tile(panel, ws, q, token, scale, nb, n, sum, 1);
    if (nt == 2) tile(panel, ws, q, token, scale, nb, n, sum, 2);
    if (nt == 3) tile(panel, ws, q, token, scale, nb, n, sum, 3);
}

/* Past the end of the range the last row again: its sums are not stored. */
SL_INLINE void mul_kind(const struct sl_mat *w, enum sl_a8_kind k, int row0, int row1,
                        const struct sl_batch_x *x, float *y, size_t ldy)
{
    int8_t panel[SEG * B * ROWS] __attribute__((aligned(64)));
    float ws[SEG * ROWS] __attribute__((aligned(64)));
    float sum[TOKENS * ROWS] __attribute__((aligned(64)));
    const int nb = sl_t8_blocks(w->cols);
    const size_t token = sl_batch_bytes(w->cols), blocks = (size_t)nb;
    struct sl_a8_row row[ROWS];
    if (row0 == row1) return;
    row[0] = sl_a8_row_at(w, row0);
    a8_table table;
    if (k >= K_W2) table = a8_table_of(&row[0], k == K_W2_PLAIN);
    for (int r0 = row0; r0 < row1; r0 += ROWS) {
        const int nr = row1 - r0 < ROWS ? row1 - r0 : ROWS;
        for (int r = 0; r < ROWS; r++) row[r] = sl_a8_row_at(w, r0 + (r < nr ? r : nr - 1));
        for (int t0 = 0; t0 < x->n_tok; t0 += TOKENS) {
            const int nt = x->n_tok - t0 < TOKENS ? x->n_tok - t0 : TOKENS;
            const int8_t *q = x->q + (size_t)t0 * token;
            const float *scale = x->scale + (size_t)t0 * blocks;
            memset(sum, 0, (size_t)nt * ROWS * sizeof *sum);
            for (int b0 = 0; b0 < nb; b0 += SEG) {
                const int n = nb - b0 < SEG ? nb - b0 : SEG;
                for (int b = 0; b < n; b++) {
                    for (int r = 0; r < ROWS; r++) ws[b * ROWS + r] = sl_a8_scale(&row[r], b0 + b);
                    for (int g = 0; g < ROWS; g += VR)
                        put_block(row + g, &table, k, b0 + b, panel + b * B * ROWS + g * 4);
                }
                tiles(panel, ws, q + (size_t)b0 * 2 * B, token, scale + b0, blocks, n, sum, nt);
            }
            for (int t = 0; t < nt; t++) {
                float *to = y + (size_t)(t0 + t) * ldy + r0;
                for (int r = 0; r < nr; r++) to[r] = row[r].row * sum[t * ROWS + r];
            }
        }
    }
}

static void mul(const struct sl_mat *w, int row0, int row1, const struct sl_batch_x *x, float *y,
                size_t ldy)
{
    assert(row0 >= 0 && row0 <= row1 && row1 <= w->rows && x->cols == w->cols);
    assert(x->order != SL_ACT_NONE && x->order == sl_act_order_of(w->fmt));
    switch (w->fmt) {
    case SL_FMT_T8:
        mul_kind(w, K_T8, row0, row1, x, y, ldy);
        break;
    case SL_FMT_T6:
        mul_kind(w, K_T6, row0, row1, x, y, ldy);
        break;
    case SL_FMT_T4:
        mul_kind(w, K_T4, row0, row1, x, y, ldy);
        break;
    case SL_FMT_MXFP4:
        mul_kind(w, K_MX, row0, row1, x, y, ldy);
        break;
    case SL_FMT_M4:
        mul_kind(w, K_M4, row0, row1, x, y, ldy);
        break;
    case SL_FMT_W16:
        mul_kind(w, K_W1, row0, row1, x, y, ldy);
        break;
    default:
        if (w->fmt == SL_FMT_W36 || (w->fmt == SL_FMT_P36 && w->fine_codes))
            mul_kind(w, K_W2_PLAIN, row0, row1, x, y, ldy);
        else
            mul_kind(w, K_W2, row0, row1, x, y, ldy);
        break;
    }
}

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
