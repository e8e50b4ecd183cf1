/* GGUF files as input: the fused form of the trunk, experts turned from stacked blocks into planes.
 *
 *   inventory item --name table--> tensor there --how--> bytes of the item
 *
 * Each item is served in units of its own (an element, a row, a head) so that any byte range can be
 * made from the file without holding a tensor: most are the same bytes, F32 that was widened from bf16
 * is narrowed back (proved for every element when opening; otherwise it stays f32), Q8_0 becomes t8 rows,
 * and kv_b is joined from its halves head by head. Experts must be MXFP4: re-encoding others would not
 * be lossless. The vocabulary is written as the two files a tokenizer is read from, into a folder of our
 * own that goes when the input is closed. */
#define _GNU_SOURCE
#include "convert/input.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/size.h"
#include "convert/gguf_model.h"
#include "convert/gguf_vocab.h"
#include "convert/identity.h"
#include "kernels/half.h"

#define SCAN_BYTES ((uint64_t)1 << 20)

enum how {
    HOW_SAME,   /* the bytes of the file */
    HOW_NARROW, /* f32 whose low halves are zero, to bf16 */
    HOW_T8,     /* rows of Q8_0 to rows of t8 */
    HOW_KV_B    /* heads: k_b transposed, then v_b */
};

struct served {
    char name[128]; /* of the item */
    enum how how;
    const struct sl_gguf_tensor *t; /* k_b where it is joined */
    const struct sl_gguf_tensor *v_b;
    uint64_t from;     /* first byte in t, of q, k or v in a joint attn_qkv */
    uint64_t src_unit; /* bytes of t that make one unit */
    uint64_t unit;     /* bytes of the item in one unit */
    struct sl_in_tensor in;
};

struct sl_gguf_input {
    struct sl_gguf *g;
    struct served *items;
    int n_items, room;
    struct sl_strmap *by_name;
    const struct sl_gguf_tensor **experts; /* [n_layers][SL_N_MATS] */
    bool *used;                            /* [n_tensors] */
    char dir[64];                          /* of the vocabulary's files, "" for none */
};

struct opening {
    struct sl_input *in;
    struct sl_gguf_input *x;
    struct sl_err *err;
};

static const char *file_of(const struct sl_gguf_input *x, const struct sl_gguf_tensor *t)
{
    return x->g->files[t->file].name;
}

/* ---- reading units --------------------------------------------------------------------------------- */

