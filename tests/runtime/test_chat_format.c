/* The chat format against ids that were written out by hand: each conversation below was spelled as a
 * list of control ids and text segments from the format's description, and each segment encoded by
 * tiktoken with k3-nano's vocabulary. No line of it came out of this renderer.
 *
 * The vectors of the released encoder are checked where its vocabulary is ($SLUICE_K3_TOKENIZER), and
 * those made of whole words alone also with a vocabulary that has just these words in their places. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/chat_format.h"
#include "runtime/chat_json.h"
#include "tests/runtime/chat_cases.h"
#include "tests/runtime/tokenizer_case.h"

static struct sl_tokenizer *t;
static struct sl_chat_format f;

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

static void read_chat(struct sl_chat *c, const char *json)
{
    struct sl_err err = {0};
    char param[SL_CHAT_PARAM_MAX];
    int rc = sl_chat_from_json(c, json, strlen(json), param, &err);
    if (rc) fail_msg("%s", err.text);
}

static void expect_ids(const char *name, const struct sl_ids *got, const int32_t *want, size_t n)
{
    size_t i = 0;
    while (i < got->n && i < n && got->v[i] == want[i]) i++;
    if (i < n || i < got->n)
        fail_msg("%s: %zu ids, expected %zu; at %zu: %d, expected %d", name, got->n, n, i,
                 i < got->n ? got->v[i] : -1, i < n ? want[i] : -1);
}

static void test_by_hand(void **state)
{
    (void)state;
    for (size_t i = 0; i < chat_n_cases; i++) {
        const struct chat_case *k = &chat_cases[i];
        struct sl_chat c = {0};
        struct sl_chat_prompt p = {0};
        struct sl_err err = {0};
        read_chat(&c, k->request);
        if (sl_chat_render(&f, &c, NULL, NULL, &p, &err)) fail_msg("%s: %s", k->name, err.text);
        expect_ids(k->name, &p.ids, k->ids, k->n_ids);
        sl_chat_prompt_free(&p);
        sl_chat_free(&c);
    }
}

/* What is written as JSON and read again renders the same. */
static void test_json_round_trip(void **state)
{
    (void)state;
    for (size_t i = 0; i < chat_n_cases; i++) {
        const struct chat_case *k = &chat_cases[i];
        struct sl_chat c = {0};
        struct sl_chat again = {0};
        struct sl_chat_prompt p = {0};
        struct sl_buf b = {0};
        struct sl_err err = {0};
        read_chat(&c, k->request);
        assert_int_equal(sl_chat_to_json(&b, &c, &err), 0);
        read_chat(&again, b.s);
        assert_int_equal(sl_chat_render(&f, &again, NULL, NULL, &p, &err), 0);
        expect_ids(k->name, &p.ids, k->ids, k->n_ids);
        sl_chat_prompt_free(&p);
        sl_buf_free(&b);
        sl_chat_free(&again);
        sl_chat_free(&c);
    }
}

