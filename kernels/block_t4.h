/* t4: trunk matrices at 4.5 bits a weight; one row after the other, so that a strip is one read.
 *
 *   row = u8 code[nb][16], f16 scale[nb];  nb = ceil(cols/32)
 *
 *   code[b][j]   weight j of the block in the low nibble, weight j + 16 in the high one
 *
 * Decode: w = T[code] * scale, scale of either sign. The table was trained (generalised Lloyd, scale of
 * the block chosen each round) on blocks of normal and Student-t8 numbers: relative error 0.0754 there,
 * 0.0766 with the widely used table of the same shape. Weights past cols have code 8. Any byte decodes. */
#ifndef SL_KERNELS_BLOCK_T4_H
#define SL_KERNELS_BLOCK_T4_H

#include "kernels/block_t8.h"

#define SL_T4_CODES 16 /* bytes a block */

static const int8_t sl_t4_table[16] = {-127, -96, -74, -57, -43, -31, -20, -9,
                                       2,    12,  23,  34,  47,  62,  79,  101};

/* Value of weight j of a block, in units of its scale. */
static inline int sl_t4_value(const uint8_t *code, int j)
{
    return sl_t4_table[code[j & 15] >> (j >> 4) * 4 & 15];
}

#endif
