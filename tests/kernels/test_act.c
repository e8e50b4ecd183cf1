/* Integer products: packing against its text, the reference against the decoded weights with the order
 * of act.h spelled out, every variant against the reference bit by bit. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/act.h"
#include "kernels/half.h"
#include "tests/kernels/kernel_check.h"
#include "tests/kernels/packed_matrix.h"

static const enum sl_fmt fmts[] = {SL_FMT_T8,  SL_FMT_T6,  SL_FMT_T4,  SL_FMT_MXFP4, SL_FMT_M4,
                                   SL_FMT_W26, SL_FMT_W36, SL_FMT_P36, SL_FMT_W16};
enum { N_FMTS = sizeof fmts / sizeof fmts[0] };

static void packing(void **s)
{
    (void)s;
    for (int order = SL_ACT_NATURAL; order <= SL_ACT_ROT8; order++)
        for (int planes = 1; planes <= 2; planes++)
            for (int cols = 1; cols < 140; cols += 1 + kc_below(5)) {
                const int nb = (cols + 31) / 32;
                float *x = kc_floats((size_t)cols), *scale = kc_floats((size_t)nb);
                int8_t *q = (int8_t *)kc_bytes((size_t)(planes * 2 * nb * 32));
                kc_fill(x, (size_t)cols, KC_TAME);
                for (int c = 0; c < cols; c++) x[c] *= ldexpf(1.0f, kc_below(20) - 10);
                sl_act_pack((enum sl_act_order)order, planes, x, cols, q, scale);
                for (int i = 0; i < nb * 32; i++) {
                    const int c = i / 32 * 32 + kp_column((enum sl_act_order)order, i % 32);
                    const double unit = (double)scale[i / 32];
                    const int rest = planes == 2 ? 2 * nb * 32 + i : i;
                    const int v = planes == 2 ? 256 * q[i] + q[rest] : 1 * q[i];
                    assert_true(q[i] >= -127 && q[rest] >= -127);
                    assert_int_equal(q[nb * 32 + i], abs(q[i]));
                    assert_int_equal(q[nb * 32 + rest], abs(q[rest]));
                    if (c >= cols)
                        assert_int_equal(v, 0);
                    else
                        assert_true(fabs(v * unit - (double)x[c]) <=
                                    unit * (planes == 2 ? 1.04 : 0.52));
                }
                kc_free(x, "x");
                kc_free(scale, "scale");
                kc_free_bytes((uint8_t *)q, "q");
            }
    float x[64], scale[2];
    int8_t q[128];
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 64; i++) x[i] = i < 32 ? 0x1p-110f : 1.0f;
        x[40] = bad[k];
        sl_act_pack(SL_ACT_NATURAL, 1, x, 64, q, scale);
        assert_true(scale[0] == 0.0f && isnan(scale[1]));
        for (int i = 0; i < 128; i++) assert_int_equal(q[i], 0);
    }
    assert_int_equal(sl_act_order_of(SL_FMT_BF16), SL_ACT_NONE);
}

/* Every rung packs the reference's bytes: ordinary and extreme values, what is not finite, ties. */
static void packing_variants(void **state)
{
    (void)state;
    enum { MOST = 200, NB = (MOST + 31) / 32 };
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0x1p-110f, -0x1p-149f, FLT_MAX, -0.0f};
    for (int rung = 1; rung < kc_rungs(); rung++)
        for (int n = 0; n < 400; n++) {
            const enum sl_act_order order = (enum sl_act_order)(SL_ACT_NATURAL + n % 4);
            const int planes = 1 + n / 4 % 2, cols = 1 + kc_below(MOST);
            float x[MOST], scale[2][NB];
            int8_t q[2][4 * NB * 32];
            kc_fill(x, (size_t)cols, KC_TAME);
            for (int c = 0; c < cols; c++) x[c] *= ldexpf(1.0f, kc_below(20) - 10);
            if (n % 3 == 0) /* halves of the unit: ties of the rounding */
                for (int c = 0; c < cols; c++) x[c] = (float)(kc_below(509) - 254) / 2;
            if (n % 5 == 0) x[kc_below(cols)] = odd[kc_below(sizeof odd / sizeof *odd)];
            memset(q, 85, sizeof q);
            sl_act_pack(order, planes, x, cols, q[0], scale[0]);
            sl_act_pack_for(kc_rung(rung)->cpu)(order, planes, x, cols, q[1], scale[1]);
            assert_memory_equal(q[0], q[1], sizeof q[0]); /* and nothing behind is touched */
            kc_same(scale[0], scale[1], sl_act_scales(cols), kc_rung_name(rung), "%d columns",
                    cols);
        }
}

