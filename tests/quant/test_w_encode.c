/* Encoder of the trellis formats: what it reports is what its bytes decode to, the same bytes on every
 * rung, rows at the ends of the range, refusals, and what feedback and training are for. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/size.h"
#include "quant/w_encode.h"
#include "tests/kernels/kernel_check.h"

static const enum sl_fmt fmts[] = {SL_FMT_W26, SL_FMT_W36, SL_FMT_P36, SL_FMT_W16};
enum { N_FMTS = sizeof fmts / sizeof fmts[0] };

struct packed {
    struct sl_mat m;
    struct sl_w_planes out;
    struct sl_w_report report;
    uint8_t *bytes;
    size_t n;
};

static float bell(void)
{
    float s = 0;
    for (int i = 0; i < 6; i++) s += kc_float(KC_TAME);
    return s;
}

static float *bells(int n, float scale)
{
    float *w = kc_floats((size_t)n);
    for (int i = 0; i < n; i++) w[i] = scale * bell();
    return w;
}

static void *scratch_for(int cols)
{
    void *p = aligned_alloc(64, sl_align_up(sl_w_scratch_bytes(cols), 64));
    assert_non_null(p);
    memset(p, 0x5a, sl_w_scratch_bytes(cols)); /* nothing may be left over from before */
    return p;
}

static uint8_t *next(uint8_t **at, uint64_t bytes)
{
    uint8_t *p = *at;
    *at += bytes;
    return p;
}

static struct packed room(enum sl_fmt fmt, int rows, int cols)
{
    struct sl_planes p, fine;
    struct packed x = {.m = {.fmt = fmt, .rows = rows, .cols = cols}};
    assert_true(sl_fmt_planes(fmt, (uint64_t)rows, (uint64_t)cols, &p));
    sl_fmt_fine_planes(fmt, (uint64_t)rows, (uint64_t)cols, &fine);
    x.n = p.codes + p.scales + p.row_scales + p.table + fine.codes + fine.table;
    uint8_t *at = x.bytes = kc_bytes(x.n);
    x.m.codes = x.out.codes = next(&at, p.codes);
    x.m.scales = x.out.scales = next(&at, p.scales);
    x.m.row_scales = x.out.row_scales = next(&at, p.row_scales);
    x.m.table = x.out.table = next(&at, p.table);
    if (!fine.codes) return x;
    x.m.fine_codes = x.out.fine_codes = next(&at, fine.codes);
    x.m.fine_table = x.out.fine_table = next(&at, fine.table);
    return x;
}

static int sweeps = 1;

static int encode(struct packed *x, const struct sl_w_tables *t, const float *w, const float *h,
                  const struct sl_w_feedback *f, int rung, struct sl_err *err)
{
    struct sl_trellis search;
    sl_trellis_init(&search, kc_rung(rung)->cpu);
    struct sl_w_job job = {.tables = t,
                           .search = &search,
                           .w = w,
                           .rows = x->m.rows,
                           .cols = x->m.cols,
                           .h = h,
                           .feedback = f,
                           .rounds = 2,
                           .sweeps = sweeps};
    void *scratch = scratch_for(x->m.cols);
    int rc = sl_w_encode(&job, scratch, &x->out, &x->report, err);
    free(scratch);
    return rc;
}

static struct sl_w_tables seed(enum sl_fmt fmt)
{
    struct sl_w_tables t;
    sl_w_tables_seed(&t, fmt, 0.25f);
    float top = 0;
    for (int i = 0; i < 128; i++) top = fmaxf(top, fmaxf(fabsf(t.t2[i & 63]), fabsf(t.t3[i])));
    assert_true(top > 0);
    sl_w_tables_round(&t);
    return t;
}

/* sum of h (w - q)^2 of the decoded planes. */
static double decoded_error(const struct sl_mat *m, const float *w, const float *h)
{
    float *row = kc_floats((size_t)m->cols);
    double sum = 0;
    for (int r = 0; r < m->rows; r++) {
        sl_mat_decode_row(m, r, row);
        for (int c = 0; c < m->cols; c++) {
            double e = (double)w[r * m->cols + c] - (double)row[c];
            sum += (h ? (double)h[c] : 1.0) * e * e;
        }
    }
    kc_free(row, "row");
    return sum;
}

