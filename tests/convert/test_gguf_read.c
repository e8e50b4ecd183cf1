/* GGUF in: every number of a file written by hand, every spelling, and files that lie. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "convert/gguf_model.h"
#include "convert/input.h"
#include "kernels/block_mxfp4.h"
#include "kernels/half.h"
#include "offload/pack.h"
#include "runtime/tokenizer.h"
#include "tests/convert/gguf_maker.h"
#include "tests/convert/pack_tree.h"

static struct pt_room room;

static int setup(void **state)
{
    (void)state;
    pt_open(&room);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    pt_close(&room);
    return 0;
}

/* ---- every number ---------------------------------------------------------------------------------- */

static const char *const names[][2] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.output_res_score", "output_res_score.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
    {"model.layers.0.attn_res_score", "blk.0.attn_res_score.weight"},
    {"model.layers.1.ffn_res_score", "blk.1.ffn_res_score.weight"},
    {"model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"},
    {"model.layers.1.post_attention_layernorm.weight", "blk.1.ffn_norm.weight"},
    {"model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight"},
    {"model.layers.0.self_attn.k_proj.weight", "blk.0.attn_k.weight"},
    {"model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight"},
    {"model.layers.0.self_attn.q_conv1d.weight", "blk.0.ssm_conv1d_q.weight"},
    {"model.layers.0.self_attn.k_conv1d.weight", "blk.0.ssm_conv1d_k.weight"},
    {"model.layers.0.self_attn.v_conv1d.weight", "blk.0.ssm_conv1d_v.weight"},
    {"model.layers.0.self_attn.f_a_proj.weight", "blk.0.ssm_f_a.weight"},
    {"model.layers.0.self_attn.f_b_proj.weight", "blk.0.ssm_f_b.weight"},
    {"model.layers.0.self_attn.b_proj.weight", "blk.0.ssm_beta.weight"},
    {"model.layers.0.self_attn.ssm_a", "blk.0.ssm_a"},
    {"model.layers.0.self_attn.dt_bias", "blk.0.ssm_dt.bias"},
    {"model.layers.0.self_attn.g_proj.weight", "blk.0.ssm_g.weight"},
    {"model.layers.0.self_attn.o_norm.weight", "blk.0.ssm_norm.weight"},
    {"model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight"},
    {"model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight"},
    {"model.layers.0.mlp.up_proj.weight", "blk.0.ffn_up.weight"},
    {"model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"},
    {"model.layers.1.self_attn.q_proj.weight", "blk.1.attn_q.weight"},
    {"model.layers.1.self_attn.kv_a_proj_with_mqa.weight", "blk.1.attn_kv_a_mqa.weight"},
    {"model.layers.1.self_attn.kv_a_layernorm.weight", "blk.1.attn_kv_a_norm.weight"},
    {"model.layers.1.self_attn.g_proj.weight", "blk.1.attn_gate.weight"},
    {"model.layers.1.self_attn.o_proj.weight", "blk.1.attn_output.weight"},
    {"model.layers.1.block_sparse_moe.gate.weight", "blk.1.ffn_gate_inp.weight"},
    {"model.layers.1.block_sparse_moe.gate.e_score_correction_bias", "blk.1.exp_probs_b.bias"},
    {"model.layers.1.block_sparse_moe.routed_expert_down_proj.weight",
     "blk.1.ffn_routed_down.weight"},
    {"model.layers.1.block_sparse_moe.routed_expert_norm.weight", "blk.1.ffn_routed_norm.weight"},
    {"model.layers.1.block_sparse_moe.routed_expert_up_proj.weight", "blk.1.ffn_routed_up.weight"},
    {"model.layers.1.block_sparse_moe.shared_experts.gate_proj.weight",
     "blk.1.ffn_gate_shexp.weight"},
    {"model.layers.1.block_sparse_moe.shared_experts.up_proj.weight", "blk.1.ffn_up_shexp.weight"},
    {"model.layers.1.block_sparse_moe.shared_experts.down_proj.weight",
     "blk.1.ffn_down_shexp.weight"},
};

