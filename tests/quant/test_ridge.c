/* Ridge regression: fits equal a direct solve of the normal equations taken from the rows themselves,
 * whatever the cut of rows and threads; penalties shrink; what cannot be solved is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "quant/ridge.h"
#include "tests/kernels/kernel_check.h"

struct data {
    int n, n_in, n_out;
    float *x, *y;
};

static float value(void)
{
    return (float)(kc_below(2001) - 1000) / 512.0f;
}

static void make(struct data *d, int n, int n_in, int n_out)
{
    *d = (struct data){n, n_in, n_out, NULL, NULL};
    d->x = malloc((size_t)(n * n_in) * sizeof(float));
    d->y = malloc((size_t)(n * n_out) * sizeof(float));
    for (int i = 0; i < n * n_in; i++) d->x[i] = value();
    for (int i = 0; i < n * n_out; i++) d->y[i] = value() + 0.5f;
}

static void drop(struct data *d)
{
    free(d->x);
    free(d->y);
}

/* Feeds rows in pieces of at most `step`, rows of the sums cut in two. */
static void feed(struct sl_ridge *r, const struct data *d, int step)
{
    struct sl_kernels k;
    sl_kernels_init(&k, sl_cpu_detect());
    float *work = malloc(sl_ridge_work_floats(step, d->n_in, d->n_out) * sizeof *work);
    for (int at = 0; at < d->n; at += step) {
        int n = d->n - at < step ? d->n - at : step, cut = kc_below(d->n_in + 2);
        sl_ridge_pack(r, work, d->x + at * d->n_in, (size_t)d->n_in, d->y + at * d->n_out,
                      (size_t)d->n_out, n);
        sl_ridge_add(r, work, n, 0, cut, &k);
        sl_ridge_add(r, work, n, cut, d->n_in + 1, &k);
    }
    free(work);
}

/* Gaussian elimination with pivoting on [A | B] of side d and m right sides, in place. */
static void eliminate(double *a, int d, int m)
{
    const int ld = d + m;
    for (int c = 0; c < d; c++) {
        int best = c;
        for (int r = c + 1; r < d; r++)
            if (fabs(a[r * ld + c]) > fabs(a[best * ld + c])) best = r;
        for (int j = 0; j < ld; j++) {
            double t = a[c * ld + j];
            a[c * ld + j] = a[best * ld + j];
            a[best * ld + j] = t;
        }
        for (int r = 0; r < d; r++) {
            double f = r == c ? 0 : a[r * ld + c] / a[c * ld + c];
            for (int j = c; j < ld && f != 0; j++) a[r * ld + j] -= f * a[c * ld + j];
        }
    }
    for (int r = 0; r < d; r++)
        for (int j = 0; j < m; j++) a[r * ld + d + j] /= a[r * ld + r];
}

/* The normal equations by plain loops over the rows. */
static double *direct(const struct data *d, double lambda)
{
    const int D = d->n_in + 1, ld = D + d->n_out;
    double *a = calloc((size_t)(D * ld), sizeof *a), trace = 0;
    for (int t = 0; t < d->n; t++)
        for (int i = 0; i < D; i++) {
            double xi = i < d->n_in ? (double)d->x[t * d->n_in + i] : 1;
            for (int j = 0; j < ld; j++)
                a[i * ld + j] +=
                    xi * (j < d->n_in    ? (double)d->x[t * d->n_in + j]
                          : j == d->n_in ? 1
                                         : (double)d->y[t * d->n_out + j - d->n_in - 1]);
        }
    for (int i = 0; i < d->n_in; i++) trace += a[i * ld + i];
    for (int i = 0; i < d->n_in; i++) a[i * ld + i] += lambda * trace / d->n_in;
    eliminate(a, D, d->n_out);
    return a;
}

