/* The answer parser: what each answer means, at every cut.
 *
 * Answers are written as bytes in which ( is OPEN, ) CLOSE, ~ SEP, . EOM, ! [EOS] and ^ [BOS], all as
 * control ids; everything else is text. What the parser makes of them is written beside: R<reasoning>
 * C<content> T<tool arguments>, neighbours of one kind joined. The text between control ids is fed as
 * the tokenizer cuts it, byte by byte, and in random pieces; then every answer is cut after every id. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "runtime/chat_parse.h"
#include "runtime/utf8.h"
#include "tests/runtime/tokenizer_case.h"

static struct sl_tokenizer *t;
static struct sl_chat_format f;

#define CONTROLS "()~.!^"

static int32_t control_id(char c)
{
    switch (c) {
    case '(':
        return f.open;
    case ')':
        return f.close;
    case '~':
        return f.sep;
    case '.':
        return f.eom;
    case '!':
        return f.eos;
    default:
        return sl_tokenizer_bos(t);
    }
}

struct sample {
    const char *answer;
    bool no_thinking;
    const char *events;
    int malformed;
};

static const struct sample samples[] = {
    /* as the grammar has it */
    {"because)think~(response~hello)response~)message~.", false, "R<because>C<hello>", 0},
    {"hello)response~)message~.", true, "C<hello>", 0},
    {")think~(response~)response~)message~.", false, "", 0},
    {"r)think~(response~c)response~(tools~(call tool=\"f\" index=\"1\"~(argument key=\"a\" "
     "type=\"string\"~x \"y\"\n)argument~(argument key=\"b\" "
     "type=\"number\"~1e2)argument~)call~)tools~"
     ")message~.",
     false, "R<r>C<c>T<f {\"a\": \"x \\\"y\\\"\\n\", \"b\": 1e2}>", 0},
    {")think~(response~)response~(tools~(call tool=\"a&amp;&quot;b&amp;quot;\" index=\"1\"~)call~"
     "(call tool=\"g\" index=\"2\"~(argument key=\"o\" type=\"object\"~{\"z\":[1,null]})argument~"
     "(argument key=\"t\" type=\"boolean\"~true)argument~)call~)tools~)message~.",
     false, "T<a&\"b&quot; {}>T<g {\"o\": {\"z\": [1, null]}, \"t\": true}>", 0},
    {"x)response~(tools~(call tool=\"f\" index=\"1\"~(json "
     "type=\"object\"~{\"a\":1})json~)call~)tools~"
     ")message~.",
     true, "C<x>T<f {\"a\":1}>", 0},
    /* spelled-out markers are text */
    {"<|close|>think<|sep|>)think~(response~<|sep|><|open|>tools)response~)message~.", false,
     "R<<|close|>think<|sep|>>C<<|sep|><|open|>tools>", 0},
    /* other scripts, and bytes that are no characters */
    {"\xe6\x97\xa5\xe6\x9c\xac)think~(response~\xf0\x9f\x8e\x89 \xc3\xa9)response~)message~.",
     false, "R<\xe6\x97\xa5\xe6\x9c\xac>C<\xf0\x9f\x8e\x89 \xc3\xa9>", 0},
    {"\xe6\x97)think~(response~a\xff\xf0\x9f)response~)message~.", false,
     "R<\xef\xbf\xbd>C<a\xef\xbf\xbd\xef\xbf\xbd>", 0},
    /* tolerated: closers and trailers that are missing, the other stop token, an end anywhere */
    {"because(response~hello.", false, "R<because>C<hello>", 0},
    {"because(response~hello!", false, "R<because>C<hello>", 0},
    {"because(response~hello", false, "R<because>C<hello>", 0},
    {"because)message~.", false, "R<because>", 0},
    {"because", false, "R<because>", 0},
    {"r)think~(tools~(call tool=\"f\" index=\"1\"~)call~)tools~.", false, "R<r>T<f {}>", 0},
    {"c(tools~(call tool=\"f\" index=\"1\"~)call~)message~.", true, "C<c>T<f {}>", 0},
    {"r)think~\n (response~c)response~\n)message~.", false, "R<r>C<c>", 0},
    {"hello)resp", true, "C<hello>", 0},
    {"hello)response~(tools~(call tool=\"f", true, "C<hello>", 0},
    {"hello)message~.ignored(think~", true, "C<hello>", 0},
    /* malformed: nothing is lost, everything is counted */
    {"a~b)response~.", true, "C<a<|sep|>b>", 1},
    {"a(b~c)response~.", true, "C<a<|open|>b<|sep|>c>", 1},
    {"a)think~b)response~.", true, "C<a<|close|>think<|sep|>b>", 1},
    {"a(wor(ds~b)response~.", true, "C<a<|open|>wor<|open|>ds<|sep|>b>", 2},
    {"a^b)response~.", true, "C<a[BOS]b>", 1},
    {"a)nonsense", true, "C<a<|close|>nonsense>", 1},
    {"r)think~stray(response~c)response~.", false, "R<r>C<strayc>", 1},
    {"r(think~s)think~(response~c.", false, "R<r<|open|>think<|sep|>s>C<c>", 1},
    {"c)response~(tools~(call tool=\"f\" index=\"1\"~(argument key=\"a\" "
     "type=\"number\"~x)argument~"
     ")call~)tools~)message~.",
     true,
     "C<c<|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" "
     "type=\"number\"<|sep|>x"
     "<|close|>argument<|sep|><|close|>call<|sep|>>",
     1},
    {"c)response~(tools~(call index=\"1\"~)call~(call tool=\"g\" "
     "index=\"2\"~)call~)tools~)message~.",
     true, "C<c<|open|>call index=\"1\"<|sep|><|close|>call<|sep|>>T<g {}>", 1},
    {"(tools~(call tool=\"f\" index=\"1\"~(argument key=\"a\" type=\"string\"~1)argument~(argument "
     "key=\"a\" type=\"string\"~2)argument~)call~.",
     true,
     "C<<|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" "
     "type=\"string\"<|sep|>1"
     "<|close|>argument<|sep|><|open|>argument key=\"a\" type=\"string\"<|sep|>2<|close|>argument"
     "<|sep|><|close|>call<|sep|>>",
     1},
    {"(tools~(call tool=\"f\" index=\"1\"~stray)call~(call tool=\"g\" index=\"2\"~)call~)tools~.",
     true, "C<<|open|>call tool=\"f\" index=\"1\"<|sep|>stray<|close|>call<|sep|>>T<g {}>", 1},
    {"(tools~(call tool=\"f\" index=\"1\"~(argument key=\"a\" type=\"string\"~half", true,
     "C<<|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" "
     "type=\"string\"<|sep|>half>",
     1},
    {"(tools~(call tool=\"f\" index=\"1\"~(argument key=\"a\" type=\"string\"~x)call~(call "
     "tool=\"g\" "
     "index=\"2\"~)call~)tools~.",
     true,
     "C<<|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" "
     "type=\"string\"<|sep|>x"
     "<|close|>call<|sep|>>T<g {}>",
     1},
    {"(tools~(call tool=\"f\" index=\"1\"~(argument key=\"a\" type=\"string\"~a~b)argument~)call~.",
     true,
     "C<<|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" "
     "type=\"string\"<|sep|>a"
     "<|sep|>b<|close|>argument<|sep|><|close|>call<|sep|>>",
     1},
};
enum { N_SAMPLES = sizeof samples / sizeof samples[0] };

