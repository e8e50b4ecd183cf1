/* Made by the preprocessor from the definition in block_mxfp4.h; test_formats compares all of it. */
#include "kernels/mx_table.h"

/* Magnitudes of codes 1..7 are (1 + h/2) * 2^x. Biased exponent E = s + x; at E <= 0 the number is a
 * multiple of the smallest bf16, 2^-133, and E is -1 at least. */
#define E(s, m)      ((s) + ((m) == 1 ? -1 : (m) < 4 ? 0 : (m) < 6 ? 1 : 2))
#define H(m)         ((m) == 3 || (m) == 5 || (m) == 7)
#define NORMAL(e, h) ((e)*128 + (h)*64)
#define SMALL(e, h)  ((2 + (h)) << ((e) > 0 ? 0 : (e) + 5))
#define BITS(e, h)   ((e) >= 255 ? 0x7f80 : (e) > 0 ? NORMAL(e, h) : SMALL(e, h))
#define MAG(s, m)    ((m) == 0 ? 0 : BITS(E(s, m), H(m)))
#define HI(s, c)     (uint8_t)((MAG(s, (c)&7) | ((c)&8) << 12) >> 8)
#define LO(s, c)     (uint8_t)(MAG(s, (c)&7) & 255)

#define EIGHT(f, s, c)                                                                             \
    f(s, c), f(s, c + 1), f(s, c + 2), f(s, c + 3), f(s, c + 4), f(s, c + 5), f(s, c + 6),         \
        f(s, c + 7)
#define ROW(s)                                                                                     \
    {                                                                                              \
        EIGHT(HI, s, 0), EIGHT(HI, s, 8), EIGHT(LO, s, 0), EIGHT(LO, s, 8)                         \
    }
#define R4(s)  ROW(s), ROW((s) + 1), ROW((s) + 2), ROW((s) + 3)
#define R16(s) R4(s), R4((s) + 4), R4((s) + 8), R4((s) + 12)
#define R64(s) R16(s), R16((s) + 16), R16((s) + 32), R16((s) + 48)

const uint8_t sl_mx_table[256][32]
    __attribute__((aligned(32))) = {R64(0), R64(64), R64(128), R64(192)};
