/* The loops of a batch product (mul_batch.h), written once: rows and tokens in blocks, tiles of a panel.
 *
 * The including file defines, beside the decoders of its ISA (body_a8.h):
 *   B, SEG, ROWS, TILE (4 or 8), TOKENS    columns of a block, blocks of a panel, its rows, tokens of a tile
 *                                          and of the sums
 *   panel_unit, PANEL                      what a panel is made of, and how many a block
 *   void put_panel(const struct sl_a8_row *row, const a8_table *t, enum sl_a8_kind k, int b0, int n,
 *                  panel_unit *panel, float *ws)     blocks [b0, b0 + n) of ROWS rows and their scales
 *   void tile(panel, ws, q, token, scale, nb, n, sum, nt)   the arguments of tiles; nt <= TILE, a constant */
#include <assert.h>
#include <string.h>
#include "kernels/a8_row.h"

static void tiles(const panel_unit *panel, const float *ws, const int8_t *q, size_t token,
                  const float *scale, size_t nb, int n, float *sum, int nt)
{
    for (; nt >= TILE; nt -= TILE) {
        tile(panel, ws, q, token, scale, nb, n, sum, TILE);
        q += TILE * token;
        scale += TILE * nb;
        sum += TILE * ROWS;
    }
    switch (nt) {
    case 1:
        tile(panel, ws, q, token, scale, nb, n, sum, 1);
        break;
    case 2:
        tile(panel, ws, q, token, scale, nb, n, sum, 2);
        break;
    case 3:
        tile(panel, ws, q, token, scale, nb, n, sum, 3);
        break;
#if TILE > 4
    case 4:
        tile(panel, ws, q, token, scale, nb, n, sum, 4);
        break;
    case 5:
        tile(panel, ws, q, token, scale, nb, n, sum, 5);
        break;
    case 6:
        tile(panel, ws, q, token, scale, nb, n, sum, 6);
        break;
    case 7:
        tile(panel, ws, q, token, scale, nb, n, sum, 7);
        break;
#endif
    default:
        break;
    }
}

/* Past the end of the range the last row again: its sums are not stored. */
SL_INLINE void mul_kind(enum sl_a8_kind k, const struct sl_mat *w, int row0, int row1,
                        const struct sl_batch_x *x, float *y, size_t ldy)
{
    panel_unit panel[SEG * PANEL] __attribute__((aligned(64)));
    float ws[SEG * ROWS] __attribute__((aligned(64)));
    float sum[TOKENS * ROWS] __attribute__((aligned(64)));
    const int nb = sl_t8_blocks(w->cols);
    const size_t token = sl_batch_bytes(w->cols), blocks = (size_t)nb;
    struct sl_a8_row row[ROWS];
    if (row0 == row1) return;
    row[0] = sl_a8_row_at(w, row0);
    const a8_table table = k < K_W2 ? (a8_table){0} : a8_table_of(&row[0], k == K_W2_PLAIN);
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
                put_panel(row, &table, k, b0, n, panel, ws);
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
    SL_A8_PER_KIND(mul_kind, w, row0, row1, x, y, ldy);
}
