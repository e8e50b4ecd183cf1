/* The product slot: the reference against the order of kernels.h spelled out once more, every rung
 * against the reference bit by bit, and a token alone against the same token in a batch.
 *
 * A case is a shape, a format, a number of tokens and two fills; what it computes is compared on
 * every rung, with strides larger than a row, addresses aligned to nothing, and guards around y. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "tests/kernels/kernel_check.h"
#include "kernels/half.h"
#include "kernels/reference.h"

static const enum sl_fmt fmts[] = {SL_FMT_F32,   SL_FMT_BF16, SL_FMT_F16, SL_FMT_U8,  SL_FMT_T8,
                                   SL_FMT_MXFP4, SL_FMT_M4,   SL_FMT_W26, SL_FMT_W36, SL_FMT_P36,
                                   SL_FMT_W16,   SL_FMT_T6,   SL_FMT_T4};
enum { N_FMTS = sizeof fmts / sizeof fmts[0] };

enum weights {
    W_TAME,  /* ordinary numbers */
    W_BYTES, /* any bytes: subnormals, infinities and NaN where the format has them */
    W_MOST,  /* the largest of the format, both signs */
    W_ZERO,  /* zeros of both signs, scales at their ends */
    W_KINDS
};

struct matrix {
    struct sl_mat m;
    uint8_t *codes, *scales, *row_scales, *table, *fine_codes, *fine_table;
};

static void put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* One number of a plain format. */
static void put_plain(uint8_t *p, enum sl_fmt fmt, enum weights kind)
{
    float f = kc_float(kind == W_TAME ? KC_TAME : kind == W_ZERO ? KC_ZEROS : KC_MOST);
    if (kind == W_MOST && kc_below(2)) f = -f;
    switch (fmt) {
    case SL_FMT_F32:
        memcpy(p, &f, 4);
        break;
    case SL_FMT_BF16:
        put16(p, kind == W_MOST ? (f < 0 ? 0xff7f : 0x7f7f) : sl_f32_to_bf16(f));
        break;
    case SL_FMT_F16:
        put16(p, kind == W_MOST ? (f < 0 ? 0xfbff : 0x7bff) : sl_f32_to_f16(f));
        break;
    default:
        *p = (uint8_t)(kind == W_MOST ? 255 : kind == W_ZERO ? 0 : kc_rnd());
        break;
    }
}

/* t8, t6, t4: codes, then f16 scales. */
static void fill_trunk(struct matrix *x, enum weights kind)
{
    const size_t row_bytes = sl_fmt_row_bytes(x->m.fmt, (uint64_t)x->m.cols);
    const size_t nb = ((size_t)x->m.cols + 31) / 32, codes = row_bytes - 2 * nb;
    for (int r = 0; r < x->m.rows; r++) {
        uint8_t *row = x->codes + (size_t)r * row_bytes;
        for (size_t i = 0; i < codes; i++) {
            row[i] = (uint8_t)kc_rnd();
            if (x->m.fmt == SL_FMT_T8 && kind == W_ZERO) row[i] = 0;
            if (x->m.fmt == SL_FMT_T8 && kind == W_MOST) row[i] = kc_below(2) ? 127 : 129;
            if (x->m.fmt != SL_FMT_T8 && kind == W_MOST) row[i] = kc_below(2) ? 0xff : 0;
        }
        for (size_t b = 0; b < nb; b++) {
            uint16_t s = (uint16_t)kc_rnd();
            if (kind == W_TAME)
                s = (uint16_t)(s % 0x1800 + (s % 5 ? 0x1000 : 0)); /* subnormals too */
            if (kind == W_MOST) s = 0x7bff;
            if (kind == W_ZERO) s = (uint16_t)(b % 2 && x->m.fmt == SL_FMT_T8 ? 0x7bff : 0);
            put16(row + codes + 2 * b, s);
        }
    }
}

static uint8_t mx_scale(const struct matrix *x, enum weights kind)
{
    if (x->m.fmt == SL_FMT_M4) return (uint8_t)kc_rnd();
    switch (kind) {
    case W_TAME:
        return (uint8_t)(110 + kc_below(20));
    case W_MOST:
        return 254;
    case W_ZERO:
        return kc_below(2) ? 254 : 0;
    default:
        return (uint8_t)kc_below(255);
    }
}

