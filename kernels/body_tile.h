/* Vector code of tile_c.c and attend_c.c, written once over the operations of simd_*.h.
 *
 * One product kernel serves all of it: rows of A are broadcast, columns of B and C are lanes, each
 * element of C adds its terms in ascending order whatever the blocking. Register tiles of MM_ROWS rows
 * and MM_WIDE vectors hide the latency of the fused sum; a product of few rows takes more vectors.
 *
 * Depth goes in blocks: MM_DEPTH keeps a column panel of B in the first-level cache while the rows of A
 * pass (288, half a latent row with its shared part: 0.80 of the FMA rate in attention on AVX2; 256: 0.76,
 * 576: 0.71); few rows take FEW_DEPTH, so that B (a KDA state, from memory) is read in order, 16 KiB at a time.
 *
 * The including file defines MM_ROWS (4, 6 or 8) beside its simd header. */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "kernels/attend.h"
#include "kernels/kda_tile.h"
#include "kernels/lanes.h"
#include "kernels/reference.h"
#include "kernels/simd_common.h"
#include "kernels/simd_ends.h"

enum {
    T = SL_KDA_TILE,
    LANE_VECTORS = SL_LANES / VW,
    MM_WIDE = VW == 4 ? 4 : 2,
    MM_DEPTH = 288,
    FEW = 3, /* rows */
    FEW_DEPTH = 32
};

/* ---- product */

/* Rows of C: s = (add ? C : 0) * scale, then the sum over depth. */
struct part {
    const float *A, *B;
    float *C;
    size_t si, sk, ldb, ldc;
    int depth;
    bool add;
    const float *scale; /* [rows] or NULL */
};

SL_INLINE void tile_of(const struct part *p, int rows, int wide, int m)
{
    vf s[8][8];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < wide; v++) {
            const float *c = p->C + (size_t)i * p->ldc + v * VW;
            s[i][v] = p->add ? load_some(c, m) : vf_set(0.0f);
            if (p->scale) s[i][v] = vf_mul(s[i][v], vf_set(p->scale[i]));
        }
    const float *a = p->A, *b = p->B;
    for (int k = 0; k < p->depth; k++, a += p->sk, b += p->ldb) {
        vf x[8];
#pragma GCC unroll 8
        for (int v = 0; v < wide; v++) x[v] = load_some(b + v * VW, m);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const vf y = vf_set(a[(size_t)i * p->si]);
#pragma GCC unroll 8
            for (int v = 0; v < wide; v++) s[i][v] = vf_fma(y, x[v], s[i][v]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < wide; v++) store_some(p->C + (size_t)i * p->ldc + v * VW, s[i][v], m);
}

static struct part part_at(const struct part *p, int row, int col)
{
    struct part q = *p;
    q.A += (size_t)row * p->si;
    q.B += col;
    q.C += (size_t)row * p->ldc + col;
    if (q.scale) q.scale += row;
    return q;
}

/* Columns [col, n) of a block of rows: as wide as registers allow, then single vectors. */
#define COLUMNS(rows, wide)                                                                        \
    static void columns_##rows(const struct part *p, int row, int col, int n)                      \
    {                                                                                              \
        for (; col + (wide)*VW <= n; col += (wide)*VW) {                                           \
            const struct part q = part_at(p, row, col);                                            \
            tile_of(&q, rows, wide, VW);                                                           \
        }                                                                                          \
        for (; col + VW <= n; col += VW) {                                                         \
            const struct part q = part_at(p, row, col);                                            \
            tile_of(&q, rows, 1, VW);                                                              \
        }                                                                                          \
        if (col < n) {                                                                             \
            const struct part q = part_at(p, row, col);                                            \
            tile_of(&q, rows, 1, n - col);                                                         \
        }                                                                                          \
    }
COLUMNS(1, 8)
COLUMNS(2, 4)
COLUMNS(3, 4)
COLUMNS(4, MM_WIDE)
#if MM_ROWS > 4
COLUMNS(5, MM_WIDE)
COLUMNS(6, MM_WIDE)
#endif
#if MM_ROWS > 6
COLUMNS(7, MM_WIDE)
COLUMNS(8, MM_WIDE)
#endif

