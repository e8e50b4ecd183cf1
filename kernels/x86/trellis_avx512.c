/* The trellis search compiled for AVX-512, 16 blocks a vector; see trellis_impl.h. */
#define SL_TRELLIS_NAME(k) sl_trellis_##k##_avx512
#include "kernels/kernels.h"
#include "kernels/trellis_impl.h"
#include "kernels/trellis_follow_impl.h"
