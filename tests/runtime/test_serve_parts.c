/* The server's small parts: stop strings at every cut, JSON strings, keys and hosts, log-probabilities,
 * the page's policy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cjson/cJSON.h>
#include "runtime/serve_guard.h"
#include "runtime/serve_logprob.h"
#include "runtime/serve_page.h"
#include "runtime/serve_stop.h"

/* ---------------------------------------------------------------- stop strings */

struct stop_case {
    const char *text;
    const char *stop[3];
    int n;
    const char *shown;
    int hit;
};

static const struct stop_case stops[] = {
    {"hello world", {"wor"}, 1, "hello ", 1},
    {"hello world", {"xyz"}, 1, "hello world", 0},
    {"hello wo", {"world"}, 1, "hello wo", 0}, /* begun, never finished */
    {"aaab", {"aab"}, 1, "a", 1},              /* begins again inside itself */
    {"ababac", {"abac"}, 1, "ab", 1},
    {"abcd", {"abcd", "bc"}, 2, "a", 1}, /* the one complete first */
    {"xbc", {"c", "bc"}, 2, "x", 1},     /* two end together: the longer */
    {"stop", {"stop"}, 1, "", 1},
    {"a\nb\n\nc", {"\n\n"}, 1, "a\nb", 1},
    {"\xc3\xa4\xc3\xb6\xc3\xbc", {"\xc3\xb6"}, 1, "\xc3\xa4", 1},
    {"anything", {NULL}, 0, "anything", 0},
};

/* Feeds text cut after each bit that is set in mask. */
static void run_stop(const struct stop_case *c, unsigned mask)
{
    struct sl_serve_stop s = {.stop = c->stop, .n = c->n};
    struct sl_serve_text out = {0};
    size_t len = strlen(c->text);
    size_t from = 0;
    int hit = 0;
    for (size_t i = 0; i < len; i++) {
        if (i + 1 < len && !(mask >> i & 1)) continue;
        hit = sl_serve_stop_feed(&s, c->text + from, i + 1 - from, &out);
        from = i + 1;
    }
    sl_serve_stop_end(&s, &out);
    assert_int_equal(hit, c->hit);
    assert_int_equal(out.n, strlen(c->shown));
    if (out.n) assert_memory_equal(out.v, c->shown, out.n);
    sl_serve_text_free(&out);
    sl_serve_stop_free(&s);
}

static void test_stop_at_every_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        for (unsigned mask = 0; mask < 1u << (strlen(stops[i].text) - 1); mask++)
            run_stop(&stops[i], mask);
}

/* Text that cannot become a stop string is shown at once. */
static void test_stop_holds_no_more_than_needed(void **state)
{
    (void)state;
    const char *stop[] = {"<end>"};
    struct sl_serve_stop s = {.stop = stop, .n = 1};
    struct sl_serve_text out = {0};
    sl_serve_stop_feed(&s, "abc<en", 6, &out);
    assert_int_equal(out.n, 3);
    sl_serve_stop_feed(&s, "x", 1, &out);
    assert_int_equal(out.n, 7);
    sl_serve_text_free(&out);
    sl_serve_stop_free(&s);
}

/* ---------------------------------------------------------------- JSON strings */

static void test_quote_gives_the_text_back(void **state)
{
    (void)state;
    for (unsigned c = 1; c < 0x80; c++) {
        const char text[] = {'a', (char)c, 'b', 0};
        struct sl_serve_text t = {0};
        sl_serve_text_quote(&t, text, 3);
        cJSON *v = cJSON_Parse(t.v);
        assert_non_null(v);
        assert_string_equal(v->valuestring, text);
        cJSON_Delete(v);
        sl_serve_text_free(&t);
    }
}

static void test_quote_never_gives_bad_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"\xff", "\"\xef\xbf\xbd\""},
        {"a\xc3", "\"a\xef\xbf\xbd\""},
        {"\xe2\x82", "\"\xef\xbf\xbd\""},
        {"\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xf0\x9f\x98\x80\x7f", "\"\xf0\x9f\x98\x80\\u007f\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_serve_text t = {0};
        sl_serve_text_quote(&t, cases[i].in, strlen(cases[i].in));
        assert_string_equal(t.v, cases[i].out);
        sl_serve_text_free(&t);
    }
}

static void test_text_grows_and_shifts(void **state)
{
    (void)state;
    struct sl_serve_text t = {0};
    for (int i = 0; i < 1000; i++) sl_serve_text_fmt(&t, "%03d,", i);
    assert_int_equal(t.n, 4000);
    assert_memory_equal(t.v + 3996, "999,", 5);
    sl_serve_text_shift(&t, 3996);
    assert_string_equal(t.v, "999,");
    char *big = malloc(2000);
    assert_non_null(big);
    memset(big, 'x', 1999);
    big[1999] = 0;
    sl_serve_text_fmt(&t, "<%s>", big);
    assert_int_equal(t.n, 4 + 2001);
    assert_int_equal(t.v[t.n - 1], '>');
    sl_serve_text_number(&t, INFINITY);
    assert_string_equal(t.v + t.n - 4, "null");
    free(big);
    sl_serve_text_free(&t);
}

