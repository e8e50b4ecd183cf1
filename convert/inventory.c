/* The tensor table of spec 2.2 as code: one call a tensor, in the order of trunk.bin.
 *
 * The order inside a layer is the order of use in a token (mix, norm, attention, mix, norm, FFN), so
 * that a trunk streamed through a ring is consumed front to back. Everything that depends on a
 * tensor's name is decided here and nowhere else: group, released dtype and shape, and whether low
 * bits are allowed. */
#include "convert/inventory.h"

#include <stdio.h>
#include <string.h>

struct emit {
    int (*fn)(void *ctx, const struct sl_item *it);
    void *ctx;
    enum sl_form form;
    int layer;
    int rc;
};

enum { KEEP = 0, LOW = 1 }; /* may --trunk store it at low bits? */

/* dims: {a}, {a, b} or {a, b, c}; 0 ends the list. */
static void put(struct emit *e, enum sl_group group, const char *name, enum sl_dtype dtype,
                const int64_t dims[3], int quantize)
{
    if (e->rc) return;
    struct sl_item it = {.group = group, .dtype = dtype, .layer = e->layer, .quantize = quantize};
    if (e->layer < 0)
        snprintf(it.name, sizeof it.name, "%s", name);
    else
        snprintf(it.name, sizeof it.name, "model.layers.%d.%s", e->layer, name);
    while (it.n_dims < 3 && dims[it.n_dims]) {
        it.shape[it.n_dims] = dims[it.n_dims];
        it.n_dims++;
    }
    e->rc = e->fn(e->ctx, &it);
}

static void vec(struct emit *e, enum sl_group group, const char *name, enum sl_dtype dtype,
                int64_t n)
{
    put(e, group, name, dtype, (const int64_t[3]){n}, KEEP);
}
static void mat(struct emit *e, enum sl_group group, const char *name, int64_t rows, int64_t cols,
                int quantize)
{
    /* A single row (a score vector) is no matrix to quantise. */
    put(e, group, name, SL_DT_BF16, (const int64_t[3]){rows, cols}, quantize && rows > 1);
}

/* The two vectors of an attention residual, which are used as their product alone. */
static void put_mix(struct emit *e, enum sl_group group, const char *norm, const char *proj,
                    const char *score, int64_t hidden)
{
    if (e->form == SL_FORM_FUSED) {
        vec(e, group, score, SL_DT_F32, hidden);
        return;
    }
    vec(e, group, norm, SL_DT_BF16, hidden);
    mat(e, group, proj, 1, hidden, KEEP);
}

static void put_kda(struct emit *e, const struct sl_config *c)
{
    const enum sl_group g = SL_GROUP_KDA;
    int64_t dim = (int64_t)c->kda_heads * c->kda_head_dim;
    int64_t hidden = c->hidden_size;
    /* One value a head; the release pads it to the head width, and the pad must survive export. */
    int64_t a_log = c->kda_heads > c->kda_head_dim ? c->kda_heads : c->kda_head_dim;
    const int64_t conv[3] = {dim, 1, c->conv_kernel};
    mat(e, g, "self_attn.q_proj.weight", dim, hidden, LOW);
    mat(e, g, "self_attn.k_proj.weight", dim, hidden, LOW);
    mat(e, g, "self_attn.v_proj.weight", dim, hidden, LOW);
    put(e, g, "self_attn.q_conv1d.weight", SL_DT_F32, conv, KEEP);
    put(e, g, "self_attn.k_conv1d.weight", SL_DT_F32, conv, KEEP);
    put(e, g, "self_attn.v_conv1d.weight", SL_DT_F32, conv, KEEP);
    mat(e, g, "self_attn.f_a_proj.weight", c->kda_head_dim, hidden, KEEP);
    mat(e, g, "self_attn.f_b_proj.weight", dim, c->kda_head_dim, KEEP);
    mat(e, g, "self_attn.b_proj.weight", c->kda_heads, hidden, KEEP);
    if (e->form == SL_FORM_FUSED)
        vec(e, g, "self_attn.ssm_a", SL_DT_F32, c->kda_heads);
    else
        vec(e, g, "self_attn.A_log", SL_DT_F32, a_log);
    vec(e, g, "self_attn.dt_bias", SL_DT_F32, dim);
    mat(e, g, "self_attn.g_proj.weight", dim, hidden, LOW);
    vec(e, g, "self_attn.o_norm.weight", SL_DT_F32, c->kda_head_dim);
    mat(e, g, "self_attn.o_proj.weight", hidden, dim, LOW);
}