static void equals_a_direct_solve(void **state)
{
    (void)state;
    static const double lambdas[] = {0, 1e-3, 0.3};
    struct sl_pool *pool;
    assert_int_equal(sl_pool_open(&pool, 3, NULL), 0);
    for (int round = 0; round < 9; round++) {
        struct data d;
        int n_in = 1 + kc_below(90), n_out = 1 + kc_below(40);
        make(&d, 3 * n_in + 20, n_in, n_out);
        struct sl_ridge r;
        assert_int_equal(sl_ridge_open(&r, n_in, n_out, NULL), 0);
        feed(&r, &d, 1 + kc_below(70));
        float *W = malloc((size_t)(n_in * n_out) * sizeof *W),
              *b = malloc((size_t)n_out * sizeof *b);
        float *V = malloc((size_t)(n_in * n_out) * sizeof *V),
              *c = malloc((size_t)n_out * sizeof *c);
        const double lambda = lambdas[round % 3];
        assert_int_equal(sl_ridge_solve(&r, lambda, NULL, W, b, NULL), 0);
        assert_int_equal(sl_ridge_solve(&r, lambda, pool, V, c, NULL), 0);
        assert_memory_equal(W, V, (size_t)(n_in * n_out) * sizeof *W);
        assert_memory_equal(b, c, (size_t)n_out * sizeof *b);
        double *a = direct(&d, lambda);
        const int ld = n_in + 1 + n_out;
        for (int o = 0; o < n_out; o++) {
            for (int i = 0; i < n_in; i++)
                assert_true(fabs((double)W[o * n_in + i] - a[i * ld + n_in + 1 + o]) < 2e-5);
            assert_true(fabs((double)b[o] - a[n_in * ld + n_in + 1 + o]) < 2e-5);
        }
        free(a);
        free(W);
        free(b);
        free(V);
        free(c);
        sl_ridge_close(&r);
        drop(&d);
    }
    sl_pool_close(pool);
}

/* Rows made by a known map come back as that map; with a great penalty only the mean is left. */
static void finds_the_map_and_shrinks_to_the_mean(void **state)
{
    (void)state;
    enum { IN = 24, OUT = 5, N = 300 };
    float map[OUT][IN], off[OUT], W[OUT * IN], b[OUT];
    struct data d;
    struct sl_ridge r;
    double mean[OUT] = {0};
    make(&d, N, IN, OUT);
    for (int o = 0; o < OUT; o++) {
        off[o] = value();
        for (int i = 0; i < IN; i++) map[o][i] = value();
    }
    for (int t = 0; t < N; t++)
        for (int o = 0; o < OUT; o++) {
            double y = (double)off[o];
            for (int i = 0; i < IN; i++) y += (double)map[o][i] * (double)d.x[t * IN + i];
            d.y[t * OUT + o] = (float)y;
            mean[o] += y / N;
        }
    assert_int_equal(sl_ridge_open(&r, IN, OUT, NULL), 0);
    feed(&r, &d, 64);
    assert_int_equal(sl_ridge_solve(&r, 0, NULL, W, b, NULL), 0);
    for (int o = 0; o < OUT; o++) {
        assert_true(fabsf(b[o] - off[o]) < 1e-4f);
        for (int i = 0; i < IN; i++) assert_true(fabsf(W[o * IN + i] - map[o][i]) < 1e-4f);
    }
    assert_int_equal(sl_ridge_solve(&r, 1e9, NULL, W, b, NULL), 0);
    for (int o = 0; o < OUT; o++) {
        assert_true(fabs((double)b[o] - mean[o]) < 1e-4);
        for (int i = 0; i < IN; i++) assert_true(fabsf(W[o * IN + i]) < 1e-6f);
    }
    sl_ridge_close(&r);
    drop(&d);
}

static void refuses_what_has_no_answer(void **state)
{
    (void)state;
    struct data d;
    struct sl_ridge r;
    struct sl_err err = {0};
    float W[16 * 3], b[3];
    assert_int_equal(sl_ridge_open(&r, 16, 3, NULL), 0);
    assert_int_equal(sl_ridge_solve(&r, 1, NULL, W, b, &err), SL_E_ARG); /* no rows */
    make(&d, 5, 16, 3);
    feed(&r, &d, 5);
    assert_int_equal(sl_ridge_solve(&r, 0, NULL, W, b, &err),
                     SL_E_ARG); /* fewer rows than inputs */
    assert_non_null(strstr(err.text, "dependent"));
    assert_int_equal(sl_ridge_solve(&r, 1e-3, NULL, W, b, NULL), 0);
    assert_int_equal(sl_ridge_solve(&r, -1, NULL, W, b, NULL), SL_E_ARG);
    assert_int_equal(sl_ridge_solve(&r, (double)NAN, NULL, W, b, NULL), SL_E_ARG);
    sl_ridge_close(&r);
    drop(&d);
    assert_true(sl_ridge_bytes(0, 3) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_a_direct_solve),
        cmocka_unit_test(finds_the_map_and_shrinks_to_the_mean),
        cmocka_unit_test(refuses_what_has_no_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
