/* Norms, elementwise slots, softmax, weighted rows, convolution and the KDA step: the reference
 * against double precision, every rung against the reference bit by bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "tests/kernels/kernel_check.h"

static int next_n(int n)
{
    return n < 70 ? n + 1 : n + 173;
}

/* x, w and two results for n floats. */
struct arrays {
    float *a, *b, *want, *got;
    int n;
};

static struct arrays take(int n, enum kc_fill kind)
{
    size_t k = (size_t)n;
    struct arrays t = {kc_floats(k), kc_floats(k), kc_floats(k), kc_floats(k), n};
    kc_fill(t.a, k, kind);
    kc_fill(t.b, k, kc_below(2) ? KC_TAME : kind);
    return t;
}

static void give(struct arrays *t)
{
    kc_free(t->a, "first input");
    kc_free(t->b, "second input");
    kc_free(t->want, "reference output");
    kc_free(t->got, "output");
}

static void same(const struct arrays *t, int r, const char *what, int kind)
{
    kc_same(t->want, t->got, (size_t)t->n, kc_rung_name(r), "%s of %d, fill %d", what, t->n, kind);
}

static void elementwise(void **s)
{
    (void)s;
    for (int n = 0; n < 1500; n = next_n(n)) {
        for (int kind = 0; kind < KC_FILLS; kind++) {
            struct arrays t = take(n, (enum kc_fill)kind);
            size_t bytes = (size_t)n * sizeof(float);
            float f = kc_float(kc_below(2) ? KC_TAME : KC_WIDE);
            const struct sl_kernels *c = kc_rung(0);
            for (int i = 0; i < n; i++) t.want[i] = t.a[i] + t.b[i];
            for (int r = 0; r < kc_rungs(); r++) {
                kc_rung(r)->add(t.got, t.a, t.b, n);
                same(&t, r, "add", kind);
                memcpy(t.got, t.a, bytes);
                kc_rung(r)->add(t.got, t.got, t.b, n);
                same(&t, r, "add onto the first", kind);
                memcpy(t.got, t.b, bytes);
                kc_rung(r)->add(t.got, t.a, t.got, n);
                same(&t, r, "add onto the second", kind);
            }
            for (int i = 0; i < n; i++) t.want[i] = t.a[i] * t.b[i];
            for (int r = 0; r < kc_rungs(); r++) {
                kc_rung(r)->mulv(t.got, t.a, t.b, n);
                same(&t, r, "mulv", kind);
                memcpy(t.got, t.b, bytes);
                kc_rung(r)->mulv(t.got, t.a, t.got, n);
                same(&t, r, "mulv onto the second", kind);
            }
            for (int i = 0; i < n; i++) {
                volatile float p = f * t.a[i];
                t.want[i] = t.b[i] + p;
            }
            for (int r = 0; r < kc_rungs(); r++) {
                memcpy(t.got, t.b, bytes);
                kc_rung(r)->axpy(t.got, f, t.a, n);
                same(&t, r, "axpy", kind);
            }
            for (int with = 0; with < 2 && n > 0; with++) {
                c->rmsnorm(t.want, t.a, with ? t.b : NULL, n, 1e-5f);
                for (int r = 1; r < kc_rungs(); r++) {
                    kc_rung(r)->rmsnorm(t.got, t.a, with ? t.b : NULL, n, 1e-5f);
                    same(&t, r, "rmsnorm", kind);
                    memcpy(t.got, t.a, bytes);
                    kc_rung(r)->rmsnorm(t.got, t.got, with ? t.b : NULL, n, 1e-5f);
                    same(&t, r, "rmsnorm in place", kind);
                }
            }
            memcpy(t.want, t.a, bytes);
            c->softmax(t.want, n, 0.125f);
            for (int r = 1; r < kc_rungs(); r++) {
                memcpy(t.got, t.a, bytes);
                kc_rung(r)->softmax(t.got, n, 0.125f);
                same(&t, r, "softmax", kind);
            }
            give(&t);
        }
    }
}

static void norm_and_softmax_are_right(void **s)
{
    (void)s;
    static const int sizes[] = {1, 2, 15, 16, 17, 128, 512, 1536, 7168};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        int n = sizes[k];
        struct arrays t = take(n, KC_TAME);
        double sum = 0, total = 0, max = -INFINITY, ones = 0;
        for (int i = 0; i < n; i++) sum += (double)t.a[i] * t.a[i];
        kc_rung(0)->rmsnorm(t.got, t.a, t.b, n, 1e-5f);
        for (int i = 0; i < n; i++) {
            double v = t.a[i] / sqrt(sum / n + 1e-5) * t.b[i];
            assert_true(fabs(t.got[i] - v) <= (n / 16.0 + 10) * 0x1p-24 * fabs(v));
        }
        for (int i = 0; i < n; i++) t.got[i] = t.a[i] = t.a[i] * 50.0f;
        kc_rung(0)->softmax(t.got, n, 0.25f);
        for (int i = 0; i < n; i++) max = max > t.a[i] * 0.25 ? max : t.a[i] * 0.25;
        for (int i = 0; i < n; i++) total += exp(t.a[i] * 0.25 - max);
        for (int i = 0; i < n; i++) {
            double v = exp(t.a[i] * 0.25 - max) / total;
            /* the difference of two scores of up to 12.5 is rounded once: 2^-21 in the exponent */
            assert_true(fabs(t.got[i] - v) <= ((n / 16.0 + 10) * 0x1p-24 + 0x1p-20) * v);
            ones += t.got[i];
        }
        assert_true(fabs(ones - 1) < 1e-5);
        give(&t);
    }
}

