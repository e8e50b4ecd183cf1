/* int8 activations: packing, and the reference of the integer products (act.h). */
#include "kernels/act.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/a8_row.h"
#include "kernels/kernels.h"

enum { B = 32 };

enum sl_act_order sl_act_order_of(enum sl_fmt fmt)
{
    switch (fmt) {
    case SL_FMT_T8:
    case SL_FMT_T6:
    case SL_FMT_T4:
        return SL_ACT_NATURAL;
    case SL_FMT_MXFP4:
    case SL_FMT_M4:
        return SL_ACT_PAIRS;
    case SL_FMT_W26:
    case SL_FMT_W36:
    case SL_FMT_P36:
        return SL_ACT_ROT4;
    case SL_FMT_W16:
        return SL_ACT_ROT8;
    default:
        return SL_ACT_NONE;
    }
}

void sl_act_pack(enum sl_act_order order, int planes, const float *x, int cols, int8_t *q,
                 float *scale)
{
    assert(order != SL_ACT_NONE && (planes == 1 || planes == 2) && cols >= 0);
    const int nb = (cols + B - 1) / B;
    int column[B];
    for (int i = 0; i < B; i++) column[i] = sl_a8_column(order, i);
    const size_t plane = (size_t)nb * B;
    memset(q, 0, 2 * (size_t)planes * plane);
    for (int b = 0; b < nb; b++) {
        const float *from = x + (size_t)b * B;
        const int n = cols - b * B < B ? cols - b * B : B;
        int8_t *to = q + (size_t)b * B, *rest = to + 2 * plane;
        float top = 0.0f;
        bool finite = true;
        for (int i = 0; i < n; i++) {
            finite = finite && isfinite(from[i]);
            top = fabsf(from[i]) > top ? fabsf(from[i]) : top;
        }
        scale[b] = finite ? 0.0f : NAN;
        if (!finite || top < 0x1p-100f) continue;
        const float s = top / 127.0f, inv = 127.0f / top;
        scale[b] = planes == 2 ? s / 256.0f : s;
        for (int i = 0; i < B; i++) {
            if (column[i] >= n) continue;
            const float v = from[column[i]], whole = rintf(v * inv);
            to[i] = (int8_t)(int)whole; /* at most 127: inv is rounded once */
            to[plane + (size_t)i] = (int8_t)abs(to[i]);
            if (planes == 1) continue;
            float r = rintf((v - whole * s) * (256.0f * inv));
            r = r > 127.0f ? 127.0f : r < -127.0f ? -127.0f : r;
            rest[i] = (int8_t)(int)r;
            rest[plane + (size_t)i] = (int8_t)abs(rest[i]);
        }
    }
}

void sl_mul_a8_c(const struct sl_mat *w, int row0, int row1, const struct sl_act *x, float *y,
                 size_t ldy)
{
    assert(row0 >= 0 && row0 <= row1 && row1 <= w->rows && x->cols == w->cols);
    assert(x->order != SL_ACT_NONE && x->order == sl_act_order_of(w->fmt));
    const int nb = (w->cols + B - 1) / B;
    const size_t plane = (size_t)nb * B;
    for (int r = row0; r < row1; r++) {
        const struct sl_a8_row row = sl_a8_row_at(w, r);
        for (int t = 0; t < x->n_tok; t++) {
            const int8_t *q = x->q + (size_t)t * (size_t)x->planes * 2 * plane;
            const float *scale = x->scale + (size_t)t * (size_t)nb;
            float lane[2][SL_A8_QUADS] = {0};
            for (int b = 0; b < nb; b++) {
                const float f = sl_a8_scale(&row, b) * scale[b];
                for (int j = 0; j < SL_A8_QUADS; j++) {
                    int32_t d = 0, rest = 0;
                    for (int i = 4 * j; i < 4 * j + 4; i++) {
                        const size_t at = (size_t)b * B + (size_t)i;
                        const int code = sl_a8_code(&row, b, sl_a8_column(x->order, i));
                        d += code * q[at];
                        if (x->planes == 2) rest += code * q[2 * plane + at];
                    }
                    if (x->planes == 2) d = 256 * d + rest;
                    lane[b & 1][j] = fmaf((float)d, f, lane[b & 1][j]);
                }
            }
            y[(size_t)t * ldy + (size_t)r] = row.row * sl_a8_tree(lane[0]);
        }
    }
}

void sl_act_pack_avx2(enum sl_act_order, int, const float *, int, int8_t *, float *);

sl_act_pack_fn sl_act_pack_for(unsigned cpu)
{
#if defined(__x86_64__)
    if (cpu & SL_CPU_AVX2) return sl_act_pack_avx2;
#else
    (void)cpu;
#endif
    return sl_act_pack;
}

/* The variants of kernels/x86 and kernels/arm; declared here because they have no other caller. */
void sl_mul_a8_avx2(const struct sl_mat *, int, int, const struct sl_act *, float *, size_t);
void sl_mul_a8_avx512vnni(const struct sl_mat *, int, int, const struct sl_act *, float *, size_t);
void sl_mul_a8_avx512vbmi(const struct sl_mat *, int, int, const struct sl_act *, float *, size_t);
void sl_mul_a8_neon(const struct sl_mat *, int, int, const struct sl_act *, float *, size_t);
void sl_mul_a8_neondot(const struct sl_mat *, int, int, const struct sl_act *, float *, size_t);

sl_mul_a8_fn sl_mul_a8_for(unsigned cpu)
{
    sl_mul_a8_fn f = sl_mul_a8_c;
#if defined(__x86_64__)
    if (cpu & SL_CPU_AVX2) f = sl_mul_a8_avx2;
    if (cpu & SL_CPU_AVX512 && cpu & SL_CPU_AVX512VNNI) f = sl_mul_a8_avx512vnni;
    if (cpu & SL_CPU_AVX512 && cpu & SL_CPU_AVX512VBMI) f = sl_mul_a8_avx512vbmi;
#elif defined(__aarch64__)
    if (cpu & SL_CPU_NEON) f = sl_mul_a8_neon;
    if (cpu & SL_CPU_NEONDOT) f = sl_mul_a8_neondot;
#else
    (void)cpu;
#endif
    return f;
}