/* Number i of a tensor's bytes. */
static float number(const struct sl_in_tensor *t, const uint8_t *p, uint64_t i)
{
    float f;
    if (t->dtype == SL_DT_BF16) return sl_bf16_to_f32(sl_le16(p + 2 * i));
    if (t->dtype == SL_DT_F16) return sl_f16_to_f32(sl_le16(p + 2 * i));
    if (t->dtype == SL_DT_T8) {
        uint64_t cols = (uint64_t)t->shape[1];
        const uint8_t *row = p + i / cols * (cols / 32 * 34);
        return (float)(int8_t)row[i % cols] *
               sl_f16_to_f32(sl_le16(row + cols + 2 * (i % cols / 32)));
    }
    uint32_t bits = sl_le32(p + 4 * i);
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint64_t count(const struct sl_in_tensor *t)
{
    uint64_t n = 1;
    for (int d = 0; d < t->n_dims; d++) n *= (uint64_t)t->shape[d];
    return n;
}

/* The tensor's bytes, read whole and again in odd pieces. */
static uint8_t *read_whole(const struct sl_input *in, const struct sl_in_tensor *t)
{
    struct sl_err err = {0};
    uint8_t *p = malloc(t->bytes);
    uint8_t *q = malloc(t->bytes);
    assert_true(p && q);
    if (in->ops->read(in, t, 0, p, t->bytes, &err)) fail_msg("%s", err.text);
    for (uint64_t at = 0; at < t->bytes; at += 37) {
        uint64_t n = t->bytes - at < 37 ? t->bytes - at : 37;
        assert_int_equal(in->ops->read(in, t, at, q + at, n, &err), 0);
    }
    assert_memory_equal(p, q, t->bytes);
    free(q);
    return p;
}

static void check_named(const struct sl_input *in, struct gm_model *m)
{
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        struct sl_in_tensor t;
        const char *theirs = names[k][1];
        uint64_t from = 0;
        if (!in->ops->find(in, names[k][0], &t)) fail_msg("no %s", names[k][0]);
        if (m->joint_qkv && strstr(names[k][0], "layers.0.self_attn.") &&
            (strstr(names[k][0], "q_proj") || strstr(names[k][0], "k_proj") ||
             strstr(names[k][0], "v_proj"))) {
            const char *which = strstr(names[k][0], "_proj") - 1;
            from = count(&t) * (*which == 'q' ? 0u : *which == 'k' ? 1u : 2u);
            theirs = "blk.0.attn_qkv.weight";
        }
        const struct gm_tensor *g = gm_find(m, theirs);
        /* f32 that was bf16 once is bf16 again where the checkpoint has bf16. */
        bool stays = strstr(theirs, "ssm_conv") || strstr(theirs, "ssm_a") ||
                     strstr(theirs, "ssm_dt") || strstr(theirs, "ssm_norm") ||
                     strstr(theirs, "res_score") || strstr(theirs, "exp_probs");
        int want = g->type == 0   ? (stays ? SL_DT_F32 : SL_DT_BF16)
                   : g->type == 1 ? SL_DT_F16
                   : g->type == 8 ? SL_DT_T8
                                  : SL_DT_BF16;
        assert_int_equal(t.dtype, want);
        uint8_t *p = read_whole(in, &t);
        for (uint64_t i = 0; i < count(&t); i++)
            if (number(&t, p, i) != gm_weight(theirs, from + i))
                fail_msg("%s [%llu]: %g, expected %g", names[k][0], (unsigned long long)i,
                         (double)number(&t, p, i), (double)gm_weight(theirs, from + i));
        free(p);
    }
}

