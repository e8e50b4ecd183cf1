/* t6 and t4 encoders: rows of trunk matrices to 6 or 4 bits with an f16 scale per 32
 * (kernels/block_t6.h, block_t4.h).
 *
 * Scale: for either sign, nine candidates that put the largest weight of the block between 0.85 and
 * 1.09 of an end of the table; each is refitted by least squares to the codes it gave; the best one and
 * its neighbours in f16 are then compared by the error they leave. The same bytes on every machine: plain
 * f32 arithmetic in one order. Decode: sl_mat_decode_row. */
#ifndef SL_QUANT_T_LOW_H
#define SL_QUANT_T_LOW_H

#include <stdint.h>
#include "kernels/format.h"

/* Largest magnitude that can be encoded. */
#define SL_T_LOW_MAX (31.0f * 65504.0f)

/* One row of cols numbers to sl_fmt_row_bytes(fmt, cols) bytes; fmt: SL_FMT_T6 or SL_FMT_T4. Returns -1,
 * or the first column that holds a NaN, an infinity or a magnitude above SL_T_LOW_MAX (row is undefined
 * then). No overlap; disjoint rows may run in parallel. */
int sl_t_low_encode_f32(enum sl_fmt fmt, const float *x, int cols, uint8_t *row);
/* The same for little-endian bf16 as in a checkpoint, any alignment. */
int sl_t_low_encode_bf16(enum sl_fmt fmt, const uint8_t *x, int cols, uint8_t *row);

#endif
