/* Batch products: packing and the reference against the text of mul_batch.h, every variant against the
 * reference bit by bit, and how far the products are from those of exact floats. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/mul_batch.h"
#include "tests/kernels/kernel_check.h"
#include "tests/kernels/packed_matrix.h"

static const enum sl_fmt fmts[] = {SL_FMT_T8,  SL_FMT_T6,  SL_FMT_T4,  SL_FMT_MXFP4, SL_FMT_M4,
                                   SL_FMT_W26, SL_FMT_W36, SL_FMT_P36, SL_FMT_W16};
enum { N_FMTS = sizeof fmts / sizeof fmts[0], MOST_COLS = 1100 };

/* The variants of this machine, the reference first. */
static int variants(const struct sl_mul_batch *out[8])
{
    const unsigned cpu = sl_cpu_detect();
    const unsigned all[] = {0,
                            SL_CPU_AVX2,
                            SL_CPU_AVX2 | SL_CPU_AVX512 | SL_CPU_AVX512VNNI,
                            SL_CPU_NEON,
                            SL_CPU_NEON | SL_CPU_NEONDOT,
                            cpu};
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const struct sl_mul_batch *k = sl_mul_batch_for(all[i] & cpu);
        bool known = false;
        for (int j = 0; j < n; j++) known |= out[j] == k;
        if (!known) out[n++] = k;
    }
    assert_ptr_equal(out[0], &sl_mul_batch_c);
    return n;
}

static void packing(void **state)
{
    (void)state;
    for (int n = 0; n < 600; n++) {
        const enum sl_act_order order = (enum sl_act_order)(SL_ACT_NATURAL + n % 4);
        const int cols = 1 + kc_below(140), nb = (cols + 31) / 32;
        float *x = kc_floats((size_t)cols), *scale = kc_floats((size_t)nb);
        int8_t *q = (int8_t *)kc_bytes(sl_batch_bytes(cols));
        kc_fill(x, (size_t)cols, KC_TAME);
        for (int c = 0; c < cols; c++) x[c] *= ldexpf(1.0f, kc_below(20) - 10);
        if (n % 3 == 0) x[kc_below(cols)] = kc_below(2) ? FLT_MAX : -FLT_MAX;
        if (n % 4 == 0) x[kc_below(cols)] = 0x1p-149f;
        sl_mul_batch_c.pack(order, x, cols, q, scale);
        for (int i = 0; i < nb * 32; i++) {
            const int c = i / 32 * 32 + kp_column(order, i % 32);
            const double unit = (double)scale[i / 32];
            int16_t v;
            memcpy(&v, q + (size_t)i * 2, sizeof v);
            assert_true(abs(v) <= 32639);
            if (c >= cols)
                assert_int_equal(v, 0);
            else if (unit > 0)
                assert_true(fabs(v * unit - (double)x[c]) <= unit * 0.52);
            else
                assert_true(fabs((double)x[c]) < 0x1p-100);
        }
        kc_free(x, "x");
        kc_free(scale, "scale");
        kc_free_bytes((uint8_t *)q, "q");
    }
    float x[64], scale[2];
    int8_t q[128];
    const float bad[] = {NAN, INFINITY, -INFINITY};
    const struct sl_mul_batch *all[8];
    for (int i = 0, m = variants(all); i < m; i++)
        for (int k = 0; k < 3; k++) {
            for (int c = 0; c < 64; c++) x[c] = c < 32 ? 0x1p-110f : 1.0f;
            x[40] = bad[k];
            all[i]->pack(SL_ACT_NATURAL, x, 64, q, scale);
            assert_true(scale[0] == 0.0f && isnan(scale[1]));
            for (int c = 0; c < 128; c++) assert_int_equal(q[c], 0);
        }
}

/* Product from decoded weights: integers are recovered by exact division. q: of the reference. */
static float by_hand(const struct sl_mat *w, int r, const struct sl_batch_x *x, int t)
{
    const int nb = (w->cols + 31) / 32;
    const int8_t *q = x->q + (size_t)t * sl_batch_bytes(w->cols);
    float row[MOST_COLS], y = 0.0f;
    sl_mat_decode_row(w, r, row);
    for (int b = 0; b < nb; b++) {
        long d = 0;
        const double ws = kp_block_scale(w, r, b);
        for (int i = 0; i < 32; i++) {
            const int c = b * 32 + kp_column(x->order, i);
            int16_t v;
            if (c >= w->cols) continue;
            const double code = (double)row[c] / (ws * kp_row_scale(w, r));
            assert_true(code == rint(code) && fabs(code) <= 128);
            memcpy(&v, q + ((size_t)b * 32 + (size_t)i) * 2, sizeof v);
            d += (long)code * v;
        }
        volatile float f = (float)ws * x->scale[(size_t)t * (size_t)nb + (size_t)b];
        y = fmaf((float)d, f, y);
    }
    return (float)kp_row_scale(w, r) * y;
}

struct scene {
    struct kp_matrix w;
    int row0, row1, n_tok;
    float *x, *scale;
    int8_t *q;
    size_t ldy, ny;
};

static void open_scene(struct scene *s, enum sl_fmt fmt, int rows, int cols, int n_tok, bool ends)
{
    *s = (struct scene){.w = kp_make(fmt, rows, cols, ends), .n_tok = n_tok};
    s->row0 = kc_below(rows);
    s->row1 = s->row0 + kc_below(rows - s->row0 + 1);
    if (kc_below(2)) s->row0 = 0, s->row1 = rows;
    s->ldy = (size_t)(rows + kc_below(4));
    s->ny = (size_t)n_tok * s->ldy;
    const size_t n = (size_t)n_tok;
    s->x = kc_floats(n * (size_t)cols);
    s->scale = kc_floats(n * sl_act_scales(cols));
    s->q = (int8_t *)kc_bytes(n * sl_batch_bytes(cols));
    kc_fill(s->x, n * (size_t)cols, KC_TAME);
    for (size_t i = 0; i < n * (size_t)cols; i++)
        s->x[i] = ends ? (kc_below(2) ? 1.0f : -1.0f) : s->x[i] * ldexpf(1.0f, kc_below(8));
}

