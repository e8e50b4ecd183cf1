/* Elementwise functions, norms, softmax and KDA on NEON: body_vector.h over four lanes. */
#include "kernels/variants.h"
#include "kernels/arm/simd_neon.h"
#include "kernels/body_vector.h"
