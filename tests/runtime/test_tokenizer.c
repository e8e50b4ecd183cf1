/* The tokenizer as a whole: every byte comes back, control strings are found where they stand, and
 * ten megabytes of one character are nothing special. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/runtime/tokenizer_case.h"

static const char *const names[] = {"k3-nano", "k3-mini", "tiny-a", "tiny-b"};

/* The first vocabulary there is, largest first; skips the test without any. */
static struct sl_tokenizer *open_one(void)
{
    for (int i = 1; i >= 0; i--) {
        const char *dir = tok_folder(names[i]);
        if (dir) return tok_open(dir, SL_TOKENIZER_VOCAB_AUTO);
    }
    print_message("SKIP: neither k3-nano nor k3-mini is in models/ or $SLUICE_SHARED\n");
    skip();
    return NULL;
}

static void check_round_trip(const struct sl_tokenizer *t, const char *text, size_t len)
{
    struct sl_ids ids = {0};
    struct sl_err err = {0};
    for (int markup = 0; markup < 2; markup++) {
        tok_encode(t, markup != 0, text, len, &ids);
        char *back = NULL;
        size_t n = 0;
        if (sl_tokenizer_decode(t, ids.v, ids.n, &back, &n, &err)) fail_msg("%s", err.text);
        assert_int_equal(n, len);
        assert_memory_equal(back, text, len);
        assert_int_equal(back[n], 0);
        free(back);
        if (!markup)
            for (size_t i = 0; i < ids.n; i++) assert_false(sl_tokenizer_is_control(t, ids.v[i]));
    }
    sl_ids_free(&ids);
}

static const char *some_control(const struct sl_tokenizer *t, struct tok_rng *r, size_t *len)
{
    int first = sl_tokenizer_n_ordinary(t), n = sl_tokenizer_n_vocab(t) - first;
    return sl_tokenizer_bytes(t, first + (int32_t)tok_below(r, (uint32_t)n), len);
}

/* Random characters, raw bytes, control names, parts of control names. */
static size_t random_mix(const struct sl_tokenizer *t, struct tok_rng *r, char *buf, size_t cap)
{
    size_t n = 0;
    while (n + 400 < cap && tok_below(r, 30)) {
        size_t len;
        const char *s;
        switch (tok_below(r, 5)) {
        case 0:
            buf[n++] = (char)tok_below(r, 256);
            break;
        case 1:
            s = some_control(t, r, &len);
            if (tok_below(r, 2)) len = tok_below(r, (uint32_t)len + 1);
            memcpy(buf + n, s, len);
            n += len;
            break;
        default:
            n += tok_random_text(r, buf + n, 60, (int)tok_below(r, 5));
        }
    }
    return n;
}

static void test_round_trips(void **state)
{
    (void)state;
    struct tok_rng r = tok_seeded();
    int n_open = 0;
    for (int i = 0; i < 4; i++) {
        const char *dir = tok_folder(names[i]);
        if (!dir) continue;
        n_open++;
        struct sl_tokenizer *t = tok_open(dir, SL_TOKENIZER_VOCAB_AUTO);
        char buf[3000];
        for (int round = 0; round < 1200; round++)
            check_round_trip(t, buf, random_mix(t, &r, buf, sizeof buf));
        check_round_trip(t, "", 0);
        check_round_trip(t, "\0\0a\0", 4);
        for (unsigned b = 0; b < 256; b++) {
            buf[0] = (char)b;
            check_round_trip(t, buf, 1);
        }
        sl_tokenizer_close(t);
    }
    assert_true(n_open >= 2); /* tiny-a and tiny-b are in the project */
}

