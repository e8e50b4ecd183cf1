/* The reference behind every slot of struct sl_kernels, by name: what ISA variants fall back on and
 * what tests compare with. Contracts stand beside the slots in kernels.h.
 *
 * NaN: where the reference gives a NaN, so does every ISA; its sign and payload are the machine's. */
#ifndef SL_KERNELS_REFERENCE_H
#define SL_KERNELS_REFERENCE_H

#include "kernels/kernels.h"

/* Columns [col0, col0 + n) of a row, exact f32; col0 % 32 == 0. */
void sl_mat_decode_cols(const struct sl_mat *w, int row, int col0, int n, float *out);

void sl_mul_c(const struct sl_mat *w, int row0, int row1, const float *x, size_t ldx, int n_tok,
              float *y, size_t ldy);
void sl_mul_fused_c(const struct sl_mat *w, int row0, int row1, const float *x, size_t ldx,
                    int n_tok, float *y, size_t ldy);
float sl_dot_c(const float *a, const float *b, int n);

void sl_exp_c(float *y, const float *x, int n);
void sl_sigmoid_c(float *y, const float *x, int n);
void sl_tanh_c(float *y, const float *x, int n);
void sl_silu_c(float *y, const float *x, int n);
void sl_situ_c(float *y, const float *g, const float *u, int n, float beta, float lin);

void sl_rmsnorm_c(float *y, const float *x, const float *w, int n, float eps);
void sl_axpy_c(float *y, float a, const float *x, int n);
void sl_add_c(float *y, const float *a, const float *b, int n);
void sl_mulv_c(float *y, const float *a, const float *b, int n);
void sl_weighted_rows_c(float *y, const float *p, const float *v, size_t ldv, int n_rows, int n);
void sl_softmax_c(float *x, int n, float scale);

void sl_conv_c(float *y, const float *taps, const float *hist, size_t ldh, const float *x, int n,
               int k);
void sl_kda_step_c(float *S, const float *q, const float *k, const float *v, const float *alpha,
                   float beta, float *o, int d);

void sl_decode_c(const struct sl_mat *w, int row0, int row1, int n, float *out, size_t ldo);
void sl_mm_c(const struct sl_mm *p);
void sl_kda_rows_c(const struct sl_kda_rows *p);
void sl_kda_commit_c(float *S, const float *tile, int n, int d, float *scratch);
void sl_attend_c(const struct sl_attend *p, const float *keys, const float *values, int n_pos);

#endif
