/* Binding: names of the pack to the matrices of the graph, every shape checked.
 *
 * Shapes follow from the config alone; a tensor of another shape is refused by the trunk reader, which
 * names it. Once a model is open the graph multiplies without looking at a size again.
 *
 * Folded here, once, in one block of the arena:
 *   attn_mix, ffn_mix, out_mix   norm.weight * proj.weight, one f32 product an element (spec 3.2)
 *   exp_A                        exp(A_log[head]) by the C reference of kernels/: plain C arithmetic
 *                                in a fixed order, so the same bits on every machine. libm's expf may
 *                                differ in the last bit from one libc to the next, and the decay is
 *                                exponential in it.
 * A pack made from GGUF holds these products already (mixes, -exp(A_log)): they are bound as they are.
 * A_log is per HEAD although its stored length tempts to read it per channel; the rest is padding.
 * Test: golden/test_golden_tiny (kda_state). */
#include "runtime/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "kernels/kernels.h"

#define ALIGN       64
#define KERNEL_TAPS 8  /* most taps that the conv kernel takes */
#define LAYER_PARTS 11 /* most matrices of a layer that stream */
#define MODEL_FILE  "pack.json"

/* Carves the model's own block; base NULL only counts. */
struct carver {
    unsigned char *base;
    uint64_t used;
};

static void *carve(struct carver *c, uint64_t bytes)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += sl_align_up(bytes, ALIGN);
    return p;
}

static uint64_t own_bytes(const struct sl_config *c)
{
    struct carver count = {NULL, 0};
    carve(&count, sizeof(struct sl_model));
    carve(&count, sizeof(struct sl_layer) * (uint64_t)c->n_layers);
    carve(&count, sizeof(struct sl_stream_part) * ((uint64_t)c->n_layers * LAYER_PARTS + 1));
    for (int l = 0; l < c->n_layers; l++) {
        if (l) carve(&count, sizeof(float) * (uint64_t)c->hidden_size);
        carve(&count, sizeof(float) * (uint64_t)c->hidden_size);
        if (c->is_kda[l]) carve(&count, sizeof(float) * (uint64_t)c->kda_heads);
    }
    carve(&count, sizeof(float) * (uint64_t)c->hidden_size);
    return count.used;
}

uint64_t sl_model_bytes(const struct sl_pack *p)
{
    return own_bytes(&p->cfg);
}

/* One open in progress: after the first failure the other calls do nothing. */
struct binder {
    const struct sl_pack *pack; /* NULL for one layer from another place: nothing streams there */
    const struct sl_weight_source *from;
    const struct sl_config *c;
    struct carver own;
    struct sl_kernels ref;
    struct sl_err *err;
    int rc;
    int layer; /* -1: names are global */
    struct sl_stream_part *parts;
    int n_parts, segment;
};

struct trunk_source {
    const struct sl_trunk *trunk;
    const struct sl_pack *pack;
};

static const char *full_name(const struct binder *b, char buf[256], const char *name)
{
    if (b->layer < 0)
        snprintf(buf, 256, "%s", name);
    else
        snprintf(buf, 256, "model.layers.%d.%s", b->layer, name);
    return buf;
}

static void bind_mat(struct binder *b, const char *name, int64_t rows, int64_t cols,
                     struct sl_mat *out)
{
    char buf[256];
    if (!b->rc)
        b->rc = b->from->mat(b->from->ctx, full_name(b, buf, name), rows, cols, out, b->err);
}

/* The next in the order of use: called for each matrix of a layer that may stream, when all are bound. */
static void then(struct binder *b, const char *name, struct sl_mat *m)
{
    char buf[256];
    if (b->rc || m->codes) return;
    const struct sl_tensor *t = sl_pack_find(b->pack, full_name(b, buf, name));
    b->parts[b->n_parts++] = (struct sl_stream_part){
        .tensor = t, .group = sl_trunk_row_group(b->pack, t), .segment = b->segment};
    m->stream = b->n_parts;
}

static void bind_vec(struct binder *b, const char *name, int64_t n, const float **out)
{
    char buf[256];
    if (!b->rc) b->rc = b->from->vec(b->from->ctx, full_name(b, buf, name), n, out, b->err);
}

static bool has(const struct binder *b, const char *name)
{
    char buf[256];
    return b->from->has(b->from->ctx, full_name(b, buf, name));
}

