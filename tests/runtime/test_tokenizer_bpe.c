/* Rank BPE beside the definition: all adjacent pairs looked up in every round, the lowest rank merged,
 * leftmost of equals. On vocabularies where ranks follow length and on ones where they do not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "runtime/tokenizer_bpe.h"
#include "tests/runtime/tokenizer_case.h"

struct token {
    const char *s;
    size_t len;
    uint32_t rank;
};

struct fixture {
    struct sl_vocab *v;
    struct token *sorted; /* by bytes: the test's own way to a rank */
};

static int by_bytes(const void *a, const void *b)
{
    const struct token *x = a, *y = b;
    int c = memcmp(x->s, y->s, x->len < y->len ? x->len : y->len);
    return c ? c : x->len < y->len ? -1 : x->len > y->len;
}

static void open_vocab(struct fixture *f, const char *dir)
{
    char path[SL_PATH_MAX];
    struct sl_err err = {0};
    assert_true(sl_path_join(path, dir, "tiktoken.model"));
    if (sl_vocab_open(&f->v, path, 1 << 24, SL_E_SOURCE, &err)) fail_msg("%s", err.text);
    f->sorted = calloc(f->v->n, sizeof *f->sorted);
    assert_non_null(f->sorted);
    for (uint32_t i = 0; i < f->v->n; i++)
        f->sorted[i] = (struct token){f->v->blob + f->v->at[i], f->v->len[i], i};
    qsort(f->sorted, f->v->n, sizeof *f->sorted, by_bytes);
}

static void close_vocab(struct fixture *f)
{
    sl_vocab_close(f->v);
    free(f->sorted);
    *f = (struct fixture){0};
}

static uint32_t rank_of(const struct fixture *f, const char *s, size_t len)
{
    struct token key = {s, len, 0};
    const struct token *t = bsearch(&key, f->sorted, f->v->n, sizeof key, by_bytes);
    return t ? t->rank : UINT32_MAX;
}

static size_t merge_by_definition(const struct fixture *f, const char *s, size_t len, uint32_t *ids)
{
    uint32_t whole = rank_of(f, s, len);
    if (whole != UINT32_MAX) {
        ids[0] = whole;
        return 1;
    }
    size_t *start = calloc(len + 1, sizeof *start), n = len;
    assert_non_null(start);
    for (size_t i = 0; i <= len; i++) start[i] = i;
    for (;;) {
        uint32_t low = UINT32_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            uint32_t rank = rank_of(f, s + start[i], start[i + 2] - start[i]);
            if (rank < low) {
                low = rank;
                at = i;
            }
        }
        if (low == UINT32_MAX) break;
        memmove(start + at + 1, start + at + 2, (n - at - 1) * sizeof *start);
        n--;
    }
    for (size_t i = 0; i < n; i++) ids[i] = rank_of(f, s + start[i], start[i + 1] - start[i]);
    free(start);
    return n;
}

static void check_piece(const struct fixture *f, struct sl_bpe_run *run, struct sl_ids *got,
                        const char *s, size_t len)
{
    uint32_t *want = calloc(len + 1, sizeof *want);
    assert_non_null(want);
    size_t n = merge_by_definition(f, s, len, want);
    struct sl_err err = {0};
    got->n = 0;
    if (sl_bpe_piece(run, s, len, got, &err)) fail_msg("%s", err.text);
    for (size_t i = 0; i < n && i < got->n; i++)
        if ((uint32_t)got->v[i] != want[i])
            fail_msg("piece of %zu bytes: id %zu is %d, want %u", len, i, got->v[i], want[i]);
    assert_int_equal(got->n, n);
    free(want);
}

/* Pieces made of tokens and bytes of the vocabulary, so that merges happen. */
static size_t random_piece(struct tok_rng *r, const struct fixture *f, char *buf, size_t cap)
{
    uint32_t few = 1 + tok_below(r, 12), pick[12];
    for (uint32_t i = 0; i < few; i++) pick[i] = tok_below(r, f->v->n);
    size_t n = 0, want = 1 + tok_below(r, (uint32_t)cap);
    while (n < want) {
        uint32_t id = tok_below(r, 4) ? pick[tok_below(r, few)] : tok_below(r, f->v->n);
        size_t len = f->v->len[id];
        if (len > want - n) len = want - n;
        memcpy(buf + n, f->v->blob + f->v->at[id], len);
        n += len;
    }
    return n;
}

static void check_vocab(const struct fixture *f, int rounds)
{
    struct tok_rng r = tok_seeded();
    struct sl_ids got = {0};
    for (int cached = 0; cached < 2; cached++) {
        struct sl_bpe_run *run = NULL;
        assert_int_equal(sl_bpe_run_open(&run, f->v, cached != 0, NULL), 0);
        char buf[1500];
        for (int i = 0; i < rounds; i++) {
            /* Lengths around the switch between scanning and heap most of all. */
            size_t cap = i % 50 == 0 ? sizeof buf : i % 5 == 0 ? 2 * SL_BPE_SHORT_BYTES : 24;
            size_t n = random_piece(&r, f, buf, cap);
            check_piece(f, run, &got, buf, n);
            if (cached) check_piece(f, run, &got, buf, n); /* from the cache, where it is short */
        }
        for (size_t n = SL_BPE_SHORT_BYTES - 2; n <= SL_BPE_SHORT_BYTES + 2; n++) {
            memset(buf, ' ', n);
            check_piece(f, run, &got, buf, n);
        }
        for (uint32_t id = 0; id < f->v->n; id++) /* each token is itself */
            check_piece(f, run, &got, f->v->blob + f->v->at[id], f->v->len[id]);
        sl_bpe_run_close(run);
    }
    sl_ids_free(&got);
}

