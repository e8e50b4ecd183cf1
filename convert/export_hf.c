/* export --format hf: a lossless pack back into a checkpoint folder of the released layout.
 *
 *   model-00001-of-N  layer 0 | ... | layer L-1 | globals | mm_projector | vision_tower
 *
 * One shard a layer, as released; a shard is a safetensors file whose tensors are, byte for byte, those
 * of the source: experts are decoded back to mxfp4, everything else was carried verbatim. Inside a
 * shard they lie as the safetensors writer puts them (widest type first, then by name as text, no
 * metadata), the order that gives the file sizes of the release; experts are then the last ones, each
 * in one piece. Checksums are compared on the way. The index comes last: a folder without it is an
 * export that was cut short. */
#define _GNU_SOURCE
#include "convert/convert.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/progress.h"
#include "base/size.h"
#include "convert/input.h"
#include "convert/jobs.h"
#include "convert/json_put.h"
#include "convert/plan_pack.h"
#include "convert/safetensors.h"
#include "offload/pack.h"

#define INDEX_NAME "model.safetensors.index.json"

/* A tensor that is no expert's, and where its bytes go in the shard. */
struct plain {
    struct sl_in_tensor t;
    uint64_t offset;
    uint32_t crc32; /* of the pieces so far, combined in order */
};

struct piece {
    int plain;          /* index, or -1: experts [first, first + n) */
    int first, n;       /* places in `order` */
    uint64_t at, bytes; /* within the tensor */
    uint32_t crc32;
};

struct shard {
    char name[64];
    int layer;     /* -1 for the others */
    int n_experts; /* 0, or all of the layer's */
    struct plain *plain;
    int n_plain;
    uint64_t header_bytes, expert_offset, bytes;
    char *header; /* with its length field */
};

struct export
{
    struct sl_input *in;
    const char *dst;
    struct shard *shards;
    int n_shards;
    int group;  /* experts a task */
    int *order; /* [n_experts] ids by their names as text: 0, 1, 10, 100, ... */
    uint64_t task_bytes;
    struct sl_jobs *jobs;
    struct sl_progress *progress;
    struct sl_err *err;
    bool made_dst;
    /* of the shard being written */
    const struct shard *now;
    struct piece *pieces;
    int n_pieces, fd;
};

static int no_memory(const struct export *x)
{
    return sl_fail(x->err, SL_E_NOMEM, x->dst, NULL, "out of memory");
}

/* ---- which tensor is in which shard -------------------------------------------------------------- */

static int add_plain(struct export *x, struct shard *s, const struct sl_in_tensor *t)
{
    struct plain *more = realloc(s->plain, (size_t)(s->n_plain + 1) * sizeof *more);
    if (!more) return no_memory(x);
    s->plain = more;
    s->plain[s->n_plain++] = (struct plain){.t = *t};
    return 0;
}

static int place_item(void *ctx, const struct sl_item *it)
{
    struct export *x = ctx;
    struct sl_in_tensor t;
    if (!x->in->ops->find(x->in, it->name, &t))
        return sl_fail(x->err, SL_E_SOURCE, x->in->pack->dir, it->name, "not in this pack");
    int at = it->layer < 0 ? x->in->cfg.n_layers : it->layer;
    return add_plain(x, &x->shards[at], &t);
}

static int place_all(struct export *x)
{
    int n_layers = x->in->cfg.n_layers;
    x->shards = calloc((size_t)n_layers + 3, sizeof *x->shards);
    if (!x->shards) return no_memory(x);
    x->n_shards = n_layers + 1;
    for (int i = 0; i < n_layers + 3; i++) {
        x->shards[i].layer = i < n_layers ? i : -1;
        if (i < n_layers && sl_config_is_moe(&x->in->cfg, i))
            x->shards[i].n_experts = x->in->cfg.n_experts;
    }
    int rc = sl_inventory_trunk(&x->in->cfg, place_item, x);
    static const char *const parts[] = {"mm_projector.", "vision_tower."};
    for (int k = 0; k < 2; k++) {
        struct shard *s = &x->shards[x->n_shards];
        for (int i = 0; !rc && i < x->in->n_vision; i++) {
            struct sl_in_tensor t;
            x->in->ops->vision(x->in, i, &t);
            if (!strncmp(t.name, parts[k], strlen(parts[k]))) rc = add_plain(x, s, &t);
        }
        x->n_shards += s->n_plain > 0;
    }
    for (int i = 0; i < x->n_shards; i++)
        snprintf(x->shards[i].name, sizeof x->shards[i].name, "model-%05d-of-%06d.safetensors",
                 i + 1, x->n_shards);
    return rc;
}

