/* Sound files whose tensors are not those of the config, or not those of the index. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/convert/checkpoint_copy.h"

#define INDEX   "model.safetensors.index.json"
#define NORM    "language_model.model.norm.weight"
#define GLOBALS 10

/* Takes the last tensor of a shard away, its data with it; returns its name. */
static void drop_last(const struct cc_copy *c, int shard, char name[200])
{
    struct cc_shard s;
    cc_shard_load(c, cc_shard_name(shard), &s);
    cJSON *last = NULL;
    for (cJSON *v = s.header->child; v; v = v->next) {
        const cJSON *pair = cJSON_GetObjectItemCaseSensitive(v, "data_offsets");
        if (!pair || (size_t)pair->child->next->valuedouble != s.bytes) continue;
        last = v;
        s.bytes = (size_t)pair->child->valuedouble;
        break;
    }
    if (!last) {
        fail_msg("%s: no tensor ends the data", cc_shard_name(shard));
        return;
    }
    snprintf(name, 200, "%s", last->string);
    cJSON_Delete(cJSON_DetachItemViaPointer(s.header, last));
    cc_shard_save(c, cc_shard_name(shard), &s);
}

static void tensor_missing(void **state)
{
    (void)state;
    struct cc_copy c;
    char name[200];
    char second[200];
    cc_open(&c);
    drop_last(&c, 7, name);
    /* While the index still names it, the disagreement is the finding. */
    cc_expect_refused(&c, "model-00007-of-000010.safetensors: ", name, "the header lacks it", NULL);
    cc_index_set(&c, name, NULL);
    cc_expect_refused(&c, c.dir, name, "missing from every shard", NULL);
    drop_last(&c, 7, second);
    cc_remove(&c, INDEX);
    cc_expect_refused(&c, "missing from every shard, and so are 1 more", NULL);
    cc_close(&c);
}

static void every_kind_of_tensor_is_missed(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "layers.0.self_attention_res_norm", /* unused, still required */
        "layers.3.self_attn.kv_a_layernorm",
        "layers.5.self_attn.A_log",
        "layers.5.block_sparse_moe.gate.e_score",
        "lm_head",
        "experts.23.w2.weight_scale",
        "mlp.down_proj"};
    static const int shards[] = {1, 4, 6, 6, 10, 9, 1};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct cc_copy c;
        struct cc_shard s;
        char name[200];
        cc_open(&c);
        cc_remove(&c, INDEX);
        cc_shard_load(&c, cc_shard_name(shards[i]), &s);
        cJSON *t = cc_shard_find(&s, parts[i]);
        snprintf(name, sizeof name, "%s", t->string);
        t->string[strlen(t->string) - 1] = 'X'; /* the data stay covered, by another name */
        cc_shard_save(&c, cc_shard_name(shards[i]), &s);
        cc_expect_refused(&c, name, "missing from every shard", NULL);
        cc_close(&c);
    }
}

static void tensor_twice(void **state)
{
    (void)state;
    struct cc_copy c;
    struct cc_shard s;
    const int64_t shape[] = {96};
    cc_open(&c);
    cc_remove(&c, INDEX);
    cc_expect_ok(&c);
    cc_shard_load(&c, cc_shard_name(1), &s);
    cc_shard_add(&s, NORM, "BF16", 1, shape);
    cc_shard_save(&c, cc_shard_name(1), &s);
    cc_expect_refused(&c, "model-00010-of-000010.safetensors: " NORM, "is in model-00001-of-000010",
                      NULL);
    cc_close(&c);

    cc_open(&c); /* twice in one header: text, since a tree of ours would not hold both */
    cc_remove(&c, INDEX);
    size_t len;
    char *file = cc_read(&c, cc_shard_name(GLOBALS), &len);
    char *at = memmem(file, len, "output_attn_res_norm.weight\"", 28);
    assert_non_null(at);
    memcpy(at, "norm.weight\"                 :", 12);
    memmove(at + 12, at + 28, len - (size_t)(at + 28 - file));
    len -= 16;
    uint64_t json = (unsigned char)file[0] | (uint64_t)(unsigned char)file[1] << 8;
    json -= 16;
    file[0] = (char)json;
    file[1] = (char)(json >> 8);
    cc_write(&c, cc_shard_name(GLOBALS), file, len);
    free(file);
    cc_expect_refused(&c, cc_shard_name(GLOBALS), NORM ": appears twice", NULL);
    cc_close(&c);
}

