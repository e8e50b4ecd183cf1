/* Formats: names, sizes, overflow, half floats, and every decoder against its definition, written
 * here a second time in double precision from the text of the block headers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "tests/kernels/kernel_check.h"
#include "kernels/block_mxfp4.h"
#include "kernels/half.h"
#include "kernels/mx_table.h"

static void names(void **s)
{
    (void)s;
    int known = 0;
    for (int f = 1; f < 256; f++) {
        const char *n = sl_fmt_name((enum sl_fmt)f);
        if (strcmp(n, "?") == 0) continue;
        known++;
        assert_int_equal(sl_fmt_by_name(n), f);
    }
    assert_int_equal(known, 14);
    assert_int_equal(sl_fmt_by_name("mxfp4"), SL_FMT_MXFP4);
    assert_int_equal(sl_fmt_by_name("m5"), SL_FMT_NONE);
    assert_int_equal(sl_fmt_by_name(""), SL_FMT_NONE);
    assert_int_equal(sl_fmt_by_name(NULL), SL_FMT_NONE);
    assert_string_equal(sl_fmt_name(SL_FMT_NONE), "?");
    assert_true(sl_fmt_is_expert(SL_FMT_M4) && sl_fmt_is_expert(SL_FMT_MXFP4));
    assert_true(sl_fmt_is_trunk(SL_FMT_BF16) && sl_fmt_is_trunk(SL_FMT_T8));
    assert_true(sl_fmt_is_trunk(SL_FMT_T6) && sl_fmt_is_trunk(SL_FMT_T4));
    assert_false(sl_fmt_is_expert(SL_FMT_T8) || sl_fmt_is_trunk(SL_FMT_M4));
}

/* Bytes of K3's shapes, from the sizes in the specification (one expert matrix: 3072 x 3584). */
static void sizes(void **s)
{
    (void)s;
    struct sl_planes p;
    assert_true(sl_fmt_planes(SL_FMT_MXFP4, 3072, 3584, &p));
    assert_true(p.codes == 5505024 && p.scales == 344064 && p.row_scales == 0 && p.table == 0);
    assert_true(sl_fmt_planes(SL_FMT_M4, 3072, 3584, &p));
    assert_true(p.codes == 5505024 && p.scales == 172032 && p.row_scales == 3072 && p.table == 0);
    assert_true(sl_fmt_planes(SL_FMT_M4, 10, 96, &p)); /* three blocks: a half-used byte */
    assert_true(p.codes == 480 && p.scales == 20 && p.row_scales == 10);
    assert_true(sl_fmt_planes(SL_FMT_T8, 7, 33, &p));
    assert_true(p.codes == (uint64_t)7 * 68 && p.scales == 0);
    assert_int_equal(sl_fmt_row_bytes(SL_FMT_T8, 7168), 7168 + 448);
    assert_int_equal(sl_fmt_row_bytes(SL_FMT_BF16, 5), 10);
    assert_int_equal(sl_fmt_row_bytes(SL_FMT_F16, 5), 10);
    assert_int_equal(sl_fmt_row_bytes(SL_FMT_F32, 5), 20);
    assert_int_equal(sl_fmt_row_bytes(SL_FMT_U8, 5), 5);
    assert_int_equal(sl_fmt_row_bytes(SL_FMT_M4, 64), 0);
    for (int f = SL_FMT_F32; f <= SL_FMT_U8; f++) {
        assert_true(sl_fmt_planes((enum sl_fmt)f, 3, 5, &p));
        assert_true(p.codes == 3 * sl_fmt_row_bytes((enum sl_fmt)f, 5) && !p.scales && !p.table);
    }
    assert_true(sl_fmt_planes(SL_FMT_MXFP4, 0, 64, &p) && p.codes == 0);
}