/* Descending order of types in the safetensors writer. */
static int type_rank(int dtype)
{
    return dtype == SL_DT_F32 ? 0 : dtype == SL_DT_BF16 ? 1 : dtype == SL_DT_F16 ? 2 : 3;
}

static int by_type_and_name(const void *a, const void *b)
{
    const struct sl_in_tensor *x = &((const struct plain *)a)->t;
    const struct sl_in_tensor *y = &((const struct plain *)b)->t;
    int d = type_rank(x->dtype) - type_rank(y->dtype);
    return d ? d : strcmp(x->name, y->name); /* the prefix is the same for all of a shard */
}

static int by_text(const void *a, const void *b)
{
    char x[16];
    char y[16];
    snprintf(x, sizeof x, "%d.", *(const int *)a);
    snprintf(y, sizeof y, "%d.", *(const int *)b);
    return strcmp(x, y);
}

static int sort_all(struct export *x)
{
    int n = x->in->cfg.n_experts;
    x->order = calloc((size_t)n + 1, sizeof *x->order);
    if (!x->order) return no_memory(x);
    for (int e = 0; e < n; e++) x->order[e] = e;
    qsort(x->order, (size_t)n, sizeof *x->order, by_text);
    for (int i = 0; i < x->n_shards; i++)
        if (x->shards[i].n_plain)
            qsort(x->shards[i].plain, (size_t)x->shards[i].n_plain, sizeof *x->shards[i].plain,
                  by_type_and_name);
    return 0;
}

/* ---- headers -------------------------------------------------------------------------------------- */

static void full_name(const struct export *x, const char *name, char *out, size_t n)
{
    snprintf(out, n, "%s%s", sl_source_is_vision(name) ? "" : x->in->prefix, name);
}