static void set_dtype(cJSON *tensor, const char *dtype)
{
    cJSON_DeleteItemFromObjectCaseSensitive(tensor, "dtype");
    assert_non_null(cJSON_AddStringToObject(tensor, "dtype", dtype));
}

static void set_shape(cJSON *tensor, int n, const int *dims)
{
    cJSON_DeleteItemFromObjectCaseSensitive(tensor, "shape");
    assert_true(cJSON_AddItemToObject(tensor, "shape", cJSON_CreateIntArray(dims, n)));
}

static void wrong_dtype(void **state)
{
    (void)state;
    /* Same bytes under another type: only the inventory can tell. */
    static const struct {
        int shard;
        const char *part, *dtype;
        int dims[3], n;
        const char *found, *want;
    } cases[] = {
        {2, "self_attn.q_proj", "F16", {128, 96}, 2, "F16 [128, 96]", "expected BF16 [128, 96]"},
        {2, "self_attn.dt_bias", "BF16", {256}, 1, "BF16 [256]", "expected F32 [128]"},
        {2,
         "experts.0.w1.weight_packed",
         "BF16",
         {32, 8},
         2,
         "BF16 [32, 8]",
         "expected U8 [32, 16]"},
        {10, "model.norm", "U8", {192}, 1, "U8 [192]", "expected BF16 [96]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cc_copy c;
        struct cc_shard s;
        cc_open(&c);
        cc_expect_ok(&c);
        cc_shard_load(&c, cc_shard_name(cases[i].shard), &s);
        cJSON *t = cc_shard_find(&s, cases[i].part);
        set_dtype(t, cases[i].dtype);
        set_shape(t, cases[i].n, cases[i].dims);
        cc_shard_save(&c, cc_shard_name(cases[i].shard), &s);
        cc_expect_refused(&c, cc_shard_name(cases[i].shard), cases[i].part, cases[i].found,
                          cases[i].want, NULL);
        cc_close(&c);
    }
}

static void wrong_shape(void **state)
{
    (void)state;
    static const struct {
        int shard;
        const char *part;
        int dims[4], n;
        bool ok;
    } cases[] = {
        {2, "self_attn.q_proj", {96, 128}, 2, false}, /* transposed */
        {2, "self_attn.q_proj", {12288}, 1, false},
        {2, "self_attn.q_proj", {1, 128, 96}, 3, false},
        {2, "self_attn.q_conv1d", {128, 4, 1}, 3, false},
        {2, "self_attn.q_conv1d", {4, 128}, 2, false},
        {2, "self_attn.q_conv1d", {128, 4}, 2, true}, /* the other accepted spelling */
        {2, "self_attn.A_log", {4, 8}, 2, false},
        {2, "self_attention_res_proj", {96}, 1, false},
        {2, "self_attention_res_proj", {96, 1}, 2, false},
        {4, "experts.7.w2.weight_scale", {1, 32}, 2, false},
        {10, "lm_head", {320, 192}, 2, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cc_copy c;
        struct cc_shard s;
        cc_open(&c);
        cc_shard_load(&c, cc_shard_name(cases[i].shard), &s);
        set_shape(cc_shard_find(&s, cases[i].part), cases[i].n, cases[i].dims);
        cc_shard_save(&c, cc_shard_name(cases[i].shard), &s);
        if (cases[i].ok)
            cc_expect_ok(&c);
        else
            cc_expect_refused(&c, cc_shard_name(cases[i].shard), cases[i].part, ", expected ",
                              NULL);
        cc_close(&c);
    }
}

/* A_log holds one value a head; any padding after the heads is fine, fewer values are not. */
static void a_log_of_any_length(void **state)
{
    (void)state;
    for (int n = 3; n <= 40; n += n < 5 ? 1 : 35) {
        struct cc_copy c;
        struct cc_shard s;
        const char *name = "language_model.model.layers.8.self_attn.A_log";
        const int64_t shape[] = {n};
        cc_open(&c);
        cc_remove(&c, INDEX);
        cJSON *config = cc_load(&c, "config.json"); /* layer 8 (number 9) becomes a KDA layer */
        cJSON *linear = cJSON_GetObjectItemCaseSensitive(
            cJSON_GetObjectItemCaseSensitive(config, "text_config"), "linear_attn_config");
        cJSON *kda = cJSON_GetObjectItemCaseSensitive(linear, "kda_layers");
        cJSON_DeleteItemFromArray(cJSON_GetObjectItemCaseSensitive(linear, "full_attn_layers"), 2);
        assert_true(cJSON_AddItemToArray(kda, cJSON_CreateNumber(9)));
        cc_save(&c, "config.json", config);
        /* Its attention tensors are those of layer 0, A_log apart. */
        struct cc_shard donor;
        cc_shard_load(&c, cc_shard_name(1), &donor);
        cc_shard_load(&c, cc_shard_name(9), &s);
        struct cc_shard fresh = {.header = cJSON_CreateObject()};
        for (cJSON *v = s.header->child; v; v = v->next) {
            if (strstr(v->string, "self_attn.") || v->string[0] == '_') continue;
            int64_t dims[4];
            const cJSON *list = cJSON_GetObjectItemCaseSensitive(v, "shape");
            int n_dims = 0;
            for (const cJSON *d = list->child; d; d = d->next)
                dims[n_dims++] = (int64_t)d->valuedouble;
            cc_shard_add(&fresh, v->string,
                         cJSON_GetObjectItemCaseSensitive(v, "dtype")->valuestring, n_dims, dims);
        }
        for (cJSON *v = donor.header->child; v; v = v->next) {
            char moved[200];
            int64_t dims[4];
            const char *tail = strstr(v->string, "self_attn.");
            if (!tail || strstr(v->string, "A_log")) continue;
            const cJSON *list = cJSON_GetObjectItemCaseSensitive(v, "shape");
            int n_dims = 0;
            for (const cJSON *d = list->child; d; d = d->next)
                dims[n_dims++] = (int64_t)d->valuedouble;
            snprintf(moved, sizeof moved, "language_model.model.layers.8.%s", tail);
            cc_shard_add(&fresh, moved, cJSON_GetObjectItemCaseSensitive(v, "dtype")->valuestring,
                         n_dims, dims);
        }
        cc_shard_add(&fresh, name, "F32", 1, shape);
        cc_shard_save(&c, cc_shard_name(9), &fresh);
        cJSON_Delete(s.header);
        free(s.data);
        cJSON_Delete(donor.header);
        free(donor.data);
        if (n >= 4)
            cc_expect_ok(&c);
        else
            cc_expect_refused(&c, name, "F32 [3], expected F32 [32]", NULL);
        cc_close(&c);
    }
}

static void unknown_tensor(void **state)
{
    (void)state;
    static const char *const names[] = {
        "language_model.model.layers.9.input_layernorm.weight",
        "language_model.model.layers.2.self_attn.rotary_emb.inv_freq",
        "language_model.model.layers.2.block_sparse_moe.experts.24.w1.weight_packed",
        "model.norm.weight",
        "language_model.vision_tower.x",
        "we\\ird \xc3\xa9 name\x1b[0m",
    };
    const int64_t shape[] = {96};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct cc_copy c;
        struct cc_shard s;
        cc_open(&c);
        cc_remove(&c, INDEX);
        cc_shard_load(&c, cc_shard_name(5), &s);
        cc_shard_add(&s, names[i], "BF16", 1, shape);
        cc_shard_save(&c, cc_shard_name(5), &s);
        cc_expect_refused(&c, cc_shard_name(5), "is no tensor of this model (1 such)", NULL);
        cc_close(&c);
    }
}

static void vision_tensors_are_carried(void **state)
{
    (void)state;
    struct cc_copy c;
    struct cc_shard s = {.header = cJSON_CreateObject()};
    const int64_t four[] = {8, 3, 2, 2};
    const int64_t two[] = {4, 6};
    cc_open(&c);
    cc_remove(&c, INDEX);
    for (int i = 1; i <= 10; i++) { /* an eleventh file needs names without numbers */
        char name[64];
        snprintf(name, sizeof name, "part-%d.safetensors", i);
        assert_int_equal(rename(cc_path(&c, cc_shard_name(i)), cc_path(&c, name)), 0);
    }
    cc_shard_add(&s, "vision_tower.patch_embed.proj.weight", "BF16", 4, four);
    cc_shard_add(&s, "vision_tower.odd", "F32", 1, two);
    cc_shard_add(&s, "mm_projector.proj.0.weight", "F16", 2, two);
    cc_shard_save(&c, "vision.safetensors", &s);
    struct sl_err err = {0};
    struct sl_source *src = NULL;
    if (sl_source_open(&src, c.dir, NULL, &err)) fail_msg("%s", err.text);
    const struct sl_src_tensor *t = sl_source_find(src, "vision_tower.patch_embed.proj.weight");
    assert_non_null(t);
    assert_int_equal(t->n_dims, 4);
    assert_int_equal(t->bytes, 8 * 3 * 2 * 2 * 2);
    assert_true(sl_source_is_vision(t->name));
    assert_false(sl_source_is_vision("model.norm.weight"));
    assert_non_null(sl_source_find(src, "mm_projector.proj.0.weight"));
    assert_int_equal(src->n_tensors, 1386 + 3);
    sl_source_close(src);

    cc_shard_load(&c, "vision.safetensors", &s);
    cc_shard_add(&s, "vision_tower.bytes", "U8", 2, two);
    cc_shard_save(&c, "vision.safetensors", &s);
    cc_expect_refused(&c, "vision.safetensors: vision_tower.bytes: U8, expected BF16, F32 or F16",
                      NULL);
    cc_close(&c);
}

static void index_disagrees(void **state)
{
    (void)state;
    struct cc_copy c;
    cc_open(&c);
    cc_index_set(&c, NORM, cc_shard_name(10));
    cc_expect_ok(&c); /* control: the same entry, written anew */
    cc_index_set(&c, NORM, NULL);
    cc_expect_refused(&c, cc_shard_name(10), NORM ": is not listed in " INDEX, NULL);
    cc_index_set(&c, NORM, cc_shard_name(3));
    cc_expect_refused(&c, cc_shard_name(10), NORM ": is in this file", "places it in model-00003",
                      NULL);
    cc_index_set(&c, NORM, cc_shard_name(10));
    cc_index_set(&c, "language_model.model.extra", cc_shard_name(2));
    cc_expect_refused(&c, cc_shard_name(2), "language_model.model.extra: ", "the header lacks it",
                      NULL);
    cc_index_set(&c, "language_model.model.extra", NULL);
    cc_expect_ok(&c);

    const char *bad[] = {"../model.safetensors", "sub/model.safetensors", "model.bin",
                         ".safetensors", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cc_index_set(&c, NORM, bad[i]);
        cc_expect_refused(&c, INDEX ": " NORM, "is not the name of a .safetensors file", NULL);
    }
    cc_index_set(&c, NORM, "model-00011-of-000010.safetensors");
    cc_expect_refused(&c, "model-00011-of-000010.safetensors: does not belong", NULL);
    cc_index_set(&c, NORM, "other.safetensors");
    cc_expect_refused(&c, "other.safetensors", NULL);
    cc_close(&c);
}

static void set_total(const struct cc_copy *c, double total)
{
    cJSON *index = cc_load(c, INDEX);
    cJSON *meta = cJSON_GetObjectItemCaseSensitive(index, "metadata");
    cJSON_DeleteItemFromObjectCaseSensitive(meta, "total_size");
    assert_non_null(cJSON_AddNumberToObject(meta, "total_size", total));
    cc_save(c, INDEX, index);
}

static void index_itself_is_bad(void **state)
{
    (void)state;
    struct cc_copy c;
    cc_open(&c);
    set_total(&c, 2140064);
    cc_expect_ok(&c);
    set_total(&c, 2140063);
    cc_expect_refused(&c, INDEX ": metadata.total_size: 2140063, but the shards hold 2140064",
                      NULL);
    set_total(&c, -1);
    cc_expect_refused(&c, INDEX ": metadata.total_size", NULL);
    cc_write(&c, INDEX, "{}", 2);
    cc_expect_refused(&c, INDEX ": weight_map: missing", NULL);
    cc_write(&c, INDEX, "{\"weight_map\":{}}", 17);
    cc_expect_refused(&c, INDEX ": weight_map: is empty", NULL);
    cc_write(&c, INDEX, "{\"weight_map\":[]}", 17);
    cc_expect_refused(&c, INDEX ": weight_map: must be an object", NULL);
    cc_write(&c, INDEX, "{\"weight_map\":{\"a\":1}}", 22);
    cc_expect_refused(&c, INDEX ": a: ", "not a string", NULL);
    const char *twice = "{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"x.safetensors\"}}";
    cc_write(&c, INDEX, twice, strlen(twice));
    cc_expect_refused(&c, INDEX ": a: appears twice", NULL);
    cc_write(&c, INDEX, "nonsense", 8);
    cc_expect_refused(&c, INDEX ": not JSON", NULL);
    cc_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_missing),  cmocka_unit_test(every_kind_of_tensor_is_missed),
        cmocka_unit_test(tensor_twice),    cmocka_unit_test(wrong_dtype),
        cmocka_unit_test(wrong_shape),     cmocka_unit_test(a_log_of_any_length),
        cmocka_unit_test(unknown_tensor),  cmocka_unit_test(vision_tensors_are_carried),
        cmocka_unit_test(index_disagrees), cmocka_unit_test(index_itself_is_bad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
