/* The product slot, written once over simd_*.h and the block decoders of the including file.
 *
 * Few tokens ("rows"): bound by bytes. Four rows at a time are decoded in registers and multiplied
 * at once, so that eight or more independent sums hide the latency of addition.
 *
 *   up to 32 rows, a segment of x (in the lane order of the decoder), lanes kept in memory between
 *   segments:  lane[row][16]
 *
 * Many tokens ("panel"): bound by arithmetic. Rows are decoded once into a panel of f32 and every
 * tile of 4 rows x TILE tokens keeps its sums in registers across a segment.
 *
 *   panel[16 rows][256 columns]  x  48 tokens  ->  lane[row][tok][16]
 *
 * Trellis formats take the panel for any number of tokens: decoding them outweighs the detour.
 *
 * Many tokens of the fast path ("fused"): the panel is turned, so that rows are lanes, and multiplied by the
 * matrix product of body_tile.h.
 *
 * In the first two, lane j of a (row, token) meets columns j, j + 16, ... in ascending order: the sums are
 * those of sl_mul_c bit for bit, whatever the blocking.
 *
 * The including file defines, beside the operations of its simd header:
 *   TILE                                   tokens of a register tile, a divisor of 48
 *   void dec_F(const struct sl_row *, int b, vf *w)  block b of the segment, 32 columns,
 *                                          F = f32 bf16 f16 t8 t6 t4 mxfp4 m4
 *   void w_decode(const struct sl_w_row *, int b0, int n, float *)  blocks of a trellis row
 *   TURN, void turn(const float *from, size_t ldf, float *to, size_t ldt)
 *                                          TURN x TURN numbers, to[j][i] = from[i][j]
 *   MX_ORDER                               1 when dec_mx gives columns in another lane order, then
 *   void mx_order_x(float *to, const float *from)    16 floats of x into that order, and
 *   void mx_natural(float *to, const vf *w)          a decoded block back to column order
 *   static const uint8_t mx_lane[16]                 where lane j is found */
#include <assert.h>
#include <string.h>
#include "kernels/block_m4.h"
#include "kernels/block_t4.h"
#include "kernels/block_t6.h"
#include "kernels/decode_w.h"
#include "kernels/lanes.h"
#include "kernels/reference.h"
#include "kernels/simd_common.h"
#include "kernels/variants.h"

enum {
    BLOCK = 32,
    BLOCK_VECTORS = BLOCK / VW,
    LANE_VECTORS = SL_LANES / VW,
    GROUP = 4, /* rows at a time */
    STRIP_ROWS = 32,
    STRIP_COLS = 4096, /* x of a segment: 16 KiB of stack */
    PANEL_ROWS = 16,
    PANEL_COLS = 256,  /* 16 KiB: half of a first-level cache */
    PANEL_TOKENS = 48, /* lanes: 48 KiB */
    FEW_TOKENS = 3,
    FUSED_ROWS = 32 /* a turned panel: 32 KiB, half of it at a time beside the tokens */
};

/* ---- rows of a format */

/* Row r from column col0 on, a multiple of 64. */
static struct sl_row row_at(const struct sl_mat *w, int r, int col0)
{
    struct sl_row p = {0};
    size_t row = (size_t)r, blocks = (size_t)(w->cols / SL_MX_BLOCK), col = (size_t)col0;
    if (w->fmt == SL_FMT_MXFP4 || w->fmt == SL_FMT_M4) {
        p.codes = w->codes + row * (size_t)(w->cols / 2) + col / 2;
        if (w->fmt == SL_FMT_M4) {
            p.scales = w->scales + row * ((blocks + 1) / 2) + col / (2 * SL_MX_BLOCK);
            p.e = w->row_scales[r];
        } else {
            p.scales = w->scales + row * blocks + col / SL_MX_BLOCK;
        }
        return p;
    }
    const uint8_t *at = w->codes + row * sl_fmt_row_bytes(w->fmt, (uint64_t)w->cols);
    if (w->fmt == SL_FMT_T8)
        p.scales = at + (size_t)sl_t8_blocks(w->cols) * SL_T_BLOCK + col / SL_T_BLOCK * 2;
    if (w->fmt == SL_FMT_T6 || w->fmt == SL_FMT_T4) { /* planes of a row, col a multiple of 32 */
        const size_t nb = (size_t)sl_t8_blocks(w->cols), b = col / SL_T_BLOCK;
        p.codes = at + b * SL_T4_CODES;
        p.scales = at + nb * SL_T4_CODES;
        if (w->fmt == SL_FMT_T6) {
            p.high = p.scales + b * SL_T6_HIGH;
            p.scales += nb * SL_T6_HIGH;
        }
        p.scales += b * 2;
        return p;
    }
    p.codes = at + sl_fmt_row_bytes(w->fmt == SL_FMT_T8 ? SL_FMT_U8 : w->fmt, (uint64_t)col0);
    return p;
}