/* ---------------------------------------------------------------- answers to ids */

enum cut { CUT_TOKENIZER, CUT_BYTES, CUT_RANDOM, N_CUTS };

static void add_text(struct sl_ids *out, const char *s, size_t n, enum cut how, struct tok_rng *r)
{
    for (size_t i = 0; i < n;) {
        size_t m = how == CUT_TOKENIZER ? n : how == CUT_BYTES ? 1 : 1 + tok_below(r, 5);
        if (m > n - i) m = n - i;
        assert_int_equal(sl_tokenizer_encode_plain(t, s + i, m, out, NULL), 0);
        i += m;
    }
}

static void to_ids(struct sl_ids *out, const char *answer, size_t n, enum cut how,
                   struct tok_rng *r)
{
    for (size_t i = 0; i < n;) {
        size_t m = 0;
        while (i + m < n && !strchr(CONTROLS, answer[i + m])) m++;
        add_text(out, answer + i, m, how, r);
        i += m;
        if (i < n) assert_int_equal(sl_ids_push(out, control_id(answer[i++]), NULL), 0);
    }
}

/* ---------------------------------------------------------------- what comes out */

struct seen {
    struct sl_buf text; /* in the notation of the samples */
    char kind;          /* of the piece that is open */
    struct sl_buf reasoning, content, calls;
};

