/* Random packed matrices for the kernel tests. */
#include "tests/kernels/packed_matrix.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "kernels/half.h"
#include "tests/kernels/kernel_check.h"

static uint8_t *next(uint8_t **at, uint64_t bytes)
{
    uint8_t *p = *at;
    *at += bytes;
    return p;
}

/* f16 of an ordinary size, either sign. */
static void put_f16(uint8_t *p)
{
    p[0] = (uint8_t)kc_rnd();
    p[1] = (uint8_t)(0x10 + kc_below(0x20) + (kc_below(2) ? 0x80 : 0));
}

struct kp_matrix kp_make(enum sl_fmt fmt, int rows, int cols, bool ends)
{
    struct sl_planes p, f;
    assert_true(sl_fmt_planes(fmt, (uint64_t)rows, (uint64_t)cols, &p));
    sl_fmt_fine_planes(fmt, (uint64_t)rows, (uint64_t)cols, &f);
    const size_t n = p.codes + p.scales + p.row_scales + p.table + f.codes + f.table;
    struct kp_matrix x = {.m = {.fmt = fmt, .rows = rows, .cols = cols}, .bytes = kc_bytes(n)};
    for (size_t i = 0; i < n; i++) x.bytes[i] = (uint8_t)kc_rnd();
    uint8_t *at = x.bytes, *codes = next(&at, p.codes), *scales = next(&at, p.scales);
    uint8_t *row_scales = next(&at, p.row_scales), *table = next(&at, p.table);
    uint8_t *fine_codes = next(&at, f.codes), *fine_table = next(&at, f.table);
    const uint64_t row = sl_fmt_row_bytes(fmt, (uint64_t)cols);
    const size_t nb = ((size_t)cols + 31) / 32;
    for (uint64_t i = 0; row && i < p.codes; i++)
        if (ends) codes[i] = fmt == SL_FMT_T8 ? (kc_below(2) ? 127 : 128) : kc_below(2) ? 255 : 0;
    for (uint64_t r = 0; row && r < (uint64_t)rows; r++)
        for (size_t b = 0; b < nb; b++) put_f16(codes + r * row + row - 2 * nb + 2 * b);
    for (uint64_t i = 0; ends && i < p.table; i++) table[i] = kc_below(2) ? 127 : 128;
    for (uint64_t i = 0; ends && i < f.table; i++) fine_table[i] = kc_below(2) ? 127 : 128;
    for (uint64_t i = 0; fmt == SL_FMT_MXFP4 && i < p.scales; i++)
        scales[i] = (uint8_t)(ends ? kc_below(4) : 100 + kc_below(40)); /* 2^-127 and its like */
    for (uint64_t i = 0; i < p.row_scales; i += fmt == SL_FMT_M4 ? 1 : 2) {
        if (fmt == SL_FMT_M4)
            row_scales[i] = (uint8_t)(ends ? 15 + kc_below(4) : 100 + kc_below(40));
        else
            put_f16(row_scales + i);
    }
    x.m.codes = codes;
    x.m.scales = scales;
    x.m.row_scales = row_scales;
    x.m.table = table;
    if (f.codes && kc_below(2)) {
        x.m.fine_codes = fine_codes;
        x.m.fine_table = fine_table;
    }
    return x;
}

int kp_column(enum sl_act_order order, int i)
{
    for (int c = 0; c < 32; c++) {
        int at = c;
        if (order == SL_ACT_PAIRS) at = c / 2 + (c % 2 ? 16 : 0);
        if (order == SL_ACT_ROT4) at = 8 * (c % 4) + c / 4;
        if (order == SL_ACT_ROT8) at = 4 * (c % 8) + c / 8;
        if (at == i) return c;
    }
    return -1;
}

double kp_block_scale(const struct sl_mat *w, int r, int b)
{
    const size_t nb = ((size_t)w->cols + 31) / 32, row = (size_t)r, k = (size_t)b;
    const uint64_t bytes = sl_fmt_row_bytes(w->fmt, (uint64_t)w->cols);
    if (bytes) {
        const uint8_t *p = w->codes + (row + 1) * bytes - 2 * nb + 2 * k;
        return (double)sl_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
    }
    if (w->fmt == SL_FMT_MXFP4) return ldexp(1, w->scales[row * nb + k] - 128);
    const unsigned pair = w->scales[row * ((nb + 1) / 2) + k / 2],
                   n = k % 2 ? pair >> 4 : pair & 15;
    if (w->fmt == SL_FMT_M4) return ldexp(1, w->row_scales[r] - (int)n - 128);
    return (4.0 + n % 4) * (1 << n / 4);
}

double kp_row_scale(const struct sl_mat *w, int r)
{
    if (!sl_fmt_is_trellis(w->fmt)) return 1;
    const uint8_t *p = w->row_scales + (size_t)r * 2;
    return (double)sl_f16_to_f32((uint16_t)(p[0] | p[1] << 8)) * 0x1p-12;
}
