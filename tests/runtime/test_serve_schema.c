/* JSON schemas of response_format: each keyword with a value that passes and one that does not, what is
 * refused at the request, and schemas that try to run away. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include "runtime/serve_schema.h"

struct keyword {
    const char *schema, *good, *bad;
};

static const struct keyword keywords[] = {
    {"{\"type\":\"string\"}", "\"a\"", "1"},
    {"{\"type\":\"integer\"}", "3.0", "3.5"},
    {"{\"type\":\"number\"}", "-1e3", "\"1\""},
    {"{\"type\":\"boolean\"}", "false", "0"},
    {"{\"type\":\"null\"}", "null", "{}"},
    {"{\"type\":\"array\"}", "[]", "{}"},
    {"{\"type\":[\"object\",\"null\"]}", "null", "[]"},
    {"{\"enum\":[1,\"a\",{\"b\":[2]}]}", "{\"b\":[2]}", "{\"b\":[3]}"},
    {"{\"const\":\"x\"}", "\"x\"", "\"y\""},
    {"{\"minimum\":2}", "2", "1.9"},
    {"{\"maximum\":2}", "2", "2.1"},
    {"{\"exclusiveMinimum\":2}", "2.1", "2"},
    {"{\"exclusiveMaximum\":2}", "1.9", "2"},
    {"{\"multipleOf\":0.1}", "0.3", "0.35"},
    {"{\"minLength\":2}", "\"\xc3\xa4\xc3\xb6\"",
     "\"\xf0\x9f\x98\x80\""}, /* characters, not bytes */
    {"{\"maxLength\":1}", "\"\xf0\x9f\x98\x80\"", "\"ab\""},
    {"{\"pattern\":\"^a+$\"}", "\"aaa\"", "\"ab\""},
    {"{\"properties\":{\"a\":{\"type\":\"string\"}}}", "{\"a\":\"x\",\"b\":1}", "{\"a\":1}"},
    {"{\"required\":[\"a\"]}", "{\"a\":null}", "{\"b\":1}"},
    {"{\"additionalProperties\":false,\"properties\":{\"a\":{}}}", "{\"a\":1}", "{\"b\":1}"},
    {"{\"additionalProperties\":{\"type\":\"number\"}}", "{\"b\":1}", "{\"b\":\"1\"}"},
    {"{\"minProperties\":1}", "{\"a\":1}", "{}"},
    {"{\"maxProperties\":1}", "{\"a\":1}", "{\"a\":1,\"b\":2}"},
    {"{\"items\":{\"type\":\"number\"}}", "[1,2]", "[1,\"2\"]"},
    {"{\"prefixItems\":[{\"type\":\"number\"}],\"items\":false}", "[1]", "[1,2]"},
    {"{\"minItems\":1}", "[0]", "[]"},
    {"{\"maxItems\":1}", "[0]", "[0,0]"},
    {"{\"uniqueItems\":true}", "[1,2,{\"a\":1}]", "[{\"a\":1},2,{\"a\":1}]"},
    {"{\"allOf\":[{\"minimum\":1},{\"maximum\":2}]}", "1.5", "3"},
    {"{\"anyOf\":[{\"type\":\"string\"},{\"minimum\":5}]}", "7", "4"},
    {"{\"oneOf\":[{\"minimum\":1},{\"maximum\":2}]}", "0", "1.5"},
    {"{\"not\":{\"type\":\"string\"}}", "1", "\"1\""},
    {"{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"number\"}}}", "1", "\"1\""},
    {"{\"$ref\":\"#/$defs/a~1b~0c\",\"$defs\":{\"a/b~c\":{\"type\":\"number\"}}}", "1", "\"1\""},
    {"{\"$ref\":\"#/anyOf/1\",\"anyOf\":[true,{\"type\":\"number\"}]}", "1", "\"1\""},
    /* a list that refers to itself */
    {"{\"$ref\":\"#/$defs/"
     "l\",\"$defs\":{\"l\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"object\","
     "\"required\":[\"next\"],\"properties\":{\"next\":{\"$ref\":\"#/$defs/l\"}}}]}}}",
     "{\"next\":{\"next\":null}}", "{\"next\":{\"next\":1}}"},
};

static cJSON *parse(const char *text)
{
    cJSON *v = cJSON_Parse(text);
    if (!v) print_message("not JSON: %s\n", text);
    assert_non_null(v);
    return v;
}

static int match(const char *schema, const char *value, char why[256])
{
    cJSON *s = parse(schema);
    cJSON *v = parse(value);
    why[0] = 0;
    if (sl_serve_schema_check(s, why, 256)) print_message("%s: %s\n", schema, why);
    assert_string_equal(why, "");
    int rc = sl_serve_schema_match(s, v, why, 256);
    cJSON_Delete(s);
    cJSON_Delete(v);
    return rc;
}

