/* Trellis formats: plane sizes and every weight against block_w.h, read a second time from its text
 * with bits in an array instead of words. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/block_w.h"
#include "kernels/half.h"
#include "kernels/reference.h"
#include "tests/kernels/kernel_check.h"

static const enum sl_fmt fmts[] = {SL_FMT_W26, SL_FMT_W36, SL_FMT_P36, SL_FMT_W16};
enum { N_FMTS = sizeof fmts / sizeof fmts[0] };

struct matrix {
    struct sl_mat m;
    uint8_t *codes, *scales, *row_scales, *table, *fine_codes, *fine_table;
};

static uint8_t *random_bytes(uint64_t n)
{
    uint8_t *p = kc_bytes(n);
    for (uint64_t i = 0; i < n; i++) p[i] = (uint8_t)kc_rnd();
    return p;
}

static struct matrix make(enum sl_fmt fmt, int rows, int cols)
{
    struct sl_planes p, fine;
    struct matrix x = {.m = {.fmt = fmt, .rows = rows, .cols = cols}};
    assert_true(sl_fmt_planes(fmt, (uint64_t)rows, (uint64_t)cols, &p));
    sl_fmt_fine_planes(fmt, (uint64_t)rows, (uint64_t)cols, &fine);
    x.m.codes = x.codes = random_bytes(p.codes);
    x.m.scales = x.scales = random_bytes(p.scales);
    x.m.row_scales = x.row_scales = random_bytes(p.row_scales);
    x.m.table = x.table = random_bytes(p.table);
    x.fine_codes = random_bytes(fine.codes);
    x.fine_table = random_bytes(fine.table);
    for (int r = 0; r < rows; r++) x.row_scales[2 * r + 1] &= 0x7b; /* finite, not negative */
    if (fine.codes) {
        x.m.fine_codes = x.fine_codes;
        x.m.fine_table = x.fine_table;
    }
    return x;
}

static void drop(struct matrix *x)
{
    kc_free_bytes(x->codes, "codes");
    kc_free_bytes(x->scales, "scales");
    kc_free_bytes(x->row_scales, "row scales");
    kc_free_bytes(x->table, "table");
    kc_free_bytes(x->fine_codes, "fine codes");
    kc_free_bytes(x->fine_table, "fine table");
}

static unsigned bit_at(const uint8_t *p, size_t i)
{
    return p[i / 8] >> i % 8 & 1u;
}

static double value(const struct matrix *x, int r, int c, bool fine)
{
    const size_t blocks = (size_t)x->m.cols / 32, row = (size_t)r, col = (size_t)c;
    const bool w16 = x->m.fmt == SL_FMT_W16;
    const size_t words = w16 ? (blocks + 1) / 2 : blocks, unit = w16 ? 64 : 32, k = 64 / unit;
    const uint8_t *word = x->codes + (row * words + col / unit) * 8;
    unsigned index = 0;
    for (size_t b = 0; b < 6; b++) index |= bit_at(word, (col % unit * k + b) % 64) << b;
    const uint8_t *table = x->table, *plain = NULL;
    if (x->m.fmt == SL_FMT_W36) plain = x->codes + (size_t)x->m.rows * words * 8;
    if (x->m.fmt == SL_FMT_P36 && fine) {
        plain = x->fine_codes;
        table = x->fine_table;
    }
    if (plain) index |= bit_at(plain + (row * blocks + col / 32) * 4, col % 32) << 6;
    unsigned pair = x->scales[row * ((blocks + 1) / 2) + col / 64];
    unsigned nibble = col / 32 % 2 ? pair >> 4 : pair & 15;
    double scale = (4.0 + nibble % 4) * (double)(1 << nibble / 4);
    double f16 =
        (double)sl_f16_to_f32((uint16_t)(x->row_scales[2 * r] | x->row_scales[2 * r + 1] << 8));
    return f16 * 0x1p-12 * scale * (int8_t)table[index];
}