static void fill_mx(struct matrix *x, enum weights kind, const struct sl_planes *p)
{
    for (uint64_t i = 0; i < p->codes; i++) {
        x->codes[i] = (uint8_t)kc_rnd();
        if (kind == W_MOST) x->codes[i] = kc_below(2) ? 0xf7 : 0x7f;
        if (kind == W_ZERO) x->codes[i] = kc_below(2) ? 0x80 : 0x08;
    }
    for (uint64_t i = 0; i < p->row_scales; i++) {
        x->row_scales[i] = (uint8_t)(15 + kc_below(240));
        if (kind == W_TAME) x->row_scales[i] = (uint8_t)(110 + kc_below(20));
        if (kind == W_MOST) x->row_scales[i] = 254;
    }
    for (uint64_t i = 0; i < p->scales; i++) x->scales[i] = mx_scale(x, kind);
}

static uint8_t *random_bytes(uint64_t n)
{
    uint8_t *p = kc_bytes(n);
    for (uint64_t i = 0; i < n; i++) p[i] = (uint8_t)kc_rnd();
    return p;
}

/* Any code is good; kinds differ in table and scales. p36 is read in full or, half the time, not. */
static void fill_trellis(struct matrix *x, enum weights kind, const struct sl_planes *p)
{
    struct sl_planes fine;
    sl_fmt_fine_planes(x->m.fmt, (uint64_t)x->m.rows, (uint64_t)x->m.cols, &fine);
    x->fine_codes = random_bytes(fine.codes);
    x->fine_table = random_bytes(fine.table);
    for (uint64_t i = 0; i < p->codes; i++) x->codes[i] = (uint8_t)kc_rnd();
    for (uint64_t i = 0; i < p->scales; i++)
        x->scales[i] = kind == W_MOST ? 0xff : kind == W_ZERO ? 0 : (uint8_t)kc_rnd();
    for (uint64_t i = 0; i < p->table; i++) {
        x->table[i] = (uint8_t)kc_rnd();
        if (kind == W_MOST) x->table[i] = kc_below(2) ? 127 : 128;
        if (kind == W_ZERO) x->table[i] = 0;
    }
    for (uint64_t i = 0; i < fine.table && kind == W_ZERO; i++) x->fine_table[i] = 0;
    for (int r = 0; r < x->m.rows; r++) {
        uint16_t v = (uint16_t)kc_rnd();
        if (kind == W_TAME) v = (uint16_t)(kc_below(0x2000) + (kc_below(9) ? 0 : 0x8000));
        if (kind == W_MOST) v = kc_below(2) ? 0x7bff : 0xfbff;
        if (kind == W_ZERO) v = kc_below(2) ? 0x8000 : 0;
        put16(x->row_scales + 2 * r, v);
    }
    x->m.table = x->table;
    if (fine.codes && kc_below(2)) {
        x->m.fine_codes = x->fine_codes;
        x->m.fine_table = x->fine_table;
    }
}

static struct matrix make(enum sl_fmt fmt, int rows, int cols, enum weights kind)
{
    struct sl_planes p;
    struct matrix x = {.m = {.fmt = fmt, .rows = rows, .cols = cols}};
    assert_true(sl_fmt_planes(fmt, (uint64_t)rows, (uint64_t)cols, &p));
    x.codes = kc_bytes(p.codes);
    x.scales = kc_bytes(p.scales);
    x.row_scales = kc_bytes(p.row_scales);
    x.table = kc_bytes(p.table);
    if (sl_fmt_is_trellis(fmt)) {
        fill_trellis(&x, kind, &p);
    } else if (p.scales) {
        fill_mx(&x, kind, &p);
    } else if (fmt == SL_FMT_T8 || fmt == SL_FMT_T6 || fmt == SL_FMT_T4) {
        fill_trunk(&x, kind);
    } else {
        uint64_t size = sl_fmt_row_bytes(fmt, 1);
        for (uint64_t i = 0; i < p.codes; i += size) {
            if (kind != W_BYTES) put_plain(x.codes + i, fmt, kind);
            for (uint64_t j = 0; kind == W_BYTES && j < size; j++)
                x.codes[i + j] = (uint8_t)kc_rnd();
        }
    }
    x.m.codes = x.codes;
    x.m.scales = p.scales ? x.scales : NULL;
    x.m.row_scales = p.row_scales ? x.row_scales : NULL;
    return x;
}

