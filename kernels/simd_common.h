/* What the shared bodies need from the compiler, and where a packed row is (body_mul.h).
 *
 * Loops over arrays of registers carry `#pragma GCC unroll`, which clang reads too: such a loop must
 * be gone for the array to be registers. */
#ifndef SL_KERNELS_SIMD_COMMON_H
#define SL_KERNELS_SIMD_COMMON_H

#include <stdint.h>

#define SL_INLINE static inline __attribute__((always_inline))

/* Planes of one row from the first block of a segment on. */
struct sl_row {
    const uint8_t *codes;  /* t6: low nibbles */
    const uint8_t *high;   /* t6: upper bits */
    const uint8_t *scales; /* t8 t6 t4: f16; mxfp4: E8M0; m4: nibbles */
    uint8_t e;             /* m4: row exponent */
};

#endif
