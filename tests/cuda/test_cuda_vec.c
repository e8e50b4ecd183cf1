/* Vector kernels on the GPU against the C reference: bits where cuda_vec.h says BITS, else double. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/cuda/cuda_vec.h"
#include "kernels/reference.h"
#include "tests/cuda/cuda_check.h"

static float *floats(size_t n, enum kc_fill kind)
{
    float *x = calloc(n, sizeof *x);
    assert_non_null(x);
    kc_fill(x, n, kind);
    return x;
}

/* |got - want| within `units` of 2^-24 of `size`. */
static void near(float got, double want, double size, double units, const char *what)
{
    if (!(fabs((double)got - want) <= units * 0x1p-24 * size + 0x1p-140))
        fail_msg("%s: %.9g, expected %.9g (size %g)", what, (double)got, want, size);
}

static void norms(void **state)
{
    (void)state;
    struct sl_cuda *d = cu_need();
    for (int turn = 0; turn < 30; turn++) {
        const size_t n = 1 + (size_t)kc_below(turn % 3 ? 300 : 7168),
                     rows = 1 + (size_t)kc_below(4);
        float *x = floats(rows * n, KC_TAME), *w = floats(n, KC_TAME),
              *y = floats(rows * n, KC_TAME);
        float *dx = cu_up(x, rows * n * 4), *dw = cu_up(w, n * 4), *dy = cu_room(rows * n * 4);
        sl_cuda_rmsnorm(d, dy, n, dx, n, turn % 2 ? dw : NULL, (int)rows, (int)n, 1e-5f);
        cu_down(y, dy, rows * n * 4);
        for (size_t r = 0; r < rows; r++) {
            double s = 0;
            for (size_t i = 0; i < n; i++) s += (double)x[r * n + i] * (double)x[r * n + i];
            const double root = sqrt(s / (double)n + (double)1e-5f);
            for (size_t i = 0; i < n; i++) {
                const double v = (double)x[r * n + i] / root * (turn % 2 ? (double)w[i] : 1.0);
                near(y[r * n + i], v, fabs(v), 16, "rmsnorm");
            }
        }
        free(x), free(w), free(y);
        cu_free(dx), cu_free(dw), cu_free(dy);
    }
}

static void mixes(void **state)
{
    (void)state;
    struct sl_cuda *d = cu_need();
    for (int turn = 0; turn < 12; turn++) {
        const int banked = turn % 4 == 3 ? 9 + kc_below(20) : kc_below(9);
        const int slots = banked + 1 + kc_below(2);
        const size_t h = turn % 2 ? 7168 : turn % 4 ? 255 : 256, tok = 1 + (size_t)kc_below(3);
        const size_t ns = (size_t)slots, nv = tok * ns * h;
        float *v = floats(nv, KC_TAME), *w = floats(h, KC_TAME), *norm = floats(h, KC_TAME);
        float *rms = floats(tok * ns, KC_TAME), *x = floats(tok * h, KC_TAME);
        const bool plain = banked == 0 || kc_below(6) == 0;
        for (size_t t = 0; t < tok; t++)
            for (size_t k = 0; k < ns; k++) {
                const float *p = v + (t * ns + k) * h;
                rms[t * ns + k] = sqrtf(sl_dot_c(p, p, (int)h) / (float)h + 1e-5f);
            }
        if (turn == 5) v[((tok - 1) * ns + (size_t)banked) * h + 3] = NAN;
        float *dv = cu_up(v, nv * 4), *dw = cu_up(w, h * 4), *dn = cu_up(norm, h * 4);
        float *dr = cu_up(rms, tok * ns * 4), *dx = cu_room(tok * h * 4),
              *got_rms = malloc(tok * ns * 4);
        int bad = 0, *dbad = cu_up(&bad, sizeof bad);
        sl_cuda_mix(d, dx, dv, dr, slots, banked, plain ? NULL : dw, dn, (int)tok, (int)h, 1e-5f,
                    dbad);
        cu_down(x, dx, tok * h * 4);
        cu_down(got_rms, dr, tok * ns * 4);
        cu_down(&bad, dbad, sizeof bad);
        assert_int_equal(bad, turn == 5);
        for (size_t t = 0; t < tok && turn != 5; t++) {
            double s[32], top = -INFINITY, total = 0, sq = 0;
            const int n = banked + 1;
            near(got_rms[t * ns + (size_t)banked], (double)rms[t * ns + (size_t)banked],
                 (double)rms[t * ns + (size_t)banked], 16, "rms");
            for (int k = 0; k < n; k++) {
                s[k] = 0;
                for (size_t i = 0; i < h; i++)
                    s[k] += (double)v[(t * ns + (size_t)k) * h + i] * (double)w[i];
                s[k] /= (double)rms[t * ns + (size_t)k];
                top = s[k] > top ? s[k] : top;
            }
            for (int k = 0; k < n; k++) total += s[k] = exp(s[k] - top);
            double *m = calloc(h, sizeof *m);
            for (size_t i = 0; i < h; i++) {
                for (int k = 0; k < n; k++)
                    m[i] += s[k] / total * (double)v[(t * ns + (size_t)k) * h + i];
                if (plain) m[i] = (double)v[(t * ns + (size_t)banked) * h + i];
                sq += m[i] * m[i];
            }
            const double root = sqrt(sq / (double)h + (double)1e-5f);
            for (size_t i = 0; i < h;
                 i++) /* a score of size 60 moves the softmax by 60 roundings */
                near(x[t * h + i], m[i] / root * (double)norm[i], fabs((double)norm[i]) / root,
                     4096, "mix");
            free(m);
        }
        free(v), free(w), free(norm), free(rms), free(x), free(got_rms);
        cu_free(dv), cu_free(dw), cu_free(dn), cu_free(dr), cu_free(dx), cu_free(dbad);
    }
}