static void put_entry(FILE *f, const char *name, int dtype, int n_dims, const int64_t *shape,
                      uint64_t *at, uint64_t bytes)
{
    putc(*at ? ',' : '{', f);
    sl_json_put_string(f, name);
    fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", sl_dtype_name(dtype));
    for (int d = 0; d < n_dims; d++) fprintf(f, "%s%" PRId64, d ? "," : "", shape[d]);
    fprintf(f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", *at, *at + bytes);
    *at += bytes;
}

/* gate, up, down are w1, w3, w2; by name w2 comes before w3. */
static const int mats_by_name[SL_N_MATS] = {SL_GATE, SL_DOWN, SL_UP};

struct expert_names {
    const struct export *x;
    FILE *f;
    uint64_t *at;
    const char *shard; /* the index wants names and shard, the header (NULL) shapes */
    struct sl_item items[2 * SL_N_MATS];
    int n;
};

static int keep_item(void *ctx, const struct sl_item *it)
{
    struct expert_names *k = ctx;
    k->items[k->n++] = *it;
    return 0;
}

/* The six tensors of an expert, by name; put_expert() lays out their bytes alike. */
static void put_expert_tensors(struct expert_names *k, int layer, int expert)
{
    char name[256];
    k->n = 0;
    sl_inventory_experts(&k->x->in->cfg, layer, expert, keep_item, k);
    for (int i = 0; i < k->n; i++) {
        const struct sl_item *it = &k->items[2 * mats_by_name[i / 2] + i % 2];
        full_name(k->x, it->name, name, sizeof name);
        if (k->shard) {
            fputs(",\n    ", k->f);
            sl_json_put_string(k->f, name);
            fprintf(k->f, ": \"%s\"", k->shard);
        } else {
            put_entry(k->f, name, it->dtype, it->n_dims, it->shape, k->at,
                      (uint64_t)it->shape[0] * (uint64_t)it->shape[1]);
        }
    }
}

static int make_header(struct export *x, struct shard *s)
{
    size_t len = 0;
    uint64_t at = 0;
    char name[256];
    FILE *f = open_memstream(&s->header, &len);
    if (!f) return no_memory(x);
    fputs("________", f); /* the length goes here */
    for (int i = 0; i < s->n_plain; i++) {
        const struct sl_in_tensor *t = &s->plain[i].t;
        s->plain[i].offset = at;
        full_name(x, t->name, name, sizeof name);
        put_entry(f, name, t->dtype, t->n_dims, t->shape, &at, t->bytes);
    }
    s->expert_offset = at;
    struct expert_names k = {.x = x, .f = f, .at = &at};
    for (int e = 0; e < s->n_experts; e++) put_expert_tensors(&k, s->layer, x->order[e]);
    putc('}', f);
    for (long n = ftell(f); n % 8; n++) putc(' ', f);
    int bad = ferror(f);
    bad |= fclose(f);
    if (bad) return no_memory(x);
    for (int b = 0; b < 8; b++) s->header[b] = (char)((len - 8) >> 8 * b);
    s->header_bytes = len;
    s->bytes = len + at;
    return 0;
}

/* ---- writing one shard ---------------------------------------------------------------------------- */

static int cut(const struct export *x, const struct shard *s, struct piece *out)
{
    int n = 0;
    for (int i = 0; i < s->n_plain; i++)
        for (uint64_t at = 0; at < s->plain[i].t.bytes; at += x->task_bytes) {
            uint64_t left = s->plain[i].t.bytes - at;
            struct piece p = {.plain = i, .at = at};
            p.bytes = left < x->task_bytes ? left : x->task_bytes;
            if (out) out[n] = p;
            n++;
        }
    for (int e = 0; e < s->n_experts; e += x->group) {
        struct piece p = {.plain = -1, .first = e};
        p.n = s->n_experts - e < x->group ? s->n_experts - e : x->group;
        if (out) out[n] = p;
        n++;
    }
    return n;
}

/* The six tensors of one expert, by name. */
static int put_expert(const struct export *x, int expert, uint8_t *scratch, uint8_t *out,
                      struct sl_err *err)
{
    const struct sl_config *c = &x->in->cfg;
    struct sl_in_expert e;
    int rc = x->in->ops->read_expert(x->in, x->now->layer, expert, scratch, &e, err);
    for (int i = 0; !rc && i < SL_N_MATS; i++) {
        int m = mats_by_name[i];
        memcpy(out, e.codes[m], sl_mat_codes_bytes(c, m));
        out += sl_mat_codes_bytes(c, m);
        memcpy(out, e.scales[m], sl_mat_scales_bytes(c, m));
        out += sl_mat_scales_bytes(c, m);
    }
    return rc;
}

static int write_piece(void *ctx, int task, uint8_t *buf, struct sl_err *err)
{
    struct export *x = ctx;
    struct piece *p = &x->pieces[task];
    const struct shard *s = x->now;
    uint64_t offset = s->header_bytes;
    uint64_t bytes = p->bytes;
    uint8_t *data = buf;
    int rc = 0;

    if (p->plain >= 0) {
        const struct plain *t = &s->plain[p->plain];
        rc = x->in->ops->read(x->in, &t->t, p->at, buf, bytes, err);
        if (rc) return rc;
        p->crc32 = sl_crc32(0, buf, bytes);
        offset += t->offset + p->at;
    } else {
        uint64_t one = sl_expert_bytes(&x->in->cfg);
        data = buf + sl_align_up(x->in->scratch_bytes, SL_PAGE);
        bytes = one * (uint64_t)p->n;
        for (int i = 0; !rc && i < p->n; i++)
            rc = put_expert(x, x->order[p->first + i], buf, data + one * (uint64_t)i, err);
        if (rc) return rc;
        offset += s->expert_offset + one * (uint64_t)p->first;
    }
    rc = sl_pwrite_all(x->fd, data, bytes, offset, s->name, err);
    if (!rc) sl_progress_add(x->progress, 0, bytes);
    return rc;
}

static int check_crcs(const struct export *x, const struct shard *s)
{
    for (int i = 0; i < x->n_pieces; i++) {
        const struct piece *p = &x->pieces[i];
        if (p->plain < 0) continue;
        struct plain *t = &s->plain[p->plain];
        t->crc32 = sl_crc32_combine(t->crc32, p->crc32, p->bytes);
    }
    for (int i = 0; i < s->n_plain; i++) {
        const struct plain *t = &s->plain[i];
        if (t->t.has_crc && t->t.crc32 != t->crc32)
            return sl_fail(x->err, SL_E_PACK, x->in->pack->dir, t->t.name,
                           "crc32 %08x, expected %08x", t->crc32, t->t.crc32);
    }
    return 0;
}

static int write_shard(struct export *x, const struct shard *s)
{
    char path[SL_PATH_MAX];
    int rc;

    if (!sl_path_join(path, x->dst, s->name))
        return sl_fail(x->err, SL_E_ARG, x->dst, NULL, "path too long");
    x->now = s;
    x->n_pieces = cut(x, s, NULL);
    x->pieces = calloc((size_t)x->n_pieces + 1, sizeof *x->pieces);
    if (!x->pieces) return no_memory(x);
    cut(x, s, x->pieces);
    rc = sl_tmp_open(&x->fd, path, false, x->err);
    if (rc) goto out;
    rc = sl_pwrite_all(x->fd, s->header, s->header_bytes, 0, s->name, x->err);
    if (!rc) rc = sl_jobs_run(x->jobs, x->n_pieces, write_piece, x, x->err);
    if (!rc) rc = check_crcs(x, s);
    if (rc)
        sl_tmp_discard(x->fd, path);
    else
        rc = sl_tmp_publish(x->fd, path, x->err);
    if (!rc) sl_progress_add(x->progress, 1, s->header_bytes);
out:
    free(x->pieces);
    x->pieces = NULL;
    return rc;
}

/* ---- the rest of the folder ----------------------------------------------------------------------- */

static int write_index(struct export *x)
{
    char path[SL_PATH_MAX];
    char *text = NULL;
    size_t len = 0;
    uint64_t total = 0;
    FILE *f = open_memstream(&text, &len);
    if (!f) return no_memory(x);
    for (int i = 0; i < x->n_shards; i++) total += x->shards[i].bytes - x->shards[i].header_bytes;
    fprintf(f, "{\n  \"metadata\": {\"total_size\": %" PRIu64 "},\n  \"weight_map\": {", total);
    bool first = true;
    for (int i = 0; i < x->n_shards; i++) {
        const struct shard *s = &x->shards[i];
        char name[256];
        for (int k = 0; k < s->n_plain; k++, first = false) {
            fputs(first ? "\n    " : ",\n    ", f);
            full_name(x, s->plain[k].t.name, name, sizeof name);
            sl_json_put_string(f, name);
            fprintf(f, ": \"%s\"", s->name);
        }
        struct expert_names k = {.x = x, .f = f, .shard = s->name};
        for (int e = 0; e < s->n_experts; e++) put_expert_tensors(&k, s->layer, x->order[e]);
    }
    fputs("\n  }\n}\n", f);
    int bad = ferror(f);
    bad |= fclose(f);
    int rc = bad ? no_memory(x) : 0;
    if (!rc && !sl_path_join(path, x->dst, INDEX_NAME))
        rc = sl_fail(x->err, SL_E_ARG, x->dst, NULL, "path too long");
    if (!rc) rc = sl_write_file(path, text, len, x->err);
    free(text);
    return rc;
}

static int check_dst(struct export *x)
{
    int n = sl_count_entries(x->dst, NULL);
    x->made_dst = n < 0 && errno == ENOENT;
    if (x->made_dst || !n) return 0;
    if (n < 0) return sl_fail_errno(x->err, SL_E_ARG, errno, x->dst, "open");
    return sl_fail(x->err, SL_E_ARG, x->dst, NULL, "is not empty");
}

static int check_space(struct export *x, uint64_t *total)
{
    uint64_t need = 0;
    uint64_t have;
    uint64_t size;
    for (int i = 0; i < x->n_shards; i++) need += sl_align_up(x->shards[i].bytes, SL_PAGE);
    *total = need;
    for (int i = 0; i < x->n_shards; i++) need += x->shards[i].header_bytes; /* index, about */
    for (int i = 0; i < x->in->n_extra; i++)
        if (!sl_file_size(x->in->extra_paths[i], &size, SL_E_PACK, NULL))
            need += sl_align_up(size, SL_PAGE);
    int rc = sl_free_space(x->dst, &have, x->err);
    if (rc || need <= have) return rc;
    return sl_fail(x->err, SL_E_NOSPACE, x->dst, "disk space",
                   "needs %" PRIu64 " bytes, %" PRIu64 " are free: %" PRIu64 " bytes are missing",
                   need, have, need - have);
}

/* Removes what this run wrote: only names it could have made. */
static void take_back(const struct export *x)
{
    char path[SL_PATH_MAX];
    for (int i = 0; i < x->n_shards; i++)
        if (sl_path_join(path, x->dst, x->shards[i].name)) unlink(path);
    for (int i = 0; i < x->in->n_extra; i++)
        if (sl_path_join(path, x->dst, x->in->extra_names[i])) unlink(path);
    if (sl_path_join(path, x->dst, INDEX_NAME)) unlink(path);
    if (x->made_dst) rmdir(x->dst);
}

static int export_all(struct export *x, int jobs)
{
    uint64_t total;
    int rc = place_all(x);
    if (!rc) rc = sort_all(x);
    for (int i = 0; !rc && i < x->n_shards; i++) rc = make_header(x, &x->shards[i]);
    if (!rc) rc = check_dst(x);
    if (!rc) rc = check_space(x, &total);
    if (rc) return rc;
    uint64_t one = sl_expert_bytes(&x->in->cfg);
    x->group = one < x->task_bytes ? (int)(x->task_bytes / one) : 1;
    if (x->group > x->in->cfg.n_experts) x->group = x->in->cfg.n_experts;
    uint64_t buf = sl_align_up(x->in->scratch_bytes, SL_PAGE) + one * (uint64_t)x->group;
    if (buf < x->task_bytes) buf = x->task_bytes;
    rc = sl_jobs_open(&x->jobs, jobs, buf, SL_JOB_BUDGET, "export", x->err);
    if (!rc) rc = sl_make_dirs(x->dst, x->err);
    if (rc) return rc;
    x->progress = sl_progress_open("export", "shards", (uint64_t)x->n_shards, total);
    for (int i = 0; !rc && i < x->n_shards; i++) rc = write_shard(x, &x->shards[i]);
    if (!rc) rc = sl_input_copy_extras(x->in, x->dst, x->err);
    if (!rc) rc = write_index(x);
    sl_progress_close(x->progress);
    if (rc) take_back(x);
    return rc;
}

int sl_export_hf(const struct sl_pack *p, const char *dst, int jobs, struct sl_err *err)
{
    return sl_export_hf_cut(p, dst, jobs, SL_TASK_BYTES, err);
}

int sl_export_hf_cut(const struct sl_pack *p, const char *dst, int jobs, uint64_t task_bytes,
                     struct sl_err *err)
{
    struct export x = {.dst = dst, .err = err, .fd = -1, .task_bytes = task_bytes};
    if (p->synthetic) /* a checkpoint has no place to say so */
        return sl_fail(err, SL_E_SOURCE, p->dir, NULL,
                       "a synthetic pack: its weights are made up and are not exported");
    int rc = sl_input_open_pack(&x.in, p, NULL, err);
    if (rc) return rc;
    if (x.in->form == SL_FORM_FUSED)
        rc = sl_fail(err, SL_E_SOURCE, p->dir, "model.output_res_score",
                     "this pack came from GGUF, which keeps products (of norms and projections, "
                     "exp(A_log)) in place of their factors; export it with --format gguf");
    if (!rc) rc = export_all(&x, jobs);
    for (int i = 0; x.shards && i < x.n_shards; i++) {
        free(x.shards[i].plain);
        free(x.shards[i].header);
    }
    free(x.shards);
    free(x.order);
    sl_jobs_close(x.jobs);
    sl_input_close(x.in);
    return rc;
}