static void refusals(void **s)
{
    (void)s;
    struct sl_planes p = {1, 2, 3, 4};
    assert_false(sl_fmt_planes(SL_FMT_MXFP4, 4, 48, &p)); /* cols % 32 */
    assert_false(sl_fmt_planes(SL_FMT_M4, 4, 1, &p));
    assert_false(sl_fmt_planes(SL_FMT_NONE, 4, 64, &p));
    assert_false(sl_fmt_planes((enum sl_fmt)99, 4, 64, &p));
    const uint64_t huge = UINT64_C(1) << 62;
    static const enum sl_fmt all[] = {SL_FMT_F32, SL_FMT_BF16,  SL_FMT_F16, SL_FMT_U8,
                                      SL_FMT_T8,  SL_FMT_MXFP4, SL_FMT_M4};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_false(sl_fmt_planes(all[i], huge, huge, &p));
        assert_false(sl_fmt_planes(all[i], huge, 1024, &p));
        assert_false(sl_fmt_planes(all[i], 64, huge, &p));
    }
    assert_int_equal(sl_fmt_row_bytes(SL_FMT_F32, huge), 0);
    assert_true(p.codes == 1 && p.scales == 2 && p.row_scales == 3 && p.table == 4); /* untouched */
}

/* f16 by its definition; every one of the 65,536. */
static double f16_value(unsigned h)
{
    int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
    double v = e == 31 ? (m ? (double)NAN : (double)INFINITY)
               : e     ? ldexp(1024 + m, e - 25)
                       : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

static void half_decode(void **s)
{
    (void)s;
    for (unsigned h = 0; h < 65536; h++) {
        float f = sl_f16_to_f32((uint16_t)h);
        double v = f16_value(h);
        if (isnan(v)) {
            assert_true(isnan(f));
            continue;
        }
        assert_true((double)f == v && !signbit(f) == !signbit(v));
        assert_int_equal(sl_f32_to_f16(f), h);
        assert_int_equal(sl_f32_to_bf16(sl_bf16_to_f32((uint16_t)h)),
                         isnan(sl_bf16_to_f32((uint16_t)h)) ? (h | 0x40) : h);
    }
}

/* Rounding to f16: the result is a nearest one, and even at a tie. Checked around all midpoints. */
static void half_encode(void **s)
{
    (void)s;
    for (unsigned h = 0; h < 0x7c00; h++) {
        double lo = f16_value(h), hi = h == 0x7bff ? 65536.0 : f16_value(h + 1);
        float mid = (float)((lo + hi) / 2);
        assert_true((double)mid == (lo + hi) / 2);
        assert_int_equal(sl_f32_to_f16(mid), h % 2 ? h + 1 : h);
        assert_int_equal(sl_f32_to_f16(nextafterf(mid, 0)), h);
        assert_int_equal(sl_f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
        assert_int_equal(sl_f32_to_f16(-nextafterf(mid, INFINITY)), (h + 1) | 0x8000);
    }
    assert_int_equal(sl_f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(sl_f32_to_f16(0x1p-149f), 0);
    assert_true((sl_f32_to_f16(NAN) & 0x7fff) > 0x7c00);
    assert_int_equal(sl_f32_to_bf16(1.00390625f), 0x3f80);     /* tie to even: down */
    assert_int_equal(sl_f32_to_bf16(1.01171875f), 0x3f82);     /* tie to even: up */
    assert_int_equal(sl_f32_to_bf16(0x1.fffffep127f), 0x7f80); /* rounds to infinity */
    assert_true(isnan(sl_bf16_to_f32(sl_f32_to_bf16(NAN))));
}

/* Value of an MXFP4 code under scale byte b, from spec 2.3. */
static double mx_value(unsigned code, unsigned b)
{
    static const double magnitude[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    double v = ldexp(magnitude[code & 7], (int)b - 127);
    if (v >= 0x1p128) v = (double)INFINITY;
    return code & 8 ? -v : v;
}

static void mx_values(void **s)
{
    (void)s;
    sl_mx_table_init();
    for (unsigned b = 0; b < 255; b++) {
        for (unsigned c = 0; c < 16; c++) {
            double v = mx_value(c, b);
            float product = sl_e2m1[c] * sl_e8m0((uint8_t)b);
            float table =
                sl_bf16_to_f32((uint16_t)(sl_mx_table[b][c] << 8 | sl_mx_table[b][16 + c]));
            assert_true((double)product == v && !signbit(product) == !signbit(v));
            assert_memory_equal(&product, &table, sizeof table);
        }
    }
}

/* Decoded rows against the layouts as the block headers word them. */
static void rows(void **s)
{
    (void)s;
    enum { COLS = 224, ROWS = 3, BLOCKS = COLS / 32 };
    uint8_t *codes = kc_bytes((size_t)ROWS * COLS * 4), *scales = kc_bytes((size_t)ROWS * BLOCKS);
    uint8_t *row_e = kc_bytes(ROWS);
    float *out = kc_floats(COLS);
    for (int i = 0; i < ROWS * COLS * 4; i++) codes[i] = (uint8_t)kc_rnd();
    for (int i = 0; i < ROWS * BLOCKS; i++) scales[i] = (uint8_t)kc_below(255);
    for (int i = 0; i < ROWS; i++) row_e[i] = (uint8_t)(15 + kc_below(240));
    struct sl_mat w = {
        .fmt = SL_FMT_MXFP4, .rows = ROWS, .cols = COLS, .codes = codes, .scales = scales};
    for (int r = 0; r < ROWS; r++) {
        sl_mat_decode_row(&w, r, out);
        for (int c = 0; c < COLS; c++) {
            unsigned byte = codes[r * COLS / 2 + c / 2], code = c % 2 ? byte >> 4 : byte & 15;
            assert_true((double)out[c] == mx_value(code, scales[r * BLOCKS + c / 32]));
        }
    }
    w.fmt = SL_FMT_M4;
    w.row_scales = row_e;
    for (int r = 0; r < ROWS; r++) {
        sl_mat_decode_row(&w, r, out);
        for (int c = 0; c < COLS; c++) {
            unsigned byte = codes[r * COLS / 2 + c / 2], code = c % 2 ? byte >> 4 : byte & 15;
            int b = c / 32;
            unsigned pair = scales[r * ((BLOCKS + 1) / 2) + b / 2];
            unsigned off = b % 2 ? pair >> 4 : pair & 15;
            assert_true((double)out[c] == mx_value(code, row_e[r] - off));
        }
    }
    w = (struct sl_mat){
        .fmt = SL_FMT_T8, .rows = ROWS, .cols = 70, .codes = codes}; /* 102 bytes a row */
    for (int r = 0; r < ROWS; r++) {
        const uint8_t *row = codes + (size_t)r * 102;
        sl_mat_decode_row(&w, r, out);
        for (int c = 0; c < 70; c++) {
            unsigned h = row[96 + c / 32 * 2] | (unsigned)row[97 + c / 32 * 2] << 8;
            double v = (double)(int8_t)row[c] * f16_value(h);
            assert_true(isnan(v) ? isnan(out[c]) : (double)out[c] == v);
        }
    }
    w.fmt = SL_FMT_U8;
    sl_mat_decode_row(&w, 2, out);
    for (int c = 0; c < 70; c++) assert_true(out[c] == (float)codes[140 + c]);
    w.fmt = SL_FMT_F16;
    sl_mat_decode_row(&w, 1, out);
    for (int c = 0; c < 70; c++) {
        double v = f16_value(codes[140 + 2 * c] | (unsigned)codes[141 + 2 * c] << 8);
        assert_true(isnan(v) ? isnan(out[c]) : (double)out[c] == v);
    }
    w.fmt = SL_FMT_BF16;
    sl_mat_decode_row(&w, 1, out);
    for (int c = 0; c < 70; c++) {
        uint32_t u = (uint32_t)codes[140 + 2 * c] << 16 | (uint32_t)codes[141 + 2 * c] << 24;
        assert_memory_equal(&out[c], &u, 4);
    }
    w.fmt = SL_FMT_F32;
    sl_mat_decode_row(&w, 1, out);
    assert_memory_equal(out, codes + 280, 280);
    kc_free(out, "out");
    kc_free_bytes(codes, "codes");
    kc_free_bytes(scales, "scales");
    kc_free_bytes(row_e, "row_e");
}

int main(int argc, char **argv)
{
    kc_start(argc, argv, "test_formats");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),       cmocka_unit_test(sizes),       cmocka_unit_test(refusals),
        cmocka_unit_test(half_decode), cmocka_unit_test(half_encode), cmocka_unit_test(mx_values),
        cmocka_unit_test(rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
