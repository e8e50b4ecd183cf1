/* Elementwise functions, norms, softmax and KDA on AVX2: body_vector.h over eight lanes. */
#include "kernels/variants.h"
#include "kernels/x86/simd_avx2.h"
#include "kernels/body_vector.h"