static void check_kv_b(const struct sl_input *in, const struct gm_model *m)
{
    struct sl_in_tensor t;
    assert_true(in->ops->find(in, "model.layers.1.self_attn.kv_b_proj.weight", &t));
    assert_int_equal(t.dtype, SL_DT_BF16);
    assert_int_equal(t.shape[0], GM_HEADS * (GM_NOPE + GM_V));
    uint8_t *p = read_whole(in, &t);
    for (uint64_t h = 0; h < GM_HEADS; h++)
        for (uint64_t r = 0; r < GM_NOPE + GM_V; r++)
            for (uint64_t c = 0; c < GM_LORA; c++) {
                uint64_t row = h * (GM_NOPE + GM_V) + r;
                float want = m->whole_kv_b ? gm_weight("blk.1.attn_kv_b.weight", row * GM_LORA + c)
                             : r < GM_NOPE ? gm_weight("blk.1.attn_k_b.weight",
                                                       (h * GM_LORA + c) * GM_NOPE + r)
                                           : gm_weight("blk.1.attn_v_b.weight",
                                                       (h * GM_V + r - GM_NOPE) * GM_LORA + c);
                assert_true(number(&t, p, row * GM_LORA + c) == want);
            }
    free(p);
}

static void check_experts(const struct sl_input *in)
{
    static const char *const theirs[SL_N_MATS] = {
        "blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight", "blk.1.ffn_down_exps.weight"};
    uint8_t *scratch = malloc(in->scratch_bytes);
    assert_non_null(scratch);
    for (int e = 0; e < GM_EXPERTS; e++) {
        struct sl_in_expert x;
        struct sl_err err = {0};
        if (in->ops->read_expert(in, 1, e, scratch, &x, &err)) fail_msg("%s", err.text);
        for (int m = 0; m < SL_N_MATS; m++) {
            uint64_t n = (uint64_t)sl_mat_rows(&in->cfg, m) * (uint64_t)sl_mat_cols(&in->cfg, m);
            uint64_t from = (uint64_t)e * n;
            for (uint64_t i = 0; i < n; i++) {
                unsigned code = x.codes[m][i / 2] >> (i % 2 ? 4 : 0) & 15;
                assert_int_equal(code, gm_code(theirs[m], from + i));
                if (i % 32 == 0)
                    assert_int_equal(x.scales[m][i / 32], gm_scale(theirs[m], (from + i) / 32));
            }
        }
    }
    free(scratch);
}

static void check_vocab(const struct sl_input *in)
{
    struct sl_tokenizer *t;
    struct sl_err err = {0};
    struct sl_ids ids = {0};
    if (sl_tokenizer_open(&t, in->files_dir, GM_VOCAB, SL_E_SOURCE, &err)) fail_msg("%s", err.text);
    assert_int_equal(sl_tokenizer_n_ordinary(t), GM_ORDINARY);
    for (int b = 0; b < 256; b++) {
        size_t n;
        const char *s = sl_tokenizer_bytes(t, b, &n);
        assert_int_equal(n, 1);
        assert_int_equal((unsigned char)s[0], b);
    }
    const char text[] = "abc the<|open|>";
    assert_int_equal(sl_tokenizer_encode_markup(t, text, strlen(text), &ids, &err), 0);
    const int32_t want[] = {257, 258, 'h', 'e', GM_ORDINARY + 3};
    assert_int_equal(ids.n, 5);
    assert_memory_equal(ids.v, want, sizeof want);
    assert_int_equal(sl_tokenizer_eos(t), GM_ORDINARY + 1);
    sl_ids_free(&ids);
    sl_tokenizer_close(t);
}

static void open_and_check(int splits, int joint, int whole)
{
    struct gm_model m;
    char path[512];
    struct sl_input *in;
    struct sl_err err = {0};
    gm_model(&m, splits, joint, whole);
    gm_write(&m, room.dir, path);
    assert_true(sl_gguf_is(path));
    if (sl_input_open(&in, path, NULL, &err)) fail_msg("%s", err.text);
    const struct sl_config *c = &in->cfg;
    assert_int_equal(c->n_layers, 2);
    assert_true(c->is_kda[0] && !c->is_kda[1] && c->latent_norm && c->mla_output_gate);
    assert_int_equal(c->qk_nope_dim, GM_NOPE);
    assert_int_equal(c->eos_id, GM_ORDINARY + 2);
    assert_int_equal(c->bos_id, -1);
    assert_true(c->rms_norm_eps == 1e-5 && c->gate_lower_bound == -5 && c->mla_norm_eps == 1e-6);
    check_named(in, &m);
    check_kv_b(in, &m);
    check_experts(in);
    check_vocab(in);
    char files[80];
    snprintf(files, sizeof files, "%s", in->files_dir);
    sl_input_close(in);
    assert_int_equal(access(files, F_OK), -1); /* its own folder is gone */
    for (int i = 1; i <= splits; i++) {
        if (splits > 1)
            snprintf(path, sizeof path, "%s/tiny-%05d-of-%05d.gguf", room.dir, i, splits);
        unlink(path);
    }
    gm_model_free(&m);
}

