/* Turns come back as the ids they were generated as, where and only where their text is sent back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "runtime/chat_parse.h"
#include "runtime/chat_turns.h"
#include "tests/runtime/tokenizer_case.h"

static struct sl_tokenizer *t;
static struct sl_chat_format f;
static struct sl_err err;

static void ok(int rc)
{
    if (rc) fail_msg("code %d: %s", rc, err.text);
}

/* Text one byte an id: never what the encoder makes of it. */
static void bytes(struct sl_ids *ids, const char *s)
{
    for (; *s; s++) ok(sl_tokenizer_encode_plain(t, s, 1, ids, &err));
}

static void tag(struct sl_ids *ids, int32_t first, const char *name)
{
    ok(sl_ids_push(ids, first, &err));
    ok(sl_tokenizer_encode_plain(t, name, strlen(name), ids, &err));
    ok(sl_ids_push(ids, f.sep, &err));
}

static void turn_ids(struct sl_ids *ids, const char *reasoning, const char *content)
{
    bytes(ids, reasoning);
    tag(ids, f.close, "think");
    tag(ids, f.open, "response");
    bytes(ids, content);
    tag(ids, f.close, "response");
    tag(ids, f.close, "message");
    ok(sl_ids_push(ids, f.eom, &err));
}

static void conversation(struct sl_chat *c, const char *reasoning, const char *content)
{
    struct sl_chat_message *m;
    ok(sl_chat_add(c, SL_CHAT_USER, &m, &err));
    ok(sl_chat_add_text(c, m, "question", 8, &err));
    ok(sl_chat_add(c, SL_CHAT_ASSISTANT, &m, &err));
    ok(sl_chat_copy(c, &m->reasoning, reasoning, strlen(reasoning), &err));
    ok(sl_chat_add_text(c, m, content, strlen(content), &err));
    ok(sl_chat_add(c, SL_CHAT_USER, &m, &err));
    ok(sl_chat_add_text(c, m, "and", 3, &err));
}

static size_t spliced(struct sl_chat_turns *turns, const char *reasoning, const char *content,
                      const struct sl_ids *want)
{
    struct sl_chat c = {0};
    struct sl_chat_prompt p = {0};
    conversation(&c, reasoning, content);
    ok(sl_chat_turns_render(turns, &f, &c, &p, &err));
    const size_t n = p.spliced;
    if (n && want) {
        assert_int_equal(n, want->n);
        const size_t end = p.marks[p.n_marks - 1];
        assert_memory_equal(p.ids.v + end - n, want->v, n * sizeof *want->v);
    }
    sl_chat_prompt_free(&p);
    sl_chat_free(&c);
    return n;
}

static void test_same_text_only(void **state)
{
    (void)state;
    struct sl_chat_turns *turns;
    struct sl_ids ids = {0};
    turn_ids(&ids, "because", "the answer is");
    ok(sl_chat_turns_open(&turns, 1 << 20, &err));
    assert_int_equal(spliced(turns, "because", "the answer is", NULL), 0);
    ok(sl_chat_turns_put(turns, &f, true, ids.v, ids.n, &err));
    assert_int_equal(spliced(turns, "because", "the answer is", &ids), ids.n);
    assert_int_equal(spliced(turns, "because", "the answer is ", NULL), 0);
    assert_int_equal(spliced(turns, "", "the answer is", NULL), 0);
    assert_int_equal(spliced(NULL, "because", "the answer is", NULL), 0);
    /* ids that are no whole turn are not kept */
    size_t n;
    size_t held;
    ok(sl_chat_turns_put(turns, &f, true, ids.v, ids.n - 1, &err));
    sl_chat_turns_count(turns, &n, &held);
    assert_int_equal(n, 1);
    sl_ids_free(&ids);
    sl_chat_turns_close(turns);
}

static void test_budget(void **state)
{
    (void)state;
    struct sl_chat_turns *turns;
    size_t n;
    size_t held;
    ok(sl_chat_turns_open(&turns, 4096, &err));
    for (int i = 0; i < 100; i++) {
        char content[32];
        struct sl_ids ids = {0};
        snprintf(content, sizeof content, "answer %d", i);
        turn_ids(&ids, "", content);
        ok(sl_chat_turns_put(turns, &f, true, ids.v, ids.n, &err));
        sl_ids_free(&ids);
        assert_int_equal(spliced(turns, "", "answer 0", NULL) != 0, 1); /* stays in use */
        sl_chat_turns_count(turns, &n, &held);
        assert_true(held <= 4096 && n >= 1);
    }
    assert_true(n > 4 && n < 100);
    assert_int_equal(spliced(turns, "", "answer 1", NULL), 0);
    assert_true(spliced(turns, "", "answer 99", NULL) > 0);
    sl_chat_turns_close(turns);
}

