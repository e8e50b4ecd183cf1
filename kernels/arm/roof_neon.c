/* Ceilings of a core; see body_roof.h. */
#include "kernels/arm/simd_neon.h"
#include "kernels/body_roof.h"
