/* The tables of spec 9.1 and 9.2.
 *
 * What GGUF does not say is what the family fixes: the eps of the two inner MLA norms and of the L2
 * norm (spec 3.0), every layer from leading_dense_block_count on being MoE, and as many KDA heads as
 * MLA heads. Two fields are told by which tensors are there: the output gate of MLA and the norm of the
 * routed sum. */
#include "convert/gguf_model.h"

#include <stdio.h>
#include <string.h>

#include "offload/pack_layout.h"

#define P "kimi-k3."

/* ---- hyper-parameters ------------------------------------------------------------------------------ */

enum kind { KIND_INT, KIND_F64, KIND_BOOL };

struct key {
    const char *key, *field;
    size_t at;
    enum kind kind;
    bool needed;
};
#define KEY(key, field, kind, needed)                                                              \
    {                                                                                              \
        P key, #field, offsetof(struct sl_config, field), kind, needed                             \
    }

static const struct key keys[] = {
    KEY("block_count", n_layers, KIND_INT, true),
    KEY("context_length", max_position, KIND_INT, true),
    KEY("embedding_length", hidden_size, KIND_INT, true),
    KEY("feed_forward_length", intermediate_size, KIND_INT, true),
    KEY("attention.head_count", n_heads, KIND_INT, true),
    KEY("attention.layer_norm_rms_epsilon", rms_norm_eps, KIND_F64, true),
    KEY("attention.q_lora_rank", q_lora_rank, KIND_INT, false),
    KEY("attention.kv_lora_rank", kv_lora_rank, KIND_INT, true),
    KEY("attention.value_length_mla", v_head_dim, KIND_INT, true),
    KEY("rope.dimension_count", qk_rope_dim, KIND_INT, true),
    KEY("ssm.conv_kernel", conv_kernel, KIND_INT, true),
    KEY("kda.head_dim", kda_head_dim, KIND_INT, true),
    KEY("kda.gate_lower_bound", gate_lower_bound, KIND_F64, false),
    KEY("expert_count", n_experts, KIND_INT, true),
    KEY("expert_used_count", top_k, KIND_INT, true),
    KEY("expert_feed_forward_length", moe_intermediate_size, KIND_INT, true),
    KEY("expert_shared_count", n_shared_experts, KIND_INT, true),
    KEY("leading_dense_block_count", first_k_dense, KIND_INT, false),
    KEY("expert_weights_scale", routed_scaling_factor, KIND_F64, false),
    KEY("expert_weights_norm", renormalize, KIND_BOOL, false),
    KEY("expert_latent_length", latent_size, KIND_INT, true),
    KEY("activation.situ_beta", situ_beta, KIND_F64, true),
    KEY("activation.situ_linear_beta", situ_linear_beta, KIND_F64, true),
    KEY("attn_res.block_size", attn_res_block_size, KIND_INT, true),
};
#define N_KEYS (sizeof keys / sizeof *keys)

static int read_key(struct sl_config *c, const struct sl_gguf *g, const struct key *k,
                    struct sl_err *err)
{
    char *at = (char *)c + k->at;
    double min = 0;
    double max = 1;
    if (k->kind == KIND_BOOL) return sl_gguf_bool(g, k->key, k->needed, (bool *)at, err);
    sl_config_bounds(k->field, &min, &max);
    if (k->kind == KIND_F64) return sl_gguf_f64(g, k->key, k->needed, min, max, (double *)at, err);
    int64_t n = *(int *)at; /* its default, where the key is absent */
    int rc = sl_gguf_int(g, k->key, k->needed, (int64_t)min, (int64_t)max, &n, err);
    if (!rc) *(int *)at = (int)n;
    return rc;
}

static int check_arch(const struct sl_gguf *g, struct sl_err *err)
{
    const char *s = NULL;
    uint64_t n = 0;
    int rc = sl_gguf_str(g, "general.architecture", true, &s, &n, err);
    if (rc) return rc;
    if (n == strlen(SL_GGUF_ARCH) && !memcmp(s, SL_GGUF_ARCH, n)) return 0;
    return sl_fail(err, SL_E_SOURCE, g->files[0].name, "general.architecture",
                   "\"%.*s\", expected \"" SL_GGUF_ARCH "\"", n > 40 ? 40 : (int)n, s);
}

