/* The list of tensors against the release's own totals, which no code of ours produced, and against
 * the fixtures; and the prices that follow from it. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/strmap.h"
#include "convert/census.h"
#include "convert/safetensors.h"
#include "offload/pack_layout.h"
#include "tests/convert/checkpoint_copy.h"

struct sums {
    uint64_t tensors[SL_N_GROUPS], bytes[SL_N_GROUPS];
    uint64_t by_dtype[SL_DT_OTHER];
    uint64_t layer_bytes[SL_MAX_LAYERS];
    uint64_t layer_tensors[SL_MAX_LAYERS];
    uint64_t quantized;
    struct sl_strmap *names;
    int last_layer;
};

static uint64_t bytes_of(const struct sl_item *it)
{
    uint64_t n = (uint64_t)sl_dtype_bytes(it->dtype);
    for (int i = 0; i < it->n_dims; i++) n *= (uint64_t)it->shape[i];
    return n;
}

static int add(void *ctx, const struct sl_item *it)
{
    struct sums *s = ctx;
    s->tensors[it->group]++;
    s->bytes[it->group] += bytes_of(it);
    s->by_dtype[it->dtype]++;
    if (it->layer >= 0) {
        s->layer_bytes[it->layer] += bytes_of(it);
        s->layer_tensors[it->layer]++;
    }
    if (it->quantize) {
        s->quantized++;
        assert_int_equal(it->dtype, SL_DT_BF16);
        assert_int_equal(it->n_dims, 2);
        assert_true(it->shape[0] > 1);
    }
    if (it->group != SL_GROUP_EXPERT) { /* layers ascend, globals come last */
        int at = it->layer < 0 ? SL_MAX_LAYERS : it->layer;
        assert_true(at >= s->last_layer);
        s->last_layer = at;
    }
    if (s->names) assert_int_equal(sl_strmap_put(s->names, it->name, strlen(it->name), 0), 1);
    return 0;
}

static void take(struct sums *s, const struct sl_config *c)
{
    assert_int_equal(sl_inventory_trunk(c, add, s), 0);
    for (int l = 0; l < c->n_layers; l++)
        for (int e = 0; sl_config_is_moe(c, l) && e < c->n_experts; e++)
            assert_int_equal(sl_inventory_experts(c, l, e, add, s), 0);
}

/* Figures of spec 2.1 and 2.2: what is published about the release. */
static void released_totals(void **state)
{
    (void)state;
    struct sl_config c;
    struct sums s = {.names = sl_strmap_open(500000)};
    assert_non_null(s.names);
    sl_config_k3(&c);
    take(&s, &c);
    uint64_t tensors = 0;
    uint64_t bytes = 0;
    for (int g = 0; g < SL_N_GROUPS; g++) {
        tensors += s.tensors[g];
        bytes += s.bytes[g];
    }
    const uint64_t vision_tensors = 3 + 165;
    const uint64_t vision_bytes = 92289024 + 802428928;
    assert_int_equal(tensors + vision_tensors, 497220);
    assert_int_equal(sl_strmap_count(s.names), tensors); /* all names differ */
    assert_true(bytes + vision_bytes == 1560860324864u);
    assert_int_equal(s.by_dtype[SL_DT_U8], 494592);
    assert_int_equal(s.by_dtype[SL_DT_BF16] + vision_tensors, 2122);
    assert_int_equal(s.by_dtype[SL_DT_F32], 506);
    int mla = 0;
    for (int l = 0; l < 93; l++) {
        bool is_mla = l % 4 == 3 || l == 92;
        mla += is_mla;
        assert_int_equal(c.is_kda[l], !is_mla);
        uint64_t want = l == 0 ? 2341213184u : is_mla ? 16566684160u : 16990092800u;
        assert_true(s.layer_bytes[l] == want);
        assert_int_equal(s.layer_tensors[l], l == 0 ? 23 : is_mla ? 5398 : 5404);
    }
    assert_int_equal(mla, 24);
    assert_true(s.bytes[SL_GROUP_EMBED] + s.bytes[SL_GROUP_HEAD] == 4697663488u);
    sl_strmap_close(s.names);
}

static int find_quantize(void *ctx, const struct sl_item *it)
{
    const char **want = ctx; /* [0] end of the name, [1] set to "yes" or "no" */
    size_t n = strlen(it->name);
    size_t m = strlen(want[0]);
    if (n >= m && !strcmp(it->name + n - m, want[0])) want[1] = it->quantize ? "yes" : "no";
    return 0;
}

