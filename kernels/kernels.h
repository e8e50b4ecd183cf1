/* All arithmetic of the model on memory handed in, behind one table filled once per process.
 *
 * The C reference (kernels/ *_c.c) defines each answer; an ISA variant gives the same bits. Float dot
 * products have one order, fixed by length alone:
 *
 *   16 lanes; lane j sums the products of columns c = j, j+16, j+32, ... in that order, each product
 *   rounded, then added (no contraction); columns past the end count as a product of +0.0. Then
 *   lanes j += j+8 (j < 8), j += j+4, j += j+2, j += j+1; lane 0 is the result.
 *
 * So row blocking, token tiles, chunk size, threads and ISA never change a bit. exp, tanh and sigmoid
 * are our own polynomials, the same on every ISA; libm is not called on the model path.
 *
 * Kernels take a range, touch caller memory only, never fail, never allocate; disjoint ranges may run
 * in parallel. Pointers need the natural alignment of their type only, and do not overlap unless said. */
#ifndef SL_KERNELS_KERNELS_H
#define SL_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include "kernels/mat.h"

/* CPU features; sl_cpu_detect() reads them once and honours SLUICE_ISA=c|avx2|avx512|neon (a cap,
 * so that tests reach every rung). */
enum {
    SL_CPU_AVX2 = 1u << 0,   /* with FMA, F16C, BMI2 */
    SL_CPU_AVX512 = 1u << 1, /* F, BW, DQ, VL */
    SL_CPU_AVX512VNNI = 1u << 2,
    SL_CPU_AVX512VBMI = 1u << 3,
    SL_CPU_NEON = 1u << 8,
    SL_CPU_NEONDOT = 1u << 9
};
unsigned sl_cpu_detect(void);
/* "avx512+vnni+vbmi", "avx2", "neon+dot", "c": for reports. Static string. */
const char *sl_cpu_name(unsigned cpu);
/* Masks that take different paths on a machine with `cpu`, the C reference (0) first;
 * returns how many. What tests and benchmarks walk through. */
enum { SL_CPU_RUNGS = 4 };
int sl_cpu_rungs(unsigned cpu, unsigned rungs[SL_CPU_RUNGS]);

struct sl_mm {
    const float *A, *B;
    float *C;
    size_t si, sk, ldb, ldc;
    int m, n, depth;
    bool add;
};
struct sl_kda_rows;
struct sl_attend;

struct sl_kernels {
    unsigned cpu;

    /* y[t*ldy + r] = sum_c W[r][c] * x[t*ldx + c]   for row0 <= r < row1, 0 <= t < n_tok
     *   W    any plain, trunk or expert format, decoded exactly to f32
     *   x    f32 [n_tok][ldx], y f32 [n_tok][ldy]; only rows [row0, row1) of y are written
     * Equality: bits equal to _c; for one token equal to the same token in any batch. */
    void (*mul)(const struct sl_mat *w, int row0, int row1, const float *x, size_t ldx, int n_tok,
                float *y, size_t ldy);

    float (*dot)(const float *a, const float *b, int n); /* the order above */

    /* y may be x. exp(-inf) = 0, error under 1 ulp; sigmoid = 1/(1+exp(-x)), under 2.5; tanh under
     * 1.4, relative near 0 too; silu = x*sigmoid(x), silu(-inf) = -0. Bounds: tests/kernels. */
    void (*exp)(float *y, const float *x, int n);
    void (*sigmoid)(float *y, const float *x, int n);
    void (*tanh)(float *y, const float *x, int n);
    void (*silu)(float *y, const float *x, int n);

    /* spec 3.5: y = beta*tanh(g/beta)*sigmoid(g) * lin*tanh(u/lin); lin <= 0: u is not capped */
    void (*situ)(float *y, const float *g, const float *u, int n, float beta, float lin);

    /* spec 3.0: y = x / sqrt(mean(x^2) + eps) * w; w may be NULL (ones); y may be x */
    void (*rmsnorm)(float *y, const float *x, const float *w, int n, float eps);

    /* y[i] += a * x[i] (product rounded, then added) */
    void (*axpy)(float *y, float a, const float *x, int n);
    void (*add)(float *y, const float *a, const float *b, int n);  /* y = a + b, y may be either */
    void (*mulv)(float *y, const float *a, const float *b, int n); /* y = a * b, y may be either */

    /* spec 3.3 step 2 for channels [0, n): y[c] = silu(sum_j taps[c*k + j] * z_j[c]), j ascending,
     * z_0..z_{k-2} = hist [k-1][ldh] oldest first, z_{k-1} = x; k <= 8. hist is not changed. */
    void (*conv)(float *y, const float *taps, const float *hist, size_t ldh, const float *x, int n,
                 int k);

    /* spec 3.3 step 6, one head: S [d][d] f32 (key channel, value channel), updated in place;
     * alpha = exp(g) per key channel; q already scaled; o [d] is written. Sums over key channels in
     * ascending order, value channels are the lanes. */
    void (*kda_step)(float *S, const float *q, const float *k, const float *v, const float *alpha,
                     float beta, float *o, int d);

    /* y[j] = sum_s p[s] * v[s*ldv + j], s ascending, product rounded then added; j < n. */
    void (*weighted_rows)(float *y, const float *p, const float *v, size_t ldv, int n_rows, int n);

    /* In place: p = softmax(x * scale) over n entries: maximum, exp, sum in the dot order, divide. */
    void (*softmax)(float *x, int n, float scale);

    /* ---- the fast path's attention; sums here fuse product and addition (fmaf), in an order that shape
     * alone fixes, so every ISA has the bits of _c */

    /* The product of `mul` for many tokens, its sums in another order: from 0 on, columns ascending, fused.
     * Equality: bits equal to _c; for one token equal to the same token in any batch. */
    void (*mul_fused)(const struct sl_mat *w, int row0, int row1, const float *x, size_t ldx,
                      int n_tok, float *y, size_t ldy);

    /* Columns [0, n) of rows [row0, row1) to f32, exact: out[(r - row0)*ldo + c]. ldo is at least n
     * rounded up to 32, and columns up to there may be written. */
    void (*decode)(const struct sl_mat *w, int row0, int row1, int n, float *out, size_t ldo);

    /* C[i*ldc + j] = (add ? C[i*ldc + j] : 0) + sum_k A[i*si + k*sk] * B[k*ldb + j], k ascending from
     * the left term on, fused; i < m, j < n, k < depth. C overlaps neither. */
    void (*mm)(const struct sl_mm *p);

    /* Rows of an open KDA tile and its end; kernels/kda_tile.h. */
    void (*kda_rows)(const struct sl_kda_rows *p);
    void (*kda_commit)(float *S, const float *tile, int n, int d, float *scratch);

    /* Attention of a few queries over positions that share keys; kernels/attend.h. */
    void (*attend)(const struct sl_attend *p, const float *keys, const float *values, int n_pos);
};

/* Fills k for a feature mask: the reference first, better paths overwrite slots. */
void sl_kernels_init(struct sl_kernels *k, unsigned cpu);

/* Decodes row r of any format into out[cols], exact f32: the scalar definition of each format. */
void sl_mat_decode_row(const struct sl_mat *w, int row, float *out);

#endif
