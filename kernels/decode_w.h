/* One row of a trellis matrix (block_w.h), taken apart: what the ISA decoders read. */
#ifndef SL_KERNELS_DECODE_W_H
#define SL_KERNELS_DECODE_W_H

#include "kernels/block_w.h"
#include "kernels/half.h"
#include "kernels/mat.h"

struct sl_w_row {
    const uint8_t *words;  /* u64 of the row */
    const uint8_t *plain;  /* u32 of the row; NULL without a plain bit */
    const uint8_t *scales; /* nibbles of the row */
    const uint8_t *table;  /* i8 [64], [128] with a plain bit */
    float row;             /* scale of the row */
    int bits;              /* of a word, a weight: 2 or 1 */
};

static inline struct sl_w_row sl_w_row_at(const struct sl_mat *w, int row)
{
    const size_t r = (size_t)row, blocks = (size_t)(w->cols / SL_W_BLOCK);
    const size_t words = w->fmt == SL_FMT_W16 ? (blocks + 1) / 2 : blocks;
    const uint8_t *f16 = w->row_scales + r * 2;
    struct sl_w_row x = {
        .words = w->codes + r * words * 8,
        .scales = w->scales + r * ((blocks + 1) / 2),
        .table = w->table,
        .row = sl_f16_to_f32((uint16_t)(f16[0] | f16[1] << 8)) * SL_W_ROW_UNIT,
        .bits = w->fmt == SL_FMT_W16 ? 1 : 2,
    };
    if (w->fmt == SL_FMT_W36) x.plain = w->codes + (size_t)w->rows * words * 8 + r * blocks * 4;
    if (w->fmt == SL_FMT_P36 && w->fine_codes) {
        x.plain = w->fine_codes + r * blocks * 4;
        x.table = w->fine_table;
    }
    return x;
}

#endif