static void test_keywords(void **state)
{
    (void)state;
    char why[256];
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++) {
        const struct keyword *k = &keywords[i];
        int good = match(k->schema, k->good, why);
        if (good) print_message("%s: %s: %s\n", k->schema, k->good, why);
        assert_int_equal(good, 0);
        int bad = match(k->schema, k->bad, why);
        if (!bad) print_message("%s passes %s\n", k->bad, k->schema);
        assert_int_equal(bad, -1);
        assert_true(strlen(why) > 8);
    }
}

static void test_path_is_named(void **state)
{
    (void)state;
    char why[256];
    assert_int_equal(match("{\"properties\":{\"a\":{\"items\":{\"type\":\"string\"}}}}",
                           "{\"a\":[\"x\",2]}", why),
                     -1);
    assert_non_null(strstr(why, "answer.a[1]"));
}

static void test_refused_schemas(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{\"if\":{}}",
        "{\"properties\":{\"a\":{\"patternProperties\":{}}}}",
        "{\"type\":\"text\"}",
        "{\"type\":[]}",
        "{\"minLength\":\"1\"}",
        "{\"multipleOf\":0}",
        "{\"pattern\":\"(\"}",
        "{\"pattern\":3}",
        "{\"required\":\"a\"}",
        "{\"required\":[1]}",
        "{\"anyOf\":[]}",
        "{\"items\":3}",
        "{\"enum\":{}}",
        "{\"uniqueItems\":1}",
        "{\"$ref\":\"http://example.com/s\"}",
        "{\"$ref\":\"#/$defs/none\"}",
        "{\"$ref\":3}",
        /* places that hold no schema */
        "{\"$ref\":\"#/enum/0\",\"enum\":[{\"required\":[1]}]}",
        "{\"$ref\":\"#/default\",\"default\":{\"pattern\":1}}",
        "{\"$ref\":\"#/$defs\",\"$defs\":{\"type\":{\"type\":\"string\"}}}",
    };
    char why[256];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cJSON *s = parse(bad[i]);
        int rc = sl_serve_schema_check(s, why, sizeof why);
        if (!rc) print_message("accepted: %s\n", bad[i]);
        assert_int_equal(rc, -1);
        cJSON_Delete(s);
    }
}

/* Schemas that lead in circles, or double at each step, end with "no" instead of running on. */
static void test_runaways(void **state)
{
    (void)state;
    char why[256];
    assert_int_equal(match("{\"$ref\":\"#\"}", "1", why), -1);
    assert_non_null(strstr(why, "too deeply"));
    /* "not" must not turn giving up into a yes */
    assert_int_equal(
        match("{\"not\":{\"$ref\":\"#/$defs/a\"},\"$defs\":{\"a\":{\"$ref\":\"#/$defs/a\"}}}", "1",
              why),
        -1);
    char text[4096];
    size_t n = (size_t)snprintf(text, sizeof text, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < 40; i++)
        n += (size_t)snprintf(
            text + n, sizeof text - n,
            "\"d%d\":{\"oneOf\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/$defs/d%d\"}]},", i,
            i + 1, i + 1);
    snprintf(text + n, sizeof text - n, "\"d40\":{\"type\":\"string\"}}}");
    assert_int_equal(match(text, "1", why), -1);
    /* a pattern that backtracks without end */
    assert_int_equal(match("{\"pattern\":\"^(a+)+$\"}",
                           "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab\"", why),
                     -1);
}

static void test_judge(void **state)
{
    (void)state;
    char why[256];
    cJSON *s = parse("{\"type\":\"object\"}");
    assert_int_equal(sl_serve_schema_judge(NULL, "{\"a\":1}\n", 8, why, sizeof why), 0);
    assert_int_equal(sl_serve_schema_judge(NULL, "[1]", 3, why, sizeof why), -1);
    assert_int_equal(sl_serve_schema_judge(NULL, "", 0, why, sizeof why), -1);
    assert_int_equal(sl_serve_schema_judge(NULL, "{} {}", 5, why, sizeof why), -1);
    assert_int_equal(sl_serve_schema_judge(NULL, "```json\n{}\n```", 14, why, sizeof why), -1);
    assert_int_equal(sl_serve_schema_judge(s, " {} ", 4, why, sizeof why), 0);
    assert_int_equal(sl_serve_schema_judge(s, "3", 1, why, sizeof why), -1);
    assert_int_equal(sl_serve_schema_judge(s, "{\"a\":", 5, why, sizeof why), -1);
    cJSON_Delete(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keywords),        cmocka_unit_test(test_path_is_named),
        cmocka_unit_test(test_refused_schemas), cmocka_unit_test(test_runaways),
        cmocka_unit_test(test_judge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