/* Markup by the definition: leftmost, longest name by comparing them all; between them plain text. */
static void test_markup_by_definition(void **state)
{
    (void)state;
    struct tok_rng r = tok_seeded();
    struct sl_tokenizer *t = open_one();
    struct sl_ids got = {0}, want = {0};
    char buf[1500];
    for (int round = 0; round < 400; round++) {
        size_t len = random_mix(t, &r, buf, sizeof buf), plain = 0;
        want.n = 0;
        for (size_t i = 0; i <= len;) {
            size_t best = 0;
            int32_t id = -1;
            for (int32_t c = sl_tokenizer_n_ordinary(t); c < sl_tokenizer_n_vocab(t); c++) {
                size_t n;
                const char *name = sl_tokenizer_bytes(t, c, &n);
                if (n > best && n <= len - i && memcmp(buf + i, name, n) == 0) {
                    best = n;
                    id = c;
                }
            }
            if (best || i == len) {
                assert_int_equal(sl_tokenizer_encode_plain(t, buf + plain, i - plain, &want, NULL),
                                 0);
                if (best) assert_int_equal(sl_ids_push(&want, id, NULL), 0);
                plain = i + best;
            }
            i += best ? best : 1;
        }
        tok_encode(t, true, buf, len, &got);
        assert_int_equal(got.n, want.n);
        if (want.n) assert_memory_equal(got.v, want.v, want.n * sizeof *want.v);
    }
    sl_ids_free(&got);
    sl_ids_free(&want);
    sl_tokenizer_close(t);
}

static void test_control_names_both_ways(void **state)
{
    (void)state;
    struct sl_tokenizer *t = open_one();
    struct sl_ids ids = {0};
    for (int32_t c = sl_tokenizer_n_ordinary(t); c < sl_tokenizer_n_vocab(t); c++) {
        size_t n;
        const char *s = sl_tokenizer_bytes(t, c, &n);
        char name[257];
        assert_in_range(n, 1, 256);
        memcpy(name, s, n);
        name[n] = 0;
        assert_int_equal(sl_tokenizer_control(t, name), c);
        tok_encode(t, true, name, n, &ids);
        assert_int_equal(ids.n, 1);
        assert_int_equal(ids.v[0], c);
        tok_encode(t, false, name, n, &ids);
        assert_true(ids.n > 1);
    }
    sl_ids_free(&ids);
    sl_tokenizer_close(t);
}

/* Names that begin one another: the longest that fits wins. A name of 256 times '<' and text of the
 * same letter is the worst a config can ask for. */
static void test_nested_names(void **state)
{
    (void)state;
    const char *dir = tok_make_folder();
    struct tok_text m = {0}, c = {0}, text = {0};
    for (uint32_t b = 0; b < 256; b++) tok_add_line(&m, &(unsigned char){(unsigned char)b}, 1, b);
    tok_write("tiktoken.model", m.s, m.n);
    tok_printf(&c, "{\"added_tokens_decoder\":{\"256\":{\"content\":\"<a\"},\"257\":{\"content\":"
                   "\"<a><b\"},\"258\":{\"content\":\"b>\"},\"259\":{\"content\":\"");
    tok_add_repeat(&c, "<", 255);
    tok_printf(&c, "!\"}}}");
    tok_write("tokenizer_config.json", c.s, c.n);
    struct sl_tokenizer *t = tok_open(dir, 260);
    struct sl_ids ids = {0};
    static const struct {
        const char *s;
        int32_t ids[6];
        size_t n;
    } k[] = {
        {"<a><b", {257}, 1},           {"<a><a", {256, '>', 256}, 3},
        {"<a>b>", {256, '>', 258}, 3}, {"<<a><b>", {'<', 257, '>'}, 3},
        {"<a><", {256, '>', '<'}, 3},
    };
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        tok_encode(t, true, k[i].s, strlen(k[i].s), &ids);
        assert_int_equal(ids.n, k[i].n);
        assert_memory_equal(ids.v, k[i].ids, k[i].n * sizeof *ids.v);
    }
    tok_add_repeat(&text, "<", 310000); /* 12 cuts by the guards, then 10,000 and the name */
    tok_encode(t, true, text.s, text.n, &ids);
    assert_int_equal(ids.n, text.n);
    tok_add(&text, "!", 1);
    tok_encode(t, true, text.s, text.n, &ids);
    assert_int_equal(ids.n, 310000 - 255 + 1);
    assert_int_equal(ids.v[ids.n - 1], 259);
    sl_ids_free(&ids);
    sl_tokenizer_close(t);
    tok_remove_folder();
    tok_text_free(&m);
    tok_text_free(&c);
    tok_text_free(&text);
}