/* Control ids stand where the spelled form has markers, and nowhere else: as many as were written. */
static void test_text_never_becomes_control(void **state)
{
    (void)state;
    static const char request[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"[EOS]<|end_of_msg|>[BOS]<|sep|>[PAD]"
        "<|reserved_token_3900|>\"}],\"reasoning_effort\":null}";
    struct sl_chat c = {0};
    struct sl_chat_prompt p = {0};
    read_chat(&c, request);
    assert_int_equal(sl_chat_render(&f, &c, NULL, NULL, &p, NULL), 0);
    size_t n = 0;
    for (size_t i = 0; i < p.ids.n; i++) n += sl_tokenizer_is_control(t, p.ids.v[i]);
    assert_int_equal(n, 9); /* open sep close sep eom, open sep, open sep */
    sl_chat_prompt_free(&p);
    sl_chat_free(&c);
}

/* Marks: the end of the system prompt and of each assistant message, as positions in the ids. */
static void test_marks(void **state)
{
    (void)state;
    static const char request[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":"
        "\"q1\"},{\"role\":\"assistant\",\"content\":\"a1\"},{\"role\":\"user\",\"content\":\"q2\"}"
        "]}";
    struct sl_chat c = {0};
    struct sl_chat_prompt p = {0};
    read_chat(&c, request);
    assert_int_equal(sl_chat_render(&f, &c, NULL, NULL, &p, NULL), 0);
    assert_int_equal(p.n_marks, 2);
    size_t ends[8];
    size_t n = 0;
    for (size_t i = 0; i < p.ids.n; i++)
        if (p.ids.v[i] == f.eom) ends[n++] = i + 1;
    assert_int_equal(n, 5); /* effort, system, user, assistant, user */
    assert_int_equal(p.marks[0], ends[1]);
    assert_int_equal(p.marks[1], ends[3]);
    sl_chat_prompt_free(&p);
    sl_chat_free(&c);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *request, *param, *text;
    } bad[] = {
        {"[1]", "request", "must be an object"},
        {"{", "", "no valid JSON"},
        {"{\"messages\":[]}", "messages", "not empty"},
        {"{\"messages\":[{\"role\":\"robot\",\"content\":\"\"}]}", "messages[0].role", "must be"},
        {"{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content", "is missing"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":3}]}", "messages[0].content", "is number"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "messages[0].content[0]", "images"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"[1]\"}}]}]}",
         "messages[0].tool_calls[0].function.arguments", "array and no object"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"reasoning_effort\":\"medium\"}",
         "reasoning_effort", "must be"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"tool_choice\":{\"type\":"
         "\"function\"}}",
         "tool_choice", "cannot be forced"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"response_format\":{\"type\":"
         "\"json_schema\"}}",
         "response_format.json_schema.schema", "must be an object"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud800\"}]}", "", "\\u escape"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", "", "not UTF-8"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sl_chat c = {0};
        struct sl_err err = {0};
        char param[SL_CHAT_PARAM_MAX];
        int rc = sl_chat_from_json(&c, bad[i].request, strlen(bad[i].request), param, &err);
        if (rc != SL_E_ARG || strcmp(param, bad[i].param) != 0 || !strstr(err.text, bad[i].text))
            fail_msg("%s: code %d, param '%s', '%s'", bad[i].request, rc, param, err.text);
        sl_chat_free(&c);
    }
}

/* A result that answers nothing is refused when it is rendered, with its place. */
static void test_nameless_result(void **state)
{
    (void)state;
    struct sl_chat c = {0};
    struct sl_chat_prompt p = {0};
    struct sl_err err = {0};
    read_chat(&c, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},"
                  "{\"role\":\"tool\",\"content\":\"y\"}]}");
    assert_int_equal(sl_chat_render(&f, &c, NULL, NULL, &p, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "messages[1]"));
    assert_null(p.ids.v);
    sl_chat_free(&c);
}

static void check_released(const struct sl_chat_format *rf, const char *request,
                           const int32_t *want, size_t n, bool start_only)
{
    struct sl_chat c = {0};
    struct sl_chat_prompt p = {0};
    struct sl_err err = {0};
    read_chat(&c, request);
    if (sl_chat_render(rf, &c, NULL, NULL, &p, &err)) fail_msg("%s", err.text);
    if (start_only && p.ids.n > n) p.ids.n = n;
    expect_ids(request, &p.ids, want, n);
    sl_chat_prompt_free(&p);
    sl_chat_free(&c);
}

static void test_released_vocabulary(void **state)
{
    (void)state;
    const char *dir = getenv("SLUICE_K3_TOKENIZER");
    if (!dir || !*dir) {
        print_message("SKIP released vectors: SLUICE_K3_TOKENIZER names no folder\n");
        skip();
    }
    struct sl_tokenizer *rt = tok_open(dir, SL_TOKENIZER_VOCAB_AUTO);
    struct sl_chat_format rf;
    assert_int_equal(sl_chat_format_init(&rf, rt, NULL), 0);
    for (size_t i = 0; i < chat_n_released; i++) {
        const struct chat_case *k = &chat_released[i];
        check_released(&rf, k->request, k->ids, k->n_ids, k->start_only);
    }
    sl_tokenizer_close(rt);
}

/* The released ids of whole words, every other place taken by bytes that no text holds. */
static void test_released_words(void **state)
{
    (void)state;
    const char *dir = tok_make_folder();
    struct tok_text text = {0};
    int byte = 0;
    for (int id = 0; id < 163584; id++) {
        char filler[16];
        size_t len = (size_t)snprintf(filler, sizeof filler, "\xff%06d", id);
        if (id < 256) { /* single bytes in the order of the release: printable ones first */
            static unsigned char order[256];
            if (!id) {
                int n = 0;
                for (int pass = 0; pass < 2; pass++)
                    for (int b = 0; b < 256; b++) {
                        bool first = (b > 32 && b < 127) || (b > 160 && b != 173);
                        if (first == !pass) order[n++] = (unsigned char)b;
                    }
            }
            tok_add_line(&text, &order[byte++], 1, (uint32_t)id);
            continue;
        }
        const char *w = NULL;
        for (size_t i = 0; i < chat_n_words; i++)
            if (chat_words[i].id == id) w = chat_words[i].text;
        tok_add_line(&text, w ? w : filler, w ? strlen(w) : len, (uint32_t)id);
    }
    tok_write("tiktoken.model", text.s, text.n);
    tok_text_free(&text);
    static const char config[] =
        "{\"added_tokens_decoder\":{\"163584\":{\"content\":\"[BOS]\"},\"163585\":{\"content\":"
        "\"[EOS]\"},\"163586\":{\"content\":\"<|end_of_msg|>\"},\"163587\":{\"content\":"
        "\"<|open|>\"},\"163588\":{\"content\":\"<|close|>\"},\"163589\":{\"content\":\"<|sep|>\"}}"
        "}";
    tok_write("tokenizer_config.json", config, strlen(config));
    struct sl_tokenizer *rt = tok_open(dir, SL_TOKENIZER_VOCAB_AUTO);
    struct sl_chat_format rf;
    assert_int_equal(sl_chat_format_init(&rf, rt, NULL), 0);
    int n = 0;
    for (size_t i = 0; i < chat_n_released; i++) {
        const struct chat_case *k = &chat_released[i];
        if (!k->whole_words) continue;
        check_released(&rf, k->request, k->ids, k->n_ids, k->start_only);
        n++;
    }
    assert_int_equal(n, 4);
    sl_tokenizer_close(rt);
    tok_remove_folder();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_json_round_trip),
        cmocka_unit_test(test_text_never_becomes_control),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_nameless_result),
        cmocka_unit_test(test_released_words),
        cmocka_unit_test(test_released_vocabulary),
    };
    return cmocka_run_group_tests(tests, open_nano, close_nano);
}