/* A NaN or +inf among the scores must not look like an answer. */
static void softmax_is_loud(void **s)
{
    (void)s;
    for (int r = 0; r < kc_rungs(); r++) {
        for (int at = 0; at < 37; at += 9) {
            for (int k = 0; k < 2; k++) {
                float x[37];
                kc_fill(x, 37, KC_TAME);
                x[at] = k ? NAN : INFINITY;
                kc_rung(r)->softmax(x, 37, 1.0f);
                for (int i = 0; i < 37; i++) assert_true(isnan(x[i]));
            }
            float x[37]; /* -inf is a score like others: a masked position */
            kc_fill(x, 37, KC_TAME);
            x[at] = -INFINITY;
            kc_rung(r)->softmax(x, 37, 1.0f);
            for (int i = 0; i < 37; i++) assert_true(i == at ? x[i] == 0.0f : x[i] > 0.0f);
        }
        float one = -3.0f;
        kc_rung(r)->softmax(&one, 1, 2.0f);
        assert_true(one == 1.0f);
    }
}

static void weighted_rows(void **s)
{
    (void)s;
    for (int n = 0; n < 600; n = next_n(n)) {
        int n_rows = kc_below(12);
        size_t ldv = (size_t)(n + kc_below(7));
        enum kc_fill kind = (enum kc_fill)kc_below(KC_FILLS);
        float *p = kc_floats((size_t)n_rows), *v = kc_floats((size_t)n_rows * ldv + 1);
        float *want = kc_floats((size_t)n);
        kc_fill(p, (size_t)n_rows, kc_below(2) ? KC_TAME : kind);
        kc_fill(v, (size_t)n_rows * ldv, kind);
        for (int j = 0; j < n; j++) {
            volatile float sum = 0.0f, product;
            for (int i = 0; i < n_rows; i++) {
                product = p[i] * v[(size_t)i * ldv + (size_t)j];
                sum = sum + product;
            }
            want[j] = sum;
        }
        for (int r = 0; r < kc_rungs(); r++) {
            float *y = kc_floats((size_t)n);
            kc_rung(r)->weighted_rows(y, p, v, ldv, n_rows, n);
            kc_same(want, y, (size_t)n, kc_rung_name(r), "weighted rows %d x %d, fill %d", n_rows,
                    n, (int)kind);
            kc_free(y, "y");
        }
        kc_free(p, "p");
        kc_free(v, "v");
        kc_free(want, "want");
    }
}

static void conv(void **s)
{
    (void)s;
    for (int n = 0; n < 400; n = next_n(n)) {
        int k = kc_below(2) ? 4 : 1 + kc_below(8); /* 4 has its own path */
        size_t ldh = (size_t)(n + kc_below(7)), nh = (size_t)(k - 1) * ldh;
        enum kc_fill kind = (enum kc_fill)kc_below(KC_FILLS);
        float *taps = kc_floats((size_t)n * (size_t)k), *hist = kc_floats(nh),
              *x = kc_floats((size_t)n);
        float *want = kc_floats((size_t)n);
        kc_fill(taps, (size_t)n * (size_t)k, KC_TAME);
        kc_fill(hist, nh, kind);
        kc_fill(x, (size_t)n, kind);
        for (int c = 0; c < n; c++) {
            volatile float sum = 0.0f, product;
            double exact = 0;
            for (int j = 0; j < k; j++) {
                float z = j < k - 1 ? hist[(size_t)j * ldh + (size_t)c] : x[c];
                product = taps[c * k + j] * z;
                sum = sum + product;
                exact += (double)taps[c * k + j] * z;
            }
            want[c] = sum;
            if (kind == KC_TAME) assert_true(fabs(sum - exact) <= k * 0x1p-23);
        }
        kc_rung(0)->silu(want, want, n);
        for (int r = 0; r < kc_rungs(); r++) {
            float *y = kc_floats((size_t)n);
            kc_rung(r)->conv(y, taps, hist, ldh, x, n, k);
            kc_same(want, y, (size_t)n, kc_rung_name(r), "conv of %d, %d taps, fill %d", n, k,
                    (int)kind);
            kc_free(y, "y");
        }
        kc_free(taps, "taps");
        kc_free(hist, "hist");
        kc_free(x, "x");
        kc_free(want, "want");
    }
}

struct kda {
    float *S, *q, *k, *v, *alpha, *o;
    int d;
};

