/* config.json of tiny-a with one key changed at a time. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/file.h"
#include "convert/hf_config.h"
#include "tests/convert/checkpoint_copy.h"

#define FIXTURE "tests/fixtures/tiny-a/config.json"

static cJSON *load(void)
{
    char *text;
    size_t len;
    struct sl_err err = {0};
    if (sl_read_file(&text, &len, FIXTURE, 1 << 20, SL_E_SOURCE, &err)) fail_msg("%s", err.text);
    cJSON *tree = cJSON_ParseWithLength(text, len);
    assert_non_null(tree);
    free(text);
    return tree;
}

/* The object that a dotted path's last key lies in; *key is that last key. "" is the top. */
static cJSON *parent_of(cJSON *tree, const char *path, const char **key)
{
    char part[64];
    const char *dot;
    while ((dot = strchr(path, '.'))) {
        snprintf(part, sizeof part, "%.*s", (int)(dot - path), path);
        tree = cJSON_GetObjectItemCaseSensitive(tree, part);
        assert_non_null(tree);
        path = dot + 1;
    }
    *key = path;
    return tree;
}

/* value NULL: the key is taken away; otherwise JSON text. */
static void set(cJSON *tree, const char *path, const char *value)
{
    const char *key;
    cJSON *obj = parent_of(tree, path, &key);
    cJSON_DeleteItemFromObjectCaseSensitive(obj, key);
    if (!value) return;
    cJSON *v = cJSON_Parse(value);
    assert_non_null(v);
    assert_true(cJSON_AddItemToObject(obj, key, v));
}

static int parse(cJSON *tree, struct sl_config *c, struct sl_err *err)
{
    char *text = cJSON_PrintUnformatted(tree);
    assert_non_null(text);
    int rc = sl_hf_config_parse(c, text, strlen(text), "config.json", err);
    cJSON_free(text);
    cJSON_Delete(tree);
    return rc;
}

static void expect(const char *path, const char *value, const char *part)
{
    struct sl_config c;
    struct sl_err err = {0};
    cJSON *tree = load();
    set(tree, path, value);
    int rc = parse(tree, &c, &err);
    if (!part) {
        if (rc) fail_msg("%s = %s: %s", path, value ? value : "(absent)", err.text);
        return;
    }
    if (!rc) fail_msg("%s = %s was accepted", path, value ? value : "(absent)");
    cc_expect_text(&err, SL_E_SOURCE, (const char *const[]){"config.json: ", part, NULL});
}

static void released_values(void **state)
{
    (void)state;
    struct sl_config c;
    struct sl_err err = {0};
    if (parse(load(), &c, &err)) fail_msg("%s", err.text);
    assert_int_equal(c.hidden_size, 96);
    assert_int_equal(c.n_layers, 9);
    assert_int_equal(c.vocab_size, 640);
    assert_int_equal(c.intermediate_size, 160);
    assert_int_equal(c.first_k_dense, 1);
    assert_int_equal(c.moe_layer_freq, 1);
    assert_true(c.rms_norm_eps == 1e-5 && c.mla_norm_eps == 1e-6 && c.l2_eps == 1e-6);
    assert_true(c.situ_beta == 4 && c.situ_linear_beta == 25);
    assert_int_equal(c.attn_res_block_size, 4);
    assert_int_equal(c.max_position, 1048576);
    assert_int_equal(c.n_heads, 4);
    assert_int_equal(c.q_lora_rank, 48);
    assert_int_equal(c.kv_lora_rank, 32);
    assert_int_equal(c.qk_nope_dim, 16);
    assert_int_equal(c.qk_rope_dim, 8);
    assert_int_equal(c.v_head_dim, 16);
    assert_true(c.mla_output_gate);
    assert_int_equal(c.kda_heads, 4);
    assert_int_equal(c.kda_head_dim, 32);
    assert_int_equal(c.conv_kernel, 4);
    assert_true(c.gate_lower_bound == -5);
    assert_int_equal(c.n_experts, 24);
    assert_int_equal(c.top_k, 4);
    assert_int_equal(c.n_shared_experts, 2);
    assert_int_equal(c.moe_intermediate_size, 32);
    assert_int_equal(c.latent_size, 32);
    assert_true(c.latent_norm && c.renormalize);
    assert_true(c.routed_scaling_factor == 1);
    assert_int_equal(c.bos_id, 384);
    assert_int_equal(c.eos_id, 386);
    assert_int_equal(c.pad_id, 639);
    static const int kda[9] = {1, 1, 1, 0, 1, 1, 1, 0, 0}; /* numbers in the file start at 1 */
    for (int l = 0; l < 9; l++) assert_int_equal(c.is_kda[l], kda[l]);
}

