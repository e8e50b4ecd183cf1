/* UTF-8 beside its definition: the table of all encodings of all code points. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "runtime/utf8.h"
#include "tests/runtime/tokenizer_case.h"

/* starts[k]: every k-byte start of some well-formed character, as a bit by value; whole[k]: every
 * well-formed character of k bytes, k <= 3. Four-byte ones are checked one by one. */
static uint8_t *starts[4], *whole[4];

static bool bit(const uint8_t *set, uint32_t v)
{
    return set[v >> 3] >> (v & 7) & 1;
}

static void set_bit(uint8_t *set, uint32_t v)
{
    set[v >> 3] |= (uint8_t)(1u << (v & 7));
}

/* The definition, written apart from the library: bits of cp by length. */
static unsigned encode(uint32_t cp, unsigned char out[4])
{
    if (cp < 0x80) {
        out[0] = (unsigned char)cp;
        return 1;
    }
    unsigned n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned char mark[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (unsigned i = 0; i < n; i++) {
        uint32_t six = cp >> 6 * (n - 1 - i);
        out[i] = (unsigned char)(i == 0 ? mark[n] | six : 0x80 | (six & 0x3f));
    }
    return n;
}

static uint32_t value(const unsigned char *s, unsigned n)
{
    uint32_t v = 0;
    for (unsigned i = 0; i < n; i++) v = v << 8 | s[i];
    return v;
}

static int build_sets(void **state)
{
    (void)state;
    for (unsigned k = 1; k <= 3; k++) {
        starts[k] = calloc(1u << (8 * k), 1);
        whole[k] = calloc(1u << (8 * k), 1);
        if (!starts[k] || !whole[k]) return -1;
    }
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        if (cp >= 0xd800 && cp < 0xe000) continue;
        unsigned char b[4];
        unsigned n = encode(cp, b);
        for (unsigned k = 1; k < n; k++) set_bit(starts[k], value(b, k));
        if (n <= 3) set_bit(whole[n], value(b, n));
    }
    return 0;
}

static int free_sets(void **state)
{
    (void)state;
    for (unsigned k = 1; k <= 3; k++) {
        free(starts[k]);
        free(whole[k]);
    }
    return 0;
}

/* What sl_utf8_char() has to say about s[0..n), n <= 3. */
static void want_char(const unsigned char *s, unsigned n, size_t *len, size_t *bad)
{
    *len = 0;
    *bad = 0;
    for (unsigned k = 1; k <= n; k++) {
        if (bit(whole[k], value(s, k))) {
            *len = k;
            return;
        }
        if (!bit(starts[k], value(s, k))) { /* the subpart ends before this byte */
            *bad = k > 1 ? k - 1 : 1;
            return;
        }
    }
}

static void test_every_code_point(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        unsigned char want[4];
        unsigned n = encode(cp, want);
        uint32_t back = 0;
        size_t bad = 9;
        if (cp >= 0xd800 && cp < 0xe000) {
            assert_int_equal(sl_utf8_char((char *)want, n, &back, &bad), 0);
            assert_int_equal(bad, 1);
            continue;
        }
        char got[4];
        assert_int_equal(sl_utf8_put(got, cp), n);
        assert_memory_equal(got, want, n);
        assert_int_equal(sl_utf8_char(got, n, &back, &bad), n);
        assert_int_equal(back, cp);
        for (unsigned k = 1; k < n; k++) { /* each cut of it is open, and none of it may be shown */
            assert_int_equal(sl_utf8_char(got, k, NULL, &bad), 0);
            assert_int_equal(bad, 0);
            assert_int_equal(sl_utf8_complete(got, k), 0);
        }
        assert_int_equal(sl_utf8_complete(got, n), n);
    }
}

static void test_every_short_sequence(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 3; n++) {
        for (uint32_t v = 0; v < 1u << (8 * n); v++) {
            unsigned char s[3];
            for (unsigned i = 0; i < n; i++) s[i] = (unsigned char)(v >> 8 * (n - 1 - i));
            size_t len, bad, got_bad = 9;
            want_char(s, n, &len, &bad);
            size_t got = sl_utf8_char((char *)s, n, NULL, &got_bad);
            if (got != len || (!len && got_bad != bad))
                fail_msg("%06x of %u bytes: %zu, bad %zu; want %zu, bad %zu", v, n, got, got_bad,
                         len, bad);
        }
    }
}