static void columns(const struct part *p, int rows, int row, int col, int n)
{
    switch (rows) {
    case 1:
        columns_1(p, row, col, n);
        break;
    case 2:
        columns_2(p, row, col, n);
        break;
    case 3:
        columns_3(p, row, col, n);
        break;
    case 4:
        columns_4(p, row, col, n);
        break;
#if MM_ROWS > 4
    case 5:
        columns_5(p, row, col, n);
        break;
    case 6:
        columns_6(p, row, col, n);
        break;
#endif
#if MM_ROWS > 6
    case 7:
        columns_7(p, row, col, n);
        break;
    case 8:
        columns_8(p, row, col, n);
        break;
#endif
    default:
        assert(!"rows of a tile");
        break;
    }
}

/* One block of depth: whole tiles of rows panel by panel, then the rows that are left. */
static void block_of(const struct part *p, int m, int n)
{
    enum { PANEL = MM_WIDE * VW };
    const int whole = m / MM_ROWS * MM_ROWS;
    for (int col = 0; whole && col < n; col += PANEL) {
        const int end = n - col < PANEL ? n : col + PANEL;
        for (int row = 0; row < whole; row += MM_ROWS) columns(p, MM_ROWS, row, col, end);
    }
    if (whole < m) columns(p, m - whole, whole, 0, n);
}

static void product(const struct sl_mm *p, const float *scale)
{
    const int step = p->m <= FEW ? FEW_DEPTH : MM_DEPTH;
    struct part q = {p->A, p->B, p->C, p->si, p->sk, p->ldb, p->ldc, 0, p->add, scale};
    if (p->m <= 0 || p->n <= 0) return;
    for (int k = 0; k < p->depth || k == 0; k += step) {
        q.depth = p->depth - k < step ? p->depth - k : step;
        block_of(&q, p->m, p->n);
        q.A += (size_t)step * p->sk;
        q.B += (size_t)step * p->ldb;
        q.add = true;
        q.scale = NULL;
    }
}

void SL_ISA(sl_mm)(const struct sl_mm *p)
{
    product(p, NULL);
}

/* ---- KDA tile */

/* out[j] = a . b_j for n <= 4 rows of b: the dot order with fused sums. */
SL_INLINE void dots_of(const float *a, const float *b, size_t ldb, int n, int d, float *out)
{
    vf s[4][LANE_VECTORS];
    float lane[SL_LANES];
    int i = 0;
#pragma GCC unroll 4
    for (int j = 0; j < n; j++)
#pragma GCC unroll 4
        for (int v = 0; v < LANE_VECTORS; v++) s[j][v] = vf_set(0.0f);
    for (; i + SL_LANES <= d; i += SL_LANES) {
#pragma GCC unroll 4
        for (int v = 0; v < LANE_VECTORS; v++) {
            const vf x = vf_load(a + i + v * VW);
#pragma GCC unroll 4
            for (int j = 0; j < n; j++)
                s[j][v] = vf_fma(x, vf_load(b + (size_t)j * ldb + i + v * VW), s[j][v]);
        }
    }
    for (int j = 0; j < n; j++) {
#pragma GCC unroll 4
        for (int v = 0; v < LANE_VECTORS; v++) vf_store(lane + v * VW, s[j][v]);
        for (int r = 0; i + r < d; r++)
            lane[r] = fmaf(a[i + r], b[(size_t)j * ldb + (size_t)(i + r)], lane[r]);
        out[j] = sl_lanes_sum(lane);
    }
}

static void dots(const float *a, const float *b, size_t ldb, int n, int d, float *out)
{
    int j = 0;
    for (; j + 4 <= n; j += 4) dots_of(a, b + (size_t)j * ldb, ldb, 4, d, out + j);
    for (; j < n; j++) dots_of(a, b + (size_t)j * ldb, ldb, 1, d, out + j);
}

