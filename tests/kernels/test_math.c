/* exp, sigmoid, tanh and silu: accuracy of the reference against double precision, values at the
 * ends, and every rung against the reference.
 *
 * A run samples; `test_math --all` goes over all 2^32 floats (ten minutes) and prints the largest
 * errors. Last such run, in ulp: exp 0.9888, sigmoid 2.4019, tanh 1.3320. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "tests/kernels/kernel_check.h"

typedef void (*unary)(float *y, const float *x, int n);
enum { BATCH = 4096 };

static double exact_exp(double x)
{
    return exp(x);
}
static double exact_sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}
static double exact_tanh(double x)
{
    return tanh(x);
}

static unary slot_of(const struct sl_kernels *k, int f)
{
    const unary slots[] = {k->exp, k->sigmoid, k->tanh, k->silu};
    return slots[f];
}
static const char *const slot_names[] = {"exp", "sigmoid", "tanh", "silu"};

static const struct {
    double (*exact)(double);
    double bound; /* ulp */
} judged[] = {{exact_exp, 1.0}, {exact_sigmoid, 2.5}, {exact_tanh, 1.4}};

static float of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Largest error over one batch; a NaN must stay one, and neighbours must not step back by more than
 * the error bound allows. */
static double worst_of(int f, const float *x, float *y, int n)
{
    double worst = 0;
    slot_of(kc_rung(0), f)(y, x, n);
    for (int i = 0; i < n; i++) {
        if (isnan(x[i])) {
            assert_true(isnan(y[i]));
            continue;
        }
        double e = kc_ulp(y[i], judged[f].exact(x[i]));
        if (!(e <= judged[f].bound))
            fail_msg("%s(%a) = %a, off by %g ulp", slot_names[f], (double)x[i], (double)y[i], e);
        worst = worst > e ? worst : e;
    }
    return worst;
}

static void accuracy(void **s)
{
    (void)s;
    static float x[BATCH], y[BATCH];
    for (int f = 0; f < 3; f++) {
        double worst = 0;
        for (int round = 0; round < 60; round++) {
            for (int i = 0; i < BATCH; i++) {
                x[i] = of_bits(kc_rnd());                              /* any float */
                if (round % 3 == 1) x[i] = kc_float(KC_TAME) * 110.0f; /* where exp lives */
                if (round % 3 == 2) x[i] = kc_float(KC_TAME) * 2.0f;   /* around the split */
            }
            double e = worst_of(f, x, y, BATCH);
            worst = worst > e ? worst : e;
        }
        printf("%s: %.4f ulp at most in this sample\n", slot_names[f], worst);
    }
}

static void every_float(void **s)
{
    (void)s;
    static float x[BATCH], y[BATCH], z[BATCH];
    for (int f = 0; f < 4; f++) {
        double worst = 0;
        for (uint64_t u = 0; u < UINT64_C(1) << 32; u += BATCH) {
            for (uint32_t i = 0; i < BATCH; i++) x[i] = of_bits((uint32_t)u + i);
            if (f < 3) {
                double e = worst_of(f, x, y, BATCH);
                worst = worst > e ? worst : e;
            } else {
                slot_of(kc_rung(0), f)(y, x, BATCH);
            }
            for (int r = 1; r < kc_rungs(); r++) {
                slot_of(kc_rung(r), f)(z, x, BATCH);
                kc_same(y, z, BATCH, kc_rung_name(r), "%s of floats from %#llx", slot_names[f],
                        (unsigned long long)u);
            }
        }
        if (f < 3) printf("%s: %.4f ulp at most over all floats\n", slot_names[f], worst);
    }
}

static void ends(void **s)
{
    (void)s;
    static const float x[] = {
        INFINITY,        -INFINITY,        NAN,    0.0f,    -0.0f,     0x1p-149f,
        0x1.fffffep127f, -0x1.fffffep127f, 88.73f, -104.0f, -0x1p-149f};
    enum { N = sizeof x / sizeof x[0] };
    static const float want[4][N] = {
        {INFINITY, 0, NAN, 1, 1, 1, INFINITY, 0, INFINITY, 0, 1},
        {1, 0, NAN, 0.5f, 0.5f, 0.5f, 1, 0, 1, 0, 0.5f},
        {1, -1, NAN, 0, -0.0f, 0x1p-149f, 1, -1, 1, -1, -0x1p-149f},
        {INFINITY, -0.0f, NAN, 0, -0.0f, 0, 0x1.fffffep127f, -0.0f, 88.73f, -0.0f, -0.0f},
    };
    for (int r = 0; r < kc_rungs(); r++) {
        for (int f = 0; f < 4; f++) {
            float y[N];
            slot_of(kc_rung(r), f)(y, x, N);
            kc_same(want[f], y, N, kc_rung_name(r), "%s at the ends", slot_names[f]);
        }
    }
}

