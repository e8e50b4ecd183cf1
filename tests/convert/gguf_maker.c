/* Bytes of a small model in GGUF. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/convert/gguf_maker.h"

/* ---- bytes ----------------------------------------------------------------------------------------- */

void gm_u8(struct gm_bytes *b, unsigned v)
{
    if (b->n == b->room) {
        b->room = b->room ? b->room * 2 : 4096;
        b->p = realloc(b->p, b->room);
        assert_non_null(b->p);
    }
    b->p[b->n++] = (uint8_t)v;
}

static void put_le(struct gm_bytes *b, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) gm_u8(b, (unsigned)(v >> 8 * i & 0xff));
}

void gm_u32(struct gm_bytes *b, uint32_t v)
{
    put_le(b, v, 4);
}

void gm_u64(struct gm_bytes *b, uint64_t v)
{
    put_le(b, v, 8);
}

void gm_f32(struct gm_bytes *b, float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    put_le(b, u, 4);
}

void gm_str(struct gm_bytes *b, const char *s)
{
    gm_u64(b, strlen(s));
    for (; *s; s++) gm_u8(b, (unsigned char)*s);
}

void gm_free(struct gm_bytes *b)
{
    free(b->p);
    memset(b, 0, sizeof *b);
}

/* ---- weights --------------------------------------------------------------------------------------- */

static uint32_t mix(const char *name, uint64_t i)
{
    uint32_t h = 2166136261u;
    for (const char *s = name; *s; s++) h = (h ^ (unsigned char)*s) * 16777619u;
    h ^= (uint32_t)i * 2654435761u;
    h ^= h >> 15;
    h *= 2246822519u;
    return h ^ h >> 13;
}

float gm_weight(const char *name, uint64_t i)
{
    uint32_t h = mix(name, i);
    float v = (float)((int)(h % 255) - 127) / 256.0f; /* eight bits: exact in bf16, f16 and Q8_0 */
    if (strstr(name, "ssm_a")) return -0.3f - (float)(h % 7); /* any f32 */
    return strstr(name, "norm") ? 1.0f + (float)(h % 64) / 128.0f : v;
}

unsigned gm_code(const char *name, uint64_t i)
{
    return mix(name, i) >> 7 & 15;
}

unsigned gm_scale(const char *name, uint64_t block)
{
    return 118 + mix(name, block + 77) % 8;
}

static void put_half(struct gm_bytes *b, float v)
{
    /* Small multiples of 1/256 below 2: normal in f16, or zero. */
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    uint32_t e = u >> 23 & 255;
    uint32_t h = (u >> 16 & 0x8000) | (e ? (e - 112) << 10 | (u >> 13 & 0x3ff) : 0);
    put_le(b, h, 2);
}

static void fill(struct gm_tensor *t)
{
    uint64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    for (uint64_t i = 0; i < n; i++) {
        float v = gm_weight(t->name, i);
        uint32_t u;
        memcpy(&u, &v, sizeof u);
        if (t->type == 0) put_le(&t->data, u, 4);
        if (t->type == 1) put_half(&t->data, v);
        if (t->type == 30) put_le(&t->data, u >> 16, 2);
        if (t->type == 8) {
            if (i % 32 == 0) put_half(&t->data, 1.0f / 256.0f);
            gm_u8(&t->data, (unsigned)(int)(v * 256.0f) & 0xff);
        }
        if (t->type == 39 && i % 32 == 0) {
            gm_u8(&t->data, gm_scale(t->name, i / 32));
            for (uint64_t j = 0; j < 16; j++)
                gm_u8(&t->data, gm_code(t->name, i + j) | gm_code(t->name, i + j + 16) << 4);
        }
    }
}

static void add(struct gm_model *m, const char *name, uint32_t type, uint64_t a, uint64_t b,
                uint64_t c)
{
    struct gm_tensor *t = &m->t[m->n++];
    assert_true(m->n <= 64);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->type = type;
    t->n_dims = c ? 3 : b ? 2 : 1;
    t->ne[0] = a;
    t->ne[1] = b ? b : 1;
    t->ne[2] = c ? c : 1;
    t->ne[3] = 1;
    fill(t);
}

enum { F32 = 0, F16 = 1, Q8 = 8, BF16 = 30, MX = 39 };