static bool close_to(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

static void report_is_decoded(void **s)
{
    (void)s;
    for (int f = 0; f < N_FMTS; f++)
        for (int blocks = 1; blocks <= 11; blocks += 2) /* odd: half a word of w16 is unused */
            for (int weighted = 0; weighted < 2; weighted++) {
                int rows = 1 + kc_below(35), cols = 32 * (blocks + kc_below(2));
                struct sl_w_tables t = seed(fmts[f]);
                float *w = bells(rows * cols, 0.02f), *h = kc_floats((size_t)cols);
                for (int c = 0; c < cols; c++) h[c] = kc_below(5) ? expf(bell()) : 0.0f;
                for (int c = 0; c < cols; c++) w[(rows - 1) * cols + c] *= c < 32 ? 9.0f : 0.1f;
                const float *hh = weighted ? h : NULL;
                struct packed x = room(fmts[f], rows, cols);
                assert_int_equal(encode(&x, &t, w, hh, NULL, 0, NULL), 0);
                assert_true(close_to(x.report.err2, decoded_error(&x.m, w, hh)));
                double norm = 0;
                for (int i = 0; i < rows * cols; i++)
                    norm += (hh ? (double)hh[i % cols] : 1.0) * (double)w[i] * (double)w[i];
                assert_true(close_to(x.report.norm2, norm));
                double bits = fmts[f] == SL_FMT_W16 ? 0.6 : fmts[f] == SL_FMT_W26 ? 0.2 : 0.1;
                assert_true(blocks < 3 || x.report.err2 < bits * norm);
                if (fmts[f] == SL_FMT_P36) {
                    x.m.fine_codes = x.m.fine_table = NULL;
                    assert_true(close_to(x.report.base_err2, decoded_error(&x.m, w, hh)));
                    assert_true(blocks < 3 || x.report.base_err2 < 0.25 * norm);
                }
                kc_free_bytes(x.bytes, "planes");
                kc_free(w, "w");
                kc_free(h, "h");
            }
}

/* Symmetric, positive, with columns that move together. Caller frees. */
static double *covariance(int n)
{
    double *H = malloc((size_t)n * (size_t)n * sizeof *H);
    assert_non_null(H);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) H[i * n + j] = pow(0.9, abs(i - j)) * (1 + i % 7) * (1 + j % 7);
    return H;
}

static void open_feedback(struct sl_w_feedback *f, int cols)
{
    double *H = covariance(cols);
    struct sl_err err;
    assert_int_equal(sl_w_feedback_open(f, H, cols, 0.01, &err), 0);
    free(H);
}

static void same_bytes_on_rungs(void **s)
{
    (void)s;
    enum { ROWS = 21, COLS = 160 };
    struct sl_w_feedback f;
    open_feedback(&f, COLS);
    float *w = bells(ROWS * COLS, 0.01f), h[COLS];
    for (int c = 0; c < COLS; c++) h[c] = expf(bell());
    for (int i = 0; i < N_FMTS; i++)
        for (int how = 0; how < 3; how++) {
            struct sl_w_tables t = seed(fmts[i]);
            struct packed want = room(fmts[i], ROWS, COLS);
            const float *hh = how == 1 ? h : NULL;
            const struct sl_w_feedback *ff = how == 2 ? &f : NULL;
            assert_int_equal(encode(&want, &t, w, hh, ff, 0, NULL), 0);
            for (int r = 1; r < kc_rungs(); r++) {
                struct packed got = room(fmts[i], ROWS, COLS);
                assert_int_equal(encode(&got, &t, w, hh, ff, r, NULL), 0);
                assert_memory_equal(got.bytes, want.bytes, want.n);
                assert_memory_equal(&got.report, &want.report, sizeof want.report);
                kc_free_bytes(got.bytes, "planes");
            }
            /* A row's bytes do not depend on its neighbours. */
            struct packed last = room(fmts[i], 1, COLS);
            assert_int_equal(encode(&last, &t, w + (ROWS - 1) * COLS, hh, ff, 0, NULL), 0);
            float a[COLS], b[COLS];
            sl_mat_decode_row(&last.m, 0, a);
            sl_mat_decode_row(&want.m, ROWS - 1, b);
            kc_same(b, a, COLS, "c", "%s: last row alone", sl_fmt_name(fmts[i]));
            kc_free_bytes(last.bytes, "planes");
            kc_free_bytes(want.bytes, "planes");
        }
    kc_free(w, "w");
    sl_w_feedback_close(&f);
}

