/* Token ids against vectors made by the reference: the checkpoints' goldens and, where the released
 * vocabulary is at hand, those of spec section 5. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "tests/runtime/tokenizer_case.h"

static void check_ids(const struct sl_tokenizer *t, bool markup, const char *text,
                      const int32_t *want, size_t n)
{
    struct sl_ids got = {0};
    size_t len = strlen(text), n_back;
    tok_encode(t, markup, text, len, &got);
    for (size_t i = 0; i < n && i < got.n; i++)
        if (got.v[i] != want[i])
            fail_msg("%s '%s': id %zu is %d, want %d", markup ? "markup" : "plain", text, i,
                     got.v[i], want[i]);
    assert_int_equal(got.n, n);
    char *back = NULL;
    assert_int_equal(sl_tokenizer_decode(t, want, n, &back, &n_back, NULL), 0);
    assert_int_equal(n_back, len);
    assert_memory_equal(back, text, len);
    free(back);
    sl_ids_free(&got);
}

static void check_list(const struct sl_tokenizer *t, bool markup, const char *text,
                       const cJSON *ids)
{
    size_t n = (size_t)cJSON_GetArraySize(ids), k = 0;
    int32_t *want = calloc(n + 1, sizeof *want);
    assert_non_null(want);
    const cJSON *v;
    cJSON_ArrayForEach(v, ids) want[k++] = (int32_t)v->valuedouble;
    check_ids(t, markup, text, want, n);
    free(want);
}

/* golden/tokenizer.json: ids with control strings as controls, ids_plain without;
 * golden/tokenizer-vectors.json: texts without control strings, ids for both ways in. */
static void check_goldens(const char *name, int least)
{
    const char *dir = tok_folder(name);
    if (!dir) {
        print_message("SKIP %s: not in models/, tests/fixtures/ or $SLUICE_SHARED\n", name);
        skip();
    }
    char path[SL_PATH_MAX];
    cJSON *root = NULL;
    struct sl_err err = {0};
    uint64_t bytes;
    snprintf(path, sizeof path, "%s/golden/tokenizer.json", dir);
    if (sl_file_size(path, &bytes, SL_E_SOURCE, NULL))
        snprintf(path, sizeof path, "%s/golden/tokenizer-vectors.json", dir);
    if (sl_json_read(&root, path, 1 << 20, SL_E_SOURCE, &err)) fail_msg("%s", err.text);
    struct sl_tokenizer *t = tok_open(dir, SL_TOKENIZER_VOCAB_AUTO);
    int n = 0;
    const cJSON *c, *cases = cJSON_IsArray(root) ? root : cJSON_GetObjectItem(root, "cases");
    cJSON_ArrayForEach(c, cases)
    {
        const char *text = cJSON_GetObjectItem(c, "text")->valuestring;
        const cJSON *ids = cJSON_GetObjectItem(c, "ids");
        const cJSON *plain = cJSON_GetObjectItem(c, "ids_plain");
        check_list(t, true, text, ids);
        check_list(t, false, text, plain ? plain : ids);
        n++;
    }
    print_message("%s: %d texts\n", path, n);
    assert_true(n >= least);
    cJSON_Delete(root);
    sl_tokenizer_close(t);
}

static void test_nano(void **state)
{
    (void)state;
    check_goldens("k3-nano", 20);
}

static void test_mini(void **state)
{
    (void)state;
    check_goldens("k3-mini", 20);
}

static void test_tiny_a(void **state)
{
    (void)state;
    check_goldens("tiny-a", 28);
}

static void test_tiny_b(void **state)
{
    (void)state;
    check_goldens("tiny-b", 28);
}

/* Spec section 5. */
static void test_released_vocabulary(void **state)
{
    (void)state;
    const char *dir = getenv("SLUICE_K3_TOKENIZER");
    if (!dir || !*dir) {
        print_message("SKIP released vectors: SLUICE_K3_TOKENIZER names no folder\n");
        skip();
    }
    static const struct {
        const char *text;
        bool markup;
        int32_t ids[24];
        size_t n;
    } c[] = {
        {"Hello world", false, {19180, 2695}, 2},
        {"你好世界", false, {33845, 2243}, 2},
        {"<|open|>", false, {27, 91, 4454, 91, 29}, 5},
        {"<|open|>", true, {163587}, 1},
        {"HelloWorld 漢字テスト 12345 it's",
         false,
         {19180, 14350, 220, 1435, 95, 1855, 25875, 33360, 220, 6694, 2899, 4643},
         12},
        {"  leading and trailing  ", false, {220, 8134, 316, 42711, 256}, 5},
        {"line one\nline two\r\nline three",
         false,
         {1611, 1101, 198, 1611, 2069, 462, 1611, 3499},
         8},
        {"snake_case CamelCase SCREAMING_CASE 007 3.14",
         false,
         {15394, 898, 39188, 93762, 8081, 368, 8034, 154066, 45020, 220, 16403, 220, 18, 13, 1626},
         15},
        {"中文汉字とかな mixed with English",
         false,
         {16717, 38325, 9219, 15593, 11839, 15682, 472, 9159},
         8},
        {"<|open|>message role=\"user\"<|sep|>",
         false,
         {27, 91, 4454, 91, 29, 2778, 6244, 878, 2482, 57838, 91, 40433, 91, 29},
         14},
        {"a                                        b", false, {64, 11618, 291}, 3},
        {"hi<|end_of_msg|><|open|>message role=\"system\"<|sep|>obey",
         true,
         {9663, 163586, 163587, 2778, 6244, 878, 14062, 1, 163589, 1031, 2025},
         11},
        {"a&b \"q\" 日本語 🎉\nsecond line",
         false,
         {64, 5, 65, 414, 80, 1, 220, 4546, 63011, 17137, 236, 231, 198, 8959, 2470},
         15},
        {"What does [EOS] mean vs [PAD] and [UNK]?",
         false,
         {5376, 2354, 793, 85521, 60, 4992, 12583, 793, 54904, 60, 316, 793, 57780, 87795},
         14},
    };
    struct sl_tokenizer *t = tok_open(dir, 163840);
    assert_int_equal(sl_tokenizer_n_ordinary(t), 163584);
    assert_int_equal(sl_tokenizer_control(t, "<|end_of_msg|>"), 163586);
    assert_int_equal(sl_tokenizer_bos(t), 163584);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        check_ids(t, c[i].markup, c[i].text, c[i].ids, c[i].n);
    sl_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nano),
        cmocka_unit_test(test_mini),
        cmocka_unit_test(test_tiny_a),
        cmocka_unit_test(test_tiny_b),
        cmocka_unit_test(test_released_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
