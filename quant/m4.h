/* m4 scales: E8M0 bytes of mxfp4 to row exponents and 4-bit offsets, and back (kernels/block_m4.h).
 *
 * Only the scales change; the code plane is the same in both formats and the caller copies it. Both
 * directions are exact for every byte 0..254, scales of zero blocks included; whether a matrix fits
 * at all is a property of its rows: the spread of scale bytes within each is at most 15. */
#ifndef SL_QUANT_M4_H
#define SL_QUANT_M4_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of offsets of one row: two blocks of 32 columns a byte. */
static inline size_t sl_m4_row_scales(int cols)
{
    return (size_t)(cols / 32 + 1) / 2;
}

/* Whether every row of e8m0 [rows][blocks] spans at most 15. */
bool sl_m4_fits(const uint8_t *e8m0, int rows, int blocks);

/* codes [rows][cols/2] and e8m0 [rows][cols/32], cols % 32 == 0, to m4_scales [rows][ceil(blocks/2)]
 * and row_e [rows]. codes are not read. False, outputs undefined, when an offset exceeds 15. */
bool sl_m4_encode(const uint8_t *codes, const uint8_t *e8m0, int rows, int cols, uint8_t *m4_scales,
                  uint8_t *row_e);

/* The bytes that went in. False, with *e8m0 undefined, when they cannot have been written by
 * sl_m4_encode: an offset above its row exponent, a row without offset 0, a row exponent of 255, or
 * a last nibble that is unused and not 0. */
bool sl_m4_decode(const uint8_t *m4_scales, const uint8_t *row_e, int rows, int cols,
                  uint8_t *e8m0);

/* Whether a byte 255 (NaN) is among bytes[n]; *where is the first. Any alignment. */
bool sl_e8m0_has_nan(const uint8_t *bytes, size_t n, size_t *where);

#endif
