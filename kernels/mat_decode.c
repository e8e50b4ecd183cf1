/* Rows of packed matrices to f32: the scalar definition of every format.
 *
 * Column segments are what the reference product asks for, so that it needs no memory of its own. A
 * segment starts on a multiple of 32 columns, which is a block boundary in every format. */
#include <assert.h>
#include "kernels/block_m4.h"
#include "kernels/block_t4.h"
#include "kernels/block_t6.h"
#include "kernels/decode_w.h"
#include "kernels/half.h"
#include "kernels/reference.h"

static uint16_t load16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static void decode_t8(const uint8_t *row, int cols, int col0, int n, float *out)
{
    const uint8_t *scales = row + (size_t)sl_t8_blocks(cols) * SL_T_BLOCK;
    for (int i = 0; i < n; i++) {
        int c = col0 + i;
        float s = sl_f16_to_f32(load16(scales + (size_t)(c / SL_T_BLOCK) * 2));
        out[i] = (float)(int8_t)row[c] * s;
    }
}

static void decode_t6(const uint8_t *row, int cols, int col0, int n, float *out)
{
    const size_t blocks = (size_t)sl_t8_blocks(cols);
    for (int i = 0; i < n; i++) {
        size_t c = (size_t)(col0 + i), b = c / SL_T_BLOCK;
        int code = sl_t6_code(row + b * SL_T6_LOW, row + blocks * SL_T6_LOW + b * SL_T6_HIGH,
                              (int)(c % SL_T_BLOCK));
        float s = sl_f16_to_f32(load16(row + blocks * (SL_T6_LOW + SL_T6_HIGH) + b * 2));
        out[i] = (float)(code - 32) * s;
    }
}

static void decode_t4(const uint8_t *row, int cols, int col0, int n, float *out)
{
    const size_t blocks = (size_t)sl_t8_blocks(cols);
    for (int i = 0; i < n; i++) {
        size_t c = (size_t)(col0 + i), b = c / SL_T_BLOCK;
        float s = sl_f16_to_f32(load16(row + blocks * SL_T4_CODES + b * 2));
        out[i] = (float)sl_t4_value(row + b * SL_T4_CODES, (int)(c % SL_T_BLOCK)) * s;
    }
}

static void decode_mx(const struct sl_mat *w, int row, int col0, int n, float *out)
{
    size_t blocks = (size_t)(w->cols / SL_MX_BLOCK);
    const uint8_t *codes = w->codes + (size_t)row * (size_t)(w->cols / 2);
    const uint8_t *scales =
        w->scales + (size_t)row * (w->fmt == SL_FMT_M4 ? (blocks + 1) / 2 : blocks);
    for (int i = 0; i < n; i++) {
        int c = col0 + i, b = c / SL_MX_BLOCK;
        uint8_t s = w->fmt == SL_FMT_M4 ? sl_m4_scale(scales, w->row_scales[row], b) : scales[b];
        out[i] = sl_e2m1[codes[c >> 1] >> (c & 1) * 4 & 15] * sl_e8m0(s);
    }
}

static uint64_t load_bytes(const uint8_t *p, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}

/* block_w.h, "w = row * (S * T[index])". */
static void decode_w(const struct sl_mat *w, int row, int col0, int n, float *out)
{
    const struct sl_w_row x = sl_w_row_at(w, row);
    const int unit = 64 / x.bits;
    for (int i = 0; i < n; i += SL_W_BLOCK) {
        const int c = col0 + i, b = c / SL_W_BLOCK, u = c / unit, at = c % unit;
        const int S = sl_w_scale(sl_w_nibble(x.scales, b));
        const uint64_t word = load_bytes(x.words + (size_t)u * 8, 8);
        const uint32_t bits = x.plain ? (uint32_t)load_bytes(x.plain + (size_t)b * 4, 4) : 0;
        for (int j = 0; j < SL_W_BLOCK && i + j < n; j++) {
            unsigned index = sl_trellis_window(word, at + j, x.bits) | (bits >> j & 1) << 6;
            out[i + j] = x.row * (float)(S * (int8_t)x.table[index]);
        }
    }
}

void sl_mat_decode_cols(const struct sl_mat *w, int row, int col0, int n, float *out)
{
    assert(row >= 0 && row < w->rows && col0 >= 0 && col0 % 32 == 0 && n >= 0 &&
           n <= w->cols - col0);
    const uint8_t *p = w->codes;
    if (w->fmt == SL_FMT_MXFP4 || w->fmt == SL_FMT_M4) {
        decode_mx(w, row, col0, n, out);
        return;
    }
    if (sl_fmt_is_trellis(w->fmt)) {
        decode_w(w, row, col0, n, out);
        return;
    }
    p += (size_t)row * sl_fmt_row_bytes(w->fmt, (uint64_t)w->cols);
    switch (w->fmt) {
    case SL_FMT_F32:
        memcpy(out, p + (size_t)col0 * 4, (size_t)n * 4);
        break;
    case SL_FMT_BF16:
        for (int i = 0; i < n; i++) out[i] = sl_bf16_to_f32(load16(p + (size_t)(col0 + i) * 2));
        break;
    case SL_FMT_F16:
        for (int i = 0; i < n; i++) out[i] = sl_f16_to_f32(load16(p + (size_t)(col0 + i) * 2));
        break;
    case SL_FMT_U8:
        for (int i = 0; i < n; i++) out[i] = (float)p[col0 + i];
        break;
    case SL_FMT_T8:
        decode_t8(p, w->cols, col0, n, out);
        break;
    case SL_FMT_T6:
        decode_t6(p, w->cols, col0, n, out);
        break;
    case SL_FMT_T4:
        decode_t4(p, w->cols, col0, n, out);
        break;
    default:
        assert(!"no decoder for this format");
        break;
    }
}

void sl_mat_decode_row(const struct sl_mat *w, int row, float *out)
{
    sl_mat_decode_cols(w, row, 0, w->cols, out);
}

void sl_decode_c(const struct sl_mat *w, int row0, int row1, int n, float *out, size_t ldo)
{
    for (int r = row0; r < row1; r++, out += ldo) sl_mat_decode_cols(w, r, 0, n, out);
}