static void required_keys(void **state)
{
    (void)state;
    static const char *const text[] = {"model_type",
                                       "hidden_size",
                                       "num_hidden_layers",
                                       "vocab_size",
                                       "intermediate_size",
                                       "first_k_dense_replace",
                                       "moe_layer_freq",
                                       "rms_norm_eps",
                                       "hidden_act",
                                       "activation_situ_beta",
                                       "activation_situ_linear_beta",
                                       "attn_res_block_size",
                                       "max_position_embeddings",
                                       "num_attention_heads",
                                       "num_key_value_heads",
                                       "q_lora_rank",
                                       "kv_lora_rank",
                                       "qk_nope_head_dim",
                                       "qk_rope_head_dim",
                                       "v_head_dim",
                                       "mla_use_nope",
                                       "mla_use_output_gate",
                                       "num_experts",
                                       "num_experts_per_token",
                                       "num_shared_experts",
                                       "moe_intermediate_size",
                                       "routed_expert_hidden_size",
                                       "latent_moe_use_norm",
                                       "moe_renormalize",
                                       "moe_router_activation_func",
                                       "routed_scaling_factor",
                                       "num_expert_group",
                                       "topk_group",
                                       "topk_method",
                                       "linear_attn_config"};
    static const char *const linear[] = {
        "num_heads",        "head_dim",           "short_conv_kernel_size",
        "gate_lower_bound", "use_full_rank_gate", "full_attn_layers",
        "kda_layers"};
    char path[128];
    char part[128];
    expect("model_type", NULL, "model_type: missing");
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        snprintf(path, sizeof path, "text_config.%s", text[i]);
        snprintf(part, sizeof part, "text_config.%s: missing", text[i]);
        expect(path, NULL, part);
    }
    for (size_t i = 0; i < sizeof linear / sizeof *linear; i++) {
        snprintf(path, sizeof path, "text_config.linear_attn_config.%s", linear[i]);
        snprintf(part, sizeof part, "linear_attn_config.%s: missing", linear[i]);
        expect(path, NULL, part);
    }
}

static void keys_that_may_be_absent(void **state)
{
    (void)state;
    static const char *const paths[] = {"architectures",
                                        "dtype",
                                        "bos_token_id",
                                        "tie_word_embeddings",
                                        "text_config.bos_token_id",
                                        "text_config.tie_word_embeddings",
                                        "text_config.num_nextn_predict_layers",
                                        "text_config.use_grouped_topk",
                                        "text_config.initializer_range",
                                        "text_config.use_cache",
                                        "text_config.architectures",
                                        "text_config.quantization_config"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) expect(paths[i], NULL, NULL);
    expect("text_config.temperature", "1.0", NULL); /* unknown keys have no say */
    expect("architectures", "null", NULL);
}

static void other_families(void **state)
{
    (void)state;
    struct sl_config c;
    static const struct {
        const char *json, *part;
    } cases[] = {
        {"{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":4096}",
         "model_type: llama, expected kimi_k3"},
        {"{\"model_type\":\"kimi_k2\"}", "model_type: kimi_k2, expected kimi_k3"},
        {"{\"model_type\":\"kimi_vl\",\"text_config\":{\"model_type\":\"deepseek_v3\"}}",
         "model_type: kimi_vl, expected kimi_k3"},
        {"{\"model_type\":\"kimi_k3\",\"text_config\":{\"model_type\":\"deepseek_v3\"}}",
         "text_config.model_type: deepseek_v3, expected kimi_linear"},
        {"{\"model_type\":\"kimi_k3\",\"architectures\":[\"Other\"],\"text_config\":{}}",
         "architectures: Other, expected KimiK3ForConditionalGeneration"},
        {"{\"model_type\":\"kimi_k3\",\"architectures\":[],\"text_config\":{}}",
         "architectures: not a list of names"},
        {"{\"model_type\":7}", "model_type: must be a string, found 7"},
        {"{\"model_type\":\"kimi_k3\",\"text_config\":3}", "text_config: must be an object"},
        {"[]", "must be an object"},
        {"null", "must be an object"},
        {"", "not JSON"},
        {"{\"model_type\":\"kimi_k3\"", "not JSON"},
        {"{\"model_type\":\"kimi_k3\",\"model_type\":\"llama\"}", "model_type: appears twice"},
        /* The 48B model of the family before: same model_type as our text part, flat, no latent
         * experts, no attention residuals, another activation. */
        {"{\"model_type\":\"kimi_linear\",\"architectures\":[\"KimiLinearForCausalLM\"],"
         "\"hidden_size\":2304,\"hidden_act\":\"silu\",\"num_hidden_layers\":27,"
         "\"linear_attn_config\":{\"num_heads\":32,\"head_dim\":128}}",
         "hidden_act: \"silu\" is not supported, expected \"situ\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_err err = {0};
        const char *json = cases[i].json;
        if (!sl_hf_config_parse(&c, json, strlen(json), "config.json", &err))
            fail_msg("was accepted: %s", json);
        cc_expect_text(&err, SL_E_SOURCE,
                       (const char *const[]){"config.json: ", cases[i].part, NULL});
    }
}

