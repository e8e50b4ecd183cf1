/* The integer product of act.h, written once over the block decoders of the including file.
 *
 * Eight blocks are decoded to int8 and used for up to TOKENS tokens before the next eight: their eight
 * sums are the eight lanes of a token, so that scales and additions are one vector each.
 *
 * The including file defines SL_A8_NAME and
 *
 *   block                          32 int8 in a register or a few
 *   block a8_T8(const struct sl_a8_row *, int b) and a8_T6, a8_T4, a8_MX
 *   a8_table                       the table of a trellis row, ready for lookups
 *   a8_table a8_table_of(const struct sl_a8_row *, int plain)
 *   block a8_W2(const struct sl_a8_row *, const a8_table *, int b, int plain), a8_W1 without plain
 *   void a8_scales(const struct sl_a8_row *, int b, float *ws)     sl_a8_scale of blocks b .. b + 7
 *   sums                           eight int32
 *   sums a8_dots(const block *v, const int8_t *q, int n)    v[i] . q[32 min(i, n - 1)], i < 8
 *   sums a8_join(sums whole, sums rest)                     254 * whole + rest
 *   void a8_add(float *lane, sums d, const float *ws, const float *scale)
 *                                  lane[i] += (float)d[i] * (ws[i] * scale[i]) */
#include <assert.h>
#include <string.h>
#include "kernels/a8_row.h"
#include "kernels/simd_common.h"

enum { BLOCK = 32, GROUP = 8, TOKENS = 16 };
enum kind { K_T8, K_T6, K_T4, K_MX, K_W2, K_W2_PLAIN, K_W1 };

SL_INLINE block one_block(const struct sl_a8_row *r, const a8_table *t, enum kind k, int b)
{
    switch (k) {
    case K_T8:
        return a8_T8(r, b);
    case K_T6:
        return a8_T6(r, b);
    case K_T4:
        return a8_T4(r, b);
    case K_MX:
        return a8_MX(r, b);
    case K_W2:
        return a8_W2(r, t, b, 0);
    case K_W2_PLAIN:
        return a8_W2(r, t, b, 1);
    default:
        return a8_W1(r, t, b);
    }
}

/* n blocks from b on, for nt tokens. */
SL_INLINE void group(const struct sl_a8_row *r, const a8_table *t, enum kind k, int b, int n,
                     const struct sl_act *x, int t0, int nt, float (*lane)[GROUP])
{
    const size_t nb = ((size_t)x->cols + BLOCK - 1) / BLOCK, plane = nb * BLOCK;
    block v[GROUP];
    float ws[GROUP] = {0};
#pragma GCC unroll 8
    for (int i = 0; i < GROUP; i++) { /* past the end the last block again, with scale 0 */
        v[i] = one_block(r, t, k, b + (i < n ? i : n - 1));
        if (n < GROUP && i < n) ws[i] = sl_a8_scale(r, b + i);
    }
    if (n == GROUP) a8_scales(r, b, ws);
    for (int i = 0; i < nt; i++) {
        const size_t tok = (size_t)(t0 + i);
        const int8_t *q = x->q + tok * (size_t)x->planes * plane + (size_t)b * BLOCK;
        const float *scale = x->scale + tok * nb + b;
        float few[GROUP] = {0};
        if (n < GROUP) {
            memcpy(few, scale, (size_t)n * sizeof few[0]);
            scale = few;
        }
        sums d = a8_dots(v, q, n);
        if (x->planes == 2) d = a8_join(d, a8_dots(v, q + plane, n));
        a8_add(lane[i], d, ws, scale);
    }
}

SL_INLINE void mul_kind(const struct sl_mat *w, enum kind k, int row0, int row1,
                        const struct sl_act *x, float *y, size_t ldy)
{
    const int nb = (w->cols + BLOCK - 1) / BLOCK;
    for (int r = row0; r < row1; r++) {
        const struct sl_a8_row row = sl_a8_row_at(w, r);
        const a8_table table = k < K_W2 ? (a8_table){0} : a8_table_of(&row, k == K_W2_PLAIN);
        for (int t = 0; t < x->n_tok; t += TOKENS) {
            const int nt = x->n_tok - t < TOKENS ? x->n_tok - t : TOKENS;
            float lane[TOKENS][GROUP];
            memset(lane, 0, (size_t)nt * sizeof lane[0]);
            int b = 0;
            for (; b + GROUP <= nb; b += GROUP) group(&row, &table, k, b, GROUP, x, t, nt, lane);
            if (b < nb) group(&row, &table, k, b, nb - b, x, t, nt, lane);
            for (int i = 0; i < nt; i++)
                y[(size_t)(t + i) * ldy + (size_t)r] = row.row * sl_a8_tree(lane[i]);
        }
    }
}

void SL_A8_NAME(const struct sl_mat *w, int row0, int row1, const struct sl_act *x, float *y,
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
    case SL_FMT_M4:
        mul_kind(w, K_MX, row0, row1, x, y, ldy);
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
