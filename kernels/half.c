/* Half-width floats in integer arithmetic: the same on every machine, with or without F16C.
 *
 * Rounding is to nearest, ties to even; overflow gives infinity; a NaN stays a quiet NaN. */
#include "kernels/half.h"

float sl_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 1023, u;
    float f;
    if (exp == 31) {
        u = sign | 0x7f800000u | man << 13 | (man ? 0x00400000u : 0);
    } else if (exp) {
        u = sign | (exp + 112) << 23 | man << 13;
    } else {
        f = (float)man * 0x1p-24f; /* zero and subnormals: exact */
        memcpy(&u, &f, sizeof u);
        u |= sign;
    }
    memcpy(&f, &u, sizeof f);
    return f;
}

uint16_t sl_f32_to_f16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint32_t sign = u >> 16 & 0x8000, a = u & 0x7fffffff, r;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* 65520 and above */
    if (a >= 0x38800000u) {                                 /* normal: 2^-14 and above */
        r = a - (112u << 23);
        r += 0xfff + (r >> 13 & 1);
        return (uint16_t)(sign | r >> 13);
    }
    uint32_t exp = a >> 23;
    if (exp < 102) return (uint16_t)sign;                        /* below 2^-25: rounds to zero */
    uint32_t man = (a & 0x7fffff) | 0x800000, shift = 126 - exp; /* 14..24 bits fall away */
    r = man >> shift;
    uint32_t rest = man & ((1u << shift) - 1), half = 1u << (shift - 1);
    r += rest > half || (rest == half && (r & 1));
    return (uint16_t)(sign | r);
}

uint16_t sl_f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
    u += 0x7fff + (u >> 16 & 1);
    return (uint16_t)(u >> 16);
}
