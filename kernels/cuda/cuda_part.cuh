/* What the .cu files of this folder share: the device behind sl_cuda, launch checks, warp sums.
 *
 * Compiled with -fmad=false: as in C, a fused multiply-add is written fmaf. Division, square root and
 * subnormals are IEEE (nvcc's defaults), so element-wise kernels can equal the C reference bit by bit. */
#ifndef SL_KERNELS_CUDA_PART_CUH
#define SL_KERNELS_CUDA_PART_CUH

#include <cuda_runtime.h>
#include <stdint.h>

extern "C" {
#include "kernels/cuda/cuda_dev.h"
#include "kernels/format.h"
#include "kernels/mat.h"
}

struct sl_cuda {
    int device;
    struct sl_cuda_info info;
    size_t shared_max; /* bytes a block may ask for */
    cudaStream_t stream;
    cudaEvent_t from, to;
    cudaError_t failed; /* first failure */
    const char *where;
};

static inline void sl_cuda_note(struct sl_cuda *d, cudaError_t e, const char *where)
{
    if (e == cudaSuccess || d->failed != cudaSuccess) return;
    d->failed = e;
    d->where = where;
}

/* After a launch. */
#define SL_CUDA_LAUNCHED(d, where) sl_cuda_note(d, cudaGetLastError(), where)

#define SL_FULL 0xffffffffu

static __device__ inline float sl_warp_sum(float v, int lanes = 32)
{
    for (int s = lanes / 2; s; s /= 2) v += __shfl_xor_sync(SL_FULL, v, s);
    return v;
}

static __device__ inline float sl_warp_max(float v)
{
    for (int s = 16; s; s /= 2) v = fmaxf(v, __shfl_xor_sync(SL_FULL, v, s));
    return v;
}

/* Sum over the threads of a block, for all of them; part [32] is shared memory. */
static __device__ inline float sl_block_sum(float v, float *part)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n = (blockDim.x + 31) >> 5;
    v = sl_warp_sum(v);
    __syncthreads();
    if (lane == 0) part[warp] = v;
    __syncthreads();
    v = lane < n ? part[lane] : 0.0f;
    return sl_warp_sum(v);
}

#endif
