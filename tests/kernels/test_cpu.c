/* Feature detection: names, rungs, the cap, and which rungs this machine cannot show. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "tests/kernels/kernel_check.h"

static void names(void **s)
{
    (void)s;
    assert_string_equal(sl_cpu_name(0), "c");
    assert_string_equal(sl_cpu_name(SL_CPU_AVX2), "avx2");
    assert_string_equal(sl_cpu_name(SL_CPU_AVX2 | SL_CPU_AVX512), "avx512");
    assert_string_equal(
        sl_cpu_name(SL_CPU_AVX2 | SL_CPU_AVX512 | SL_CPU_AVX512VNNI | SL_CPU_AVX512VBMI),
        "avx512+vnni+vbmi");
    assert_string_equal(sl_cpu_name(SL_CPU_NEON), "neon");
    assert_string_equal(sl_cpu_name(SL_CPU_NEON | SL_CPU_NEONDOT), "neon+dot");
}

/* SLUICE_ISA takes features away and never adds any. */
static void cap(void **s)
{
    (void)s;
    char *was = getenv("SLUICE_ISA");
    char *saved = was ? strdup(was) : NULL;
    unsetenv("SLUICE_ISA");
    unsigned full = sl_cpu_detect();
    static const struct {
        const char *word;
        unsigned keeps;
    } caps[] = {{"c", 0},
                {"avx2", SL_CPU_AVX2},
                {"avx512", SL_CPU_AVX2 | SL_CPU_AVX512},
                {"neon", SL_CPU_NEON},
                {"nonsense", ~0u}};
    for (size_t i = 0; i < sizeof caps / sizeof caps[0]; i++) {
        setenv("SLUICE_ISA", caps[i].word, 1);
        assert_int_equal(sl_cpu_detect(), full & caps[i].keeps);
    }
    unsetenv("SLUICE_ISA");
    if (saved) setenv("SLUICE_ISA", saved, 1);
    free(saved);
}

/* Every slot is filled on every rung, and a rung with its own code does not fall back on C. */
static void slots(void **s)
{
    (void)s;
    const struct sl_kernels *c = kc_rung(0);
    for (int i = 0; i < kc_rungs(); i++) {
        const struct sl_kernels *k = kc_rung(i);
        assert_true(k->mul && k->dot && k->exp && k->sigmoid && k->tanh && k->silu && k->situ);
        assert_true(k->rmsnorm && k->axpy && k->add && k->mulv && k->conv && k->kda_step);
        assert_true(k->weighted_rows && k->softmax);
        if (i == 0) continue;
        assert_true(k->mul != c->mul && k->dot != c->dot && k->kda_step != c->kda_step);
        if (i > 1) assert_true(k->mul != kc_rung(i - 1)->mul);
    }
}

static void need(unsigned bit, const char *name)
{
    for (int i = 0; i < kc_rungs(); i++)
        if (kc_rung(i)->cpu & bit) return;
    printf("SKIP %s: this machine has it not, or SLUICE_ISA leaves it out\n", name);
    skip();
}

#if defined(__x86_64__)
static void rung_avx2(void **s)
{
    (void)s;
    need(SL_CPU_AVX2, "avx2");
}

static void rung_avx512(void **s)
{
    (void)s;
    need(SL_CPU_AVX512, "avx512");
}
#elif defined(__aarch64__)
static void rung_neon(void **s)
{
    (void)s;
    need(SL_CPU_NEON, "neon");
}
#endif

int main(int argc, char **argv)
{
    kc_start(argc, argv, "test_cpu");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(cap),
        cmocka_unit_test(slots),
#if defined(__x86_64__)
        cmocka_unit_test(rung_avx2),
        cmocka_unit_test(rung_avx512),
#elif defined(__aarch64__)
        cmocka_unit_test(rung_neon),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
