/* Tensors of a source, checked against the shape asked for, read whole (layer_weights.h). */
#include "runtime/layer_weights.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/size.h"
#include "kernels/kernels.h"

static int code_of(const struct sl_input *in)
{
    return in->pack ? SL_E_PACK : SL_E_SOURCE;
}

static int keep(struct sl_layer_weights *w, uint64_t bytes, void **out, struct sl_err *err)
{
    *out = w->n_held < SL_LAYER_TENSORS && bytes < SIZE_MAX - 64
               ? aligned_alloc(64, sl_align_up(bytes ? bytes : 1, 64))
               : NULL;
    if (!*out)
        return sl_fail(err, SL_E_NOMEM, NULL, "layer", "no memory for a tensor of %llu bytes",
                       (unsigned long long)bytes);
    w->held[w->n_held++] = *out;
    return 0;
}

static int find(const struct sl_input *in, const char *name, struct sl_in_tensor *t,
                enum sl_fmt *fmt, struct sl_err *err)
{
    if (!in->ops->find(in, name, t)) return sl_fail(err, code_of(in), NULL, name, "is missing");
    *fmt = sl_fmt_of_dtype(t->dtype);
    if (*fmt == SL_FMT_NONE)
        return sl_fail(err, code_of(in), sl_input_file(in, t), name, "of a type that has no sums");
    return 0;
}

/* A pack's tensor is checked by its crc32. */
static int read_whole(const struct sl_input *in, const struct sl_in_tensor *t, void *to,
                      struct sl_err *err)
{
    int rc = in->ops->read(in, t, 0, to, t->bytes, err);
    if (rc || !t->has_crc) return rc;
    const uint32_t crc = sl_crc32(0, to, t->bytes);
    if (crc == t->crc32) return 0;
    return sl_fail(err, code_of(in), sl_input_file(in, t), t->name, "crc32 %08x, expected %08x",
                   crc, t->crc32);
}

static int get_mat(void *ctx, const char *name, int64_t rows, int64_t cols, struct sl_mat *out,
                   struct sl_err *err)
{
    struct sl_layer_weights *w = ctx;
    struct sl_in_tensor t;
    enum sl_fmt fmt;
    struct sl_planes p;
    void *data;
    int rc = find(w->in, name, &t, &fmt, err);
    if (rc) return rc;
    if (t.n_dims != 2 || t.shape[0] != rows || t.shape[1] != cols || rows > INT32_MAX ||
        cols > INT32_MAX || !sl_fmt_planes(fmt, (uint64_t)rows, (uint64_t)cols, &p) ||
        p.codes != t.bytes)
        return sl_fail(err, code_of(w->in), sl_input_file(w->in, &t), name,
                       "shape %lld x %lld, expected %lld x %lld", (long long)t.shape[0],
                       (long long)t.shape[1], (long long)rows, (long long)cols);
    rc = keep(w, t.bytes, &data, err);
    if (!rc) rc = read_whole(w->in, &t, data, err);
    *out = (struct sl_mat){.fmt = fmt, .rows = (int)rows, .cols = (int)cols, .codes = data};
    return rc;
}

static int get_vec(void *ctx, const char *name, int64_t n, const float **out, struct sl_err *err)
{
    struct sl_layer_weights *w = ctx;
    struct sl_in_tensor t;
    enum sl_fmt fmt;
    void *raw, *wide;
    int rc = find(w->in, name, &t, &fmt, err);
    if (rc) return rc;
    const uint64_t each = sl_fmt_row_bytes(fmt, 1);
    const uint64_t has = each ? t.bytes / each : 0;
    if (n < 1 || n > INT32_MAX || has < (uint64_t)n)
        return sl_fail(err, code_of(w->in), sl_input_file(w->in, &t), name,
                       "%llu values, expected %lld", (unsigned long long)has, (long long)n);
    rc = keep(w, t.bytes, &raw, err);
    if (!rc) rc = keep(w, (uint64_t)n * sizeof(float), &wide, err);
    if (!rc) rc = read_whole(w->in, &t, raw, err);
    if (rc) return rc;
    const struct sl_mat row = {.fmt = fmt, .rows = 1, .cols = (int)n, .codes = raw};
    sl_mat_decode_row(&row, 0, wide);
    *out = wide;
    return 0;
}

static bool has(void *ctx, const char *name)
{
    const struct sl_layer_weights *w = ctx;
    struct sl_in_tensor t;
    return w->in->ops->find(w->in, name, &t);
}

struct sl_weight_source sl_layer_weights_source(struct sl_layer_weights *w)
{
    return (struct sl_weight_source){w, get_mat, get_vec, has};
}

void sl_layer_weights_free(struct sl_layer_weights *w)
{
    for (int i = 0; i < w->n_held; i++) free(w->held[i]);
    w->n_held = 0;
}

struct sizes {
    const struct sl_input *in;
    uint64_t of_layer[SL_MAX_LAYERS];
};

static int add_item(void *ctx, const struct sl_item *it)
{
    struct sizes *s = ctx;
    struct sl_in_tensor t;
    if (it->layer >= 0 && it->layer < SL_MAX_LAYERS && s->in->ops->find(s->in, it->name, &t))
        s->of_layer[it->layer] += t.bytes + (it->n_dims == 1 ? t.bytes * 2 : 0);
    return 0;
}

uint64_t sl_layer_weights_bytes(const struct sl_input *in)
{
    struct sizes s = {.in = in};
    uint64_t most = 0;
    (void)sl_inventory_form(&in->cfg, in->form, add_item, &s);
    for (int l = 0; l < SL_MAX_LAYERS; l++)
        if (s.of_layer[l] > most) most = s.of_layer[l];
    return most;
}