/* 0 KV heads mark a KDA layer. One number for all layers would be no hybrid model. */
static int read_kinds(struct sl_config *c, const struct sl_gguf *g, struct sl_err *err)
{
    const char *key = P "attention.head_count_kv";
    const struct sl_gguf_value *v = sl_gguf_value(g, key);
    const char *file = g->files[0].name;
    if (!v) return sl_fail(err, SL_E_SOURCE, file, key, "missing");
    if (v->type != SL_GGUF_ARRAY || v->n != (uint64_t)c->n_layers)
        return sl_fail(err, SL_E_SOURCE, file, key, "expected an array of %d integers",
                       c->n_layers);
    for (int l = 0; l < c->n_layers; l++) {
        int64_t n = -1;
        if (!sl_gguf_item_int(v, (uint64_t)l, &n) || n < 0 || n > c->n_heads)
            return sl_fail(err, SL_E_SOURCE, file, key, "layer %d: expected 0 (KDA) or 1 (MLA)", l);
        c->is_kda[l] = n == 0;
    }
    return 0;
}

static int read_vocab_size(struct sl_config *c, const struct sl_gguf *g, struct sl_err *err)
{
    const struct sl_gguf_value *tokens = sl_gguf_value(g, "tokenizer.ggml.tokens");
    const struct sl_gguf_tensor *embed = sl_gguf_find(g, "token_embd.weight");
    int64_t n = tokens && tokens->n < INT32_MAX ? (int64_t)tokens->n : 0;
    if (!n && embed) n = (int64_t)embed->ne[1];
    int rc = sl_gguf_int(g, P "vocab_size", n == 0, 1, 1 << 24, &n, err);
    if (!rc) c->vocab_size = (int)n;
    return rc;
}

static int read_token_id(const struct sl_gguf *g, const char *key, int *id, struct sl_err *err)
{
    int64_t n = -1;
    int rc = sl_gguf_int(g, key, false, 0, (1 << 24) - 1, &n, err);
    *id = (int)n;
    return rc;
}

static bool has_layer_tensor(const struct sl_gguf *g, int layer, const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    return sl_gguf_find(g, full);
}

static void read_tensors_say(struct sl_config *c, const struct sl_gguf *g)
{
    for (int l = 0; l < c->n_layers; l++) {
        if (!c->is_kda[l] && has_layer_tensor(g, l, "attn_gate.weight")) c->mla_output_gate = true;
        if (sl_config_is_moe(c, l) && has_layer_tensor(g, l, "ffn_routed_norm.weight"))
            c->latent_norm = true;
    }
}

int sl_gguf_config_read(struct sl_config *c, const struct sl_gguf *g, struct sl_err *err)
{
    int64_t key_length = 0;
    int64_t gating = 0;
    const char *file = g->files[0].name;
    memset(c, 0, sizeof *c);
    c->moe_layer_freq = 1;
    c->mla_norm_eps = 1e-6;
    c->l2_eps = 1e-6;
    c->gate_lower_bound = -5;
    c->routed_scaling_factor = 1;
    int rc = check_arch(g, err);
    for (size_t i = 0; i < N_KEYS && !rc; i++) rc = read_key(c, g, &keys[i], err);
    if (!rc) rc = read_kinds(c, g, err);
    if (!rc) rc = read_vocab_size(c, g, err);
    if (!rc) rc = sl_gguf_int(g, P "attention.key_length_mla", true, 1, 1 << 13, &key_length, err);
    if (!rc) rc = sl_gguf_int(g, P "expert_gating_func", true, 0, 255, &gating, err);
    if (rc) return rc;
    if (gating != 2)
        return sl_fail(err, SL_E_SOURCE, file, P "expert_gating_func",
                       "%lld is not supported, expected 2 (sigmoid)", (long long)gating);
    c->qk_nope_dim = (int)key_length - c->qk_rope_dim;
    c->kda_heads = c->n_heads;
    read_tensors_say(c, g);
    rc = read_token_id(g, "tokenizer.ggml.bos_token_id", &c->bos_id, err);
    if (!rc) rc = read_token_id(g, "tokenizer.ggml.eos_token_id", &c->eos_id, err);
    if (!rc) rc = read_token_id(g, "tokenizer.ggml.padding_token_id", &c->pad_id, err);
    return rc ? rc : sl_config_check(c, file, SL_E_SOURCE, err);
}