static void test_four_byte_faults(void **state)
{
    (void)state;
    static const struct {
        const char *s;
        size_t bad;
    } c[] = {
        {"\xf0\x8f\xbf\xbf", 1}, /* overlong */
        {"\xf4\x90\x80\x80", 1}, /* past U+10FFFF */
        {"\xf0\x9f\x98x", 3},    /* a third of a face */
        {"\xf0\x9f\x98\xc3", 3}, {"\xf0\x9fxx", 2}, {"\xf5\x80\x80\x80", 1},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        size_t bad = 9;
        assert_int_equal(sl_utf8_char(c[i].s, 4, NULL, &bad), 0);
        assert_int_equal(bad, c[i].bad);
    }
    assert_int_equal(sl_utf8_char("\xf0\x9f\x98\x80", 4, NULL, NULL), 4);
}

static void test_valid_and_complete(void **state)
{
    (void)state;
    static const struct {
        const char *s;
        size_t n, valid, complete;
    } c[] = {
        {"", 0, 0, 0},
        {"abcdefghij", 10, 10, 10},
        {"abcdefg\xc3\xa9xyz", 12, 12, 12},
        {"abcdefghijk\xe6\xbc", 13, 11, 11},
        {"ab\xff\xe6\xbc\xa2", 6, 2, 6},
        {"a\xe6\xbc\xff", 4, 1, 4}, /* cut short by a stray byte: finished */
        {"\xe6\xbc\xa2\xf0\x9f", 5, 3, 3},
        {"\x80\x80\x80\x80", 4, 0, 4}, /* tails without a lead: nothing to wait for */
        {"\xf0\x80\x80", 3, 0, 3},     /* no character starts so */
        {"a\0b\xc3", 4, 3, 3},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        assert_int_equal(sl_utf8_valid(c[i].s, c[i].n), c[i].valid);
        assert_int_equal(sl_utf8_complete(c[i].s, c[i].n), c[i].complete);
    }
}

/* Whole text at once by the definition: characters as they are, U+FFFD for each subpart. */
static size_t replace_all(const unsigned char *s, size_t n, char *out)
{
    size_t w = 0;
    for (size_t i = 0; i < n;) {
        size_t len, bad;
        want_char(s + i, n - i < 3 ? (unsigned)(n - i) : 3, &len, &bad);
        if (!len && !bad && n - i >= 4) { /* three bytes well begun: the fourth decides */
            if ((s[i + 3] & 0xc0) == 0x80)
                len = 4;
            else
                bad = 3;
        }
        if (len)
            memcpy(out + w, s + i, len);
        else
            memcpy(out + w, "\xef\xbf\xbd", 3);
        w += len ? len : 3;
        i += len ? len : bad ? bad : n - i;
    }
    return w;
}

static void test_streams_in_any_cut(void **state)
{
    (void)state;
    struct tok_rng r = tok_seeded();
    enum { MAX = 60 };
    static const unsigned char odd[] = {0x80, 0xbf, 0xc0, 0xc2, 0xe0, 0xed, 0xef, 0xf0, 0xf4, 0xff};
    for (int round = 0; round < 20000; round++) {
        unsigned char in[MAX];
        size_t n = tok_below(&r, MAX - 4);
        for (size_t i = 0; i < n;) {
            if (tok_below(&r, 3) == 0)
                in[i++] = odd[tok_below(&r, sizeof odd)];
            else
                i += encode(tok_below(&r, 2) ? 0x1f600 + tok_below(&r, 64) : tok_below(&r, 0x900),
                            in + i);
            if (i > n) n = i;
        }
        char want[SL_UTF8_ROOM(MAX)], got[SL_UTF8_ROOM(MAX)];
        size_t n_want = replace_all(in, n, want), n_got = 0;
        struct sl_utf8_stream u = {0};
        for (size_t i = 0; i < n;) {
            size_t k = 1 + tok_below(&r, 5);
            if (k > n - i) k = n - i;
            char part[SL_UTF8_ROOM(5)];
            size_t w = sl_utf8_feed(&u, (char *)in + i, k, part);
            assert_int_equal(sl_utf8_valid(part, w), w); /* no half characters, ever */
            memcpy(got + n_got, part, w);
            n_got += w;
            i += k;
            /* Held back is only what may still become a character. */
            assert_int_equal(sl_utf8_complete((char *)in, i), i - u.n_held);
        }
        n_got += sl_utf8_finish(&u, got + n_got);
        assert_int_equal(u.n_held, 0);
        assert_int_equal(n_got, n_want);
        assert_memory_equal(got, want, n_want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_point),   cmocka_unit_test(test_every_short_sequence),
        cmocka_unit_test(test_four_byte_faults),   cmocka_unit_test(test_valid_and_complete),
        cmocka_unit_test(test_streams_in_any_cut),
    };
    return cmocka_run_group_tests(tests, build_sets, free_sets);
}
