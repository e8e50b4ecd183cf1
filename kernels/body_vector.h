/* Vector code of math_c.c, vector_c.c and kda_c.c, written once over the operations of simd_*.h.
 *
 * Included by one translation unit an ISA after its simd header. Each function repeats the reference
 * step by step; a lane never meets another lane except where the reference says so (sl_lanes_sum,
 * and the maximum of softmax, which has no rounding). Ends of arrays go through a buffer of one
 * vector, so that nothing outside the arrays is read or written. */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "kernels/lanes.h"
#include "kernels/math_const.h"
#include "kernels/reference.h"
#include "kernels/simd_common.h"
#include "kernels/simd_ends.h"

enum { LANE_VECTORS = SL_LANES / VW };

/* ---- math_c.c */

SL_INLINE vf exp_v(vf x)
{
    x = vf_min(vf_set(SL_EXP_MAX), x);
    x = vf_max(vf_set(SL_EXP_MIN), x);
    const vf magic = vf_set(SL_EXP_MAGIC);
    vf shifted = vf_add(vf_mul(x, vf_set(SL_EXP_LOG2E)), magic);
    vi n = vi_sub(vf_bits(shifted), vf_bits(magic));
    vf k = vf_sub(shifted, magic);
    vf r = vf_sub(x, vf_mul(k, vf_set(SL_EXP_LN2_HI)));
    r = vf_sub(r, vf_mul(k, vf_set(SL_EXP_LN2_LO)));
    vf p = vf_set(SL_EXP_P4);
    p = vf_add(vf_mul(p, r), vf_set(SL_EXP_P3));
    p = vf_add(vf_mul(p, r), vf_set(SL_EXP_P2));
    p = vf_add(vf_mul(p, r), vf_set(SL_EXP_P1));
    p = vf_add(vf_mul(p, r), vf_set(SL_EXP_P0));
    vf e = vf_add(vf_add(vf_mul(vf_mul(r, r), p), r), vf_set(1.0f));
    vi h = vi_half(n), bias = vi_set(127);
    e = vf_mul(e, vi_float(vi_shl23(vi_add(h, bias))));
    return vf_mul(e, vi_float(vi_shl23(vi_add(vi_sub(n, h), bias))));
}

SL_INLINE vf sigmoid_v(vf x)
{
    const vf one = vf_set(1.0f);
    vf e = exp_v(vf_neg_abs(x));
    return vf_div(vf_less(x, vf_set(0.0f), e, one), vf_add(one, e));
}

SL_INLINE vf tanh_v(vf x)
{
    const vf one = vf_set(1.0f);
    vf a = vf_abs(x), z = vf_mul(a, a);
    vf q = vf_set(SL_TANH_Q4);
    q = vf_add(vf_mul(q, z), vf_set(SL_TANH_Q3));
    q = vf_add(vf_mul(q, z), vf_set(SL_TANH_Q2));
    q = vf_add(vf_mul(q, z), vf_set(SL_TANH_Q1));
    q = vf_add(vf_mul(q, z), vf_set(SL_TANH_Q0));
    vf near = vf_add(a, vf_mul(vf_mul(a, z), q));
    vf far = vf_sub(one, vf_div(vf_set(2.0f), vf_add(exp_v(vf_add(a, a)), one)));
    return vf_join_sign(vf_less(a, vf_set(SL_TANH_SPLIT), near, far), x);
}

SL_INLINE vf silu_v(vf x)
{
    return vf_mul(vf_max(vf_set(SL_SILU_MIN), x), sigmoid_v(x));
}

void SL_ISA(sl_exp)(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i += VW) store_some(y + i, exp_v(load_some(x + i, n - i)), n - i);
}

void SL_ISA(sl_sigmoid)(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i += VW) store_some(y + i, sigmoid_v(load_some(x + i, n - i)), n - i);
}

void SL_ISA(sl_tanh)(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i += VW) store_some(y + i, tanh_v(load_some(x + i, n - i)), n - i);
}

void SL_ISA(sl_silu)(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i += VW) store_some(y + i, silu_v(load_some(x + i, n - i)), n - i);
}

void SL_ISA(sl_situ)(float *y, const float *g, const float *u, int n, float beta, float lin)
{
    const vf vb = vf_set(beta), vl = vf_set(lin);
    for (int i = 0; i < n; i += VW) {
        vf gi = load_some(g + i, n - i), up = load_some(u + i, n - i);
        vf gate = vf_mul(vf_mul(vb, tanh_v(vf_div(gi, vb))), sigmoid_v(gi));
        if (lin > 0.0f) up = vf_mul(vl, tanh_v(vf_div(up, vl)));
        store_some(y + i, vf_mul(gate, up), n - i);
    }
}

