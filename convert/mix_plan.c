/* Formats of a mixed pack (mix_plan.h). */
#include "convert/mix_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "base/size.h"
#include "convert/calib_bank.h"
#include "convert/jobs.h"
#include "convert/trellis_bank.h"
#include "kernels/kernels.h"
#include "quant/mix.h"

enum { SAMPLE_EXPERTS = 4, SAMPLE_ROWS = 32 };

const enum sl_fmt sl_mix_formats[SL_MIX_FORMATS] = {SL_FMT_W16, SL_FMT_W26, SL_FMT_W36};

void sl_mix_code_formats(int code, enum sl_fmt fmt[SL_N_MATS])
{
    for (int m = 0; m < SL_N_MATS; m++, code /= SL_MIX_FORMATS)
        fmt[m] = sl_mix_formats[code % SL_MIX_FORMATS];
}

/* ------------------------------------------------------------------ error of a format */

struct sampling {
    const struct sl_plan *p;
    const struct sl_plan_bank *b;
    const struct sl_calib_bank *calib;
    struct sl_trellis search;
    double err[SAMPLE_EXPERTS][SL_N_MATS][SL_MIX_FORMATS]; /* e H e' of the sample */
    double norm[SAMPLE_EXPERTS][SL_N_MATS];                /* w H w' */
};

static double quadratic(const double *h, const float *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double row = 0;
        for (int j = 0; j < n; j++) row += h[(size_t)i * (size_t)n + (size_t)j] * (double)x[j];
        sum += row * (double)x[i];
    }
    return sum;
}

/* One trellis matrix of `rows` rows with planes of its own. */
struct sample_mat {
    struct sl_mat mat;
    struct sl_w_planes planes;
    uint8_t *memory;
};

static bool sample_open(struct sample_mat *s, enum sl_fmt fmt, int rows, int cols)
{
    struct sl_planes p;
    sl_fmt_planes(fmt, (uint64_t)rows, (uint64_t)cols, &p);
    const uint64_t bytes[4] = {p.codes, p.scales, p.row_scales, p.table};
    uint64_t at[5] = {0};
    for (int i = 0; i < 4; i++) at[i + 1] = sl_align_up(at[i] + bytes[i], SL_PLANE_ALIGN);
    s->memory = calloc(1, at[4]);
    s->planes = (struct sl_w_planes){.codes = s->memory + at[0],
                                     .scales = s->memory + at[1],
                                     .row_scales = s->memory + at[2],
                                     .table = s->memory + at[3]};
    s->mat = (struct sl_mat){.fmt = fmt,
                             .rows = rows,
                             .cols = cols,
                             .codes = s->planes.codes,
                             .scales = s->planes.scales,
                             .row_scales = s->planes.row_scales,
                             .table = s->planes.table};
    return s->memory != NULL;
}

/* Encodes w [rows][cols] in a format and adds its error in the metric h. */
static int add_error(struct sampling *k, const struct sl_calib_expert *x, int m, int f,
                     const float *w, int rows, int cols, const double *h, void *scratch,
                     double *sum, struct sl_err *err)
{
    struct sample_mat s;
    struct sl_w_tables tables;
    float *row = malloc((size_t)cols * sizeof *row);
    int rc = 0;
    if (!sample_open(&s, sl_mix_formats[f], rows, cols) || !row)
        rc = sl_fail(err, SL_E_NOMEM, k->b->path, "mix", "no memory for a sample");
    if (!rc) {
        sl_w_tables_seed(&tables, sl_mix_formats[f], SL_TRELLIS_LAMBDA);
        sl_w_tables_round(&tables);
        const struct sl_w_job job = {.tables = &tables,
                                     .search = &k->search,
                                     .w = w,
                                     .rows = rows,
                                     .cols = cols,
                                     .h = x->h[m == SL_DOWN],
                                     .feedback = x->feedback[m],
                                     .rounds = SL_TRELLIS_SCALE_ROUNDS};
        rc = sl_w_encode(&job, scratch, &s.planes, NULL, err);
    }
    for (int r = 0; r < rows && !rc; r++) {
        sl_mat_decode_row(&s.mat, r, row);
        for (int c = 0; c < cols; c++) row[c] -= w[(size_t)r * (size_t)cols + (size_t)c];
        *sum += quadratic(h, row, cols);
    }
    free(s.memory);
    free(row);
    return rc;
}