/* Another model's folder is refused by its config though its weights are nowhere to be seen. */
static void refused_before_anything_is_read(void **state)
{
    (void)state;
    struct cc_copy c;
    struct sl_config config;
    struct sl_err err = {0};
    cc_open(&c);
    assert_int_equal(sl_source_read_config(&config, c.dir, &err), 0);
    assert_int_equal(config.hidden_size, 96);
    for (int i = 1; i <= 10; i++) cc_remove(&c, cc_shard_name(i));
    cJSON *tree = cc_load(&c, "config.json");
    set(tree, "model_type", "\"llama\"");
    cc_save(&c, "config.json", tree);
    cc_expect_refused(&c, "config.json: model_type: llama, expected kimi_k3", NULL);
    assert_int_equal(sl_source_read_config(&config, c.dir, &err), SL_E_SOURCE);
    cc_write(&c, "config.json", "", 0);
    cc_expect_refused(&c, "config.json: not JSON", NULL);
    cc_close(&c);
}

/* The text model alone, as some extractions have it. */
static void flat_config(void **state)
{
    (void)state;
    struct sl_config nested;
    struct sl_config flat;
    struct sl_err err = {0};
    assert_int_equal(parse(load(), &nested, &err), 0);
    cJSON *tree = load();
    cJSON *text = cJSON_DetachItemFromObjectCaseSensitive(tree, "text_config");
    cJSON_Delete(tree);
    if (parse(text, &flat, &err)) fail_msg("%s", err.text);
    assert_memory_equal(&nested, &flat, sizeof nested);
}