static void drop(struct matrix *x)
{
    kc_free_bytes(x->codes, "codes");
    kc_free_bytes(x->scales, "scales");
    kc_free_bytes(x->row_scales, "row scales");
    kc_free_bytes(x->table, "table");
    if (x->fine_codes) kc_free_bytes(x->fine_codes, "fine codes");
    if (x->fine_table) kc_free_bytes(x->fine_table, "fine table");
}

/* The order of kernels.h, one rounding at a time. */
static float plain_dot(const float *a, const float *b, int n)
{
    volatile float lane[16];
    for (int j = 0; j < 16; j++) {
        lane[j] = 0.0f;
        for (int c = j; c < n; c += 16) {
            volatile float product = a[c] * b[c];
            lane[j] = lane[j] + product;
        }
    }
    for (int step = 8; step; step /= 2)
        for (int j = 0; j < step; j++) lane[j] = lane[j] + lane[j + step];
    return lane[0];
}

/* The order of mul_fused. */
static float fused_dot(const float *row, const float *x, int n)
{
    float sum = 0.0f;
    for (int c = 0; c < n; c++) sum = fmaf(x[c], row[c], sum);
    return sum;
}

static void one_product(bool fused, enum sl_fmt fmt, int rows, int row0, int row1, int cols,
                        int n_tok, enum weights wk, enum kc_fill xk)
{
    float (*const dot)(const float *, const float *, int) = fused ? fused_dot : plain_dot;
    struct matrix w = make(fmt, rows, cols, wk);
    size_t ldx = (size_t)(cols + kc_below(9)), ldy = (size_t)(rows + kc_below(5));
    size_t ny = (size_t)n_tok * ldy;
    float *x = kc_floats((size_t)n_tok * ldx), *want = kc_floats(ny),
          *row = kc_floats((size_t)cols);
    kc_fill(x, (size_t)n_tok * ldx, xk);
    for (size_t i = 0; i < ny; i++) want[i] = -12345.0f;
    for (int r = row0; r < row1; r++) {
        sl_mat_decode_row(&w.m, r, row);
        for (int t = 0; t < n_tok; t++)
            want[(size_t)t * ldy + (size_t)r] = dot(row, x + (size_t)t * ldx, cols);
    }
    for (int i = 0; i < kc_rungs(); i++) {
        float *y = kc_floats(ny);
        for (size_t j = 0; j < ny; j++) y[j] = -12345.0f;
        const struct sl_kernels *k = kc_rung(i);
        (fused ? k->mul_fused : k->mul)(&w.m, row0, row1, x, ldx, n_tok, y, ldy);
        kc_same(want, y, ny, kc_rung_name(i),
                "mul%s %s %d x %d, rows %d..%d, %d tokens, stride %zu, weights %d, x %d",
                fused ? "_fused" : "", sl_fmt_name(fmt), rows, cols, row0, row1, n_tok, ldx,
                (int)wk, (int)xk);
        kc_free(y, "y");
    }
    kc_free(x, "x");
    kc_free(want, "want");
    kc_free(row, "row");
    drop(&w);
}

static void one_case(enum sl_fmt fmt, int rows, int row0, int row1, int cols, int n_tok,
                     enum weights wk, enum kc_fill xk)
{
    for (int fused = 0; fused < 2; fused++)
        one_product(fused, fmt, rows, row0, row1, cols, n_tok, wk, xk);
}

static int fit(enum sl_fmt fmt, int cols)
{
    return sl_fmt_is_expert(fmt) ? (cols + 31) / 32 * 32 : cols;
}