static void add_kda(struct gm_model *m)
{
    const uint64_t dim = GM_HEADS * GM_KDA_DIM;
    if (m->joint_qkv) {
        add(m, "blk.0.attn_qkv.weight", BF16, GM_HIDDEN, 3 * dim, 0);
    } else {
        add(m, "blk.0.attn_q.weight", BF16, GM_HIDDEN, dim, 0);
        add(m, "blk.0.attn_k.weight", F16, GM_HIDDEN, dim, 0);
        add(m, "blk.0.attn_v.weight", Q8, GM_HIDDEN, dim, 0);
    }
    add(m, "blk.0.ssm_conv1d_q.weight", F32, 4, 1, dim);
    add(m, "blk.0.ssm_conv1d_k.weight", F32, 4, 1, dim);
    add(m, "blk.0.ssm_conv1d_v.weight", F32, 4, dim, 0);
    add(m, "blk.0.ssm_f_a.weight", F32, GM_HIDDEN, GM_KDA_DIM, 0);
    add(m, "blk.0.ssm_f_b.weight", BF16, GM_KDA_DIM, dim, 0);
    add(m, "blk.0.ssm_beta.weight", BF16, GM_HIDDEN, GM_HEADS, 0);
    add(m, "blk.0.ssm_a", F32, GM_HEADS, 0, 0);
    add(m, "blk.0.ssm_dt.bias", F32, dim, 0, 0);
    add(m, "blk.0.ssm_g.weight", BF16, GM_HIDDEN, dim, 0);
    add(m, "blk.0.ssm_norm.weight", F32, GM_KDA_DIM, 0, 0);
    add(m, "blk.0.attn_output.weight", BF16, dim, GM_HIDDEN, 0);
    add(m, "blk.0.ffn_gate.weight", BF16, GM_HIDDEN, GM_DENSE, 0);
    add(m, "blk.0.ffn_up.weight", BF16, GM_HIDDEN, GM_DENSE, 0);
    add(m, "blk.0.ffn_down.weight", Q8, GM_DENSE, GM_HIDDEN, 0);
}

static void add_mla(struct gm_model *m)
{
    const uint64_t v = GM_HEADS * GM_V;
    add(m, "blk.1.attn_q.weight", BF16, GM_HIDDEN, GM_HEADS * (GM_NOPE + GM_ROPE), 0);
    add(m, "blk.1.attn_kv_a_mqa.weight", BF16, GM_HIDDEN, GM_LORA + GM_ROPE, 0);
    add(m, "blk.1.attn_kv_a_norm.weight", F32, GM_LORA, 0, 0);
    if (m->whole_kv_b) {
        add(m, "blk.1.attn_kv_b.weight", BF16, GM_LORA, GM_HEADS * (GM_NOPE + GM_V), 0);
    } else {
        add(m, "blk.1.attn_k_b.weight", BF16, GM_NOPE, GM_LORA, GM_HEADS);
        add(m, "blk.1.attn_v_b.weight", BF16, GM_LORA, GM_V, GM_HEADS);
    }
    add(m, "blk.1.attn_gate.weight", BF16, GM_HIDDEN, v, 0);
    add(m, "blk.1.attn_output.weight", BF16, v, GM_HIDDEN, 0);
    add(m, "blk.1.ffn_gate_inp.weight", F32, GM_HIDDEN, GM_EXPERTS, 0);
    add(m, "blk.1.exp_probs_b.bias", F32, GM_EXPERTS, 0, 0);
    add(m, "blk.1.ffn_routed_down.weight", BF16, GM_HIDDEN, GM_LATENT, 0);
    add(m, "blk.1.ffn_routed_norm.weight", F32, GM_LATENT, 0, 0);
    add(m, "blk.1.ffn_routed_up.weight", BF16, GM_LATENT, GM_HIDDEN, 0);
    add(m, "blk.1.ffn_gate_shexp.weight", BF16, GM_HIDDEN, GM_WIDTH, 0);
    add(m, "blk.1.ffn_up_shexp.weight", BF16, GM_HIDDEN, GM_WIDTH, 0);
    add(m, "blk.1.ffn_down_shexp.weight", BF16, GM_WIDTH, GM_HIDDEN, 0);
    add(m, "blk.1.ffn_gate_exps.weight", MX, GM_LATENT, GM_WIDTH, GM_EXPERTS);
    add(m, "blk.1.ffn_up_exps.weight", MX, GM_LATENT, GM_WIDTH, GM_EXPERTS);
    add(m, "blk.1.ffn_down_exps.weight", MX, GM_WIDTH, GM_LATENT, GM_EXPERTS);
}

