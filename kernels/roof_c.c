/* Ceilings without SIMD variants: what the compiler makes of plain loops. No fused products here: a call
 * of fmaf in software is no ceiling. */
#include "kernels/roof.h"
#include "kernels/kernels.h"

enum { SUMS = 16 };

static float roof_fma(int rounds)
{
    float s[SUMS], t = 0.0f;
    for (int i = 0; i < SUMS; i++) s[i] = (float)i;
    for (int n = 0; n < rounds; n++)
        for (int i = 0; i < SUMS; i++) s[i] = s[i] * 0.5f + 1.0f;
    for (int i = 0; i < SUMS; i++) t += s[i];
    return t;
}

static float roof_read(const float *p, size_t n)
{
    float s[SUMS] = {0}, t = 0.0f;
    for (size_t at = 0; at + SUMS <= n; at += SUMS)
        for (size_t i = 0; i < SUMS; i++) s[i] += p[at + i];
    for (int i = 0; i < SUMS; i++) t += s[i];
    return t;
}

extern const struct sl_roof sl_roof_avx2, sl_roof_avx512, sl_roof_neon;

struct sl_roof sl_roof_for(unsigned cpu)
{
    struct sl_roof k = {roof_fma, SUMS, roof_read};
#if defined(__x86_64__)
    if (cpu & SL_CPU_AVX2) k = sl_roof_avx2;
    if (cpu & SL_CPU_AVX512) k = sl_roof_avx512;
#elif defined(__aarch64__)
    if (cpu & SL_CPU_NEON) k = sl_roof_neon;
#else
    (void)cpu;
#endif
    return k;
}