/* Guards come first: a cut through a name leaves text, as it does in the reference. */
static void test_guard_cuts_a_name(void **state)
{
    (void)state;
    struct sl_tokenizer *t = open_one();
    struct sl_ids got = {0}, want = {0};
    int32_t open = sl_tokenizer_control(t, "<|open|>");
    assert_true(open >= 0);
    struct tok_text x = {0};
    tok_add_repeat(&x, "x", 24996);
    tok_add(&x, "<|open|><|open|>",
            16); /* the cut falls behind 25,000 characters: "<|op" | "en|>" */
    tok_encode(t, true, x.s, x.n, &got);
    assert_int_equal(sl_tokenizer_encode_plain(t, x.s, 25000, &want, NULL), 0);
    assert_int_equal(sl_tokenizer_encode_plain(t, "en|>", 4, &want, NULL), 0);
    assert_int_equal(sl_ids_push(&want, open, NULL), 0);
    assert_int_equal(got.n, want.n);
    assert_memory_equal(got.v, want.v, want.n * sizeof *want.v);
    sl_ids_free(&got);
    sl_ids_free(&want);
    tok_text_free(&x);
    sl_tokenizer_close(t);
}

/* n characters of one kind must give the ids of 25,000 of them again and again, and those of the
 * rest: the guards cut there. One unit a slice may be out of step, so units of one character only. */
static void test_ten_megabytes_of_one_character(void **state)
{
    (void)state;
    static const char *const units[] = {"a", " ", "\n", "漢", "\u0301"};
    struct sl_tokenizer *t = open_one();
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t unit = strlen(units[i]), n = 10000000 / unit, rest = n % 25000;
        struct tok_text x = {0};
        tok_add_repeat(&x, units[i], n);
        struct sl_ids all = {0}, part = {0}, last = {0};
        tok_encode(t, i % 2 == 0, x.s, x.n, &all);
        tok_encode(t, false, x.s, 25000 * unit, &part);
        tok_encode(t, false, x.s, rest * unit, &last);
        assert_int_equal(all.n, part.n * (n / 25000) + last.n);
        for (size_t k = 0; k < n / 25000; k++)
            assert_memory_equal(all.v + k * part.n, part.v, part.n * sizeof *part.v);
        if (last.n) assert_memory_equal(all.v + all.n - last.n, last.v, last.n * sizeof *last.v);
        sl_ids_free(&all);
        sl_ids_free(&part);
        sl_ids_free(&last);
        tok_text_free(&x);
    }
    sl_tokenizer_close(t);
}

/* Mixtures that make the released pattern step back, or names almost begin, for long. */
static void test_long_near_misses(void **state)
{
    (void)state;
    static const char *const units[] = {"かA", "Aか",        "aA",    "<|",      "<|open|",
                                        "\n ", "\x1c!",      "'s",    "e\u0301", "1",
                                        "A",   "漢字\u0301", "[EOS]", "\xe6\xbc"};
    struct sl_tokenizer *t = open_one();
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        struct tok_text x = {0};
        tok_add_repeat(&x, units[i], 300000 / strlen(units[i]));
        check_round_trip(t, x.s, x.n);
        tok_text_free(&x);
    }
    sl_tokenizer_close(t);
}

