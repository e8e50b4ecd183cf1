/* Products of many tokens on the fast path: prefill, and an expert's share of a chunk.
 *
 * With many tokens arithmetic is the limit, so a block is decoded once for all tokens and rows of W are
 * the lanes: no sum crosses a register. Formats with integer codes multiply int16 activations:
 *
 *   x = scale * q     scale = max |x| of 32 columns / 32639, |q| <= 32639
 *
 * which is as fine as a8x2 (act.h) and one operation where two planes take two. 32639 = 127 * 257 leaves
 * room to split q into two planes of int8 where a machine multiplies bytes faster. Formats without
 * integer codes (f32, bf16, f16) take mul_fused of kernels.h.
 *
 * q is stored as the product of the same struct reads it, which differs between machines; its order of
 * columns is that of act.h for the format, so that one packing serves all matrices of an order. */
#ifndef SL_KERNELS_MUL_BATCH_H
#define SL_KERNELS_MUL_BATCH_H

#include "kernels/act.h"

/* Tokens from which on the batch product is the faster one (docs/results/cpu.md). */
enum { SL_BATCH_TOKENS = 8 };

struct sl_batch_x {
    enum sl_act_order order;
    int cols, n_tok;
    const int8_t *q;    /* [n_tok][sl_batch_bytes(cols)], as written by pack */
    const float *scale; /* [n_tok][sl_act_scales(cols)] */
};

static inline size_t sl_batch_bytes(int cols)
{
    return ((size_t)cols + 31) / 32 * 64;
}

struct sl_mul_batch {
    const char *name; /* "avx2": for reports */

    /* One token: x f32 [cols] to q [sl_batch_bytes(cols)] and scale [sl_act_scales(cols)]. A block whose
     * largest magnitude is below 2^-100 counts as zeros; one with a NaN or an infinity gets a NaN scale,
     * so that the product is NaN. order is not SL_ACT_NONE. */
    void (*pack)(enum sl_act_order order, const float *x, int cols, int8_t *q, float *scale);

    /* y[t*ldy + r] = product of row r with token t, for row0 <= r < row1.
     *
     *   d   sum over a block of code * q, exact int32; code: act.h
     *   f   ws * scale, rounded; ws: act.h
     *   y   fma((float)d, f, y) for blocks upward from y = 0; trellis formats: then times the row scale
     *
     * W's order must be x's. Equality: bits equal to _c on every ISA, and for a token alone to the same
     * token in any batch. Any alignment. Never fails, never allocates; disjoint ranges may run in
     * parallel, and are best a multiple of 32 rows. */
    void (*mul)(const struct sl_mat *w, int row0, int row1, const struct sl_batch_x *x, float *y,
                size_t ldy);
};

/* The fastest for a SL_CPU_* mask; &sl_mul_batch_c where no variant exists, and then mul_fused is faster. */
const struct sl_mul_batch *sl_mul_batch_for(unsigned cpu);

extern const struct sl_mul_batch sl_mul_batch_c;

#endif
