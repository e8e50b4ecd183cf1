/* m4 scales: exact round trips on every kind of row, refusals beside controls, and the search for
 * NaN bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "quant/m4.h"
#include "tests/kernels/kernel_check.h"

/* Scale bytes of `rows` rows: base in [lo, hi], spread at most `spread`. */
static void fill(uint8_t *e8m0, int rows, int blocks, int lo, int hi, int spread)
{
    for (int r = 0; r < rows; r++) {
        int e = lo + kc_below(hi - lo + 1);
        for (int b = 0; b < blocks; b++) {
            int s = e - kc_below(spread + 1);
            e8m0[r * blocks + b] = (uint8_t)(s < 0 ? 0 : s);
        }
    }
}

/* Encodes, checks every nibble against its meaning, decodes; expects success. */
static void round_trip(const uint8_t *e8m0, int rows, int blocks)
{
    size_t per = sl_m4_row_scales(blocks * 32), n = (size_t)rows * (size_t)blocks;
    assert_int_equal(per, (blocks + 1) / 2);
    uint8_t *scales = kc_bytes((size_t)rows * per), *row_e = kc_bytes((size_t)rows);
    uint8_t *back = kc_bytes(n);
    assert_true(sl_m4_fits(e8m0, rows, blocks));
    assert_true(sl_m4_encode(NULL, e8m0, rows, blocks * 32, scales, row_e));
    for (int r = 0; r < rows; r++) {
        const uint8_t *row = scales + (size_t)r * per;
        int max = 0;
        for (int b = 0; b < blocks; b++) {
            int s = e8m0[r * blocks + b];
            max = max > s ? max : s;
            assert_int_equal(row_e[r] - (b % 2 ? row[b / 2] >> 4 : row[b / 2] & 15), s);
        }
        assert_int_equal(row_e[r], max);
        if (blocks % 2) assert_int_equal(row[blocks / 2] >> 4, 0);
    }
    assert_true(sl_m4_decode(scales, row_e, rows, blocks * 32, back));
    assert_memory_equal(back, e8m0, n);
    kc_free_bytes(scales, "scales");
    kc_free_bytes(row_e, "row_e");
    kc_free_bytes(back, "back");
}

static void random_rows(void **s)
{
    (void)s;
    for (int blocks = 1; blocks <= 130; blocks += blocks < 40 ? 1 : 17) {
        int rows = 1 + kc_below(9);
        uint8_t *e8m0 = kc_bytes((size_t)rows * (size_t)blocks);
        for (int spread = 0; spread <= 15; spread += 5) {
            fill(e8m0, rows, blocks, 0, 254, spread);
            round_trip(e8m0, rows, blocks);
        }
        kc_free_bytes(e8m0, "e8m0");
    }
}

/* All-equal rows at both ends, a row of 15 steps, one odd block among equals at every place. */
static void hard_rows(void **s)
{
    (void)s;
    enum { BLOCKS = 19 };
    uint8_t e8m0[BLOCKS];
    for (int v = 0; v <= 254; v++) {
        memset(e8m0, v, sizeof e8m0);
        round_trip(e8m0, 1, BLOCKS);
        for (int b = 0; b < BLOCKS; b++) {
            memset(e8m0, v, sizeof e8m0);
            e8m0[b] = (uint8_t)(v >= 15 ? v - 15 : 0); /* a zero block may have any scale */
            round_trip(e8m0, 1, BLOCKS);
            memset(e8m0, v >= 15 ? v - 15 : 0, sizeof e8m0);
            e8m0[b] = (uint8_t)v;
            round_trip(e8m0, 1, BLOCKS);
        }
    }
    for (int b = 0; b < BLOCKS; b++) e8m0[b] = (uint8_t)(254 - b % 16);
    round_trip(e8m0, 1, BLOCKS);
}