/* e[i][c] = exp(sum of rows [0, first + i] of g) for n rows; lo [n][d] is work. */
static void total_decays(const float *g, int first, int n, int d, float *e, float *lo)
{
    const size_t D = (size_t)d;
    for (int c = 0; c < d; c += VW) {
        const int m = d - c;
        vf hi = vf_set(0.0f), low = vf_set(0.0f);
        for (int j = 0; j < first + n; j++) {
            const vf x = load_some(g + (size_t)j * D + c, m);
            const vf s = vf_add(hi, x), part = vf_sub(s, hi);
            low = vf_add(low, vf_add(vf_sub(hi, vf_sub(s, part)), vf_sub(x, part)));
            hi = s;
            if (j < first) continue;
            store_some(e + (size_t)(j - first) * D + c, hi, m);
            store_some(lo + (size_t)(j - first) * D + c, low, m);
        }
    }
    SL_ISA(sl_exp)(e, e, n * d);
    for (int c = 0; c < n * d; c += VW) {
        const vf x = load_some(e + c, n * d - c);
        store_some(e + c, vf_fma(x, load_some(lo + c, n * d - c), x), n * d - c);
    }
}

/* u and o of nv vectors of value channels; the last one has m <= VW of them. pairs [2][T][T], y [2n][d]. */
SL_INLINE void solve(const struct sl_kda_rows *p, const float *y, const float *pairs, int col,
                     int nv, int m)
{
    const size_t D = (size_t)p->d;
    float *u = sl_kda_u(p->tile, p->d) + col;
    const vf down = vf_set(0x1p-58f);
    for (int r = 0; r < p->n; r++) {
        const int i = p->at + r;
        const float *pk = pairs + r * T, *pq = pairs + (T + r) * T;
        vf s[4], o[4];
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            const float *yk = y + (size_t)r * D + col + v * VW;
            const float *yq = yk + (size_t)p->n * D;
            s[v] = vf_sub(load_some(p->v + (size_t)r * p->ld + col + v * VW, m),
                          vf_mul(load_some(yk, m), down));
            o[v] = vf_mul(load_some(yq, m), down);
        }
        for (int j = 0; j < i; j++) {
            const vf a = vf_set(-pk[j]), b = vf_set(pq[j]);
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) {
                const vf x = load_some(u + (size_t)j * D + v * VW, m);
                s[v] = vf_fma(a, x, s[v]);
                o[v] = vf_fma(b, x, o[v]);
            }
        }
        const vf beta = vf_set(p->beta[r]), last = vf_set(pq[i]);
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            s[v] = vf_mul(beta, s[v]);
            store_some(u + (size_t)i * D + v * VW, s[v], m);
            store_some(p->o + (size_t)r * p->ld + col + v * VW, vf_fma(last, s[v], o[v]), m);
        }
    }
}

void SL_ISA(sl_kda_rows)(const struct sl_kda_rows *p)
{
    const int d = p->d, n = p->n;
    const size_t D = (size_t)d;
    float *kb = sl_kda_kb(p->tile), *g = sl_kda_g(p->tile, d);
    float *kt = p->scratch, *qt = kt + (size_t)n * D, *y = qt + (size_t)n * D;
    float pairs[2 * T * T];
    assert(p->at >= 0 && n >= 0 && p->at + n <= T);
    for (int r = 0; r < n; r++)
        memcpy(g + (size_t)(p->at + r) * D, p->g + (size_t)r * p->ld, sizeof(float) * D);
    total_decays(g, p->at, n, d, qt, kt);
    for (int r = 0; r < n; r++) {
        const size_t row = (size_t)r * D, from = (size_t)r * p->ld;
        for (int c = 0; c < d; c += VW) {
            const int m = d - c;
            const vf e = vf_mul(load_some(qt + row + c, m), vf_set(0x1p58f));
            const vf k = load_some(p->k + from + c, m), q = load_some(p->q + from + c, m);
            store_some(kt + row + c, vf_mul(k, e), m);
            store_some(qt + row + c, vf_mul(q, e), m);
            /* beyond the end e is 0 and the quotient is thrown away */
            store_some(kb + (size_t)p->at * D + row + c, vf_div(k, e), m);
        }
    }
    const struct sl_mm reads = {kt, p->S, y, D, 1, D, D, 2 * n, d, d, false};
    product(&reads, NULL);
    for (int r = 0; r < n; r++) {
        dots(kt + (size_t)r * D, kb, D, p->at + r + 1, d, pairs + r * T);
        dots(qt + (size_t)r * D, kb, D, p->at + r + 1, d, pairs + (T + r) * T);
    }
    int c = 0;
    for (; c + 4 * VW <= d; c += 4 * VW) solve(p, y, pairs, c, 4, VW);
    for (; c + VW <= d; c += VW) solve(p, y, pairs, c, 1, VW);
    if (c < d) solve(p, y, pairs, c, 1, d - c);
}

