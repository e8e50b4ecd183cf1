/* Reference of the fast path's matrix product and KDA tile (kernels.h, kda_tile.h): the formulas, with
 * every fused step written as fmaf. */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "kernels/kda_tile.h"
#include "kernels/lanes.h"
#include "kernels/reference.h"

enum { T = SL_KDA_TILE };

void sl_mm_c(const struct sl_mm *p)
{
    for (int i = 0; i < p->m; i++) {
        float *c = p->C + (size_t)i * p->ldc;
        for (int j = 0; j < p->n; j++) {
            float s = p->add ? c[j] : 0.0f;
            for (int k = 0; k < p->depth; k++)
                s = fmaf(p->A[(size_t)i * p->si + (size_t)k * p->sk],
                         p->B[(size_t)k * p->ldb + (size_t)j], s);
            c[j] = s;
        }
    }
}

/* The dot order of kernels.h with fused sums. */
static float dot(const float *a, const float *b, int n)
{
    float lane[SL_LANES] = {0};
    for (int i = 0; i < n; i++) lane[i % SL_LANES] = fmaf(a[i], b[i], lane[i % SL_LANES]);
    return sl_lanes_sum(lane);
}

/* *hi + *lo += g, hi the rounded sum, lo what was lost so far. */
static void add_decay(float *hi, float *lo, float g)
{
    const float s = *hi + g;
    const float part = s - *hi;
    *lo = *lo + ((*hi - (s - part)) + (g - part));
    *hi = s;
}

/* e[c] = exp(sum of rows [0, rows) of g); lo is work. */
static void total_decay(const float *g, int rows, int d, float *e, float *lo)
{
    for (int c = 0; c < d; c++) {
        e[c] = lo[c] = 0.0f;
        for (int j = 0; j < rows; j++) add_decay(&e[c], &lo[c], g[(size_t)j * (size_t)d + c]);
    }
    sl_exp_c(e, e, d);
    for (int c = 0; c < d; c++) e[c] = fmaf(e[c], lo[c], e[c]);
}

void sl_kda_rows_c(const struct sl_kda_rows *p)
{
    const int d = p->d;
    const size_t D = (size_t)d;
    float *kb = sl_kda_kb(p->tile), *u = sl_kda_u(p->tile, d), *g = sl_kda_g(p->tile, d);
    float *kt = p->scratch, *qt = kt + D, *yk = qt + D, *yq = yk + D;
    assert(p->at >= 0 && p->n >= 0 && p->at + p->n <= T);
    for (int i = p->at; i < p->at + p->n; i++) {
        const size_t from = (size_t)(i - p->at) * p->ld, row = (size_t)i * D;
        memcpy(g + row, p->g + from, sizeof(float) * D);
        total_decay(g, i + 1, d, qt, kt);
        for (int c = 0; c < d; c++) {
            const float e = qt[c] * 0x1p58f;
            const float k = p->k[from + (size_t)c];
            kt[c] = k * e;
            qt[c] = p->q[from + (size_t)c] * e;
            kb[row + (size_t)c] = k / e;
        }
        const struct sl_mm mm = {kt, p->S, yk, D, 1, D, D, 2, d, d, false};
        sl_mm_c(&mm);
        float pair[2][T];
        for (int j = 0; j <= i; j++) {
            pair[0][j] = dot(kt, kb + (size_t)j * D, d);
            pair[1][j] = dot(qt, kb + (size_t)j * D, d);
        }
        for (int c = 0; c < d; c++) {
            float s = p->v[from + (size_t)c] - yk[c] * 0x1p-58f, o = yq[c] * 0x1p-58f;
            for (int j = 0; j < i; j++) {
                const float x = u[(size_t)j * D + (size_t)c];
                s = fmaf(-pair[0][j], x, s);
                o = fmaf(pair[1][j], x, o);
            }
            s = p->beta[i - p->at] * s;
            u[row + (size_t)c] = s;
            p->o[from + (size_t)c] = fmaf(pair[1][i], s, o);
        }
    }
}

void sl_kda_commit_c(float *S, const float *tile, int n, int d, float *scratch)
{
    const size_t D = (size_t)d;
    const float *kb = tile, *u = tile + T * D, *g = tile + 2 * T * D;
    float *e = scratch, *lo = scratch + D;
    total_decay(g, n, d, e, lo);
    for (int c = 0; c < d; c++) {
        float *row = S + (size_t)c * D;
        for (int j = 0; j < d; j++) {
            float s = e[c] * row[j];
            for (int t = 0; t < n; t++)
                s = fmaf(kb[(size_t)t * D + (size_t)c] * (e[c] * 0x1p58f),
                         u[(size_t)t * D + (size_t)j], s);
            row[j] = s;
        }
    }
}
