/* t8 rows: error bounds from the format alone, refusals, and codes that never leave [-127, 127].
 *
 * The largest error of a code is half a step and the step is at most 16 f16 neighbours above the
 * smallest allowed one; the squared error must not exceed that of the plain choice max/127. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/block_t8.h"
#include "kernels/half.h"
#include "kernels/kernels.h"
#include "quant/t8.h"
#include "tests/kernels/kernel_check.h"

/* Squared error of a block under a given scale, nearest codes, in double precision. */
static double error_with(const float *x, int n, double scale)
{
    double e = 0;
    for (int i = 0; i < n; i++) {
        double d = x[i] - rint(x[i] / scale) * scale;
        e += d * d;
    }
    return e;
}

/* Smallest f16 number of at least max/127. */
static double plain_scale(double max)
{
    uint16_t h = sl_f32_to_f16((float)(max / 127));
    while (sl_f16_to_f32(h) * 127.0 < max) h++;
    return sl_f16_to_f32(h);
}

static void check_row(const float *x, int cols)
{
    int nb = sl_t8_blocks(cols);
    size_t bytes = sl_fmt_row_bytes(SL_FMT_T8, (uint64_t)cols);
    uint8_t *row = kc_bytes(bytes);
    float *back = kc_floats((size_t)cols);
    assert_int_equal(sl_t8_encode_f32(x, cols, row), -1);
    const struct sl_mat w = {.fmt = SL_FMT_T8, .rows = 1, .cols = cols, .codes = row};
    sl_mat_decode_row(&w, 0, back);
    for (int i = 0; i < nb * 32; i++) {
        assert_true((int8_t)row[i] != -128);
        if (i >= cols) assert_int_equal(row[i], 0); /* padding */
    }
    for (int b = 0; b < nb; b++) {
        int c0 = b * 32, n = cols - c0 < 32 ? cols - c0 : 32, any = 0;
        uint16_t h = (uint16_t)(row[nb * 32 + 2 * b] | row[nb * 32 + 2 * b + 1] << 8);
        double scale = sl_f16_to_f32(h), max = 0, e = 0;
        assert_true(h < 0x7c00); /* finite, not negative */
        for (int i = 0; i < n; i++) {
            max = fmax(max, fabs((double)x[c0 + i]));
            e += ((double)x[c0 + i] - back[c0 + i]) * ((double)x[c0 + i] - back[c0 + i]);
            any |= row[c0 + i];
        }
        assert_int_equal(h == 0, any == 0); /* a zero block has scale 0 and the other way round */
        if (h == 0) {
            assert_true(max <= 0x1p-25); /* zeros, or half of the smallest step */
            continue;
        }
        for (int i = 0; i < n; i++)
            assert_true(fabs((double)x[c0 + i] - back[c0 + i]) <= scale * (0.5 + 1e-5));
        assert_true(scale * 127.5 >= max * (1 - 1e-6));
        assert_true(e <= error_with(x + c0, n, plain_scale(max)) * (1 + 1e-4) + 1e-30);
    }
    kc_free_bytes(row, "row");
    kc_free(back, "decoded row");
}

static void widths_and_sizes(void **s)
{
    (void)s;
    for (int cols = 1; cols < 400; cols += cols < 70 ? 1 : 41) {
        float *x = kc_floats((size_t)cols);
        for (int e = -40; e <= 22; e += 3) { /* from below every scale to just under the largest */
            for (int i = 0; i < cols; i++) x[i] = ldexpf(kc_float(KC_TAME), e);
            check_row(x, cols);
        }
        kc_free(x, "x");
    }
}

/* One large number among small ones at every place; equal numbers; powers of two; one number. */
static void hard_blocks(void **s)
{
    (void)s;
    float x[64];
    for (int at = 0; at < 64; at++) {
        for (int i = 0; i < 64; i++) x[i] = kc_float(KC_TAME) * 1e-3f;
        x[at] = at % 2 ? -7.0f : 7.0f;
        check_row(x, 64);
        memset(x, 0, sizeof x);
        x[at] = 0x1.234p-3f;
        check_row(x, 64);
        for (int i = 0; i < 64; i++) x[i] = i % 2 ? -0.0f : 0.0f;
        check_row(x, 64);
        for (int i = 0; i < 64; i++) x[i] = ldexpf(at % 2 ? 1.0f : -1.0f, -i);
        check_row(x, 64);
        for (int i = 0; i < 64; i++) x[i] = (float)(at + 1) * 0.37f;
        check_row(x, 64);
        for (int i = 0; i < 64; i++)
            x[i] = ldexpf((float)(kc_rnd() & 0xffffff), -149); /* subnormal */
        check_row(x, 64);
    }
    for (int i = 0; i < 64; i++) x[i] = i % 2 ? SL_T8_MAX : -SL_T8_MAX;
    check_row(x, 64);
}

