/* The fast path's product, KDA tile and attention on NEON: body_tile.h. */
#include "kernels/variants.h"
#include "kernels/arm/simd_neon.h"
#define MM_ROWS 4
#include "kernels/body_tile.h"