static void ends_of_the_range(void **s)
{
    (void)s;
    enum { ROWS = 5, COLS = 96 };
    for (int i = 0; i < N_FMTS; i++) {
        struct sl_w_tables t = seed(fmts[i]);
        struct packed x = room(fmts[i], ROWS, COLS);
        struct sl_err err;
        float *w = bells(ROWS * COLS, 1.0f), row[COLS];
        for (int c = 0; c < COLS; c++) {
            w[c] = 0.0f;
            w[COLS + c] *= 2e3f;       /* near the largest row scale */
            w[2 * COLS + c] *= 1e-30f; /* far below the least: becomes zero */
            w[3 * COLS + c] = c == 40 ? 1.0f : 0.0f;
        }
        assert_int_equal(encode(&x, &t, w, NULL, NULL, kc_rungs() - 1, &err), 0);
        for (int r = 0; r <= 2; r += 2) {
            sl_mat_decode_row(&x.m, r, row);
            for (int c = 0; c < COLS; c++) assert_true(row[c] == 0.0f);
        }
        double e = 0, n = 0;
        sl_mat_decode_row(&x.m, 1, row);
        for (int c = 0; c < COLS; c++) {
            e += ((double)row[c] - (double)w[COLS + c]) * ((double)row[c] - (double)w[COLS + c]);
            n += (double)w[COLS + c] * (double)w[COLS + c];
        }
        assert_true(e < 0.5 * n);
        assert_true(isfinite(x.report.err2) &&
                    close_to(x.report.err2, decoded_error(&x.m, w, NULL)));

        w[4 * COLS + 7] = 1e12f;
        assert_int_equal(encode(&x, &t, w, NULL, NULL, 0, &err), SL_E_ARG);
        assert_non_null(strstr(err.text, "row 4 "));
        const float bad[] = {NAN, INFINITY, -INFINITY};
        for (int k = 0; k < 3; k++) {
            w[4 * COLS + 7] = bad[k];
            assert_int_equal(encode(&x, &t, w, NULL, NULL, 0, &err), SL_E_ARG);
            assert_non_null(strstr(err.text, "row 4 column 7 "));
        }
        w[4 * COLS + 7] = 0.0f;
        assert_int_equal(encode(&x, &t, w, NULL, NULL, 0, &err), 0); /* the control */
        kc_free(w, "w");
        kc_free_bytes(x.bytes, "planes");
    }
}

static double metric_error(const struct sl_mat *m, const float *w, const double *H)
{
    double sum = 0;
    float *row = kc_floats((size_t)m->cols);
    for (int r = 0; r < m->rows; r++) {
        sl_mat_decode_row(m, r, row);
        for (int i = 0; i < m->cols; i++)
            for (int j = 0; j < m->cols; j++)
                sum += ((double)w[r * m->cols + i] - (double)row[i]) * H[i * m->cols + j] *
                       ((double)w[r * m->cols + j] - (double)row[j]);
    }
    kc_free(row, "row");
    return sum;
}

/* On columns that move together feedback leaves less e H e' than the diagonal alone, that less than no
 * weights; a sweep leaves less again and more of them do no harm (H is damped
 * in the search, not here). p36: both readings count. */