/* score: the product, in packs that hold it instead of the pair. */
static void bind_mix(struct binder *b, const char *norm_name, const char *proj_name,
                     const char *score, const float **out)
{
    const float *norm = NULL;
    const float *proj = NULL;
    if (!b->rc && has(b, score)) {
        bind_vec(b, score, b->c->hidden_size, out);
        return;
    }
    bind_vec(b, norm_name, b->c->hidden_size, &norm);
    bind_vec(b, proj_name, b->c->hidden_size, &proj);
    if (b->rc) return;
    float *w = carve(&b->own, sizeof(float) * (uint64_t)b->c->hidden_size);
    for (int i = 0; i < b->c->hidden_size; i++) w[i] = norm[i] * proj[i];
    *out = w;
}

static void bind_kda(struct binder *b, struct sl_kda_weights *w)
{
    const struct sl_config *c = b->c;
    const int64_t hidden = c->hidden_size;
    const int64_t channels = (int64_t)c->kda_heads * c->kda_head_dim;
    bind_mat(b, "self_attn.q_proj.weight", channels, hidden, &w->q);
    bind_mat(b, "self_attn.k_proj.weight", channels, hidden, &w->k);
    bind_mat(b, "self_attn.v_proj.weight", channels, hidden, &w->v);
    bind_mat(b, "self_attn.f_a_proj.weight", c->kda_head_dim, hidden, &w->f_a);
    bind_mat(b, "self_attn.f_b_proj.weight", channels, c->kda_head_dim, &w->f_b);
    bind_mat(b, "self_attn.b_proj.weight", c->kda_heads, hidden, &w->b);
    bind_mat(b, "self_attn.g_proj.weight", channels, hidden, &w->g);
    bind_mat(b, "self_attn.o_proj.weight", hidden, channels, &w->o);
    then(b, "self_attn.q_proj.weight", &w->q);
    then(b, "self_attn.k_proj.weight", &w->k);
    then(b, "self_attn.v_proj.weight", &w->v);
    then(b, "self_attn.g_proj.weight", &w->g);
    then(b, "self_attn.o_proj.weight", &w->o);
    bind_vec(b, "self_attn.q_conv1d.weight", channels * c->conv_kernel, &w->conv[0]);
    bind_vec(b, "self_attn.k_conv1d.weight", channels * c->conv_kernel, &w->conv[1]);
    bind_vec(b, "self_attn.v_conv1d.weight", channels * c->conv_kernel, &w->conv[2]);
    bind_vec(b, "self_attn.dt_bias", channels, &w->dt_bias);
    bind_vec(b, "self_attn.o_norm.weight", c->kda_head_dim, &w->o_norm);
    const float *A_log = NULL;
    bool fused = !b->rc && has(b, "self_attn.ssm_a");
    bind_vec(b, fused ? "self_attn.ssm_a" : "self_attn.A_log", c->kda_heads, &A_log);
    if (b->rc) return;
    float *exp_A = carve(&b->own, sizeof(float) * (uint64_t)c->kda_heads);
    if (fused)
        for (int h = 0; h < c->kda_heads; h++) exp_A[h] = -A_log[h];
    else
        b->ref.exp(exp_A, A_log, c->kda_heads);
    w->exp_A = exp_A;
}

static void bind_mla(struct binder *b, struct sl_mla_weights *w)
{
    const struct sl_config *c = b->c;
    const int64_t hidden = c->hidden_size;
    const int64_t q_rows = (int64_t)c->n_heads * (c->qk_nope_dim + c->qk_rope_dim);
    const int64_t v_rows = (int64_t)c->n_heads * c->v_head_dim;
    if (c->q_lora_rank) {
        bind_mat(b, "self_attn.q_a_proj.weight", c->q_lora_rank, hidden, &w->q_a);
        bind_vec(b, "self_attn.q_a_layernorm.weight", c->q_lora_rank, &w->q_a_norm);
        bind_mat(b, "self_attn.q_b_proj.weight", q_rows, c->q_lora_rank, &w->q_b);
    } else {
        bind_mat(b, "self_attn.q_proj.weight", q_rows, hidden, &w->q_b);
    }
    bind_mat(b, "self_attn.kv_a_proj_with_mqa.weight", c->kv_lora_rank + c->qk_rope_dim, hidden,
             &w->kv_a);
    bind_vec(b, "self_attn.kv_a_layernorm.weight", c->kv_lora_rank, &w->kv_a_norm);
    bind_mat(b, "self_attn.kv_b_proj.weight",
             (int64_t)c->n_heads * (c->qk_nope_dim + c->v_head_dim), c->kv_lora_rank, &w->kv_b);
    if (c->mla_output_gate) bind_mat(b, "self_attn.g_proj.weight", v_rows, hidden, &w->g);
    bind_mat(b, "self_attn.o_proj.weight", hidden, v_rows, &w->o);
    if (c->q_lora_rank) then(b, "self_attn.q_a_proj.weight", &w->q_a);
    then(b, "self_attn.kv_a_proj_with_mqa.weight", &w->kv_a);
    if (c->mla_output_gate) then(b, "self_attn.g_proj.weight", &w->g);
    then(b, c->q_lora_rank ? "self_attn.q_b_proj.weight" : "self_attn.q_proj.weight", &w->q_b);
    then(b, "self_attn.kv_b_proj.weight", &w->kv_b);
    then(b, "self_attn.o_proj.weight", &w->o);
}

