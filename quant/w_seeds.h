/* Seed tables of the trellis formats, in units of the source's standard deviation. */
#ifndef SL_QUANT_W_SEEDS_H
#define SL_QUANT_W_SEEDS_H

extern const float sl_w_seed_k2[64];        /* 2 bits a weight: w26, p36 base */
extern const float sl_w_seed_k2_plain[128]; /* with a plain bit: w36 */
extern const float sl_w_seed_k1[64];        /* 1 bit a weight: w16 */

#endif