static struct kda kda_take(int d, enum kc_fill kind)
{
    size_t n = (size_t)d;
    struct kda t = {
        kc_floats(n * n), kc_floats(n), kc_floats(n), kc_floats(n), kc_floats(n), kc_floats(n), d};
    kc_fill(t.S, n * n, kind);
    kc_fill(t.q, n, KC_TAME);
    kc_fill(t.k, n, KC_TAME);
    kc_fill(t.v, n, kind);
    for (int i = 0; i < d; i++) t.alpha[i] = 0.0067f + 0.9933f * fabsf(kc_float(KC_TAME));
    return t;
}

static void kda_give(struct kda *t)
{
    kc_free(t->S, "S");
    kc_free(t->q, "q");
    kc_free(t->k, "k");
    kc_free(t->v, "v");
    kc_free(t->alpha, "alpha");
    kc_free(t->o, "o");
}

/* Three steps from a random state, against spec 3.3 step 6 in double precision. */
static void kda_is_right(void **s)
{
    (void)s;
    enum { D = 128 };
    static double S[D][D];
    struct kda t = kda_take(D, KC_TAME);
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++) S[i][j] = t.S[i * D + j];
    for (int i = 0; i < D; i++) t.k[i] /= 8.0f; /* |k| below 1, as after its normalisation */
    for (int step = 0; step < 3; step++) {
        const float beta = 0.75f;
        kc_rung(0)->kda_step(t.S, t.q, t.k, t.v, t.alpha, beta, t.o, D);
        for (int j = 0; j < D; j++) {
            double r = 0, o = 0;
            for (int i = 0; i < D; i++) S[i][j] *= t.alpha[i];
            for (int i = 0; i < D; i++) r += t.k[i] * S[i][j];
            for (int i = 0; i < D; i++) S[i][j] += t.k[i] * (beta * (t.v[j] - r));
            for (int i = 0; i < D; i++) o += t.q[i] * S[i][j];
            assert_true(fabs(t.o[j] - o) < 2e-5);
            for (int i = 0; i < D; i++) assert_true(fabs(t.S[i * D + j] - S[i][j]) < 2e-6);
        }
    }
    kda_give(&t);
}

static void kda_rungs(void **s)
{
    (void)s;
    static const int sizes[] = {1,  2,  3,  4,  5,  7,  8,  9,  12, 15, 16, 17,  20,  31,
                                32, 33, 40, 47, 48, 49, 63, 64, 65, 80, 96, 100, 128, 130};
    for (size_t z = 0; z < sizeof sizes / sizeof sizes[0]; z++) {
        const int d = sizes[z];
        for (int kind = 0; kind < KC_FILLS; kind++) {
            struct kda t = kda_take(d, (enum kc_fill)kind);
            size_t n = (size_t)d;
            float *S = kc_floats(n * n), *o = kc_floats(n), *S0 = kc_floats(n * n);
            memcpy(S0, t.S, n * n * sizeof *S0);
            kc_rung(0)->kda_step(t.S, t.q, t.k, t.v, t.alpha, 0.6f, t.o, d);
            for (int r = 1; r < kc_rungs(); r++) {
                memcpy(S, S0, n * n * sizeof *S);
                kc_rung(r)->kda_step(S, t.q, t.k, t.v, t.alpha, 0.6f, o, d);
                kc_same(t.S, S, n * n, kc_rung_name(r), "kda state %d, fill %d", d, kind);
                kc_same(t.o, o, n, kc_rung_name(r), "kda output %d, fill %d", d, kind);
            }
            kc_free(S, "S");
            kc_free(o, "o");
            kc_free(S0, "S0");
            kda_give(&t);
        }
    }
    struct kda t = kda_take(128, KC_TAME), u = kda_take(128, KC_TAME);
    for (int r = 1; r < kc_rungs(); r++) {
        memcpy(u.S, t.S, sizeof(float) * 128 * 128);
        struct kda c = kda_take(128, KC_TAME);
        memcpy(c.S, t.S, sizeof(float) * 128 * 128);
        for (int step = 0; step < 5; step++) {
            kc_rung(0)->kda_step(c.S, t.q, t.k, t.v, t.alpha, 0.9f, c.o, 128);
            kc_rung(r)->kda_step(u.S, t.q, t.k, t.v, t.alpha, 0.9f, u.o, 128);
        }
        kc_same(c.S, u.S, 128 * 128, kc_rung_name(r), "kda state after five steps");
        kc_same(c.o, u.o, 128, kc_rung_name(r), "kda output after five steps");
        kda_give(&c);
    }
    kda_give(&t);
    kda_give(&u);
}

int main(int argc, char **argv)
{
    kc_start(argc, argv, "test_vector");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elementwise),
        cmocka_unit_test(norm_and_softmax_are_right),
        cmocka_unit_test(softmax_is_loud),
        cmocka_unit_test(weighted_rows),
        cmocka_unit_test(conv),
        cmocka_unit_test(kda_is_right),
        cmocka_unit_test(kda_rungs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
