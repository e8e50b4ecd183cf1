/* Writing a GGUF file: every byte's place first, then pieces in parallel.
 *
 * A piece is a run of units of one tensor: elements where they are copied or widened, rows of t8, heads
 * of kv_b (whose two halves are two tensors there), or a group of experts (whose three matrices lie in
 * three tensors). Memory is a buffer a job, whatever the model's size. */
#define _GNU_SOURCE
#include "convert/export_gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/progress.h"
#include "base/size.h"
#include "convert/gguf_model.h"
#include "convert/input.h"
#include "convert/jobs.h"
#include "convert/plan_pack.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

#define FILE_TYPE_MXFP4_MOE 38 /* general.file_type of llama.cpp: experts in MXFP4 */

enum make { MAKE_COPY, MAKE_WIDEN, MAKE_Q8_0, MAKE_DECODE, MAKE_KV_B, MAKE_PRODUCT, MAKE_SSM_A };

struct tensor {
    char name[64];
    uint32_t type;
    int n_dims;
    uint64_t ne[4];
    uint64_t offset, bytes; /* from the start of the data */
};

/* What one trunk tensor of the pack becomes. */
struct job {
    enum make make;
    const struct sl_tensor *src, *other; /* other: the projection of a product */
    int out;                             /* index of its tensor; kv_b: k_b, and v_b follows */
    uint64_t units, src_unit, dst_unit;
    uint32_t crc32; /* of the pieces so far */
};

struct piece {
    int job; /* or -1: experts [first, first + n) of layer */
    int layer;
    uint64_t first, n; /* units */
    uint32_t crc32;
};

struct export
{
    const struct sl_pack *p;
    const struct sl_config *c;
    const struct sl_export_gguf_opts *o;
    const char *dst;
    struct sl_input *in;
    struct tensor *tensors;
    int n_tensors, tensor_room;
    struct job *jobs;
    int n_jobs, job_room;
    int *experts; /* [n_layers] tensor of the gate matrices; up and down follow */
    struct piece *pieces;
    int n_pieces;
    uint64_t task_bytes, data_bytes;
    char *header;
    size_t header_bytes; /* padded: where data begins */
    struct sl_kernels k;
    struct sl_jobs *pool;
    struct sl_progress *progress;
    struct sl_export_gguf_report *report;
    int fd;
    struct sl_err *err;
};

static int no_memory(const struct export *x)
{
    return sl_fail(x->err, SL_E_NOMEM, x->dst, NULL, "out of memory");
}

/* ---- planning -------------------------------------------------------------------------------------- */

static void *one_more(void **list, int *n, int *room, size_t size)
{
    if (*n == *room) {
        int more = *room ? *room * 2 : 256;
        void *p = realloc(*list, (size_t)more * size);
        if (!p) return NULL;
        *list = p;
        *room = more;
    }
    char *at = (char *)*list + (size_t)(*n)++ * size;
    memset(at, 0, size);
    return at;
}

/* Appends a tensor of ne[n_dims] (fastest first) in `type`; false: no memory. */
static bool add_tensor(struct export *x, const char *name, uint32_t type, int n_dims,
                       const uint64_t *ne)
{
    uint32_t weights = 1;
    uint32_t bytes = 1;
    struct tensor *t =
        one_more((void **)&x->tensors, &x->n_tensors, &x->tensor_room, sizeof *x->tensors);
    if (!t) return false;
    snprintf(t->name, sizeof t->name, "%s", name);
    t->type = type;
    t->n_dims = n_dims;
    sl_ggml_block(type, &weights, &bytes);
    t->bytes = bytes;
    for (int d = 0; d < n_dims; d++) {
        t->ne[d] = ne[d];
        t->bytes *= d ? ne[d] : ne[d] / weights; /* no more than the pack's own sizes */
    }
    t->offset = x->data_bytes;
    x->data_bytes = sl_align_up(t->offset + t->bytes, SL_GGUF_ALIGN);
    return true;
}

static uint32_t type_of(enum sl_fmt fmt)
{
    return fmt == SL_FMT_F32   ? SL_GGML_F32
           : fmt == SL_FMT_F16 ? SL_GGML_F16
           : fmt == SL_FMT_T8  ? SL_GGML_Q8_0
                               : SL_GGML_BF16;
}