static void test_every_number_is_served(void **state)
{
    (void)state;
    open_and_check(1, 0, 0);
    open_and_check(2, 0, 0);
    open_and_check(1, 1, 1);
}

/* The pack made of it: sound, and its experts are those of the file. */
static void test_converts_to_a_sound_pack(void **state)
{
    struct gm_model m;
    char path[512];
    struct sl_convert_opts o = pt_opts();
    struct sl_pack *p;
    struct sl_err err = {0};
    struct sl_verify_report r;
    (void)state;
    gm_model(&m, 2, 0, 0);
    gm_write(&m, room.dir, path);
    pt_convert(path, pt_path(&room, "pack"), &o);
    assert_int_equal(sl_pack_open(&p, pt_path(&room, "pack"), NULL, 0, &err), 0);
    assert_int_equal(sl_pack_verify(p, NULL, NULL, NULL, &r, &err), 0);
    assert_int_equal(r.records, GM_EXPERTS);
    assert_int_equal(sl_pack_find(p, "model.layers.0.mlp.down_proj.weight")->fmt, SL_FMT_T8);
    assert_int_equal(sl_pack_find(p, "model.layers.0.self_attn.k_proj.weight")->fmt, SL_FMT_F16);
    assert_int_equal(sl_pack_find(p, "model.output_res_score")->fmt, SL_FMT_F32);
    sl_pack_close(p);
    /* --free-source would remove files that only look like shards. */
    o.free_source = true;
    assert_int_equal(sl_convert(path, pt_path(&room, "no"), &o, NULL, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "GGUF files"));
    gm_model_free(&m);
}

/* ---- files that lie -------------------------------------------------------------------------------- */

