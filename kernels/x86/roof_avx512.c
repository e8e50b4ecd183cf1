/* Ceilings of a core; see body_roof.h. */
#include "kernels/x86/simd_avx512.h"
#include "kernels/body_roof.h"