void gm_model(struct gm_model *m, int splits, int joint_qkv, int whole_kv_b)
{
    memset(m, 0, sizeof *m);
    m->splits = splits;
    m->joint_qkv = joint_qkv;
    m->whole_kv_b = whole_kv_b;
    m->arch = "kimi-k3";
    m->drop_value = -1;
    add(m, "token_embd.weight", BF16, GM_HIDDEN, GM_VOCAB, 0);
    for (int l = 0; l < 2; l++) {
        char name[64];
        static const char *const vectors[] = {"attn_norm", "ffn_norm", "attn_res_score",
                                              "ffn_res_score"};
        for (int k = 0; k < 4; k++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, vectors[k]);
            add(m, name, F32, GM_HIDDEN, 0, 0);
        }
        if (l == 0)
            add_kda(m);
        else
            add_mla(m);
    }
    add(m, "output_norm.weight", F32, GM_HIDDEN, 0, 0);
    add(m, "output_res_score.weight", F32, GM_HIDDEN, 0, 0);
    add(m, "output.weight", BF16, GM_HIDDEN, GM_VOCAB, 0);
    uint64_t at[2] = {0, 0};
    for (int i = 0; i < m->n; i++) {
        struct gm_tensor *t = &m->t[i];
        t->file = splits == 2 && i >= m->n / 2;
        t->offset = at[t->file];
        at[t->file] += (t->data.n + 31) / 32 * 32;
    }
}

void gm_model_free(struct gm_model *m)
{
    for (int i = 0; i < m->n; i++) gm_free(&m->t[i].data);
}

