/* bf16 and f16 to f32, exact, subnormals included; f32 to both with round to nearest even. */
#ifndef SL_KERNELS_HALF_H
#define SL_KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

static inline float sl_bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float sl_f16_to_f32(uint16_t h);
uint16_t sl_f32_to_f16(float f);
uint16_t sl_f32_to_bf16(float f);

#endif
