/* Linear maps fitted by ridge regression, from sums that are streamed.
 *
 *   y ~ W x + b,   least squares over all rows seen, plus lambda * (mean square of the inputs) * n * |W|^2
 *
 * Only sums are kept, never rows: [x 1]' [x 1] and [x 1]' y, in f64. They grow in row order, so they do
 * not depend on threads, and sums over parts of a text add up. The intercept b is not penalised. To pull
 * a fit towards a map that is known, feed y less what that map gives, and add it to the result. */
#ifndef SL_QUANT_RIDGE_H
#define SL_QUANT_RIDGE_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/pool.h"
#include "kernels/kernels.h"

struct sl_ridge {
    int n_in, n_out;
    double *sums; /* [n_in + 1][n_in + 1 + n_out], the constant 1 after the inputs */
};

/* Bytes of the sums. */
uint64_t sl_ridge_bytes(int n_in, int n_out);
/* Sums of zero. SL_E_NOMEM. */
int sl_ridge_open(struct sl_ridge *r, int n_in, int n_out, struct sl_err *err);
void sl_ridge_close(struct sl_ridge *r); /* zeroed is fine */

/* Adds n rows: work holds them by column, sl_ridge_work_floats() long, filled by sl_ridge_pack from
 * x [n][ldx] and y [n][ldy]; then any ranges of the n_in + 1 rows of the sums, disjoint ones in
 * parallel. f32 within a call. */
size_t sl_ridge_work_floats(int n, int n_in, int n_out);
void sl_ridge_pack(const struct sl_ridge *r, float *work, const float *x, size_t ldx,
                   const float *y, size_t ldy, int n);
void sl_ridge_add(struct sl_ridge *r, const float *work, int n, int row0, int row1,
                  const struct sl_kernels *k);

/* W [n_out][n_in] and b [n_out] by Cholesky in f64; lambda >= 0. pool may be NULL; its threads do not
 * change a bit. SL_E_ARG when the sums hold no rows, or are singular at this lambda; SL_E_NOMEM. */
int sl_ridge_solve(const struct sl_ridge *r, double lambda, struct sl_pool *pool, float *W,
                   float *b, struct sl_err *err);

#endif
