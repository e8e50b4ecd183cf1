/* The integer product of act.h, written once over the block decoders of the including file.
 *
 * Eight blocks are decoded to int8 and used for up to TOKENS tokens before the next eight. The sums of a
 * block stay in eight lanes, one a quad, until the row ends: no addition across a register in the loop.
 * Even and odd blocks have lanes of their own, so that two chains of additions run side by side.
 *
 * The including file defines SL_A8_NAME and
 *
 *   block                          32 int8 in a register or a few
 *   block a8_T8(const struct sl_a8_row *, int b) and a8_T6, a8_T4, a8_MX
 *   a8_table                       the table of a trellis row, ready for lookups
 *   a8_table a8_table_of(const struct sl_a8_row *, int plain)
 *   block a8_W2(const struct sl_a8_row *, const a8_table *, int b, int plain), a8_W1 without plain
 *   void a8_scales(const struct sl_a8_row *, enum sl_a8_kind, int b, float *ws)
 *                                  sl_a8_scale of blocks b .. b + 7
 *   void a8_factors(const float *ws, const float *scale, float *f)       eight products
 *   void a8_few_factors(const struct sl_a8_row *, enum sl_a8_kind, int b, int n, const float *scale, float *f)
 *                                  both for n = 1, 2 or 4 blocks, b even; nothing past them is read
 *   sums                           eight f32
 *   sums a8_load(const float *), void a8_store(float *, sums)
 *   float a8_tree(sums even, sums odd)                                   sl_a8_tree
 *   sums a8_step(sums s, block v, const int8_t *q, size_t plane, int planes, int whole, const float *f)
 *                                  lane j: fma((float)d of quad j, *f, lane); q: the block's place in
 *                                  plane 0; whole: v may hold -128, as t8 does */
#include <assert.h>
#include <string.h>
#include "kernels/a8_block.h"
#include "kernels/simd_common.h"

/* Blocks stay in registers when these loops are laid out flat; a sanitizer would take minutes over it. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL(n)
#else
#define UNROLL(n)      _Pragma(UNROLL_TEXT(GCC unroll n))
#define UNROLL_TEXT(x) #x
#endif

enum { BLOCK = 32, GROUP = 8, TOKENS = 16, ROWS = 4 };

/* Eight blocks from b on, a multiple of 8, for nt tokens. */
SL_INLINE void group(const struct sl_a8_row *r, const a8_table *t, enum sl_a8_kind k, int planes,
                     int b, const struct sl_act *x, int t0, int nt, float (*lane)[2 * SL_A8_QUADS])
{
    const size_t nb = ((size_t)x->cols + BLOCK - 1) / BLOCK, plane = nb * BLOCK;
    block v[GROUP];
    float ws[GROUP], f[GROUP];
    UNROLL(8)
    for (int i = 0; i < GROUP; i++) v[i] = one_block(r, t, k, b + i);
    a8_scales(r, k, b, ws);
    for (int i = 0; i < nt; i++) {
        const size_t tok = (size_t)(t0 + i);
        const int8_t *q = x->q + tok * (size_t)planes * 2 * plane + (size_t)b * BLOCK;
        a8_factors(ws, x->scale + tok * nb + b, f);
        sums s[2] = {a8_load(lane[i]), a8_load(lane[i] + SL_A8_QUADS)};
        UNROLL(8)
        for (int j = 0; j < GROUP; j++)
            s[j & 1] =
                a8_step(s[j & 1], v[j], q + (size_t)j * BLOCK, plane, planes, k == K_T8, f + j);
        a8_store(lane[i], s[0]);
        a8_store(lane[i] + SL_A8_QUADS, s[1]);
    }
}

/* One block of the last few. */
SL_INLINE void single(const struct sl_a8_row *r, const a8_table *t, enum sl_a8_kind k, int planes,
                      int b, const struct sl_act *x, int t0, int nt, float (*lane)[2 * SL_A8_QUADS])
{
    const size_t nb = ((size_t)x->cols + BLOCK - 1) / BLOCK, plane = nb * BLOCK;
    const block v = one_block(r, t, k, b);
    const float ws = sl_a8_scale(r, b);
    for (int i = 0; i < nt; i++) {
        const size_t tok = (size_t)(t0 + i);
        const int8_t *q = x->q + tok * (size_t)planes * 2 * plane + (size_t)b * BLOCK;
        const float f = ws * x->scale[tok * nb + (size_t)b];
        float *at = lane[i] + (b & 1) * SL_A8_QUADS;
        a8_store(at, a8_step(a8_load(at), v, q, plane, planes, k == K_T8, &f));
    }
}

/* n blocks from b on, even, of ROWS rows with the token at x->q, which is loaded once for all. n and rows
 * are constants: everything here lies in registers. */
SL_INLINE void rows_step(const struct sl_a8_row *r, const a8_table *t, enum sl_a8_kind k,
                         int planes, const struct sl_act *x, int b, const int n, const int rows,
                         sums (*s)[2])
{
    const size_t plane = ((size_t)x->cols + BLOCK - 1) / BLOCK * BLOCK;
    const int8_t *q = x->q + (size_t)b * BLOCK;
    float ws[GROUP], f[ROWS][GROUP];
    UNROLL(4)
    for (int i = 0; i < rows; i++) {
        if (n < GROUP) {
            a8_few_factors(&r[i], k, b, n, x->scale + b, f[i]);
            continue;
        }
        a8_scales(&r[i], k, b, ws);
        a8_factors(ws, x->scale + b, f[i]);
    }
    UNROLL(8)
    for (int j = 0; j < n; j++) {
        UNROLL(4)
        for (int i = 0; i < rows; i++)
            s[i][j & 1] = a8_step(s[i][j & 1], one_block(&r[i], t, k, b + j), q + (size_t)j * BLOCK,
                                  plane, planes, k == K_T8, &f[i][j]);
    }
}

