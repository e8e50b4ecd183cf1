/* The integer product on AVX-512 with VBMI; see a8_x86.h. */
#define SL_A8_NAME sl_mul_a8_avx512vbmi
#include "kernels/x86/a8_x86.h"
