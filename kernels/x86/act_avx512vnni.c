/* The integer product on AVX-512 with VNNI; see a8_x86.h. */
#define SL_A8_NAME sl_mul_a8_avx512vnni
#include "kernels/x86/a8_x86.h"
