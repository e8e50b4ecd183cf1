/* Times the product slot on every ISA rung of this machine: `sluice bench kernels`. */
#ifndef SL_KERNELS_BENCH_KERNELS_H
#define SL_KERNELS_BENCH_KERNELS_H

#include <stdio.h>
#include "base/err.h"

/* One thread, K3's expert shape (3072 x 3584) and a trunk shape (3584 x 7168), every format, 1 to 128
 * tokens: the exact product, the fast path's fused floats, int8 activations and batch product. ISA arms
 * are interleaved with slices of the core's ceilings (roof.h); medians are printed to out as a table:
 * G products/s counts a weight once a token, GB/s counts packed bytes once a call, then the ceilings (fused
 * float products, memory reads) and the share of the nearer one that the fastest arm reaches. About `seconds` in all, at least one round.
 * SL_E_NOMEM when the matrices (250 MB with the rest) cannot be had. */
int sl_bench_kernels(FILE *out, double seconds, struct sl_err *err);

#endif