/* ---- mul_c.c, vector_c.c */

float SL_ISA(sl_dot)(const float *a, const float *b, int n)
{
    vf s[LANE_VECTORS];
    float lane[SL_LANES];
    int i = 0;
#pragma GCC unroll 16
    for (int v = 0; v < LANE_VECTORS; v++) s[v] = vf_set(0.0f);
    for (; i + SL_LANES <= n; i += SL_LANES) {
#pragma GCC unroll 16
        for (int v = 0; v < LANE_VECTORS; v++)
            s[v] = vf_add(s[v], vf_mul(vf_load(a + i + v * VW), vf_load(b + i + v * VW)));
    }
#pragma GCC unroll 16
    for (int v = 0; v < LANE_VECTORS; v++) vf_store(lane + v * VW, s[v]);
    for (int j = 0; i + j < n; j++) lane[j] += a[i + j] * b[i + j];
    return sl_lanes_sum(lane);
}

void SL_ISA(sl_rmsnorm)(float *y, const float *x, const float *w, int n, float eps)
{
    const vf d = vf_set(sqrtf(SL_ISA(sl_dot)(x, x, n) / (float)n + eps));
    for (int i = 0; i < n; i += VW) {
        vf v = vf_div(load_some(x + i, n - i), d);
        if (w) v = vf_mul(v, load_some(w + i, n - i));
        store_some(y + i, v, n - i);
    }
}

void SL_ISA(sl_axpy)(float *y, float a, const float *x, int n)
{
    const vf va = vf_set(a);
    for (int i = 0; i < n; i += VW) {
        vf v = vf_add(load_some(y + i, n - i), vf_mul(va, load_some(x + i, n - i)));
        store_some(y + i, v, n - i);
    }
}

void SL_ISA(sl_add)(float *y, const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i += VW)
        store_some(y + i, vf_add(load_some(a + i, n - i), load_some(b + i, n - i)), n - i);
}

void SL_ISA(sl_mulv)(float *y, const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i += VW)
        store_some(y + i, vf_mul(load_some(a + i, n - i), load_some(b + i, n - i)), n - i);
}

void SL_ISA(sl_softmax)(float *x, int n, float scale)
{
    vf most = vf_set(-INFINITY), s[LANE_VECTORS];
    const vf vs = vf_set(scale);
    float lane[SL_LANES], max = -INFINITY;
    int i = 0;
    for (; i + VW <= n; i += VW) {
        vf v = vf_mul(vf_load(x + i), vs);
        vf_store(x + i, v);
        most = vf_max(v, most);
    }
    for (; i < n; i++) {
        x[i] = x[i] * scale;
        max = max < x[i] ? x[i] : max;
    }
    vf_store(lane, most);
    for (int j = 0; j < VW; j++) max = max < lane[j] ? lane[j] : max;
    const vf vm = vf_set(max);
    for (i = 0; i < n; i += VW)
        store_some(x + i, exp_v(vf_sub(load_some(x + i, n - i), vm)), n - i);

#pragma GCC unroll 16
    for (int v = 0; v < LANE_VECTORS; v++) s[v] = vf_set(0.0f);
    for (i = 0; i + SL_LANES <= n; i += SL_LANES) {
#pragma GCC unroll 16
        for (int v = 0; v < LANE_VECTORS; v++) s[v] = vf_add(s[v], vf_load(x + i + v * VW));
    }
#pragma GCC unroll 16
    for (int v = 0; v < LANE_VECTORS; v++) vf_store(lane + v * VW, s[v]);
    for (int j = 0; i + j < n; j++) lane[j] += x[i + j];
    const vf sum = vf_set(sl_lanes_sum(lane));
    for (i = 0; i < n; i += VW) store_some(x + i, vf_div(load_some(x + i, n - i), sum), n - i);
}

/* nv vectors of columns from column j on; the last vector has m <= VW of them. */
SL_INLINE void weighted_columns(float *y, const float *p, const float *v, size_t ldv, int n_rows,
                                int nv, int m)
{
    vf sum[4];
#pragma GCC unroll 16
    for (int c = 0; c < nv; c++) sum[c] = vf_set(0.0f);
    for (int s = 0; s < n_rows; s++, v += ldv) {
        const vf ps = vf_set(p[s]);
#pragma GCC unroll 16
        for (int c = 0; c < nv; c++) sum[c] = vf_add(sum[c], vf_mul(ps, load_some(v + c * VW, m)));
    }
#pragma GCC unroll 16
    for (int c = 0; c < nv; c++) store_some(y + c * VW, sum[c], m);
}

