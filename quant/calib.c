/* Sums of calibration: memory, Gram products, file sections (calib.h). */
#include "quant/calib.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

int sl_margin_bin(float margin)
{
    float at = floorf((margin + 0.5f) * SL_MARGIN_BINS);
    if (!(at > 0.0f)) return 0;
    return at < SL_MARGIN_BINS ? (int)at : SL_MARGIN_BINS - 1;
}

/* ---- memory */

enum { N_FIELDS = 7 };

struct field {
    const char *name;
    uint64_t bytes;
    bool per_expert;
    void **at;
};

/* The arrays of one layer; at NULL-safe only when l is given. */
static void fields_of(const struct sl_calib_shape *s, struct sl_calib_layer *l,
                      struct field f[N_FIELDS])
{
    uint64_t L = (uint64_t)s->latent, W = (uint64_t)s->width, E = (uint64_t)s->n_experts;
    const struct field all[N_FIELDS] = {
        {"latent", L * L * sizeof(double), false, (void **)&l->latent},
        {"latent_diag", E * L * sizeof(double), false, (void **)&l->latent_diag},
        {"hidden_diag", E * W * sizeof(double), false, (void **)&l->hidden_diag},
        {"counts", E * sizeof(uint64_t), false, (void **)&l->counts},
        {"margins", E * SL_MARGIN_BINS * sizeof(uint32_t), false, (void **)&l->margins},
        {"latent_e", E * L * L * sizeof(float), true, (void **)&l->latent_e},
        {"hidden_e", E * W * W * sizeof(float), true, (void **)&l->hidden_e},
    };
    memcpy(f, all, sizeof all);
}

uint64_t sl_calib_bytes(const struct sl_calib_shape *s, int n_moe_layers, bool per_expert)
{
    struct sl_calib_layer l;
    struct field f[N_FIELDS];
    uint64_t sum = 0;
    fields_of(s, &l, f);
    for (int i = 0; i < N_FIELDS; i++)
        if (per_expert || !f[i].per_expert) sum += f[i].bytes;
    return sum * (uint64_t)n_moe_layers;
}

int sl_calib_open(struct sl_calib **out, const struct sl_calib_shape *s, const uint8_t *is_moe,
                  bool per_expert, struct sl_err *err)
{
    struct sl_calib *c = calloc(1, sizeof *c);
    if (c) {
        c->shape = *s;
        c->per_expert = per_expert;
        c->layers = calloc((size_t)s->n_layers, sizeof *c->layers);
    }
    bool ok = c && c->layers;
    for (int l = 0; ok && l < s->n_layers; l++) {
        struct field f[N_FIELDS];
        if (!is_moe[l]) continue;
        fields_of(s, &c->layers[l], f);
        for (int i = 0; ok && i < N_FIELDS; i++)
            if (per_expert || !f[i].per_expert) ok = (*f[i].at = calloc(1, f[i].bytes)) != NULL;
    }
    if (!ok) {
        sl_calib_close(c);
        return sl_fail(err, SL_E_NOMEM, NULL, "calibration", "no memory for the sums of %d layers",
                       s->n_layers);
    }
    *out = c;
    return 0;
}

void sl_calib_close(struct sl_calib *c)
{
    if (!c) return;
    for (int l = 0; c->layers && l < c->shape.n_layers; l++) {
        struct field f[N_FIELDS];
        fields_of(&c->shape, &c->layers[l], f);
        for (int i = 0; i < N_FIELDS; i++) free(*f[i].at);
    }
    free(c->layers);
    free(c);
}

/* ---- Gram products */

static int padded(int n)
{
    return (n + 15) & ~15;
}

size_t sl_gram_work_floats(int n, int d)
{
    return (size_t)padded(n) * (size_t)d;
}

void sl_gram_pack(float *work, const float *x, size_t ld, int n, int d)
{
    size_t np = (size_t)padded(n);
    for (int i = 0; i < d; i++) {
        float *to = work + (size_t)i * np;
        for (int t = 0; t < n; t++) to[t] = x[(size_t)t * ld + (size_t)i];
        for (size_t t = (size_t)n; t < np; t++) to[t] = 0.0f;
    }
}

/* The product slot does the work: W = X' [d][n], tokens = columns of X. 64 columns at a time. */
#define GRAM_ADD(type)                                                                             \
    enum { TILE = 64 };                                                                            \
    int np = padded(n);                                                                            \
    const struct sl_mat w = {                                                                      \
        .fmt = SL_FMT_F32, .rows = d, .cols = np, .codes = (const uint8_t *)work};                 \
    float y[TILE][TILE];                                                                           \
    for (int r = row0; r < row1; r += TILE) {                                                      \
        int nr = row1 - r < TILE ? row1 - r : TILE;                                                \
        const struct sl_mat strip = {.fmt = SL_FMT_F32,                                            \
                                     .rows = nr,                                                   \
                                     .cols = np,                                                   \
                                     .codes = w.codes + (size_t)r * (size_t)np * sizeof(float)};   \
        for (int c = 0; c < d; c += TILE) {                                                        \
            int nc = d - c < TILE ? d - c : TILE;                                                  \
            k->mul(&strip, 0, nr, work + (size_t)c * (size_t)np, (size_t)np, nc, y[0], TILE);      \
            for (int i = 0; i < nr; i++)                                                           \
                for (int j = 0; j < nc; j++)                                                       \
                    g[(size_t)(r + i) * (size_t)d + (size_t)(c + j)] += (type)y[j][i];             \
        }                                                                                          \
    }

