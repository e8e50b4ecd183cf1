/* m4: mxfp4 with scales relative to the row maximum; lossless, 4.125 bits a weight + 1 byte a row.
 *
 *   codes       u8 [rows][cols/2]             as mxfp4, -0 kept
 *   scales      u8 [rows][ceil(cols/32 / 2)]  4-bit offsets, block 2i in the low nibble, 2i+1 in the
 *                                             high one; an unused last nibble is 0
 *   row_scales  u8 [rows]                     e = largest E8M0 byte of the row
 *
 * Decode: s = e - offset, then as mxfp4. A matrix with an offset above 15 is stored as mxfp4. */
#ifndef SL_KERNELS_BLOCK_M4_H
#define SL_KERNELS_BLOCK_M4_H

#include "kernels/block_mxfp4.h"

/* E8M0 byte of block b; scales and e belong to one row. */
static inline uint8_t sl_m4_scale(const uint8_t *scales, uint8_t e, int b)
{
    return (uint8_t)(e - (scales[b >> 1] >> (b & 1) * 4 & 15));
}

#endif