static void put_mla(struct emit *e, const struct sl_config *c)
{
    const enum sl_group g = SL_GROUP_MLA;
    int64_t hidden = c->hidden_size;
    int64_t q_rows = (int64_t)c->n_heads * (c->qk_nope_dim + c->qk_rope_dim);
    int64_t v_dim = (int64_t)c->n_heads * c->v_head_dim;
    if (c->q_lora_rank) {
        mat(e, g, "self_attn.q_a_proj.weight", c->q_lora_rank, hidden, LOW);
        vec(e, g, "self_attn.q_a_layernorm.weight", SL_DT_BF16, c->q_lora_rank);
        mat(e, g, "self_attn.q_b_proj.weight", q_rows, c->q_lora_rank, LOW);
    } else {
        mat(e, g, "self_attn.q_proj.weight", q_rows, hidden, LOW);
    }
    mat(e, g, "self_attn.kv_a_proj_with_mqa.weight", c->kv_lora_rank + c->qk_rope_dim, hidden, LOW);
    vec(e, g, "self_attn.kv_a_layernorm.weight", SL_DT_BF16, c->kv_lora_rank);
    mat(e, g, "self_attn.kv_b_proj.weight", (int64_t)c->n_heads * (c->qk_nope_dim + c->v_head_dim),
        c->kv_lora_rank, LOW);
    if (c->mla_output_gate) mat(e, g, "self_attn.g_proj.weight", v_dim, hidden, LOW);
    mat(e, g, "self_attn.o_proj.weight", hidden, v_dim, LOW);
}

static void put_dense(struct emit *e, const struct sl_config *c)
{
    mat(e, SL_GROUP_DENSE, "mlp.gate_proj.weight", c->intermediate_size, c->hidden_size, LOW);
    mat(e, SL_GROUP_DENSE, "mlp.up_proj.weight", c->intermediate_size, c->hidden_size, LOW);
    mat(e, SL_GROUP_DENSE, "mlp.down_proj.weight", c->hidden_size, c->intermediate_size, LOW);
}

static void put_moe(struct emit *e, const struct sl_config *c)
{
    int64_t hidden = c->hidden_size;
    int64_t shared = (int64_t)c->n_shared_experts * c->moe_intermediate_size;
    mat(e, SL_GROUP_ROUTER, "block_sparse_moe.gate.weight", c->n_experts, hidden, KEEP);
    vec(e, SL_GROUP_ROUTER, "block_sparse_moe.gate.e_score_correction_bias", SL_DT_F32,
        c->n_experts);
    mat(e, SL_GROUP_LATENT, "block_sparse_moe.routed_expert_down_proj.weight", c->latent_size,
        hidden, LOW);
    if (c->latent_norm)
        vec(e, SL_GROUP_LATENT, "block_sparse_moe.routed_expert_norm.weight", SL_DT_BF16,
            c->latent_size);
    mat(e, SL_GROUP_LATENT, "block_sparse_moe.routed_expert_up_proj.weight", hidden, c->latent_size,
        LOW);
    mat(e, SL_GROUP_SHARED, "block_sparse_moe.shared_experts.gate_proj.weight", shared, hidden,
        LOW);
    mat(e, SL_GROUP_SHARED, "block_sparse_moe.shared_experts.up_proj.weight", shared, hidden, LOW);
    mat(e, SL_GROUP_SHARED, "block_sparse_moe.shared_experts.down_proj.weight", hidden, shared,
        LOW);
}

