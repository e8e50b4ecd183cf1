/* Damage to single safetensors files: each is refused in one line that names file, tensor and value,
 * and each has a control that is accepted. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "convert/safetensors.h"
#include "tests/convert/checkpoint_copy.h"

#define SHARD "model-00003-of-000010.safetensors"

/* ---- the parser alone -------------------------------------------------------------------------- */

static int parse(const char *json, uint64_t data_bytes, struct sl_src_tensor **t, uint32_t *n,
                 char **names, struct sl_err *err)
{
    uint64_t start = 8 + strlen(json);
    return sl_safetensors_parse(t, n, names, json, strlen(json), start, start + data_bytes, 7, "f",
                                err);
}

static void accepted_headers(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        uint64_t data_bytes;
        uint32_t n;
    } cases[] = {
        {"{}", 0, 0},
        {"{}   \n\t ", 0, 0}, /* padded with white space */
        {"{\"__metadata__\":{}}", 0, 0},
        {"{\"__metadata__\":{\"format\":\"pt\",\"n\":\"1\"},\"a\":{\"dtype\":\"U8\",\"shape\":[3],"
         "\"data_offsets\":[0,3]}}",
         3, 1},
        {"{\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[4,12]},"
         "\"a\":{\"data_offsets\":[0,4],\"shape\":[1,2],\"dtype\":\"BF16\"}}",
         12, 2},
        {"{\"a b/../\\u00e9\\\"\":{\"dtype\":\"F16\",\"shape\":[1,1,1,2],\"data_offsets\":[0,4],"
         "\"note\":[]}}",
         4, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_err err = {0};
        struct sl_src_tensor *t = NULL;
        char *names = NULL;
        uint32_t n = 99;
        if (parse(cases[i].json, cases[i].data_bytes, &t, &n, &names, &err))
            fail_msg("%s: %s", cases[i].json, err.text);
        assert_int_equal(n, cases[i].n);
        uint64_t at = 8 + strlen(cases[i].json);
        for (uint32_t k = 0; k < n; k++) { /* sorted, absolute */
            assert_int_equal(t[k].offset, at);
            assert_int_equal(t[k].shard, 7);
            at += t[k].bytes;
        }
        free(t);
        free(names);
    }
}

#define T(name, dtype, shape, from, to)                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]" \
    "}"

