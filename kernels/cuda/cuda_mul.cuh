/* Between the two product kernels (cuda_gemv.cu, cuda_mma.cu) and who calls them (cuda_mul.cu). */
#ifndef SL_KERNELS_CUDA_MUL_CUH
#define SL_KERNELS_CUDA_MUL_CUH

#include "kernels/cuda/cuda_block.cuh"

extern "C" {
#include "kernels/cuda/cuda_mul.h"
}

struct sl_mul_job {
    sl_cuda_rows m[2];
    float *y;
    size_t ldy;
    int tok;
};

/* A kernel parameter: below the 4 KiB that all architectures take. */
struct sl_mul_args {
    sl_mul_job job[SL_CUDA_PRODUCTS];
    const int8_t *q;
    const float *scale;
    int ld_scale, planes, n_act; /* of the activations; n_act: tokens packed */
    int n_tok;                   /* of each product */
    int lanes,
        n_tiles; /* gemv: lanes of a row; groups of rows that a thread block takes at a time */
    int split;   /* warps that share the blocks of a row */
    float beta, linear;
};
static_assert(sizeof(sl_mul_args) <= 4000, "kernel parameters");

struct sl_mul_shape {
    enum sl_cuda_kind kind;
    bool aligned; /* rows start on multiples of 16 bytes */
    bool dual;
    int n_jobs, rows;
};

void sl_gemv_launch(struct sl_cuda *d, const sl_mul_shape &s, sl_mul_args &a); /* 1 or 2 tokens */
/* False, and nothing done, where the shape or the GPU does not suit it. */
bool sl_mma_staged_launch(struct sl_cuda *d, const sl_mul_shape &s, sl_mul_args &a);
void sl_mma_launch(struct sl_cuda *d, const sl_mul_shape &s, sl_mul_args &a); /* up to 16, sm_80 */

static __device__ inline float sl_row_scale(const sl_cuda_rows &m, int row)
{
    return m.row_scales && m.table ? sl_d_f16(m.row_scales + (size_t)row * 2) * 0x1p-12f : 1.0f;
}

#endif
