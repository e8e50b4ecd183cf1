/* KDA on the fast path: a tile of 16 tokens over one committed state (spec 3.3.1).
 *
 *   S     the state before the tile's first token, read once by a call whatever its rows
 *   tile  [3][16][d] f32, what the rows so far left behind:
 *           kb[j] = k_j / E_j      E_j = exp(g_0 + ... + g_j) * 2^58, by key channel
 *           u[j]  = beta_j * (v_j - what the state before j reads at k_j)
 *           g[j]  = log decay, in (-5, 0]
 *
 * Row i of a tile, with kt = k_i * E_i and qt = q_i * E_i:
 *
 *   u_i = beta_i * (v_i - 2^-58 kt.S - sum_{j<i} (kt . kb_j) u_j)
 *   o_i =                 2^-58 qt.S + sum_{j<=i} (qt . kb_j) u_j
 *   end: S[c][:] = e^(g_0+...+g_n-1)[c] * S[c][:] + sum_j (kb_j * E_n-1)[c] u_j
 *
 * A row depends on earlier rows alone and every sum has one order, so a tile done in one call has the
 * bits of the same tile done row by row: decode and prefill are one arithmetic.
 *
 * Range: g >= -5 makes sums of 16 reach -80. With 2^58 = e^40.2 in the middle, E and 1/E lie within
 * e^(+-40.3): no operand is subnormal or near overflow, whatever the decays. The sums of g carry their
 * rounding errors along (two-sum), because near -80 a plain f32 sum is good to 4e-6 only, which a slow
 * channel after fast tokens would feel. Error of output and state against the recurrence in f64: under
 * 5e-7 (rms over rms) at every decay, both ends of the bound included (kernels/test_attention_kernels). */
#ifndef SL_KERNELS_KDA_TILE_H
#define SL_KERNELS_KDA_TILE_H

#include "kernels/kernels.h"

#define SL_KDA_TILE 16

/* Rows [at, at + n) of the tile, at + n <= 16; rows below `at` are done. q (scaled), k, v, g, o: [n][ld],
 * the first d of each; o may be q. scratch: sl_kda_scratch(d) floats. S is not changed. */
struct sl_kda_rows {
    const float *S;
    float *tile;
    int at, n, d;
    const float *q, *k, *v, *g, *beta;
    float *o;
    size_t ld;
    float *scratch;
};

static inline size_t sl_kda_tile_floats(int d)
{
    return (size_t)3 * SL_KDA_TILE * (size_t)d;
}

static inline size_t sl_kda_scratch(int d)
{
    return (size_t)4 * SL_KDA_TILE * (size_t)d;
}

/* Parts of a tile. */
static inline float *sl_kda_kb(float *tile)
{
    return tile;
}
static inline float *sl_kda_u(float *tile, int d)
{
    return tile + (size_t)SL_KDA_TILE * (size_t)d;
}
static inline float *sl_kda_g(float *tile, int d)
{
    return tile + (size_t)2 * SL_KDA_TILE * (size_t)d;
}

#endif