static float tree(const float *lane)
{
    volatile float v[16];
    for (int i = 0; i < 16; i++) v[i] = lane[i];
    for (int step = 8; step; step /= 2)
        for (int i = 0; i < step; i++) v[i] = v[i] + v[i + step];
    return v[0];
}

/* Product from decoded weights: integers are recovered by exact division. */
static float by_hand(const struct sl_mat *w, int r, const struct sl_act *x, int t)
{
    const int nb = (w->cols + 31) / 32;
    const int8_t *q = x->q + (size_t)t * (size_t)x->planes * 2 * (size_t)nb * 32;
    float lane[16] = {0}, row[700];
    sl_mat_decode_row(w, r, row);
    for (int b = 0; b < nb; b++) {
        long d[8] = {0};
        const double ws = kp_block_scale(w, r, b);
        for (int i = 0; i < 32; i++) {
            const int c = b * 32 + kp_column(x->order, i), at = b * 32 + i;
            if (c >= w->cols) continue;
            const double code = (double)row[c] / (ws * kp_row_scale(w, r));
            assert_true(code == rint(code) && fabs(code) <= 128);
            d[i / 4] +=
                (long)code * (x->planes == 2 ? 256 * q[at] + q[2 * nb * 32 + at] : 1 * q[at]);
        }
        volatile float f = (float)ws * x->scale[(size_t)t * (size_t)nb + (size_t)b];
        for (int j = 0; j < 8; j++) {
            float *at = &lane[b % 2 * 8 + j];
            *at = fmaf((float)d[j], f, *at);
        }
    }
    return (float)kp_row_scale(w, r) * tree(lane);
}

/* Masks whose product is not the one of the mask before. */
static int masks_here(unsigned masks[6])
{
    const unsigned cpu = sl_cpu_detect();
    const unsigned all[] = {0,
                            SL_CPU_AVX2,
                            SL_CPU_AVX2 | SL_CPU_AVX512 | SL_CPU_AVX512VNNI,
                            SL_CPU_AVX2 | SL_CPU_AVX512 | SL_CPU_AVX512VNNI | SL_CPU_AVX512VBMI,
                            SL_CPU_NEON,
                            SL_CPU_NEON | SL_CPU_NEONDOT};
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if ((cpu & all[i]) == all[i] && (!i || sl_mul_a8_for(all[i]) != sl_mul_a8_c))
            masks[n++] = all[i];
    return n;
}

static void one_case(enum sl_fmt fmt, int rows, int row0, int row1, int cols, int n_tok, int planes,
                     bool ends)
{
    struct kp_matrix w = kp_make(fmt, rows, cols, ends);
    const enum sl_act_order order = sl_act_order_of(fmt);
    const size_t nb = ((size_t)cols + 31) / 32, plane = nb * 32, n = (size_t)n_tok;
    const size_t ldy = (size_t)(rows + kc_below(4)), ny = n * ldy;
    float *x = kc_floats((size_t)cols), *scale = kc_floats(n * nb);
    int8_t *q = (int8_t *)kc_bytes(n * (size_t)planes * 2 * plane);
    for (size_t t = 0; t < n; t++) {
        kc_fill(x, (size_t)cols, KC_TAME);
        for (int c = 0; c < cols && ends; c++) x[c] = kc_below(2) ? 1.0f : -1.0f;
        sl_act_pack(order, planes, x, cols, q + t * (size_t)planes * 2 * plane, scale + t * nb);
    }
    const struct sl_act act = {
        .order = order, .cols = cols, .n_tok = n_tok, .planes = planes, .q = q, .scale = scale};
    float *want = kc_floats(ny);
    for (size_t i = 0; i < ny; i++) want[i] = -12345.0f;
    for (int r = row0; r < row1; r++)
        for (int t = 0; t < n_tok; t++)
            want[(size_t)t * ldy + (size_t)r] = by_hand(&w.m, r, &act, t);
    unsigned masks[6];
    for (int i = 0, m = masks_here(masks); i < m; i++) {
        float *y = kc_floats(ny);
        for (size_t k = 0; k < ny; k++) y[k] = -12345.0f;
        sl_mul_a8_for(masks[i])(&w.m, row0, row1, &act, y, ldy);
        kc_same(want, y, ny, sl_cpu_name(masks[i]), "%s %d x %d rows %d..%d tokens %d planes %d",
                sl_fmt_name(fmt), rows, cols, row0, row1, n_tok, planes);
        kc_free(y, "y");
    }
    kc_free(want, "want");
    kc_free(x, "x");
    kc_free(scale, "scale");
    kc_free_bytes((uint8_t *)q, "q");
    kc_free_bytes(w.bytes, "planes");
}

