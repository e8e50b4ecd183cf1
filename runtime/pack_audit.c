/* The pack against the model: tensors from the same inventory that the converter writes by, files from
 * the manifest. */
#include "runtime/pack_audit.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "convert/inventory.h"
#include "offload/pack_sums.h"
#include "runtime/lookahead.h"
#include "runtime/tokenizer.h"

struct tensors {
    const struct sl_pack *p;
    const struct sl_audit_sink *sink;
    bool fused;    /* came from GGUF: any plain type may stand for another */
    bool *implied; /* [n_tensors] */
};

/* dtype that a plain format carries; 0 for a packed one. */
static int dtype_of(enum sl_fmt fmt)
{
    switch (fmt) {
    case SL_FMT_BF16:
        return SL_DT_BF16;
    case SL_FMT_F32:
        return SL_DT_F32;
    case SL_FMT_F16:
        return SL_DT_F16;
    case SL_FMT_U8:
        return SL_DT_U8;
    default:
        return 0;
    }
}

static int check_tensor(void *ctx, const struct sl_item *it)
{
    struct tensors *t = ctx;
    struct sl_err line;
    const struct sl_tensor *x = sl_pack_find(t->p, it->name);
    if (!x) {
        sl_fail(&line, SL_E_PACK, "pack.json", it->name, "missing: the model needs this tensor");
        t->sink->fault(t->sink->ctx, line.text);
        return 0;
    }
    t->implied[x - t->p->tensors] = true;
    int dtype = dtype_of(x->fmt);
    bool packed = !dtype && it->quantize; /* large matrices may be stored at low bits */
    bool free = packed || (t->fused && (dtype ? dtype != SL_DT_U8 : it->n_dims == 2));
    if (!sl_item_accepts(it, &t->p->cfg, free ? (int)it->dtype : dtype, x->n_dims, x->shape)) {
        sl_fail(&line, SL_E_PACK, "pack.json", it->name,
                "format %s with %d dimensions, first %lld: not what the config implies",
                sl_fmt_name(x->fmt), x->n_dims, (long long)x->shape[0]);
        t->sink->fault(t->sink->ctx, line.text);
    }
    return 0;
}

int sl_audit_tensors(const struct sl_pack *p, const struct sl_audit_sink *sink, struct sl_err *err)
{
    bool fused = sl_pack_find(p, "model.output_res_score");
    struct tensors t = {p, sink, fused, calloc((size_t)p->n_tensors + 1, sizeof(bool))};
    if (!t.implied) return sl_fail(err, SL_E_NOMEM, p->dir, NULL, "out of memory");
    int rc = sl_inventory_form(&p->cfg, fused ? SL_FORM_FUSED : SL_FORM_RELEASED, check_tensor, &t);
    for (int i = 0; i < p->n_tensors && !rc; i++) {
        struct sl_err line;
        if (t.implied[i]) continue;
        sl_fail(&line, SL_E_PACK, "pack.json", p->tensors[i].name, "not a tensor of this model");
        sink->note(sink->ctx, line.text);
    }
    free(t.implied);
    return rc;
}

static bool is_bank(const struct sl_pack *p, const char *label)
{
    for (int b = 0; b < p->n_banks; b++)
        if (!strcmp(p->banks[b].label, label)) return true;
    return false;
}

static bool is_top_level(const struct sl_pack *p, const char *name)
{
    static const char *const known[] = {"pack.json", "trunk.bin", "experts",
                                        "tokenizer", "calib",     SL_SUMS_FILE};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i])) return true;
    return p->vision_bytes && !strcmp(name, "vision.bin");
}

/* Entries of DIR/sub that are neither known nor banks. */
static void list_excess(const struct sl_pack *p, const char *sub, const struct sl_audit_sink *sink)
{
    char path[SL_PATH_MAX];
    if (!sl_path_join(path, p->dir, sub)) return;
    DIR *d = opendir(path);
    if (!d) return; /* experts/ may be absent: banks lie on other drives */
    for (const struct dirent *e; (e = readdir(d));) {
        char label[SL_PATH_MAX];
        struct sl_err line;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (!*sub && is_top_level(p, e->d_name)) continue;
        if (!sl_path_join(label, sub, e->d_name) || is_bank(p, label)) continue;
        sl_fail(&line, SL_E_PACK, label, NULL, "not part of the pack");
        sink->note(sink->ctx, line.text);
    }
    closedir(d);
}

void sl_audit_files(const struct sl_pack *p, const struct sl_audit_sink *sink)
{
    list_excess(p, "", sink);
    list_excess(p, "experts", sink);
}

int sl_audit_sums(const struct sl_pack *p, const struct sl_audit_sink *sink, struct sl_err *err)
{
    int has = 0;
    struct sl_err one;
    int rc = sl_sums_check(p->dir, sink->fault, sink->ctx, &has, &one);
    if (!has)
        sink->note(sink->ctx, SL_SUMS_FILE ": missing: pack.json and tokenizer/ go unchecked");
    if (rc && rc != SL_E_PACK && err) *err = one;
    return rc == SL_E_PACK ? 0 : rc;
}

int sl_audit_maps(const struct sl_pack *p, const struct sl_audit_sink *sink, struct sl_err *err)
{
    const struct sl_ahead_map *maps;
    struct sl_err one;
    struct sl_arena arena = {0};
    uint64_t bytes = sl_ahead_maps_bytes(p);
    if (!bytes) return 0;
    int rc = sl_arena_init(&arena, bytes, "look-ahead maps", &one);
    if (!rc) rc = sl_ahead_maps_open(&maps, p, &arena, &one);
    sl_arena_free(&arena);
    if (rc == SL_E_PACK)
        sink->fault(sink->ctx, one.text);
    else if (rc && err)
        *err = one;
    return rc == SL_E_PACK ? 0 : rc;
}

int sl_audit_tokenizer(const struct sl_pack *p, const struct sl_audit_sink *sink,
                       struct sl_err *err)
{
    char path[SL_PATH_MAX];
    struct sl_tokenizer *t;
    struct sl_err line;
    if (!sl_path_join(path, p->dir, "tokenizer"))
        return sl_fail(err, SL_E_PACK, p->dir, "tokenizer", "the path is too long");
    if (access(path, F_OK)) {
        sink->note(sink->ctx, "tokenizer: missing: only token ids can be fed and printed");
        return 0;
    }
    int rc = sl_tokenizer_open(&t, path, p->cfg.vocab_size, SL_E_PACK, &line);
    if (!rc) {
        sl_tokenizer_close(t);
        return 0;
    }
    if (rc != SL_E_PACK) { /* no memory, or interrupted: says nothing about the pack */
        if (err) *err = line;
        return rc;
    }
    sink->fault(sink->ctx, line.text);
    return 0;
}
