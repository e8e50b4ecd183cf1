/* Activations as int8: a8, and a8x2 with a second plane for the rest.
 *
 *   a8     x = scale * q                    scale = max |x| of 32 columns / 127
 *   a8x2   x = scale * (256 * q0 + q1)      the same scale / 256: 15 bits
 *
 * q is -127 .. 127 and stored in the order in which a format unpacks its codes, so that one packing of a
 * token serves all rows and all experts; |q| lies beside it for machines that multiply unsigned by
 * signed bytes:
 *
 *   NATURAL   column c of a block at c                                          t8 t6 t4
 *   PAIRS     even columns, then odd ones                                       mxfp4 m4
 *   ROT4      column 4j + i at 8i + j (rotation i of a word, byte j)            w26 w36 p36
 *   ROT8      column 8j + i at 4i + j                                           w16 */
#ifndef SL_KERNELS_ACT_H
#define SL_KERNELS_ACT_H

#include <stddef.h>
#include "kernels/mat.h"

enum sl_act_order { SL_ACT_NONE, SL_ACT_NATURAL, SL_ACT_PAIRS, SL_ACT_ROT4, SL_ACT_ROT8 };
/* SL_ACT_NONE for formats that have no integer product. */
enum sl_act_order sl_act_order_of(enum sl_fmt fmt);

/* Packed tokens; nb = ceil(cols/32). */
struct sl_act {
    enum sl_act_order order;
    int cols, n_tok;
    int planes;         /* 1: a8, 2: a8x2 */
    const int8_t *q;    /* [n_tok][planes][2][nb*32]: values, then magnitudes; 0 past cols */
    const float *scale; /* [n_tok][nb] */
};

/* One token: x f32 [cols] to q [planes][2][nb*32] and scale [nb]. A block whose largest magnitude is below
 * 2^-100 counts as zeros; one with a NaN or an infinity gets a NaN scale, so that the product is NaN.
 * The same bytes on every machine. */
typedef void (*sl_act_pack_fn)(enum sl_act_order order, int planes, const float *x, int cols,
                               int8_t *q, float *scale);
void sl_act_pack(enum sl_act_order order, int planes, const float *x, int cols, int8_t *q,
                 float *scale);
/* The fastest for a SL_CPU_* mask. */
sl_act_pack_fn sl_act_pack_for(unsigned cpu);
/* Bytes of q and of the scales of one token. */
static inline size_t sl_act_bytes(int planes, int cols)
{
    return ((size_t)cols + 31) / 32 * 32 * 2 * (size_t)planes;
}
static inline size_t sl_act_scales(int cols)
{
    return ((size_t)cols + 31) / 32;
}

/* y[t*ldy + r] = product of row r with token t, for row0 <= r < row1.
 *
 *   quad    the codes at places 4j .. 4j + 3 of a block, j < 8
 *   d       sum over a quad of code * q, exact int32 (a8x2: 256 * d0 + d1); code is the integer of the
 *           format: t8 code, t6 code - 32, t4 T[code], mxfp4 and m4 twice the e2m1 value, else T[index]
 *   f       ws * scale; ws: f16 scale, 2^(s-128), else S
 *   y       sixteen lanes [2][8]; for blocks b upward lane [b & 1][j] = fma((float)d, f, lane); then
 *           [0][j] += [1][j]; lanes j += j+4, j+2, j+1; trellis formats: times the row scale
 *
 * Every float operation but the fma is rounded on its own. W's order must be x's. Equality: bits equal to _c on
 * every ISA, and for a token alone to the same token in a batch. Never fails, never allocates; disjoint
 * ranges may run in parallel. */
typedef void (*sl_mul_a8_fn)(const struct sl_mat *w, int row0, int row1, const struct sl_act *x,
                             float *y, size_t ldy);
void sl_mul_a8_c(const struct sl_mat *w, int row0, int row1, const struct sl_act *x, float *y,
                 size_t ldy);
/* The best product for a SL_CPU_* mask. */
sl_mul_a8_fn sl_mul_a8_for(unsigned cpu);

#endif