/* By the text: k times the best that is left, a tie to the lower id. */
static void routes(void **state)
{
    (void)state;
    struct sl_cuda *d = cu_need();
    for (int turn = 0; turn < 40; turn++) {
        const size_t n = turn % 2 ? 896 : 1 + (size_t)kc_below(turn % 8 ? 100 : 4096),
                     tok = 1 + (size_t)kc_below(4);
        const size_t k = 1 + (size_t)kc_below(n < 16 ? (int)n : 16);
        const int renorm = kc_below(2);
        float *x = floats(tok * n, KC_TAME), *bias = floats(n, KC_TAME),
              *got = floats(tok * n, KC_TAME);
        for (size_t i = 0; i < tok * n; i++) {
            x[i] = turn % 3 ? x[i] * 8 : (float)(kc_below(5) - 2); /* many ties */
            if (turn % 7 == 0) x[i] *= 1e30f;
        }
        for (size_t i = 0; i < n; i++) bias[i] = turn % 3 ? bias[i] : 0.0f;
        if (turn == 9) x[n / 2] = NAN;
        int *ids = malloc(tok * k * sizeof *ids), bad = 0, *dbad = cu_up(&bad, sizeof bad);
        float *weights = malloc(tok * k * sizeof *weights);
        float *dx = cu_up(x, tok * n * 4), *db = cu_up(bias, n * 4), *dwt = cu_room(tok * k * 4);
        int *dids = cu_room(tok * k * 4);
        sl_cuda_route(d, dx, db, (int)tok, (int)n, (int)k, renorm, 1.5f, dids, dwt, dbad);
        cu_down(ids, dids, tok * k * 4);
        cu_down(weights, dwt, tok * k * 4);
        cu_down(got, dx, tok * n * 4);
        cu_down(&bad, dbad, sizeof bad);
        assert_int_equal(bad, turn == 9);
        for (size_t t = 0; t < tok && turn != 9; t++) {
            float *s = x + t * n, sum = 0.0f;
            bool *taken = calloc(n, sizeof *taken);
            sl_sigmoid_c(s, s, (int)n);
            kc_same(s, got + t * n, n, "gpu", "sigmoids");
            for (size_t r = 0; r < k; r++) {
                size_t best = n;
                for (size_t e = 0; e < n; e++)
                    if (!taken[e] && (best == n || s[e] + bias[e] > s[best] + bias[best])) best = e;
                taken[best] = true;
                assert_int_equal(ids[t * k + r], best);
                sum += s[best];
            }
            for (size_t r = 0; r < k; r++) {
                float w = s[ids[t * k + r]];
                if (renorm && k > 1) w /= sum + 1e-20f;
                w *= 1.5f;
                kc_same(&w, &weights[t * k + r], 1, "gpu", "weight %zu of %zu", r, k);
            }
            free(taken);
        }
        free(x), free(bias), free(got), free(ids), free(weights);
        cu_free(dx), cu_free(db), cu_free(dwt), cu_free(dids), cu_free(dbad);
    }
}

