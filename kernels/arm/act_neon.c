/* The integer product on NEON; see a8_neon.h. */
#define SL_A8_NAME sl_mul_a8_neon
#include "kernels/arm/a8_neon.h"