/* Found again in the ids of a whole session, the last turn also where it was cut. */
static void test_learn(void **state)
{
    (void)state;
    struct sl_chat_turns *turns;
    struct sl_ids ids = {0};
    struct sl_chat c = {0};
    struct sl_chat_prompt p = {0};
    conversation(&c, "r", "first");
    c.n_messages = 1;
    ok(sl_chat_render(&f, &c, NULL, NULL, &p, &err));
    for (size_t i = 0; i < p.ids.n; i++) ok(sl_ids_push(&ids, p.ids.v[i], &err));
    struct sl_ids first = {0};
    turn_ids(&first, "r", "first");
    for (size_t i = 0; i < first.n; i++) ok(sl_ids_push(&ids, first.v[i], &err));
    for (size_t i = 0; i < p.ids.n; i++) ok(sl_ids_push(&ids, p.ids.v[i], &err));
    bytes(&ids, "half a thou");
    ok(sl_chat_turns_open(&turns, 1 << 20, &err));
    ok(sl_chat_turns_learn(turns, &f, true, ids.v, ids.n, &err));
    size_t n;
    size_t held;
    sl_chat_turns_count(turns, &n, &held);
    assert_int_equal(n, 2);
    assert_int_equal(spliced(turns, "r", "first", &first), first.n);
    assert_true(spliced(turns, "half a thou", "", NULL) > 0);
    ok(sl_chat_turns_learn(turns, &f, false, ids.v, ids.n, &err)); /* no such openings in it */
    sl_chat_turns_count(turns, &n, &held);
    assert_int_equal(n, 2);
    sl_chat_turns_close(turns);
    sl_chat_prompt_free(&p);
    sl_chat_free(&c);
    sl_ids_free(&ids);
    sl_ids_free(&first);
}

static void test_files(void **state)
{
    (void)state;
    char path[SL_PATH_MAX];
    struct sl_chat_turns *turns;
    struct sl_ids ids = {0};
    char *whole;
    size_t size;
    assert_true(sl_path_join(path, tok_make_folder(), "turns"));
    turn_ids(&ids, "because", "yes");
    ok(sl_chat_turns_open(&turns, 1 << 20, &err));
    ok(sl_chat_turns_put(turns, &f, true, ids.v, ids.n, &err));
    ok(sl_chat_turns_save(turns, path, &err));
    sl_chat_turns_close(turns);

    ok(sl_chat_turns_open(&turns, 1 << 20, &err));
    ok(sl_chat_turns_load(turns, &f, path, &err));
    assert_int_equal(spliced(turns, "because", "yes", &ids), ids.n);
    sl_chat_turns_close(turns);

    /* every flipped byte and every cut is refused, and nothing of it kept */
    ok(sl_read_file(&whole, &size, path, 1 << 20, SL_E_SOURCE, &err));
    for (size_t i = 0; i < 2 * size; i++) {
        size_t n;
        size_t held;
        if (i < size) whole[i] ^= 1;
        ok(sl_write_file(path, whole, i < size ? size : i - size, &err));
        if (i < size) whole[i] ^= 1;
        ok(sl_chat_turns_open(&turns, 1 << 20, &err));
        assert_int_equal(sl_chat_turns_load(turns, &f, path, &err), SL_E_SOURCE);
        sl_chat_turns_count(turns, &n, &held);
        assert_int_equal(n, 0);
        sl_chat_turns_close(turns);
    }
    /* a right checksum over ids of another vocabulary */
    const int32_t big = 1 << 20;
    memcpy(whole + 24, &big, sizeof big);
    const uint32_t crc = sl_crc32(0, whole, size - 4);
    memcpy(whole + size - 4, &crc, sizeof crc);
    ok(sl_write_file(path, whole, size, &err));
    ok(sl_chat_turns_open(&turns, 1 << 20, &err));
    assert_int_equal(sl_chat_turns_load(turns, &f, path, &err), SL_E_SOURCE);
    assert_non_null(strstr(err.text, "vocabulary"));
    sl_chat_turns_close(turns);
    free(whole);
    sl_ids_free(&ids);
    tok_remove_folder();
}

static int open_nano(void **state)
{
    (void)state;
    t = tok_open(tok_folder("k3-nano"), SL_TOKENIZER_VOCAB_AUTO);
    return sl_chat_format_init(&f, t, NULL);
}

static int close_nano(void **state)
{
    (void)state;
    sl_tokenizer_close(t);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_text_only),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_learn),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, open_nano, close_nano);
}