/* An offset of 16 anywhere is refused, in any row; 15 there is the control. */
static void refusals(void **s)
{
    (void)s;
    enum { ROWS = 3 };
    for (int blocks = 2; blocks <= 35; blocks += 3) {
        size_t n = (size_t)(ROWS * blocks);
        uint8_t *e8m0 = kc_bytes(n), *scales = kc_bytes(ROWS * (size_t)(blocks + 1) / 2 + ROWS);
        uint8_t row_e[ROWS];
        for (size_t at = 0; at < n; at++) {
            for (int v = 16; v <= 254; v += 119) {
                memset(e8m0, v, n);
                e8m0[at] = (uint8_t)(v - 16);
                assert_false(sl_m4_fits(e8m0, ROWS, blocks));
                assert_false(sl_m4_encode(NULL, e8m0, ROWS, blocks * 32, scales, row_e));
                e8m0[at] = (uint8_t)(v - 15);
                assert_true(sl_m4_fits(e8m0, ROWS, blocks));
                assert_true(sl_m4_encode(NULL, e8m0, ROWS, blocks * 32, scales, row_e));
            }
            memset(e8m0, 3, n); /* far below, so that differences would wrap */
            e8m0[at] = 250;
            assert_false(sl_m4_fits(e8m0, ROWS, blocks));
            assert_false(sl_m4_encode(NULL, e8m0, ROWS, blocks * 32, scales, row_e));
        }
        kc_free_bytes(e8m0, "e8m0");
        kc_free_bytes(scales, "scales");
    }
}

/* Bytes that no encoder wrote: each beside the same bytes put right. */
static void decode_refusals(void **s)
{
    (void)s;
    enum { BLOCKS = 9, PER = 5 };
    uint8_t scales[PER] = {0x10, 0x32, 0x54, 0x76, 0x08}, e = 200, out[BLOCKS];
    assert_true(sl_m4_decode(scales, &e, 1, BLOCKS * 32, out));
    scales[4] = 0x18; /* the unused nibble */
    assert_false(sl_m4_decode(scales, &e, 1, BLOCKS * 32, out));
    scales[4] = 0x08;
    e = 255;
    assert_false(sl_m4_decode(scales, &e, 1, BLOCKS * 32, out));
    e = 7; /* offset 8 leads below 0 */
    assert_false(sl_m4_decode(scales, &e, 1, BLOCKS * 32, out));
    e = 8;
    assert_true(sl_m4_decode(scales, &e, 1, BLOCKS * 32, out));
    e = 200;
    scales[0] = 0x11; /* no block at the row's exponent */
    assert_false(sl_m4_decode(scales, &e, 1, BLOCKS * 32, out));
    scales[0] = 0x01;
    assert_true(sl_m4_decode(scales, &e, 1, BLOCKS * 32, out));
    assert_int_equal(out[0], 199);
    assert_int_equal(out[1], 200);
}

static void nan_bytes(void **s)
{
    (void)s;
    for (size_t n = 0; n < 300; n += n < 140 ? 1 : 53) {
        uint8_t *p = kc_bytes(n);
        size_t where = 12345;
        for (size_t i = 0; i < n; i++) p[i] = (uint8_t)kc_below(255);
        assert_false(sl_e8m0_has_nan(p, n, &where));
        assert_int_equal(where, 12345);
        memset(p, 254, n);
        assert_false(sl_e8m0_has_nan(p, n, &where));
        for (int i = (int)n - 1; i >= 0; i--) { /* from the back: the first one counts */
            p[i] = 255;
            assert_true(sl_e8m0_has_nan(p, n, &where));
            assert_int_equal(where, i);
            if (i % 3 == 0) p[i] = 0; /* a 0 above a 255 must not look like a carry */
        }
        kc_free_bytes(p, "bytes");
    }
}

int main(int argc, char **argv)
{
    kc_start(argc, argv, "test_m4");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_rows),     cmocka_unit_test(hard_rows), cmocka_unit_test(refusals),
        cmocka_unit_test(decode_refusals), cmocka_unit_test(nan_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
