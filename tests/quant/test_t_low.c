/* t6 and t4 rows: codes that are the nearest for the stored scale, scales no worse than the plain one,
 * padding, refusals beside controls. Layouts are read a second time here. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/block_t4.h"
#include "kernels/half.h"
#include "quant/t_low.h"
#include "tests/kernels/kernel_check.h"

static const enum sl_fmt fmts[] = {SL_FMT_T6, SL_FMT_T4};

static unsigned bits_at(const uint8_t *p, size_t at, unsigned n)
{
    unsigned v = 0;
    for (unsigned i = 0; i < n; i++) v |= (p[(at + i) / 8] >> (at + i) % 8 & 1u) << i;
    return v;
}

/* Code of column c, from the pictures in the block headers. */
static unsigned code_at(enum sl_fmt fmt, const uint8_t *row, size_t nb, size_t c)
{
    const size_t b = c / 32, j = c % 32;
    unsigned low = bits_at(row + b * 16 + j % 16, j < 16 ? 0 : 4, 4);
    if (fmt == SL_FMT_T4) return low;
    return low | bits_at(row + nb * 16 + b * 8 + j % 8, j / 8 * 2, 2) << 4;
}

static double value_of(enum sl_fmt fmt, unsigned code)
{
    return fmt == SL_FMT_T6 ? (double)code - 32 : (double)sl_t4_table[code];
}

static double nearest(enum sl_fmt fmt, double x, double scale)
{
    double best = INFINITY;
    for (unsigned c = 0; c < (fmt == SL_FMT_T6 ? 64u : 16u); c++)
        best = fmin(best, fabs(x - value_of(fmt, c) * scale));
    return best;
}

/* Error with the largest magnitude on the longer end of the table and nothing more. */
static double plain_error(enum sl_fmt fmt, const float *x, int n)
{
    double top = 0, e = 0;
    for (int i = 0; i < n; i++)
        if (fabs((double)x[i]) > fabs(top)) top = (double)x[i];
    double scale = top / (fmt == SL_FMT_T6 ? -32.0 : -127.0);
    uint16_t h = sl_f32_to_f16((float)fabs(scale));
    scale = copysign((double)sl_f16_to_f32(h), scale);
    for (int i = 0; i < n; i++) {
        double d = scale == 0 ? (double)x[i] : nearest(fmt, (double)x[i], scale);
        e += d * d;
    }
    return e;
}

static void check_row(enum sl_fmt fmt, const float *x, int cols)
{
    const size_t nb = ((size_t)cols + 31) / 32, block = fmt == SL_FMT_T6 ? 24 : 16;
    const size_t bytes = sl_fmt_row_bytes(fmt, (uint64_t)cols);
    assert_int_equal(bytes, nb * (block + 2));
    uint8_t *row = kc_bytes(bytes);
    float *back = kc_floats((size_t)cols);
    assert_int_equal(sl_t_low_encode_f32(fmt, x, cols, row), -1);
    const struct sl_mat w = {.fmt = fmt, .rows = 1, .cols = cols, .codes = row};
    sl_mat_decode_row(&w, 0, back);
    for (size_t b = 0; b < nb; b++) {
        const uint8_t *h = row + nb * block + 2 * b;
        const double scale = (double)sl_f16_to_f32((uint16_t)(h[0] | h[1] << 8));
        const int c0 = (int)b * 32, n = cols - c0 < 32 ? cols - c0 : 32;
        double e = 0;
        assert_true(isfinite(scale));
        for (int i = 0; i < 32; i++) {
            unsigned code = code_at(fmt, row, nb, (size_t)(c0 + i));
            if (i >= n || scale == 0) assert_int_equal(code, fmt == SL_FMT_T6 ? 32 : 8);
            if (i >= n) continue;
            assert_true((double)back[c0 + i] == value_of(fmt, code) * scale);
            double d = fabs((double)x[c0 + i] - (double)back[c0 + i]);
            if (scale != 0)
                assert_true(d <= nearest(fmt, (double)x[c0 + i], scale) + 1e-5 * fabs(scale));
            e += d * d;
        }
        assert_true(e <= plain_error(fmt, x + c0, n) * (1 + 1e-4) + 1e-30);
    }
    kc_free_bytes(row, "row");
    kc_free(back, "decoded row");
}

static void widths_and_sizes(void **s)
{
    (void)s;
    for (int f = 0; f < 2; f++)
        for (int cols = 1; cols < 300; cols += cols < 70 ? 1 : 41) {
            float *x = kc_floats((size_t)cols);
            for (int e = -40; e <= 20; e += 3) {
                for (int i = 0; i < cols; i++) x[i] = ldexpf(kc_float(KC_TAME), e);
                check_row(fmts[f], x, cols);
            }
            kc_free(x, "x");
        }
}

