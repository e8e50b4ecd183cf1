/* A block of any kind, over the decoders of an ISA header (body_a8.h names what it defines): kinds are
 * constants where this is called, so that one decoder is left. */
#ifndef SL_KERNELS_A8_BLOCK_H
#define SL_KERNELS_A8_BLOCK_H

#include "kernels/a8_row.h"
#include "kernels/simd_common.h"

SL_INLINE block one_block(const struct sl_a8_row *r, const a8_table *t, enum sl_a8_kind k, int b)
{
    switch (k) {
    case K_T8:
        return a8_T8(r, b);
    case K_T6:
        return a8_T6(r, b);
    case K_T4:
        return a8_T4(r, b);
    case K_MX:
    case K_M4:
        return a8_MX(r, b);
    case K_W2:
        return a8_W2(r, t, b, 0);
    case K_W2_PLAIN:
        return a8_W2(r, t, b, 1);
    default:
        return a8_W1(r, t, b);
    }
}

#endif
