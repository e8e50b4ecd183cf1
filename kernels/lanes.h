/* The end of the dot order of kernels.h: sixteen lane sums to one, by halves.
 *
 * Kept apart so that the reference and the ISA variants that store their lanes share one text. */
#ifndef SL_KERNELS_LANES_H
#define SL_KERNELS_LANES_H

#define SL_LANES 16

static inline float sl_lanes_sum(const float *lane)
{
    float s[SL_LANES / 2];
    for (int j = 0; j < 8; j++) s[j] = lane[j] + lane[j + 8];
    for (int j = 0; j < 4; j++) s[j] = s[j] + s[j + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

#endif
