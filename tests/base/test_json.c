/* JSON: what is refused although cJSON would take it, and errors that name file, key and value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"

static cJSON *parse(const char *text)
{
    struct sl_err e = {0};
    cJSON *tree = NULL;
    if (sl_json_parse(&tree, text, strlen(text), "pack.json", SL_E_PACK, &e))
        fail_msg("%s", e.text);
    return tree;
}

static void good_texts(void **state)
{
    (void)state;
    static const char *const good[] = {
        "{}",
        " [1, 2]\n\t ",
        "\"a\\\\u0000\"",
        "{\"a\":1,\"A\":2}",
        "{\"a\":{\"a\":1},\"b\":{\"a\":1}}",
        "-1.5e3",
        "null",
        "{\"\":0}",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) cJSON_Delete(parse(good[i]));
    /* need not be terminated */
    cJSON *tree = NULL;
    assert_int_equal(sl_json_parse(&tree, "[1]]", 3, "f", SL_E_PACK, NULL), 0);
    cJSON_Delete(tree);
}

static void bad_texts_name_the_place(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len; /* 0: strlen */
        const char *want;
    } bad[] = {
        {"", 0, "pack.json: not JSON: line 1, column 1"},
        {"{", 0, "pack.json: not JSON: line 1, column"},
        {"{\"a\":1,\n \"b\":x}", 0, "pack.json: not JSON: line 2, column 6"},
        {"{} {}", 0, "pack.json: line 1, column 4: text after the JSON value"},
        {"[1]\n\n]", 0, "pack.json: line 3, column 1: text after the JSON value"},
        {"{\"a\":1,\"b\":2,\"a\":3}", 0, "pack.json: a: appears twice in one object"},
        {"[0,{\"x\":[{\"k\":1,\"k\":1}]}]", 0, "pack.json: k: appears twice in one object"},
        {"{\"a\":\"b\\u0000c\"}", 0, "pack.json: line 1, column 8: NUL character"},
        {"{\"a\\\\\\u0000\":1}", 0, "pack.json: line 1, column 6: NUL character"},
        {"[\"a\0b\"]", 7, "pack.json: line 1, column 4: NUL character"},
        {"{}\0", 3, "pack.json: line 1, column 3: NUL character"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct sl_err e = {0};
        cJSON *tree = (cJSON *)&e;
        size_t len = bad[i].len ? bad[i].len : strlen(bad[i].text);
        int rc = sl_json_parse(&tree, bad[i].text, len, "pack.json", SL_E_PACK, &e);
        if (rc != SL_E_PACK) fail_msg("%zu accepted: %s", i, bad[i].text);
        assert_null(tree);
        if (strncmp(e.text, bad[i].want, strlen(bad[i].want)) != 0)
            fail_msg("'%s' is not '%s'", e.text, bad[i].want);
    }
}

/* Every prefix of a valid text is an error and nothing worse (run under the sanitizers). */
static void cut_texts(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a\":[1,2.5e-3,\"x\\u00e9\\ud83d\\ude00\"],\"b\":{\"c\":true,\"d\":null}}";
    for (size_t n = 0; n < sizeof text - 1; n++) {
        char *copy = malloc(n ? n : 1); /* exact size: reads past the end are seen */
        assert_non_null(copy);
        memcpy(copy, text, n);
        cJSON *tree = NULL;
        assert_int_equal(sl_json_parse(&tree, copy, n, "f", SL_E_SOURCE, NULL), SL_E_SOURCE);
        free(copy);
    }
}

static void deep_nesting_is_an_error(void **state)
{
    (void)state;
    size_t n = 1000000;
    char *text = malloc(n);
    assert_non_null(text);
    memset(text, '[', n);
    cJSON *tree = NULL;
    assert_int_equal(sl_json_parse(&tree, text, n, "f", SL_E_SOURCE, NULL), SL_E_SOURCE);
    free(text);
}

static void typed_members(void **state)
{
    (void)state;
    cJSON *t = parse(
        "{\"i\":-3,\"big\":9007199254740992,\"f\":2.5,\"b\":false,\"s\":\"x\",\"o\":{},\"a\":[]}");
    struct sl_err e = {0};
    int64_t i = 0;
    uint64_t u = 0;
    double f = 0;
    bool b = true;
    const char *s = NULL;
    const cJSON *o = NULL;
    assert_int_equal(sl_json_int(t, "i", -3, 3, &i, "f", SL_E_PACK, &e), 0);
    assert_int_equal(i, -3);
    assert_int_equal(sl_json_u64(t, "big", UINT64_MAX, &u, "f", SL_E_PACK, &e), 0);
    assert_true(u == (uint64_t)1 << 53);
    assert_int_equal(sl_json_f64(t, "f", 0, 3, &f, "f", SL_E_PACK, &e), 0);
    assert_true(f == 2.5);
    assert_int_equal(sl_json_bool(t, "b", &b, "f", SL_E_PACK, &e), 0);
    assert_false(b);
    assert_int_equal(sl_json_str(t, "s", &s, "f", SL_E_PACK, &e), 0);
    assert_string_equal(s, "x");
    assert_int_equal(sl_json_obj(t, "o", &o, "f", SL_E_PACK, &e), 0);
    assert_true(cJSON_IsObject(o));
    assert_int_equal(sl_json_arr(t, "a", &o, "f", SL_E_PACK, &e), 0);
    assert_true(cJSON_IsArray(o));
    cJSON_Delete(t);
}

