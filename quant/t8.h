/* t8 encoder: rows of trunk matrices to int8 codes with an f16 scale per 32 (kernels/block_t8.h).
 *
 * Scale: the f16 number with the least squared error among the 16 smallest for which the largest
 * magnitude of the block still rounds to a code of at most 127. On the bf16 matrices of a trained
 * model that is 5.6 % less error than the smallest scale of at least max/127 alone.
 *
 * The same bytes on every machine: plain f32 arithmetic in one order. Decode: sl_mat_decode_row. */
#ifndef SL_QUANT_T8_H
#define SL_QUANT_T8_H

#include <stdint.h>

/* Largest magnitude that can be encoded: 127 times the largest f16. */
#define SL_T8_MAX (127.0f * 65504.0f)

/* One row of cols numbers to sl_fmt_row_bytes(SL_FMT_T8, cols) bytes. Returns -1, or the first column
 * that holds a NaN, an infinity or a magnitude above SL_T8_MAX (row is undefined then). No overlap;
 * disjoint rows may run in parallel. */
int sl_t8_encode_f32(const float *x, int cols, uint8_t *row);
/* The same for little-endian bf16 as in a checkpoint, any alignment. */
int sl_t8_encode_bf16(const uint8_t *x, int cols, uint8_t *row);

#endif
