/* The pre-tokenizer beside the pattern it stands for: the eight branches as the release writes them,
 * backtracking and all, on random text from every class; machine code beside the interpreter. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/tokenizer_pretok.h"
#include "tests/runtime/tokenizer_case.h"

/* Script=Han as far as the characters of tok_chars[] tell it apart. */
#define H                                                                                          \
    "[\\x{2E80}-\\x{2FD5}\\x{3005}\\x{3007}\\x{3021}-\\x{3029}\\x{3038}-\\x{303B}"                 \
    "\\x{3400}-\\x{4DBF}\\x{4E00}-\\x{9FFF}\\x{F900}-\\x{FAD9}\\x{16FE2}\\x{16FE3}"                \
    "\\x{16FF0}\\x{16FF1}\\x{20000}-\\x{3134A}]"
#define UP   "(?:(?!" H ")[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])"
#define LOW  "(?:(?!" H ")[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])"
#define TAIL "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define WS                                                                                         \
    "\\t\\n\\x0B\\f\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"      \
    "\\x{205F}\\x{3000}"

static const char released[] = H "+"
                                 "|[^\\r\\n\\p{L}\\p{N}]?" UP "*" LOW "+" TAIL
                                 "|[^\\r\\n\\p{L}\\p{N}]?" UP "+" LOW "*" TAIL "|\\p{N}{1,3}"
                                 "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*"
                                 "|[" WS "]*[\\r\\n]+"
                                 "|[" WS "]+(?![^" WS "])"
                                 "|[" WS "]+";

struct fixture {
    struct sl_pretok *fast, *slow; /* as built here, and interpreted */
    struct sl_pretok_run *run, *slow_run;
    pcre2_code *code;
    pcre2_match_data *match;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    int code;
    PCRE2_SIZE at;
    if (!f || sl_pretok_open(&f->fast, NULL) || sl_pretok_open(&f->slow, NULL)) return -1;
    sl_pretok_no_jit(f->slow);
    if (sl_pretok_run_open(&f->run, f->fast, NULL)) return -1;
    if (sl_pretok_run_open(&f->slow_run, f->slow, NULL)) return -1;
    f->code = pcre2_compile((PCRE2_SPTR)released, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &code, &at, NULL);
    f->match = pcre2_match_data_create(1, NULL);
    *state = f;
    return f->code && f->match ? 0 : -1;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    sl_pretok_run_close(f->run);
    sl_pretok_run_close(f->slow_run);
    sl_pretok_close(f->fast);
    sl_pretok_close(f->slow);
    pcre2_match_data_free(f->match);
    pcre2_code_free(f->code);
    free(f);
    return 0;
}

static size_t next(struct sl_pretok_run *run, const char *s, size_t n)
{
    struct sl_err err = {0};
    size_t piece = 0;
    if (sl_pretok_next(run, s, n, &piece, &err)) fail_msg("%s", err.text);
    assert_in_range(piece, 1, n);
    return piece;
}

static void print_bytes(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) printf("%02x ", (unsigned char)s[i]);
    printf("\n");
}

static void check_text(const struct fixture *f, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        assert_int_equal(pcre2_match(f->code, (PCRE2_SPTR)s + i, n - i, 0, 0, f->match, NULL), 1);
        size_t want = pcre2_get_ovector_pointer(f->match)[1];
        size_t got = next(f->run, s + i, n - i);
        size_t slow = next(f->slow_run, s + i, n - i);
        if (got != want || slow != want) {
            print_bytes(s + i, n - i < 80 ? n - i : 80);
            fail_msg("piece at byte %zu of %zu: %zu bytes, interpreted %zu, released %zu", i, n,
                     got, slow, want);
        }
        i += want;
    }
}

static void test_random_text(void **state)
{
    const struct fixture *f = *state;
    struct tok_rng r = tok_seeded();
    char buf[400];
    for (int round = 0; round < 20000; round++) {
        size_t n = tok_random_text(&r, buf, round % 4 ? 60 : sizeof buf, round % 3 ? round % 5 : 0);
        check_text(f, buf, n);
    }
}

