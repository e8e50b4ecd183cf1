/* The integer product on NEON with sdot; see a8_neon.h. */
#define SL_A8_NAME sl_mul_a8_neondot
#include "kernels/arm/a8_neon.h"