/* ---------------------------------------------------------------- who may ask */

static void test_key(void **state)
{
    (void)state;
    assert_true(sl_guard_key("Bearer secret", "secret"));
    assert_true(sl_guard_key("bearer  secret", "secret"));
    assert_false(sl_guard_key(NULL, "secret"));
    assert_false(sl_guard_key("", "secret"));
    assert_false(sl_guard_key("secret", "secret"));
    assert_false(sl_guard_key("Bearer ", "secret"));
    assert_false(sl_guard_key("Bearer secre", "secret"));
    assert_false(sl_guard_key("Bearer secrets", "secret"));
    assert_false(sl_guard_key("Bearer Secret", "secret"));
    assert_false(sl_guard_key("Basic secret", "secret"));
}

static void test_loopback_host(void **state)
{
    (void)state;
    static const char *const good[] = {"localhost",    "LOCALHOST:8080", "127.0.0.1",
                                       "127.1.2.3:80", "[::1]",          "[::1]:8080"};
    static const char *const bad[] = {"example.com",       "localhost.example.com",
                                      "127.0.0.1.example", "127.0.0.1:80x",
                                      "10.0.0.1",          "[::2]",
                                      "localhost:",        "",
                                      "127.evil.example"};
    assert_true(sl_guard_loopback_host(NULL));
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(sl_guard_loopback_host(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(sl_guard_loopback_host(bad[i]));
}

static void test_origin(void **state)
{
    (void)state;
    assert_true(sl_guard_origin(NULL, "localhost:1", NULL));
    assert_true(sl_guard_origin("http://localhost:1", "localhost:1", NULL));
    assert_false(sl_guard_origin("http://localhost:2", "localhost:1", NULL));
    assert_false(sl_guard_origin("null", "localhost:1", NULL));
    assert_false(sl_guard_origin("http://a", NULL, NULL));
    assert_true(sl_guard_origin("https://app.example", "localhost:1", "https://app.example"));
    assert_false(sl_guard_origin("https://app.example.evil", "localhost:1", "https://app.example"));
    assert_true(sl_guard_origin("https://x", "localhost:1", "*"));
}

/* ---------------------------------------------------------------- log-probabilities */

static void test_logprobs(void **state)
{
    (void)state;
    const double p[6] = {0.1, 0.3, 0.05, 0.3, 0.05, 0.2};
    const int order[6] = {1, 3, 5, 0, 2, 4}; /* equal ones by id */
    float logits[6];
    for (int i = 0; i < 6; i++) logits[i] = (float)(log(p[i]) + 7);
    for (int top = 0; top <= 8; top++) {
        struct sl_serve_token t = {0};
        sl_serve_logprob(&t, logits, 6, 4, top);
        assert_int_equal(t.self.id, 4);
        assert_true(fabs((double)t.self.logprob - log(0.05)) < 1e-6);
        assert_int_equal(t.n_top, top < 6 ? top : 6);
        for (int i = 0; i < t.n_top; i++) {
            assert_int_equal(t.top[i].id, order[i]);
            assert_true(fabs((double)t.top[i].logprob - log(p[order[i]])) < 1e-6);
        }
    }
}

/* ---------------------------------------------------------------- the page */

static void test_policy(void **state)
{
    (void)state;
    char out[SL_SERVE_POLICY_MAX];
    /* printf alert\(1\) | openssl dgst -sha256 -binary | base64 */
    static const char html[] = "<html><script>alert(1)</script></html>";
    sl_serve_page_policy(out, html, sizeof html - 1);
    assert_non_null(
        strstr(out, "script-src 'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='"));
    assert_non_null(strstr(out, "style-src 'none'"));
    sl_serve_page_policy(out, (const char *)sl_serve_page, sl_serve_page_bytes);
    assert_null(strstr(out, "script-src 'none'"));
    assert_null(strstr(out, "style-src 'none'"));
    assert_null(strstr(out, "unsafe"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_at_every_cut),
        cmocka_unit_test(test_stop_holds_no_more_than_needed),
        cmocka_unit_test(test_quote_gives_the_text_back),
        cmocka_unit_test(test_quote_never_gives_bad_utf8),
        cmocka_unit_test(test_text_grows_and_shifts),
        cmocka_unit_test(test_key),
        cmocka_unit_test(test_loopback_host),
        cmocka_unit_test(test_origin),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_policy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