static float load(uint32_t type, const uint8_t *p)
{
    uint32_t bits;
    float f;
    if (type == SL_GGML_BF16) return sl_bf16_to_f32(sl_le16(p));
    if (type == SL_GGML_F16) return sl_f16_to_f32(sl_le16(p));
    bits = sl_le32(p);
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* n elements of t from `first` on, as f32. first and n are whole blocks. */
static int load_run(const struct sl_gguf_input *x, const struct sl_gguf_tensor *t, uint64_t first,
                    uint64_t n, uint8_t *raw, float *out, struct sl_err *err)
{
    uint32_t weights = 1;
    uint32_t bytes = 1;
    sl_ggml_block(t->type, &weights, &bytes);
    int rc = sl_gguf_read(x->g, t, first / weights * bytes, raw, n / weights * bytes, err);
    for (uint64_t i = 0; !rc && i < n; i++) {
        if (t->type != SL_GGML_Q8_0) {
            out[i] = load(t->type, raw + i * bytes);
            continue;
        }
        const uint8_t *block = raw + i / 32 * SL_GGML_Q8_0_BYTES;
        out[i] = (float)(int8_t)block[2 + i % 32] * sl_f16_to_f32(sl_le16(block));
    }
    return rc;
}

static void store(int dtype, float f, uint8_t *p)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (dtype == SL_DT_F32) {
        for (int b = 0; b < 4; b++) p[b] = (uint8_t)(bits >> 8 * b);
        return;
    }
    uint16_t h = dtype == SL_DT_BF16 ? (uint16_t)(bits >> 16) : sl_f32_to_f16(f);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

/* One head of kv_b: rows r < nope are column r of k_b's head, the others are v_b's head as it is. */
static int make_head(const struct sl_input *in, const struct served *s, uint64_t head, uint8_t *out,
                     struct sl_err *err)
{
    const struct sl_config *c = &in->cfg;
    uint64_t nope = (uint64_t)c->qk_nope_dim;
    uint64_t v = (uint64_t)c->v_head_dim;
    uint64_t lora = (uint64_t)c->kv_lora_rank;
    uint64_t most = nope > v ? nope : v;
    uint64_t size = s->in.dtype == SL_DT_F32 ? 4 : 2;
    uint8_t *raw = malloc(most * lora * 4);
    float *f = calloc(most * lora, sizeof *f);
    int rc = 0;
    if (!raw || !f) rc = sl_fail(err, SL_E_NOMEM, s->name, NULL, "out of memory");
    if (!rc) rc = load_run(in->gguf, s->t, head * nope * lora, nope * lora, raw, f, err);
    for (uint64_t r = 0; !rc && r < nope; r++)
        for (uint64_t k = 0; k < lora; k++)
            store(s->in.dtype, f[k * nope + r], out + (r * lora + k) * size);
    if (!rc) rc = load_run(in->gguf, s->v_b, head * v * lora, v * lora, raw, f, err);
    for (uint64_t i = 0; !rc && i < v * lora; i++)
        store(s->in.dtype, f[i], out + (nope * lora + i) * size);
    free(raw);
    free(f);
    return rc;
}

/* A row of Q8_0 to a row of t8. Codes of -128 and scales that are not positive numbers do not come from
 * an encoder, and t8 has no place for them. */
static int make_t8(const struct sl_input *in, const struct served *s, uint64_t row,
                   const uint8_t *src, uint8_t *out, struct sl_err *err)
{
    uint64_t blocks = s->unit / SL_GGML_Q8_0_BYTES;
    for (uint64_t b = 0; b < blocks; b++) {
        const uint8_t *q = src + b * SL_GGML_Q8_0_BYTES;
        memcpy(out + 32 * b, q + 2, 32);
        memcpy(out + 32 * blocks + 2 * b, q, 2);
        uint16_t scale = sl_le16(q);
        if (scale >= 0x7c00 || memchr(q + 2, 0x80, 32))
            return sl_fail(err, SL_E_SOURCE, file_of(in->gguf, s->t), s->t->name,
                           "row %llu, block %llu: not a block of Q8_0", (unsigned long long)row,
                           (unsigned long long)b);
    }
    return 0;
}

/* Units [first, first + n) into out; raw has room for their source. */
static int make_units(const struct sl_input *in, const struct served *s, uint64_t first, uint64_t n,
                      uint8_t *raw, uint8_t *out, struct sl_err *err)
{
    int rc = 0;
    if (s->how == HOW_KV_B) {
        for (uint64_t i = 0; i < n && !rc; i++)
            rc = make_head(in, s, first + i, out + i * s->unit, err);
        return rc;
    }
    rc = sl_gguf_read(in->gguf->g, s->t, s->from + first * s->src_unit, raw, n * s->src_unit, err);
    for (uint64_t i = 0; i < n && !rc; i++) {
        if (s->how == HOW_T8)
            rc = make_t8(in, s, first + i, raw + i * s->src_unit, out + i * s->unit, err);
        else
            memcpy(out + 2 * i, raw + 4 * i + 2, 2);
    }
    return rc;
}

static int gg_read(const struct sl_input *in, const struct sl_in_tensor *t, uint64_t at, void *buf,
                   uint64_t n, struct sl_err *err)
{
    const struct served *s = t->ref;
    if (s->how == HOW_SAME) return sl_gguf_read(in->gguf->g, s->t, s->from + at, buf, n, err);
    uint64_t batch = s->unit < SCAN_BYTES ? SCAN_BYTES / s->unit : 1;
    uint8_t *raw = malloc(batch * s->src_unit + 1);
    uint8_t *made = malloc(batch * s->unit);
    int rc = raw && made ? 0 : sl_fail(err, SL_E_NOMEM, s->name, NULL, "out of memory");
    uint8_t *to = buf;
    while (n && !rc) {
        uint64_t first = at / s->unit;
        uint64_t skip = at % s->unit;
        uint64_t units = (skip + n + s->unit - 1) / s->unit;
        if (units > batch) units = batch;
        rc = make_units(in, s, first, units, raw, made, err);
        uint64_t part = units * s->unit - skip;
        if (part > n) part = n;
        if (!rc) memcpy(to, made + skip, part);
        to += part;
        at += part;
        n -= part;
    }
    free(raw);
    free(made);
    return rc;
}

/* ---- experts --------------------------------------------------------------------------------------- */

/* One matrix of blocks to nibbles two by two and a plane of scales. */
static void split_blocks(const uint8_t *blocks, uint64_t n_blocks, uint8_t *codes, uint8_t *scales)
{
    for (uint64_t b = 0; b < n_blocks; b++) {
        const uint8_t *q = blocks + b * SL_GGML_MXFP4_BYTES;
        uint8_t *c = codes + 16 * b;
        scales[b] = *q++;
        for (int k = 0; k < 8; k++) {
            c[k] = (uint8_t)((q[2 * k] & 15) | q[2 * k + 1] << 4);
            c[k + 8] = (uint8_t)(q[2 * k] >> 4 | (q[2 * k + 1] & 0xf0));
        }
    }
}

static uint64_t mat_blocks(const struct sl_config *c, int m)
{
    return sl_mat_scales_bytes(c, m);
}

static const struct sl_gguf_tensor *expert_tensor(const struct sl_input *in, int layer, int m)
{
    return in->gguf->experts[(size_t)layer * SL_N_MATS + (size_t)m];
}

static int read_mat(const struct sl_input *in, int layer, int expert, int m, uint8_t *raw,
                    uint8_t *codes, uint8_t *scales, struct sl_err *err)
{
    uint64_t n = mat_blocks(&in->cfg, m);
    uint64_t bytes = n * SL_GGML_MXFP4_BYTES;
    int rc = sl_gguf_read(in->gguf->g, expert_tensor(in, layer, m), (uint64_t)expert * bytes, raw,
                          bytes, err);
    if (!rc) split_blocks(raw, n, codes, scales);
    return rc;
}

/* scratch: planes of all three, then the blocks of one. */
static int gg_read_expert(const struct sl_input *in, int layer, int expert, uint8_t *scratch,
                          struct sl_in_expert *out, struct sl_err *err)
{
    uint8_t *raw = scratch + sl_expert_bytes(&in->cfg);
    int rc = 0;
    for (int m = 0; m < SL_N_MATS && !rc; m++) {
        uint8_t *scales = scratch + sl_mat_codes_bytes(&in->cfg, m);
        rc = read_mat(in, layer, expert, m, raw, scratch, scales, err);
        out->codes[m] = scratch;
        out->scales[m] = scales;
        scratch = scales + sl_mat_scales_bytes(&in->cfg, m);
    }
    return rc;
}

static int gg_read_scales(const struct sl_input *in, int layer, int expert, int mat,
                          uint8_t *scratch, const uint8_t **scales, struct sl_err *err)
{
    uint8_t *raw = scratch + sl_expert_bytes(&in->cfg);
    uint8_t *at = scratch + sl_mat_codes_bytes(&in->cfg, mat);
    *scales = at;
    return read_mat(in, layer, expert, mat, raw, scratch, at, err);
}

static void gg_name_scales(const struct sl_input *in, int layer, int expert, int mat, char *file,
                           char *tensor, size_t n)
{
    const struct sl_gguf_tensor *t = expert_tensor(in, layer, mat);
    snprintf(file, n, "%s", file_of(in->gguf, t));
    snprintf(tensor, n, "%s, expert %d", t->name, expert);
}

static void gg_prefetch_expert(const struct sl_input *in, int layer, int expert)
{
    for (int m = 0; m < SL_N_MATS; m++) {
        const struct sl_gguf_tensor *t = expert_tensor(in, layer, m);
        uint64_t bytes = mat_blocks(&in->cfg, m) * SL_GGML_MXFP4_BYTES;
        (void)posix_fadvise(in->gguf->g->files[t->file].fd,
                            (off_t)(t->offset + (uint64_t)expert * bytes), (off_t)bytes,
                            POSIX_FADV_WILLNEED);
    }
}

static bool gg_find(const struct sl_input *in, const char *name, struct sl_in_tensor *t)
{
    uint32_t i;
    if (!sl_strmap_get(in->gguf->by_name, name, strlen(name) + 1, &i)) return false;
    *t = in->gguf->items[i].in;
    return true;
}

static void gg_vision(const struct sl_input *in, int i, struct sl_in_tensor *t)
{
    (void)in;
    (void)i;
    memset(t, 0, sizeof *t); /* there are none: the tower is another file in GGUF */
}

static const struct sl_input_ops gguf_ops = {
    .find = gg_find,
    .vision = gg_vision,
    .read = gg_read,
    .read_expert = gg_read_expert,
    .read_scales = gg_read_scales,
    .name_scales = gg_name_scales,
    .prefetch_expert = gg_prefetch_expert,
};

const char *sl_gguf_input_file(const struct sl_input *in, const struct sl_in_tensor *t)
{
    const struct served *s = t->ref;
    return file_of(in->gguf, s->t);
}

/* ---- binding --------------------------------------------------------------------------------------- */

static const struct sl_gguf_tensor *use(const struct opening *o, const char *name)
{
    const struct sl_gguf_tensor *t = sl_gguf_find(o->x->g, name);
    if (t) o->x->used[t - o->x->g->tensors] = true;
    return t;
}

static int bad_shape(const struct opening *o, const struct sl_gguf_tensor *t)
{
    return sl_fail(o->err, SL_E_SOURCE, file_of(o->x, t), t->name,
                   "{%llu, %llu, %llu, %llu}: not the shape that the values imply",
                   (unsigned long long)t->ne[0], (unsigned long long)t->ne[1],
                   (unsigned long long)t->ne[2], (unsigned long long)t->ne[3]);
}

/* Dimensions without those of 1: convolution taps come as {4,1,C}, {4,1,C,1} and {4,C}. */
static bool same_shape(const struct sl_gguf_tensor *t, const struct sl_item *it)
{
    int d = 0;
    for (int i = it->n_dims - 1; i >= 0; i--) {
        if (it->shape[i] == 1) continue;
        while (d < 4 && t->ne[d] == 1) d++;
        if (d == 4 || t->ne[d++] != (uint64_t)it->shape[i]) return false;
    }
    while (d < 4 && t->ne[d] == 1) d++;
    return d == 4;
}

/* Are all f32 numbers of a range widened bf16? */
static int all_narrow(const struct opening *o, const struct sl_gguf_tensor *t, bool *yes)
{
    uint8_t *buf = malloc(SCAN_BYTES);
    int rc = buf ? 0 : sl_fail(o->err, SL_E_NOMEM, t->name, NULL, "out of memory");
    *yes = true;
    for (uint64_t at = 0; at < t->bytes && !rc && *yes; at += SCAN_BYTES) {
        uint64_t n = t->bytes - at < SCAN_BYTES ? t->bytes - at : SCAN_BYTES;
        if (sl_interrupted()) rc = sl_fail(o->err, SL_E_INTR, NULL, NULL, "interrupted");
        if (!rc) rc = sl_gguf_read(o->x->g, t, at, buf, n, o->err);
        for (uint64_t i = 0; i < n && !rc && *yes; i += 4) *yes = !buf[i] && !buf[i + 1];
    }
    free(buf);
    return rc;
}

static int dtype_of(uint32_t type)
{
    return type == SL_GGML_F32 ? SL_DT_F32 : type == SL_GGML_F16 ? SL_DT_F16 : SL_DT_BF16;
}

static int choose(const struct opening *o, const struct sl_item *it, struct served *s)
{
    const struct sl_gguf_tensor *t = s->t;
    uint64_t cols = (uint64_t)it->shape[it->n_dims - 1];
    bool narrow = false;
    s->how = HOW_SAME;
    s->unit = s->src_unit = 1;
    if (t->type == SL_GGML_MXFP4 || (t->type == SL_GGML_Q8_0 && (!it->quantize || cols % 32)))
        return sl_fail(o->err, SL_E_SOURCE, file_of(o->x, t), t->name,
                       "stored as %s, which is read for %s only", sl_ggml_name(t->type),
                       t->type == SL_GGML_MXFP4 ? "routed experts" : "large matrices");
    if (t->type == SL_GGML_Q8_0) {
        s->how = HOW_T8;
        s->in.dtype = SL_DT_T8;
        s->unit = s->src_unit = cols / 32 * SL_GGML_Q8_0_BYTES;
        return 0;
    }
    s->in.dtype = (uint8_t)dtype_of(t->type);
    if (t->type != SL_GGML_F32 || it->dtype != SL_DT_BF16) return 0;
    int rc = all_narrow(o, t, &narrow);
    if (rc || !narrow) return rc;
    s->how = HOW_NARROW;
    s->in.dtype = SL_DT_BF16;
    s->unit = 2;
    s->src_unit = 4;
    return 0;
}

/* k_b {nope, lora, heads} and v_b {lora, v, heads}. */
static int bind_kv_b(const struct opening *o, const struct sl_gguf_name *n, struct served *s)
{
    const struct sl_config *c = &o->in->cfg;
    uint64_t nope = (uint64_t)c->qk_nope_dim;
    uint64_t v = (uint64_t)c->v_head_dim;
    uint64_t lora = (uint64_t)c->kv_lora_rank;
    uint64_t heads = (uint64_t)c->n_heads;
    bool narrow = false;
    int rc = 0;
    s->t = use(o, n->k_b);
    s->v_b = use(o, n->v_b);
    if (!s->t || !s->v_b)
        return sl_fail(o->err, SL_E_SOURCE, o->x->g->files[0].name, s->t ? n->v_b : n->k_b,
                       "missing");
    if (s->t->ne[0] != nope || s->t->ne[1] != lora || s->t->ne[2] != heads || s->t->ne[3] != 1)
        return bad_shape(o, s->t);
    if (s->v_b->ne[0] != lora || s->v_b->ne[1] != v || s->v_b->ne[2] != heads || s->v_b->ne[3] != 1)
        return bad_shape(o, s->v_b);
    if (s->t->type == SL_GGML_MXFP4 || s->v_b->type == SL_GGML_MXFP4)
        return sl_fail(o->err, SL_E_SOURCE, file_of(o->x, s->t), s->t->name,
                       "stored as MXFP4, which is read for routed experts only");
    s->how = HOW_KV_B;
    s->in.dtype = SL_DT_F32;
    if (s->t->type == s->v_b->type && s->t->type != SL_GGML_Q8_0)
        s->in.dtype = (uint8_t)dtype_of(s->t->type);
    if (s->t->type == SL_GGML_F32 && s->v_b->type == SL_GGML_F32) {
        rc = all_narrow(o, s->t, &narrow);
        if (!rc && narrow) rc = all_narrow(o, s->v_b, &narrow);
        if (narrow) s->in.dtype = SL_DT_BF16;
    }
    s->unit = (nope + v) * lora * (s->in.dtype == SL_DT_F32 ? 4 : 2);
    return rc;
}

/* Rows of q, k or v in a joint attn_qkv of a KDA layer. */
static bool bind_qkv(const struct opening *o, const struct sl_item *it, struct served *s)
{
    static const char *const names[3] = {"q_proj.weight", "k_proj.weight", "v_proj.weight"};
    char joint[64];
    const char *dot = strstr(it->name, "self_attn.");
    if (!dot || it->layer < 0 || !o->in->cfg.is_kda[it->layer]) return false;
    snprintf(joint, sizeof joint, "blk.%d.attn_qkv.weight", it->layer);
    for (int k = 0; k < 3; k++) {
        if (strcmp(dot + strlen("self_attn."), names[k]) != 0) continue;
        const struct sl_gguf_tensor *t = sl_gguf_find(o->x->g, joint);
        if (!t || t->ne[0] != (uint64_t)it->shape[1] || t->ne[1] != 3 * (uint64_t)it->shape[0] ||
            t->ne[2] != 1 || t->ne[3] != 1)
            return false;
        s->t = use(o, joint);
        s->from = t->bytes / 3 * (uint64_t)k;
        return true;
    }
    return false;
}

static int bind_item(void *ctx, const struct sl_item *it)
{
    struct opening *o = ctx;
    struct sl_gguf_input *x = o->x;
    struct sl_gguf_name n;
    if (x->n_items == x->room)
        return sl_fail(o->err, SL_E_SOURCE, it->name, NULL, "more tensors than were counted");
    struct served *s = &x->items[x->n_items];
    memset(s, 0, sizeof *s);
    snprintf(s->name, sizeof s->name, "%s", it->name);
    if (!sl_gguf_name_item(&o->in->cfg, it, &n))
        return sl_fail(o->err, SL_E_SOURCE, it->name, NULL, "has no name in GGUF");
    int rc = 0;
    s->t = use(o, n.name);
    if (!s->t && n.k_b[0]) {
        rc = bind_kv_b(o, &n, s);
    } else if (s->t || bind_qkv(o, it, s)) {
        bool joint = s->from || strstr(s->t->name, "attn_qkv");
        if (!joint && !same_shape(s->t, it)) return bad_shape(o, s->t);
        rc = choose(o, it, s);
    } else {
        return sl_fail(o->err, SL_E_SOURCE, x->g->files[0].name, n.name, "missing");
    }
    if (rc) return rc;
    s->in.name = s->name;
    s->in.n_dims = (uint8_t)it->n_dims;
    s->in.shard = -1;
    s->in.ref = s;
    uint64_t count = 1; /* bounded: these elements are in the file */
    for (int d = 0; d < it->n_dims; d++) {
        s->in.shape[d] = it->shape[d];
        count *= (uint64_t)it->shape[d];
    }
    s->in.bytes = s->in.dtype == SL_DT_T8    ? count / 32 * SL_GGML_Q8_0_BYTES
                  : s->in.dtype == SL_DT_F32 ? 4 * count
                                             : 2 * count;
    if (sl_strmap_put(x->by_name, s->name, strlen(s->name) + 1, (uint32_t)x->n_items) < 0)
        return sl_fail(o->err, SL_E_NOMEM, it->name, NULL, "out of memory");
    x->n_items++;
    return 0;
}

static int bind_experts(const struct opening *o)
{
    const struct sl_config *c = &o->in->cfg;
    for (int l = 0; l < c->n_layers; l++) {
        for (int m = 0; m < SL_N_MATS && sl_config_is_moe(c, l); m++) {
            char name[64];
            sl_gguf_name_experts(l, m, name);
            const struct sl_gguf_tensor *t = use(o, name);
            if (!t) return sl_fail(o->err, SL_E_SOURCE, o->x->g->files[0].name, name, "missing");
            if (t->ne[0] != (uint64_t)sl_mat_cols(c, m) ||
                t->ne[1] != (uint64_t)sl_mat_rows(c, m) || t->ne[2] != (uint64_t)c->n_experts ||
                t->ne[3] != 1)
                return bad_shape(o, t);
            if (t->type != SL_GGML_MXFP4)
                return sl_fail(
                    o->err, SL_E_SOURCE, file_of(o->x, t), name,
                    "stored as %s; routed experts are read as MXFP4, the released format",
                    sl_ggml_name(t->type));
            o->x->experts[(size_t)l * SL_N_MATS + (size_t)m] = t;
        }
    }
    return 0;
}

static int refuse_unknown(const struct opening *o)
{
    const struct sl_gguf *g = o->x->g;
    for (uint32_t i = 0; i < g->n_tensors; i++)
        if (!o->x->used[i])
            return sl_fail(o->err, SL_E_SOURCE, file_of(o->x, &g->tensors[i]), g->tensors[i].name,
                           "not a tensor of this model");
    return 0;
}

static int count_item(void *ctx, const struct sl_item *it)
{
    (void)it;
    ++*(int *)ctx;
    return 0;
}

static int bind_all(struct opening *o)
{
    struct sl_gguf_input *x = o->x;
    (void)sl_inventory_form(&o->in->cfg, SL_FORM_FUSED, count_item, &x->room);
    x->items = calloc((size_t)x->room + 1, sizeof *x->items);
    x->experts = calloc((size_t)o->in->cfg.n_layers * SL_N_MATS + 1, sizeof(void *));
    x->used = calloc((size_t)x->g->n_tensors + 1, sizeof *x->used);
    x->by_name = sl_strmap_open((size_t)x->room);
    if (!x->items || !x->experts || !x->used || !x->by_name)
        return sl_fail(o->err, SL_E_NOMEM, x->g->files[0].name, NULL, "out of memory");
    int rc = sl_inventory_form(&o->in->cfg, SL_FORM_FUSED, bind_item, o);
    if (!rc) rc = bind_experts(o);
    return rc ? rc : refuse_unknown(o);
}

/* ---- identity and vocabulary ------------------------------------------------------------------------ */

static struct sl_identity_file identity_file(const void *src, int i)
{
    const struct sl_gguf_file *f = &((const struct sl_gguf *)src)->files[i];
    return (struct sl_identity_file){f->name, f->bytes, f->header_bytes};
}

static int write_extra(const struct opening *o, const char *name, const char *text, size_t len)
{
    char path[SL_PATH_MAX];
    if (!sl_path_join(path, o->x->dir, name))
        return sl_fail(o->err, SL_E_ARG, o->x->dir, NULL, "path too long");
    int rc = sl_write_file(path, text, len, o->err);
    if (!rc && !sl_input_add_extra(o->in, o->x->dir, name))
        rc = sl_fail(o->err, SL_E_NOMEM, name, NULL, "out of memory");
    return rc;
}

static int write_vocab(const struct opening *o)
{
    char *model;
    char *config;
    size_t model_len;
    size_t config_len;
    int rc = sl_gguf_vocab_read(o->x->g, &model, &model_len, &config, &config_len, o->err);
    if (rc) return rc;
    const char *tmp = getenv("TMPDIR");
    int n = snprintf(o->x->dir, sizeof o->x->dir, "%s/sluice-gguf.XXXXXX",
                     tmp && *tmp && strlen(tmp) < 40 ? tmp : "/tmp");
    if (n < 0 || n >= (int)sizeof o->x->dir || !mkdtemp(o->x->dir)) {
        o->x->dir[0] = 0;
        rc = sl_fail(o->err, SL_E_IO, tmp ? tmp : "/tmp", NULL, "cannot make a folder in it");
    }
    if (!rc) rc = write_extra(o, "tiktoken.model", model, model_len);
    if (!rc) rc = write_extra(o, "tokenizer_config.json", config, config_len);
    free(model);
    free(config);
    return rc;
}

int sl_input_open_gguf(struct sl_input **out, const char *path, struct sl_err *err)
{
    bool synthetic = false;
    struct sl_input *in = calloc(1, sizeof *in);
    struct sl_gguf_input *x = calloc(1, sizeof *x);
    struct opening o = {in, x, err};
    int rc = 0;

    *out = NULL;
    if (!in || !x) {
        free(x);
        rc = sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
        goto fail;
    }
    in->ops = &gguf_ops;
    in->gguf = x;
    in->form = SL_FORM_FUSED;
    rc = sl_gguf_open(&x->g, path, err);
    if (!rc) rc = sl_gguf_config_read(&in->cfg, x->g, err);
    if (!rc) rc = sl_gguf_bool(x->g, SL_GGUF_SYNTHETIC, false, &synthetic, err);
    if (!rc) rc = bind_all(&o);
    if (!rc) rc = write_vocab(&o);
    if (rc) goto fail;
    in->files_dir = x->dir;
    snprintf(in->sha256, sizeof in->sha256, "%s", x->g->sha256);
    for (int i = 0; i < x->g->n_files; i++) in->file_bytes += x->g->files[i].bytes;
    uint64_t most = 0;
    for (int m = 0; m < SL_N_MATS; m++)
        if (mat_blocks(&in->cfg, m) > most) most = mat_blocks(&in->cfg, m);
    in->scratch_bytes = sl_expert_bytes(&in->cfg) + most * SL_GGML_MXFP4_BYTES;
    in->source_json = sl_identity_render(&(struct sl_identity){.sha256 = x->g->sha256,
                                                               .prefix = "",
                                                               .payload_bytes = x->g->payload_bytes,
                                                               .synthetic = synthetic,
                                                               .n_files = x->g->n_files,
                                                               .file = identity_file,
                                                               .src = x->g});
    if (!in->source_json) {
        rc = sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
        goto fail;
    }
    *out = in;
    return 0;
fail:
    sl_input_close(in);
    return rc;
}

void sl_gguf_input_close(struct sl_gguf_input *x)
{
    if (!x) return;
    if (x->dir[0]) sl_remove_tree(x->dir);
    sl_gguf_close(x->g);
    sl_strmap_close(x->by_name);
    free(x->items);
    free(x->experts);
    free(x->used);
    free(x);
}