int sl_inventory_form(const struct sl_config *c, enum sl_form form,
                      int (*fn)(void *ctx, const struct sl_item *it), void *ctx)
{
    struct emit e = {.fn = fn, .ctx = ctx, .form = form};
    int64_t hidden = c->hidden_size;
    for (e.layer = 0; e.layer < c->n_layers && !e.rc; e.layer++) {
        /* Layer 0's attention mix is never used, but it is in the release and must come back. */
        put_mix(&e, SL_GROUP_NORM, "self_attention_res_norm.weight",
                "self_attention_res_proj.weight", "attn_res_score", hidden);
        vec(&e, SL_GROUP_NORM, "input_layernorm.weight", SL_DT_BF16, hidden);
        if (c->is_kda[e.layer])
            put_kda(&e, c);
        else
            put_mla(&e, c);
        put_mix(&e, SL_GROUP_NORM, "mlp_res_norm.weight", "mlp_res_proj.weight", "ffn_res_score",
                hidden);
        vec(&e, SL_GROUP_NORM, "post_attention_layernorm.weight", SL_DT_BF16, hidden);
        if (sl_config_is_moe(c, e.layer))
            put_moe(&e, c);
        else
            put_dense(&e, c);
    }
    e.layer = -1;
    mat(&e, SL_GROUP_EMBED, "model.embed_tokens.weight", c->vocab_size, hidden, LOW);
    put_mix(&e, SL_GROUP_HEAD, "model.output_attn_res_norm.weight",
            "model.output_attn_res_proj.weight", "model.output_res_score", hidden);
    vec(&e, SL_GROUP_HEAD, "model.norm.weight", SL_DT_BF16, hidden);
    mat(&e, SL_GROUP_HEAD, "lm_head.weight", c->vocab_size, hidden, LOW);
    return e.rc;
}

int sl_inventory_trunk(const struct sl_config *c, int (*fn)(void *ctx, const struct sl_item *it),
                       void *ctx)
{
    return sl_inventory_form(c, SL_FORM_RELEASED, fn, ctx);
}

int sl_inventory_experts(const struct sl_config *c, int layer, int expert,
                         int (*fn)(void *ctx, const struct sl_item *it), void *ctx)
{
    struct emit e = {.fn = fn, .ctx = ctx, .layer = layer};
    int64_t width = c->moe_intermediate_size;
    int64_t latent = c->latent_size;
    const struct {
        const char *name;
        int64_t rows, cols;
    } mats[3] = {{"w1", width, latent}, {"w3", width, latent}, {"w2", latent, width}};
    char name[64];
    for (int m = 0; m < 3; m++) {
        const int64_t packed[3] = {mats[m].rows, mats[m].cols / 2};
        const int64_t scale[3] = {mats[m].rows, mats[m].cols / 32};
        snprintf(name, sizeof name, "block_sparse_moe.experts.%d.%s.weight_packed", expert,
                 mats[m].name);
        put(&e, SL_GROUP_EXPERT, name, SL_DT_U8, packed, KEEP);
        snprintf(name, sizeof name, "block_sparse_moe.experts.%d.%s.weight_scale", expert,
                 mats[m].name);
        put(&e, SL_GROUP_EXPERT, name, SL_DT_U8, scale, KEEP);
    }
    return e.rc;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s);
    size_t m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

bool sl_item_accepts(const struct sl_item *it, const struct sl_config *c, int dtype, int n_dims,
                     const int64_t *shape)
{
    return dtype == (int)it->dtype && sl_item_accepts_shape(it, c, n_dims, shape);
}

bool sl_item_accepts_shape(const struct sl_item *it, const struct sl_config *c, int n_dims,
                           const int64_t *shape)
{
    /* [channels][1][taps] and [channels][taps] are the same bytes. */
    if (it->n_dims == 3 && n_dims == 2 && ends_with(it->name, "_conv1d.weight"))
        return shape[0] == it->shape[0] && shape[1] == it->shape[2];
    if (n_dims != it->n_dims) return false;
    if (ends_with(it->name, ".A_log"))
        return shape[0] >= c->kda_heads && shape[0] <= 1 << 20; /* the rest is padding */
    for (int i = 0; i < n_dims; i++)
        if (shape[i] != it->shape[i]) return false;
    return true;
}

const char *sl_group_name(enum sl_group g)
{
    static const char *const names[SL_N_GROUPS] = {
        [SL_GROUP_KDA] = "kda",       [SL_GROUP_MLA] = "mla",       [SL_GROUP_LATENT] = "latent",
        [SL_GROUP_SHARED] = "shared", [SL_GROUP_ROUTER] = "router", [SL_GROUP_DENSE] = "dense",
        [SL_GROUP_NORM] = "norm",     [SL_GROUP_EMBED] = "embed",   [SL_GROUP_HEAD] = "head",
        [SL_GROUP_EXPERT] = "expert", [SL_GROUP_VISION] = "vision",
    };
    return (unsigned)g < SL_N_GROUPS ? names[g] : "?";
}
