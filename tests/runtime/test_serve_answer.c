/* Ids written by hand through the answer's pipeline: channels, calls, stop strings, log-probabilities, JSON
 * that is none; and replies, streamed and whole, from the same deltas. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "runtime/chat_format.h"
#include "runtime/serve_answer.h"
#include "runtime/serve_reply.h"
#include "tests/golden/golden_engine.h"

static sluice_pack *pack;
static struct sl_chat_format format;
static char pack_path[SL_PATH_MAX];

/* "<|open|>" and the like in text become control ids, everything else is encoded as it stands. */
static struct sl_ids ids_of(const char *markup)
{
    int32_t *ids = NULL;
    size_t n = 0;
    sluice_error e = {0};
    if (sluice_encode(pack, markup, strlen(markup), 1, &ids, &n, &e)) fail_msg("%s", e.text);
    return (struct sl_ids){ids, n, n};
}

static struct sl_serve_job *job_of(enum sl_serve_kind kind, const char *body)
{
    struct sl_serve_request r;
    struct sl_serve_fault f = {0};
    if (sl_serve_request_parse(&r, kind, body, strlen(body), &f)) fail_msg("%s", f.message);
    struct sl_serve_job *j = sl_job_new(&r);
    assert_non_null(j);
    (void)snprintf(j->id, sizeof j->id, "%s-0", kind == SL_SERVE_CHAT ? "chatcmpl" : "cmpl");
    j->created = 1;
    j->thinking = true;
    return j;
}

/* Runs the markup through an answer; returns the number of ids taken. */
static size_t answer(struct sl_serve_job *j, const char *markup, enum sl_finish *finish)
{
    struct sl_answer *a = NULL;
    struct sl_err err = {0};
    struct sl_ids ids = ids_of(markup);
    struct sl_serve_fault fault = {0};
    assert_int_equal(sl_answer_open(&a, j, pack, &format, &err), 0);
    *finish = SL_FINISH_LENGTH;
    int32_t stop_id = -1;
    size_t i = 0;
    int rc = 0;
    for (; i < ids.n && !rc; i++) {
        if (sluice_is_stop(pack, ids.v[i])) {
            stop_id = ids.v[i];
            *finish = SL_FINISH_STOP;
            break;
        }
        struct sl_serve_token token = {.self = {ids.v[i], -1.5f}};
        rc = sl_answer_token(a, ids.v[i], j->req.logprobs ? &token : NULL, finish, &err);
        assert_true(rc >= 0);
    }
    assert_int_equal(sl_answer_end(a, stop_id, finish, &fault, &err), 0);
    sl_answer_close(a);
    sl_ids_free(&ids);
    sl_job_finish(j, *finish, fault.status ? &fault : NULL);
    return i;
}

static char *whole_reply(struct sl_serve_job *j)
{
    bool done = false;
    struct sl_reply_about about = {pack, "m"};
    struct sl_serve_text t = {0};
    struct sl_delta *all = sl_job_take(j, 0, &done);
    assert_true(done);
    sl_reply_whole(&t, &about, j, all);
    sl_delta_free(all);
    assert_false(t.failed);
    return t.v;
}

static cJSON *whole(struct sl_serve_job *j)
{
    char *text = whole_reply(j);
    cJSON *o = cJSON_Parse(text);
    if (!o) print_message("%s\n", text);
    assert_non_null(o);
    free(text);
    cJSON *choices = cJSON_GetObjectItem(o, "choices");
    cJSON *c = cJSON_DetachItemFromArray(choices, 0);
    cJSON_Delete(o);
    return c;
}

static const char *string(const cJSON *o, const char *a, const char *b)
{
    const cJSON *v = cJSON_GetObjectItem(o, a);
    if (b) v = cJSON_GetObjectItem(v, b);
    return cJSON_IsString(v) ? v->valuestring : "(none)";
}

#define USER  "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
#define THINK "I think.<|close|>think<|sep|><|open|>response<|sep|>"
#define END   "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"
#define CALL(n, city)                                                                              \
    "<|open|>call tool=\"get_weather\" index=\"" n "\"<|sep|><|open|>argument key=\"city\" "       \
    "type=\"string\"<|sep|>" city "<|close|>argument<|sep|><|close|>call<|sep|>"
#define CALLS                                                                                      \
    "Let me see.<|close|>response<|sep|><|open|>tools<|sep|>" CALL("1", "Paris")                   \
        CALL("2", "Rome") "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"

