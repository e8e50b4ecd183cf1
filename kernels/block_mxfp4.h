/* mxfp4: routed experts as released (spec 2.3). 4.25 bits a weight.
 *
 *   codes   u8 [rows][cols/2]    byte b of a row: element 2b in the LOW nibble, 2b+1 in the HIGH one
 *   scales  u8 [rows][cols/32]   E8M0: 2^(s-127); 255 is NaN and never stored; 0 is 2^-127
 *
 * Decode: w = e2m1(nibble) * 2^(s-127), e2m1 = {0,.5,1,1.5,2,3,4,6} with bit 3 as sign, -0 included. */
#ifndef SL_KERNELS_BLOCK_MXFP4_H
#define SL_KERNELS_BLOCK_MXFP4_H

#include <stdint.h>
#include <string.h>

#define SL_MX_BLOCK 32

static const float sl_e2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                  -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/* 2^(s-127) from exponent bits, never by powf; s = 0 is the subnormal 2^-127, s = 255 is the caller's error. */
static inline float sl_e8m0(uint8_t s)
{
    uint32_t bits = s ? (uint32_t)s << 23 : 0x00400000u;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

#endif