/* One (expert, matrix) of the sample: all formats. */
static int sample_task(void *ctx, int task, uint8_t *buf, struct sl_err *err)
{
    struct sampling *k = ctx;
    const struct sl_input *in = k->p->in;
    const struct sl_config *c = &in->cfg;
    const int i = task / SL_N_MATS, m = task % SL_N_MATS;
    const int id = (int)((2 * (int64_t)i + 1) * c->n_experts / (2 * SAMPLE_EXPERTS));
    const int cols = sl_mat_cols(c, m), all = sl_mat_rows(c, m);
    const int rows = all < SAMPLE_ROWS ? all : SAMPLE_ROWS;
    uint8_t *scratch = buf + sl_align_up(in->scratch_bytes, SL_PAGE);
    struct sl_calib_expert x = {.h = {NULL}};
    struct sl_in_expert src;
    double *h = malloc((size_t)cols * (size_t)cols * sizeof *h);
    float *w = malloc((size_t)rows * (size_t)cols * sizeof *w);
    int rc = h && w ? 0 : sl_fail(err, SL_E_NOMEM, k->b->path, "mix", "no memory for a sample");
    if (!rc) rc = in->ops->read_expert(in, k->b->layer, id, buf, &src, err);
    if (!rc) rc = sl_calib_expert_open(&x, k->calib, id, err);
    if (!rc) {
        sl_calib_metric(k->calib, id, m, h);
        const struct sl_mat from = {.fmt = SL_FMT_MXFP4,
                                    .rows = all,
                                    .cols = cols,
                                    .codes = src.codes[m],
                                    .scales = src.scales[m]};
        for (int r = 0; r < rows; r++) {
            float *to = w + (size_t)r * (size_t)cols;
            sl_mat_decode_row(&from, (int)((int64_t)r * all / rows), to);
            k->norm[i][m] += quadratic(h, to, cols);
        }
    }
    for (int f = 0; f < SL_MIX_FORMATS && !rc; f++)
        rc = add_error(k, &x, m, f, w, rows, cols, h, scratch, &k->err[i][m][f], err);
    sl_calib_expert_close(&x);
    free(h);
    free(w);
    return rc;
}

static int measure_layer(const struct sl_plan *p, const struct sl_plan_bank *b,
                         struct sl_jobs *jobs, struct sl_mix_layer *out, struct sl_err *err)
{
    struct sampling k = {.p = p, .b = b};
    struct sl_calib_bank *calib;
    int rc = sl_calib_bank_open(&calib, p->calib, b->layer, err);
    if (rc) return rc;
    k.calib = calib;
    sl_trellis_init(&k.search, sl_cpu_detect());
    rc = sl_jobs_run(jobs, SAMPLE_EXPERTS * SL_N_MATS, sample_task, &k, err);
    sl_calib_bank_close(calib);
    for (int m = 0; m < SL_N_MATS && !rc; m++)
        for (int f = 0; f < SL_MIX_FORMATS; f++) {
            double e = 0, n = 0; /* added in a fixed order */
            for (int i = 0; i < SAMPLE_EXPERTS; i++) {
                e += k.err[i][m][f];
                n += k.norm[i][m];
            }
            out->error[m][f] = n > 0 ? e / n : 0;
        }
    return rc;
}

/* ------------------------------------------------------------------ sensitivities */

/* f64 [n_layers], zero for dense layers; written by calibrate --sensitivity. */
static int read_sensitivity(struct sl_mix_report *r, const struct sl_plan *p, const char *path,
                            struct sl_err *err)
{
    struct sl_stats_in *in;
    const size_t n = (size_t)p->in->cfg.n_layers;
    char sha[64];
    double *v = malloc(n * sizeof *v);
    if (!v) return sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
    int rc = sl_stats_open(&in, path, err);
    if (rc) {
        free(v);
        return rc;
    }
    rc = sl_stats_get(in, "sensitivity", v, n * sizeof *v, err);
    if (!rc) rc = sl_stats_get(in, "source", sha, sizeof sha, err);
    if (!rc && memcmp(sha, p->in->sha256, sizeof sha) != 0)
        rc = sl_fail(err, SL_E_SOURCE, path, "source", "measured on another source");
    for (int i = 0; i < r->n_layers && !rc; i++) {
        const double s = v[r->layers[i].layer];
        if (!(s >= 0 && isfinite(s)))
            rc = sl_fail(err, SL_E_SOURCE, path, "sensitivity", "layer %d: not a number from 0 up",
                         r->layers[i].layer);
        r->layers[i].sensitivity = s;
    }
    sl_stats_close(in);
    free(v);
    return rc;
}

/* ------------------------------------------------------------------ choosing */

/* Shares of a layer's tokens; who never came counts half a token. */
static int read_shares(const struct sl_plan *p, struct sl_mix_layer *l, double *share,
                       struct sl_err *err)
{
    const int n = p->in->cfg.n_experts;
    uint64_t *counts = malloc((size_t)n * sizeof *counts);
    if (!counts) return sl_fail(err, SL_E_NOMEM, NULL, "mix", "out of memory");
    int rc = sl_calib_file_counts(p->calib, l->layer, counts, err);
    double sum = 0;
    for (int x = 0; x < n && !rc; x++) {
        l->unseen += !counts[x];
        share[x] = counts[x] ? (double)counts[x] : 0.5;
        sum += share[x];
    }
    for (int x = 0; x < n && !rc; x++) share[x] /= sum;
    free(counts);
    return rc;
}

