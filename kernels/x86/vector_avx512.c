/* Elementwise functions, norms, softmax and KDA on AVX-512: body_vector.h over sixteen lanes. */
#include "kernels/variants.h"
#include "kernels/x86/simd_avx512.h"
#include "kernels/body_vector.h"
