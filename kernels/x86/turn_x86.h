/* Eight by eight numbers, turned in registers. */
#ifndef SL_KERNELS_X86_TURN_X86_H
#define SL_KERNELS_X86_TURN_X86_H

#include <immintrin.h>
#include "kernels/simd_common.h"

#define TURN 8

SL_INLINE void turn(const float *from, size_t ldf, float *to, size_t ldt)
{
    __m256 a[8], b[8];
    /* halves of rows i and i + 4 side by side, so that what follows stays within 128 bits */
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const float *lo = from + (size_t)i * ldf, *hi = from + (size_t)(i + 4) * ldf;
        a[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(lo)), _mm_loadu_ps(hi), 1);
        a[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(lo + 4)),
                                        _mm_loadu_ps(hi + 4), 1);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 8; h += 4) { /* columns 0 to 3, then 4 to 7 */
        b[h] = _mm256_unpacklo_ps(a[h], a[h + 1]);
        b[h + 1] = _mm256_unpackhi_ps(a[h], a[h + 1]);
        b[h + 2] = _mm256_unpacklo_ps(a[h + 2], a[h + 3]);
        b[h + 3] = _mm256_unpackhi_ps(a[h + 2], a[h + 3]);
        float *at = to + (size_t)h * ldt;
        _mm256_storeu_ps(at, _mm256_shuffle_ps(b[h], b[h + 2], 0x44));
        _mm256_storeu_ps(at + ldt, _mm256_shuffle_ps(b[h], b[h + 2], 0xee));
        _mm256_storeu_ps(at + 2 * ldt, _mm256_shuffle_ps(b[h + 1], b[h + 3], 0x44));
        _mm256_storeu_ps(at + 3 * ldt, _mm256_shuffle_ps(b[h + 1], b[h + 3], 0xee));
    }
}

#endif
