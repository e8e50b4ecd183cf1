/* Request bodies: what they become, and the corpus of hostile ones, whole, cut at every byte and with
 * single bytes changed, through the fuzzer's entry. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/serve_request.h"

#define M "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"

static int parse(struct sl_serve_request *r, enum sl_serve_kind kind, const char *body,
                 struct sl_serve_fault *f)
{
    memset(f, 0, sizeof *f);
    return sl_serve_request_parse(r, kind, body, strlen(body), f);
}

static void test_defaults(void **state)
{
    (void)state;
    struct sl_serve_request r;
    struct sl_serve_fault f;
    assert_int_equal(parse(&r, SL_SERVE_CHAT, "{" M "}", &f), 0);
    assert_int_equal(r.max_tokens, -1);
    assert_true(r.temperature == 1.0 && r.top_p == 0.95);
    assert_false(r.stream || r.seeded || r.logprobs || r.one_call || r.ignore_eos);
    assert_int_equal(r.format, SL_SERVE_TEXT);
    assert_int_equal(r.n_stop, 0);
    assert_null(r.model);
    sl_serve_request_free(&r);
}

static void test_all_fields(void **state)
{
    (void)state;
    struct sl_serve_request r;
    struct sl_serve_fault f;
    static const char body[] =
        " {" M ",\"model\":\"m\",\"stream\":true,\"stream_options\":{\"include_usage\":true},"
        "\"max_tokens\":5,\"max_completion_tokens\":6,\"temperature\":0.25,\"top_p\":0,\"seed\":-2,"
        "\"stop\":[\"a\",\"bc\"],\"logprobs\":true,\"top_logprobs\":20,\"parallel_tool_calls\":"
        "false,"
        "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":"
        "\"object\"}}},\"n\":1,\"unknown\":[1]} \n";
    assert_int_equal(parse(&r, SL_SERVE_CHAT, body, &f), 0);
    assert_string_equal(r.model, "m");
    assert_true(r.stream && r.include_usage && r.seeded && r.logprobs && r.one_call);
    assert_int_equal(r.max_tokens, 6); /* the newer name wins */
    assert_true(r.temperature == 0.25);
    assert_true(r.top_p > 0 && r.top_p < 1e-3); /* 0 is the most likely token, not "off" */
    assert_true(r.seed == (uint64_t)-2);
    assert_int_equal(r.n_stop, 2);
    assert_string_equal(r.stop[1], "bc");
    assert_int_equal(r.top_logprobs, 20);
    assert_int_equal(r.format, SL_SERVE_JSON_SCHEMA);
    assert_non_null(r.schema);
    sl_serve_request_free(&r);
}

static void test_prompts(void **state)
{
    (void)state;
    struct sl_serve_request r;
    struct sl_serve_fault f;
    assert_int_equal(parse(&r, SL_SERVE_COMPLETION, "{\"prompt\":\"x\",\"logprobs\":0}", &f), 0);
    assert_string_equal(r.prompt, "x");
    assert_true(r.logprobs);
    assert_int_equal(r.top_logprobs, 0);
    sl_serve_request_free(&r);
    assert_int_equal(parse(&r, SL_SERVE_COMPLETION, "{\"prompt\":[7,8]}", &f), 0);
    assert_null(r.prompt);
    assert_int_equal(r.n_prompt_ids, 2);
    sl_serve_request_free(&r);
    assert_int_equal(parse(&r, SL_SERVE_COMPLETION, "{\"prompt\":[[7,8,9]]}", &f), 0);
    assert_int_equal(r.n_prompt_ids, 3);
    sl_serve_request_free(&r);
    assert_int_equal(parse(&r, SL_SERVE_COMPLETION, "{\"prompt\":[\"one\"]}", &f), 0);
    assert_string_equal(r.prompt, "one");
    sl_serve_request_free(&r);
}

