/* KDA (spec 3.3) on the GPU: state at the last multiple of 16, and the open tile.
 *
 *   S     [heads][d][d] f32 (key channel, value channel): the state after the last whole tile
 *   open  rows of the tile in progress, row i = position % 16:
 *         k [heads][16][d]   unit keys
 *         G [heads][16][d]   sum of log decays g of rows 0 .. i: in (-80, 0)
 *         u [heads][16][d]   beta * (v - what the state, decayed to the row, already answers to k)
 *
 * A row depends on earlier rows only, so going back inside a tile is counting fewer of them. u stands in
 * for v and beta: S' = exp(G) S + sum k_j exp(G - G_j) u_j' is the recurrence's own S after the row.
 *
 * Decode reads S once and writes it at row 15. All exponents are differences of G that are never
 * positive. Prefill takes whole tiles by tensor cores: exp(+-(G - G_7)), within e^40, as tf32 in two
 * pieces (22 bits), three products a product; the triangular system of 16 rows by substitution in f32.
 *
 * d is 32, 64 or 128. All pointers are device memory. NEAR (cuda_vec.h): against the per-token recurrence
 * in double, errors as tests/cuda/test_cuda_kda prints. */
#ifndef SL_KERNELS_CUDA_KDA_H
#define SL_KERNELS_CUDA_KDA_H

#include "kernels/cuda/cuda_dev.h"

#define SL_CUDA_TILE 16

struct sl_cuda_kda_state {
    float *S, *k, *G, *u;
};

/* Inputs of n_tok tokens, from projections to what the recurrence takes; [n_tok][heads*d] unless said.
 *
 *   z[3]     q, k, v projections; hist [3][taps-1][heads*d] oldest first, replaced by the chunk's last
 *   conv     taps of q, k, v [heads*d][taps]
 *   f        decay projection; replaced by g = low * sigmoid(exp_A[head] * (f + dt_bias))
 *   b        [n_tok][heads] beta projection; replaced by its sigmoid
 *   q, k, v  out: silu of the convolutions; q and k of unit length (eps inside the root), q / sqrt(d)
 *
 * taps is 2 to 8. z is not changed. Convolution, gate and beta: BITS; unit length: NEAR. */
struct sl_cuda_kda_inputs {
    const float *z[3], *conv[3];
    float *hist;
    const float *exp_A, *dt_bias;
    float *f, *b, *q, *k, *v;
    float low, eps;
    int taps, heads, d, n_tok;
};
void sl_cuda_kda_prepare(struct sl_cuda *d, const struct sl_cuda_kda_inputs *in);

/* One token at row `row` of the tile: o [heads*d]. Row 15 commits the tile to S. */
void sl_cuda_kda_step(struct sl_cuda *d, const struct sl_cuda_kda_state *st, const float *q,
                      const float *k, const float *v, const float *g, const float *beta, float *o,
                      int heads, int width, int row);

/* n_tok tokens from a multiple of 16 on: o [n_tok][heads*d]. Whole tiles go to S; rows of a last, shorter
 * one are left open. */
void sl_cuda_kda_prefill(struct sl_cuda *d, const struct sl_cuda_kda_state *st, const float *q,
                         const float *k, const float *v, const float *g, const float *beta,
                         float *o, int heads, int width, int n_tok);

/* gate [n_tok][heads*d]: y = rmsnorm(o of a head) * norm [d] * sigmoid(gate), into gate. NEAR. */
void sl_cuda_kda_output(struct sl_cuda *d, float *gate, const float *o, const float *norm,
                        int n_tok, int heads, int width, float eps);

#endif
