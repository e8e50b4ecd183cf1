/* The fast path's product, KDA tile and attention on AVX-512: body_tile.h. */
#include "kernels/variants.h"
#include "kernels/x86/simd_avx512.h"
#define MM_ROWS 8
#include "kernels/body_tile.h"