typedef void (*dec_fn)(const struct sl_row *r, int b, vf *w);

/* ---- few tokens */

/* lane[g][16] += products of n_blocks blocks, for GROUP rows. The same columns of the next group are
 * `ahead` bytes away and are asked for now (10 to 15 % on matrices in memory): four short streams
 * start anew with every group, which hardware notices late. */
SL_INLINE void rows_blocks(dec_fn dec, int block_bytes, const struct sl_row *rows, int n_blocks,
                           size_t ahead, const float *x, float *lane)
{
    vf s[GROUP][LANE_VECTORS], w[BLOCK_VECTORS];
#pragma GCC unroll 16
    for (int g = 0; g < GROUP; g++)
#pragma GCC unroll 16
        for (int v = 0; v < LANE_VECTORS; v++) s[g][v] = vf_load(lane + g * SL_LANES + v * VW);
    for (int b = 0; b < n_blocks; b++, x += BLOCK) {
#pragma GCC unroll 16
        for (int g = 0; g < GROUP; g++) {
            __builtin_prefetch(rows[g].codes + ahead + (size_t)b * (size_t)block_bytes);
            dec(&rows[g], b, w);
#pragma GCC unroll 16
            for (int i = 0; i < BLOCK_VECTORS; i++) {
                const int v = i % LANE_VECTORS;
                s[g][v] = vf_add(s[g][v], vf_mul(w[i], vf_load(x + i * VW)));
            }
        }
    }
#pragma GCC unroll 16
    for (int g = 0; g < GROUP; g++)
#pragma GCC unroll 16
        for (int v = 0; v < LANE_VECTORS; v++) vf_store(lane + g * SL_LANES + v * VW, s[g][v]);
}

