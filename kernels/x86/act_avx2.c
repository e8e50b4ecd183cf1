/* The integer product on AVX2; see a8_x86.h. */
#define SL_A8_NAME sl_mul_a8_avx2
#include "kernels/x86/a8_x86.h"