static void sums(void **state)
{
    (void)state;
    struct sl_cuda *d = cu_need();
    for (int turn = 0; turn < KC_FILLS * 3; turn++) {
        const size_t tok = 1 + (size_t)kc_below(3), k = 1 + (size_t)kc_below(16),
                     n = 1 + (size_t)kc_below(4000);
        const enum kc_fill fill = (enum kc_fill)(turn % KC_FILLS);
        float *p = floats(tok * k, fill), *v = floats(tok * k * n, fill),
              *y = floats(tok * n, fill);
        float *want = malloc(tok * n * 4), *rows = malloc(k * n * 4);
        int *row = calloc(tok * k, sizeof *row);
        for (size_t i = 0; i < tok * k; i++) row[i] = kc_below((int)(tok * k));
        float *dp = cu_up(p, tok * k * 4), *dv = cu_up(v, tok * k * n * 4),
              *dy = cu_room(tok * n * 4);
        int *drow = cu_up(row, tok * k * 4);
        sl_cuda_weighted_rows(d, dy, n, dp, dv, n, turn % 2 ? drow : NULL, (int)tok, (int)k,
                              (int)n);
        cu_down(y, dy, tok * n * 4);
        for (size_t t = 0; t < tok; t++) {
            for (size_t r = 0; r < k; r++)
                memcpy(rows + r * n, v + (turn % 2 ? (size_t)row[t * k + r] : t * k + r) * n,
                       n * 4);
            sl_weighted_rows_c(want + t * n, p + t * k, rows, n, (int)k, (int)n);
        }
        kc_same(want, y, tok * n, "gpu", "weighted rows");
        const size_t m = tok * n < tok * k * n ? tok * n : tok * k * n;
        sl_add_c(want, y, v, (int)m);
        sl_cuda_add(d, dy, dy, dv, m);
        cu_down(y, dy, m * 4);
        kc_same(want, y, m, "gpu", "add");
        sl_situ_c(want, v, v, (int)m, 4, turn % 4 ? 25 : 0);
        sl_cuda_situ(d, dy, dv, dv, m, 4, turn % 4 ? 25 : 0);
        cu_down(y, dy, m * 4);
        kc_same(want, y, m, "gpu", "situ");
        free(p), free(v), free(y), free(want), free(rows), free(row);
        cu_free(dp), cu_free(dv), cu_free(dy), cu_free(drow);
    }
}

static void embeddings(void **state)
{
    (void)state;
    struct sl_cuda *d = cu_need();
    static const enum sl_fmt fmts[] = {SL_FMT_F32, SL_FMT_BF16, SL_FMT_F16,
                                       SL_FMT_T8,  SL_FMT_T6,   SL_FMT_T4};
    for (int turn = 0; turn < 18; turn++) {
        const enum sl_fmt fmt = fmts[turn % 6];
        const size_t cols = 1 + (size_t)kc_below(700), tok = 5;
        const bool plain = turn % 6 < 3;
        struct cu_matrix w = {.host = {.fmt = fmt, .rows = 40, .cols = (int)cols}};
        if (plain) {
            const size_t bytes = 40 * sl_fmt_row_bytes(fmt, cols);
            w.bytes = malloc(bytes);
            for (size_t i = 0; i < bytes; i++) w.bytes[i] = (uint8_t)kc_rnd();
            w.device = cu_up(w.bytes, bytes);
            w.gpu = w.host;
            w.host.codes = w.bytes;
            w.gpu.codes = w.device;
        } else {
            w = cu_matrix(fmt, 40, (int)cols, CU_RANDOM, false);
        }
        const int32_t ids[5] = {0, 39, 17, -1, 40};
        float *y = malloc(tok * cols * 4), *want = malloc(cols * 4);
        void *dids = cu_up(ids, sizeof ids);
        float *dy = cu_room(tok * cols * 4);
        sl_cuda_embed(d, dy, cols, &w.gpu, dids, (int)tok);
        cu_down(y, dy, tok * cols * 4);
        for (size_t t = 0; t < 3; t++) {
            sl_mat_decode_row(&w.host, ids[t], want);
            kc_same(want, y + t * cols, cols, "gpu", "%s row %d", sl_fmt_name(fmt), ids[t]);
        }
        for (size_t i = 3 * cols; i < tok * cols; i++) assert_true(isnan(y[i]));
        free(y), free(want);
        cu_free(dids), cu_free(dy);
        cu_matrix_free(&w);
    }
}

