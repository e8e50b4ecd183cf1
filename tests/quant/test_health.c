/* The bias as a quantile, against counting, and the figures of a layer on loads made by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "quant/health.h"

/* Margins on a fine grid; a bias must bring exactly the wanted number above zero, within a bin. */
static void the_bias_is_the_quantile(void **state)
{
    (void)state;
    enum { N = 4000 };
    float m[N];
    uint32_t bins[SL_MARGIN_BINS] = {0};
    unsigned seed = 3;
    for (int i = 0; i < N; i++) {
        seed = seed * 1664525u + 1013904223u;
        m[i] = ((float)(seed >> 8) / 16777216.0f - 0.7f) * 0.6f; /* -0.42 to 0.18 */
        bins[sl_margin_bin(m[i])]++;
    }
    for (int want = 40; want < N; want += 396) {
        const double bias = sl_health_bias(bins, want);
        int above = 0, widest = 0;
        for (int i = 0; i < N; i++) above += (double)m[i] + bias > 0;
        for (int k = 0; k < SL_MARGIN_BINS; k++)
            if ((int)bins[k] > widest) widest = (int)bins[k];
        if (abs(above - want) > widest / 3) fail_msg("wanted %d, got %d", want, above);
    }
    int chosen = 0;
    for (int i = 0; i < N; i++) chosen += m[i] > 0;
    assert_float_equal(sl_health_bias(bins, chosen), 0, 1.0 / 64 / 4); /* nothing to restore */
    assert_true(sl_health_bias(bins, chosen + 500) > 0);
    assert_true(sl_health_bias(bins, chosen - 500) < 0);
    assert_float_equal(sl_health_bias(bins, N + 1), 0.5, 0); /* more than there are tokens */
}

static void loads_made_by_hand(void **state)
{
    (void)state;
    const uint64_t before[4] = {100, 100, 100, 100}, after[4] = {160, 100, 40, 100};
    uint32_t margins[4 * SL_MARGIN_BINS] = {0};
    struct sl_health_layer h;
    for (int e = 0; e < 4; e++) { /* flat: 10 a bin above zero, 10 below */
        for (int k = 0; k < SL_MARGIN_BINS; k++) margins[e * SL_MARGIN_BINS + k] = 10;
    }
    sl_health_layer(&h, before, after, margins, 4);
    assert_float_equal(h.moved, 0.15, 1e-12);
    assert_float_equal(h.most_before, 1, 1e-12);
    assert_float_equal(h.most_after, 1.6, 1e-12);
    assert_int_equal(h.most_moved, 0);
    assert_float_equal(h.most_moved_before, 0.25, 1e-12);
    assert_float_equal(h.most_moved_after, 0.4, 1e-12);
    /* 100 of 640 tokens above: ten bins from the top, all alike. */
    assert_float_equal(h.bias_rms, 0.5 - 10.0 / 64, 1e-9);
    assert_float_equal(h.bias_most, 0.5 - 10.0 / 64, 1e-9);
    sl_health_layer(&h, before, before, margins, 4);
    assert_float_equal(h.moved, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_bias_is_the_quantile),
                                       cmocka_unit_test(loads_made_by_hand)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