/* Every width up to some blocks, so that every kind of tail is met. */
static void narrow(void **s)
{
    (void)s;
    for (int f = 0; f < N_FMTS; f++) {
        int step = sl_fmt_is_expert(fmts[f]) ? 32 : 1;
        for (int cols = step; cols <= 70 * (step == 32 ? 10 : 1); cols += step) {
            int n_tok = 1 + kc_below(9), rows = 1 + kc_below(11);
            one_case(fmts[f], rows, 0, rows, cols, n_tok, (enum weights)kc_below(2), KC_TAME);
        }
    }
}

/* Around the segment and panel lengths of the variants, and long rows. */
static void wide(void **s)
{
    (void)s;
    static const int widths[] = {511,  512,  513,  527,  1000, 1023, 1024, 1025, 1040, 2049,
                                 3072, 3584, 4095, 4096, 4097, 4128, 5000, 7168, 8224};
    for (int f = 0; f < N_FMTS; f++) {
        for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
            int cols = fit(fmts[f], widths[i]), rows = 1 + kc_below(6);
            one_case(fmts[f], rows, 0, rows, cols, 1 + kc_below(5), W_TAME, KC_TAME);
        }
    }
}

static void extremes(void **s)
{
    (void)s;
    for (int f = 0; f < N_FMTS; f++)
        for (int wk = 0; wk < W_KINDS; wk++)
            for (int xk = 0; xk < KC_FILLS; xk++)
                for (int n_tok = 1; n_tok <= 4; n_tok += 3)
                    one_case(fmts[f], 5, 0, 5, fit(fmts[f], 32 + kc_below(90)), n_tok,
                             (enum weights)wk, (enum kc_fill)xk);
}

/* Rows outside the range are neither read nor written; ranges of every length around the groups. */
static void ranges(void **s)
{
    (void)s;
    for (int f = 0; f < N_FMTS; f++) {
        for (int n = 0; n <= 20; n++) {
            int row0 = kc_below(7), rows = row0 + n + kc_below(7);
            one_case(fmts[f], rows ? rows : 1, rows ? row0 : 0, rows ? row0 + n : 0,
                     fit(fmts[f], 40 + kc_below(60)), 1 + kc_below(4), W_TAME, KC_TAME);
        }
        one_case(fmts[f], 150, 3, 140, fit(fmts[f], 65), 1, W_TAME, KC_TAME);
        one_case(fmts[f], 60, 2, 55, fit(fmts[f], 65), 5, W_TAME, KC_TAME);
    }
}