void SL_ISA(sl_weighted_rows)(float *y, const float *p, const float *v, size_t ldv, int n_rows,
                              int n)
{
    int j = 0;
    for (; j + 4 * VW <= n; j += 4 * VW) weighted_columns(y + j, p, v + j, ldv, n_rows, 4, VW);
    for (; j + VW <= n; j += VW) weighted_columns(y + j, p, v + j, ldv, n_rows, 1, VW);
    if (j < n) weighted_columns(y + j, p, v + j, ldv, n_rows, 1, n - j);
}

/* ---- kda_c.c */

/* Taps of m <= VW channels from channel c on, one vector a tap. */
SL_INLINE void load_taps(vf *tap, const float *taps, int c, int k, int m)
{
    if (k == 4 && m == VW) {
        vf_load_fours(taps + (size_t)c * 4, tap);
        return;
    }
    for (int j = 0; j < k; j++) {
        float buf[VW] = {0};
        for (int l = 0; l < m; l++) buf[l] = taps[(size_t)(c + l) * (size_t)k + (size_t)j];
        tap[j] = vf_load(buf);
    }
}

SL_INLINE void conv_channels(float *y, const float *taps, const float *hist, size_t ldh,
                             const float *x, int c, int k, int m)
{
    enum { MAX_TAPS = 8 };
    assert(k >= 1 && k <= MAX_TAPS);
    vf tap[MAX_TAPS], sum = vf_set(0.0f);
    load_taps(tap, taps, c, k, m);
    for (int j = 0; j < k - 1; j++)
        sum = vf_add(sum, vf_mul(tap[j], load_some(hist + (size_t)j * ldh + c, m)));
    sum = vf_add(sum, vf_mul(tap[k - 1], load_some(x + c, m)));
    store_some(y + c, silu_v(sum), m);
}

/* Four taps, the model's number, have code of their own: 12,288 channels take
 * 19 us instead of 73 (AVX2, one thread). */
void SL_ISA(sl_conv)(float *y, const float *taps, const float *hist, size_t ldh, const float *x,
                     int n, int k)
{
    int c = 0;
    for (; k == 4 && c + VW <= n; c += VW) conv_channels(y, taps, hist, ldh, x, c, 4, VW);
    for (; c < n; c += VW) conv_channels(y, taps, hist, ldh, x, c, k, n - c < VW ? n - c : VW);
}

/* nv vectors of value channels; the last one has m <= VW of them. */
SL_INLINE void kda_columns(float *S, const float *q, const float *k, const float *v,
                           const float *alpha, float beta, float *o, int d, int nv, int m)
{
    vf r[4], u[4], out[4];
#pragma GCC unroll 16
    for (int c = 0; c < nv; c++) r[c] = out[c] = vf_set(0.0f);
    for (int i = 0; i < d; i++) {
        const float *row = S + (size_t)i * (size_t)d;
        const vf ai = vf_set(alpha[i]), ki = vf_set(k[i]);
#pragma GCC unroll 16
        for (int c = 0; c < nv; c++)
            r[c] = vf_add(r[c], vf_mul(ki, vf_mul(load_some(row + c * VW, m), ai)));
    }
#pragma GCC unroll 16
    for (int c = 0; c < nv; c++)
        u[c] = vf_mul(vf_set(beta), vf_sub(load_some(v + c * VW, m), r[c]));
    for (int i = 0; i < d; i++) {
        float *row = S + (size_t)i * (size_t)d;
        const vf ai = vf_set(alpha[i]), ki = vf_set(k[i]), qi = vf_set(q[i]);
#pragma GCC unroll 16
        for (int c = 0; c < nv; c++) {
            vf s = vf_add(vf_mul(load_some(row + c * VW, m), ai), vf_mul(ki, u[c]));
            store_some(row + c * VW, s, m);
            out[c] = vf_add(out[c], vf_mul(qi, s));
        }
    }
#pragma GCC unroll 16
    for (int c = 0; c < nv; c++) store_some(o + c * VW, out[c], m);
}

void SL_ISA(sl_kda_step)(float *S, const float *q, const float *k, const float *v,
                         const float *alpha, float beta, float *o, int d)
{
    int j = 0;
    for (; j + 4 * VW <= d; j += 4 * VW)
        kda_columns(S + j, q, k, v + j, alpha, beta, o + j, d, 4, VW);
    for (; j + VW <= d; j += VW) kda_columns(S + j, q, k, v + j, alpha, beta, o + j, d, 1, VW);
    if (j < d) kda_columns(S + j, q, k, v + j, alpha, beta, o + j, d, 1, d - j);
}
