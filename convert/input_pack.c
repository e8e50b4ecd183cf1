/* A lossless pack as input: the trunk verbatim, experts decoded back to mxfp4 planes.
 *
 * Lossless means: every tensor of the inventory is there with the dtype of the checkpoint, and every
 * expert matrix is mxfp4 or m4. Anything else is refused at once, by the name of the first tensor
 * that cannot be given back, so that nothing is written from a lossy pack. */
#define _GNU_SOURCE
#include "convert/input.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "convert/safetensors.h"
#include "kernels/block_m4.h"
#include "offload/pack.h"
#include "offload/pack_sums.h"
#include "quant/m4.h"

#define MANIFEST_MAX ((uint64_t)64 << 20)

static const struct sl_bank_entry *entry_of(const struct sl_pack *p, int layer, int expert,
                                            const struct sl_bank **bank)
{
    *bank = &p->banks[p->bank_of[layer]];
    return &(*bank)->entries[expert];
}

static void fill(const struct sl_tensor *s, struct sl_in_tensor *t)
{
    memset(t, 0, sizeof *t);
    t->name = s->name;
    t->dtype = (uint8_t)sl_dtype_of_fmt(s->fmt);
    t->n_dims = (uint8_t)s->n_dims;
    memcpy(t->shape, s->shape, sizeof t->shape);
    t->bytes = s->bytes;
    t->shard = -1;
    t->has_crc = true;
    t->crc32 = s->crc32;
    t->ref = s;
}

static bool pk_find(const struct sl_input *in, const char *name, struct sl_in_tensor *t)
{
    const struct sl_tensor *s = sl_pack_find(in->pack, name);
    if (s) fill(s, t);
    return s;
}

static void pk_vision(const struct sl_input *in, int i, struct sl_in_tensor *t)
{
    fill(&in->pack->vision[i], t);
}

static int pk_read(const struct sl_input *in, const struct sl_in_tensor *t, uint64_t at, void *buf,
                   uint64_t n, struct sl_err *err)
{
    const struct sl_pack *p = in->pack;
    const struct sl_tensor *s = t->ref;
    bool trunk = s >= p->tensors && s < p->tensors + p->n_tensors;
    return sl_pread_all(trunk ? p->trunk_fd : p->vision_fd, buf, n, s->offset + at,
                        trunk ? "trunk.bin" : "vision.bin", SL_E_PACK, err);
}

static int pk_read_expert(const struct sl_input *in, int layer, int expert, uint8_t *scratch,
                          struct sl_in_expert *out, struct sl_err *err)
{
    const struct sl_config *c = &in->cfg;
    const struct sl_bank *bank;
    const struct sl_bank_entry *e = entry_of(in->pack, layer, expert, &bank);
    char field[64];

    snprintf(field, sizeof field, "layer %d, expert %d", layer, expert);
    int rc = sl_pread_all(bank->fd, scratch, e->bytes, e->offset, bank->path, SL_E_PACK, err);
    if (rc) return rc;
    uint32_t crc = sl_crc32(0, scratch, e->bytes);
    if (crc != e->crc32)
        return sl_fail(err, SL_E_PACK, bank->path, field, "crc32 %08x, expected %08x", crc,
                       e->crc32);
    uint8_t *decoded = scratch + e->bytes;
    for (int m = 0; m < SL_N_MATS; m++) {
        const struct sl_plane_offsets *o = &e->planes[m][0];
        out->codes[m] = scratch + o->codes;
        out->scales[m] = scratch + o->scales;
        if (e->fmt[m] != SL_FMT_M4) continue;
        if (!sl_m4_decode(scratch + o->scales, scratch + o->row_scales, sl_mat_rows(c, m),
                          sl_mat_cols(c, m), decoded))
            return sl_fail(err, SL_E_PACK, bank->path, field, "%s: not valid m4 scales",
                           sl_mat_name(m));
        out->scales[m] = decoded;
        decoded += sl_mat_scales_bytes(c, m);
    }
    return 0;
}

