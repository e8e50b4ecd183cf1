/* String table at the size of the release's index, and keys that are not C strings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/strmap.h"

static size_t name_of(char buf[96], unsigned i)
{
    int n =
        snprintf(buf, 96, "language_model.model.layers.%u.block_sparse_moe.experts.%u.w%u.weight",
                 i / 5400, i / 6 % 900, i % 6);
    return (size_t)n;
}

static void half_a_million_names(void **state)
{
    (void)state;
    const unsigned n = 500000;
    static const size_t expected[] = {0, 500000};
    for (int round = 0; round < 2; round++) {
        struct sl_strmap *m = sl_strmap_open(expected[round]);
        assert_non_null(m);
        char key[96];
        for (unsigned i = 0; i < n; i++) {
            size_t len = name_of(key, i);
            if (sl_strmap_put(m, key, len, i * 3) != 1) fail_msg("%s not added", key);
        }
        assert_int_equal(sl_strmap_count(m), n);
        for (unsigned i = 0; i < n; i++) {
            size_t len = name_of(key, i);
            uint32_t v = 0;
            if (!sl_strmap_get(m, key, len, &v) || v != i * 3) fail_msg("%s: %u", key, v);
            size_t got_len;
            const char *got = sl_strmap_key(m, i, &got_len);
            if (got_len != len || memcmp(got, key, len) != 0) fail_msg("key %u is not in order", i);
            key[len - 1] = 'T'; /* one letter away */
            if (sl_strmap_get(m, key, len, &v)) fail_msg("%s found", key);
        }
        sl_strmap_close(m);
    }
}

static void twins_keep_the_first_value(void **state)
{
    (void)state;
    struct sl_strmap *m = sl_strmap_open(4);
    assert_int_equal(sl_strmap_put(m, "abc", 3, 1), 1);
    assert_int_equal(sl_strmap_put(m, "abc", 3, 2), 0);
    assert_int_equal(sl_strmap_count(m), 1);
    uint32_t v = 0;
    assert_true(sl_strmap_get(m, "abc", 3, &v) && v == 1);
    sl_strmap_close(m);
}

/* All strings over {NUL, 'a', 0xff} of length 0 to 8: prefixes of each other, none a C string. */
static void byte_strings_with_nul(void **state)
{
    (void)state;
    static const char letters[] = {'\0', 'a', '\xff'};
    struct sl_strmap *m = sl_strmap_open(0);
    uint32_t count = 0;
    for (int pass = 0; pass < 2; pass++) {
        uint32_t id = 0;
        for (size_t len = 0; len <= 8; len++) {
            unsigned all = 1;
            for (size_t i = 0; i < len; i++) all *= 3;
            for (unsigned x = 0; x < all; x++, id++) {
                char key[8];
                unsigned rest = x;
                for (size_t i = 0; i < len; i++, rest /= 3) key[i] = letters[rest % 3];
                uint32_t v = 0;
                if (!pass) {
                    assert_int_equal(sl_strmap_put(m, key, len, id), 1);
                    count++;
                } else if (!sl_strmap_get(m, key, len, &v) || v != id) {
                    fail_msg("length %zu, number %u: found %u", len, x, v);
                }
            }
        }
    }
    assert_int_equal(sl_strmap_count(m), count);
    uint32_t v;
    assert_false(sl_strmap_get(m, "b", 1, &v));
    sl_strmap_close(m);
}

static void an_empty_map(void **state)
{
    (void)state;
    struct sl_strmap *m = sl_strmap_open(0);
    uint32_t v = 9;
    assert_false(sl_strmap_get(m, "x", 1, &v));
    assert_int_equal(v, 9);
    assert_int_equal(sl_strmap_put(m, "", 0, 5), 1);
    size_t len = 1;
    assert_non_null(sl_strmap_key(m, 0, &len));
    assert_int_equal(len, 0);
    assert_true(sl_strmap_get(m, "", 0, &v) && v == 5);
    sl_strmap_close(m);
    sl_strmap_close(NULL);
    assert_null(sl_strmap_open(SIZE_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_a_million_names),
        cmocka_unit_test(twins_keep_the_first_value),
        cmocka_unit_test(byte_strings_with_nul),
        cmocka_unit_test(an_empty_map),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