static void add(struct sl_buf *b, const char *s, size_t n)
{
    assert_int_equal(sl_buf_add(b, s, n, NULL), 0);
}

static void piece(struct seen *s, char kind, const char *text, size_t n)
{
    if (s->kind != kind || kind == 'T') {
        if (s->kind) add(&s->text, ">", 1);
        add(&s->text, &kind, 1);
        add(&s->text, "<", 1);
        s->kind = kind;
    }
    add(&s->text, text, n);
}

static void add_call(struct sl_buf *b, const struct sl_chat_call *c)
{
    add(b, c->name.s, c->name.n);
    add(b, " ", 1);
    add(b, c->arguments.s, c->arguments.n);
}

static int see(void *ctx, const struct sl_chat_event *e)
{
    struct seen *s = ctx;
    if (e->kind == SL_CHAT_EV_CALL) {
        struct sl_buf b = {0};
        add_call(&b, e->call);
        piece(s, 'T', b.s, b.n);
        add(&s->calls, b.s, b.n);
        sl_buf_free(&b);
        return 0;
    }
    assert_true(e->text.n > 0);
    assert_int_equal(sl_utf8_valid(e->text.s, e->text.n), e->text.n);
    add(e->kind == SL_CHAT_EV_CONTENT ? &s->content : &s->reasoning, e->text.s, e->text.n);
    piece(s, e->kind == SL_CHAT_EV_CONTENT ? 'C' : 'R', e->text.s, e->text.n);
    return 0;
}

struct result {
    struct seen seen;
    struct sl_chat_parser *p;
};

static void start(struct result *r, bool thinking)
{
    memset(r, 0, sizeof *r);
    assert_int_equal(sl_chat_parser_open(&r->p, &f, thinking, see, &r->seen, NULL), 0);
}

static void feed(struct result *r, const int32_t *ids, size_t n)
{
    struct sl_err err = {0};
    if (sl_chat_parse(r->p, ids, n, &err)) fail_msg("%s", err.text);
}

static void equal(const struct sl_buf *b, const char *s, size_t n)
{
    assert_int_equal(b->n, n);
    if (n) assert_memory_equal(b->s, s, n);
}

/* Ends the answer; the collected message must say what the events said. */
static void finish(struct result *r)
{
    struct sl_err err = {0};
    struct sl_buf calls = {0};
    if (sl_chat_parse_end(r->p, &err)) fail_msg("%s", err.text);
    add(&r->seen.text, ">", r->seen.kind != 0);
    const struct sl_chat_message *m = sl_chat_parser_message(r->p);
    assert_true(m->n_parts <= 1);
    equal(&r->seen.reasoning, m->reasoning.s, m->reasoning.n);
    equal(&r->seen.content, m->n_parts ? m->parts[0].text.s : NULL,
          m->n_parts ? m->parts[0].text.n : 0);
    for (int i = 0; i < m->n_calls; i++) add_call(&calls, &m->calls[i]);
    equal(&r->seen.calls, calls.s, calls.n);
    sl_buf_free(&calls);
}

static void parse(struct result *r, bool thinking, const int32_t *ids, size_t n, size_t step)
{
    start(r, thinking);
    for (size_t i = 0; i < n; i += step) feed(r, ids + i, step < n - i ? step : n - i);
    finish(r);
}

static void drop(struct result *r)
{
    sl_chat_parser_close(r->p);
    sl_buf_free(&r->seen.text);
    sl_buf_free(&r->seen.reasoning);
    sl_buf_free(&r->seen.content);
    sl_buf_free(&r->seen.calls);
}

/* ---------------------------------------------------------------- tests */

static void test_samples(void **state)
{
    (void)state;
    struct tok_rng rng = tok_seeded();
    for (int i = 0; i < N_SAMPLES; i++) {
        const struct sample *k = &samples[i];
        for (int run = 0; run < 12; run++) {
            const enum cut how = run < CUT_RANDOM ? (enum cut)run : CUT_RANDOM;
            struct sl_ids ids = {0};
            struct result r;
            to_ids(&ids, k->answer, strlen(k->answer), how, &rng);
            parse(&r, !k->no_thinking, ids.v, ids.n, run & 1 ? 1 : ids.n);
            if (strcmp(r.seen.text.s, k->events) != 0)
                fail_msg("%s\n  gives    %s\n  expected %s", k->answer, r.seen.text.s, k->events);
            if (sl_chat_parser_malformed(r.p) != k->malformed)
                fail_msg("%s: %d malformed, expected %d", k->answer, sl_chat_parser_malformed(r.p),
                         k->malformed);
            drop(&r);
            sl_ids_free(&ids);
        }
    }
}

