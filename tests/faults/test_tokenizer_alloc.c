/* The Nth allocation fails, N = 1, 2, ... until none is left to fail: every time an error comes back,
 * nothing is written to the caller's things and nothing is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/runtime/tokenizer_case.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OTHER_MALLOC
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define OTHER_MALLOC
#endif

#ifdef OTHER_MALLOC
static void test_open(void **state)
{
    (void)state;
    print_message("SKIP tokenizer allocations: the allocator is not ours to replace\n");
    skip();
}

static void test_encode_and_decode(void **state)
{
    test_open(state);
}
#else

/* The program's own malloc, in front of the C library's. */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

static long countdown; /* 1: the next one fails; 0: none does */
static long live;      /* blocks handed out and not freed */

static bool fails_now(void)
{
    return countdown > 0 && --countdown == 0;
}

void *malloc(size_t n)
{
    void *p = fails_now() ? NULL : __libc_malloc(n);
    live += p != NULL;
    return p;
}

void *calloc(size_t n, size_t size)
{
    void *p = fails_now() ? NULL : __libc_calloc(n, size);
    live += p != NULL;
    return p;
}

void *realloc(void *old, size_t n)
{
    void *p = fails_now() ? NULL : __libc_realloc(old, n);
    live += p != NULL && !old;
    return p;
}

void *aligned_alloc(size_t align, size_t n)
{
    void *p = fails_now() ? NULL : __libc_memalign(align, n);
    live += p != NULL;
    return p;
}

void free(void *p)
{
    live -= p != NULL;
    __libc_free(p);
}

/* In tiny-b's folder; the config's reader may call a text that it cannot store unreadable. */
static void test_open(void **state)
{
    (void)state;
    const char *dir = tok_folder("tiny-b");
    assert_non_null(dir);
    sl_tokenizer_close(tok_open(dir, 576)); /* what the C library keeps for good, it has now */
    long before = live, n = 0;
    for (bool opened = false; !opened;) {
        struct sl_tokenizer *t = NULL;
        struct sl_err err = {0};
        countdown = ++n;
        int rc = sl_tokenizer_open(&t, dir, 576, SL_E_SOURCE, &err);
        opened = countdown > 0; /* none was left to fail */
        countdown = 0;
        if (opened) assert_int_equal(rc, 0);
        if (rc) {
            assert_true(rc == SL_E_NOMEM || rc == SL_E_SOURCE);
            assert_null(t);
            assert_true(err.text[0] != 0);
        }
        sl_tokenizer_close(t);
        if (live != before) fail_msg("allocation %ld: %ld blocks lost", n, live - before);
    }
    print_message("open: %ld allocations\n", n - 1);
    assert_true(n > 20);
}

/* Long and short pieces, cached and not, controls and bytes that are no text. */
static void test_encode_and_decode(void **state)
{
    (void)state;
    struct sl_tokenizer *t = tok_open(tok_folder("tiny-b"), 576);
    struct tok_text x = {0};
    for (int i = 0; i < 200; i++)
        tok_printf(&x, "some words <|open|> \xff and numbers %d\n", i * 7919);
    tok_add_repeat(&x, "ab", 3000);
    struct sl_ids want = {0};
    tok_encode(t, true, x.s, x.n, &want);
    long n = 0;
    for (bool done = false; !done;) {
        struct sl_ids ids = {0};
        struct sl_err err = {0};
        char *back = NULL;
        size_t n_back = 0;
        long before = live;
        countdown = ++n;
        int rc = sl_tokenizer_encode_markup(t, x.s, x.n, &ids, &err);
        if (!rc) rc = sl_tokenizer_decode(t, ids.v, ids.n, &back, &n_back, &err);
        done = countdown > 0;
        countdown = 0;
        if (done) assert_int_equal(rc, 0);
        if (rc) {
            assert_int_equal(rc, SL_E_NOMEM);
            assert_null(back);
            assert_true(ids.n == 0 || ids.n == want.n); /* all of the text or none */
        } else { /* also where only the cache had no memory */
            assert_int_equal(ids.n, want.n);
            assert_memory_equal(ids.v, want.v, want.n * sizeof *want.v);
            assert_int_equal(n_back, x.n);
        }
        free(back);
        sl_ids_free(&ids);
        if (live != before) fail_msg("allocation %ld: %ld blocks lost", n, live - before);
    }
    print_message("encode and decode: %ld allocations\n", n - 1);
    assert_true(n > 10);
    sl_ids_free(&want);
    tok_text_free(&x);
    sl_tokenizer_close(t);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_encode_and_decode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
