/* One block of activations to int16 (mul_batch.h): the text that the reference and the variants share.
 * Rounding is to the nearest, ties to even, as rintf in the default mode. */
#ifndef SL_KERNELS_BATCH_PACK_H
#define SL_KERNELS_BATCH_PACK_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include "kernels/block_t8.h"

#define SL_BATCH_TOP   32639 /* 127 * 257 */
#define SL_BATCH_LEAST 0x1p-100f

/* n <= 32 columns from x, zeros behind them; returns the scale. Magnitudes are compared as integers: the
 * order of non-negative floats is that of their bits, and what is not finite lies above them all. */
static inline float sl_batch_quantize(const float *x, int n, int16_t q[SL_T_BLOCK])
{
    float v[SL_T_BLOCK] = {0}, top;
    uint32_t bits[SL_T_BLOCK], most = 0;
    memcpy(v, x, (size_t)n * sizeof *x);
    memcpy(bits, v, sizeof bits);
    for (int i = 0; i < SL_T_BLOCK; i++) {
        const uint32_t m = bits[i] & 0x7fffffffu;
        most = m > most ? m : most;
    }
    memcpy(&top, &most, sizeof top);
    const int finite = most < 0x7f800000u;
    if (!finite || top < SL_BATCH_LEAST) {
        memset(q, 0, SL_T_BLOCK * sizeof *q);
        return finite ? 0.0f : NAN;
    }
    const float inv = (float)SL_BATCH_TOP / top;
    for (int i = 0; i < SL_T_BLOCK; i++) q[i] = (int16_t)(int32_t)rintf(v[i] * inv);
    return top / (float)SL_BATCH_TOP;
}

#endif
