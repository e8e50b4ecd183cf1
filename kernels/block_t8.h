/* t8: trunk matrices at 8.5 bits a weight; one row after the other, so that a strip is one read.
 *
 *   row = i8 codes[nb*32], then f16 scale[nb];  nb = ceil(cols/32), the last block zero padded
 *
 * Decode: w = code * scale, code in [-127, 127] (-128 is never written), scale >= 0, subnormals kept
 * (1 % of one real trunk has them). */
#ifndef SL_KERNELS_BLOCK_T8_H
#define SL_KERNELS_BLOCK_T8_H

#include <stdint.h>

#define SL_T_BLOCK 32

static inline int sl_t8_blocks(int cols)
{
    return (cols + SL_T_BLOCK - 1) / SL_T_BLOCK;
}

#endif
