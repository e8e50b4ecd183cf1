/* One weight of a plain or trunk matrix, as mat_decode.c defines it: for rows and heads that are used
 * once, where unpacking block by block would not pay. */
#ifndef SL_KERNELS_CUDA_WEIGHT_CUH
#define SL_KERNELS_CUDA_WEIGHT_CUH

#include "kernels/cuda/cuda_block.cuh"

struct sl_cuda_weights {
    const uint8_t *codes;
    size_t row_bytes;
    int fmt, rows, cols;
};

static inline sl_cuda_weights sl_weights_of(const struct sl_mat *w)
{
    sl_cuda_weights m;
    m.codes = w->codes;
    m.row_bytes = sl_fmt_row_bytes(w->fmt, (uint64_t)w->cols);
    m.fmt = w->fmt;
    m.rows = w->rows;
    m.cols = w->cols;
    return m;
}

static __device__ inline float sl_d_weight(const sl_cuda_weights &m, int row, int c)
{
    const uint8_t *r = m.codes + (size_t)row * m.row_bytes;
    const int nb = (m.cols + 31) / 32, b = c >> 5, j = c & 31;
    switch (m.fmt) {
    case SL_FMT_F32:
        return ((const float *)r)[c];
    case SL_FMT_BF16:
        return __uint_as_float((uint32_t)((const unsigned short *)r)[c] << 16);
    case SL_FMT_F16:
        return sl_d_f16(r + 2 * c);
    case SL_FMT_T8:
        return (float)(int8_t)r[c] * sl_d_f16(r + (size_t)nb * 32 + 2 * b);
    case SL_FMT_T6: {
        const int low = r[b * 16 + (j & 15)] >> (j >> 4) * 4 & 15;
        const int high = r[(size_t)nb * 16 + b * 8 + (j & 7)] >> (j >> 3) * 2 & 3;
        return (float)((low | high << 4) - 32) * sl_d_f16(r + (size_t)nb * 24 + 2 * b);
    }
    case SL_FMT_T4: {
        const uint32_t code = r[b * 16 + (j & 15)] >> (j >> 4) * 4 & 15;
        uint32_t two[2];
        sl_t4_words(code, two);
        return (float)(int8_t)(two[0] & 255) * sl_d_f16(r + (size_t)nb * 16 + 2 * b);
    }
    default:
        return __int_as_float(0x7fc00000);
    }
}

#endif