/* Every pair and triple of classes, each between letters: nothing is left to chance for short ones. */
static void test_all_triples(void **state)
{
    const struct fixture *f = *state;
    for (int i = 0; i < tok_n_chars; i++)
        for (int j = 0; j < tok_n_chars; j++)
            for (int k = 0; k < tok_n_chars; k += (j % 7 ? 5 : 1)) {
                char buf[64];
                int n =
                    snprintf(buf, sizeof buf, "%s%s%s", tok_chars[i], tok_chars[j], tok_chars[k]);
                check_text(f, buf, (size_t)n);
            }
}

/* Spec section 5, "pieces:". */
static void test_pieces_of_the_spec(void **state)
{
    const struct fixture *f = *state;
    static const struct {
        const char *text, *pieces[16];
    } c[] = {
        {"HelloWorld 漢字テスト 12345 it's",
         {"Hello", "World", " ", "漢字", "テスト", " ", "123", "45", " it's"}},
        {"snake_case CamelCase SCREAMING_CASE 007 3.14",
         {"snake", "_case", " Camel", "Case", " SCREAMING", "_CASE", " ", "007", " ", "3", ".",
          "14"}},
        /* What PCRE2 would do otherwise: script extensions, U+180E, newer letters. */
        {"漢、字。", {"漢", "、", "字", "。"}},
        {"a\u180e b", {"a", "\u180e", " b"}},
        {"!\U000323A0\U0002EBF0!", {"!", "\U000323A0\U0002EBF0", "!"}},
        {"x\U0001E4F0\U00010D70\U00010D50\U0001E030y", /* digit, then u and l of Garay, a letter */
         {"x", "\U0001E4F0", "\U00010D70", "\U00010D50\U0001E030y"}},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        const char *s = c[i].text;
        size_t n = strlen(s);
        for (int k = 0; c[i].pieces[k]; k++) {
            size_t got = next(f->run, s, n);
            if (got != strlen(c[i].pieces[k]) || memcmp(s, c[i].pieces[k], got) != 0)
                fail_msg("'%s': piece %d is '%.*s', want '%s'", c[i].text, k, (int)got, s,
                         c[i].pieces[k]);
            s += got;
            n -= got;
        }
        assert_int_equal(n, 0);
    }
}

/* Runs far longer than the guards let through come out in one piece or few, with and without machine
 * code: no limit of the library, no stack, turns length into an error. */
static void test_long_runs(void **state)
{
    const struct fixture *f = *state;
    static const struct {
        const char *unit, *end;
        int pieces; /* of unit * n + end */
    } c[] = {
        {"a", "", 1},      {"A", "", 1},  {"A", "a", 1},    {" ", "", 1},
        {" ", "x", 2},     {"\n", "", 1}, {"\n ", "x", 2},  {"漢", "", 1},
        {"\u0301", "", 1}, {"か", "", 1}, {"か", "A", 2},   {"かA", "", 2},
        {"Aか", "a", 1},   {"!", "", 1},  {"!", "\n\n", 1}, {"\x1c", "", 1},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        for (int slow = 0; slow < 2; slow++) {
            struct tok_text t = {0};
            tok_add_repeat(&t, c[i].unit, slow ? 100000 : 1000000);
            tok_add(&t, c[i].end, strlen(c[i].end));
            int pieces = 0;
            for (size_t at = 0; at < t.n; pieces++)
                at += next(slow ? f->slow_run : f->run, t.s + at, t.n - at);
            if (pieces != c[i].pieces)
                fail_msg("case %zu: %d pieces, want %d", i, pieces, c[i].pieces);
            tok_text_free(&t);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_text),
        cmocka_unit_test(test_all_triples),
        cmocka_unit_test(test_pieces_of_the_spec),
        cmocka_unit_test(test_long_runs),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
