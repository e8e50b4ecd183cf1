/* Arena: alignment, zeroes, marks, the peak, and a refusal instead of growth. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/arena.h"

static void pieces_are_aligned_zeroed_and_apart(void **state)
{
    (void)state;
    struct sl_arena a;
    assert_int_equal(sl_arena_init(&a, 100000, "test", NULL), 0);
    assert_int_equal(a.bytes % 4096, 0);
    unsigned char *end = a.base;
    for (size_t i = 0; i < 60; i++) {
        size_t align = (size_t)1 << i % 13;
        size_t bytes = i * 7;
        unsigned char *p = sl_arena_alloc(&a, bytes, align);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % align, 0);
        assert_true(p >= end && p + bytes <= a.base + a.bytes);
        for (size_t j = 0; j < bytes; j++) assert_int_equal(p[j], 0);
        memset(p, 0xa5, bytes);
        end = p + bytes;
    }
    sl_arena_free(&a);
    assert_null(a.base);
    assert_int_equal(a.bytes, 0);
}

static void full_is_null_and_changes_nothing(void **state)
{
    (void)state;
    struct sl_arena a;
    assert_int_equal(sl_arena_init(&a, 8192, "test", NULL), 0);
    assert_non_null(sl_arena_alloc(&a, 4097, 1));
    assert_null(sl_arena_alloc(&a, 4096, 1));
    assert_null(sl_arena_alloc(&a, SIZE_MAX, 1));
    assert_null(sl_arena_alloc(&a, 1, 4096));
    assert_int_equal(a.used, 4097);
    assert_non_null(sl_arena_alloc(&a, 4095, 1));
    assert_null(sl_arena_alloc(&a, 1, 1));
    sl_arena_free(&a);
}

static void release_goes_back_and_peak_stays(void **state)
{
    (void)state;
    struct sl_arena a;
    assert_int_equal(sl_arena_init(&a, 8192, "test", NULL), 0);
    unsigned char *first = sl_arena_alloc(&a, 64, 64);
    size_t mark = sl_arena_mark(&a);
    unsigned char *second = sl_arena_alloc(&a, 4000, 64);
    assert_true(second > first);
    sl_arena_release(&a, mark);
    assert_ptr_equal(sl_arena_alloc(&a, 10, 64), second);
    assert_int_equal(a.peak, 4064);
    sl_arena_free(&a);
}

static void empty_and_impossible(void **state)
{
    (void)state;
    struct sl_arena a;
    struct sl_err e = {0};
    assert_int_equal(sl_arena_init(&a, 0, "nothing", &e), 0);
    assert_null(sl_arena_alloc(&a, 1, 1));
    sl_arena_free(&a);
    assert_int_equal(sl_arena_init(&a, SIZE_MAX, "expert slots", &e), SL_E_NOMEM);
    assert_non_null(strstr(e.text, "expert slots"));
    assert_int_equal(sl_arena_init(&a, SIZE_MAX / 2, "expert slots", &e), SL_E_NOMEM);
    assert_non_null(strstr(e.text, "9223372.04 TB"));
    assert_null(a.base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_aligned_zeroed_and_apart),
        cmocka_unit_test(full_is_null_and_changes_nothing),
        cmocka_unit_test(release_goes_back_and_peak_stays),
        cmocka_unit_test(empty_and_impossible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
