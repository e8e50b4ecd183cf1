/* t6: trunk matrices at 6.5 bits a weight; one row after the other, so that a strip is one read.
 *
 *   row = u8 low[nb][16], u8 high[nb][8], f16 scale[nb];  nb = ceil(cols/32)
 *
 *   low[b][j]    bits 0-3 of weight j of the block in the low nibble, of weight j + 16 in the high one
 *   high[b][j]   bits 4-5 of weights j, j + 8, j + 16, j + 24, from the lowest bits up
 *
 * Decode: w = (code - 32) * scale, code 0 .. 63, scale of either sign (the end at -32 serves the largest
 * weight). Weights past cols have code 32. Any byte decodes. */
#ifndef SL_KERNELS_BLOCK_T6_H
#define SL_KERNELS_BLOCK_T6_H

#include "kernels/block_t8.h"

#define SL_T6_LOW  16 /* bytes a block */
#define SL_T6_HIGH 8

/* Code of weight j of a block. */
static inline int sl_t6_code(const uint8_t *low, const uint8_t *high, int j)
{
    return (low[j & 15] >> (j >> 4) * 4 & 15) | (high[j & 7] >> (j >> 3) * 2 & 3) << 4;
}

#endif