void SL_ISA(sl_kda_commit)(float *S, const float *tile, int n, int d, float *scratch)
{
    const size_t D = (size_t)d;
    const float *kb = tile, *u = tile + T * D, *g = tile + 2 * T * D;
    float *e = scratch, *w = scratch + 2 * D;
    if (n == 0) return;
    total_decays(g, n - 1, 1, d, e, e + D);
    for (int c = 0; c < d; c += VW) {
        const vf x = vf_mul(load_some(e + c, d - c), vf_set(0x1p58f));
        for (int t = 0; t < n; t++) {
            const size_t at = (size_t)t * D + (size_t)c;
            store_some(w + at, vf_mul(load_some(kb + at, d - c), x), d - c);
        }
    }
    const struct sl_mm p = {w, u, S, 1, D, D, D, d, d, n, true};
    product(&p, e);
}

/* ---- attention */

static void mask(const struct sl_attend *p, int first, int n)
{
    for (int c = 0; p->seen && c < p->n_query; c++)
        for (int i = p->seen[c] > first ? p->seen[c] - first : 0; i < n; i++)
            p->scratch[(size_t)i * p->ldq + (size_t)c] = -INFINITY;
}

/* Scores less their maxima, scaled, of VW queries from query c on; exp(old maximum - new) to
 * shrink. */
SL_INLINE void weigh(const struct sl_attend *p, int c, int n, float *shrink)
{
    float *s = p->scratch + c;
    vf max = vf_load(p->max + c);
    const vf old = max, scale = vf_set(p->scale);
    for (int i = 0; i < n; i++) {
        const vf x = vf_mul(vf_load(s + (size_t)i * p->ldq), scale);
        vf_store(s + (size_t)i * p->ldq, x);
        max = vf_less(max, x, x, max);
    }
    vf_store(shrink + c, vf_sub(old, max));
    vf_store(p->max + c, max);
    for (int i = 0; i < n; i++)
        vf_store(s + (size_t)i * p->ldq, vf_sub(vf_load(s + (size_t)i * p->ldq), max));
    SL_ISA(sl_exp)(shrink + c, shrink + c, VW);
}

static void attend_block(const struct sl_attend *p, const float *keys, const float *values,
                         int first, int n)
{
    float *s = p->scratch, *shrink = s + (size_t)SL_ATTEND_BLOCK * p->ldq;
    const int ldq = (int)p->ldq, vd = p->vd;
    const struct sl_mm scores = {keys, p->q, s, p->ldk, 1, p->ldq, p->ldq, n, ldq, p->kd, false};
    product(&scores, NULL);
    mask(p, first, n);
    for (int c = 0; c < ldq; c += VW) weigh(p, c, n, shrink);
    SL_ISA(sl_exp)(s, s, n * ldq);
    for (int c = 0; c < ldq; c += VW) {
        vf sum = vf_set(0.0f);
        for (int i = 0; i < n; i++) sum = vf_add(sum, vf_load(s + i * ldq + c));
        vf_store(p->sum + c, vf_add(vf_mul(vf_load(p->sum + c), vf_load(shrink + c)), sum));
    }
    for (int c = 0; c < p->n_query; c++) {
        float *acc = p->acc + (size_t)c * (size_t)vd;
        if (shrink[c] == 1.0f) continue;
        for (int j = 0; j < vd; j += VW)
            store_some(acc + j, vf_mul(load_some(acc + j, vd - j), vf_set(shrink[c])), vd - j);
    }
    const struct sl_mm sums = {s,          values,     p->acc, 1, p->ldq, p->ldv,
                               (size_t)vd, p->n_query, vd,     n, true};
    product(&sums, NULL);
}

void SL_ISA(sl_attend)(const struct sl_attend *p, const float *keys, const float *values, int n_pos)
{
    for (int s = 0; s < n_pos; s += SL_ATTEND_BLOCK)
        attend_block(p, keys + (size_t)s * p->ldk, values + (size_t)s * p->ldv, s,
                     n_pos - s < SL_ATTEND_BLOCK ? n_pos - s : SL_ATTEND_BLOCK);
}
