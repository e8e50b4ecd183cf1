/* The fast path's product, KDA tile and attention on AVX2: body_tile.h. */
#include "kernels/variants.h"
#include "kernels/x86/simd_avx2.h"
#define MM_ROWS 6
#include "kernels/body_tile.h"