static bool is_number(enum sl_fmt fmt)
{
    return fmt == SL_FMT_BF16 || fmt == SL_FMT_F32 || fmt == SL_FMT_F16;
}

static int refuse_fmt(const struct export *x, const struct sl_tensor *t)
{
    return sl_fail(x->err, SL_E_SOURCE, x->p->dir, t->name,
                   "stored as %s, which GGUF cannot hold; it takes trunks of bf16 and t8",
                   sl_fmt_name(t->fmt));
}

/* Elements of 2-byte or 4-byte numbers, to be copied or widened. */
static void plan_plain(struct job *j, const struct sl_tensor *t, bool f32)
{
    j->make = f32 && t->fmt != SL_FMT_F32 ? MAKE_WIDEN : MAKE_COPY;
    j->src_unit = t->fmt == SL_FMT_F32 ? 4 : 2;
    j->dst_unit = f32 ? 4 : j->src_unit;
    j->units = t->bytes / j->src_unit;
}

static int plan_kv_b(struct export *x, struct job *j, const struct sl_tensor *t,
                     const struct sl_gguf_name *n)
{
    uint64_t nope = (uint64_t)x->c->qk_nope_dim;
    uint64_t v = (uint64_t)x->c->v_head_dim;
    uint64_t lora = (uint64_t)x->c->kv_lora_rank;
    uint64_t heads = (uint64_t)x->c->n_heads;
    uint32_t type = t->fmt == SL_FMT_T8 ? SL_GGML_F32 : type_of(t->fmt);
    j->make = MAKE_KV_B;
    j->units = heads;
    j->src_unit = (nope + v) * sl_fmt_row_bytes(t->fmt, lora);
    j->dst_unit = (nope + v) * lora * (type == SL_GGML_F32 ? 4 : 2);
    if (!add_tensor(x, n->k_b, type, 3, (const uint64_t[3]){nope, lora, heads}) ||
        !add_tensor(x, n->v_b, type, 3, (const uint64_t[3]){lora, v, heads}))
        return no_memory(x);
    return 0;
}

/* The item as stored: one of the formats that GGUF has too. */
static int plan_stored(struct export *x, struct job *j, const struct sl_item *it,
                       const struct sl_gguf_name *n)
{
    const struct sl_tensor *t = j->src;
    uint64_t ne[4];
    uint64_t cols = (uint64_t)it->shape[it->n_dims - 1];
    bool plain = is_number(t->fmt);
    uint32_t type = n->f32 ? SL_GGML_F32 : type_of(t->fmt);
    if (!plain && (t->fmt != SL_FMT_T8 || it->n_dims != 2)) return refuse_fmt(x, t);
    if (n->k_b[0]) return plan_kv_b(x, j, t, n);
    if (plain) {
        plan_plain(j, t, n->f32);
    } else {
        j->make = cols % 32 ? MAKE_DECODE : MAKE_Q8_0;
        if (cols % 32) type = SL_GGML_F32;
        j->units = (uint64_t)it->shape[0];
        j->src_unit = sl_fmt_row_bytes(t->fmt, cols);
        j->dst_unit = cols % 32 ? 4 * cols : j->src_unit;
    }
    for (int d = 0; d < it->n_dims; d++) ne[d] = (uint64_t)it->shape[it->n_dims - 1 - d];
    return add_tensor(x, n->name, type, it->n_dims, ne) ? 0 : no_memory(x);
}

static const struct sl_tensor *layer_tensor(const struct export *x, int layer, const char *name)
{
    char full[128];
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    return sl_pack_find(x->p, full);
}