static void test_channels(void **state)
{
    (void)state;
    enum sl_finish finish;
    struct sl_serve_job *j = job_of(SL_SERVE_CHAT, USER "}");
    (void)answer(j, THINK "Hello, <world>." END, &finish);
    cJSON *c = whole(j);
    assert_string_equal(string(c, "message", "content"), "Hello, <world>.");
    assert_string_equal(string(c, "message", "reasoning_content"), "I think.");
    assert_string_equal(string(c, "finish_reason", NULL), "stop");
    cJSON_Delete(c);
    sl_job_put(j);
}

static void test_calls(void **state)
{
    (void)state;
    enum sl_finish finish;
    struct sl_serve_job *j = job_of(SL_SERVE_CHAT, USER "}");
    (void)answer(j, THINK CALLS, &finish);
    assert_int_equal(finish, SL_FINISH_CALLS);
    cJSON *c = whole(j);
    assert_string_equal(string(c, "message", "content"), "Let me see.");
    assert_string_equal(string(c, "finish_reason", NULL), "tool_calls");
    const cJSON *calls = cJSON_GetObjectItem(cJSON_GetObjectItem(c, "message"), "tool_calls");
    assert_int_equal(cJSON_GetArraySize(calls), 2);
    const char *city[] = {"Paris", "Rome"};
    for (int i = 0; i < 2; i++) {
        const cJSON *call = cJSON_GetArrayItem(calls, i);
        char id[32];
        (void)snprintf(id, sizeof id, "call_0_%d", i);
        assert_string_equal(string(call, "id", NULL), id);
        assert_string_equal(string(call, "type", NULL), "function");
        assert_string_equal(string(call, "function", "name"), "get_weather");
        cJSON *args = cJSON_Parse(string(call, "function", "arguments"));
        assert_non_null(args);
        assert_string_equal(string(args, "city", NULL), city[i]);
        cJSON_Delete(args);
    }
    cJSON_Delete(c);
    sl_job_put(j);
}

/* parallel_tool_calls false: over with the first call, before the second is even taken. */
static void test_one_call(void **state)
{
    (void)state;
    enum sl_finish finish;
    struct sl_serve_job *j = job_of(SL_SERVE_CHAT, USER ",\"parallel_tool_calls\":false}");
    struct sl_ids all = ids_of(THINK CALLS);
    assert_true(answer(j, THINK CALLS, &finish) < all.n - 10);
    sl_ids_free(&all);
    assert_int_equal(finish, SL_FINISH_CALLS);
    cJSON *c = whole(j);
    assert_int_equal(
        cJSON_GetArraySize(cJSON_GetObjectItem(cJSON_GetObjectItem(c, "message"), "tool_calls")),
        1);
    cJSON_Delete(c);
    sl_job_put(j);
}

/* A stop string is looked for in what is shown alone, and log-probabilities are of what is shown. */
static void test_stop_and_logprobs(void **state)
{
    (void)state;
    enum sl_finish finish;
    struct sl_serve_job *j =
        job_of(SL_SERVE_CHAT, USER ",\"stop\":[\"think\",\"two\"],\"logprobs\":true}");
    (void)answer(j, THINK "one two three" END, &finish);
    assert_int_equal(finish, SL_FINISH_STOP);
    cJSON *c = whole(j);
    assert_string_equal(string(c, "message", "reasoning_content"), "I think.");
    assert_string_equal(string(c, "message", "content"), "one ");
    const cJSON *tokens = cJSON_GetObjectItem(cJSON_GetObjectItem(c, "logprobs"), "content");
    char joined[64] = "";
    const cJSON *t;
    cJSON_ArrayForEach(t, tokens)
    {
        strncat(joined, string(t, "token", NULL), sizeof joined - strlen(joined) - 1);
    }
    /* the last token shown may reach into the stop string (" two" begins with the shown blank) */
    assert_memory_equal(joined, "one ", 4);
    assert_null(strstr(joined, "think"));
    assert_null(strstr(joined, "three"));
    cJSON_Delete(c);
    sl_job_put(j);
}