static void note_choice(struct sl_plan *p, struct sl_mix_report *r, const uint8_t *choice,
                        const double *share)
{
    const int n = p->in->cfg.n_experts;
    const uint8_t *c = choice;
    for (int i = 0; i < r->n_layers; i++) {
        struct sl_mix_layer *l = &r->layers[i];
        for (int x = 0; x < n; x++, c += SL_N_MATS, share++) {
            int code = 0;
            for (int m = SL_N_MATS - 1; m >= 0; m--) code = code * SL_MIX_FORMATS + c[m];
            p->banks[i].escape[x] = (uint8_t)code;
            for (int m = 0; m < SL_N_MATS; m++) {
                const double bits = sl_fmt_bits(sl_mix_formats[c[m]]) / SL_N_MATS;
                l->experts[m][c[m]]++;
                l->bits += bits / n;
                l->read_bits += bits * *share;
                l->harm += l->sensitivity * *share * l->error[m][c[m]];
            }
        }
        r->bits += l->bits / r->n_layers;
        r->read_bits += l->read_bits / r->n_layers;
        r->harm += l->harm;
    }
}

static int choose(struct sl_plan *p, struct sl_mix_report *r, struct sl_err *err)
{
    const size_t n = (size_t)r->n_layers * (size_t)p->in->cfg.n_experts;
    const size_t units = n * SL_N_MATS;
    struct sl_mix_option *o = malloc((units + 1) * SL_MIX_FORMATS * sizeof *o);
    double *share = malloc((n + 1) * sizeof *share);
    uint8_t *choice = malloc(units + 1);
    struct sl_mix_result result;
    int rc = o && share && choice ? 0 : sl_fail(err, SL_E_NOMEM, p->dst, "mix", "out of memory");
    size_t at = 0;
    for (int i = 0; i < r->n_layers && !rc; i++) {
        struct sl_mix_layer *l = &r->layers[i];
        double *s = share + (size_t)i * (size_t)p->in->cfg.n_experts;
        rc = read_shares(p, l, s, err);
        for (int x = 0; x < p->in->cfg.n_experts && !rc; x++)
            for (int m = 0; m < SL_N_MATS; m++)
                for (int f = 0; f < SL_MIX_FORMATS; f++)
                    o[at++] = (struct sl_mix_option){sl_fmt_bits(sl_mix_formats[f]),
                                                     l->sensitivity * s[x] * l->error[m][f]};
    }
    if (!rc)
        rc = sl_mix_choose(o, units, SL_MIX_FORMATS, r->target * (double)units, choice, &result,
                           err);
    if (!rc) note_choice(p, r, choice, share);
    free(o);
    free(share);
    free(choice);
    return rc;
}

void sl_mix_report_close(struct sl_mix_report *r)
{
    if (!r) return;
    free(r->layers);
    free(r);
}

int sl_mix_plan(struct sl_plan *p, const char *sensitivity, double bits, struct sl_jobs *jobs,
                struct sl_mix_report **out, struct sl_err *err)
{
    *out = NULL;
    const double least = sl_fmt_bits(sl_mix_formats[0]);
    const double most = sl_fmt_bits(sl_mix_formats[SL_MIX_FORMATS - 1]);
    if (!(bits >= least && bits <= most))
        return sl_fail(err, SL_E_ARG, NULL, "--experts", "mix:%g is not from %g to %g bits", bits,
                       least, most);
    struct sl_mix_report *r = calloc(1, sizeof *r);
    if (r) r->layers = calloc((size_t)p->n_banks + 1, sizeof *r->layers);
    if (!r || !r->layers) {
        sl_mix_report_close(r);
        return sl_fail(err, SL_E_NOMEM, p->dst, "mix", "out of memory");
    }
    r->target = bits;
    r->n_layers = p->n_banks;
    r->measured = sensitivity != NULL;
    for (int i = 0; i < p->n_banks; i++) {
        r->layers[i].layer = p->banks[i].layer;
        r->layers[i].sensitivity = 1;
    }
    int rc = sensitivity ? read_sensitivity(r, p, sensitivity, err) : 0;
    struct sl_progress *bar =
        rc ? NULL : sl_progress_open("mix", "layers", (uint64_t)p->n_banks, 0);
    for (int i = 0; i < p->n_banks && !rc; i++) {
        rc = measure_layer(p, &p->banks[i], jobs, &r->layers[i], err);
        sl_progress_add(bar, 1, 0);
    }
    sl_progress_close(bar);
    if (!rc) rc = choose(p, r, err);
    if (rc) {
        sl_mix_report_close(r);
        return rc;
    }
    *out = r;
    return 0;
}