/* A product that the pack holds as its factors. */
static int plan_product(struct export *x, struct job *j, const struct sl_item *it,
                        const struct sl_gguf_name *n)
{
    static const char *const factors[][3] = {
        {"attn_res_score", "self_attention_res_norm.weight", "self_attention_res_proj.weight"},
        {"ffn_res_score", "mlp_res_norm.weight", "mlp_res_proj.weight"},
        {"output_res_score", "model.output_attn_res_norm.weight",
         "model.output_attn_res_proj.weight"},
    };
    const char *last = strrchr(it->name, '.') + 1;
    j->make = MAKE_SSM_A;
    j->src = layer_tensor(x, it->layer, "self_attn.A_log");
    for (int k = 0; k < 3; k++) {
        if (strcmp(last, factors[k][0]) != 0) continue;
        j->make = MAKE_PRODUCT;
        j->src = layer_tensor(x, it->layer, factors[k][1]);
        j->other = layer_tensor(x, it->layer, factors[k][2]);
    }
    if (!j->src || (j->make == MAKE_PRODUCT && !j->other))
        return sl_fail(x->err, SL_E_PACK, x->p->dir, it->name, "not in this pack, nor its factors");
    if (j->make == MAKE_SSM_A ? j->src->fmt != SL_FMT_F32
                              : !is_number(j->src->fmt) || !is_number(j->other->fmt))
        return refuse_fmt(x, j->src);
    j->units = 1;
    j->src_unit = j->src->bytes + (j->other ? j->other->bytes : 0);
    j->dst_unit = 4 * (uint64_t)it->shape[0];
    return add_tensor(x, n->name, SL_GGML_F32, 1, (const uint64_t[1]){(uint64_t)it->shape[0]})
               ? 0
               : no_memory(x);
}

static int plan_item(void *ctx, const struct sl_item *it)
{
    struct export *x = ctx;
    struct sl_gguf_name n;
    if (!sl_gguf_name_item(x->c, it, &n))
        return sl_fail(x->err, SL_E_SOURCE, x->p->dir, it->name, "has no name in GGUF");
    struct job *j = one_more((void **)&x->jobs, &x->n_jobs, &x->job_room, sizeof *x->jobs);
    if (!j) return no_memory(x);
    j->out = x->n_tensors;
    j->src = sl_pack_find(x->p, it->name);
    return j->src ? plan_stored(x, j, it, &n) : plan_product(x, j, it, &n);
}

static int plan_experts(struct export *x)
{
    x->experts = calloc((size_t)x->c->n_layers, sizeof *x->experts);
    if (!x->experts) return no_memory(x);
    for (int l = 0; l < x->c->n_layers; l++) {
        x->experts[l] = x->n_tensors;
        for (int m = 0; m < SL_N_MATS && sl_config_is_moe(x->c, l); m++) {
            char name[64];
            const uint64_t ne[3] = {(uint64_t)sl_mat_cols(x->c, m), (uint64_t)sl_mat_rows(x->c, m),
                                    (uint64_t)x->c->n_experts};
            sl_gguf_name_experts(l, m, name);
            if (!add_tensor(x, name, SL_GGML_MXFP4, 3, ne)) return no_memory(x);
        }
    }
    return 0;
}

/* ---- pieces ---------------------------------------------------------------------------------------- */

/* Bytes of an expert's matrix in blocks, and of all three. */
static uint64_t mat_bytes(const struct sl_config *c, int m)
{
    return sl_mat_scales_bytes(c, m) * SL_GGML_MXFP4_BYTES;
}
static uint64_t expert_bytes(const struct sl_config *c)
{
    return mat_bytes(c, SL_GATE) + mat_bytes(c, SL_UP) + mat_bytes(c, SL_DOWN);
}

static uint64_t per_piece(const struct export *x, uint64_t unit_bytes)
{
    return unit_bytes < x->task_bytes ? x->task_bytes / unit_bytes : 1;
}

static int cut(const struct export *x, struct piece *out)
{
    int n = 0;
    for (int i = 0; i < x->n_jobs; i++) {
        const struct job *j = &x->jobs[i];
        uint64_t per = per_piece(x, j->src_unit > j->dst_unit ? j->src_unit : j->dst_unit);
        for (uint64_t at = 0; at < j->units; at += per, n++)
            if (out)
                out[n] = (struct piece){
                    .job = i, .first = at, .n = j->units - at < per ? j->units - at : per};
    }
    uint64_t group = per_piece(x, expert_bytes(x->c));
    uint64_t all = (uint64_t)x->c->n_experts;
    for (int l = 0; l < x->c->n_layers; l++)
        for (uint64_t at = 0; sl_config_is_moe(x->c, l) && at < all; at += group, n++)
            if (out)
                out[n] = (struct piece){
                    .job = -1, .layer = l, .first = at, .n = all - at < group ? all - at : group};
    return n;
}

