/* Trellis encoding between an input's mxfp4 experts and a bank's records (trellis_bank.h). */
#include "convert/trellis_bank.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "kernels/kernels.h"

enum { SAMPLE_EXPERTS = 18 };

bool sl_trellis_is(enum sl_fmt fmt)
{
    return fmt == SL_FMT_MIX || fmt == SL_FMT_W26 || fmt == SL_FMT_W36 || fmt == SL_FMT_P36 ||
           fmt == SL_FMT_W16;
}

static int widest(const struct sl_config *c)
{
    return c->latent_size > c->moe_intermediate_size ? c->latent_size : c->moe_intermediate_size;
}

/* f32 of one whole matrix, then the encoder's strip. */
static uint64_t matrix_bytes(const struct sl_config *c)
{
    return sl_align_up(
        (uint64_t)c->latent_size * (uint64_t)c->moe_intermediate_size * sizeof(float), SL_PAGE);
}

uint64_t sl_trellis_work_bytes(const struct sl_plan *p)
{
    if (!sl_trellis_is(p->experts)) return 0;
    return matrix_bytes(&p->in->cfg) +
           sl_align_up(sl_w_scratch_bytes(widest(&p->in->cfg)), SL_PAGE);
}

static struct sl_mat source_mat(const struct sl_config *c, const struct sl_in_expert *x, int m)
{
    return (struct sl_mat){.fmt = SL_FMT_MXFP4,
                           .rows = sl_mat_rows(c, m),
                           .cols = sl_mat_cols(c, m),
                           .codes = x->codes[m],
                           .scales = x->scales[m]};
}

static int slot_of(enum sl_fmt fmt)
{
    static const enum sl_fmt order[SL_TRELLIS_FORMATS] = {SL_FMT_W16, SL_FMT_W26, SL_FMT_W36,
                                                          SL_FMT_P36};
    int i = 0;
    while (i < SL_TRELLIS_FORMATS - 1 && order[i] != fmt) i++;
    return i;
}

struct training {
    struct sl_trellis_bank *t;
    const struct sl_plan *p;
    const struct sl_plan_bank *b;
    int n; /* tables to train: matrix kinds and formats */
    struct {
        int m;
        enum sl_fmt fmt;
    } jobs[SL_N_MATS * SL_TRELLIS_FORMATS];
};

/* Which tables the experts of the bank need. */
static void list_tables(struct training *k)
{
    bool used[SL_N_MATS][SL_TRELLIS_FORMATS] = {{false}};
    for (int x = 0; x < k->p->in->cfg.n_experts; x++)
        for (int m = 0; m < SL_N_MATS; m++) {
            const enum sl_fmt fmt = (enum sl_fmt)k->p->layout[k->b->escape[x]].fmt[m];
            bool *seen = &used[m][slot_of(fmt)];
            if (!*seen) {
                k->jobs[k->n].m = m;
                k->jobs[k->n++].fmt = fmt;
            }
            *seen = true;
        }
}

/* One table. Rows of a sample expert are taken at even steps, so that a wide matrix is seen from top to
 * bottom. */
static int train_table(void *ctx, int task, uint8_t *buf, struct sl_err *err)
{
    struct training *k = ctx;
    const int m = k->jobs[task].m;
    const enum sl_fmt fmt = k->jobs[task].fmt;
    struct sl_w_tables *tables = &k->t->tables[m][slot_of(fmt)];
    const struct sl_input *in = k->p->in;
    const struct sl_config *c = &in->cfg;
    int rows = sl_mat_rows(c, m), cols = sl_mat_cols(c, m);
    int experts = c->n_experts < SAMPLE_EXPERTS ? c->n_experts : SAMPLE_EXPERTS;
    int64_t want = SL_TRELLIS_SAMPLE / ((int64_t)experts * cols);
    int take = want < 16 ? 16 : want > rows ? rows : (int)want;
    if (take > rows) take = rows;
    float *sample = malloc((size_t)experts * (size_t)take * (size_t)cols * sizeof *sample);
    if (!sample)
        return sl_fail(err, SL_E_NOMEM, k->b->path, NULL, "no memory for a training sample");
    uint8_t *strip = buf + sl_align_up(in->scratch_bytes, SL_PAGE);
    int rc = 0;
    for (int i = 0; i < experts && !rc; i++) {
        struct sl_in_expert x;
        int id = (int)((int64_t)i * c->n_experts / experts);
        rc = in->ops->read_expert(in, k->b->layer, id, buf, &x, err);
        if (rc) break;
        struct sl_mat w = source_mat(c, &x, m);
        for (int r = 0; r < take; r++)
            sl_mat_decode_row(&w, (int)((int64_t)r * rows / take),
                              sample + ((size_t)i * (size_t)take + (size_t)r) * (size_t)cols);
    }
    if (!rc) {
        sl_w_tables_seed(tables, fmt, SL_TRELLIS_LAMBDA);
        rc = sl_w_tables_train(tables, &k->t->search, sample, experts * take, cols, NULL,
                               SL_TRELLIS_TRAIN_ROUNDS, strip, err);
    }
    free(sample);
    return rc;
}

