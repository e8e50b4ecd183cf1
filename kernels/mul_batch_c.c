/* Batch products (mul_batch.h): the reference, and which machine takes which variant.
 *
 * The reference decodes a block once for TOKENS tokens. Its q is int16 in the order of the format's codes. */
#include "kernels/mul_batch.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include "kernels/a8_row.h"
#include "kernels/batch_pack.h"
#include "kernels/kernels.h"

enum { B = SL_T_BLOCK, TOKENS = 8 };

static void pack_c(enum sl_act_order order, const float *x, int cols, int8_t *q, float *scale)
{
    const int nb = sl_t8_blocks(cols);
    assert(order != SL_ACT_NONE && cols >= 0);
    for (int b = 0; b < nb; b++) {
        const int n = cols - b * B < B ? cols - b * B : B;
        int16_t v[B], placed[B];
        scale[b] = sl_batch_quantize(x + (size_t)b * B, n, v);
        for (int i = 0; i < B; i++) placed[i] = v[sl_a8_column(order, i)];
        memcpy(q + (size_t)b * sizeof placed, placed, sizeof placed);
    }
}

static void mul_c(const struct sl_mat *w, int row0, int row1, const struct sl_batch_x *x, float *y,
                  size_t ldy)
{
    assert(row0 >= 0 && row0 <= row1 && row1 <= w->rows && x->cols == w->cols);
    assert(x->order != SL_ACT_NONE && x->order == sl_act_order_of(w->fmt));
    const int nb = sl_t8_blocks(w->cols);
    const size_t token = sl_batch_bytes(w->cols);
    for (int r = row0; r < row1; r++) {
        const struct sl_a8_row row = sl_a8_row_at(w, r);
        for (int t0 = 0; t0 < x->n_tok; t0 += TOKENS) {
            const int nt = x->n_tok - t0 < TOKENS ? x->n_tok - t0 : TOKENS;
            float sum[TOKENS] = {0};
            for (int b = 0; b < nb; b++) {
                const float ws = sl_a8_scale(&row, b);
                int32_t code[B];
                for (int i = 0; i < B; i++)
                    code[i] = sl_a8_code(&row, b, sl_a8_column(x->order, i));
                for (int t = 0; t < nt; t++) {
                    const size_t tok = (size_t)(t0 + t);
                    int16_t v[B];
                    int32_t d = 0;
                    memcpy(v, x->q + tok * token + (size_t)b * sizeof v, sizeof v);
                    for (int i = 0; i < B; i++) d += code[i] * v[i];
                    const float f = ws * x->scale[tok * (size_t)nb + (size_t)b];
                    sum[t] = fmaf((float)d, f, sum[t]);
                }
            }
            for (int t = 0; t < nt; t++) y[(size_t)(t0 + t) * ldy + (size_t)r] = row.row * sum[t];
        }
    }
}

const struct sl_mul_batch sl_mul_batch_c = {"c", pack_c, mul_c};

/* The variants of kernels/x86 and kernels/arm; declared here because they have no other caller. */
extern const struct sl_mul_batch sl_mul_batch_avx2, sl_mul_batch_avx512vnni, sl_mul_batch_neondot;

const struct sl_mul_batch *sl_mul_batch_for(unsigned cpu)
{
    const struct sl_mul_batch *k = &sl_mul_batch_c;
#if defined(__x86_64__)
    if (cpu & SL_CPU_AVX2) k = &sl_mul_batch_avx2;
    if (cpu & SL_CPU_AVX512 && cpu & SL_CPU_AVX512VNNI) k = &sl_mul_batch_avx512vnni;
#elif defined(__aarch64__)
    if (cpu & SL_CPU_NEONDOT) k = &sl_mul_batch_neondot;
#else
    (void)cpu;
#endif
    return k;
}