static void test_refusals_name_the_field(void **state)
{
    (void)state;
    static const struct {
        const char *body, *param;
    } cases[] = {
        {"{" M ",\"n\":2}", "n"},
        {"{" M ",\"n\":\"1\"}", "n"},
        {"{" M ",\"top_k\":40}", "top_k"},
        {"{" M ",\"min_p\":0.1}", "min_p"},
        {"{" M ",\"typical_p\":0.9}", "typical_p"},
        {"{" M ",\"repetition_penalty\":1.1}", "repetition_penalty"},
        {"{" M ",\"frequency_penalty\":-1}", "frequency_penalty"},
        {"{" M ",\"logit_bias\":{\"5\":1}}", "logit_bias"},
        {"{" M ",\"functions\":[{}]}", "functions"},
        {"{" M ",\"modalities\":[\"text\",\"audio\"]}", "modalities"},
        {"{" M ",\"stream_options\":{}}", "stream_options"},
        {"{" M ",\"stream\":1}", "stream"},
        {"{" M ",\"max_tokens\":-1}", "max_tokens"},
        {"{" M ",\"max_tokens\":1.5}", "max_tokens"},
        {"{" M ",\"max_completion_tokens\":\"9\"}", "max_completion_tokens"},
        {"{" M ",\"temperature\":-0.1}", "temperature"},
        {"{" M ",\"temperature\":1e999}", "temperature"},
        {"{" M ",\"top_p\":1.01}", "top_p"},
        {"{" M ",\"seed\":1e18}", "seed"},
        {"{" M ",\"seed\":0.5}", "seed"},
        {"{" M ",\"stop\":[\"a\",1]}", "stop"},
        {"{" M ",\"stop\":{}}", "stop"},
        {"{" M ",\"top_logprobs\":3}", "top_logprobs"},
        {"{" M ",\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs"},
        {"{" M ",\"response_format\":\"json\"}", "response_format"},
        {"{" M ",\"response_format\":{\"type\":\"xml\"}}", "response_format.type"},
        {"{" M ",\"response_format\":{\"type\":\"json_schema\"}}",
         "response_format.json_schema.schema"},
        {"{" M ",\"model\":3}", "model"},
        {"{\"messages\":[]}", "messages"},
        {"{\"messages\":{}}", "messages"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_serve_request r;
        struct sl_serve_fault f;
        int rc = parse(&r, SL_SERVE_CHAT, cases[i].body, &f);
        if (!rc || strcmp(f.param, cases[i].param) != 0)
            print_message("%s: %d, '%s'\n", cases[i].body, rc, f.param);
        assert_int_equal(rc, -1);
        assert_int_equal(f.status, 400);
        assert_string_equal(f.param, cases[i].param);
        assert_non_null(strstr(f.message, "'"));
        assert_null(r.tree);
    }
}

static void test_stop_limits(void **state)
{
    (void)state;
    char body[4096];
    struct sl_serve_request r;
    struct sl_serve_fault f;
    for (int n = SL_SERVE_STOPS; n <= SL_SERVE_STOPS + 1; n++) {
        size_t at = (size_t)snprintf(body, sizeof body, "{" M ",\"stop\":[\"0\"");
        for (int i = 1; i < n; i++)
            at += (size_t)snprintf(body + at, sizeof body - at, ",\"%d\"", i);
        (void)snprintf(body + at, sizeof body - at, "]}");
        int rc = parse(&r, SL_SERVE_CHAT, body, &f);
        assert_int_equal(rc, n > SL_SERVE_STOPS ? -1 : 0);
        if (!rc) sl_serve_request_free(&r);
    }
    char stop[SL_SERVE_STOP_BYTES + 2];
    for (size_t n = SL_SERVE_STOP_BYTES; n <= SL_SERVE_STOP_BYTES + 1; n++) {
        memset(stop, 'x', n);
        stop[n] = 0;
        (void)snprintf(body, sizeof body, "{" M ",\"stop\":\"%s\"}", stop);
        int rc = parse(&r, SL_SERVE_CHAT, body, &f);
        assert_int_equal(rc, n > SL_SERVE_STOP_BYTES ? -1 : 0);
        if (!rc) sl_serve_request_free(&r);
    }
}

/* An escaped backslash before "u0000" is text, not a NUL. */
static void test_nul(void **state)
{
    (void)state;
    struct sl_serve_request r;
    struct sl_serve_fault f;
    assert_int_equal(parse(&r, SL_SERVE_COMPLETION, "{\"prompt\":\"a\\u0000b\"}", &f), -1);
    assert_int_equal(parse(&r, SL_SERVE_COMPLETION, "{\"prompt\":\"a\\\\\\u0000b\"}", &f), -1);
    assert_int_equal(parse(&r, SL_SERVE_COMPLETION, "{\"prompt\":\"a\\\\u0000b\"}", &f), 0);
    assert_string_equal(r.prompt, "a\\u0000b");
    sl_serve_request_free(&r);
}

/* ---------------------------------------------------------------- the corpus */

#define CORPUS "tests/fuzz/http"

/* A copy of exactly n bytes, so that a sanitizer sees one read too far. */
static void feed(const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, data, n);
    assert_int_equal(sl_serve_request_fuzz(copy, n), 0);
    free(copy);
}

static void feed_file(const char *name)
{
    char path[512];
    static uint8_t data[1 << 16];
    (void)snprintf(path, sizeof path, CORPUS "/%s", name);
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    size_t n = fread(data, 1, sizeof data, in);
    (void)fclose(in);
    feed(data, n);
    size_t step = n > 2000 ? 97 : 1;
    for (size_t cut = 0; cut < n; cut += step) feed(data, cut);
    for (size_t i = 0; i < n; i += step) {
        static const uint8_t flips[] = {0x01, 0x20, 0x80, 0x5c};
        for (size_t k = 0; k < sizeof flips; k++) {
            data[i] ^= flips[k];
            feed(data, n);
            data[i] ^= flips[k];
        }
    }
}

static void test_corpus(void **state)
{
    (void)state;
    DIR *d = opendir(CORPUS);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        feed_file(e->d_name);
        n++;
    }
    closedir(d);
    assert_true(n >= 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),    cmocka_unit_test(test_all_fields),
        cmocka_unit_test(test_prompts),     cmocka_unit_test(test_refusals_name_the_field),
        cmocka_unit_test(test_stop_limits), cmocka_unit_test(test_nul),
        cmocka_unit_test(test_corpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
