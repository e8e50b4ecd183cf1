/* e2m1 * 2^(s-127) for every scale byte s and code, as bf16, which holds all of them exactly: the
 * subnormal ones (down to 2^-128) and the infinities of s = 253 and 254 too.
 *
 * A row is two tables of 16 bytes for byte shuffles: high bytes of the 16 codes, then low bytes. With
 * them a block needs no multiplication by its scale. 8 KiB; a model uses a few dozen rows. */
#ifndef SL_KERNELS_MX_TABLE_H
#define SL_KERNELS_MX_TABLE_H

#include <stdint.h>

extern uint8_t sl_mx_table[256][32] __attribute__((aligned(32))); /* read-only after init */
void sl_mx_table_init(void); /* called by sl_kernels_init; any number of times, from any thread */

#endif
