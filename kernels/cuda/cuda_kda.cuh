/* The C contract of KDA for the .cu files that fulfil it. */
#ifndef SL_KERNELS_CUDA_KDA_CUH
#define SL_KERNELS_CUDA_KDA_CUH

#include "kernels/cuda/cuda_part.cuh"

extern "C" {
#include "kernels/cuda/cuda_kda.h"
}

#endif
