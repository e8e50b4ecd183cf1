/* LRU against a plain list: the same victims for any run of uses, drops and pins. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "offload/evict.h"

static bool any(void *ctx, uint32_t slot)
{
    (void)ctx;
    (void)slot;
    return true;
}

static bool not_pinned(void *ctx, uint32_t slot)
{
    const bool *pinned = ctx;
    return !pinned[slot];
}

static void the_oldest_goes_first(void **state)
{
    (void)state;
    struct sl_evict *e;
    assert_int_equal(sl_evict_open(&e, "lru", 4, 1000, NULL), 0);
    assert_int_equal(sl_evict_victim(e, any, NULL), SL_EVICT_NONE);
    for (uint32_t i = 0; i < 4; i++) sl_evict_use(e, i, i);
    assert_int_equal(sl_evict_victim(e, any, NULL), 0);
    assert_int_equal(sl_evict_victim(e, any, NULL), 0); /* asking changes nothing */
    sl_evict_use(e, 0, 0);
    assert_int_equal(sl_evict_victim(e, any, NULL), 1);
    sl_evict_drop(e, 1);
    sl_evict_drop(e, 1); /* twice is harmless */
    assert_int_equal(sl_evict_victim(e, any, NULL), 2);
    bool pinned[4] = {[2] = true};
    assert_int_equal(sl_evict_victim(e, not_pinned, pinned), 3);
    pinned[3] = pinned[0] = true;
    assert_int_equal(sl_evict_victim(e, not_pinned, pinned), SL_EVICT_NONE);
    sl_evict_close(e);
    sl_evict_close(NULL);
}

static void it_agrees_with_a_plain_list(void **state)
{
    (void)state;
    enum { N = 13 };
    uint32_t list[N]; /* oldest first */
    int n = 0;
    uint64_t rnd = 88172645463325252u;
    struct sl_evict *e;
    assert_int_equal(sl_evict_open(&e, NULL, N, 1000, NULL), 0);
    for (int step = 0; step < 20000; step++) {
        rnd ^= rnd << 13;
        rnd ^= rnd >> 7;
        rnd ^= rnd << 17;
        uint32_t slot = (uint32_t)(rnd % N);
        bool pinned[N];
        for (int i = 0; i < N; i++) pinned[i] = rnd >> (20 + i) & 1;
        int at = 0;
        while (at < n && list[at] != slot) at++;
        if (at < n) memmove(list + at, list + at + 1, (size_t)(--n - at) * sizeof *list);
        if (rnd >> 40 & 3) {
            list[n++] = slot;
            sl_evict_use(e, slot, rnd);
        } else {
            sl_evict_drop(e, slot);
        }
        uint32_t want = SL_EVICT_NONE;
        for (int i = n - 1; i >= 0; i--)
            if (!pinned[list[i]]) want = list[i];
        assert_int_equal(sl_evict_victim(e, not_pinned, pinned), want);
    }
    sl_evict_close(e);
}

static void an_unknown_policy_is_named(void **state)
{
    (void)state;
    struct sl_evict *e;
    struct sl_err err = {0};
    assert_int_equal(sl_evict_open(&e, "magic", 4, 1000, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "magic"));
    assert_null(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_goes_first),
        cmocka_unit_test(it_agrees_with_a_plain_list),
        cmocka_unit_test(an_unknown_policy_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