/* After any number of ids the stream has said a start of what the whole answer says: nothing is taken
 * back, whatever comes. */
static void test_streams_only_grow(void **state)
{
    (void)state;
    struct tok_rng rng = tok_seeded();
    for (int i = 0; i < N_SAMPLES; i++) {
        const struct sample *k = &samples[i];
        for (enum cut how = 0; how < N_CUTS; how++) {
            struct sl_ids ids = {0};
            struct result r;
            to_ids(&ids, k->answer, strlen(k->answer), how, &rng);
            start(&r, !k->no_thinking);
            for (size_t n = 0; n < ids.n; n++) {
                feed(&r, ids.v + n, 1);
                if (r.seen.text.n && memcmp(r.seen.text.s, k->events, r.seen.text.n) != 0)
                    fail_msg("%s: after %zu ids %s", k->answer, n + 1, r.seen.text.s);
            }
            finish(&r);
            assert_string_equal(r.seen.text.s, k->events);
            drop(&r);
            sl_ids_free(&ids);
        }
    }
}

static bool same_message(struct result *a, struct result *b)
{
    char *ka;
    char *kb;
    size_t na;
    size_t nb;
    assert_int_equal(sl_chat_key(&f, sl_chat_parser_message(a->p), true, &ka, &na, NULL), 0);
    assert_int_equal(sl_chat_key(&f, sl_chat_parser_message(b->p), true, &kb, &nb, NULL), 0);
    bool same = na == nb && memcmp(ka, kb, na) == 0;
    free(ka);
    free(kb);
    return same;
}

/* Cut after every id: with the closing ids the turn is whole, and says what the cut answer said. Only a
 * call that was cut stays out, be it in its opener: its turn has markup that no call is made of. */
static void test_closing(void **state)
{
    (void)state;
    struct tok_rng rng = tok_seeded();
    size_t equal_turns = 0;
    for (int i = 0; i < N_SAMPLES; i++) {
        const struct sample *k = &samples[i];
        struct sl_ids ids = {0};
        to_ids(&ids, k->answer, strlen(k->answer), CUT_TOKENIZER, &rng);
        for (size_t n = 0; n <= ids.n; n++) {
            const bool stopped = n && (ids.v[n - 1] == f.eom || ids.v[n - 1] == f.eos);
            struct result cut;
            struct result whole;
            struct sl_ids turn = {0};
            parse(&cut, !k->no_thinking, ids.v, n, n ? n : 1);
            for (size_t j = 0; j < n - stopped; j++) sl_ids_push(&turn, ids.v[j], NULL);
            assert_int_equal(sl_chat_parser_closing(cut.p, &turn, NULL), 0);
            assert_int_equal(turn.v[turn.n - 1], f.eom);
            parse(&whole, !k->no_thinking, turn.v, turn.n, turn.n);
            assert_true(sl_chat_parser_done(whole.p));
            size_t last = n; /* control id before the cut */
            while (last && !sl_tokenizer_is_control(t, ids.v[last - 1])) last--;
            const bool half_call =
                last && ids.v[last - 1] == f.open &&
                (sl_chat_parser_malformed(whole.p) || sl_chat_parser_message(whole.p)->n_calls !=
                                                          sl_chat_parser_message(cut.p)->n_calls);
            if (sl_chat_parser_malformed(cut.p) == 0 && !half_call) {
                if (!same_message(&cut, &whole))
                    fail_msg("%s: cut at %zu: %s, closed: %s", k->answer, n, cut.seen.text.s,
                             whole.seen.text.s);
                equal_turns++;
            }
            drop(&cut);
            drop(&whole);
            sl_ids_free(&turn);
            if (stopped) break;
        }
        sl_ids_free(&ids);
    }
    assert_true(equal_turns > 300);
}

