/* The one line a person sees: its shape, what may not reach a terminal, and the exit status. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

static void line_has_file_field_and_text(void **state)
{
    (void)state;
    struct sl_err e = {0};
    int rc = sl_fail(&e, SL_E_SOURCE, "model-00003.safetensors", "layers.2.w", "shape %d", 7);
    assert_int_equal(rc, SL_E_SOURCE);
    assert_int_equal(e.code, SL_E_SOURCE);
    assert_string_equal(e.text, "model-00003.safetensors: layers.2.w: shape 7");
    sl_fail(&e, SL_E_ARG, NULL, "--ram", "bad size");
    assert_string_equal(e.text, "--ram: bad size");
    sl_fail(&e, SL_E_ARG, NULL, NULL, "bad");
    assert_string_equal(e.text, "bad");
    assert_int_equal(sl_fail(NULL, SL_E_PACK, "f", "g", "h"), SL_E_PACK);
}

static void text_can_wrap_itself(void **state)
{
    (void)state;
    struct sl_err e = {0};
    sl_fail(&e, SL_E_PACK, NULL, NULL, "crc differs");
    sl_fail(&e, e.code, "L001.bank", NULL, "%s", e.text);
    assert_string_equal(e.text, "L001.bank: crc differs");
}

static void control_and_broken_bytes_become_question_marks(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"a\nb\rc\td", "a?b?c?d"},
        {"\033[31mred", "?[31mred"},
        {"\x7f", "?"},
        {"caf\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80", "caf\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80"},
        {"\xc2\x9b"
         "31m",
         "??31m"},          /* C1 CSI */
        {"\xc0\xaf", "??"}, /* overlong slash */
        {"\xe0\x80\xaf", "???"},
        {"\xed\xa0\x80", "???"}, /* surrogate */
        {"\xf4\x90\x80\x80", "????"},
        {"\xff\xfe", "??"},
        {"cut \xe6\xbc", "cut ??"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_err e = {0};
        sl_fail(&e, SL_E_SOURCE, NULL, NULL, "%s", cases[i].in);
        assert_string_equal(e.text, cases[i].out);
        sl_fail(&e, SL_E_SOURCE, cases[i].in, cases[i].in, "x");
        char want[256];
        snprintf(want, sizeof want, "%s: %s: x", cases[i].out, cases[i].out);
        assert_string_equal(e.text, want);
    }
}

static void long_text_is_cut_and_still_valid(void **state)
{
    (void)state;
    struct sl_err e = {0};
    char path[3000];
    for (size_t i = 0; i + 3 < sizeof path; i += 3) memcpy(path + i, "\xe6\xbc\xa2", 4);
    for (int shift = 0; shift < 3; shift++) {
        sl_fail(&e, SL_E_SOURCE, path + 3, NULL, "never seen");
        char one[] = "xyz";
        one[shift] = '\0';
        sl_fail(&e, SL_E_SOURCE, NULL, NULL, "%s%s", one, path);
        size_t n = strlen(e.text);
        assert_in_range(n, sizeof e.text - 4, sizeof e.text - 1);
        /* a character cut in two is not passed on: its rest shows as question marks */
        size_t whole = (n - strlen(one)) / 3 * 3 + strlen(one);
        for (size_t i = whole; i < n; i++) assert_int_equal(e.text[i], '?');
    }
}

static void errno_decides_the_code(void **state)
{
    (void)state;
    struct sl_err e = {0};
    sl_interrupt_clear();
    assert_int_equal(sl_fail_errno(&e, SL_E_IO, EIO, "f", "read"), SL_E_IO);
    char want[128];
    snprintf(want, sizeof want, "f: read: %s", strerror(EIO));
    assert_string_equal(e.text, want);
    assert_int_equal(sl_fail_errno(&e, SL_E_IO, ENOSPC, "f", "write"), SL_E_NOSPACE);
    assert_int_equal(sl_fail_errno(&e, SL_E_SOURCE, EDQUOT, "f", "write"), SL_E_NOSPACE);
    assert_int_equal(sl_fail_errno(&e, SL_E_IO, ENOMEM, "f", "map"), SL_E_NOMEM);
    assert_int_equal(sl_fail_errno(&e, SL_E_SOURCE, ENOENT, "f", "open"), SL_E_SOURCE);
    assert_int_equal(sl_fail_errno(&e, SL_E_IO, EINTR, "f", "read"), SL_E_IO);
    sl_interrupt();
    assert_true(sl_interrupted());
    assert_int_equal(sl_fail_errno(&e, SL_E_IO, EINTR, "f", "read"), SL_E_INTR);
    sl_interrupt_clear();
    assert_false(sl_interrupted());
}

static void exit_statuses_are_those_of_the_manual(void **state)
{
    (void)state;
    static const int pairs[][2] = {
        {SL_OK, 0},    {SL_E_ARG, 2},    {SL_E_SOURCE, 3}, {SL_E_PACK, 4},
        {SL_E_IO, 4},  {SL_E_NOMEM, 5},  {SL_E_BUDGET, 5}, {SL_E_NOSPACE, 5},
        {SL_E_CTX, 5}, {SL_E_DEVICE, 6}, {SL_E_INTR, 130}, {-9999, 1},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        assert_int_equal(sl_exit_status(pairs[i][0]), pairs[i][1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(line_has_file_field_and_text),
        cmocka_unit_test(text_can_wrap_itself),
        cmocka_unit_test(control_and_broken_bytes_become_question_marks),
        cmocka_unit_test(long_text_is_cut_and_still_valid),
        cmocka_unit_test(errno_decides_the_code),
        cmocka_unit_test(exit_statuses_are_those_of_the_manual),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
