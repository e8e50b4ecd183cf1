/* Sampling: the cut of the nucleus is exact, draws follow the distribution, greedy breaks ties low. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "runtime/sampling.h"

enum { N = 8 };

struct fixture {
    struct sl_kernels k;
    float weight[4096];
    int32_t order[4096];
    struct sl_sampler s;
};

static void fixture_init(struct fixture *f, int n)
{
    sl_kernels_init(&f->k, sl_cpu_detect());
    f->s = (struct sl_sampler){n, f->weight, f->order};
}

/* Logits of probabilities p: log p, so that temperature 1 gives p back. */
static void logits_of(float *out, const double *p, int n)
{
    for (int i = 0; i < n; i++) out[i] = p[i] > 0 ? (float)log(p[i]) : -INFINITY;
}

static void test_greedy(void **state)
{
    (void)state;
    struct fixture f;
    fixture_init(&f, 5);
    const float l[5] = {-1, 3, 2, 3, -INFINITY};
    assert_int_equal(sl_sample_argmax(l, 5), 1); /* the lower of two equal ones */
    for (uint64_t seed = 0; seed < 50; seed++)
        assert_int_equal(sl_sample(&f.k, &f.s, l, 0, 0.1, seed, seed * 3), 1);
    const float low[5] = {-9, -8, -7, -6, -5};
    assert_int_equal(sl_sample(&f.k, &f.s, low, 0, 1, 0, 0), 4);
}

static void test_nucleus_cut(void **state)
{
    (void)state;
    struct fixture f;
    fixture_init(&f, N);
    /* Order by weight: 5 (.4), 2 (.25), 0 (.15), 7 (.1), 1 (.05), 3 and 4 (.02, equal), 6 (.01) */
    const double p[N] = {0.15, 0.05, 0.25, 0.02, 0.02, 0.4, 0.01, 0.1};
    const int sorted[N] = {5, 2, 0, 7, 1, 3, 4, 6};
    float l[N];
    logits_of(l, p, N);
    double below = 0;
    for (int m = 1; m <= N; m++) { /* any cut strictly between two sums keeps exactly m */
        double here = below + p[sorted[m - 1]];
        const double cuts[3] = {below + 0.001, (below + here) / 2, here - 0.001};
        for (int c = 0; c < 3; c++) {
            double weight;
            int got = sl_sample_nucleus(&f.k, &f.s, l, 1.0, cuts[c], &weight);
            assert_int_equal(got, m);
            for (int i = 0; i < m; i++) assert_int_equal(f.s.order[N - 1 - i], sorted[i]);
            double scaled = here / p[5]; /* weights are relative to the largest */
            assert_true(fabs(weight - scaled) < 1e-5 * scaled);
        }
        below = here;
    }
}

static void test_impossible_tokens(void **state)
{
    (void)state;
    struct fixture f;
    fixture_init(&f, 4);
    const float l[4] = {-INFINITY, 0, -INFINITY, 0};
    int seen[4] = {0};
    for (uint64_t d = 0; d < 400; d++) {
        seen[sl_sample(&f.k, &f.s, l, 1.0, 1.0, 9, d)]++;
        seen[sl_sample(&f.k, &f.s, l, 1.0, 0.999, 9, d)]++;
    }
    assert_int_equal(seen[0] + seen[2], 0);
    assert_true(seen[1] > 300 && seen[3] > 300); /* 400 expected, sd 14 */
}

static void test_tiny_temperature(void **state)
{
    (void)state;
    struct fixture f;
    fixture_init(&f, 4);
    const float l[4] = {1, 1.0001F, -3, 0};
    for (uint64_t d = 0; d < 100; d++) {
        assert_int_equal(sl_sample(&f.k, &f.s, l, 1e-300, 1.0, 1, d), 1);
        assert_int_equal(sl_sample(&f.k, &f.s, l, 1e-300, 0.5, 1, d), 1);
    }
}

/* Chi-square with k-1 degrees of freedom has mean k-1 and variance 2(k-1). The bound lies seven
 * standard deviations up; seeds are fixed, so the test cannot be flaky. */