static void errors_name_file_key_and_value(void **state)
{
    (void)state;
    cJSON *t = parse(
        "{\"text\":{\"n\":7.5,\"neg\":-1,\"s\":\"deep\",\"big\":1e300,\"past\":9007199254740994,"
        "\"o\":{},\"a\":[1],\"t\":true,\"z\":null,\"inf\":1e999}}");
    const cJSON *o = NULL;
    struct sl_err e = {0};
    assert_int_equal(sl_json_obj(t, "text", &o, "config.json", SL_E_SOURCE, &e), 0);
    int64_t i = 42;
    uint64_t u = 42;
    double f = 42;
    bool b;
    const char *s;
    const cJSON *x;
#define FAILS(call, want)                                                                          \
    do {                                                                                           \
        assert_int_equal(call, SL_E_SOURCE);                                                       \
        assert_string_equal(e.text, want);                                                         \
    } while (0)
#define REST "config.json", SL_E_SOURCE, &e
    FAILS(sl_json_int(o, "gone", 0, 9, &i, REST), "config.json: text.gone: missing");
    FAILS(sl_json_int(o, "N", 0, 9, &i, REST), "config.json: text.N: missing");
    FAILS(sl_json_int(t, "gone", 0, 9, &i, REST), "config.json: gone: missing");
    FAILS(sl_json_int(o, "n", 0, 9, &i, REST),
          "config.json: text.n: must be an integer from 0 to 9, found 7.5");
    FAILS(sl_json_int(o, "neg", 0, 9, &i, REST),
          "config.json: text.neg: must be an integer from 0 to 9, found -1");
    FAILS(sl_json_int(o, "s", 0, 9, &i, REST),
          "config.json: text.s: must be an integer from 0 to 9, found \"deep\"");
    FAILS(sl_json_int(o, "big", 0, INT64_MAX, &i, REST),
          "config.json: text.big: must be an integer from 0 to 9223372036854775807, found "
          "1.0000000000000001e+300");
    FAILS(sl_json_u64(o, "past", UINT64_MAX, &u, REST),
          "config.json: text.past: must be an integer from 0 to 9007199254740992, found "
          "9007199254740994");
    FAILS(sl_json_u64(o, "neg", 10, &u, REST),
          "config.json: text.neg: must be an integer from 0 to 10, found -1");
    FAILS(sl_json_f64(o, "n", 0, 5, &f, REST),
          "config.json: text.n: must be a number from 0 to 5, found 7.5");
    FAILS(sl_json_f64(o, "inf", -1e308, 1e308, &f, REST),
          "config.json: text.inf: must be a number from -1e+308 to 1e+308, found inf");
    FAILS(sl_json_bool(o, "z", &b, REST), "config.json: text.z: must be true or false, found null");
    FAILS(sl_json_str(o, "t", &s, REST), "config.json: text.t: must be a string, found true");
    FAILS(sl_json_obj(o, "a", &x, REST), "config.json: text.a: must be an object, found an array");
    FAILS(sl_json_arr(o, "o", &x, REST), "config.json: text.o: must be an array, found an object");
    FAILS(sl_json_str(NULL, "k", &s, REST), "config.json: k: missing");
    assert_int_equal(i, 42); /* nothing is written on failure */
    assert_int_equal(u, 42);
    assert_true(f == 42);
    cJSON_Delete(t);
}

static void files_are_bounded(void **state)
{
    (void)state;
    char path[] = "/tmp/sluice_test_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct sl_err e = {0};
    assert_int_equal(sl_write_file(path, "{\"a\":1}", 7, &e), 0);
    cJSON *t = NULL;
    assert_int_equal(sl_json_read(&t, path, 7, SL_E_SOURCE, &e), 0);
    cJSON_Delete(t);
    assert_int_equal(sl_json_read(&t, path, 6, SL_E_SOURCE, &e), SL_E_SOURCE);
    assert_null(t);
    assert_non_null(strstr(e.text, path));
    unlink(path);
    assert_int_equal(sl_json_read(&t, path, 6, SL_E_PACK, &e), SL_E_PACK);
    assert_non_null(strstr(e.text, path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_texts),        cmocka_unit_test(bad_texts_name_the_place),
        cmocka_unit_test(cut_texts),         cmocka_unit_test(deep_nesting_is_an_error),
        cmocka_unit_test(typed_members),     cmocka_unit_test(errors_name_file_key_and_value),
        cmocka_unit_test(files_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
