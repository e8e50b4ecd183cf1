/* The ISA variants of the slots, by name; which machine takes which is dispatch.c. */
#ifndef SL_KERNELS_VARIANTS_H
#define SL_KERNELS_VARIANTS_H

#include "kernels/attend.h"
#include "kernels/kda_tile.h"
#include "kernels/kernels.h"

#define SL_VARIANTS(isa)                                                                           \
    void sl_mul_##isa(const struct sl_mat *w, int row0, int row1, const float *x, size_t ldx,      \
                      int n_tok, float *y, size_t ldy);                                            \
    void sl_mul_fused_##isa(const struct sl_mat *w, int row0, int row1, const float *x,            \
                            size_t ldx, int n_tok, float *y, size_t ldy);                          \
    float sl_dot_##isa(const float *a, const float *b, int n);                                     \
    void sl_exp_##isa(float *y, const float *x, int n);                                            \
    void sl_sigmoid_##isa(float *y, const float *x, int n);                                        \
    void sl_tanh_##isa(float *y, const float *x, int n);                                           \
    void sl_silu_##isa(float *y, const float *x, int n);                                           \
    void sl_situ_##isa(float *y, const float *g, const float *u, int n, float beta, float lin);    \
    void sl_rmsnorm_##isa(float *y, const float *x, const float *w, int n, float eps);             \
    void sl_axpy_##isa(float *y, float a, const float *x, int n);                                  \
    void sl_add_##isa(float *y, const float *a, const float *b, int n);                            \
    void sl_mulv_##isa(float *y, const float *a, const float *b, int n);                           \
    void sl_conv_##isa(float *y, const float *taps, const float *hist, size_t ldh, const float *x, \
                       int n, int k);                                                              \
    void sl_kda_step_##isa(float *S, const float *q, const float *k, const float *v,               \
                           const float *alpha, float beta, float *o, int d);                       \
    void sl_weighted_rows_##isa(float *y, const float *p, const float *v, size_t ldv, int n_rows,  \
                                int n);                                                            \
    void sl_softmax_##isa(float *x, int n, float scale);                                           \
    void sl_decode_##isa(const struct sl_mat *w, int row0, int row1, int n, float *out,            \
                         size_t ldo);                                                              \
    void sl_mm_##isa(const struct sl_mm *p);                                                       \
    void sl_kda_rows_##isa(const struct sl_kda_rows *p);                                           \
    void sl_kda_commit_##isa(float *S, const float *tile, int n, int d, float *scratch);           \
    void sl_attend_##isa(const struct sl_attend *p, const float *keys, const float *values,        \
                         int n_pos)

SL_VARIANTS(avx2);
SL_VARIANTS(avx512);
SL_VARIANTS(neon);

#endif