/* t: the table, one for all rows of a matrix. */
SL_INLINE void rows_one(const struct sl_a8_row *r, const a8_table *t, enum sl_a8_kind k, int planes,
                        const struct sl_act *x, const int rows, float *y)
{
    const int nb = (x->cols + BLOCK - 1) / BLOCK;
    const float zero[SL_A8_QUADS] = {0};
    sums s[ROWS][2];
    UNROLL(4)
    for (int i = 0; i < rows; i++) s[i][0] = s[i][1] = a8_load(zero);
    int b = 0;
    for (; b + GROUP <= nb; b += GROUP) rows_step(r, t, k, planes, x, b, GROUP, rows, s);
    if (nb & 4) rows_step(r, t, k, planes, x, b, 4, rows, s);
    b += nb & 4;
    if (nb & 2) rows_step(r, t, k, planes, x, b, 2, rows, s);
    b += nb & 2;
    if (nb & 1) rows_step(r, t, k, planes, x, b, 1, rows, s);
    UNROLL(4)
    for (int i = 0; i < rows; i++) y[i] = r[i].row * a8_tree(s[i][0], s[i][1]);
}

/* Rows [row0, row1) with one token. The decoders of trellis rows fill the registers alone. */
SL_INLINE void mul_one(const struct sl_mat *w, enum sl_a8_kind k, int planes, int row0, int row1,
                       const struct sl_act *x, float *y)
{
    struct sl_a8_row row[ROWS];
    const int together = k >= K_W2 ? 1 : ROWS;
    row[0] = sl_a8_row_at(w, row0);
    const a8_table table = k < K_W2 ? (a8_table){0} : a8_table_of(&row[0], k == K_W2_PLAIN);
    int r = row0;
    for (; r + together <= row1; r += together) {
        UNROLL(4)
        for (int i = 0; i < together; i++) row[i] = sl_a8_row_at(w, r + i);
        rows_one(row, &table, k, planes, x, together, y + r);
    }
    for (; r < row1; r++) {
        row[0] = sl_a8_row_at(w, r);
        rows_one(row, &table, k, planes, x, 1, y + r);
    }
}

SL_INLINE void mul_kind(const struct sl_mat *w, enum sl_a8_kind k, int planes, int row0, int row1,
                        const struct sl_act *x, float *y, size_t ldy)
{
    const int nb = (w->cols + BLOCK - 1) / BLOCK;
    if (row0 == row1) return;
    if (x->n_tok == 1) {
        mul_one(w, k, planes, row0, row1, x, y);
        return;
    }
    for (int r = row0; r < row1; r++) {
        const struct sl_a8_row row = sl_a8_row_at(w, r);
        const a8_table table = k < K_W2 ? (a8_table){0} : a8_table_of(&row, k == K_W2_PLAIN);
        for (int t = 0; t < x->n_tok; t += TOKENS) {
            const int nt = x->n_tok - t < TOKENS ? x->n_tok - t : TOKENS;
            float lane[TOKENS][2 * SL_A8_QUADS];
            memset(lane, 0, (size_t)nt * sizeof lane[0]);
            int b = 0;
            for (; b + GROUP <= nb; b += GROUP) group(&row, &table, k, planes, b, x, t, nt, lane);
            for (; b < nb; b++) single(&row, &table, k, planes, b, x, t, nt, lane);
            for (int i = 0; i < nt; i++)
                y[(size_t)(t + i) * ldy + (size_t)r] = row.row * sl_a8_tree(lane[i]);
        }
    }
}

/* A copy for each number of planes: the loop inside has no branch. -128 in a table is allowed, and so rare that
 * the reference may do it: encoders never write it. */
SL_INLINE void mul_planes(enum sl_a8_kind k, const struct sl_mat *w, int row0, int row1,
                          const struct sl_act *x, float *y, size_t ldy)
{
    const uint8_t *table = k == K_W2_PLAIN && w->fmt == SL_FMT_P36 ? w->fine_table : w->table;
    bool lowest = false;
    for (int i = 0; k >= K_W2 && i < (k == K_W2_PLAIN ? 128 : 64); i++) lowest |= table[i] == 128;
    if (lowest)
        sl_mul_a8_c(w, row0, row1, x, y, ldy);
    else if (x->planes == 1)
        mul_kind(w, k, 1, row0, row1, x, y, ldy);
    else
        mul_kind(w, k, 2, row0, row1, x, y, ldy);
}

void SL_A8_NAME(const struct sl_mat *w, int row0, int row1, const struct sl_act *x, float *y,
                size_t ldy)
{
    assert(row0 >= 0 && row0 <= row1 && row1 <= w->rows && x->cols == w->cols);
    assert(x->order != SL_ACT_NONE && x->order == sl_act_order_of(w->fmt));
    SL_A8_PER_KIND(mul_planes, w, row0, row1, x, y, ldy);
}
