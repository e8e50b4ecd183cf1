/* Packed matrices times int8 activations on the GPU: act.h's a8 and a8x2 for batches of 1 to 16.
 *
 * All pointers are device memory; struct sl_mat holds device addresses of the planes, stored as in the
 * pack (format.h), each plane on a multiple of 16 bytes.
 *
 *   d   sum over a block of 32 of code * q, exact int32 (a8x2: 256 * d0 + d1): equal to the sum of the
 *       reference's eight quads, below 2^28
 *       (t8 of one or two tokens: over each half of a block)
 *   y   sum over blocks of (float)d * (ws * scale), fused multiply-add, in an order fixed by shape, format,
 *       n_tok and number of products: the float order is the GPU's own, the integers and the scales are act.h's. Trellis
 *       formats: times the row scale last.
 *
 * So y is within (blocks + 6) roundings of the exact sum of its terms (tests/cuda/test_cuda_mul), and
 * equal to the reference bit by bit where no float operation rounds. Same shape, same bytes, each run. */
#ifndef SL_KERNELS_CUDA_MUL_H
#define SL_KERNELS_CUDA_MUL_H

#include <stdint.h>
#include "kernels/cuda/cuda_dev.h"
#include "kernels/mat.h"

/* Order of a block's columns in an activation, chosen by how the GPU unpacks a format:
 *   NATURAL  column c at c                                             t8 t6, mxfp4 m4, trellis formats
 *   WOVEN    column 4k + 2h + (i >> 1) + 16 (i & 1) at 8k + 4h + i     t4 */
enum sl_cuda_order { SL_CUDA_NATURAL, SL_CUDA_WOVEN, SL_CUDA_NO_ORDER };
enum sl_cuda_order sl_cuda_order_of(enum sl_fmt fmt);

#define SL_CUDA_BATCH 16 /* tokens of one product */

/* Packed tokens; nb = ceil(cols/32). The values of act.h, without its magnitudes. */
struct sl_cuda_act {
    enum sl_cuda_order order;
    int cols, n_tok, planes;
    int ld_scale; /* sl_cuda_ld_scale(n_tok) */
    int8_t *q;    /* [n_tok][planes][nb*32] */
    float *scale; /* [nb][ld_scale] */
};
int sl_cuda_ld_scale(int n_tok); /* 1, 2, 4, 8, then multiples of 16 */

/* Packs x f32 [n_tok][ldx] into a, whose fields are set and whose arrays have room. Bits equal to
 * sl_act_pack, column by column. */
void sl_cuda_act_pack(struct sl_cuda *d, const struct sl_cuda_act *a, const float *x, size_t ldx);

/* One product: y[t*ldy + r] = w[r] . x[tok + t] for all rows, t < n_tok. With w2 (same format and shape)
 * y = situ(w[r] . x, w2[r] . x), spec 3.5; else w2.codes is NULL. */
struct sl_cuda_product {
    struct sl_mat w, w2;
    int tok; /* first token of x */
    float *y;
    size_t ldy;
};

/* Up to SL_CUDA_PRODUCTS products that agree in format, shape, having a w2 and n_tok (1 to
 * SL_CUDA_BATCH): a layer's projections, or the experts of a token. x is in the format's order. */
#define SL_CUDA_PRODUCTS 16
void sl_cuda_mul_a8(struct sl_cuda *d, const struct sl_cuda_product *p, int n,
                    const struct sl_cuda_act *x, int n_tok, float situ_beta, float situ_linear);

/* The same for f32, bf16 and f16 matrices and f32 activations x [n_tok][ldx], n_tok up to
 * SL_CUDA_BATCH: every product fused into a sum of its thread, sums by halves. */
void sl_cuda_mul_plain(struct sl_cuda *d, const struct sl_mat *w, const float *x, size_t ldx,
                       int n_tok, float *y, size_t ldy);

#endif
