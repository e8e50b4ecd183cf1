/* One row of a packed matrix for the integer products: where its codes lie, and the scale of each
 * block. Shared by the references and the ISA variants of
 * act.h and mul_batch.h. */
#ifndef SL_KERNELS_A8_ROW_H
#define SL_KERNELS_A8_ROW_H

#include "kernels/act.h"
#include "kernels/block_m4.h"
#include "kernels/block_t4.h"
#include "kernels/block_t6.h"
#include "kernels/decode_w.h"

/* Twice the e2m1 values. */
static const int8_t sl_a8_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* How a format's blocks are decoded and scaled; a constant where it is used. */
enum sl_a8_kind { K_T8, K_T6, K_T4, K_MX, K_M4, K_W2, K_W2_PLAIN, K_W1 };

static inline enum sl_a8_kind sl_a8_kind_of(const struct sl_mat *w)
{
    switch (w->fmt) {
    case SL_FMT_T8:
        return K_T8;
    case SL_FMT_T6:
        return K_T6;
    case SL_FMT_T4:
        return K_T4;
    case SL_FMT_MXFP4:
        return K_MX;
    case SL_FMT_M4:
        return K_M4;
    case SL_FMT_W16:
        return K_W1;
    default:
        return w->fmt == SL_FMT_W36 || (w->fmt == SL_FMT_P36 && w->fine_codes) ? K_W2_PLAIN : K_W2;
    }
}

/* Calls f(kind, ...) with the kind of w as a constant. */
#define SL_A8_PER_KIND(f, w, ...)                                                                  \
    do {                                                                                           \
        switch (sl_a8_kind_of(w)) {                                                                \
        case K_T8:                                                                                 \
            f(K_T8, w, __VA_ARGS__);                                                               \
            break;                                                                                 \
        case K_T6:                                                                                 \
            f(K_T6, w, __VA_ARGS__);                                                               \
            break;                                                                                 \
        case K_T4:                                                                                 \
            f(K_T4, w, __VA_ARGS__);                                                               \
            break;                                                                                 \
        case K_MX:                                                                                 \
            f(K_MX, w, __VA_ARGS__);                                                               \
            break;                                                                                 \
        case K_M4:                                                                                 \
            f(K_M4, w, __VA_ARGS__);                                                               \
            break;                                                                                 \
        case K_W2:                                                                                 \
            f(K_W2, w, __VA_ARGS__);                                                               \
            break;                                                                                 \
        case K_W2_PLAIN:                                                                           \
            f(K_W2_PLAIN, w, __VA_ARGS__);                                                         \
            break;                                                                                 \
        case K_W1:                                                                                 \
            f(K_W1, w, __VA_ARGS__);                                                               \
            break;                                                                                 \
        }                                                                                          \
    } while (0)

#define SL_A8_QUADS 8 /* of a block: partial sums that never meet before the end of a row */

struct sl_a8_row {
    enum sl_fmt fmt;
    const uint8_t *codes, *high, *scales;
    uint8_t e;         /* m4 */
    struct sl_w_row w; /* trellis formats */
    float row;         /* factor of the whole sum; 1 but for trellis formats */
};

static inline struct sl_a8_row sl_a8_row_at(const struct sl_mat *w, int r)
{
    struct sl_a8_row x = {.fmt = w->fmt, .row = 1.0f};
    const size_t row = (size_t)r, nb = (size_t)sl_t8_blocks(w->cols);
    const size_t code_bytes = w->fmt == SL_FMT_T8   ? SL_T_BLOCK
                              : w->fmt == SL_FMT_T6 ? SL_T6_LOW + SL_T6_HIGH
                                                    : SL_T4_CODES;
    const uint8_t *at = w->codes + row * nb * (code_bytes + 2); /* trunk formats */
    switch (w->fmt) {
    case SL_FMT_T8:
        x.codes = at;
        x.scales = at + nb * SL_T_BLOCK;
        break;
    case SL_FMT_T6:
        x.codes = at;
        x.high = at + nb * SL_T6_LOW;
        x.scales = x.high + nb * SL_T6_HIGH;
        break;
    case SL_FMT_T4:
        x.codes = at;
        x.scales = at + nb * SL_T4_CODES;
        break;
    case SL_FMT_MXFP4:
        x.codes = w->codes + row * nb * 16;
        x.scales = w->scales + row * nb;
        break;
    case SL_FMT_M4:
        x.codes = w->codes + row * nb * 16;
        x.scales = w->scales + row * ((nb + 1) / 2);
        x.e = w->row_scales[r];
        break;
    default:
        x.w = sl_w_row_at(w, r);
        x.row = x.w.row;
        break;
    }
    return x;
}

static inline float sl_a8_scale(const struct sl_a8_row *r, int b)
{
    switch (r->fmt) {
    case SL_FMT_T8:
    case SL_FMT_T6:
    case SL_FMT_T4: {
        const uint8_t *p = r->scales + (size_t)b * 2;
        return sl_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
    }
    case SL_FMT_MXFP4:
        return 0.5f * sl_e8m0(r->scales[b]);
    case SL_FMT_M4:
        return 0.5f * sl_e8m0(sl_m4_scale(r->scales, r->e, b));
    default:
        return (float)sl_w_scale(sl_w_nibble(r->w.scales, b));
    }
}

/* Column of a block that is stored at place i. */
static inline int sl_a8_column(enum sl_act_order order, int i)
{
    switch (order) {
    case SL_ACT_PAIRS:
        return i < 16 ? 2 * i : 2 * (i - 16) + 1;
    case SL_ACT_ROT4:
        return 4 * (i & 7) + (i >> 3);
    case SL_ACT_ROT8:
        return 8 * (i & 3) + (i >> 2);
    default:
        return i;
    }
}

/* Integer of column c of block b. */
static inline int sl_a8_code(const struct sl_a8_row *r, int b, int c)
{
    const uint8_t *p = r->codes + (size_t)b * 16;
    switch (r->fmt) {
    case SL_FMT_T8:
        return (int8_t)r->codes[(size_t)b * SL_T_BLOCK + (size_t)c];
    case SL_FMT_T6:
        return sl_t6_code(p, r->high + (size_t)b * SL_T6_HIGH, c) - 32;
    case SL_FMT_T4:
        return sl_t4_value(p, c);
    case SL_FMT_MXFP4:
    case SL_FMT_M4:
        return sl_a8_e2m1[p[c >> 1] >> (c & 1) * 4 & 15];
    default:
        break;
    }
    const int unit = 64 / r->w.bits, at = b * SL_T_BLOCK + c;
    const uint8_t *bytes = r->w.words + (size_t)(at / unit) * 8;
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) word |= (uint64_t)bytes[i] << 8 * i;
    unsigned index = sl_trellis_window(word, at % unit, r->w.bits);
    if (r->w.plain) index |= (r->w.plain[(size_t)b * 4 + (size_t)(c >> 3)] >> (c & 7) & 1u) << 6;
    return (int8_t)r->w.table[index];
}

/* lane [2][SL_A8_QUADS] */
static inline float sl_a8_tree(const float *lane)
{
    float v[SL_A8_QUADS];
    for (int j = 0; j < SL_A8_QUADS; j++) v[j] = lane[j] + lane[SL_A8_QUADS + j];
    const float a = v[0] + v[4], b = v[1] + v[5], c = v[2] + v[6], d = v[3] + v[7];
    return (a + c) + (b + d);
}

#endif