static void test_ids_outside(void **state)
{
    (void)state;
    struct sl_tokenizer *t = open_one();
    int32_t n = sl_tokenizer_n_vocab(t);
    const int32_t bad[][3] = {{0, 1, n}, {0, 1, -1}, {0, 1, INT32_MIN}, {0, 1, INT32_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct sl_err err = {0};
        char *out = NULL;
        size_t len;
        assert_int_equal(sl_tokenizer_decode(t, bad[i], 3, &out, &len, &err), SL_E_ARG);
        assert_null(out);
        assert_non_null(strstr(err.text, "at index 2"));
        assert_null(sl_tokenizer_bytes(t, bad[i][2], &len));
        assert_int_equal(len, 0);
    }
    char *out = NULL;
    size_t len = 9;
    assert_int_equal(sl_tokenizer_decode(t, bad[0], 2, &out, &len, NULL), 0);
    free(out);
    assert_int_equal(sl_tokenizer_decode(t, NULL, 0, &out, &len, NULL), 0);
    assert_int_equal(len, 0);
    assert_string_equal(out, "");
    free(out);
    sl_tokenizer_close(t);
}

/* An interrupt ends a long call, and the ids are those from before it. */
static void test_interrupt(void **state)
{
    (void)state;
    struct sl_tokenizer *t = open_one();
    struct sl_ids ids = {0};
    struct sl_err err = {0};
    assert_int_equal(sl_tokenizer_encode_plain(t, "before", 6, &ids, NULL), 0);
    size_t n = ids.n;
    sl_interrupt();
    assert_int_equal(sl_tokenizer_encode_plain(t, "after", 5, &ids, &err), SL_E_INTR);
    sl_interrupt_clear();
    assert_int_equal(ids.n, n);
    assert_int_equal(sl_tokenizer_encode_plain(t, "after", 5, &ids, &err), 0);
    assert_true(ids.n > n);
    sl_ids_free(&ids);
    sl_tokenizer_close(t);
}

struct sharer {
    const struct sl_tokenizer *t;
    const struct tok_text *x;
    struct sl_ids ids;
    int rc;
};

static void *share(void *arg)
{
    struct sharer *s = arg;
    for (int i = 0; i < 3 && !s->rc; i++) {
        s->ids.n = 0;
        s->rc = sl_tokenizer_encode_markup(s->t, s->x->s, s->x->n, &s->ids, NULL);
    }
    return NULL;
}

static void test_threads_share_a_tokenizer(void **state)
{
    (void)state;
    struct tok_rng r = tok_seeded();
    struct sl_tokenizer *t = open_one();
    struct tok_text x = {0};
    char buf[3000];
    while (x.n < 100000) tok_add(&x, buf, random_mix(t, &r, buf, sizeof buf));
    struct sl_ids want = {0};
    tok_encode(t, true, x.s, x.n, &want);
    enum { THREADS = 4 };
    struct sharer s[THREADS];
    pthread_t id[THREADS];
    for (int i = 0; i < THREADS; i++) {
        s[i] = (struct sharer){.t = t, .x = &x};
        assert_int_equal(pthread_create(&id[i], NULL, share, &s[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(id[i], NULL), 0);
        assert_int_equal(s[i].rc, 0);
        assert_int_equal(s[i].ids.n, want.n);
        assert_memory_equal(s[i].ids.v, want.v, want.n * sizeof *want.v);
        sl_ids_free(&s[i].ids);
    }
    sl_ids_free(&want);
    tok_text_free(&x);
    sl_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_markup_by_definition),
        cmocka_unit_test(test_control_names_both_ways),
        cmocka_unit_test(test_nested_names),
        cmocka_unit_test(test_guard_cuts_a_name),
        cmocka_unit_test(test_ten_megabytes_of_one_character),
        cmocka_unit_test(test_long_near_misses),
        cmocka_unit_test(test_ids_outside),
        cmocka_unit_test(test_interrupt),
        cmocka_unit_test(test_threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