static void unsupported_values(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value, *part;
    } cases[] = {
        {"text_config.hidden_act", "\"silu\"", "text_config.hidden_act: \"silu\" is not supported"},
        {"text_config.hidden_act", "null", "text_config.hidden_act: null is not supported"},
        {"text_config.mla_use_nope", "false", "text_config.mla_use_nope: false is not supported"},
        {"text_config.moe_router_activation_func", "\"softmax\"", "\"softmax\" is not supported"},
        {"text_config.topk_method", "\"greedy\"", "\"greedy\" is not supported"},
        {"text_config.num_expert_group", "8", "num_expert_group: 8 is not supported, expected 1"},
        {"text_config.topk_group", "2", "topk_group: 2 is not supported, expected 1"},
        {"text_config.num_nextn_predict_layers", "1", "1 is not supported, expected 0"},
        {"text_config.tie_word_embeddings", "true", "true is not supported, expected false"},
        {"tie_word_embeddings", "true", "tie_word_embeddings: true is not supported"},
        {"text_config.linear_attn_config.use_full_rank_gate", "false", "use_full_rank_gate: false"},
        {"text_config.num_key_value_heads", "2", "num_key_value_heads: 2 is not supported"},
        {"text_config.quantization_config.format", "\"int4\"", "format: int4, expected mxfp4"},
        {"text_config.quantization_config.config_groups.group_0.weights.group_size", "16",
         "weights.group_size: 16 is not supported, expected 32"},
        {"text_config.quantization_config.config_groups.group_0.weights.num_bits", "8",
         "weights.num_bits: 8 is not supported, expected 4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(cases[i].path, cases[i].value, cases[i].part);
}

static void types_and_ranges(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value, *part; /* part NULL: accepted */
    } cases[] = {
        {"text_config.hidden_size", "\"96\"", "text_config.hidden_size: must be an integer"},
        {"text_config.hidden_size", "96.5", "found 96.5"},
        {"text_config.hidden_size", "0", "found 0"},
        {"text_config.hidden_size", "-96", "found -96"},
        {"text_config.hidden_size", "1e12", "found 1000000000000"},
        {"text_config.hidden_size", "null", "found null"},
        {"text_config.num_hidden_layers", "1025", "an integer from 1 to 1024, found 1025"},
        {"text_config.rms_norm_eps", "0", "text_config.rms_norm_eps: must be a number"},
        {"text_config.rms_norm_eps", "-1e-5", "rms_norm_eps"},
        {"text_config.mla_use_output_gate", "1", "must be true or false"},
        {"text_config.mla_use_output_gate", "false", NULL},
        {"text_config.latent_moe_use_norm", "false", NULL},
        {"text_config.q_lora_rank", "null", NULL},
        {"text_config.q_lora_rank", "-1", "q_lora_rank: must be an integer"},
        {"text_config.activation_situ_linear_beta", "null", NULL},
        {"text_config.routed_scaling_factor", "2.5", NULL},
        {"text_config.routed_scaling_factor", "0", "routed_scaling_factor: must be a number"},
        {"text_config.routed_expert_hidden_size", "40", "40 is not a multiple of 32"},
        {"text_config.routed_expert_hidden_size", "null", "routed_expert_hidden_size"},
        {"text_config.moe_intermediate_size", "33", "33 is not a multiple of 32"},
        {"text_config.num_experts_per_token", "25", "num_experts_per_token: 25 of num_experts 24"},
        {"text_config.num_experts_per_token", "24", NULL},
        {"text_config.first_k_dense_replace", "10",
         "first_k_dense_replace: 10 of num_hidden_layers 9"},
        {"text_config.first_k_dense_replace", "0", NULL},
        {"text_config.num_shared_experts", "0", "num_shared_experts: must be an integer"},
        /* exp(16 |b|) must stay inside f32: 16 * 5.4375 = 87. */
        {"text_config.linear_attn_config.gate_lower_bound", "-5.4375", NULL},
        {"text_config.linear_attn_config.gate_lower_bound", "-5.5", "gate_lower_bound: must be"},
        {"text_config.linear_attn_config.gate_lower_bound", "0", "gate_lower_bound: must be"},
        {"text_config.linear_attn_config.gate_lower_bound", "5", "gate_lower_bound: must be"},
        {"text_config.linear_attn_config.short_conv_kernel_size", "1", "short_conv_kernel_size"},
        {"text_config.linear_attn_config.head_dim", "1e9", "linear_attn_config.head_dim"},
        {"bos_token_id", "385", "bos_token_id: 385 at the top, 384 in text_config"},
        {"bos_token_id", "null", NULL},
        {"eos_token_id", "[386]", "eos_token_id: must be an integer"},
        {"text_config.vocab_size", "386", "is outside the vocabulary of 386"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(cases[i].path, cases[i].value, cases[i].part);
}

static void layer_lists(void **state)
{
    (void)state;
#define LINEAR "text_config.linear_attn_config."
    static const struct {
        const char *path, *value, *part;
    } cases[] = {
        {LINEAR "kda_layers", "[1,2,3,5,6]", "layer 7 is in neither"},
        {LINEAR "kda_layers", "[1,2,3,5,6,7,8]", "kda_layers: layer 8 is listed twice"},
        {LINEAR "kda_layers", "[1,2,3,5,6,7,7]", "kda_layers: layer 7 is listed twice"},
        {LINEAR "kda_layers", "[0,1,2,3,5,6,7]", "0 is not a layer number from 1 to 9"},
        {LINEAR "kda_layers", "[1,2,3,5,6,10]", "10 is not a layer number from 1 to 9"},
        {LINEAR "kda_layers", "[1,2,3,5,6,7.5]", "7.5 is not a layer number"},
        {LINEAR "kda_layers", "[1,2,3,5,6,\"7\"]", "\"7\" is not a layer number"},
        {LINEAR "kda_layers", "7", "must be an array"},
        {LINEAR "full_attn_layers", "[]", "layer 4 is in neither"},
        {LINEAR "kda_layers", "[7,6,5,3,2,1]", NULL}, /* any order */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(cases[i].path, cases[i].value, cases[i].part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_values),
        cmocka_unit_test(required_keys),
        cmocka_unit_test(keys_that_may_be_absent),
        cmocka_unit_test(other_families),
        cmocka_unit_test(refused_before_anything_is_read),
        cmocka_unit_test(flat_config),
        cmocka_unit_test(unsupported_values),
        cmocka_unit_test(types_and_ranges),
        cmocka_unit_test(layer_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