static void bind_ffn(struct binder *b, const char *stem, int64_t width, struct sl_ffn_weights *w)
{
    char name[128];
    snprintf(name, sizeof name, "%s.gate_proj.weight", stem);
    bind_mat(b, name, width, b->c->hidden_size, &w->gate);
    then(b, name, &w->gate);
    snprintf(name, sizeof name, "%s.up_proj.weight", stem);
    bind_mat(b, name, width, b->c->hidden_size, &w->up);
    then(b, name, &w->up);
    snprintf(name, sizeof name, "%s.down_proj.weight", stem);
    bind_mat(b, name, b->c->hidden_size, width, &w->down);
    then(b, name, &w->down);
}

static void bind_moe(struct binder *b, struct sl_layer *w)
{
    const struct sl_config *c = b->c;
    bind_mat(b, "block_sparse_moe.gate.weight", c->n_experts, c->hidden_size, &w->router);
    bind_vec(b, "block_sparse_moe.gate.e_score_correction_bias", c->n_experts, &w->router_bias);
    bind_mat(b, "block_sparse_moe.routed_expert_down_proj.weight", c->latent_size, c->hidden_size,
             &w->latent_down);
    if (c->latent_norm)
        bind_vec(b, "block_sparse_moe.routed_expert_norm.weight", c->latent_size, &w->latent_norm);
    bind_mat(b, "block_sparse_moe.routed_expert_up_proj.weight", c->hidden_size, c->latent_size,
             &w->latent_up);
    then(b, "block_sparse_moe.routed_expert_down_proj.weight", &w->latent_down);
    b->segment++; /* what comes when the experts of the whole chunk are known */
    bind_ffn(b, "block_sparse_moe.shared_experts",
             (int64_t)c->n_shared_experts * c->moe_intermediate_size, &w->ffn);
    then(b, "block_sparse_moe.routed_expert_up_proj.weight", &w->latent_up);
}

static void bind_layer(struct binder *b, int l, struct sl_layer *w)
{
    const struct sl_config *c = b->c;
    b->layer = l;
    b->segment++;
    w->is_kda = c->is_kda[l];
    w->is_moe = sl_config_is_moe(c, l);
    w->opens_block = l % c->attn_res_block_size == 0;
    bind_vec(b, "input_layernorm.weight", c->hidden_size, &w->input_norm);
    bind_vec(b, "post_attention_layernorm.weight", c->hidden_size, &w->post_norm);
    /* Layer 0 ships this pair too, but nothing is banked before it. */
    if (l)
        bind_mix(b, "self_attention_res_norm.weight", "self_attention_res_proj.weight",
                 "attn_res_score", &w->attn_mix);
    bind_mix(b, "mlp_res_norm.weight", "mlp_res_proj.weight", "ffn_res_score", &w->ffn_mix);
    if (w->is_kda)
        bind_kda(b, &w->attn.kda);
    else
        bind_mla(b, &w->attn.mla);
    if (w->is_moe)
        bind_moe(b, w);
    else
        bind_ffn(b, "mlp", c->intermediate_size, &w->ffn);
}

