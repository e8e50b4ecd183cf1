/* Covariances for the encoder out of a statistics file (calib_bank.h). */
#include "convert/calib_bank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/size.h"
#include "convert/input.h"

/* Chosen by the output error on 24,576 and 67,584 tokens that the statistics had not seen (k3-mini; rms of
 * w26's error over the output, 42,000 tokens in): damping 0.01 -> 0.1 0.1872 -> 0.1853, with own shares of
 * 0.6 instead of 0.8 0.1847. More than that changes nothing. */
#define OWN_SHARE   0.8
#define DOWN_SHRINK 0.9
#define DAMP        0.1 /* of the mean diagonal */
#define DAMP_DOWN   0.2
#define HALF_TOKENS 4 /* tokens a dimension that give an expert half of its full share */

struct sl_calib_file {
    struct sl_stats_in *in;
    const struct sl_config *c;
    char sha256[65];
};

/* The file's bytes name it: another text or another run is another pack. */
static int hash_file(char hex[65], const char *path, struct sl_err *err)
{
    struct sl_sha256 *sha = sl_sha256_open();
    FILE *f = fopen(path, "rb");
    char *buf = malloc(1 << 20);
    int rc = 0;
    if (!sha || !buf)
        rc = sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    else if (!f)
        rc = sl_fail(err, SL_E_SOURCE, path, NULL, "cannot be opened");
    if (!rc) { /* f is open then: cppcheck does not follow rc */
        /* cppcheck-suppress nullPointerRedundantCheck */
        for (size_t n; (n = fread(buf, 1, 1 << 20, f)) > 0;) sl_sha256_add(sha, buf, n);
        if (ferror(f)) rc = sl_fail(err, SL_E_SOURCE, path, NULL, "cannot be read");
    }
    if (sha) sl_sha256_close(sha, hex);
    if (f) fclose(f);
    free(buf);
    return rc;
}

