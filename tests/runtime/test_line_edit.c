/* Editing on character borders, and where text lies on rows of a given width. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <locale.h>
#include <string.h>
#include "runtime/line_edit.h"
#include "runtime/utf8.h"
#include "tests/runtime/tokenizer_case.h"

static void insert(struct sl_edit *e, const char *s)
{
    assert_int_equal(sl_edit_insert(e, s, strlen(s), NULL), 0);
}

static void test_insert_cleans(void **state)
{
    (void)state;
    struct sl_edit e = {0};
    insert(&e, "a\r\nb\rc\nd\te\x1b[31m\x07\x7f\xff\xc3 \xc2\x9b\xe6\x97\xa5");
    assert_string_equal(e.text.s, "a\nb\nc\nd\te[31m \xe6\x97\xa5");
    assert_int_equal(e.at, e.text.n);
    sl_buf_free(&e.text);
}

static void test_moves(void **state)
{
    (void)state;
    struct sl_edit e = {0};
    insert(&e, "one \xe6\x97\xa5x\nthree");
    assert_int_equal(sl_edit_left(&e, 0), 0);
    assert_int_equal(sl_edit_right(&e, 4), 7);
    assert_int_equal(sl_edit_left(&e, 7), 4);
    assert_int_equal(sl_edit_word_left(&e, 8), 4);
    assert_int_equal(sl_edit_word_left(&e, 4), 0);
    assert_int_equal(sl_edit_word_right(&e, 0), 3);
    assert_int_equal(sl_edit_line_start(&e, 12), 9);
    assert_int_equal(sl_edit_line_end(&e, 2), 8);
    assert_int_equal(sl_edit_right(&e, e.text.n), e.text.n);
    e.at = 4;
    sl_edit_remove(&e, 4, 7);
    assert_string_equal(e.text.s, "one x\nthree");
    assert_int_equal(e.at, 4);
    insert(&e, "\xc3\xa9");
    assert_string_equal(e.text.s, "one \xc3\xa9x\nthree");
    sl_edit_remove(&e, 0, 4);
    assert_int_equal(e.at, 2);
    sl_buf_free(&e.text);
}

static void check_screen(const char *text, size_t at, size_t columns, const char *want, size_t row,
                         size_t column, size_t rows)
{
    struct sl_edit e = {0};
    struct sl_buf out = {0};
    struct sl_edit_screen s;
    insert(&e, text);
    e.at = at;
    assert_int_equal(sl_edit_draw(&e, "> ", columns, &out, &s, NULL), 0);
    assert_string_equal(out.s, want);
    assert_int_equal(s.row, row);
    assert_int_equal(s.column, column);
    assert_int_equal(s.rows, rows);
    sl_buf_free(&out);
    sl_buf_free(&e.text);
}

static void test_screen(void **state)
{
    (void)state;
    if (!setlocale(LC_CTYPE, "C.UTF-8")) {
        print_message("SKIP widths: no locale C.UTF-8\n");
        skip();
    }
    check_screen("", 0, 10, "> ", 0, 2, 0);
    check_screen("abc", 1, 10, "> abc", 0, 3, 0);
    check_screen("a\nb", 3, 10, "> a\r\n  b", 1, 3, 1);
    /* a full row: the cursor behind it stands on the next */
    check_screen("abcdef", 6, 8, "> abcdef\r\n", 1, 0, 1);
    check_screen("abcdef", 5, 8, "> abcdef", 0, 7, 0);
    check_screen("abcdefg", 6, 8, "> abcdef\r\ng", 1, 0, 1);
    /* a wide character that does not fit moves down whole */
    check_screen("abcde\xe6\x97\xa5", 5, 8, "> abcde\r\n\xe6\x97\xa5", 1, 0, 1);
    check_screen("abcd\xe6\x97\xa5", 4, 8, "> abcd\xe6\x97\xa5", 0, 6, 0);
    /* an accent of its own takes no column */
    check_screen("e\xcc\x81x", 4, 8, "> e\xcc\x81x", 0, 4, 0);
    check_screen("a\tb", 3, 8, "> a b", 0, 5, 0);
}

/* Whatever is typed where: well-formed text, the cursor on a border, no row wider than the screen. */
static void test_random_edits(void **state)
{
    (void)state;
    struct tok_rng r = tok_seeded();
    struct sl_edit e = {0};
    for (int step = 0; step < 20000; step++) {
        char text[24];
        switch (tok_below(&r, 8)) {
        case 0:
            e.at = sl_edit_left(&e, e.at);
            break;
        case 1:
            e.at = sl_edit_right(&e, e.at);
            break;
        case 2:
            e.at = sl_edit_word_left(&e, e.at);
            break;
        case 3:
            e.at = sl_edit_line_start(&e, e.at);
            break;
        case 4:
            sl_edit_remove(&e, sl_edit_left(&e, e.at), e.at);
            break;
        case 5:
            sl_edit_remove(&e, e.at, sl_edit_word_right(&e, e.at));
            break;
        default:
            assert_int_equal(
                sl_edit_insert(&e, text, tok_random_text(&r, text, sizeof text, 0), NULL), 0);
        }
        if (e.text.n > 300) sl_edit_remove(&e, 0, sl_edit_word_right(&e, 100));
        assert_true(e.at <= e.text.n);
        assert_int_equal(sl_utf8_valid(e.text.s, e.text.n), e.text.n);
        assert_int_equal(sl_utf8_valid(e.text.s, e.at), e.at);
    }
    sl_buf_free(&e.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_insert_cleans),
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_screen),
        cmocka_unit_test(test_random_edits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