static void low_bits_only_where_allowed(void **state)
{
    (void)state;
    static const struct {
        const char *end, *answer;
    } cases[] = {
        {"self_attn.q_proj.weight", "yes"},
        {"self_attn.o_proj.weight", "yes"},
        {"self_attn.g_proj.weight", "yes"},
        {"self_attn.kv_a_proj_with_mqa.weight", "yes"},
        {"self_attn.q_b_proj.weight", "yes"},
        {"mlp.down_proj.weight", "yes"},
        {"shared_experts.up_proj.weight", "yes"},
        {"routed_expert_up_proj.weight", "yes"},
        {"embed_tokens.weight", "yes"},
        {"lm_head.weight", "yes"},
        {"block_sparse_moe.gate.weight", "no"},
        {"self_attn.f_a_proj.weight", "no"},
        {"self_attn.f_b_proj.weight", "no"},
        {"self_attn.b_proj.weight", "no"},
        {"self_attention_res_proj.weight", "no"},
        {"mlp_res_proj.weight", "no"},
        {"output_attn_res_proj.weight", "no"},
        {"self_attn.q_conv1d.weight", "no"},
        {"self_attn.A_log", "no"},
        {"model.norm.weight", "no"},
        {"gate.e_score_correction_bias", "no"},
        {"self_attn.dt_bias", "no"},
    };
    struct sl_config c;
    sl_config_k3(&c);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *ctx[2] = {cases[i].end, "absent"};
        assert_int_equal(sl_inventory_trunk(&c, find_quantize, ctx), 0);
        assert_string_equal(ctx[1], cases[i].answer);
    }
}

static int stop_at_third(void *ctx, const struct sl_item *it)
{
    (void)it;
    return ++*(int *)ctx == 3 ? 77 : 0;
}

static void a_non_zero_return_stops(void **state)
{
    (void)state;
    struct sl_config c;
    sl_config_k3(&c);
    int n = 0;
    assert_int_equal(sl_inventory_trunk(&c, stop_at_third, &n), 77);
    assert_int_equal(n, 3);
    n = 0;
    assert_int_equal(sl_inventory_experts(&c, 5, 895, stop_at_third, &n), 77);
    assert_int_equal(n, 3);
}

static void variants_of_the_family(void **state)
{
    (void)state;
    struct sl_config c;
    sl_config_k3(&c);
    c.q_lora_rank = 0;
    c.mla_output_gate = false;
    c.latent_norm = false;
    c.first_k_dense = 2;
    c.moe_layer_freq = 3; /* layers 3, 6, 9, ... are MoE */
    struct sums s = {.names = sl_strmap_open(200000)};
    assert_non_null(s.names);
    take(&s, &c);
    uint32_t v;
#define HAS(name) sl_strmap_get(s.names, name, strlen(name), &v)
    assert_true(HAS("model.layers.3.self_attn.q_proj.weight"));
    assert_false(HAS("model.layers.3.self_attn.q_a_proj.weight"));
    assert_false(HAS("model.layers.3.self_attn.q_b_proj.weight"));
    assert_false(HAS("model.layers.3.self_attn.g_proj.weight"));
    assert_true(HAS("model.layers.4.self_attn.g_proj.weight")); /* KDA always has its gate */
    assert_false(HAS("model.layers.3.block_sparse_moe.routed_expert_norm.weight"));
    assert_true(HAS("model.layers.3.block_sparse_moe.experts.0.w1.weight_packed"));
    assert_true(HAS("model.layers.1.mlp.gate_proj.weight"));
    assert_true(HAS("model.layers.4.mlp.gate_proj.weight"));
    assert_false(HAS("model.layers.4.block_sparse_moe.gate.weight"));
    assert_int_equal(s.tensors[SL_GROUP_ROUTER], 2 * 30);
    sl_strmap_close(s.names);
}