static uint64_t buffer_bytes(const struct export *x)
{
    uint64_t most = sl_align_up(x->in->scratch_bytes, 64) +
                    per_piece(x, expert_bytes(x->c)) * expert_bytes(x->c);
    for (int i = 0; i < x->n_jobs; i++) {
        const struct job *j = &x->jobs[i];
        uint64_t per = per_piece(x, j->src_unit > j->dst_unit ? j->src_unit : j->dst_unit);
        if (per > j->units) per = j->units;
        uint64_t need = sl_align_up(per * j->src_unit, 64) + per * j->dst_unit;
        if (j->make == MAKE_KV_B) need += 4 * (uint64_t)x->c->kv_lora_rank;
        if (need > most) most = need;
    }
    return sl_align_up(most, SL_PAGE);
}

/* ---- making bytes ---------------------------------------------------------------------------------- */

static float load(enum sl_fmt fmt, const uint8_t *p)
{
    if (fmt == SL_FMT_BF16) return sl_bf16_to_f32(sl_le16(p));
    if (fmt == SL_FMT_F16) return sl_f16_to_f32(sl_le16(p));
    uint32_t bits = sl_le32(p);
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void store_f32(float f, uint8_t *p)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    for (int b = 0; b < 4; b++) p[b] = (uint8_t)(bits >> 8 * b);
}

/* A row of t8: n columns as f32. */
static void decode_t8(const uint8_t *row, uint64_t n, float *out)
{
    const uint8_t *scales = row + 32 * ((n + 31) / 32);
    for (uint64_t i = 0; i < n; i++)
        out[i] = (float)(int8_t)row[i] * sl_f16_to_f32(sl_le16(scales + 2 * (i / 32)));
}

static void make_q8_0(const uint8_t *row, uint64_t row_bytes, uint8_t *out)
{
    uint64_t blocks = row_bytes / SL_GGML_Q8_0_BYTES;
    for (uint64_t b = 0; b < blocks; b++) {
        memcpy(out + b * SL_GGML_Q8_0_BYTES, row + 32 * blocks + 2 * b, 2);
        memcpy(out + b * SL_GGML_Q8_0_BYTES + 2, row + 32 * b, 32);
    }
}

/* One head: its first rows become columns of k_b at `k`, the others v_b at `v`. */
static void make_head(const struct export *x, const struct job *j, const uint8_t *src, uint8_t *k,
                      uint8_t *v, float *row)
{
    uint64_t nope = (uint64_t)x->c->qk_nope_dim;
    uint64_t rows = nope + (uint64_t)x->c->v_head_dim;
    uint64_t lora = (uint64_t)x->c->kv_lora_rank;
    uint64_t row_bytes = sl_fmt_row_bytes(j->src->fmt, lora);
    bool t8 = j->src->fmt == SL_FMT_T8;
    uint64_t size = t8 ? 4 : row_bytes / lora;
    for (uint64_t r = 0; r < rows; r++) {
        const uint8_t *from = src + r * row_bytes;
        if (t8) decode_t8(from, lora, row);
        for (uint64_t i = 0; i < lora; i++) {
            uint8_t *to = r < nope ? k + (i * nope + r) * size : v + ((r - nope) * lora + i) * size;
            if (t8)
                store_f32(row[i], to);
            else
                memcpy(to, from + i * size, size);
        }
    }
}

static void make_product(const struct export *x, const struct job *j, const uint8_t *src,
                         uint8_t *out)
{
    uint64_t n = j->dst_unit / 4;
    const uint8_t *proj = src + j->src->bytes;
    for (uint64_t i = 0; i < n; i++) {
        if (j->make == MAKE_PRODUCT) {
            float a = load(j->src->fmt, src + i * (j->src->fmt == SL_FMT_F32 ? 4 : 2));
            float b = load(j->other->fmt, proj + i * (j->other->fmt == SL_FMT_F32 ? 4 : 2));
            store_f32(a * b, out + 4 * i);
        } else {
            float a = load(j->src->fmt, src + 4 * i);
            float e;
            x->k.exp(&e, &a, 1);
            store_f32(-e, out + 4 * i);
        }
    }
}

/* Planes of one matrix to blocks. */
static void join_blocks(const uint8_t *codes, const uint8_t *scales, uint64_t n_blocks,
                        uint8_t *out)
{
    for (uint64_t b = 0; b < n_blocks; b++) {
        const uint8_t *c = codes + 16 * b;
        *out++ = scales[b];
        for (int k = 0; k < 8; k++) {
            *out++ = (uint8_t)((c[k] & 15) | c[k + 8] << 4);
            *out++ = (uint8_t)(c[k] >> 4 | (c[k + 8] & 0xf0));
        }
    }
}