static void refused_headers(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        uint64_t data_bytes;
        const char *part;
    } cases[] = {
        {"", 0, "not JSON"},
        {"{", 0, "not JSON"},
        {"[]", 0, "header: must be an object"},
        {"{} {}", 0, "text after the JSON value"},
        {"{\"__metadata__\":{\"n\":1}}", 0, "__metadata__: must map names to strings"},
        {"{\"__metadata__\":\"pt\"}", 0, "__metadata__: must map names to strings"},
        {"{\"a\":1}", 0, "a: must be an object"},
        {"{\"\":{}}", 0, "a tensor name of 0 bytes"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "a: no dtype"},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "a: no shape"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "a: data_offsets are not two"},
        {"{" T("a", "F64", "[1]", "0", "8") "}", 8, "a: dtype \"F64\" is not one of"},
        {"{" T("a", "bf16", "[1]", "0", "2") "}", 2, "a: dtype \"bf16\" is not one of"},
        {"{" T("a", "U8", "[]", "0", "1") "}", 1, "a: shape is empty"},
        {"{" T("a", "U8", "[1,1,1,1,1]", "0", "1") "}", 1, "more than 4 dimensions"},
        {"{" T("a", "U8", "[0]", "0", "0") "}", 0, "dimension 0 is not a positive integer"},
        {"{" T("a", "U8", "[2,-1]", "0", "2") "}", 2, "dimension 1 is not a positive integer"},
        {"{" T("a", "U8", "[1.5]", "0", "1") "}", 1, "dimension 0 is not a positive integer"},
        {"{" T("a", "U8", "[\"1\"]", "0", "1") "}", 1, "dimension 0 is not a positive integer"},
        {"{" T("a", "U8", "[1e300]", "0", "1") "}", 1, "dimension 0 is not a positive integer"},
        {"{" T("a", "U8", "[4294967296,4294967296]", "0", "0") "}", 0, "elements overflows"},
        {"{" T("a", "F32", "[4294967296,2147483648]", "0", "0") "}", 0, "needs more than"},
        {"{" T("a", "BF16", "[3]", "0", "4") "}", 4,
         "a: data_offsets span 4 bytes, BF16 [3] needs 6"},
        {"{" T("a", "U8", "[1]", "1", "0") "}", 1, "a: data_offsets [1, 0] run backwards"},
        {"{" T("a", "U8", "[1]", "-1", "0") "}", 1, "a: data_offsets are not two"},
        {"{" T("a", "U8", "[1]", "0.5", "1.5") "}", 1, "a: data_offsets are not two"},
        {"{" T("a", "U8", "[1]", "18446744073709551615", "18446744073709551616") "}", 1,
         "a: data_offsets are not two"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1,
         "a: data_offsets are not two"},
        {"{" T("a", "U8", "[2]", "0", "2") "," T("b", "U8", "[2]", "1", "3") "}", 3,
         "b: data_offsets [1, 3] overlap a, which ends at 2"},
        {"{" T("a", "U8", "[2]", "0", "2") "," T("b", "U8", "[2]", "0", "2") "}", 2,
         "b: data_offsets [0, 2] overlap a"},
        {"{" T("a", "U8", "[2]", "0", "2") "," T("b", "U8", "[2]", "3", "5") "}", 5,
         "b: data_offsets [3, 5] leave a hole of 1 bytes"},
        {"{" T("a", "U8", "[2]", "1", "3") "}", 3,
         "a: data_offsets [1, 3] leave a hole of 1 bytes"},
        {"{" T("a", "U8", "[2]", "0", "2") "," T("b", "U8", "[2]", "9000000000000000",
                                                 "9000000000000002") "}",
         2, "b: data_offsets [9000000000000000, 9000000000000002] are out of range"},
        {"{" T("a", "U8", "[2]", "0", "2") "}", 1, "1 short of the"},
        {"{" T("a", "U8", "[2]", "0", "2") "}", 3, "1 more than the"},
        {"{}", 1, "1 more than the"},
        {"{" T("a", "U8", "[1]", "0", "1") "," T("a", "U8", "[1]", "1", "2") "}", 2,
         "a: appears twice"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         "dtype: appears twice"},
        {"{" T("a\\u0000b", "U8", "[1]", "0", "1") "}", 1, "NUL"},
        /* What came from the file must not reach a terminal as control bytes. */
        {"{" T("a\\u001b[31m", "F64", "[1]", "0", "1") "}", 1, "a?[31m: dtype"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_err err = {0};
        struct sl_src_tensor *t = NULL;
        char *names = NULL;
        uint32_t n = 0;
        if (!parse(cases[i].json, cases[i].data_bytes, &t, &n, &names, &err))
            fail_msg("was accepted: %s", cases[i].json);
        cc_expect_text(&err, SL_E_SOURCE, (const char *const[]){"f: ", cases[i].part, NULL});
        assert_null(t);
        assert_null(names);
    }
}

static void long_names(void **state)
{
    (void)state;
    char json[512];
    char name[300];
    struct sl_err err = {0};
    struct sl_src_tensor *t = NULL;
    char *names = NULL;
    uint32_t n = 0;
    memset(name, 'x', sizeof name);
    name[SL_TENSOR_NAME_MAX] = '\0';
    const char *rest = "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}";
    snprintf(json, sizeof json, "{\"%s\":%s}", name, rest);
    assert_int_equal(parse(json, 1, &t, &n, &names, &err), 0);
    assert_string_equal(t[0].name, name);
    free(t);
    free(names);
    name[SL_TENSOR_NAME_MAX] = 'x';
    name[SL_TENSOR_NAME_MAX + 1] = '\0';
    snprintf(json, sizeof json, "{\"%s\":%s}", name, rest);
    assert_int_equal(parse(json, 1, &t, &n, &names, &err), SL_E_SOURCE);
    assert_non_null(strstr(err.text, "a tensor name of 256 bytes"));
}

/* ---- whole files in a whole checkpoint --------------------------------------------------------- */

