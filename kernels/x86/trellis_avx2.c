/* The trellis search compiled for AVX2, 8 blocks a vector; see trellis_impl.h. */
#define SL_TRELLIS_NAME(k) sl_trellis_##k##_avx2
#include "kernels/kernels.h"
#include "kernels/trellis_impl.h"
#include "kernels/trellis_follow_impl.h"
