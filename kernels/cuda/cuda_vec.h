/* Vectors of the model on the GPU: norms, residual mixes, routing, embedding rows, argmax.
 *
 * All pointers are device memory. Class of each against the C reference (reference.h):
 *
 *   BITS   element-wise arithmetic, sums in the reference's order, choices
 *   NEAR   sums of squares and dot products taken by halves of a thread block: the same terms, each
 *          within a few units of 2^-24 of the sum of their magnitudes; the same bytes each run */
#ifndef SL_KERNELS_CUDA_VEC_H
#define SL_KERNELS_CUDA_VEC_H

#include <stdint.h>
#include "kernels/cuda/cuda_dev.h"
#include "kernels/mat.h"

/* NEAR. y[r] = rmsnorm(x[r]) * w for rows r < n_rows of n; w may be NULL (ones); y may be x. */
void sl_cuda_rmsnorm(struct sl_cuda *d, float *y, size_t ldy, const float *x, size_t ldx,
                     const float *w, int n_rows, int n, float eps);

/* NEAR. Attention residuals (spec 3.2) and the norm that follows, for each token:
 *   stream [n_tok][n_slots][hidden], slots 0 .. n_banked; w [hidden] or NULL: take slot n_banked as it is
 *   rms    [n_tok][n_slots]: of slots below n_banked it is read, of n_banked written
 *   x      [n_tok][hidden] = rmsnorm(mix) * norm
 * *bad (not NULL) becomes 1 when a value of slot n_banked is not finite. n_banked < 32.
 * hidden of any size. */
void sl_cuda_mix(struct sl_cuda *d, float *x, const float *stream, float *rms, int n_slots,
                 int n_banked, const float *w, const float *norm, int n_tok, int hidden, float eps,
                 int *bad);

/* BITS. Router (spec 3.5): logits [n_tok][n] become sigmoids in place; the k best of sigmoid + bias, best
 * first, a tie to the lower id; weights sigmoid / (sum + 1e-20) when renormalize, times scale.
 * ids, weights [n_tok][k]. k <= n, n <= 4096, k <= 1024. *bad: a logit that is not finite. */
void sl_cuda_route(struct sl_cuda *d, float *logits, const float *bias, int n_tok, int n, int k,
                   int renormalize, float scale, int *ids, float *weights, int *bad);

/* BITS. y[t][j] = sum_r p[t][r] * v[row(t, r)][j] in order of r, product rounded, then added, from +0;
 * row(t, r) = rows ? rows[t*k + r] : t*k + r. */
void sl_cuda_weighted_rows(struct sl_cuda *d, float *y, size_t ldy, const float *p, const float *v,
                           size_t ldv, const int *rows, int n_tok, int k, int n);

/* BITS. y = a + b (either may be y); y = situ(g, u). */
void sl_cuda_add(struct sl_cuda *d, float *y, const float *a, const float *b, size_t n);
void sl_cuda_situ(struct sl_cuda *d, float *y, const float *g, const float *u, size_t n, float beta,
                  float linear);

/* BITS. Row ids[t] of w (plain or trunk format), decoded, to y[t*ldy ...]. An id outside the matrix
 * gives NaN. */
void sl_cuda_embed(struct sl_cuda *d, float *y, size_t ldy, const struct sl_mat *w,
                   const int32_t *ids, int n_tok);

/* BITS. out[t] = lowest index of the largest of n values; a NaN is never it unless all are. */
void sl_cuda_argmax(struct sl_cuda *d, int32_t *out, const float *x, size_t ldx, int n_tok, int n);

/* y[t][r] = sum_c w[r0(t) + r][c] x[t][c], and its transpose y[t][c] = sum_r w[r0(t) + r][c] x[t][r], for
 * r < rows, r0(t) = base + (t % heads) * step: the products of single heads in absorbed attention, where
 * t counts tokens and heads. Weights decoded exactly, f32 fused sums. NEAR. */
struct sl_cuda_heads {
    int heads, step, base, rows;
};
void sl_cuda_head_mul(struct sl_cuda *d, float *y, size_t ldy, const struct sl_mat *w,
                      const struct sl_cuda_heads *h, const float *x, size_t ldx, int n);
void sl_cuda_head_mul_t(struct sl_cuda *d, float *y, size_t ldy, const struct sl_mat *w,
                        const struct sl_cuda_heads *h, const float *x, size_t ldx, int n);

#endif