int sl_trellis_train(struct sl_trellis_bank *t, const struct sl_plan *p,
                     const struct sl_plan_bank *b, struct sl_jobs *jobs, struct sl_err *err)
{
    struct training k = {.t = t, .p = p, .b = b};
    memset(t, 0, sizeof *t);
    sl_trellis_init(&t->search, sl_cpu_detect());
    int rc = 0;
    if (p->calib) rc = sl_calib_bank_open(&t->calib, p->calib, b->layer, err);
    if (p->live) {
        const double *latent;
        const uint64_t *counts;
        p->live->shared(p->live->ctx, &latent, &counts);
        rc = sl_calib_bank_open_live(&t->calib, &p->in->cfg, latent, counts, err);
    }
    list_tables(&k);
    return rc ? rc : sl_jobs_run(jobs, k.n, train_table, &k, err);
}

void sl_trellis_bank_free(struct sl_trellis_bank *t)
{
    sl_calib_bank_close(t->calib);
    t->calib = NULL;
}

/* The tokens of an expert go through it as it was read; its sums last as long as this. */
static int run_live(struct sl_calib_expert *x, const struct sl_trellis_bank *t,
                    const struct sl_plan *p, int expert, const struct sl_in_expert *src,
                    struct sl_err *err)
{
    const size_t L = (size_t)p->in->cfg.latent_size;
    const size_t W = (size_t)p->in->cfg.moe_intermediate_size;
    struct sl_mat mats[SL_N_MATS];
    float *latent_e = calloc(L * L + W * W, sizeof *latent_e);
    if (!latent_e) return sl_fail(err, SL_E_NOMEM, NULL, "calibration", "out of memory");
    sl_live_mats(&p->in->cfg, src, mats);
    int rc = p->live->expert(p->live->ctx, expert, mats, latent_e, latent_e + L * L, err);
    if (!rc) rc = sl_calib_expert_open_live(x, t->calib, expert, latent_e, latent_e + L * L, err);
    free(latent_e);
    return rc;
}

int sl_trellis_fill(const struct sl_trellis_bank *t, const struct sl_plan *p, int expert,
                    const struct sl_bank_entry *e, const struct sl_in_expert *src, uint8_t *record,
                    uint8_t *work, struct sl_err *err)
{
    struct sl_calib_expert calib = {.h = {NULL}};
    int rc = p->live    ? run_live(&calib, t, p, expert, src, err)
             : t->calib ? sl_calib_expert_open(&calib, t->calib, expert, err)
                        : 0;
    const struct sl_config *c = &p->in->cfg;
    float *w = (float *)work;
    for (int m = 0; m < SL_N_MATS && !rc; m++) {
        const struct sl_plane_offsets *o = &e->planes[m][0], *fine = &e->planes[m][1];
        struct sl_mat from = source_mat(c, src, m);
        for (int r = 0; r < from.rows; r++)
            sl_mat_decode_row(&from, r, w + (size_t)r * (size_t)from.cols);
        struct sl_w_job job = {.tables = &t->tables[m][slot_of((enum sl_fmt)e->fmt[m])],
                               .search = &t->search,
                               .w = w,
                               .rows = from.rows,
                               .cols = from.cols,
                               .h = calib.h[m == SL_DOWN],
                               .feedback = calib.feedback[m],
                               .device = p->device,
                               .rounds = SL_TRELLIS_SCALE_ROUNDS,
                               .sweeps = SL_TRELLIS_SWEEPS(e->fmt[m])};
        struct sl_w_planes out = {
            .codes = record + o->codes,
            .scales = record + o->scales,
            .row_scales = record + o->row_scales,
            .table = record + o->table,
            .fine_codes = fine->codes == SL_ABSENT ? NULL : record + fine->codes,
            .fine_table = fine->table == SL_ABSENT ? NULL : record + fine->table,
        };
        rc = sl_w_encode(&job, work + matrix_bytes(c), &out, NULL, err);
    }
    sl_calib_expert_close(&calib);
    return rc;
}