/* ---- writing --------------------------------------------------------------------------------------- */

static int put_data(const struct export *x, const struct tensor *t, uint64_t at, const void *data,
                    uint64_t n, struct sl_err *err)
{
    return sl_pwrite_all(x->fd, data, n, x->header_bytes + t->offset + at, x->dst, err);
}

static int read_trunk(const struct export *x, const struct sl_tensor *t, uint64_t at, void *buf,
                      uint64_t n, struct sl_err *err)
{
    return sl_pread_all(x->p->trunk_fd, buf, n, t->offset + at, "trunk.bin", SL_E_PACK, err);
}

static int bad_crc(const struct sl_tensor *t, uint32_t crc, struct sl_err *err)
{
    return sl_fail(err, SL_E_PACK, "trunk.bin", t->name,
                   "crc32 %08x, expected %08x; run 'sluice verify PACK --full'", crc, t->crc32);
}

/* Both factors of a product, whole, checked at once. */
static int read_factors(const struct export *x, const struct job *j, uint8_t *src,
                        struct sl_err *err)
{
    const struct sl_tensor *t[2] = {j->src, j->other};
    for (int k = 0; k < 2 && t[k]; k++) {
        int rc = read_trunk(x, t[k], 0, src, t[k]->bytes, err);
        if (rc) return rc;
        uint32_t crc = sl_crc32(0, src, t[k]->bytes);
        if (crc != t[k]->crc32) return bad_crc(t[k], crc, err);
        src += t[k]->bytes;
    }
    return 0;
}

static int write_kv_b(const struct export *x, const struct job *j, const struct piece *p,
                      const uint8_t *src, uint8_t *dst, struct sl_err *err)
{
    const struct tensor *k = &x->tensors[j->out];
    uint64_t k_head = k->bytes / j->units;
    uint64_t v_head = k[1].bytes / j->units;
    uint8_t *v = dst + p->n * k_head;
    float *row = (float *)(void *)(v + p->n * v_head); /* sizes are multiples of 4 for t8 */
    for (uint64_t i = 0; i < p->n; i++)
        make_head(x, j, src + i * j->src_unit, dst + i * k_head, v + i * v_head, row);
    int rc = put_data(x, k, p->first * k_head, dst, p->n * k_head, err);
    return rc ? rc : put_data(x, k + 1, p->first * v_head, v, p->n * v_head, err);
}

static int write_trunk_piece(const struct export *x, struct piece *p, uint8_t *buf,
                             struct sl_err *err)
{
    const struct job *j = &x->jobs[p->job];
    uint8_t *src = buf;
    uint8_t *dst = buf + sl_align_up(p->n * j->src_unit, 64);
    if (j->make == MAKE_PRODUCT || j->make == MAKE_SSM_A) {
        int rc = read_factors(x, j, src, err);
        if (rc) return rc;
        make_product(x, j, src, dst);
        return put_data(x, &x->tensors[j->out], 0, dst, j->dst_unit, err);
    }
    int rc = read_trunk(x, j->src, p->first * j->src_unit, src, p->n * j->src_unit, err);
    if (rc) return rc;
    p->crc32 = sl_crc32(0, src, p->n * j->src_unit);
    if (j->make == MAKE_KV_B) return write_kv_b(x, j, p, src, dst, err);
    for (uint64_t i = 0; i < p->n && j->make != MAKE_COPY; i++) {
        const uint8_t *from = src + i * j->src_unit;
        uint8_t *to = dst + i * j->dst_unit;
        if (j->make == MAKE_WIDEN) store_f32(load(j->src->fmt, from), to);
        if (j->make == MAKE_Q8_0) make_q8_0(from, j->src_unit, to);
        if (j->make == MAKE_DECODE) decode_t8(from, j->dst_unit / 4, (float *)(void *)to);
    }
    return put_data(x, &x->tensors[j->out], p->first * j->dst_unit,
                    j->make == MAKE_COPY ? src : dst, p->n * j->dst_unit, err);
}