static int pk_read_scales(const struct sl_input *in, int layer, int expert, int mat,
                          uint8_t *scratch, const uint8_t **scales, struct sl_err *err)
{
    const struct sl_config *c = &in->cfg;
    const struct sl_bank *bank;
    const struct sl_bank_entry *e = entry_of(in->pack, layer, expert, &bank);
    const struct sl_plane_offsets *o = &e->planes[mat][0];
    struct sl_planes planes;
    uint64_t rows = (uint64_t)sl_mat_rows(c, mat);

    if (!sl_fmt_planes((enum sl_fmt)e->fmt[mat], rows, (uint64_t)sl_mat_cols(c, mat), &planes))
        return sl_fail(err, SL_E_PACK, bank->path, NULL, "expert %d: bad shape", expert);
    *scales = scratch;
    int rc = sl_pread_all(bank->fd, scratch, planes.scales, e->offset + o->scales, bank->path,
                          SL_E_PACK, err);
    if (rc || e->fmt[mat] != SL_FMT_M4) return rc;
    uint8_t *row_e = scratch + planes.scales;
    uint8_t *decoded = row_e + rows;
    rc = sl_pread_all(bank->fd, row_e, rows, e->offset + o->row_scales, bank->path, SL_E_PACK, err);
    if (rc) return rc;
    if (!sl_m4_decode(scratch, row_e, (int)rows, sl_mat_cols(c, mat), decoded))
        return sl_fail(err, SL_E_PACK, bank->path, sl_mat_name(mat),
                       "layer %d, expert %d: not valid m4 scales", layer, expert);
    *scales = decoded;
    return 0;
}

static void pk_name_scales(const struct sl_input *in, int layer, int expert, int mat, char *file,
                           char *tensor, size_t n)
{
    const struct sl_bank *bank;
    (void)entry_of(in->pack, layer, expert, &bank);
    snprintf(file, n, "%s", bank->path);
    snprintf(tensor, n, "model.layers.%d.block_sparse_moe.experts.%d.%s.weight_scale", layer,
             expert, sl_mat_name(mat));
}

static void pk_prefetch_expert(const struct sl_input *in, int layer, int expert)
{
    const struct sl_bank *bank;
    const struct sl_bank_entry *e = entry_of(in->pack, layer, expert, &bank);
    (void)posix_fadvise(bank->fd, (off_t)e->offset, (off_t)e->bytes, POSIX_FADV_WILLNEED);
}

static const struct sl_input_ops pack_ops = {
    .find = pk_find,
    .vision = pk_vision,
    .read = pk_read,
    .read_expert = pk_read_expert,
    .read_scales = pk_read_scales,
    .name_scales = pk_name_scales,
    .prefetch_expert = pk_prefetch_expert,
};

struct check {
    const struct sl_pack *p;
    enum sl_form form;
    bool any_trunk; /* formats of the trunk are not looked at */
    int n_items;
    struct sl_err *err;
};

static int check_item(void *ctx, const struct sl_item *it)
{
    struct check *k = ctx;
    const struct sl_tensor *t = sl_pack_find(k->p, it->name);
    k->n_items++;
    if (!t)
        return sl_fail(k->err, SL_E_SOURCE, k->p->dir, it->name,
                       "not in this pack, so the checkpoint cannot be given back");
    int dtype = sl_dtype_of_fmt(t->fmt);
    bool plain = k->form == SL_FORM_FUSED && dtype; /* as the GGUF file had it */
    if (dtype != (int)it->dtype && !plain && !k->any_trunk)
        return sl_fail(k->err, SL_E_SOURCE, k->p->dir, it->name,
                       "stored as %s: this pack is lossy, the released %s cannot be given back",
                       sl_fmt_name(t->fmt), sl_dtype_name(it->dtype));
    if (!sl_item_accepts_shape(it, &k->p->cfg, t->n_dims, t->shape))
        return sl_fail(k->err, SL_E_PACK, k->p->dir, it->name, "shape differs from the config's");
    return 0;
}

/* Every expert matrix must decode to the released bytes. */
static int check_banks(const struct sl_pack *p, struct sl_err *err)
{
    for (int l = 0; l < p->cfg.n_layers; l++) {
        if (!sl_config_is_moe(&p->cfg, l)) continue;
        if (p->bank_of[l] < 0)
            return sl_fail(err, SL_E_PACK, p->dir, "banks", "layer %d has no bank", l);
        for (int x = 0; x < p->cfg.n_experts; x++) {
            const struct sl_bank *bank;
            const struct sl_bank_entry *e = entry_of(p, l, x, &bank);
            for (int m = 0; m < SL_N_MATS; m++) {
                if (e->fmt[m] == SL_FMT_M4 || e->fmt[m] == SL_FMT_MXFP4) continue;
                char name[128];
                snprintf(name, sizeof name,
                         "model.layers.%d.block_sparse_moe.experts.%d.%s.weight_packed", l, x,
                         sl_mat_name(m));
                return sl_fail(err, SL_E_SOURCE, bank->path, name,
                               "stored as %s: this pack is lossy, the released mxfp4 cannot be "
                               "given back",
                               sl_fmt_name((enum sl_fmt)e->fmt[m]));
            }
        }
    }
    return 0;
}