static void bind_globals(struct binder *b, struct sl_model *m)
{
    const struct sl_config *c = b->c;
    b->layer = -1;
    bind_mat(b, "model.embed_tokens.weight", c->vocab_size, c->hidden_size, &m->embed);
    m->embed_tensor = sl_pack_find(b->pack, "model.embed_tokens.weight");
    bind_mat(b, "lm_head.weight", c->vocab_size, c->hidden_size, &m->head);
    m->n_layer_parts = b->n_parts;
    b->segment++;
    then(b, "lm_head.weight", &m->head);
    m->n_parts = b->n_parts;
    bind_vec(b, "model.norm.weight", c->hidden_size, &m->final_norm);
    bind_mix(b, "model.output_attn_res_norm.weight", "model.output_attn_res_proj.weight",
             "model.output_res_score", &m->out_mix);
}

/* What the arithmetic needs beyond the general bounds of a config. */
static int check_shapes(const struct sl_pack *p, struct sl_err *err)
{
    const struct sl_config *c = &p->cfg;
    if (c->conv_kernel > KERNEL_TAPS)
        return sl_fail(err, SL_E_PACK, MODEL_FILE, "conv_kernel",
                       "%d taps; this build computes at most %d", c->conv_kernel, KERNEL_TAPS);
    for (int l = 0; l < c->n_layers; l++)
        if (sl_config_is_moe(c, l) && (p->bank_of[l] < 0 || p->bank_of[l] >= p->n_banks))
            return sl_fail(err, SL_E_PACK, MODEL_FILE, "banks",
                           "layer %d has routed experts, but no bank", l);
    return 0;
}

static int trunk_mat(void *ctx, const char *name, int64_t rows, int64_t cols, struct sl_mat *out,
                     struct sl_err *err)
{
    return sl_trunk_mat(((const struct trunk_source *)ctx)->trunk, name, rows, cols, out, err);
}

static int trunk_vec(void *ctx, const char *name, int64_t n, const float **out, struct sl_err *err)
{
    return sl_trunk_vec(((const struct trunk_source *)ctx)->trunk, name, n, out, err);
}

static bool trunk_has(void *ctx, const char *name)
{
    return sl_pack_find(((const struct trunk_source *)ctx)->pack, name);
}

int sl_model_bind_layer(struct sl_layer *w, int layer, const struct sl_config *c,
                        const struct sl_weight_source *from, void *own, struct sl_err *err)
{
    struct binder b = {.from = from, .c = c, .own = {own, 0}, .err = err};
    memset(w, 0, sizeof *w);
    sl_kernels_init(&b.ref, 0);
    bind_layer(&b, layer, w);
    return b.rc;
}

uint64_t sl_model_layer_bytes(const struct sl_config *c)
{
    struct carver count = {NULL, 0};
    for (int i = 0; i < 2; i++) carve(&count, sizeof(float) * (uint64_t)c->hidden_size);
    carve(&count, sizeof(float) * (uint64_t)c->kda_heads);
    return count.used;
}

int sl_model_open(struct sl_model **out, const struct sl_pack *p, const struct sl_trunk *t,
                  struct sl_arena *arena, struct sl_err *err)
{
    *out = NULL;
    int rc = check_shapes(p, err);
    if (rc) return rc;
    const size_t mark = sl_arena_mark(arena);
    const uint64_t bytes = own_bytes(&p->cfg);
    struct trunk_source trunk = {t, p};
    const struct sl_weight_source from = {&trunk, trunk_mat, trunk_vec, trunk_has};
    struct binder b = {.pack = p, .from = &from, .c = &p->cfg, .err = err};
    b.own.base = sl_arena_alloc(arena, bytes, ALIGN);
    if (!b.own.base)
        return sl_fail(err, SL_E_BUDGET, NULL, "model tables", "%llu bytes do not fit the arena",
                       (unsigned long long)bytes);
    memset(b.own.base, 0, bytes);
    sl_kernels_init(&b.ref, 0);
    struct sl_model *m = carve(&b.own, sizeof *m);
    m->pack = p;
    m->cfg = p->cfg;
    m->trunk = t;
    m->layers = carve(&b.own, sizeof *m->layers * (uint64_t)p->cfg.n_layers);
    m->parts = carve(&b.own, sizeof *m->parts * ((uint64_t)p->cfg.n_layers * LAYER_PARTS + 1));
    b.parts = m->parts;
    for (int l = 0; l < p->cfg.n_layers && !b.rc; l++) bind_layer(&b, l, &m->layers[l]);
    bind_globals(&b, m);
    if (b.rc) {
        sl_arena_release(arena, mark);
        return b.rc;
    }
    *out = m;
    return 0;
}