int sl_gguf_config_check(const struct sl_config *c, const char *file, struct sl_err *err)
{
    if (c->kda_heads != c->n_heads)
        return sl_fail(err, SL_E_SOURCE, file, "kda_heads",
                       "%d, with %d heads of MLA: GGUF has one number for both", c->kda_heads,
                       c->n_heads);
    if (c->moe_layer_freq != 1)
        return sl_fail(err, SL_E_SOURCE, file, "moe_layer_freq", "%d: GGUF knows 1 only",
                       c->moe_layer_freq);
    return 0;
}

void sl_gguf_config_put(struct sl_gguf_put *p, const struct sl_config *c)
{
    for (size_t i = 0; i < N_KEYS; i++) {
        const struct key *k = &keys[i];
        const char *at = (const char *)c + k->at;
        if (k->kind == KIND_F64)
            sl_gguf_put_f32(p, k->key, (float)*(const double *)at);
        else if (k->kind == KIND_BOOL)
            sl_gguf_put_bool(p, k->key, *(const bool *)at);
        else if (k->needed || *(const int *)at || k->at != offsetof(struct sl_config, q_lora_rank))
            sl_gguf_put_u32(p, k->key, (uint32_t) * (const int *)at);
    }
    sl_gguf_put_u32(p, P "vocab_size", (uint32_t)c->vocab_size);
    sl_gguf_put_u32(p, P "attention.key_length", (uint32_t)(c->kv_lora_rank + c->qk_rope_dim));
    sl_gguf_put_u32(p, P "attention.value_length", (uint32_t)c->kv_lora_rank);
    sl_gguf_put_u32(p, P "attention.key_length_mla", (uint32_t)(c->qk_nope_dim + c->qk_rope_dim));
    sl_gguf_put_u32(p, P "expert_gating_func", 2);
    sl_gguf_put_array(p, P "attention.head_count_kv", SL_GGUF_I32, (uint64_t)c->n_layers);
    for (int l = 0; l < c->n_layers; l++) sl_gguf_raw_u32(p->f, c->is_kda[l] ? 0 : 1);
}

/* ---- names ----------------------------------------------------------------------------------------- */

enum { KDA = 1, MLA = 2, ANY = 3 };