static int write_experts(const struct export *x, const struct piece *p, uint8_t *buf,
                         struct sl_err *err)
{
    uint8_t *blocks = buf + sl_align_up(x->in->scratch_bytes, 64);
    uint8_t *at[SL_N_MATS];
    int rc = 0;
    for (int m = 0; m < SL_N_MATS; m++) {
        at[m] = blocks;
        blocks += p->n * mat_bytes(x->c, m);
    }
    for (uint64_t i = 0; i < p->n && !rc; i++) {
        struct sl_in_expert e;
        rc = x->in->ops->read_expert(x->in, p->layer, (int)(p->first + i), buf, &e, err);
        for (int m = 0; m < SL_N_MATS && !rc; m++)
            join_blocks(e.codes[m], e.scales[m], sl_mat_scales_bytes(x->c, m),
                        at[m] + i * mat_bytes(x->c, m));
    }
    for (int m = 0; m < SL_N_MATS && !rc; m++)
        rc = put_data(x, &x->tensors[x->experts[p->layer] + m], p->first * mat_bytes(x->c, m),
                      at[m], p->n * mat_bytes(x->c, m), err);
    return rc;
}

static int write_piece(void *ctx, int task, uint8_t *buf, struct sl_err *err)
{
    struct export *x = ctx;
    struct piece *p = &x->pieces[task];
    int rc = p->job < 0 ? write_experts(x, p, buf, err) : write_trunk_piece(x, p, buf, err);
    uint64_t unit = p->job < 0 ? expert_bytes(x->c) : x->jobs[p->job].dst_unit;
    if (!rc) sl_progress_add(x->progress, 0, p->n * unit);
    return rc;
}

static int check_crcs(const struct export *x)
{
    for (int i = 0; i < x->n_pieces; i++) {
        const struct piece *p = &x->pieces[i];
        if (p->job < 0) break;
        struct job *j = &x->jobs[p->job];
        j->crc32 = sl_crc32_combine(j->crc32, p->crc32, p->n * j->src_unit);
    }
    for (int i = 0; i < x->n_jobs; i++) {
        const struct job *j = &x->jobs[i];
        if (j->make == MAKE_PRODUCT || j->make == MAKE_SSM_A) continue;
        if (j->crc32 != j->src->crc32) return bad_crc(j->src, j->crc32, x->err);
    }
    return 0;
}

/* ---- header ---------------------------------------------------------------------------------------- */

static int put_values(struct export *x, struct sl_gguf_put *p)
{
    sl_gguf_put_str(p, "general.architecture", SL_GGUF_ARCH);
    sl_gguf_put_str(p, "general.type", "model");
    sl_gguf_put_str(p, "general.name", x->p->synthetic ? "Synthetic weights" : "Kimi K3");
    sl_gguf_put_u32(p, "general.file_type", FILE_TYPE_MXFP4_MOE);
    sl_gguf_put_u32(p, "general.quantization_version", 2);
    if (x->p->synthetic) sl_gguf_put_bool(p, SL_GGUF_SYNTHETIC, true);
    sl_gguf_config_put(p, x->c);
    return sl_gguf_vocab_put(p, x->o->vocab, x->c->bos_id, x->c->eos_id, x->c->pad_id, x->p->dir,
                             x->err);
}

static int make_header(struct export *x)
{
    FILE *f = open_memstream(&x->header, &x->header_bytes);
    if (!f) return no_memory(x);
    struct sl_gguf_put p = {.f = f};
    fwrite(SL_GGUF_MAGIC, 1, 4, f);
    sl_gguf_raw_u32(f, SL_GGUF_VERSION);
    sl_gguf_raw_u64(f, (uint64_t)x->n_tensors);
    sl_gguf_raw_u64(f, 0); /* number of values, known below */
    int rc = put_values(x, &p);
    for (int i = 0; i < x->n_tensors; i++) {
        const struct tensor *t = &x->tensors[i];
        sl_gguf_raw_str(f, t->name, strlen(t->name));
        sl_gguf_raw_u32(f, (uint32_t)t->n_dims);
        for (int d = 0; d < t->n_dims; d++) sl_gguf_raw_u64(f, t->ne[d]);
        sl_gguf_raw_u32(f, t->type);
        sl_gguf_raw_u64(f, t->offset);
    }
    for (long n = ftell(f); n % SL_GGUF_ALIGN; n++) putc(0, f);
    int bad = ferror(f);
    bad |= fclose(f);
    if (!rc && bad) rc = no_memory(x);
    for (int b = 0; !rc && b < 8; b++) x->header[16 + b] = (char)(p.n >> 8 * b);
    return rc;
}

/* ---- whole ----------------------------------------------------------------------------------------- */

