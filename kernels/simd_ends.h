/* Ends of arrays for the shared bodies: a vector of which only the first m floats are in memory. After a
 * simd_*.h. */
#ifndef SL_KERNELS_SIMD_ENDS_H
#define SL_KERNELS_SIMD_ENDS_H

#include <string.h>
#include "kernels/simd_common.h"

/* The first m <= VW floats; the others are +0.0 and are not touched in memory. */
SL_INLINE vf load_some(const float *p, int m)
{
    if (m >= VW) return vf_load(p);
    float buf[VW] = {0};
    memcpy(buf, p, (size_t)m * sizeof *p);
    return vf_load(buf);
}

SL_INLINE void store_some(float *p, vf a, int m)
{
    if (m >= VW) {
        vf_store(p, a);
        return;
    }
    float buf[VW];
    vf_store(buf, a);
    memcpy(p, buf, (size_t)m * sizeof *p);
}

#endif