static void feedback_helps(void **s)
{
    (void)s;
    enum { ROWS = 16, COLS = 192 };
    struct sl_w_feedback f;
    open_feedback(&f, COLS);
    double *H = covariance(COLS);
    float *w = bells(ROWS * COLS, 0.02f), h[COLS];
    for (int c = 0; c < COLS; c++) h[c] = (float)H[c * COLS + c];
    void *scratch = scratch_for(COLS);
    struct sl_trellis search;
    sl_trellis_init(&search, kc_rung(kc_rungs() - 1)->cpu);
    for (int i = 0; i < 3; i++) { /* w16 goes without */
        struct sl_w_tables t;
        sl_w_tables_seed(&t, fmts[i], 0.25f);
        assert_int_equal(sl_w_tables_train(&t, &search, w, ROWS, COLS, NULL, 20, scratch, NULL), 0);
        struct packed x = room(fmts[i], ROWS, COLS);
        double e[5];
        for (int how = 0; how < 5; how++) {
            sweeps = how == 4 ? 3 : how == 3;
            assert_int_equal(
                encode(&x, &t, w, how == 1 ? h : NULL, how >= 2 ? &f : NULL, kc_rungs() - 1, NULL),
                0);
            e[how] = metric_error(&x.m, w, H);
            if (fmts[i] != SL_FMT_P36) continue;
            struct sl_mat base = x.m;
            base.fine_codes = base.fine_table = NULL;
            e[how] = 0.75 * e[how] + 0.25 * metric_error(&base, w, H);
        }
        print_message("%s: e H e' %.4g plain, %.4g diagonal, %.4g feedback, %.4g swept once, %.4g "
                      "three times\n",
                      sl_fmt_name(fmts[i]), e[0], e[1], e[2], e[3], e[4]);
        assert_true(e[1] < e[0] && e[2] < 0.9 * e[1] && e[3] < 0.99 * e[2] && e[4] < 1.002 * e[3]);
        kc_free_bytes(x.bytes, "planes");
    }
    struct sl_err err;
    for (int c = 0; c < COLS; c++) H[c * COLS + c] = -1.0;
    assert_int_equal(sl_w_feedback_open(&(struct sl_w_feedback){0}, H, COLS, 0.01, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "not positive definite"));
    assert_int_equal(sl_w_feedback_open(&(struct sl_w_feedback){0}, H, 40, 0.01, &err), SL_E_ARG);
    free(H);
    free(scratch);
    kc_free(w, "w");
    sl_w_feedback_close(&f);
}

/* Tables learn a distribution that is not the seed's, are integers within int8, and do not depend on
 * the rung. */
static void training_helps(void **s)
{
    (void)s;
    enum { ROWS = 48, COLS = 256 };
    float *w = bells(ROWS * COLS, 0.02f);
    for (int i = 0; i < ROWS * COLS; i++) w[i] = kc_below(3) ? w[i] : 3.0f * w[i];
    for (int i = 0; i < N_FMTS; i++) {
        struct sl_w_tables first = seed(fmts[i]), t[SL_CPU_RUNGS];
        void *scratch = scratch_for(COLS);
        for (int r = 0; r < kc_rungs(); r++) {
            struct sl_trellis search;
            sl_trellis_init(&search, kc_rung(r)->cpu);
            sl_w_tables_seed(&t[r], fmts[i], 0.25f);
            assert_int_equal(
                sl_w_tables_train(&t[r], &search, w, ROWS, COLS, NULL, 8, scratch, NULL), 0);
            assert_memory_equal(&t[r], &t[0], sizeof t[0]);
        }
        float top = 0;
        for (int k = 0; k < 192; k++) {
            float v = k < 64 ? t[0].t2[k] : t[0].t3[k - 64];
            assert_true(v == rintf(v) && fabsf(v) <= 127);
            top = fmaxf(top, fabsf(v));
        }
        assert_true(top == 127.0f);
        struct packed x = room(fmts[i], ROWS, COLS), y = room(fmts[i], ROWS, COLS);
        assert_int_equal(encode(&x, &first, w, NULL, NULL, kc_rungs() - 1, NULL), 0);
        assert_int_equal(encode(&y, &t[0], w, NULL, NULL, kc_rungs() - 1, NULL), 0);
        print_message("%s: relative error %.4f with the seed, %.4f trained\n", sl_fmt_name(fmts[i]),
                      sqrt(x.report.err2 / x.report.norm2), sqrt(y.report.err2 / y.report.norm2));
        assert_true(y.report.err2 < x.report.err2);
        kc_free_bytes(x.bytes, "planes");
        kc_free_bytes(y.bytes, "planes");
        free(scratch);
    }
    w[5] = NAN;
    struct sl_trellis search;
    struct sl_w_tables t = seed(SL_FMT_W26);
    struct sl_err err;
    void *scratch = scratch_for(COLS);
    sl_trellis_init(&search, 0);
    assert_int_equal(sl_w_tables_train(&t, &search, w, ROWS, COLS, NULL, 1, scratch, &err),
                     SL_E_ARG);
    assert_non_null(strstr(err.text, "row 0 column 5 "));
    assert_int_equal(sl_w_tables_train(&t, &search, w, ROWS, 40, NULL, 1, scratch, &err), SL_E_ARG);
    free(scratch);
    kc_free(w, "w");
}

int main(int argc, char **argv)
{
    kc_start(argc, argv, "test_w_encode");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(report_is_decoded), cmocka_unit_test(same_bytes_on_rungs),
        cmocka_unit_test(ends_of_the_range), cmocka_unit_test(feedback_helps),
        cmocka_unit_test(training_helps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