static void products(void **s)
{
    (void)s;
    for (int f = 0; f < N_FMTS; f++)
        for (int blocks = 1; blocks <= 20; blocks++)
            for (int planes = 1; planes <= 2; planes++)
                for (int ends = 0; ends < 2; ends++) {
                    const int rows = 1 + kc_below(4);
                    int cols = blocks * 32;
                    if (!sl_fmt_is_expert(fmts[f])) cols -= kc_below(32);
                    one_case(fmts[f], rows, 0, rows, cols, 1 + kc_below(4), planes, ends);
                }
}

static void ranges_and_batches(void **s)
{
    (void)s;
    static const int counts[] = {0, 1, 15, 16, 17, 33};
    for (int f = 0; f < N_FMTS; f++)
        for (int i = 0; i < 6; i++) {
            one_case(fmts[f], 6, 1, 1 + kc_below(5), 96 + 32 * kc_below(9), counts[i],
                     1 + kc_below(2), false);
        }
}

/* 15 bits of activation are nearly the exact product; 7 bits cost less than two percent. */
static void distance(void **s)
{
    (void)s;
    enum { COLS = 640, ROWS = 8 };
    for (int f = 0; f < N_FMTS; f++) {
        struct kp_matrix w = kp_make(fmts[f], ROWS, COLS, false);
        float *x = kc_floats(COLS), exact[ROWS], got[2][ROWS], scale[COLS / 32], row[COLS];
        static int8_t q[4 * COLS];
        kc_fill(x, COLS, KC_TAME);
        kc_rung(0)->mul(&w.m, 0, ROWS, x, COLS, 1, exact, ROWS);
        double e[2] = {0, 0}, n = 0; /* n: squares of the terms, which do not cancel */
        for (int r = 0; r < ROWS; r++) {
            sl_mat_decode_row(&w.m, r, row);
            for (int c = 0; c < COLS; c++)
                n += (double)row[c] * (double)x[c] * (double)row[c] * (double)x[c];
        }
        for (int planes = 1; planes <= 2; planes++) {
            struct sl_act act = {.order = sl_act_order_of(fmts[f]),
                                 .cols = COLS,
                                 .n_tok = 1,
                                 .planes = planes,
                                 .q = q,
                                 .scale = scale};
            sl_act_pack(act.order, planes, x, COLS, q, scale);
            sl_mul_a8_for(sl_cpu_detect())(&w.m, 0, ROWS, &act, got[planes - 1], ROWS);
            for (int r = 0; r < ROWS; r++) {
                const double d = (double)got[planes - 1][r] - (double)exact[r];
                e[planes - 1] += d * d;
            }
        }
        assert_true(n > 0 && sqrt(e[0] / n) < 0.02 && sqrt(e[1] / n) < 0.0002);
        kc_free(x, "x");
        kc_free_bytes(w.bytes, "planes");
    }
}

int main(int argc, char **argv)
{
    kc_start(argc, argv, "test_act");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing),  cmocka_unit_test(packing_variants),
        cmocka_unit_test(products), cmocka_unit_test(ranges_and_batches),
        cmocka_unit_test(distance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