static const struct {
    const char *ours, *theirs;
    int layers; /* g_proj and q_proj are other tensors in other layers */
    bool f32;
} layer_names[] = {
    {"attn_res_score", "attn_res_score.weight", ANY, true},
    {"ffn_res_score", "ffn_res_score.weight", ANY, true},
    {"input_layernorm.weight", "attn_norm.weight", ANY, true},
    {"post_attention_layernorm.weight", "ffn_norm.weight", ANY, true},
    {"self_attn.q_proj.weight", "attn_q.weight", ANY, false},
    {"self_attn.k_proj.weight", "attn_k.weight", KDA, false},
    {"self_attn.v_proj.weight", "attn_v.weight", KDA, false},
    {"self_attn.q_conv1d.weight", "ssm_conv1d_q.weight", KDA, true},
    {"self_attn.k_conv1d.weight", "ssm_conv1d_k.weight", KDA, true},
    {"self_attn.v_conv1d.weight", "ssm_conv1d_v.weight", KDA, true},
    {"self_attn.f_a_proj.weight", "ssm_f_a.weight", KDA, false},
    {"self_attn.f_b_proj.weight", "ssm_f_b.weight", KDA, false},
    {"self_attn.b_proj.weight", "ssm_beta.weight", KDA, false},
    {"self_attn.ssm_a", "ssm_a", KDA, true},
    {"self_attn.dt_bias", "ssm_dt.bias", KDA, true},
    {"self_attn.g_proj.weight", "ssm_g.weight", KDA, false},
    {"self_attn.o_norm.weight", "ssm_norm.weight", KDA, true},
    {"self_attn.o_proj.weight", "attn_output.weight", ANY, false},
    {"self_attn.q_a_proj.weight", "attn_q_a.weight", MLA, false},
    {"self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight", MLA, true},
    {"self_attn.q_b_proj.weight", "attn_q_b.weight", MLA, false},
    {"self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight", MLA, false},
    {"self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight", MLA, true},
    {"self_attn.kv_b_proj.weight", "attn_kv_b.weight", MLA, false},
    {"self_attn.g_proj.weight", "attn_gate.weight", MLA, false},
    {"mlp.gate_proj.weight", "ffn_gate.weight", ANY, false},
    {"mlp.up_proj.weight", "ffn_up.weight", ANY, false},
    {"mlp.down_proj.weight", "ffn_down.weight", ANY, false},
    {"block_sparse_moe.gate.weight", "ffn_gate_inp.weight", ANY, true},
    {"block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias", ANY, true},
    {"block_sparse_moe.routed_expert_down_proj.weight", "ffn_routed_down.weight", ANY, false},
    {"block_sparse_moe.routed_expert_norm.weight", "ffn_routed_norm.weight", ANY, true},
    {"block_sparse_moe.routed_expert_up_proj.weight", "ffn_routed_up.weight", ANY, false},
    {"block_sparse_moe.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight", ANY, false},
    {"block_sparse_moe.shared_experts.up_proj.weight", "ffn_up_shexp.weight", ANY, false},
    {"block_sparse_moe.shared_experts.down_proj.weight", "ffn_down_shexp.weight", ANY, false},
};
static const struct {
    const char *ours, *theirs;
    bool f32;
} global_names[] = {
    {"model.embed_tokens.weight", "token_embd.weight", false},
    {"model.output_res_score", "output_res_score.weight", true},
    {"model.norm.weight", "output_norm.weight", true},
    {"lm_head.weight", "output.weight", false},
};

bool sl_gguf_name_item(const struct sl_config *c, const struct sl_item *it,
                       struct sl_gguf_name *out)
{
    memset(out, 0, sizeof *out);
    for (size_t i = 0; it->layer < 0 && i < sizeof global_names / sizeof *global_names; i++) {
        if (strcmp(global_names[i].ours, it->name) != 0) continue;
        snprintf(out->name, sizeof out->name, "%s", global_names[i].theirs);
        out->f32 = global_names[i].f32;
        return true;
    }
    if (it->layer < 0) return false;
    const char *suffix = it->name + strlen("model.layers.");
    suffix = strchr(suffix, '.') + 1; /* the inventory's own names */
    int kind = c->is_kda[it->layer] ? KDA : MLA;
    for (size_t i = 0; i < sizeof layer_names / sizeof *layer_names; i++) {
        if (!(layer_names[i].layers & kind) || strcmp(layer_names[i].ours, suffix) != 0) continue;
        snprintf(out->name, sizeof out->name, "blk.%d.%s", it->layer, layer_names[i].theirs);
        out->f32 = layer_names[i].f32;
        if (strcmp(suffix, "self_attn.kv_b_proj.weight") != 0) return true;
        snprintf(out->k_b, sizeof out->k_b, "blk.%d.attn_k_b.weight", it->layer);
        snprintf(out->v_b, sizeof out->v_b, "blk.%d.attn_v_b.weight", it->layer);
        return true;
    }
    return false;
}

void sl_gguf_name_experts(int layer, int m, char out[64])
{
    static const char *const names[SL_N_MATS] = {"gate", "up", "down"};
    snprintf(out, 64, "blk.%d.ffn_%s_exps.weight", layer, names[m]);
}
