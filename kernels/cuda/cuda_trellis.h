/* Encoder of w26 and w36 on the GPU: what quant/w_encode.h makes without feedback, by the same operations.
 *
 * The search (kernels/trellis.h), the choice of nibbles and the first row scales are the CPU's bit by bit;
 * sums of the row-scale fit are doubles added in another order, so a row scale can differ where its
 * sum falls on a rounding border of f16: not seen in tests/cuda/test_cuda_trellis, which asks for equal
 * bytes. Feedback (a covariance) and the other formats stay on the CPU. */
#ifndef SL_KERNELS_CUDA_TRELLIS_H
#define SL_KERNELS_CUDA_TRELLIS_H

#include <stdint.h>
#include "kernels/cuda/cuda_dev.h"
#include "kernels/format.h"

struct sl_cuda_encoder;

/* Room on the device for matrices of up to max_weights weights and max_cols columns; 1.3 GB at 200 million
 * weights, 75 MB at the release's experts. Has a stream of its own; any thread may use it, one at a time
 * goes ahead. SL_E_DEVICE, SL_E_BUDGET. */
int sl_cuda_encoder_open(struct sl_cuda_encoder **out, int device, size_t max_weights, int max_cols,
                         struct sl_err *err);
void sl_cuda_encoder_close(struct sl_cuda_encoder *e); /* NULL is fine */

/* Host memory throughout. Planes as sl_fmt_planes; `table` is written by the caller. */
struct sl_cuda_encode {
    enum sl_fmt fmt;    /* SL_FMT_W26 or SL_FMT_W36 */
    const float *table; /* [64], w36: [128]: int8 values */
    float rms;          /* of the table */
    const float *w;     /* [rows][cols], cols % 32 == 0 */
    int rows, cols;
    const float *h; /* [cols] weights of columns >= 0, or NULL for ones */
    int rounds;     /* 1 or more */
    uint8_t *codes, *scales, *row_scales;
    double *ms; /* NULL, or: device time without copies */
};
/* SL_E_ARG as sl_w_encode: a value that is not finite, a row beyond the f16 range of its scale. */
int sl_cuda_encode(struct sl_cuda_encoder *e, const struct sl_cuda_encode *job, struct sl_err *err);

#endif