/* Bytes and n more tokens, each the join of two others; ranks shuffled, so that a token may rank
 * before its parts and merges jump about. Few letters: pairs overlap and tie. */
static void make_vocab(struct tok_rng *r, uint32_t n_more)
{
    enum { MOST = 2000 };
    static char bytes[MOST][16];
    static size_t len[MOST];
    uint32_t n = 256;
    for (uint32_t i = 0; i < 256; i++) {
        bytes[i][0] = (char)i;
        len[i] = 1;
    }
    while (n < 256 + n_more) {
        uint32_t a =
            n > 256 && tok_below(r, 2) ? 256 + tok_below(r, n - 256) : 'a' + tok_below(r, 3);
        uint32_t b =
            n > 256 && tok_below(r, 2) ? 256 + tok_below(r, n - 256) : 'a' + tok_below(r, 3);
        size_t k = len[a] + len[b];
        if (k > 16) continue;
        memcpy(bytes[n], bytes[a], len[a]);
        memcpy(bytes[n] + len[a], bytes[b], len[b]);
        len[n] = k;
        bool twin = false;
        for (uint32_t i = 0; i < n; i++) twin |= len[i] == k && memcmp(bytes[i], bytes[n], k) == 0;
        if (!twin) n++;
    }
    uint32_t rank[MOST];
    for (uint32_t i = 0; i < n; i++) rank[i] = i;
    for (uint32_t i = n - 1; i > 0; i--) {
        uint32_t k = tok_below(r, i + 1), x = rank[i];
        rank[i] = rank[k];
        rank[k] = x;
    }
    struct tok_text t = {0};
    for (uint32_t i = 0; i < n; i++) tok_add_line(&t, bytes[i], len[i], rank[i]);
    tok_write("tiktoken.model", t.s, t.n);
    tok_text_free(&t);
}

static void test_shuffled_ranks(void **state)
{
    (void)state;
    struct tok_rng r = tok_seeded();
    for (int round = 0; round < 8; round++) {
        struct fixture f;
        const char *dir = tok_make_folder();
        make_vocab(&r, 20 + tok_below(&r, 300));
        open_vocab(&f, dir);
        check_vocab(&f, 120);
        close_vocab(&f);
        tok_remove_folder();
    }
}

static void check_released(const char *name)
{
    const char *dir = tok_folder(name);
    if (!dir) {
        print_message("SKIP %s: not in models/, tests/fixtures/ or $SLUICE_SHARED\n", name);
        skip();
    }
    struct fixture f;
    open_vocab(&f, dir);
    check_vocab(&f, 300);
    close_vocab(&f);
}

static void test_nano(void **state)
{
    (void)state;
    check_released("k3-nano");
}

static void test_mini(void **state)
{
    (void)state;
    check_released("k3-mini");
}

static void test_tiny(void **state)
{
    (void)state;
    check_released("tiny-a");
}

/* Half a million equal bytes in one piece, with blanks joined up to 64: the ids must be what the
 * definition gives for a run, the longest token over and over and the rest at the end. */
static void test_one_long_run(void **state)
{
    (void)state;
    struct tok_text t = {0}, run = {0};
    for (uint32_t b = 0; b < 256; b++) tok_add_line(&t, &(unsigned char){(unsigned char)b}, 1, b);
    tok_add_repeat(&run, " ", 500001);
    for (uint32_t k = 1; k <= 6; k++) tok_add_line(&t, run.s, (size_t)1 << k, 255 + k);
    const char *dir = tok_make_folder();
    tok_write("tiktoken.model", t.s, t.n);
    struct fixture f;
    open_vocab(&f, dir);
    struct sl_bpe_run *r = NULL;
    struct sl_ids ids = {0};
    assert_int_equal(sl_bpe_run_open(&r, f.v, false, NULL), 0);
    assert_int_equal(sl_bpe_piece(r, run.s, run.n, &ids, NULL), 0);
    size_t left = run.n;
    for (size_t i = 0; i < ids.n; i++) {
        size_t k = 64;
        while (k > left) k /= 2;
        assert_int_equal(f.v->len[ids.v[i]], k);
        left -= k;
    }
    assert_int_equal(left, 0);
    sl_bpe_run_close(r);
    sl_ids_free(&ids);
    close_vocab(&f);
    tok_remove_folder();
    tok_text_free(&t);
    tok_text_free(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shuffled_ranks), cmocka_unit_test(test_nano),
        cmocka_unit_test(test_mini),           cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_one_long_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
