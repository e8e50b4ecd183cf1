/* Guards beside a plain account of the reference: characters in an array, counted one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "runtime/tokenizer_guard.h"
#include "tests/runtime/tokenizer_case.h"

/* str.isspace() of Python, listed. */
static const uint32_t spaces[] = {0x09,   0x0a,   0x0b,   0x0c,   0x0d,   0x1c,   0x1d,   0x1e,
                                  0x1f,   0x20,   0x85,   0xa0,   0x1680, 0x2000, 0x2001, 0x2002,
                                  0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200a,
                                  0x2028, 0x2029, 0x202f, 0x205f, 0x3000};

static bool listed(uint32_t cp)
{
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        if (spaces[i] == cp) return true;
    return false;
}

/* Text with the start of every character noted. */
struct chars {
    struct tok_text t;
    uint32_t *start; /* byte offset */
    bool *space;
    size_t n, cap;
};

static void add_char(struct chars *c, const char *s, size_t len, bool space)
{
    if (c->n == c->cap) {
        c->cap = c->cap ? c->cap * 2 : 1 << 16;
        c->start = realloc(c->start, c->cap * sizeof *c->start);
        c->space = realloc(c->space, c->cap * sizeof *c->space);
        assert_non_null(c->start);
        assert_non_null(c->space);
    }
    c->start[c->n] = (uint32_t)c->t.n;
    c->space[c->n++] = space;
    tok_add(&c->t, s, len);
}

static void free_chars(struct chars *c)
{
    tok_text_free(&c->t);
    free(c->start);
    free(c->space);
    *c = (struct chars){0};
}

/* Byte offsets where parts end, in the reference's two steps. */
static size_t plain_cuts(const struct chars *c, size_t *cut)
{
    size_t n_cuts = 0;
    for (size_t base = 0; base < c->n; base += 400000) {
        size_t end = base + 400000 < c->n ? base + 400000 : c->n;
        size_t run = 0;
        for (size_t i = base; i < end; i++) {
            if (i > base && c->space[i] != c->space[i - 1]) run = 0;
            if (++run > 25000) {
                cut[n_cuts++] = c->start[i];
                run = 1;
            }
        }
        cut[n_cuts++] = end < c->n ? c->start[end] : c->t.n;
    }
    return n_cuts;
}

static void check_cuts(const struct chars *c)
{
    size_t *cut = calloc(c->n / 25000 + c->n / 400000 + 4, sizeof *cut);
    assert_non_null(cut);
    size_t n_cuts = plain_cuts(c, cut), k = 0, at = 0, start, n;
    struct sl_guard g = {.text = c->t.s, .len = c->t.n};
    while (sl_guard_next(&g, &start, &n)) {
        assert_int_equal(start, at);
        assert_true(n > 0);
        at += n;
        assert_true(k < n_cuts);
        if (at != cut[k]) fail_msg("cut %zu at byte %zu, want %zu", k, at, cut[k]);
        k++;
    }
    assert_int_equal(k, n_cuts);
    assert_int_equal(at, c->t.n);
    free(cut);
}

static void test_runs_of_many_lengths(void **state)
{
    (void)state;
    struct tok_rng r = tok_seeded();
    static const uint32_t lengths[] = {1, 7, 24999, 25000, 25001, 49999, 50000, 50001, 130000};
    /* U+FFFD's bytes and a stray byte stand for what is not UTF-8: one character a byte. */
    static const struct {
        const char *s;
        bool space;
    } kinds[] = {{"a", false},     {"漢", false},    {"😀", false},    {"\xff", false},
                 {" ", true},      {"\n", true},     {"\x1c", true},  {"\u3000", true},
                 {"\u2028", true}, {"\u00a0", true}, {"\xc3", false}, {"\u180e", false},
                 {"\u200b", false}};
    for (int round = 0; round < 12; round++) {
        struct chars c = {0};
        while (c.n < 900000) {
            uint32_t n = lengths[tok_below(&r, sizeof lengths / sizeof *lengths)];
            uint32_t k = tok_below(&r, sizeof kinds / sizeof *kinds);
            for (uint32_t i = 0; i < n; i++) {
                if (tok_below(&r, 30000) == 0) k = tok_below(&r, sizeof kinds / sizeof *kinds);
                add_char(&c, kinds[k].s, strlen(kinds[k].s), kinds[k].space);
            }
        }
        check_cuts(&c);
        free_chars(&c);
    }
}

static void test_edges(void **state)
{
    (void)state;
    static const size_t sizes[] = {0,      1,      24999,  25000,  25001,
                                   399999, 400000, 400001, 425000, 800001};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct chars c = {0};
        for (size_t k = 0; k < sizes[i]; k++) add_char(&c, "x", 1, false);
        if (c.n) check_cuts(&c);
        free_chars(&c);
    }
    struct sl_guard none = {.text = "", .len = 0};
    size_t start, n;
    assert_false(sl_guard_next(&none, &start, &n));
}

/* 25,000 of x, then c 25,000 times: a cut falls between them exactly when c is of x's kind. */
static void test_white_space_of_every_code_point(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x3100; cp++) {
        if (cp >= 0x0300 && cp < 0x1600) continue; /* no candidates: keeps the test short */
        if (cp >= 0x1700 && cp < 0x1800) continue;
        if (cp >= 0x1900 && cp < 0x1f00) continue;
        if (cp >= 0x2100 && cp < 0x2f00) continue;
        char s[4];
        size_t len = cp < 0x80 ? 1 : cp < 0x800 ? 2 : 3;
        if (len == 1) s[0] = (char)cp;
        if (len == 2) s[0] = (char)(0xc0 | cp >> 6);
        if (len == 3) {
            s[0] = (char)(0xe0 | cp >> 12);
            s[1] = (char)(0x80 | (cp >> 6 & 63));
        }
        if (len > 1) s[len - 1] = (char)(0x80 | (cp & 63));
        struct tok_text t = {0};
        tok_add_repeat(&t, "x", 25000);
        tok_add(&t, s, len);
        struct sl_guard g = {.text = t.s, .len = t.n};
        size_t start, n;
        assert_true(sl_guard_next(&g, &start, &n));
        bool space = n == t.n; /* a change of kind: no cut */
        if (space != listed(cp)) fail_msg("U+%04X: %d", cp, space);
        tok_text_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_of_many_lengths),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_white_space_of_every_code_point),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