static void batches(void **s)
{
    (void)s;
    static const int counts[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  11, 12,
                                 13, 17, 18, 19, 46, 47, 48, 49, 50, 51, 97, 100};
    for (int f = 0; f < N_FMTS; f++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
            one_case(fmts[f], 6, 0, 6, fit(fmts[f], 60 + kc_below(20)), counts[i], W_TAME, KC_TAME);
}

/* The same token gives the same bits alone, and at any place in any batch. */
static void token_alone(void **s)
{
    (void)s;
    enum { ROWS = 21, COLS = 1056, TOKENS = 53 };
    float *x = kc_floats((size_t)TOKENS * COLS), *alone = kc_floats((size_t)ROWS);
    float *y = kc_floats((size_t)TOKENS * ROWS);
    kc_fill(x, (size_t)TOKENS * COLS, KC_TAME);
    for (int t = 1; t < TOKENS; t++) memcpy(x + (size_t)t * COLS, x, COLS * sizeof *x);
    for (int f = 0; f < N_FMTS; f++) {
        struct matrix w = make(fmts[f], ROWS, COLS, W_TAME);
        for (int i = 0; i < kc_rungs(); i++) {
            kc_rung(i)->mul(&w.m, 0, ROWS, x, COLS, 1, alone, ROWS);
            for (int n = 2; n <= TOKENS; n += n < 10 ? 1 : 43) {
                kc_rung(i)->mul(&w.m, 0, ROWS, x, COLS, n, y, ROWS);
                for (int t = 0; t < n; t++)
                    kc_same(alone, y + (size_t)t * ROWS, ROWS, kc_rung_name(i),
                            "mul %s: token %d of %d against the token alone", sl_fmt_name(fmts[f]),
                            t, n);
            }
        }
        drop(&w);
    }
    kc_free(x, "x");
    kc_free(alone, "alone");
    kc_free(y, "y");
}

/* Against double precision: n rounded products and sums stay within (n/16 + 5) * 2^-24 of the sum
 * of magnitudes. */
static void against_double(void **s)
{
    (void)s;
    enum { COLS = 3584 };
    float *x = kc_floats(COLS), *row = kc_floats(COLS);
    kc_fill(x, COLS, KC_TAME);
    for (int f = 0; f < N_FMTS; f++) {
        struct matrix w = make(fmts[f], 3, COLS, W_TAME);
        for (int r = 0; r < 3; r++) {
            double sum = 0, size = 0;
            sl_mat_decode_row(&w.m, r, row);
            for (int c = 0; c < COLS; c++) {
                sum += (double)row[c] * x[c];
                size += fabs((double)row[c] * x[c]);
            }
            for (int i = 0; i < kc_rungs(); i++) {
                float y[3];
                kc_rung(i)->mul(&w.m, r, r + 1, x, COLS, 1, y, 3);
                assert_true(size > 0 && fabs(y[r] - sum) <= (COLS / 16.0 + 5) * 0x1p-24 * size);
            }
        }
        drop(&w);
    }
    kc_free(x, "x");
    kc_free(row, "row");
}

static void dot(void **s)
{
    (void)s;
    for (int n = 0; n <= 300; n += n < 100 ? 1 : 37) {
        for (int kind = 0; kind < KC_FILLS; kind++) {
            float *a = kc_floats((size_t)n), *b = kc_floats((size_t)n);
            kc_fill(a, (size_t)n, (enum kc_fill)kind);
            kc_fill(b, (size_t)n, kc_below(2) ? KC_TAME : KC_WIDE);
            float want = plain_dot(a, b, n);
            for (int i = 0; i < kc_rungs(); i++) {
                float got = kc_rung(i)->dot(a, b, n);
                kc_same(&want, &got, 1, kc_rung_name(i), "dot of %d, fill %d", n, kind);
            }
            kc_free(a, "a");
            kc_free(b, "b");
        }
    }
}

/* A fused multiply-add, or another order, would give other bits on these. */
static void order_shows(void **s)
{
    (void)s;
    const float e = 0x1p-12f; /* (1 + e)^2 = 1 + 2e + e^2 needs 25 bits */
    float a[33], b[33];
    for (int i = 0; i < 33; i++) a[i] = b[i] = 0.0f;
    a[0] = 1.0f + 2.0f * e, b[0] = 1.0f;
    a[16] = 1.0f + e, b[16] = -(1.0f + e); /* fused: -e^2 is left over */
    for (int i = 0; i < kc_rungs(); i++) assert_true(kc_rung(i)->dot(a, b, 33) == 0.0f);
    /* 2^24 and 1 in one lane lose the 1; in two lanes of one pair they lose it; the -2^24 of another
     * lane meets them at the end. */
    for (int i = 0; i < 33; i++) a[i] = 0.0f, b[i] = 1.0f;
    a[0] = 0x1p24f, a[16] = 1.0f, a[1] = -0x1p24f, a[17] = 0.0f;
    for (int i = 0; i < kc_rungs(); i++) assert_true(kc_rung(i)->dot(a, b, 33) == 0.0f);
    a[16] = 0.0f, a[3] = 1.0f; /* lane 3 joins lane 1 before lane 0: -2^24 + 1 is exact */
    for (int i = 0; i < kc_rungs(); i++) assert_true(kc_rung(i)->dot(a, b, 33) == 1.0f);
}

int main(int argc, char **argv)
{
    kc_start(argc, argv, "test_mul");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(narrow),         cmocka_unit_test(wide),    cmocka_unit_test(extremes),
        cmocka_unit_test(ranges),         cmocka_unit_test(batches), cmocka_unit_test(token_alone),
        cmocka_unit_test(against_double), cmocka_unit_test(dot),     cmocka_unit_test(order_shows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