static int check_dst(const struct export *x)
{
    struct stat st;
    if (!lstat(x->dst, &st))
        return sl_fail(x->err, SL_E_ARG, x->dst, NULL,
                       S_ISDIR(st.st_mode) ? "is a folder; name the file to write"
                                           : "exists already");
    return 0;
}

static int plan(struct export *x)
{
    int rc = sl_gguf_config_check(x->c, x->p->dir, x->err);
    if (!rc) rc = sl_inventory_form(x->c, SL_FORM_FUSED, plan_item, x);
    x->report->trunk_bytes = x->data_bytes;
    if (!rc) rc = plan_experts(x);
    x->report->expert_bytes = x->data_bytes - x->report->trunk_bytes;
    if (!rc) rc = make_header(x);
    if (rc) return rc;
    struct sl_export_gguf_report *r = x->report;
    r->header_bytes = x->header_bytes;
    r->total_bytes = x->header_bytes + x->data_bytes;
    r->n_tensors = (uint32_t)x->n_tensors;
    rc = sl_free_space(x->dst, &r->free_bytes, x->err);
    if (!rc && r->total_bytes > r->free_bytes) r->missing_bytes = r->total_bytes - r->free_bytes;
    return rc;
}

static int refuse_space(const struct export *x)
{
    const struct sl_export_gguf_report *r = x->report;
    return sl_fail(x->err, SL_E_NOSPACE, x->dst, "disk space",
                   "needs %" PRIu64 " bytes, %" PRIu64 " are free: %" PRIu64 " bytes are missing",
                   r->total_bytes, r->free_bytes, r->missing_bytes);
}

static int write_all(struct export *x)
{
    x->n_pieces = cut(x, NULL);
    x->pieces = calloc((size_t)x->n_pieces + 1, sizeof *x->pieces);
    if (!x->pieces) return no_memory(x);
    cut(x, x->pieces);
    int rc = sl_jobs_open(&x->pool, x->o->jobs, buffer_bytes(x), SL_JOB_BUDGET, "export", x->err);
    if (!rc) rc = sl_tmp_open(&x->fd, x->dst, false, x->err);
    if (rc) return rc;
    /* The last bytes of all may be padding that nothing writes. */
    if (ftruncate(x->fd, (off_t)x->report->total_bytes))
        rc = sl_fail_errno(x->err, SL_E_IO, errno, x->dst, "resize");
    if (!rc && fallocate(x->fd, 0, 0, (off_t)x->report->total_bytes) && errno != EOPNOTSUPP &&
        errno != ENOSYS && errno != EINVAL)
        rc = sl_fail_errno(x->err, SL_E_IO, errno, x->dst, "reserve space");
    if (!rc) rc = sl_pwrite_all(x->fd, x->header, x->header_bytes, 0, x->dst, x->err);
    x->progress = sl_progress_open("export", NULL, 0, x->data_bytes);
    if (!rc) rc = sl_jobs_run(x->pool, x->n_pieces, write_piece, x, x->err);
    if (!rc) rc = check_crcs(x);
    sl_progress_close(x->progress);
    if (!rc) return sl_tmp_publish(x->fd, x->dst, x->err);
    sl_tmp_discard(x->fd, x->dst);
    return rc;
}

int sl_export_gguf(const struct sl_pack *p, const char *dst, const struct sl_export_gguf_opts *o,
                   struct sl_export_gguf_report *report, struct sl_err *err)
{
    struct timespec t0;
    struct timespec t1;
    struct export x = {.p = p, .c = &p->cfg, .o = o, .dst = dst, .err = err, .fd = -1};
    x.report = report;
    x.task_bytes = o->task_bytes ? o->task_bytes : SL_TASK_BYTES;
    memset(report, 0, sizeof *report);
    clock_gettime(CLOCK_MONOTONIC, &t0);
    sl_kernels_init(&x.k, 0); /* the reference: the same bits on every machine */
    int rc = check_dst(&x);
    if (!rc) rc = sl_input_open_pack_experts(&x.in, p, err);
    if (!rc) rc = plan(&x);
    if (!rc && !o->dry_run) rc = report->missing_bytes ? refuse_space(&x) : write_all(&x);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    report->seconds = (double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-9;
    sl_jobs_close(x.pool);
    sl_input_close(x.in);
    free(x.tensors);
    free(x.jobs);
    free(x.experts);
    free(x.pieces);
    free(x.header);
    return rc;
}