static void write_bytes(const char *path, const struct gm_bytes *b, size_t n)
{
    FILE *f = fopen(path, "wbe");
    assert_non_null(f);
    assert_int_equal(fwrite(b->p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Opening up to the config: no folder is made, so thousands of them are quick. */
static int open_config(const char *path, struct sl_err *err)
{
    struct sl_gguf *g;
    struct sl_config c;
    int rc = sl_gguf_open(&g, path, err);
    if (rc) return rc;
    rc = sl_gguf_config_read(&c, g, err);
    sl_gguf_close(g);
    return rc;
}

static size_t header_bytes(const struct gm_model *m, const struct gm_bytes *b)
{
    size_t data = 0;
    for (int i = 0; i < m->n; i++)
        if (m->t[i].offset + m->t[i].data.n > data) data = m->t[i].offset + m->t[i].data.n;
    return b->n - data;
}

static void test_every_cut_is_refused(void **state)
{
    struct gm_model m;
    struct gm_bytes b;
    char path[512];
    (void)state;
    gm_model(&m, 1, 0, 0);
    gm_file(&m, 0, &b);
    snprintf(path, sizeof path, "%s/cut.gguf", room.dir);
    size_t header = header_bytes(&m, &b);
    for (size_t n = 0; n < b.n; n += n < header ? 1 : 501) {
        struct sl_err err = {0};
        write_bytes(path, &b, n);
        if (open_config(path, &err) != SL_E_SOURCE) fail_msg("%zu of %zu bytes: accepted", n, b.n);
        assert_non_null(strstr(err.text, "cut.gguf"));
    }
    write_bytes(path, &b, b.n);
    struct sl_err err = {0};
    assert_int_equal(open_config(path, &err), 0);
    gm_free(&b);
    gm_model_free(&m);
}

/* Any byte of the header changed: opened or refused in one line, nothing else (most worth under the
 * sanitizers). */
static void test_any_byte_may_change(void **state)
{
    struct gm_model m;
    struct gm_bytes b;
    char path[512];
    int refused = 0;
    (void)state;
    gm_model(&m, 1, 0, 0);
    gm_file(&m, 0, &b);
    snprintf(path, sizeof path, "%s/flip.gguf", room.dir);
    write_bytes(path, &b, b.n);
    size_t header = header_bytes(&m, &b);
    static const uint8_t change[] = {0x01, 0x80, 0xff};
    for (size_t i = 0; i < header; i++) {
        struct sl_err err = {0};
        FILE *f = fopen(path, "r+be");
        assert_non_null(f);
        uint8_t v = b.p[i] ^ change[i % 3];
        assert_int_equal(fseek(f, (long)i, SEEK_SET), 0);
        assert_int_equal(fwrite(&v, 1, 1, f), 1);
        assert_int_equal(fclose(f), 0);
        int rc = open_config(path, &err);
        if (rc) assert_int_equal(rc, SL_E_SOURCE);
        refused += rc != 0;
        f = fopen(path, "r+be");
        assert_non_null(f);
        assert_int_equal(fseek(f, (long)i, SEEK_SET), 0);
        assert_int_equal(fwrite(&b.p[i], 1, 1, f), 1);
        assert_int_equal(fclose(f), 0);
    }
    assert_true(refused > (int)header / 4);
    gm_free(&b);
    gm_model_free(&m);
}

static void expect_refused(struct gm_model *m, const char *what)
{
    char path[512];
    struct sl_input *in;
    struct sl_err err = {0};
    gm_write(m, room.dir, path);
    int rc = sl_input_open_gguf(&in, path, &err);
    if (!rc) sl_input_close(in);
    if (rc != SL_E_SOURCE || !strstr(err.text, what))
        fail_msg("code %d, \"%s\" does not say \"%s\"", rc, err.text, what);
    gm_model_free(m);
}

static void test_refusals_say_what_is_wrong(void **state)
{
    struct gm_model m;
    (void)state;
    gm_model(&m, 1, 0, 0);
    m.arch = "llama";
    expect_refused(&m, "general.architecture: \"llama\", expected \"kimi-k3\"");
    gm_model(&m, 1, 0, 0);
    gm_find(&m, "blk.0.attn_q.weight")->type = 12;
    expect_refused(&m, "blk.0.attn_q.weight: stored as Q4_K (12)");
    gm_model(&m, 1, 0, 0);
    gm_find(&m, "blk.0.attn_q.weight")->ne[1]--;
    expect_refused(&m, "blk.0.attn_q.weight: {32, 63, 1, 1}");
    gm_model(&m, 1, 0, 0);
    strcpy(gm_find(&m, "blk.0.attn_q.weight")->name, "blk.0.attn_k.weight");
    expect_refused(&m, "blk.0.attn_k.weight: is there twice");
    gm_model(&m, 1, 0, 0);
    strcpy(gm_find(&m, "blk.0.attn_q.weight")->name, "blk.0.attn_x.weight");
    expect_refused(&m, "blk.0.attn_q.weight: missing");
    gm_model(&m, 1, 0, 0);
    gm_find(&m, "blk.0.attn_q.weight")->offset += 16;
    expect_refused(&m, "not a multiple of 32");
    gm_model(&m, 1, 0, 0);
    gm_find(&m, "blk.0.attn_k.weight")->offset -= 32;
    expect_refused(&m, "blk.0.attn_k.weight: overlaps blk.0.attn_q.weight");
    gm_model(&m, 1, 0, 0);
    gm_find(&m, "blk.1.ffn_up_exps.weight")->type = 30;
    gm_find(&m, "blk.1.ffn_up_exps.weight")->ne[0] = 8; /* no longer than the blocks were */
    expect_refused(&m, "blk.1.ffn_up_exps.weight");
    gm_model(&m, 1, 0, 0);
    gm_find(&m, "blk.0.ffn_down.weight")->data.p[2 + 5] = 0x80; /* -128 comes from no encoder */
    char path[512];
    struct sl_convert_opts o = pt_opts();
    struct sl_err err = {0};
    gm_write(&m, room.dir, path);
    assert_int_equal(sl_convert(path, pt_path(&room, "q8"), &o, NULL, &err), SL_E_SOURCE);
    assert_non_null(strstr(err.text, "blk.0.ffn_down.weight: row 0, block 0: not a block of Q8_0"));
    gm_model_free(&m);
    gm_model(&m, 1, 0, 0);
    gm_find(&m, "blk.1.ffn_gate_exps.weight")->data.p[17] = 0xff; /* second block's scale is NaN */
    gm_write(&m, room.dir, path);
    assert_int_equal(sl_convert(path, pt_path(&room, "nan"), &o, NULL, &err), SL_E_SOURCE);
    assert_non_null(strstr(err.text, "blk.1.ffn_gate_exps.weight, expert 0: row 1, block 0"));
    gm_model_free(&m);
}

/* Leaving out any value: what misses it says so. */
static void test_missing_values(void **state)
{
    /* In the maker's order. Without leading_dense_block_count every layer is MoE, which the tensors
     * contradict; only the last one is missed by nothing. */
    static const char *const keys[] = {"general.architecture",
                                       "block_count",
                                       "context_length",
                                       "embedding_length",
                                       "feed_forward_length",
                                       "head_count",
                                       "head_count_kv",
                                       "rms_epsilon",
                                       "kv_lora_rank",
                                       "key_length_mla",
                                       "value_length_mla",
                                       "dimension_count",
                                       "conv_kernel",
                                       "kda.head_dim",
                                       "expert_count",
                                       "expert_used_count",
                                       "expert_feed_forward_length",
                                       "expert_shared_count",
                                       "blk.0.ffn_gate_inp.weight",
                                       "expert_gating_func",
                                       "expert_latent_length",
                                       "situ_beta",
                                       "situ_linear_beta",
                                       "attn_res.block_size",
                                       "tokenizer.ggml.model",
                                       "tokenizer.ggml.pre",
                                       "tokenizer.ggml.tokens",
                                       "tokenizer.ggml.token_type",
                                       NULL};
    char path[512];
    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct gm_model m;
        struct sl_input *in;
        struct sl_err err = {0};
        gm_model(&m, 1, 0, 0);
        m.drop_value = (int)i;
        gm_write(&m, room.dir, path);
        int rc = sl_input_open_gguf(&in, path, &err);
        if (!rc) sl_input_close(in);
        assert_int_equal(rc, keys[i] ? SL_E_SOURCE : 0);
        if (rc && (!strstr(err.text, "tiny.gguf") || !strstr(err.text, keys[i])))
            fail_msg("\"%s\" does not say \"%s\"", err.text, keys[i]);
        gm_model_free(&m);
    }
}

static void test_splits_must_belong_together(void **state)
{
    struct gm_model m;
    struct gm_bytes b;
    char first[512];
    char second[512];
    struct sl_err err = {0};
    (void)state;
    gm_model(&m, 2, 0, 0);
    gm_write(&m, room.dir, first);
    snprintf(second, sizeof second, "%s/tiny-00002-of-00002.gguf", room.dir);
    assert_int_equal(open_config(first, &err), 0);
    assert_int_equal(open_config(second, &err), 0); /* any split names the model */
    gm_file(&m, 0, &b);
    write_bytes(second, &b, b.n);
    assert_int_equal(open_config(first, &err), SL_E_SOURCE);
    assert_non_null(strstr(err.text, "split.no: 0, expected 1"));
    unlink(second);
    assert_int_equal(open_config(first, &err), SL_E_SOURCE);
    assert_non_null(strstr(err.text, "tiny-00002-of-00002.gguf"));
    char alone[512];
    snprintf(alone, sizeof alone, "%s/alone.gguf", room.dir);
    write_bytes(alone, &b, b.n);
    assert_int_equal(open_config(alone, &err), SL_E_SOURCE);
    assert_non_null(strstr(err.text, "split.count: 2, but the file's name says 1"));
    gm_free(&b);
    gm_model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_number_is_served, setup, teardown),
        cmocka_unit_test_setup_teardown(test_converts_to_a_sound_pack, setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_cut_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_any_byte_may_change, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals_say_what_is_wrong, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missing_values, setup, teardown),
        cmocka_unit_test_setup_teardown(test_splits_must_belong_together, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