/* Along consecutive floats the results never step back by more than the two error bounds. */
static void nearly_monotone(void **s)
{
    (void)s;
    static float x[BATCH], y[BATCH];
    for (int f = 0; f < 3; f++) {
        for (int round = 0; round < 50; round++) {
            float start = kc_float(KC_TAME) * (round % 2 ? 90.0f : 2.0f);
            for (int i = 0; i < BATCH; i++) x[i] = i ? nextafterf(x[i - 1], INFINITY) : start;
            slot_of(kc_rung(0), f)(y, x, BATCH);
            for (int i = 1; i < BATCH; i++)
                if (y[i] < y[i - 1] && kc_ulp(y[i], y[i - 1]) > 2 * judged[f].bound)
                    fail_msg("%s steps back at %a", slot_names[f], (double)x[i]);
        }
    }
}

/* Every rung, every length up to some vectors, in place too. */
static void rungs(void **s)
{
    (void)s;
    for (int f = 0; f < 4; f++) {
        for (int n = 0; n < 1200; n += n < 70 ? 1 : 101) {
            for (int kind = 0; kind < KC_FILLS; kind++) {
                float *x = kc_floats((size_t)n), *want = kc_floats((size_t)n);
                kc_fill(x, (size_t)n, (enum kc_fill)kind);
                if (kind == KC_TAME)
                    for (int i = 0; i < n; i++) x[i] *= 20.0f;
                slot_of(kc_rung(0), f)(want, x, n);
                for (int r = 1; r < kc_rungs(); r++) {
                    float *y = kc_floats((size_t)n);
                    slot_of(kc_rung(r), f)(y, x, n);
                    kc_same(want, y, (size_t)n, kc_rung_name(r), "%s of %d, fill %d", slot_names[f],
                            n, kind);
                    memcpy(y, x, (size_t)n * sizeof *y);
                    slot_of(kc_rung(r), f)(y, y, n);
                    kc_same(want, y, (size_t)n, kc_rung_name(r), "%s of %d in place, fill %d",
                            slot_names[f], n, kind);
                    kc_free(y, "y");
                }
                kc_free(x, "x");
                kc_free(want, "want");
            }
        }
    }
}

/* silu and SiTU against double precision: factors of a few ulp each. */
static void products(void **s)
{
    (void)s;
    enum { N = 3000 };
    static float g[N], u[N], y[N];
    for (int i = 0; i < N; i++) g[i] = kc_float(KC_TAME) * 30.0f, u[i] = kc_float(KC_TAME) * 60.0f;
    kc_rung(0)->silu(y, g, N);
    for (int i = 0; i < N; i++)
        assert_true(fabs(y[i] - g[i] * exact_sigmoid(g[i])) <=
                    4 * 0x1p-24 * fabs(g[i] * exact_sigmoid(g[i])) + 0x1p-149);
    for (int capped = 0; capped < 2; capped++) {
        double beta = 4, lin = capped ? 25 : 0;
        kc_rung(0)->situ(y, g, u, N, (float)beta, (float)lin);
        for (int i = 0; i < N; i++) {
            double up = capped ? lin * tanh(u[i] / lin) : (double)u[i];
            double t = beta * tanh(g[i] / beta) * exact_sigmoid(g[i]) * up;
            assert_true(fabs(y[i] - t) <= 12 * 0x1p-24 * fabs(t) + 0x1p-149);
            assert_true(!capped || fabsf(y[i]) <= 100.0f);
        }
    }
}

static void situ(void **s)
{
    (void)s;
    for (int n = 0; n < 900; n += n < 70 ? 1 : 97) {
        for (int kind = 0; kind < KC_FILLS; kind++) {
            float lin = kc_below(3) ? 25.0f : kc_below(2) ? 0.0f : -1.0f;
            float *g = kc_floats((size_t)n), *u = kc_floats((size_t)n),
                  *want = kc_floats((size_t)n);
            kc_fill(g, (size_t)n, (enum kc_fill)kind);
            kc_fill(u, (size_t)n, kc_below(2) ? KC_TAME : (enum kc_fill)kind);
            kc_rung(0)->situ(want, g, u, n, 4.0f, lin);
            for (int r = 1; r < kc_rungs(); r++) {
                float *y = kc_floats((size_t)n);
                kc_rung(r)->situ(y, g, u, n, 4.0f, lin);
                kc_same(want, y, (size_t)n, kc_rung_name(r), "situ of %d, fill %d, lin %g", n, kind,
                        (double)lin);
                kc_free(y, "y");
            }
            kc_free(g, "g");
            kc_free(u, "u");
            kc_free(want, "want");
        }
    }
}

int main(int argc, char **argv)
{
    kc_start(argc, argv, "test_math");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends),  cmocka_unit_test(accuracy), cmocka_unit_test(nearly_monotone),
        cmocka_unit_test(rungs), cmocka_unit_test(products), cmocka_unit_test(situ),
    };
    const struct CMUnitTest all[] = {cmocka_unit_test(every_float)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (kc_all()) failed += cmocka_run_group_tests(all, NULL, NULL);
    return failed;
}