int sl_calib_file_open(struct sl_calib_file **out, const char *path, const struct sl_config *c,
                       struct sl_err *err)
{
    struct sl_calib_file *f = calloc(1, sizeof *f);
    if (!f) return sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    f->c = c;
    int rc = sl_stats_open(&f->in, path, err);
    if (!rc) rc = hash_file(f->sha256, path, err);
    uint64_t L = (uint64_t)c->latent_size, W = (uint64_t)c->moe_intermediate_size,
             E = (uint64_t)c->n_experts;
    for (int l = 0; l < c->n_layers && !rc; l++) {
        char name[SL_STATS_NAME];
        const struct {
            const char *what;
            uint64_t bytes;
            bool needed;
        } want[] = {
            {"latent", L * L * sizeof(double), true},
            {"hidden_diag", E * W * sizeof(double), true},
            {"counts", E * sizeof(uint64_t), true},
            {"latent_e", E * L * L * sizeof(float), false},
            {"hidden_e", E * W * W * sizeof(float), false},
        };
        for (size_t i = 0; sl_config_is_moe(c, l) && i < sizeof want / sizeof want[0] && !rc; i++) {
            snprintf(name, sizeof name, "L%03d.%s", l, want[i].what);
            uint64_t have = sl_stats_bytes(f->in, name);
            if (have == want[i].bytes || (!have && !want[i].needed)) continue;
            rc = sl_fail(err, SL_E_SOURCE, path, name, "%llu bytes, this model needs %llu",
                         (unsigned long long)have, (unsigned long long)want[i].bytes);
        }
    }
    if (rc) {
        sl_calib_file_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

void sl_calib_file_close(struct sl_calib_file *f)
{
    if (!f) return;
    sl_stats_close(f->in);
    free(f);
}

const char *sl_calib_file_sha256(const struct sl_calib_file *f)
{
    return f->sha256;
}

int sl_calib_file_counts(const struct sl_calib_file *f, int layer, uint64_t *counts,
                         struct sl_err *err)
{
    char name[SL_STATS_NAME];
    snprintf(name, sizeof name, "L%03d.counts", layer);
    return sl_stats_get(f->in, name, counts, (size_t)f->c->n_experts * sizeof *counts, err);
}

/* ---- one layer */

struct sl_calib_bank {
    const struct sl_config *c;
    double *latent, *hidden_diag;
    uint64_t *counts;
    float *latent_e, *hidden_e;  /* NULL when the file has none */
    struct sl_w_feedback shared; /* of the layer's covariance, without latent_e */
};

static int load(void **to, const struct sl_calib_file *f, int layer, const char *what,
                struct sl_err *err)
{
    char name[SL_STATS_NAME];
    snprintf(name, sizeof name, "L%03d.%s", layer, what);
    uint64_t bytes = sl_stats_bytes(f->in, name);
    if (!bytes) return 0;
    *to = malloc(bytes);
    if (!*to)
        return sl_fail(err, SL_E_NOMEM, NULL, name, "no memory for %llu bytes",
                       (unsigned long long)bytes);
    return sl_stats_get(f->in, name, *to, bytes, err);
}

/* h := h / mean diagonal; false when the diagonal is not positive. */
static bool normalise(double *h, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += h[i * n + i];
    if (!(sum > 0)) return false;
    double by = (double)n / sum;
    for (size_t i = 0; i < n * n; i++) h[i] *= by;
    return true;
}

int sl_calib_bank_open(struct sl_calib_bank **out, const struct sl_calib_file *f, int layer,
                       struct sl_err *err)
{
    struct sl_calib_bank *b = calloc(1, sizeof *b);
    if (!b) return sl_fail(err, SL_E_NOMEM, NULL, "calibration", "out of memory");
    b->c = f->c;
    size_t L = (size_t)b->c->latent_size;
    int rc = load((void **)&b->latent, f, layer, "latent", err);
    if (!rc) rc = load((void **)&b->hidden_diag, f, layer, "hidden_diag", err);
    if (!rc) rc = load((void **)&b->counts, f, layer, "counts", err);
    if (!rc) rc = load((void **)&b->latent_e, f, layer, "latent_e", err);
    if (!rc) rc = load((void **)&b->hidden_e, f, layer, "hidden_e", err);
    if (!rc && (!b->latent || !normalise(b->latent, L)))
        rc = sl_fail(err, SL_E_SOURCE, NULL, "calibration",
                     "layer %d: the latent covariance is empty", layer);
    if (!rc && !b->latent_e) {
        double *h = malloc(L * L * sizeof *h);
        if (!h) {
            rc = sl_fail(err, SL_E_NOMEM, NULL, "calibration", "out of memory");
        } else {
            memcpy(h, b->latent, L * L * sizeof *h);
            rc = sl_w_feedback_open(&b->shared, h, (int)L, DAMP, err);
        }
        free(h);
    }
    if (rc) {
        sl_calib_bank_close(b);
        return rc;
    }
    *out = b;
    return 0;
}

int sl_calib_bank_open_live(struct sl_calib_bank **out, const struct sl_config *c,
                            const double *latent, const uint64_t *counts, struct sl_err *err)
{
    const size_t L = (size_t)c->latent_size, E = (size_t)c->n_experts;
    struct sl_calib_bank *b = calloc(1, sizeof *b);
    if (b) {
        b->c = c;
        b->latent = malloc(L * L * sizeof *b->latent);
        b->counts = malloc(E * sizeof *b->counts);
    }
    if (!b || !b->latent || !b->counts) {
        sl_calib_bank_close(b);
        return sl_fail(err, SL_E_NOMEM, NULL, "calibration", "out of memory");
    }
    memcpy(b->latent, latent, L * L * sizeof *latent);
    memcpy(b->counts, counts, E * sizeof *counts);
    if (!normalise(b->latent, L)) {
        sl_calib_bank_close(b);
        return sl_fail(err, SL_E_SOURCE, NULL, "calibration", "the latent covariance is empty");
    }
    *out = b;
    return 0;
}

void sl_calib_bank_close(struct sl_calib_bank *b)
{
    if (!b) return;
    sl_w_feedback_close(&b->shared);
    free(b->latent);
    free(b->hidden_diag);
    free(b->counts);
    free(b->latent_e);
    free(b->hidden_e);
    free(b);
}

/* ---- one expert */

/* Near 1 with many tokens for d dimensions: an undersampled covariance fits its sample and nothing else
 * (k3-nano, 190 tokens for 128 dimensions at full share: KL 18 % above no calibration). */
static double trust(const struct sl_calib_bank *b, int expert, size_t d)
{
    double n = (double)b->counts[expert];
    return n / (n + HALF_TOKENS * (double)d);
}

/* The diagonal of a metric as weights of the columns; before it is factored. */
static int keep_diagonal(float **out, const double *h, size_t n, struct sl_err *err)
{
    *out = malloc(n * sizeof **out);
    if (!*out) return sl_fail(err, SL_E_NOMEM, NULL, "calibration", "out of memory");
    for (size_t i = 0; i < n; i++) {
        const double v = h[i * (n + 1)];
        (*out)[i] = (float)(v > 0.01 ? v : 0.01);
    }
    return 0;
}

static const float *own_latent(const struct sl_calib_bank *b, int expert)
{
    const size_t L = (size_t)b->c->latent_size;
    return b->latent_e + (size_t)expert * L * L;
}

static const float *own_hidden(const struct sl_calib_bank *b, int expert)
{
    const size_t W = (size_t)b->c->moe_intermediate_size;
    return b->hidden_e + (size_t)expert * W * W;
}

/* Own covariance mixed with the layer's. */
static void latent_metric(const struct sl_calib_bank *b, int expert, const float *own, double *h)
{
    size_t L = (size_t)b->c->latent_size, n = L * L;
    double share = OWN_SHARE * trust(b, expert, L);
    for (size_t i = 0; i < n; i++) h[i] = (double)own[i];
    if (!normalise(h, L)) share = 0;
    for (size_t i = 0; i < n; i++)
        h[i] = (share > 0 ? share * h[i] : 0) + (1 - share) * b->latent[i];
}

/* Own covariance, off-diagonals shrunk; false when the expert was never used. */
static bool hidden_metric(const struct sl_calib_bank *b, int expert, const float *own, double *h)
{
    size_t W = (size_t)b->c->moe_intermediate_size, n = W * W;
    double off = DOWN_SHRINK * trust(b, expert, W);
    for (size_t i = 0; i < n; i++) h[i] = (double)own[i] * (i % (W + 1) ? off : 1.0);
    bool seen = normalise(h, W);
    for (size_t i = 0; seen && i < n; i += W + 1)
        h[i] = off / DOWN_SHRINK * h[i] + (1.0 - off / DOWN_SHRINK); /* mean diagonal is 1 */
    return seen;
}

/* Sum of an expert's squares; 0 when it was never used. */
static double diag_sum(const struct sl_calib_bank *b, int expert)
{
    size_t W = (size_t)b->c->moe_intermediate_size;
    double sum = 0;
    for (size_t i = 0; i < W; i++) sum += b->hidden_diag[(size_t)expert * W + i];
    return sum;
}

/* Weight of a column, mean 1, never below a hundredth of it: what calibration has not seen may still
 * come. */
static float diag_weight(const struct sl_calib_bank *b, int expert, size_t i, double sum)
{
    size_t W = (size_t)b->c->moe_intermediate_size;
    double v = b->hidden_diag[(size_t)expert * W + i] * (double)W / sum;
    return (float)(v > 0.01 ? v : 0.01);
}

static int open_latent(struct sl_calib_expert *x, const struct sl_calib_bank *b, int expert,
                       const float *own, struct sl_err *err)
{
    size_t L = (size_t)b->c->latent_size;
    double *h = malloc(L * L * sizeof *h);
    if (!h) return sl_fail(err, SL_E_NOMEM, NULL, "calibration", "out of memory");
    latent_metric(b, expert, own, h);
    int rc = keep_diagonal(&x->h[0], h, L, err);
    if (!rc) rc = sl_w_feedback_open(&x->own[0], h, (int)L, DAMP, err);
    free(h);
    return rc;
}

static int open_hidden(struct sl_calib_expert *x, const struct sl_calib_bank *b, int expert,
                       const float *own, struct sl_err *err)
{
    size_t W = (size_t)b->c->moe_intermediate_size;
    double *h = malloc(W * W * sizeof *h);
    if (!h) return sl_fail(err, SL_E_NOMEM, NULL, "calibration", "out of memory");
    int rc = 0;
    if (hidden_metric(b, expert, own, h)) {
        rc = keep_diagonal(&x->h[1], h, W, err);
        if (!rc) rc = sl_w_feedback_open(&x->own[1], h, (int)W, DAMP_DOWN, err);
    }
    free(h);
    return rc;
}

static int open_diag(struct sl_calib_expert *x, const struct sl_calib_bank *b, int expert,
                     struct sl_err *err)
{
    size_t W = (size_t)b->c->moe_intermediate_size;
    double sum = diag_sum(b, expert);
    if (!(sum > 0)) return 0;
    x->h[1] = malloc(W * sizeof *x->h[1]);
    if (!x->h[1]) return sl_fail(err, SL_E_NOMEM, NULL, "calibration", "out of memory");
    for (size_t i = 0; i < W; i++) x->h[1][i] = diag_weight(b, expert, i, sum);
    return 0;
}

void sl_calib_metric(const struct sl_calib_bank *b, int expert, int mat, double *h)
{
    const size_t n = (size_t)sl_mat_cols(b->c, mat);
    if (mat != SL_DOWN) {
        if (b->latent_e)
            latent_metric(b, expert, own_latent(b, expert), h);
        else
            memcpy(h, b->latent, n * n * sizeof *h);
        return;
    }
    if (b->hidden_e && hidden_metric(b, expert, own_hidden(b, expert), h)) return;
    const double sum = b->hidden_e ? 0 : diag_sum(b, expert);
    memset(h, 0, n * n * sizeof *h);
    for (size_t i = 0; i < n; i++)
        h[i * (n + 1)] = sum > 0 ? (double)diag_weight(b, expert, i, sum) : 1.0;
}

int sl_calib_expert_open(struct sl_calib_expert *x, const struct sl_calib_bank *b, int expert,
                         struct sl_err *err)
{
    memset(x, 0, sizeof *x);
    int rc = b->latent_e ? open_latent(x, b, expert, own_latent(b, expert), err)
                         : keep_diagonal(&x->h[0], b->latent, (size_t)b->c->latent_size, err);
    if (!rc)
        rc = b->hidden_e ? open_hidden(x, b, expert, own_hidden(b, expert), err)
                         : open_diag(x, b, expert, err);
    if (rc) {
        sl_calib_expert_close(x);
        return rc;
    }
    x->feedback[SL_GATE] = x->feedback[SL_UP] = b->latent_e ? &x->own[0] : &b->shared;
    x->feedback[SL_DOWN] = x->own[1].cols ? &x->own[1] : NULL;
    return 0;
}

int sl_calib_expert_open_live(struct sl_calib_expert *x, const struct sl_calib_bank *b, int expert,
                              const float *latent_e, const float *hidden_e, struct sl_err *err)
{
    memset(x, 0, sizeof *x);
    int rc = open_latent(x, b, expert, latent_e, err);
    if (!rc) rc = open_hidden(x, b, expert, hidden_e, err);
    if (rc) {
        sl_calib_expert_close(x);
        return rc;
    }
    x->feedback[SL_GATE] = x->feedback[SL_UP] = &x->own[0];
    x->feedback[SL_DOWN] = x->own[1].cols ? &x->own[1] : NULL;
    return 0;
}

void sl_calib_expert_close(struct sl_calib_expert *x)
{
    sl_w_feedback_close(&x->own[0]);
    sl_w_feedback_close(&x->own[1]);
    free(x->h[0]);
    free(x->h[1]);
    memset(x, 0, sizeof *x);
}