struct gm_tensor *gm_find(struct gm_model *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (!strcmp(m->t[i].name, name)) return &m->t[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

/* ---- values ---------------------------------------------------------------------------------------- */

struct values {
    const struct gm_model *m;
    struct gm_bytes *b;
    int n, seen;
};

static int head(struct values *v, const char *key, uint32_t type)
{
    if (v->seen++ == v->m->drop_value) return 0;
    v->n++;
    gm_str(v->b, key);
    gm_u32(v->b, type);
    return 1;
}

static void val_u32(struct values *v, const char *key, uint32_t x)
{
    if (head(v, key, 4)) gm_u32(v->b, x);
}

static void val_f32(struct values *v, const char *key, float x)
{
    if (head(v, key, 6)) gm_f32(v->b, x);
}

static void val_str(struct values *v, const char *key, const char *s)
{
    if (head(v, key, 8)) gm_str(v->b, s);
}

/* Byte tokens first, in the alphabet of GPT-2, then four pairs, then four control tokens. */
static void token(struct gm_bytes *b, int id)
{
    static const char *const pairs[] = {"ab", "abc", "\xc4\xa0t",
                                        "th"}; /* the third: a space and t */
    static const char *const control[] = {"[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>"};
    if (id >= GM_ORDINARY) {
        gm_str(b, control[id - GM_ORDINARY]);
    } else if (id >= 256) {
        gm_str(b, pairs[id - 256]);
    } else {
        int others = 0; /* bytes before id that do not stand for themselves */
        for (int c = 0; c < id; c++)
            others += !((c >= '!' && c <= '~') || (c >= 0xa1 && c <= 0xac) || c >= 0xae);
        int self = (id >= '!' && id <= '~') || (id >= 0xa1 && id <= 0xac) || id >= 0xae;
        int point = self ? id : 256 + others;
        gm_u64(b, point < 128 ? 1 : 2);
        if (point >= 128) gm_u8(b, 0xc0u | (unsigned)point >> 6);
        gm_u8(b, point < 128 ? (unsigned)point : 0x80u | (point & 63));
    }
}

static void put_vocab(struct values *v)
{
    val_str(v, "tokenizer.ggml.model", "gpt2");
    val_str(v, "tokenizer.ggml.pre", "kimi-k2");
    if (head(v, "tokenizer.ggml.tokens", 9)) {
        gm_u32(v->b, 8);
        gm_u64(v->b, GM_VOCAB);
        for (int i = 0; i < GM_VOCAB; i++) token(v->b, i);
    }
    if (head(v, "tokenizer.ggml.token_type", 9)) {
        gm_u32(v->b, 5);
        gm_u64(v->b, GM_VOCAB);
        for (int i = 0; i < GM_VOCAB; i++) gm_u32(v->b, i < GM_ORDINARY ? 1 : 3);
    }
    val_u32(v, "tokenizer.ggml.eos_token_id", GM_ORDINARY + 2);
}

static void put_values(struct values *v)
{
    val_str(v, "general.architecture", v->m->arch);
    val_u32(v, "kimi-k3.block_count", 2);
    val_u32(v, "kimi-k3.context_length", 4096);
    val_u32(v, "kimi-k3.embedding_length", GM_HIDDEN);
    val_u32(v, "kimi-k3.feed_forward_length", GM_DENSE);
    val_u32(v, "kimi-k3.attention.head_count", GM_HEADS);
    if (head(v, "kimi-k3.attention.head_count_kv", 9)) {
        gm_u32(v->b, 5);
        gm_u64(v->b, 2);
        gm_u32(v->b, 0);
        gm_u32(v->b, 1);
    }
    val_f32(v, "kimi-k3.attention.layer_norm_rms_epsilon", 1e-5f);
    val_u32(v, "kimi-k3.attention.kv_lora_rank", GM_LORA);
    val_u32(v, "kimi-k3.attention.key_length_mla", GM_NOPE + GM_ROPE);
    val_u32(v, "kimi-k3.attention.value_length_mla", GM_V);
    val_u32(v, "kimi-k3.rope.dimension_count", GM_ROPE);
    val_u32(v, "kimi-k3.ssm.conv_kernel", 4);
    val_u32(v, "kimi-k3.kda.head_dim", GM_KDA_DIM);
    val_u32(v, "kimi-k3.expert_count", GM_EXPERTS);
    val_u32(v, "kimi-k3.expert_used_count", 2);
    val_u32(v, "kimi-k3.expert_feed_forward_length", GM_WIDTH);
    val_u32(v, "kimi-k3.expert_shared_count", 1);
    val_u32(v, "kimi-k3.leading_dense_block_count", 1);
    val_u32(v, "kimi-k3.expert_gating_func", 2);
    val_u32(v, "kimi-k3.expert_latent_length", GM_LATENT);
    val_f32(v, "kimi-k3.activation.situ_beta", 4);
    val_f32(v, "kimi-k3.activation.situ_linear_beta", 25);
    val_u32(v, "kimi-k3.attn_res.block_size", 1);
    put_vocab(v);
}

static void put_split(struct values *v, int i)
{
    if (v->m->splits == 1) return;
    if (head(v, "split.no", 2)) put_le(v->b, (uint64_t)i, 2);
    if (head(v, "split.count", 2)) put_le(v->b, 2, 2);
    if (head(v, "split.tensors.count", 5)) gm_u32(v->b, (uint32_t)v->m->n);
}

void gm_file(const struct gm_model *m, int i, struct gm_bytes *out)
{
    struct gm_bytes b = {0};
    struct values v = {.m = m, .b = &b};
    uint64_t n_tensors = 0;
    for (int k = 0; k < m->n; k++) n_tensors += m->t[k].file == i;
    if (i == 0) put_values(&v);
    put_split(&v, i);
    memset(out, 0, sizeof *out);
    for (const char *s = "GGUF"; *s; s++) gm_u8(out, (unsigned char)*s);
    gm_u32(out, 3);
    gm_u64(out, n_tensors);
    gm_u64(out, (uint64_t)v.n);
    for (size_t k = 0; k < b.n; k++) gm_u8(out, b.p[k]);
    gm_free(&b);
    for (int k = 0; k < m->n; k++) {
        const struct gm_tensor *t = &m->t[k];
        if (t->file != i) continue;
        gm_str(out, t->name);
        gm_u32(out, (uint32_t)t->n_dims);
        for (int d = 0; d < t->n_dims; d++) gm_u64(out, t->ne[d]);
        gm_u32(out, t->type);
        gm_u64(out, t->offset);
    }
    while (out->n % 32) gm_u8(out, 0);
    size_t start = out->n;
    for (int k = 0; k < m->n; k++) {
        const struct gm_tensor *t = &m->t[k];
        if (t->file != i) continue;
        while (out->n - start < t->offset) gm_u8(out, 0);
        for (size_t q = 0; q < t->data.n; q++) gm_u8(out, t->data.p[q]);
    }
}

void gm_write(const struct gm_model *m, const char *dir, char *path)
{
    for (int i = m->splits - 1; i >= 0; i--) {
        struct gm_bytes b;
        if (m->splits == 1)
            snprintf(path, 512, "%s/tiny.gguf", dir);
        else
            snprintf(path, 512, "%s/tiny-%05d-of-%05d.gguf", dir, i + 1, m->splits);
        gm_file(m, i, &b);
        FILE *f = fopen(path, "wbe");
        assert_non_null(f);
        assert_int_equal(fwrite(b.p, 1, b.n, f), b.n);
        assert_int_equal(fclose(f), 0);
        gm_free(&b);
    }
}