/* The manifest's own "source" object, so that a pack made from this one is the pack made from SRC. */
static int read_identity(struct sl_input *in, struct sl_err *err)
{
    char path[SL_PATH_MAX];
    cJSON *root;
    const cJSON *source;
    if (!sl_path_join(path, in->pack->dir, "pack.json"))
        return sl_fail(err, SL_E_ARG, in->pack->dir, NULL, "path too long");
    int rc = sl_json_read(&root, path, MANIFEST_MAX, SL_E_PACK, err);
    if (rc) return rc;
    rc = sl_json_obj(root, "source", &source, path, SL_E_PACK, err);
    if (!rc) {
        in->source_json = cJSON_PrintUnformatted(source);
        if (!in->source_json) rc = sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    }
    cJSON_Delete(root);
    return rc;
}

static int list_extras(struct sl_input *in, struct sl_err *err)
{
    char dir[SL_PATH_MAX];
    char path[SL_PATH_MAX];
    struct stat st;
    int rc = 0;
    if (!sl_path_join(dir, in->pack->dir, "tokenizer"))
        return sl_fail(err, SL_E_ARG, in->pack->dir, NULL, "path too long");
    DIR *d = opendir(dir);
    if (!d) return sl_fail_errno(err, SL_E_PACK, errno, dir, "open");
    for (struct dirent *e; !rc && (e = readdir(d));) {
        if (!sl_path_join(path, dir, e->d_name) || stat(path, &st) || !S_ISREG(st.st_mode))
            continue;
        if (!sl_input_add_extra(in, dir, e->d_name))
            rc = sl_fail(err, SL_E_NOMEM, dir, NULL, "out of memory");
    }
    closedir(d);
    return rc;
}

static int open_pack(struct sl_input **out, const struct sl_pack *p, bool any_trunk,
                     struct sl_err *err)
{
    struct check k = {.p = p, .any_trunk = any_trunk, .err = err};
    *out = NULL;
    k.form = sl_pack_find(p, "model.output_res_score") ? SL_FORM_FUSED : SL_FORM_RELEASED;
    int rc = sl_inventory_form(&p->cfg, k.form, check_item, &k);
    if (!rc) rc = check_banks(p, err);
    if (!rc) rc = sl_sums_check(p->dir, NULL, NULL, NULL, err);
    if (rc) return rc;
    if (k.n_items != p->n_tensors)
        return sl_fail(err, SL_E_SOURCE, p->dir, "tensors",
                       "holds %d tensors where the config implies %d", p->n_tensors, k.n_items);
    struct sl_input *in = calloc(1, sizeof *in);
    if (!in) return sl_fail(err, SL_E_NOMEM, p->dir, NULL, "out of memory");
    in->ops = &pack_ops;
    in->pack = p;
    in->cfg = p->cfg;
    in->form = k.form;
    snprintf(in->prefix, sizeof in->prefix, "%s", p->source_prefix);
    snprintf(in->sha256, sizeof in->sha256, "%s", p->source_sha256);
    in->file_bytes = p->trunk_bytes + p->vision_bytes + sl_pack_bank_bytes(p);
    in->n_vision = p->n_vision;
    /* A record, then the scales of all its matrices decoded. */
    in->scratch_bytes = p->slot_bytes;
    for (int m = 0; m < SL_N_MATS; m++) in->scratch_bytes += sl_mat_scales_bytes(&in->cfg, m);
    rc = read_identity(in, err);
    if (!rc) rc = list_extras(in, err);
    if (rc) {
        sl_input_close(in);
        return rc;
    }
    *out = in;
    return 0;
}

int sl_input_open_pack(struct sl_input **out, const struct sl_pack *p, struct sl_pack *own,
                       struct sl_err *err)
{
    int rc = open_pack(out, p, false, err);
    if (!rc) (*out)->own_pack = own;
    return rc;
}

int sl_input_open_pack_experts(struct sl_input **out, const struct sl_pack *p, struct sl_err *err)
{
    return open_pack(out, p, true, err);
}