/* Numbers that are multiples of an f16 scale come back exactly, subnormal scales included. */
static void exact_rows(void **s)
{
    (void)s;
    static const uint16_t scales[] = {1, 2, 3, 0x1ff, 0x3ff, 0x400, 0x1234, 0x3c00, 0x7bff};
    for (size_t k = 0; k < sizeof scales / sizeof scales[0]; k++) {
        float x[32], back[32];
        uint8_t row[34];
        for (int i = 0; i < 32; i++) x[i] = (float)(i * 8 - 124) * sl_f16_to_f32(scales[k]);
        x[7] = 127.0f * sl_f16_to_f32(scales[k]); /* fixes the smallest scale */
        assert_int_equal(sl_t8_encode_f32(x, 32, row), -1);
        const struct sl_mat w = {.fmt = SL_FMT_T8, .rows = 1, .cols = 32, .codes = row};
        sl_mat_decode_row(&w, 0, back);
        for (int i = 0; i < 32; i++) assert_true(back[i] == x[i]);
    }
}

static void bf16_rows(void **s)
{
    (void)s;
    enum { COLS = 100 };
    uint8_t *src = kc_bytes(2 * COLS), *a = kc_bytes(34 * 4), *b = kc_bytes(34 * 4);
    float x[COLS];
    for (int i = 0; i < COLS; i++) {
        uint16_t h = sl_f32_to_bf16(kc_float(KC_TAME));
        src[2 * i] = (uint8_t)h;
        src[2 * i + 1] = (uint8_t)(h >> 8);
        x[i] = sl_bf16_to_f32(h);
    }
    assert_int_equal(sl_t8_encode_bf16(src, COLS, a), -1);
    assert_int_equal(sl_t8_encode_f32(x, COLS, b), -1);
    assert_memory_equal(a, b, 34 * 4);
    src[2 * 77] = 0x80; /* bf16 infinity at column 77, then a NaN before it */
    src[2 * 77 + 1] = 0x7f;
    assert_int_equal(sl_t8_encode_bf16(src, COLS, a), 77);
    src[2 * 40] = 0xc0;
    src[2 * 40 + 1] = 0xff;
    assert_int_equal(sl_t8_encode_bf16(src, COLS, a), 40);
    kc_free_bytes(src, "src");
    kc_free_bytes(a, "a");
    kc_free_bytes(b, "b");
}

static void refusals(void **s)
{
    (void)s;
    enum { COLS = 70 };
    const float bad[] = {NAN,
                         -NAN,
                         INFINITY,
                         -INFINITY,
                         nextafterf(SL_T8_MAX, INFINITY),
                         -nextafterf(SL_T8_MAX, INFINITY),
                         0x1.fffffep127f};
    uint8_t row[34 * 3];
    float x[COLS];
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        for (int at = 0; at < COLS; at++) {
            for (int i = 0; i < COLS; i++) x[i] = kc_float(KC_TAME);
            assert_int_equal(sl_t8_encode_f32(x, COLS, row), -1);
            x[at] = bad[k];
            if (at + 1 < COLS) x[at + 1] = bad[k]; /* the first one is named */
            assert_int_equal(sl_t8_encode_f32(x, COLS, row), at);
        }
    }
    assert_int_equal(sl_t8_encode_f32(x, 0, row), -1);
}

/* On numbers like those of a trained matrix the search pays: less error than max/127 alone. */
static void search_pays(void **s)
{
    (void)s;
    enum { COLS = 32 * 400 };
    static float x[COLS], back[COLS];
    static uint8_t row[34 * 400];
    double found = 0, plain = 0, power = 0;
    for (int i = 0; i < COLS; i++) { /* a sum of twelve is near enough to a bell */
        x[i] = 0;
        for (int k = 0; k < 12; k++) x[i] += kc_float(KC_TAME) * 0.01f;
        x[i] = sl_bf16_to_f32(sl_f32_to_bf16(x[i]));
        power += (double)x[i] * x[i];
    }
    assert_int_equal(sl_t8_encode_f32(x, COLS, row), -1);
    const struct sl_mat w = {.fmt = SL_FMT_T8, .rows = 1, .cols = COLS, .codes = row};
    sl_mat_decode_row(&w, 0, back);
    for (int c = 0; c < COLS; c += 32) {
        double max = 0;
        for (int i = 0; i < 32; i++) {
            max = fmax(max, fabs((double)x[c + i]));
            found += ((double)x[c + i] - back[c + i]) * ((double)x[c + i] - back[c + i]);
        }
        plain += error_with(x + c, 32, plain_scale(max));
    }
    printf("relative error %.5f, with max/127 alone %.5f\n", sqrt(found / power),
           sqrt(plain / power));
    assert_true(found < 0.93 * plain);
}

int main(int argc, char **argv)
{
    kc_start(argc, argv, "test_t8");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widths_and_sizes), cmocka_unit_test(hard_blocks),
        cmocka_unit_test(exact_rows),       cmocka_unit_test(bf16_rows),
        cmocka_unit_test(refusals),         cmocka_unit_test(search_pays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