#define ROWS_BLOCKS(name, block_bytes)                                                             \
    static void rows_##name(const struct sl_row *rows, int n, size_t ahead, const float *x,        \
                            float *lane)                                                           \
    {                                                                                              \
        rows_blocks(dec_##name, block_bytes, rows, n, ahead, x, lane);                             \
    }
ROWS_BLOCKS(f32, 128)
ROWS_BLOCKS(bf16, 64)
ROWS_BLOCKS(f16, 64)
ROWS_BLOCKS(t8, 32)
ROWS_BLOCKS(t6, 16)
ROWS_BLOCKS(t4, 16)
ROWS_BLOCKS(mxfp4, 16)
ROWS_BLOCKS(m4, 16)

typedef void (*rows_fn)(const struct sl_row *rows, int n, size_t ahead, const float *x,
                        float *lane);

static rows_fn rows_of(enum sl_fmt fmt)
{
    switch (fmt) {
    case SL_FMT_F32:
        return rows_f32;
    case SL_FMT_BF16:
        return rows_bf16;
    case SL_FMT_F16:
        return rows_f16;
    case SL_FMT_T8:
        return rows_t8;
    case SL_FMT_T6:
        return rows_t6;
    case SL_FMT_T4:
        return rows_t4;
    case SL_FMT_MXFP4:
        return rows_mxfp4;
    case SL_FMT_M4:
        return rows_m4;
    default:
        return NULL;
    }
}

/* The columns after the last whole block: none in expert formats, whose order may differ. */
static void rows_tail(const struct sl_mat *w, int r0, int n_rows, const float *x, float *lane)
{
    int col0 = w->cols / BLOCK * BLOCK, n = w->cols - col0;
    float seg[BLOCK];
    for (int r = 0; n && r < n_rows; r++) {
        sl_mat_decode_cols(w, r0 + r, col0, n, seg);
        float *l = lane + (size_t)r * SL_LANES;
        for (int c = 0; c < n; c++) l[c % SL_LANES] += seg[c] * x[col0 + c];
    }
}

/* One token, at most STRIP_ROWS rows. */
static void mul_strip(const struct sl_mat *w, int row0, int n_rows, const float *x, float *y)
{
    float lane[STRIP_ROWS + GROUP][SL_LANES] __attribute__((aligned(64)));
    const rows_fn rows = rows_of(w->fmt);
    const int whole = w->cols / BLOCK * BLOCK;
#if MX_ORDER
    float xs[STRIP_COLS] __attribute__((aligned(64)));
    const int ordered = sl_fmt_is_expert(w->fmt);
#endif
    memset(lane, 0, (size_t)n_rows * sizeof lane[0]);
    for (int c = 0; c < whole; c += STRIP_COLS) {
        int n = whole - c < STRIP_COLS ? whole - c : STRIP_COLS;
        const float *seg = x + c;
#if MX_ORDER
        if (ordered) {
            for (int i = 0; i < n; i += SL_LANES) mx_order_x(xs + i, x + c + i);
            seg = xs;
        }
#endif
        for (int r = 0; r < n_rows; r += GROUP) {
            struct sl_row at[GROUP];
            /* Past the end the last row again: its lanes land in rows that nobody reads. */
            for (int g = 0; g < GROUP; g++)
                at[g] = row_at(w, row0 + (r + g < n_rows ? r + g : n_rows - 1), c);
            size_t ahead = GROUP * (size_t)(at[1].codes - at[0].codes);
            rows(at, n / BLOCK, ahead, seg, lane[r]);
        }
    }
    rows_tail(w, row0, n_rows, x, lane[0]);
    for (int r = 0; r < n_rows; r++) {
        const float *l = lane[r];
#if MX_ORDER
        float in_order[SL_LANES];
        for (int j = 0; ordered && j < SL_LANES; j++) in_order[j] = l[mx_lane[j]];
        if (ordered) l = in_order;
#endif
        y[row0 + r] = sl_lanes_sum(l);
    }
}

/* A strip serves all tokens before the next one is read. */
static void mul_few(const struct sl_mat *w, int row0, int row1, const float *x, size_t ldx,
                    int n_tok, float *y, size_t ldy)
{
    for (int r = row0; r < row1; r += STRIP_ROWS)
        for (int t = 0; t < n_tok; t++)
            mul_strip(w, r, row1 - r < STRIP_ROWS ? row1 - r : STRIP_ROWS, x + (size_t)t * ldx,
                      y + (size_t)t * ldy);
}

/* ---- many tokens */

SL_INLINE void panel_blocks(dec_fn dec, const struct sl_row *row, int n_blocks, float *out)
{
    vf w[BLOCK_VECTORS];
    for (int b = 0; b < n_blocks; b++, out += BLOCK) {
        dec(row, b, w);
#pragma GCC unroll 16
        for (int i = 0; i < BLOCK_VECTORS; i++) vf_store(out + i * VW, w[i]);
    }
}

/* Expert formats may decode in another order. */
SL_INLINE void panel_mx(dec_fn dec, const struct sl_row *row, int n_blocks, float *out)
{
#if MX_ORDER
    vf w[BLOCK_VECTORS];
    for (int b = 0; b < n_blocks; b++, out += BLOCK) {
        dec(row, b, w);
        mx_natural(out, w);
    }
#else
    panel_blocks(dec, row, n_blocks, out);
#endif
}

/* Columns [col0, col0 + n) of row r, +0.0 up to the next multiple of 16. */
static void panel_row(const struct sl_mat *w, int r, int col0, int n, float *out)
{
    if (sl_fmt_is_trellis(w->fmt)) { /* whole blocks only */
        struct sl_w_row wr = sl_w_row_at(w, r);
        w_decode(&wr, col0 / SL_W_BLOCK, n / SL_W_BLOCK, out);
        return;
    }
    struct sl_row row = row_at(w, r, col0);
    int whole = n / BLOCK, done = whole * BLOCK;
    switch (w->fmt) {
    case SL_FMT_F32:
        panel_blocks(dec_f32, &row, whole, out);
        break;
    case SL_FMT_BF16:
        panel_blocks(dec_bf16, &row, whole, out);
        break;
    case SL_FMT_F16:
        panel_blocks(dec_f16, &row, whole, out);
        break;
    case SL_FMT_T8:
        panel_blocks(dec_t8, &row, whole, out);
        break;
    case SL_FMT_T6:
        panel_blocks(dec_t6, &row, whole, out);
        break;
    case SL_FMT_T4:
        panel_blocks(dec_t4, &row, whole, out);
        break;
    case SL_FMT_MXFP4:
        panel_mx(dec_mxfp4, &row, whole, out);
        break;
    case SL_FMT_M4:
        panel_mx(dec_m4, &row, whole, out);
        break;
    default:
        break;
    }
    if (done < n) {
        memset(out + done, 0, BLOCK * sizeof *out);
        sl_mat_decode_cols(w, r, col0 + done, n - done, out + done);
    }
}

/* lane[g][t][16] += products of 16 * steps columns: GROUP panel rows, n_tok <= TILE rows of x. One
 * vector of the sixteen lanes at a time, so that all sums stay in registers. */
SL_INLINE void tile(const float *w, const float *x, size_t ldx, int steps, float *lane, int n_tok)
{
    enum { LANE_ROW = PANEL_TOKENS * SL_LANES };
    /* Loops of fixed length with a condition that inlining settles: compilers unroll those. */
#pragma GCC unroll 16
    for (int v = 0; v < LANE_VECTORS; v++, w += VW, x += VW, lane += VW) {
        vf s[GROUP][TILE], a[GROUP];
#pragma GCC unroll 16
        for (int g = 0; g < GROUP; g++) {
#pragma GCC unroll 16
            for (int t = 0; t < TILE; t++)
                if (t < n_tok) s[g][t] = vf_load(lane + g * LANE_ROW + t * SL_LANES);
        }
        for (int i = 0; i < steps; i++) {
#pragma GCC unroll 16
            for (int g = 0; g < GROUP; g++) a[g] = vf_load(w + g * PANEL_COLS + i * SL_LANES);
#pragma GCC unroll 16
            for (int t = 0; t < TILE; t++) {
                if (t >= n_tok) continue;
                const vf xt = vf_load(x + (size_t)t * ldx + i * SL_LANES);
#pragma GCC unroll 16
                for (int g = 0; g < GROUP; g++) s[g][t] = vf_add(s[g][t], vf_mul(a[g], xt));
            }
        }
#pragma GCC unroll 16
        for (int g = 0; g < GROUP; g++) {
#pragma GCC unroll 16
            for (int t = 0; t < TILE; t++)
                if (t < n_tok) vf_store(lane + g * LANE_ROW + t * SL_LANES, s[g][t]);
        }
    }
}

static void tile_any(const float *w, const float *x, size_t ldx, int steps, float *lane, int n_tok)
{
    switch (n_tok) {
    case 1:
        tile(w, x, ldx, steps, lane, 1);
        break;
    case 2:
        tile(w, x, ldx, steps, lane, 2);
        break;
    case 3:
        tile(w, x, ldx, steps, lane, 3);
        break;
#if TILE > 3
    case 4:
        tile(w, x, ldx, steps, lane, 4);
        break;
    case 5:
        tile(w, x, ldx, steps, lane, 5);
        break;
    case 6:
        tile(w, x, ldx, steps, lane, 6);
        break;
#endif
    default:
        assert(!"tile");
        break;
    }
}

/* Adds columns [col0, col0 + n) of nr panel rows to the lanes of nt tokens. */
static void panel_times(const float *panel, const float *x, size_t ldx, int n, int nr, int nt,
                        float *lane)
{
    int steps = n / SL_LANES, rest = n % SL_LANES;
    for (int t = 0; t < nt; t += TILE) {
        int tt = nt - t < TILE ? nt - t : TILE;
        const float *xt = x + (size_t)t * ldx;
        float end[TILE][SL_LANES] = {{0}};
        for (int i = 0; rest && i < tt; i++)
            memcpy(end[i], xt + (size_t)i * ldx + (size_t)steps * SL_LANES,
                   (size_t)rest * sizeof(float));
        for (int g = 0; g < nr; g += GROUP) {
            const float *wg = panel + (size_t)g * PANEL_COLS;
            float *lg = lane + ((size_t)g * PANEL_TOKENS + (size_t)t) * SL_LANES;
            tile_any(wg, xt, ldx, steps, lg, tt);
            if (rest) tile_any(wg + steps * SL_LANES, end[0], SL_LANES, 1, lg, tt);
        }
    }
}

static void mul_many(const struct sl_mat *w, int row0, int row1, const float *x, size_t ldx,
                     int n_tok, float *y, size_t ldy)
{
    float panel[PANEL_ROWS][PANEL_COLS] __attribute__((aligned(64)));
    float lane[PANEL_ROWS][PANEL_TOKENS][SL_LANES] __attribute__((aligned(64)));
    for (int t0 = 0; t0 < n_tok; t0 += PANEL_TOKENS) {
        int nt = n_tok - t0 < PANEL_TOKENS ? n_tok - t0 : PANEL_TOKENS;
        for (int r0 = row0; r0 < row1; r0 += PANEL_ROWS) {
            int nr = row1 - r0 < PANEL_ROWS ? row1 - r0 : PANEL_ROWS;
            for (int r = 0; r < nr || r % GROUP; r++)
                memset(lane[r], 0, (size_t)nt * sizeof lane[r][0]);
            for (int c = 0; c < w->cols; c += PANEL_COLS) {
                int n = w->cols - c < PANEL_COLS ? w->cols - c : PANEL_COLS, r = 0;
                for (; r < nr; r++) panel_row(w, r0 + r, c, n, panel[r]);
                for (; r % GROUP; r++) memset(panel[r], 0, sizeof panel[r]);
                panel_times(panel[0], x + (size_t)t0 * ldx + c, ldx, n, nr, nt, lane[0][0]);
            }
            for (int t = 0; t < nt; t++)
                for (int r = 0; r < nr; r++)
                    y[(size_t)(t0 + t) * ldy + (size_t)(r0 + r)] = sl_lanes_sum(lane[r][t]);
        }
    }
}

void SL_ISA(sl_mul)(const struct sl_mat *w, int row0, int row1, const float *x, size_t ldx,
                    int n_tok, float *y, size_t ldy)
{
    assert(row0 >= 0 && row0 <= row1 && row1 <= w->rows && n_tok >= 0);
    if (sl_fmt_is_trellis(w->fmt)) {
        mul_many(w, row0, row1, x, ldx, n_tok, y, ldy);
    } else if (!rows_of(w->fmt)) {
        sl_mul_c(w, row0, row1, x, ldx, n_tok, y, ldy);
    } else if (n_tok > FEW_TOKENS) {
        mul_many(w, row0, row1, x, ldx, n_tok, y, ldy);
    } else {
        mul_few(w, row0, row1, x, ldx, n_tok, y, ldy);
    }
}

/* ---- fused */

/* panel[rows][columns] to turned[columns][rows]; both counts rounded up to TURN within the arrays. */
static void turn_panel(float (*panel)[PANEL_COLS], int rows, int cols, float (*turned)[FUSED_ROWS])
{
    for (int r = 0; r < rows; r += TURN)
        for (int c = 0; c < cols; c += TURN)
            turn(&panel[r][c], PANEL_COLS, &turned[c][r], FUSED_ROWS);
}

void SL_ISA(sl_mul_fused)(const struct sl_mat *w, int row0, int row1, const float *x, size_t ldx,
                          int n_tok, float *y, size_t ldy)
{
    assert(row0 >= 0 && row0 <= row1 && row1 <= w->rows && n_tok >= 0);
    if (!sl_fmt_is_trellis(w->fmt) && !rows_of(w->fmt)) {
        sl_mul_fused_c(w, row0, row1, x, ldx, n_tok, y, ldy);
        return;
    }
    float panel[FUSED_ROWS][PANEL_COLS] __attribute__((aligned(64)));
    float turned[PANEL_COLS][FUSED_ROWS] __attribute__((aligned(64)));
    for (int r0 = row0; r0 < row1; r0 += FUSED_ROWS) {
        const int nr = row1 - r0 < FUSED_ROWS ? row1 - r0 : FUSED_ROWS;
        for (int r = nr; r % TURN; r++) memset(panel[r], 0, sizeof panel[r]);
        for (int c = 0; c < w->cols; c += PANEL_COLS) {
            const int n = w->cols - c < PANEL_COLS ? w->cols - c : PANEL_COLS;
            for (int r = 0; r < nr; r++) panel_row(w, r0 + r, c, n, panel[r]);
            turn_panel(panel, nr, n, turned);
            const struct sl_mm mm = {.A = x + c,
                                     .B = turned[0],
                                     .C = y + r0,
                                     .si = ldx,
                                     .sk = 1,
                                     .ldb = FUSED_ROWS,
                                     .ldc = ldy,
                                     .m = n_tok,
                                     .n = nr,
                                     .depth = n,
                                     .add = c > 0};
            SL_ISA(sl_mm)(&mm);
        }
    }
}

void SL_ISA(sl_decode)(const struct sl_mat *w, int row0, int row1, int n, float *out, size_t ldo)
{
    assert(row0 >= 0 && row0 <= row1 && row1 <= w->rows && n >= 0 && n <= w->cols);
    if (!sl_fmt_is_trellis(w->fmt) && !rows_of(w->fmt)) {
        sl_decode_c(w, row0, row1, n, out, ldo);
        return;
    }
    for (int r = row0; r < row1; r++, out += ldo) panel_row(w, r, 0, n, out);
}