static void close_scene(struct scene *s)
{
    kc_free(s->x, "x");
    kc_free(s->scale, "scale");
    kc_free_bytes((uint8_t *)s->q, "q");
    kc_free_bytes(s->w.bytes, "planes");
}

static struct sl_batch_x packed(const struct scene *s, const struct sl_mul_batch *k)
{
    const int cols = s->w.m.cols;
    const enum sl_act_order order = sl_act_order_of(s->w.m.fmt);
    for (size_t t = 0; t < (size_t)s->n_tok; t++)
        k->pack(order, s->x + t * (size_t)cols, cols, s->q + t * sl_batch_bytes(cols),
                s->scale + t * sl_act_scales(cols));
    return (struct sl_batch_x){
        .order = order, .cols = cols, .n_tok = s->n_tok, .q = s->q, .scale = s->scale};
}

static float *blank(size_t n)
{
    float *y = kc_floats(n);
    for (size_t i = 0; i < n; i++) y[i] = -12345.0f;
    return y;
}

static void compare(const struct scene *s, const float *want, const struct sl_mul_batch *k)
{
    float *y = blank(s->ny);
    const struct sl_batch_x x = packed(s, k);
    k->mul(&s->w.m, s->row0, s->row1, &x, y, s->ldy);
    kc_same(want, y, s->ny, k->name, "%s %d x %d rows %d..%d tokens %d", sl_fmt_name(s->w.m.fmt),
            s->w.m.rows, s->w.m.cols, s->row0, s->row1, s->n_tok);
    kc_free(y, "y");
}

/* Small shapes, every variant against the text. */
static void products(void **state)
{
    (void)state;
    const struct sl_mul_batch *all[8];
    const int m = variants(all);
    for (int f = 0; f < N_FMTS; f++)
        for (int blocks = 1; blocks <= 18; blocks++)
            for (int ends = 0; ends < 2; ends++) {
                struct scene s;
                int cols = blocks * 32;
                if (!sl_fmt_is_expert(fmts[f])) cols -= kc_below(32);
                open_scene(&s, fmts[f], 1 + kc_below(6), cols, kc_below(5), ends);
                const struct sl_batch_x x = packed(&s, all[0]);
                float *want = blank(s.ny);
                for (int r = s.row0; r < s.row1; r++)
                    for (int t = 0; t < s.n_tok; t++)
                        want[(size_t)t * s.ldy + (size_t)r] = by_hand(&s.w.m, r, &x, t);
                for (int i = 0; i < m; i++) compare(&s, want, all[i]);
                kc_free(want, "want");
                close_scene(&s);
            }
}

/* Every number of tokens up to two tiles, and more than a variant keeps sums of; whole and cut panels. */
static void batches(void **state)
{
    (void)state;
    const struct sl_mul_batch *all[8];
    const int m = variants(all);
    for (int f = 0; f < N_FMTS; f++)
        for (int n = 1; n <= 20; n++) {
            static const int most[] = {127, 128, 131, 257};
            struct scene s;
            const int n_tok = n <= 16 ? n : most[n - 17];
            open_scene(&s, fmts[f], 1 + kc_below(70), 32 * (1 + kc_below(n <= 16 ? 30 : 3)), n_tok,
                       kc_below(2));
            float *want = blank(s.ny);
            const struct sl_batch_x x = packed(&s, all[0]);
            all[0]->mul(&s.w.m, s.row0, s.row1, &x, want, s.ldy);
            for (int i = 1; i < m; i++) compare(&s, want, all[i]);
            kc_free(want, "want");
            close_scene(&s);
        }
}

/* Sixteen bits of activation are nearly the exact product. */
static void distance(void **state)
{
    (void)state;
    for (int f = 0; f < N_FMTS; f++) {
        struct scene s;
        open_scene(&s, fmts[f], 8, 640, 3, false);
        const struct sl_mul_batch *k = sl_mul_batch_for(sl_cpu_detect());
        const struct sl_batch_x x = packed(&s, k);
        float exact[8], *got = blank(s.ny), row[640];
        double e = 0, n = 0; /* n: squares of the terms, which do not cancel */
        k->mul(&s.w.m, 0, 8, &x, got, s.ldy);
        for (size_t t = 0; t < 3; t++) {
            kc_rung(0)->mul(&s.w.m, 0, 8, s.x + t * 640, 640, 1, exact, 8);
            for (int r = 0; r < 8; r++) {
                const double d = (double)got[t * s.ldy + (size_t)r] - (double)exact[r];
                e += d * d;
                sl_mat_decode_row(&s.w.m, r, row);
                for (size_t c = 0; c < 640; c++) {
                    const double term = (double)row[c] * (double)s.x[t * 640 + c];
                    n += term * term;
                }
            }
        }
        assert_true(n > 0 && sqrt(e / n) < 0.0002);
        kc_free(got, "got");
        close_scene(&s);
    }
}

int main(int argc, char **argv)
{
    kc_start(argc, argv, "test_mul_batch");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing),
        cmocka_unit_test(products),
        cmocka_unit_test(batches),
        cmocka_unit_test(distance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