static void every_weight(void **s)
{
    (void)s;
    for (int f = 0; f < N_FMTS; f++)
        for (int blocks = 1; blocks <= 19; blocks++) {
            int rows = 1 + kc_below(5), cols = blocks * 32;
            struct matrix x = make(fmts[f], rows, cols);
            float *out = kc_floats((size_t)cols);
            for (int pass = 0; pass < (fmts[f] == SL_FMT_P36 ? 2 : 1); pass++) {
                for (int r = 0; r < rows; r++) {
                    sl_mat_decode_row(&x.m, r, out);
                    for (int c = 0; c < cols; c++)
                        assert_true((double)out[c] == value(&x, r, c, pass == 0));
                    int b0 = kc_below(blocks), n = 1 + kc_below(cols - b0 * 32);
                    sl_mat_decode_cols(&x.m, r, b0 * 32, n, out);
                    for (int c = 0; c < n; c++)
                        assert_true((double)out[c] == value(&x, r, b0 * 32 + c, pass == 0));
                }
                x.m.fine_codes = x.m.fine_table = NULL; /* p36 once more, base reading */
            }
            kc_free(out, "out");
            drop(&x);
        }
}

/* The base reading of p36 is w26 with the same planes. */
static void base_is_w26(void **s)
{
    (void)s;
    struct matrix x = make(SL_FMT_P36, 3, 352);
    float *a = kc_floats(352), *b = kc_floats(352);
    struct sl_mat w26 = x.m;
    w26.fmt = SL_FMT_W26;
    x.m.fine_codes = x.m.fine_table = w26.fine_codes = w26.fine_table = NULL;
    for (int r = 0; r < 3; r++) {
        sl_mat_decode_row(&x.m, r, a);
        sl_mat_decode_row(&w26, r, b);
        kc_same(a, b, 352, "c", "base reading, row %d", r);
    }
    kc_free(a, "a");
    kc_free(b, "b");
    drop(&x);
}

/* K3's expert matrix: bits a weight as specified, plus two bytes a row and the tables. */
static void sizes(void **s)
{
    (void)s;
    static const struct {
        enum sl_fmt fmt;
        double bits;
        uint64_t tables;
    } want[] = {{SL_FMT_W26, 2.125, 64},
                {SL_FMT_W36, 3.125, 128},
                {SL_FMT_P36, 3.125, 64 + 128},
                {SL_FMT_W16, 1.125, 64}};
    struct sl_planes p, fine;
    for (int f = 0; f < N_FMTS; f++) {
        assert_int_equal(fmts[f], want[f].fmt);
        assert_true(sl_fmt_planes(fmts[f], 3072, 3584, &p));
        sl_fmt_fine_planes(fmts[f], 3072, 3584, &fine);
        uint64_t codes = p.codes + p.scales + fine.codes;
        assert_true((double)codes * 8 == want[f].bits * 3072 * 3584);
        assert_true(p.row_scales == 6144 && p.table + fine.table == want[f].tables);
        assert_true(sl_fmt_is_expert(fmts[f]) && !sl_fmt_is_trunk(fmts[f]));
        assert_false(sl_fmt_planes(fmts[f], 3, 48, &p));
        assert_false(sl_fmt_planes(fmts[f], UINT64_C(1) << 60, 1024, &p));
        assert_false(sl_fmt_planes(fmts[f], 64, UINT64_C(1) << 62, &p));
    }
    assert_true(
        sl_fmt_planes(SL_FMT_W16, 5, 96, &p)); /* three blocks: two words, two scale bytes */
    assert_true(p.codes == 80 && p.scales == 10);
    unsigned last = 0;
    for (unsigned n = 0; n < 16; n++) {
        assert_true((unsigned)sl_w_scale(n) > last);
        last = (unsigned)sl_w_scale(n);
    }
    assert_true(sl_w_scale(0) == 4 && last == 56);
}

int main(int argc, char **argv)
{
    kc_start(argc, argv, "test_block_w");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight),
        cmocka_unit_test(base_is_w26),
        cmocka_unit_test(sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