static void test_json_is_judged(void **state)
{
    (void)state;
    static const struct {
        const char *markup, *finish;
        bool told;
    } cases[] = {
        {THINK "{\"a\": 1}" END, "stop", false},
        {THINK "{\"a\": \"1\"}" END, "error", true},
        {THINK "Sure: {\"a\": 1}" END, "error", true},
        {THINK "{\"a\": ", "length", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum sl_finish finish;
        struct sl_serve_job *j = job_of(
            SL_SERVE_CHAT, USER ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":"
                                "{\"schema\":{\"properties\":{\"a\":{\"type\":\"integer\"}}}}}}");
        (void)answer(j, cases[i].markup, &finish);
        cJSON *c = whole(j);
        assert_string_equal(string(c, "finish_reason", NULL), cases[i].finish);
        assert_int_equal(cJSON_IsObject(cJSON_GetObjectItem(c, "error")), cases[i].told);
        cJSON_Delete(c);
        sl_job_put(j);
    }
}

/* Every event of a stream parses, and joined they give the whole reply's message. */
static void test_stream_equals_whole(void **state)
{
    (void)state;
    enum sl_finish finish;
    struct sl_reply_about about = {pack, "m"};
    struct sl_serve_job *one = job_of(SL_SERVE_CHAT, USER "}");
    struct sl_serve_job *two = job_of(SL_SERVE_CHAT, USER ",\"stream\":true}");
    (void)answer(one, THINK CALLS, &finish);
    (void)answer(two, THINK CALLS, &finish);
    bool done = false;
    struct sl_serve_text t = {0};
    struct sl_delta *all = sl_job_take(two, 0, &done);
    sl_reply_begin(&t, &about, two);
    for (struct sl_delta *d = all; d; d = d->next) sl_reply_delta(&t, &about, two, d);
    sl_reply_end(&t, &about, two);
    sl_delta_free(all);
    char content[256] = "";
    char arguments[2][256] = {"", ""};
    char *rest = t.v;
    int events = 0;
    for (char *end; (end = strstr(rest, "\n\n")) != NULL; rest = end + 2) {
        *end = 0;
        assert_memory_equal(rest, "data: ", 6);
        if (strcmp(rest, "data: [DONE]") == 0) continue;
        cJSON *o = cJSON_Parse(rest + 6);
        assert_non_null(o);
        const cJSON *delta =
            cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(o, "choices"), 0), "delta");
        const cJSON *text = cJSON_GetObjectItem(delta, "content");
        if (text) strncat(content, text->valuestring, sizeof content - strlen(content) - 1);
        const cJSON *call = cJSON_GetArrayItem(cJSON_GetObjectItem(delta, "tool_calls"), 0);
        if (call) {
            int at = cJSON_GetObjectItem(call, "index")->valueint;
            assert_in_range(at, 0, 1);
            strncat(arguments[at], string(call, "function", "arguments"),
                    sizeof arguments[at] - strlen(arguments[at]) - 1);
        }
        cJSON_Delete(o);
        events++;
    }
    assert_true(events > 6);
    cJSON *c = whole(one);
    assert_string_equal(content, string(c, "message", "content"));
    const cJSON *calls = cJSON_GetObjectItem(cJSON_GetObjectItem(c, "message"), "tool_calls");
    for (int i = 0; i < 2; i++)
        assert_string_equal(arguments[i],
                            string(cJSON_GetArrayItem(calls, i), "function", "arguments"));
    cJSON_Delete(c);
    sl_serve_text_free(&t);
    sl_job_put(one);
    sl_job_put(two);
}

static void test_completion(void **state)
{
    (void)state;
    enum sl_finish finish;
    struct sl_serve_job *j = job_of(SL_SERVE_COMPLETION, "{\"prompt\":\"x\",\"logprobs\":0}");
    (void)answer(j, "f\xc3\xbcr \xe2\x82\xac 5", &finish);
    cJSON *c = whole(j);
    assert_string_equal(string(c, "text", NULL), "f\xc3\xbcr \xe2\x82\xac 5");
    const cJSON *lp = cJSON_GetObjectItem(c, "logprobs");
    int n = cJSON_GetArraySize(cJSON_GetObjectItem(lp, "tokens"));
    assert_true(n > 1);
    const cJSON *offsets = cJSON_GetObjectItem(lp, "text_offset");
    assert_int_equal(cJSON_GetArraySize(offsets), n);
    for (int i = 0; i < n; i++) /* in characters, of which there are 7 */
        assert_in_range(cJSON_GetArrayItem(offsets, i)->valueint, 0, 7);
    cJSON_Delete(c);
    sl_job_put(j);
}

static int open_all(void **state)
{
    (void)state;
    sluice_error e = {0};
    struct sl_err err = {0};
    golden_pack(pack_path, "models/k3-nano", SL_FMT_M4, SL_FMT_BF16);
    if (sluice_pack_open(&pack, pack_path, NULL, &e)) fail_msg("%s", e.text);
    return sl_chat_format_of(&format, pack, &err);
}

static int close_all(void **state)
{
    (void)state;
    sluice_pack_close(pack);
    golden_remove_packs();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_channels),       cmocka_unit_test(test_calls),
        cmocka_unit_test(test_one_call),       cmocka_unit_test(test_stop_and_logprobs),
        cmocka_unit_test(test_json_is_judged), cmocka_unit_test(test_stream_equals_whole),
        cmocka_unit_test(test_completion),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