static void largest(void **state)
{
    (void)state;
    struct sl_cuda *d = cu_need();
    for (int turn = 0; turn < 40; turn++) {
        const size_t n = turn % 4 ? 1 + (size_t)kc_below(5000) : 163840, tok = 2;
        float *x = floats(tok * n, KC_TAME);
        for (size_t i = 0; i < tok * n && turn % 2; i++) x[i] = (float)kc_below(4); /* ties */
        if (turn % 5 == 0) x[0] = NAN;
        for (size_t i = 0; i < n && turn == 7; i++) x[i] = -INFINITY;
        int32_t out[2];
        float *dx = cu_up(x, tok * n * 4);
        int32_t *dout = cu_room(sizeof out);
        sl_cuda_argmax(d, dout, dx, n, (int)tok, (int)n);
        cu_down(out, dout, sizeof out);
        for (size_t t = 0; t < tok; t++) {
            size_t best = n;
            for (size_t i = 0; i < n; i++)
                if (!isnan(x[t * n + i]) && (best == n || x[t * n + i] > x[t * n + best])) best = i;
            assert_int_equal(out[t], best == n ? 0 : best);
        }
        free(x);
        cu_free(dx), cu_free(dout);
    }
}

static void head_products(void **state)
{
    (void)state;
    struct sl_cuda *d = cu_need();
    static const enum sl_fmt fmts[] = {SL_FMT_T8, SL_FMT_T4, SL_FMT_T6};
    for (int turn = 0; turn < 9; turn++) {
        enum { HEADS = 3, TOK = 2, STEP = 40, ROWS = 24, BASE = 7 };
        const size_t cols = 32 + (size_t)kc_below(300);
        struct cu_matrix w = cu_matrix(fmts[turn % 3], HEADS * STEP, (int)cols, CU_RANDOM, false);
        const struct sl_cuda_heads h = {HEADS, STEP, BASE, ROWS};
        const size_t n = (size_t)HEADS * TOK;
        float *x = floats(n * cols, KC_TAME), *y = malloc(n * cols * 4), *row = malloc(cols * 4);
        float *dx = cu_up(x, n * cols * 4), *dy = cu_room(n * cols * 4);
        double *want = calloc(cols, sizeof *want), *size = calloc(cols, sizeof *size);
        sl_cuda_head_mul(d, dy, cols, &w.gpu, &h, dx, cols, (int)n);
        cu_down(y, dy, n * cols * 4);
        for (size_t t = 0; t < n; t++)
            for (size_t r = 0; r < ROWS; r++) {
                double s = 0, terms = 0;
                sl_mat_decode_row(&w.host, (int)(BASE + t % HEADS * STEP + r), row);
                for (size_t c = 0; c < cols; c++) {
                    s += (double)row[c] * (double)x[t * cols + c];
                    terms += fabs((double)row[c] * (double)x[t * cols + c]);
                }
                near(y[t * cols + r], s, terms, 24, "head product");
            }
        sl_cuda_head_mul_t(d, dy, cols, &w.gpu, &h, dx, cols, (int)n);
        cu_down(y, dy, n * cols * 4);
        for (size_t t = 0; t < n; t++) {
            for (size_t c = 0; c < cols; c++) want[c] = size[c] = 0;
            for (size_t r = 0; r < ROWS; r++) {
                sl_mat_decode_row(&w.host, (int)(BASE + t % HEADS * STEP + r), row);
                for (size_t c = 0; c < cols; c++) {
                    want[c] += (double)row[c] * (double)x[t * cols + r];
                    size[c] += fabs((double)row[c] * (double)x[t * cols + r]);
                }
            }
            for (size_t c = 0; c < cols; c++)
                near(y[t * cols + c], want[c], size[c], 24, "transposed head product");
        }
        free(x), free(y), free(row), free(want), free(size);
        cu_free(dx), cu_free(dy);
        cu_matrix_free(&w);
    }
}

int main(int argc, char **argv)
{
    cu_start(argc, argv, "test_cuda_vec");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),         cmocka_unit_test(mixes),      cmocka_unit_test(routes),
        cmocka_unit_test(sums),          cmocka_unit_test(embeddings), cmocka_unit_test(largest),
        cmocka_unit_test(head_products),
    };
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    cu_end();
    return rc;
}
