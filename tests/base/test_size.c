/* Sizes and numbers as typed by people: what is accepted, to the byte, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/size.h"

static void sizes_are_exact(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {
        {"1", 1},
        {"8G", 8000000000u},
        {"8GB", 8000000000u},
        {"8GiB", 8589934592u},
        {"1.5G", 1500000000u},
        {"1.5GiB", 1610612736u},
        {"0.5K", 500},
        {"3M", 3000000u},
        {"2KiB", 2048},
        {"4MiB", 4194304u},
        {"2T", 2000000000000u},
        {"2TiB", 2199023255552u},
        {"0.000001M", 1},
        {"18446744073709551615", UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t got = 0;
        if (!sl_parse_size(cases[i].text, &got)) fail_msg("%s refused", cases[i].text);
        if (got != cases[i].bytes) fail_msg("%s: %llu", cases[i].text, (unsigned long long)got);
    }
}

static void odd_sizes_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        " 8G",
        "8G ",
        "-8G",
        "+8G",
        "8g",
        "8Gib",
        "8GIB",
        "8Gi",
        "8 G",
        "G",
        ".5G",
        "5.G",
        "1.5",
        "1e9",
        "0x10",
        "0",
        "0G",
        "8GBs",
        "8B",
        "8P",
        "1.2.3G",
        "8,5G",
        "1.1234567G",
        "0.4KB1",
        "18446744073709551616",
        "18446744073709551615K",
        "99999999T",
        "0.0000G",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t got = 77;
        if (sl_parse_size(bad[i], &got)) fail_msg("'%s' accepted", bad[i]);
        assert_int_equal(got, 77);
    }
}

static void integers_are_strict(void **state)
{
    (void)state;
    int64_t v = 5;
    assert_true(sl_parse_i64("0", 0, 10, &v) && v == 0);
    assert_true(sl_parse_i64("-0", -1, 1, &v) && v == 0);
    assert_true(sl_parse_i64("-7", -7, 7, &v) && v == -7);
    assert_true(sl_parse_i64("9223372036854775807", INT64_MIN, INT64_MAX, &v) && v == INT64_MAX);
    assert_true(sl_parse_i64("-9223372036854775808", INT64_MIN, INT64_MAX, &v) && v == INT64_MIN);
    static const char *const bad[] = {
        "",    "-", "+1", " 1", "1 ", "1.0", "0x1", "1e3", "11", "-1", "--1", "9223372036854775808",
        "1_0",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        v = 5;
        if (sl_parse_i64(bad[i], 0, 10, &v)) fail_msg("'%s' accepted", bad[i]);
        assert_int_equal(v, 5);
    }
    assert_false(sl_parse_i64("9223372036854775808", INT64_MIN, INT64_MAX, &v));
    assert_false(sl_parse_i64("-9223372036854775809", INT64_MIN, INT64_MAX, &v));
}

static void floats_are_strict(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } good[] = {{"1", 1},  {"0.95", 0.95},     {".5", 0.5},
                {"5.", 5}, {"-1.25e1", -12.5}, {"1E+2", 100}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        double v = 0;
        if (!sl_parse_f64(good[i].text, -1000, 1000, &v)) fail_msg("%s refused", good[i].text);
        if (v != good[i].value) fail_msg("%s: %.17g", good[i].text, v);
    }
    static const char *const bad[] = {
        "",    ".",    "-",     "e5",  "1e", "1e+", " 1",    "1 ",   "nan",
        "inf", "-inf", "0x1p3", "1,5", "1f", "+1",  "1e999", "1001",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        double v = 3;
        if (sl_parse_f64(bad[i], -1000, 1000, &v)) fail_msg("'%s' accepted", bad[i]);
        if (v != 3) fail_msg("'%s' wrote", bad[i]);
    }
}

static void checked_arithmetic(void **state)
{
    (void)state;
    uint64_t v = 1;
    assert_true(sl_mul_u64(1u << 31, 1u << 31, &v) && v == (uint64_t)1 << 62);
    assert_false(sl_mul_u64((uint64_t)1 << 32, (uint64_t)1 << 32, &v));
    assert_true(v == (uint64_t)1 << 62);
    assert_true(sl_add_u64(UINT64_MAX - 1, 1, &v) && v == UINT64_MAX);
    assert_false(sl_add_u64(UINT64_MAX, 1, &v));
    assert_int_equal(sl_align_up(0, 4096), 0);
    assert_int_equal(sl_align_up(1, 4096), 4096);
    assert_int_equal(sl_align_up(4096, 4096), 4096);
}

static void human_forms(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } sizes[] = {
        {0, "0 B"},
        {999, "999 B"},
        {1000, "1.00 kB"},
        {999994, "999.99 kB"},
        {999996, "1.00 MB"},
        {12340000000u, "12.34 GB"},
        {1560000000000u, "1.56 TB"},
        {UINT64_MAX, "18446744.07 TB"},
    };
    char buf[32];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_string_equal(sl_format_bytes(buf, sizeof buf, sizes[i].bytes), sizes[i].text);
    static const struct {
        double seconds;
        const char *text;
    } times[] = {
        {0, "0s"},      {0.4, "0s"},       {59.4, "59s"},   {59.6, "1m00s"},
        {591, "9m51s"}, {3599.7, "1h00m"}, {7380, "2h03m"}, {273600, "3d04h"},
        {-1, "?"},      {NAN, "?"},        {INFINITY, "?"},
    };
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        assert_string_equal(sl_format_seconds(buf, sizeof buf, times[i].seconds), times[i].text);
    char tiny[4];
    assert_int_equal(strlen(sl_format_bytes(tiny, sizeof tiny, 12340000000u)), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_exact),     cmocka_unit_test(odd_sizes_are_refused),
        cmocka_unit_test(integers_are_strict), cmocka_unit_test(floats_are_strict),
        cmocka_unit_test(checked_arithmetic),  cmocka_unit_test(human_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