static void check_chi_square(const double *want, const int *seen, int n, int draws)
{
    double chi = 0;
    int cells = 0;
    for (int i = 0; i < n; i++) {
        if (want[i] == 0) {
            assert_int_equal(seen[i], 0);
            continue;
        }
        double e = want[i] * draws;
        chi += (seen[i] - e) * (seen[i] - e) / e;
        cells++;
    }
    double limit = (cells - 1) + 7 * sqrt(2.0 * (cells - 1));
    if (chi > limit) fail_msg("chi-square %.1f over %.1f for %d cells", chi, limit, cells);
}

static void test_distribution(void **state)
{
    (void)state;
    struct fixture f;
    fixture_init(&f, N);
    const double p[N] = {0.15, 0.05, 0.25, 0.02, 0.02, 0.4, 0.01, 0.1};
    float l[N];
    logits_of(l, p, N);
    enum { DRAWS = 20000 };
    for (uint64_t seed = 1; seed <= 3; seed++) {
        int all[N] = {0};
        int cut[N] = {0};
        int hot[N] = {0};
        for (uint64_t d = 0; d < DRAWS; d++) {
            all[sl_sample(&f.k, &f.s, l, 1.0, 1.0, seed, d)]++;
            cut[sl_sample(&f.k, &f.s, l, 1.0, 0.85, seed, d)]++;
            hot[sl_sample(&f.k, &f.s, l, 2.0, 1.0, seed, d)]++;
        }
        check_chi_square(p, all, N, DRAWS);
        /* 0.85 keeps .4 .25 .15 and the .1 that crosses it */
        const double nucleus[N] = {0.15 / 0.9, 0, 0.25 / 0.9, 0, 0, 0.4 / 0.9, 0, 0.1 / 0.9};
        check_chi_square(nucleus, cut, N, DRAWS);
        double flat[N];
        double sum = 0;
        for (int i = 0; i < N; i++) sum += sqrt(p[i]);
        for (int i = 0; i < N; i++) flat[i] = sqrt(p[i]) / sum;
        check_chi_square(flat, hot, N, DRAWS);
    }
}

static void test_uniform(void **state)
{
    (void)state;
    int bins[64] = {0};
    double want[64];
    double sum = 0;
    int same = 0;
    for (int i = 0; i < 64; i++) want[i] = 1.0 / 64;
    for (uint64_t d = 0; d < 64000; d++) {
        double u = sl_sample_uniform(7, d);
        assert_true(u >= 0 && u < 1);
        bins[(int)(u * 64)]++;
        sum += u;
        same += u == sl_sample_uniform(8, d) || u == sl_sample_uniform(8, d + 1);
    }
    check_chi_square(want, bins, 64, 64000);
    assert_true(fabs(sum / 64000 - 0.5) < 0.01);
    assert_int_equal(same, 0); /* neighbouring seeds are no shifts of each other */
}

/* Every ISA and a second call give the same tokens: ties and sums have one order. */
static void test_same_on_every_isa(void **state)
{
    (void)state;
    struct fixture f;
    struct fixture c;
    fixture_init(&f, 4096);
    fixture_init(&c, 4096);
    sl_kernels_init(&c.k, 0);
    float *l = malloc(sizeof *l * 4096);
    assert_non_null(l);
    uint64_t n_drawn = 0;
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < 4096; i++) /* coarse steps: many ties */
            l[i] = floorf((float)sl_sample_uniform(77, n_drawn++) * 40) / 4;
        double t = 0.25 + 0.1 * round;
        int32_t a = sl_sample(&f.k, &f.s, l, t, 0.9, 5, (uint64_t)round);
        assert_int_equal(a, sl_sample(&f.k, &f.s, l, t, 0.9, 5, (uint64_t)round));
        assert_int_equal(a, sl_sample(&c.k, &c.s, l, t, 0.9, 5, (uint64_t)round));
    }
    free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_nucleus_cut),
        cmocka_unit_test(test_impossible_tokens),
        cmocka_unit_test(test_tiny_temperature),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_same_on_every_isa),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
