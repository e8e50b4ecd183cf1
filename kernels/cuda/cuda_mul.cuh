/* Between the two product kernels (cuda_gemv.cu, cuda_mma.cu) and who calls them (cuda_mul.cu). */
#ifndef SL_KERNELS_CUDA_MUL_CUH
#define SL_KERNELS_CUDA_MUL_CUH

#include <type_traits>
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

/* c[16 x 8] += a[16 x 32] b[32 x 8], int8 to int32, spread over a warp as the instruction says. */
static __device__ inline void sl_mma_s8(int *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    (void)c, (void)a, (void)b0, (void)b1;
    __trap(); /* cuda_mul.cu asks for dot products there */
#endif
}

/* f(std::integral_constant<int, kind>), for kernels that are compiled once a kind. */
template <class F> void sl_by_kind(enum sl_cuda_kind kind, F &&f)
{
    switch (kind) {
    case SL_KIND_T8:
        return f(std::integral_constant<int, SL_KIND_T8>());
    case SL_KIND_T6:
        return f(std::integral_constant<int, SL_KIND_T6>());
    case SL_KIND_T4:
        return f(std::integral_constant<int, SL_KIND_T4>());
    case SL_KIND_MXFP4:
        return f(std::integral_constant<int, SL_KIND_MXFP4>());
    case SL_KIND_M4:
        return f(std::integral_constant<int, SL_KIND_M4>());
    case SL_KIND_W2:
        return f(std::integral_constant<int, SL_KIND_W2>());
    case SL_KIND_W2_PLAIN:
        return f(std::integral_constant<int, SL_KIND_W2_PLAIN>());
    case SL_KIND_W1:
        return f(std::integral_constant<int, SL_KIND_W1>());
    }
}
/* Rows of trunk formats may start on any even byte; planes of experts are aligned. */
constexpr bool sl_kind_is_trunk(int kind)
{
    return kind == SL_KIND_T8 || kind == SL_KIND_T6 || kind == SL_KIND_T4;
}

#endif
