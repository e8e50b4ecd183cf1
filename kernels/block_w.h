/* w26, w36, p36, w16: trellis formats for routed experts. Blocks of 32 weights; this file defines them.
 *
 *   w = row * (S * T[index])        S * T an integer, row = f16 * 2^-12: the product is exact in f32
 *
 *   codes       w26, p36: u64 word [rows][cols/32]
 *               w36:      u64 word [rows][cols/32], then u32 plain [rows][cols/32]
 *               w16:      u64 word [rows][ceil(cols/64)]: two blocks a word; when cols % 64 is 32 the
 *                         upper half of the last word belongs to no column
 *   scales      u8 [rows][ceil(cols/32 / 2)]: nibble of block 2i low, of 2i+1 high, unused one 0;
 *               S = (4 + (nibble & 3)) << (nibble >> 2), 4 .. 56
 *   row_scales  f16 [rows], in units of 2^-12: weights of common size (rms 0.001 to 1) then have
 *               row scales that f16 holds as normal numbers
 *   table       w26, w16: i8 [64]; w36: i8 [128]; p36: i8 [64] of the base reading
 *   refinement plane set (p36 only): codes u32 plain [rows][cols/32], table i8 [128]
 *
 * index of weight t of a word with k bits a weight (2, or 1 for w16): the six bits from bit k*t upward,
 * cyclically; with a plain plane bit t of the block's u32 is bit 6 of the index. p36 read without its
 * refinement set is a w26 matrix with its own table; both tables share row scale and nibble, so that
 * no float step is needed (an int8 grid is 40 times finer than the error of two bits).
 * All little-endian. Any code value decodes: a reader has nothing to reject. */
#ifndef SL_KERNELS_BLOCK_W_H
#define SL_KERNELS_BLOCK_W_H

#include <stdint.h>
#include "kernels/trellis.h"

#define SL_W_BLOCK 32

/* Sixteen scales, ascending with the nibble. */
static inline int sl_w_scale(unsigned nibble)
{
    return (int)(4 + (nibble & 3)) << (nibble >> 2);
}

#define SL_W_ROW_UNIT 0x1p-12f /* a power of two: no digit is lost */

static inline unsigned sl_w_nibble(const uint8_t *scales, int block)
{
    return (unsigned)scales[block >> 1] >> (block & 1) * 4 & 15;
}

#endif