void sl_gram_add_f64(double *g, const float *work, int n, int d, int row0, int row1,
                     const struct sl_kernels *k)
{
    GRAM_ADD(double)
}

void sl_gram_add_f32(float *g, const float *work, int n, int d, int row0, int row1,
                     const struct sl_kernels *k)
{
    GRAM_ADD(float)
}

/* ---- file */

struct totals {
    uint64_t tokens, windows;
    uint32_t n_layers, latent, width, n_experts, top_k, per_expert;
};

int sl_calib_save(const struct sl_calib *c, const char *path, const char *meta, struct sl_err *err)
{
    struct sl_stats_out *o;
    int rc = sl_stats_create(&o, path, err);
    if (rc) return rc;
    const struct sl_calib_shape *s = &c->shape;
    const struct totals t = {c->tokens,           c->windows,         (uint32_t)s->n_layers,
                             (uint32_t)s->latent, (uint32_t)s->width, (uint32_t)s->n_experts,
                             (uint32_t)s->top_k,  c->per_expert};
    rc = sl_stats_put(o, "meta", meta, strlen(meta), err);
    if (!rc) rc = sl_stats_put(o, "totals", &t, sizeof t, err);
    for (int l = 0; l < s->n_layers && !rc; l++) {
        struct field f[N_FIELDS];
        if (!c->layers[l].latent) continue;
        fields_of(s, &c->layers[l], f);
        for (int i = 0; i < N_FIELDS && !rc; i++) {
            char name[SL_STATS_NAME];
            if (!*f[i].at) continue;
            snprintf(name, sizeof name, "L%03d.%s", l, f[i].name);
            rc = sl_stats_put(o, name, *f[i].at, f[i].bytes, err);
        }
    }
    if (rc) {
        sl_stats_discard(o);
        return rc;
    }
    return sl_stats_publish(o, err);
}

static int load_layers(struct sl_calib *c, const struct sl_stats_in *in, struct sl_err *err)
{
    for (int l = 0; l < c->shape.n_layers; l++) {
        struct field f[N_FIELDS];
        if (!c->layers[l].latent) continue;
        fields_of(&c->shape, &c->layers[l], f);
        for (int i = 0; i < N_FIELDS; i++) {
            char name[SL_STATS_NAME];
            if (!*f[i].at) continue;
            snprintf(name, sizeof name, "L%03d.%s", l, f[i].name);
            int rc = sl_stats_get(in, name, *f[i].at, f[i].bytes, err);
            if (rc) return rc;
        }
    }
    return 0;
}

int sl_calib_load(struct sl_calib **out, const char *path, const struct sl_calib_shape *s,
                  const uint8_t *is_moe, char **meta, struct sl_err *err)
{
    struct sl_stats_in *in = NULL;
    struct sl_calib *c = NULL;
    struct totals t;
    char *text = NULL;
    int rc = sl_stats_open(&in, path, err);
    if (!rc) rc = sl_stats_get(in, "totals", &t, sizeof t, err);
    if (!rc && (t.n_layers != (uint32_t)s->n_layers || t.latent != (uint32_t)s->latent ||
                t.width != (uint32_t)s->width || t.n_experts != (uint32_t)s->n_experts ||
                t.top_k != (uint32_t)s->top_k))
        rc = sl_fail(err, SL_E_SOURCE, path, "totals",
                     "statistics of another model: %u layers, %u experts of %u x %u, expected %d, "
                     "%d of %d x %d",
                     t.n_layers, t.n_experts, t.latent, t.width, s->n_layers, s->n_experts,
                     s->latent, s->width);
    uint64_t n = rc ? 0 : sl_stats_bytes(in, "meta");
    if (!rc && n > 1 << 20)
        rc = sl_fail(err, SL_E_SOURCE, path, "meta", "%llu bytes", (unsigned long long)n);
    if (!rc && !(text = calloc(1, n + 1)))
        rc = sl_fail(err, SL_E_NOMEM, path, "meta", "out of memory");
    if (!rc) rc = sl_stats_get(in, "meta", text, n, err);
    if (!rc) rc = sl_calib_open(&c, s, is_moe, t.per_expert != 0, err);
    if (!rc && c) {
        c->tokens = t.tokens;
        c->windows = t.windows;
        rc = load_layers(c, in, err);
    }
    sl_stats_close(in);
    if (rc) {
        free(text);
        sl_calib_close(c);
        return rc;
    }
    *out = c;
    *meta = text;
    return 0;
}