static void hard_blocks(void **s)
{
    (void)s;
    float x[64];
    for (int f = 0; f < 2; f++) {
        for (int at = 0; at < 64; at++) {
            for (int i = 0; i < 64; i++) x[i] = kc_float(KC_TAME) * 1e-3f;
            x[at] = at % 2 ? -7.0f : 7.0f;
            check_row(fmts[f], x, 64);
            memset(x, 0, sizeof x);
            check_row(fmts[f], x, 64);
            x[at] = 0x1.234p-3f;
            check_row(fmts[f], x, 64);
            for (int i = 0; i < 64; i++) x[i] = (float)(at + 1) * (at % 2 ? 0.37f : -0.37f);
            check_row(fmts[f], x, 64);
            for (int i = 0; i < 64; i++) x[i] = ldexpf((float)(kc_rnd() & 0xffffff), -149);
            check_row(fmts[f], x, 64);
        }
        for (int i = 0; i < 64; i++) x[i] = i % 2 ? SL_T_LOW_MAX : -SL_T_LOW_MAX;
        check_row(fmts[f], x, 64);
    }
}

/* A row that is codes times a scale, both ends used, comes back exactly. */
static void exact_rows(void **s)
{
    (void)s;
    static const uint16_t scales[] = {0x0401, 0x1234, 0x9234, 0x3c00, 0xbc00};
    for (int f = 0; f < 2; f++)
        for (size_t k = 0; k < sizeof scales / sizeof scales[0]; k++) {
            float x[32], back[32];
            uint8_t row[26];
            for (unsigned i = 0; i < 32; i++)
                x[i] = (float)value_of(fmts[f], fmts[f] == SL_FMT_T6 ? 2 * i + (i > 15) : i % 16) *
                       sl_f16_to_f32(scales[k]);
            assert_int_equal(sl_t_low_encode_f32(fmts[f], x, 32, row), -1);
            const struct sl_mat w = {.fmt = fmts[f], .rows = 1, .cols = 32, .codes = row};
            sl_mat_decode_row(&w, 0, back);
            for (int i = 0; i < 32; i++) assert_true(back[i] == x[i]);
        }
}

static void bf16_rows(void **s)
{
    (void)s;
    enum { COLS = 100 };
    uint8_t *src = kc_bytes(2 * COLS), *a = kc_bytes(26 * 4), *b = kc_bytes(26 * 4);
    float x[COLS];
    for (int f = 0; f < 2; f++) {
        for (int i = 0; i < COLS; i++) {
            uint16_t h = sl_f32_to_bf16(kc_float(KC_TAME));
            src[2 * i] = (uint8_t)h;
            src[2 * i + 1] = (uint8_t)(h >> 8);
            x[i] = sl_bf16_to_f32(h);
        }
        assert_int_equal(sl_t_low_encode_bf16(fmts[f], src, COLS, a), -1);
        assert_int_equal(sl_t_low_encode_f32(fmts[f], x, COLS, b), -1);
        assert_memory_equal(a, b, sl_fmt_row_bytes(fmts[f], COLS));
    }
    kc_free_bytes(src, "bf16");
    kc_free_bytes(a, "a");
    kc_free_bytes(b, "b");
}

static void refusals(void **s)
{
    (void)s;
    enum { COLS = 77 };
    const float bad[] = {NAN, INFINITY, -INFINITY, SL_T_LOW_MAX * 1.01f, -SL_T_LOW_MAX * 1.01f};
    float x[COLS];
    uint8_t row[26 * 3];
    for (int f = 0; f < 2; f++)
        for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
            int at = kc_below(COLS);
            kc_fill(x, COLS, KC_TAME);
            assert_int_equal(sl_t_low_encode_f32(fmts[f], x, COLS, row), -1);
            x[at] = bad[k];
            assert_int_equal(sl_t_low_encode_f32(fmts[f], x, COLS, row), at);
        }
}

/* About normal numbers: 2 % error at 6 bits, 8 % at 4, and less than with plain scales. */
static void errors(void **s)
{
    (void)s;
    enum { COLS = 32 * 200 };
    float *x = kc_floats(COLS), *back = kc_floats(COLS);
    for (int i = 0; i < COLS; i++) {
        x[i] = 0;
        for (int k = 0; k < 12; k++) x[i] += 0.01f * kc_float(KC_TAME);
    }
    for (int f = 0; f < 2; f++) {
        uint8_t *row = kc_bytes(sl_fmt_row_bytes(fmts[f], COLS));
        assert_int_equal(sl_t_low_encode_f32(fmts[f], x, COLS, row), -1);
        const struct sl_mat w = {.fmt = fmts[f], .rows = 1, .cols = COLS, .codes = row};
        sl_mat_decode_row(&w, 0, back);
        double e = 0, n = 0, plain = 0;
        for (int i = 0; i < COLS; i++) {
            e += ((double)x[i] - (double)back[i]) * ((double)x[i] - (double)back[i]);
            n += (double)x[i] * (double)x[i];
        }
        for (int b = 0; b < COLS; b += 32) plain += plain_error(fmts[f], x + b, 32);
        print_message("%s: relative error %.4f, %.4f with plain scales\n", sl_fmt_name(fmts[f]),
                      sqrt(e / n), sqrt(plain / n));
        assert_true(sqrt(e / n) < (f ? 0.085 : 0.021) && e < plain);
        kc_free_bytes(row, "row");
    }
    kc_free(x, "x");
    kc_free(back, "back");
}

int main(int argc, char **argv)
{
    kc_start(argc, argv, "test_t_low");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widths_and_sizes), cmocka_unit_test(hard_blocks),
        cmocka_unit_test(exact_rows),       cmocka_unit_test(bf16_rows),
        cmocka_unit_test(refusals),         cmocka_unit_test(errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
