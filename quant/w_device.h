/* The trellis encoder on a GPU (kernels/cuda/cuda_trellis.h), for builds with and without one.
 *
 * It takes w26 and w36 without feedback and gives the CPU's bytes, so a conversion may be begun on one and
 * resumed on the other. */
#ifndef SL_QUANT_W_DEVICE_H
#define SL_QUANT_W_DEVICE_H

#include "quant/w_encode.h"

struct sl_w_device;

/* The first GPU, with room for matrices of max_weights weights and max_cols columns. SL_E_DEVICE when the
 * build or the machine has none, SL_E_BUDGET when its memory does not suffice. */
int sl_w_device_open(struct sl_w_device **out, size_t max_weights, int max_cols,
                     struct sl_err *err);
void sl_w_device_close(struct sl_w_device *d); /* NULL is fine */
bool sl_w_device_takes(enum sl_fmt fmt);
/* Codes, scales and row scales; any number of threads, which wait for each other. */
int sl_w_device_encode(struct sl_w_device *d, const struct sl_w_job *job,
                       const struct sl_w_planes *out, struct sl_err *err);

#endif
