/* Random matrices of the packed formats, and what their bytes mean, spelled out from the format headers
 * apart from the decoders under test. */
#ifndef SL_TESTS_PACKED_MATRIX_H
#define SL_TESTS_PACKED_MATRIX_H

#include <stdbool.h>
#include <stdint.h>
#include "kernels/act.h"

struct kp_matrix {
    struct sl_mat m;
    uint8_t *bytes; /* freed by kc_free_bytes */
};

/* Codes are any bytes, or (ends) the extreme ones; scales are ordinary. */
struct kp_matrix kp_make(enum sl_fmt fmt, int rows, int cols, bool ends);

/* Column of place i of a block, from the comment of act.h. */
int kp_column(enum sl_act_order order, int i);

/* Scale that the decoder multiplies the integers of block b with, apart from a trellis row's. */
double kp_block_scale(const struct sl_mat *w, int r, int b);
double kp_row_scale(const struct sl_mat *w, int r);

#endif
