/* The knapsack of formats against exhaustive search, its hulls, ties and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "quant/mix.h"

enum { K = 3 };

static double total(const struct sl_mix_option *o, const uint8_t *choice, size_t n, bool bits)
{
    double sum = 0;
    for (size_t u = 0; u < n; u++)
        sum += bits ? o[u * K + choice[u]].bits : o[u * K + choice[u]].harm;
    return sum;
}

static unsigned next(unsigned *s)
{
    *s = *s * 1664525u + 1013904223u;
    return *s >> 16;
}

/* Every budget: never above it, and at a budget that the hull meets, as good as the best of all 3^6
 * choices. */
static void against_exhaustive_search(void **state)
{
    (void)state;
    enum { N = 6 };
    unsigned seed = 5;
    int met = 0;
    for (int round = 0; round < 40; round++) {
        struct sl_mix_option o[N * K];
        for (int u = 0; u < N; u++) {
            double harm = 100 + next(&seed) % 900;
            for (int k = 0; k < K; k++) {
                o[u * K + k] = (struct sl_mix_option){k + 1, harm};
                harm *= (next(&seed) % 90) / 100.0;
            }
        }
        for (int budget = N; budget <= 3 * N; budget++) {
            uint8_t choice[N];
            struct sl_mix_result r;
            assert_int_equal(sl_mix_choose(o, N, K, budget, choice, &r, NULL), 0);
            assert_float_equal(r.bits, total(o, choice, N, true), 1e-9);
            assert_float_equal(r.harm, total(o, choice, N, false), 1e-9);
            assert_true(r.bits <= budget + 1e-9);
            double best = 1e30, best_below = 1e30;
            for (int code = 0; code < 729; code++) {
                uint8_t c[N];
                for (int u = 0, x = code; u < N; u++, x /= 3) c[u] = (uint8_t)(x % 3);
                double bits = total(o, c, N, true), harm = total(o, c, N, false);
                if (bits <= budget && harm < best) best = harm;
                if (bits <= budget - 1 && harm < best_below) best_below = harm;
            }
            assert_true(r.harm >= best - 1e-9);
            /* At most one step of two bits does not fit: at worst the optimum of one bit less. */
            assert_true(r.harm <= best_below + 1e-9);
            met += r.harm <= best + 1e-9;
        }
    }
    assert_true(met > 400); /* of 520: equal to the optimum nearly always */
}

static void what_gains_nothing_is_not_bought(void **state)
{
    (void)state;
    /* The middle option lies above the hull; the last of the second unit is worse than the first. */
    const struct sl_mix_option o[2 * K] = {{1, 10}, {2, 9}, {3, 1}, {1, 5}, {2, 2}, {3, 6}};
    uint8_t choice[2];
    struct sl_mix_result r;
    assert_int_equal(sl_mix_choose(o, 2, K, 6, choice, &r, NULL), 0);
    assert_int_equal(choice[0], 2);
    assert_int_equal(choice[1], 1);
    assert_float_equal(r.harm, 3, 1e-12);
    assert_int_equal(sl_mix_choose(o, 2, K, 3, choice, &r, NULL), 0);
    assert_int_equal(choice[0], 0);
    assert_int_equal(choice[1], 1);
}

static void ties_go_to_the_lower_unit(void **state)
{
    (void)state;
    struct sl_mix_option o[10 * K];
    uint8_t choice[10];
    struct sl_mix_result r;
    for (int u = 0; u < 10; u++)
        for (int k = 0; k < K; k++)
            o[u * K + k] = (struct sl_mix_option){k + 1, k == 0 ? 9 : k == 1 ? 4 : 3};
    assert_int_equal(sl_mix_choose(o, 10, K, 14, choice, &r, NULL), 0);
    for (int u = 0; u < 10; u++) assert_int_equal(choice[u], u < 4 ? 1 : 0);
}

static void a_budget_below_everything_is_refused(void **state)
{
    (void)state;
    const struct sl_mix_option o[K] = {{1, 3}, {2, 2}, {3, 1}};
    uint8_t choice[1];
    struct sl_mix_result r;
    struct sl_err err = {0};
    assert_int_equal(sl_mix_choose(o, 1, K, 0.9, choice, &r, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "1 bits, allowed are 0.9"));
    assert_int_equal(sl_mix_choose(o, 1, K, 1, choice, &r, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_exhaustive_search),
        cmocka_unit_test(what_gains_nothing_is_not_bought),
        cmocka_unit_test(ties_go_to_the_lower_unit),
        cmocka_unit_test(a_budget_below_everything_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