static void cut_and_trailing_bytes(void **state)
{
    (void)state;
    struct cc_copy c;
    cc_open(&c);
    cc_resize(&c, SHARD, -1);
    cc_expect_refused(&c, SHARD ": ", "262447 bytes, 1 short of the 262448", "the file is cut",
                      NULL);
    cc_resize(&c, SHARD, 2);
    cc_expect_refused(&c, SHARD ": ", "262449 bytes, 1 more than the 262448", "trailing bytes",
                      NULL);
    cc_resize(&c, SHARD, -1);
    cc_expect_ok(&c); /* its last byte is a zero now, its shape is right again */
    cc_resize(&c, SHARD, -262448 + 7);
    cc_expect_refused(&c, SHARD ": ", "7 bytes, too short for a safetensors file", NULL);
    cc_resize(&c, SHARD, -7);
    cc_expect_refused(&c, SHARD ": ", "0 bytes, too short", NULL);
    cc_close(&c);
}

static void set_length_field(const struct cc_copy *c, uint64_t length)
{
    size_t len;
    char *file = cc_read(c, SHARD, &len);
    for (int i = 0; i < 8; i++) file[i] = (char)(length >> (8 * i));
    cc_write(c, SHARD, file, len);
    free(file);
}

static void header_length(void **state)
{
    (void)state;
    struct cc_copy c;
    size_t len;
    cc_open(&c);
    char *file = cc_read(&c, SHARD, &len);
    uint64_t real = (unsigned char)file[0] | (uint64_t)(unsigned char)file[1] << 8 |
                    (uint64_t)(unsigned char)file[2] << 16;
    free(file);
    const uint64_t larger[] = {len - 7, len, UINT64_MAX, (uint64_t)1 << 63, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof larger / sizeof *larger; i++) {
        set_length_field(&c, larger[i]);
        cc_expect_refused(&c, SHARD ": header: ", "larger than the file of 262448 bytes", NULL);
    }
    set_length_field(&c, len - 8); /* the data taken for JSON */
    cc_expect_refused(&c, SHARD ": ", NULL);
    set_length_field(&c, 0);
    cc_expect_refused(&c, SHARD ": header: 0 bytes, expected 2 to ", NULL);
    set_length_field(&c, real - 1);
    cc_expect_refused(&c, SHARD ": ", NULL);
    set_length_field(&c, real);
    cc_expect_ok(&c);
    cc_close(&c);
}

/* A header of 20 MB in a file that is long enough: more than this small model can explain. */
static void header_longer_than_the_config_explains(void **state)
{
    (void)state;
    struct cc_copy c;
    cc_open(&c);
    set_length_field(&c, 20000000);
    cc_resize(&c, SHARD, 30000000);
    cc_expect_refused(&c, SHARD ": header: 20000000 bytes, expected 2 to ", "for this config",
                      NULL);
    cc_close(&c);
}

static void offsets_in_a_checkpoint(void **state)
{
    (void)state;
    struct cc_copy c;
    struct cc_shard s;
    const char *name = "language_model.model.layers.2.self_attn.k_proj.weight";
    const struct {
        double from, to;
        const char *part;
    } cases[] = {
        {0, 24576, "overlap"},
        {262400, 262400 + 24576, "out of range"},
        {1e15, 1e15 + 24576, "out of range"},
        {0, 24575, "span 24575 bytes, BF16 [128, 96] needs 24576"},
    };
    cc_open(&c);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t len;
        char *good = cc_read(&c, SHARD, &len);
        cc_shard_load(&c, SHARD, &s);
        cc_set_offsets(cc_shard_find(&s, "layers.2.self_attn.k_proj"), cases[i].from, cases[i].to);
        cc_shard_save(&c, SHARD, &s);
        cc_expect_refused(&c, SHARD ": ", cases[i].part, NULL);
        if (i != 0) cc_expect_refused(&c, name, NULL);
        cc_write(&c, SHARD, good, len);
        free(good);
        cc_expect_ok(&c);
    }
    cc_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted_headers),
        cmocka_unit_test(refused_headers),
        cmocka_unit_test(long_names),
        cmocka_unit_test(cut_and_trailing_bytes),
        cmocka_unit_test(header_length),
        cmocka_unit_test(header_longer_than_the_config_explains),
        cmocka_unit_test(offsets_in_a_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
