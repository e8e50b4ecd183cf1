/* How prompts are cut: what must hold for every memory, and the rule on numbers worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "offload/sweep_plan.h"

/* 92 layers of 896 experts, top 16; records of 17.5 MB; half a megabyte a token. */
static struct sl_sweep_in k3(uint64_t n_slots)
{
    return (struct sl_sweep_in){.n_slots = n_slots,
                                .slot_bytes = 17547264,
                                .n_records = 92 * 896,
                                .n_moe = 92,
                                .n_experts = 896,
                                .top_k = 16,
                                .panel = 512,
                                .most = 65536,
                                .token_bytes = 500000,
                                .fixed_bytes = 10000};
}

static void what_holds_for_every_memory(void **state)
{
    (void)state;
    for (uint64_t slots = 17; slots <= 92 * 896 + 1; slots = slots * 5 / 4 + 1)
        for (uint64_t n = 1; n < 200000; n = n * 7 / 4 + 3) {
            const struct sl_sweep_in in = k3(slots);
            struct sl_sweep_choice c;
            sl_sweep_choose(&in, n, &c);
            assert_true(c.chunk >= 1 && c.chunk <= sl_sweep_longest(&in));
            assert_true(c.n_chunks * c.chunk >= n && (c.n_chunks - 1) * c.chunk < n);
            if (!c.lent_bytes) {
                assert_int_equal(c.chunk, 512);
                continue;
            }
            assert_true(n > 512 && slots < in.n_records);
            assert_int_equal(c.lent_bytes, c.chunk * 500000 + 10000);
            /* top_k + 1 slots are left. */
            assert_true((c.lent_bytes + in.slot_bytes - 1) / in.slot_bytes + 17 <= slots);
            assert_true(c.n_chunks < (n + 511) / 512);
        }
}

static void one_sweep_when_memory_allows(void **state)
{
    (void)state;
    struct sl_sweep_choice c;
    struct sl_sweep_in in = k3(1000);
    sl_sweep_choose(&in, 30000, &c); /* 15 GB of 17.5 */
    assert_int_equal(c.n_chunks, 1);
    assert_int_equal(c.chunk, 30000);
    in = k3(500); /* 8.5 GB: 17,000 tokens at most, so two of 15,000 */
    sl_sweep_choose(&in, 30000, &c);
    assert_int_equal(c.n_chunks, 2);
    assert_int_equal(c.chunk, 15000);
    in.most = 4000; /* --chunk */
    sl_sweep_choose(&in, 30000, &c);
    assert_int_equal(c.n_chunks, 8);
    assert_int_equal(c.chunk, 3750);
    in = k3(17); /* nothing can be spared */
    assert_int_equal(sl_sweep_longest(&in), 512);
}

/* 1,024 tokens are two panels. Without a loan each asks for 92 * 896 = 82,432 less 8 records (choice
 * uniform: 512 tokens miss 0.01 %); with one there is a single sweep, and the loan of 30 slots. */
static void the_rule_by_hand(void **state)
{
    (void)state;
    struct sl_sweep_choice c;
    struct sl_sweep_in in = k3(41190); /* 2 * (82,424 - 41,190) = 82,468 > 82,432 + 30 */
    sl_sweep_choose(&in, 1024, &c);
    assert_true(c.lent_bytes > 0);
    in = k3(41200); /* 82,448 < 82,462: half of all is in memory, a loan would cost more */
    sl_sweep_choose(&in, 1024, &c);
    assert_int_equal(c.lent_bytes, 0);
    assert_int_equal(c.n_chunks, 2);
    sl_sweep_choose(&in, 1536, &c); /* three panels: 123,672 */
    assert_true(c.lent_bytes > 0);
    in = k3(in.n_records); /* all in memory: nothing is read, so nothing is saved */
    sl_sweep_choose(&in, 30000, &c);
    assert_int_equal(c.lent_bytes, 0);
}

static void sizes_of_any_kind(void **state)
{
    (void)state;
    struct sl_sweep_choice c;
    struct sl_sweep_in in = k3(1000);
    in.token_bytes = 0; /* no loan wanted */
    sl_sweep_choose(&in, 30000, &c);
    assert_int_equal(c.chunk, 512);
    in = k3(1000);
    in.slot_bytes = UINT64_MAX / 500; /* overflows */
    assert_int_equal(sl_sweep_longest(&in), 512);
    in = (struct sl_sweep_in){.panel = 16, .most = 100}; /* no experts at all */
    sl_sweep_choose(&in, 100, &c);
    assert_int_equal(c.chunk, 16);
    assert_int_equal(c.n_chunks, 7);
    in.most = 1;
    sl_sweep_choose(&in, 3, &c);
    assert_int_equal(c.chunk, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_holds_for_every_memory),
        cmocka_unit_test(one_sweep_when_memory_allows),
        cmocka_unit_test(the_rule_by_hand),
        cmocka_unit_test(sizes_of_any_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
