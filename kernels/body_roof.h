/* The two loops of roof.h over the operations of simd_*.h. Twelve sums hide the latency of a fused product
 * on every core with two units for them, and fit sixteen registers. */
#include "kernels/roof.h"
#include "kernels/simd_common.h"

enum { SUMS = 12, LOADS = 64 / VW };

static float total(const vf *s, int n)
{
    float out[VW], t = 0.0f;
    for (int i = 0; i < n; i++) {
        vf_store(out, s[i]);
        for (int j = 0; j < VW; j++) t += out[j];
    }
    return t;
}

static float roof_fma(int rounds)
{
    vf s[SUMS];
    const vf a = vf_set(0.5f), b = vf_set(1.0f);
    for (int i = 0; i < SUMS; i++) s[i] = vf_set((float)i);
    for (int n = 0; n < rounds; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++) s[i] = vf_fma(s[i], a, b);
    }
    return total(s, SUMS);
}

static float roof_read(const float *p, size_t n)
{
    enum { WIDE = LOADS < 8 ? LOADS : 8 };
    vf s[WIDE];
    for (int i = 0; i < WIDE; i++) s[i] = vf_set(0.0f);
    for (size_t at = 0; at + 64 <= n; at += 64) {
#pragma GCC unroll 16
        for (int i = 0; i < LOADS; i++) s[i % WIDE] = vf_add(s[i % WIDE], vf_load(p + at + i * VW));
    }
    return total(s, WIDE);
}

const struct sl_roof SL_ISA(sl_roof) = {roof_fma, SUMS *VW, roof_read};