/* An answer that was rendered by the format is read back as what went in. */
static void test_render_and_parse(void **state)
{
    (void)state;
    struct sl_chat c = {0};
    struct sl_chat_message *m;
    struct sl_chat_prompt p = {0};
    assert_int_equal(sl_chat_add(&c, SL_CHAT_ASSISTANT, &m, NULL), 0);
    assert_int_equal(sl_chat_copy(&c, &m->reasoning, "a<|sep|>b", 9, NULL), 0);
    assert_int_equal(sl_chat_add_text(&c, m, "c \"&amp;", 8, NULL), 0);
    const struct sl_chat_call call = {.name = SL_TEXT_LIT("f\"&quot;"),
                                      .arguments =
                                          SL_TEXT_LIT("{\"k\\\"&\": \"v\\n<\", \"n\": 1.50}")};
    assert_int_equal(sl_chat_add_call(&c, m, &call, NULL), 0);
    c.effort = SL_EFFORT_UNSET;
    assert_int_equal(sl_chat_render(&f, &c, NULL, NULL, &p, NULL), 0);
    size_t from = 0; /* behind the two openers of the turn */
    for (int seps = 0; seps < 2; from++) seps += p.ids.v[from] == f.sep;
    struct result r;
    parse(&r, true, p.ids.v + from, p.marks[0] - from, 1);
    assert_string_equal(r.seen.text.s,
                        "R<a<|sep|>b>C<c \"&amp;>T<f\"&quot; {\"k\\\"&\": \"v\\n<\", "
                        "\"n\": 1.50}>");
    assert_int_equal(sl_chat_parser_malformed(r.p), 0);
    drop(&r);
    sl_chat_prompt_free(&p);
    sl_chat_free(&c);
}

/* Any heap of fragments: the same events for every cut of the text, and nothing crashes. */
static void test_random_answers(void **state)
{
    (void)state;
    static const char *const parts[] = {"(",
                                        ")",
                                        "~",
                                        ".",
                                        "!",
                                        "^",
                                        "think",
                                        "message",
                                        "response",
                                        "tools",
                                        "call tool=\"f\"",
                                        "call",
                                        "argument key=\"k\" type=\"string\"",
                                        "argument",
                                        "json",
                                        "{}",
                                        " ",
                                        "\n",
                                        "x",
                                        "\xe6\x97\xa5",
                                        "\xe6",
                                        "\xff",
                                        "&quot;"};
    static const char *const likely[] = {")think~",           "(response~", ")response~", "(tools~",
                                         "(call tool=\"f\"~", ")call~",     ")tools~",    "text"};
    struct tok_rng rng = tok_seeded();
    for (int run = 0; run < 3000; run++) {
        struct sl_buf answer = {0};
        const uint32_t n = 1 + tok_below(&rng, 20);
        for (uint32_t i = 0; i < n; i++) {
            const char *s = tok_below(&rng, 2)
                                ? parts[tok_below(&rng, sizeof parts / sizeof *parts)]
                                : likely[tok_below(&rng, sizeof likely / sizeof *likely)];
            add(&answer, s, strlen(s));
        }
        struct sl_ids one = {0};
        struct sl_ids two = {0};
        struct result a;
        struct result b;
        to_ids(&one, answer.s, answer.n, CUT_TOKENIZER, &rng);
        to_ids(&two, answer.s, answer.n, run & 1 ? CUT_BYTES : CUT_RANDOM, &rng);
        parse(&a, run & 2, one.v, one.n, 1);
        parse(&b, run & 2, two.v, two.n, 3);
        if (a.seen.text.n != b.seen.text.n ||
            (a.seen.text.n && memcmp(a.seen.text.s, b.seen.text.s, a.seen.text.n) != 0) ||
            sl_chat_parser_malformed(a.p) != sl_chat_parser_malformed(b.p))
            fail_msg("%s: %s, cut otherwise %s", answer.s, a.seen.text.s, b.seen.text.s);
        drop(&a);
        drop(&b);
        sl_ids_free(&one);
        sl_ids_free(&two);
        sl_buf_free(&answer);
    }
}

static void test_wrong_id(void **state)
{
    (void)state;
    struct result r;
    struct sl_err err = {0};
    start(&r, true);
    assert_int_equal(sl_chat_parse(r.p, &(int32_t){4096}, 1, &err), SL_E_ARG);
    assert_int_equal(sl_chat_parse(r.p, &(int32_t){-1}, 1, &err), SL_E_ARG);
    drop(&r);
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
        cmocka_unit_test(test_samples),        cmocka_unit_test(test_streams_only_grow),
        cmocka_unit_test(test_closing),        cmocka_unit_test(test_render_and_parse),
        cmocka_unit_test(test_random_answers), cmocka_unit_test(test_wrong_id),
    };
    return cmocka_run_group_tests(tests, open_nano, close_nano);
}