/* Census of a real folder against a plain sum over its headers. */
static void census_of_tiny(void **state)
{
    (void)state;
    struct sl_err err = {0};
    struct sl_source *s = NULL;
    struct sl_census k;
    if (sl_source_open(&s, "tests/fixtures/tiny-a", NULL, &err)) fail_msg("%s", err.text);
    assert_int_equal(sl_census_take(&k, s, &err), 0);
    uint64_t bytes = 0;
    uint64_t tensors = 0;
    for (int g = 0; g < SL_N_GROUPS; g++) {
        bytes += k.group[g].bytes;
        tensors += k.group[g].tensors;
    }
    bytes += k.small_bf16.bytes + k.small_f32.bytes;
    tensors += k.small_bf16.tensors + k.small_f32.tensors;
    assert_int_equal(bytes, s->payload_bytes); /* every byte is in one group */
    assert_int_equal(tensors, s->n_tensors);
    uint64_t dtype_bytes = 0;
    for (int d = 0; d < SL_DT_OTHER; d++) dtype_bytes += k.dtype[d].bytes;
    assert_int_equal(dtype_bytes, s->payload_bytes);
    assert_int_equal(k.experts, 8 * 24);
    /* w1, w3 [32][32] and w2 [32][32] at four bits and a scale byte per 32 */
    assert_int_equal(k.expert_bytes, 3u * (32 * 16 + 32));
    assert_int_equal(k.group[SL_GROUP_EXPERT].params, 8u * 24 * 3 * 32 * 32);
    assert_int_equal(k.kind[SL_LAYER_DENSE_KDA].layers, 1);
    assert_int_equal(k.kind[SL_LAYER_MOE_KDA].layers, 5);
    assert_int_equal(k.kind[SL_LAYER_MOE_MLA].layers, 3);
    assert_int_equal(k.kind[SL_LAYER_DENSE_MLA].layers, 0);
    sl_source_close(s);
}

static void prices(void **state)
{
    (void)state;
    struct sl_config c;
    struct sl_err err = {0};
    uint64_t mxfp4 = 0;
    uint64_t m4 = 0;
    uint64_t bf16 = 0;
    uint64_t t8 = 0;
    sl_config_k3(&c);
    assert_int_equal(sl_price_bank(&c, SL_FMT_MXFP4, &mxfp4, &err), 0);
    assert_int_equal(sl_price_bank(&c, SL_FMT_M4, &m4, &err), 0);
    assert_int_equal(sl_price_trunk(&c, SL_FMT_BF16, &bf16, &err), 0);
    assert_int_equal(sl_price_trunk(&c, SL_FMT_T8, &t8, &err), 0);
    /* 17,547,264 bytes an expert are 4284 pages exactly: no padding, then header and index. */
    assert_int_equal(17547264 % 4096, 0);
    assert_true(mxfp4 == (uint64_t)896 * 17547264 + 4096 + 896u * 128);
    assert_true(m4 < mxfp4);
    assert_true(m4 > (uint64_t)896 * (33030144 / 8 * 33 / 8)); /* 4.125 bits, and row exponents */
    assert_int_equal(m4 % 4096, 0);
    /* What the release holds beside experts and vision, each tensor rounded up to a page. */
    uint64_t raw = 1560860324864u - (uint64_t)82432 * 17547264 - 894717952;
    assert_true(bf16 >= raw && bf16 < raw + (uint64_t)(497220 - 494592) * 4096);
    assert_true(t8 < bf16 * 55 / 100 && t8 > bf16 / 2);
    assert_int_equal(sl_price_trunk(&c, SL_FMT_M4, &t8, &err), SL_E_ARG);
    assert_int_equal(sl_price_bank(&c, SL_FMT_T8, &m4, &err), SL_E_ARG);
}

static void names_of_enums(void **state)
{
    (void)state;
    for (int a = 0; a < SL_N_GROUPS; a++)
        for (int b = 0; b < a; b++)
            assert_string_not_equal(sl_group_name((enum sl_group)a),
                                    sl_group_name((enum sl_group)b));
    assert_string_equal(sl_group_name(SL_N_GROUPS), "?");
    assert_string_equal(sl_layer_kind_name(SL_N_LAYER_KINDS), "?");
    assert_string_equal(sl_dtype_name(SL_DT_OTHER), "?");
    assert_int_equal(sl_dtype_bytes(0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_totals),         cmocka_unit_test(low_bits_only_where_allowed),
        cmocka_unit_test(a_non_zero_return_stops), cmocka_unit_test(variants_of_the_family),
        cmocka_unit_test(census_of_tiny),          cmocka_unit_test(prices),
        cmocka_unit_test(names_of_enums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
