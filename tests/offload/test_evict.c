/* LRU against a plain list: the same victims for any run of uses, drops and pins. */
#include <math.h>
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
    assert_int_equal(sl_evict_open(&e, "lru", N, 1000, NULL), 0);
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

/* The same by looking at all slots: scores add up, fade, and stay when the slot is given away. */
static void lrfu_agrees_with_a_plain_search(void **state)
{
    (void)state;
    enum { N = 11, KEYS = 40 };
    double score[KEYS] = {0};
    int key[N];
    bool pinned[N] = {false};
    uint64_t rnd = 88172645463325252u;
    double half = 8.0 * N; /* as evict.c has it */
    double weight = 1;
    int evictions = 0;
    struct sl_evict *e;
    assert_int_equal(sl_evict_open(&e, "lrfu", N, KEYS, NULL), 0);
    for (int i = 0; i < N; i++) key[i] = -1;
    for (int step = 0; step < 60000; step++) { /* weights are scaled down once on the way */
        rnd ^= rnd << 13;
        rnd ^= rnd >> 7;
        rnd ^= rnd << 17;
        int k = (int)(rnd % 100 < 60 ? rnd % 7 : rnd % KEYS);
        uint32_t slot = SL_EVICT_NONE;
        for (uint32_t i = N; i-- > 0;)
            if (key[i] < 0) slot = i;
        for (uint32_t i = 0; i < N; i++)
            if (key[i] == k) slot = i;
        if (slot == SL_EVICT_NONE) {
            for (int i = 0; i < N; i++) pinned[i] = (rnd >> 20 >> i) & 1;
            pinned[(rnd >> 50) % N] = false;
            slot = sl_evict_victim(e, not_pinned, pinned);
            uint32_t want = SL_EVICT_NONE;
            for (uint32_t i = 0; i < N; i++)
                if (!pinned[i] && (want == SL_EVICT_NONE || score[key[i]] < score[key[want]]))
                    want = i;
            assert_int_equal(slot, want);
            if (slot == SL_EVICT_NONE) continue;
            sl_evict_drop(e, slot);
            evictions++;
        }
        key[slot] = k;
        if (step % 5 == 0 && score[k] > 0) {
            sl_evict_put(e, slot, (uint64_t)k); /* brought unasked: no score */
        } else {
            weight *= exp2(1 / half);
            score[k] += weight;
            sl_evict_use(e, slot, (uint64_t)k);
        }
        if (step % 1000 == 0) { /* what has faded away altogether would tie */
            double least = weight * 1e-60;
            for (int i = 0; i < KEYS; i++)
                if (score[i] < least && score[i] > 0) fail_msg("key %d was forgotten", i);
        }
    }
    assert_true(evictions > 10000);
    assert_true(weight > 1e100); /* scaled down indeed */
    sl_evict_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_goes_first),
        cmocka_unit_test(it_agrees_with_a_plain_list),
        cmocka_unit_test(an_unknown_policy_is_named),
        cmocka_unit_test(lrfu_agrees_with_a_plain_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
