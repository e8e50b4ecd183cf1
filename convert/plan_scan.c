/* The scan: every scale byte of every routed expert, before anything is written.
 *
 * Two answers are needed first: is there an E8M0 byte of 255 (NaN; refused), and which matrices have a
 * row that spans more than 15 exponents, so that m4 cannot hold them and their records are longer.
 * That is 1/17 of the expert bytes (85 GB at full size), and nothing where the file has holes. */
#include "convert/plan_pack.h"

#include <stdio.h>

#include "base/progress.h"
#include "convert/jobs.h"
#include "quant/m4.h"

struct scan {
    struct sl_plan *p;
    struct sl_progress *progress;
};

static int scan_expert(void *ctx, int task, uint8_t *buf, struct sl_err *err)
{
    struct scan *s = ctx;
    const struct sl_input *in = s->p->in;
    const struct sl_config *c = &in->cfg;
    struct sl_plan_bank *b = &s->p->banks[task / c->n_experts];
    int x = task % c->n_experts;
    uint64_t done = 0;

    if (s->p->experts != SL_FMT_MIX) b->escape[x] = 0;
    for (int m = 0; m < SL_N_MATS; m++) {
        uint64_t n = sl_mat_scales_bytes(c, m);
        int rows = sl_mat_rows(c, m);
        int blocks = sl_mat_cols(c, m) / 32;
        const uint8_t *scales;
        size_t where;
        int rc = in->ops->read_scales(in, b->layer, x, m, buf, &scales, err);
        if (rc) return rc;
        done += n;
        if (!scales) continue; /* a hole: all zero, which m4 holds */
        if (sl_e8m0_has_nan(scales, n, &where)) {
            char file[256];
            char tensor[256];
            in->ops->name_scales(in, b->layer, x, m, file, tensor, sizeof file);
            return sl_fail(err, SL_E_SOURCE, file, tensor,
                           "row %zu, block %zu: scale byte 255 (E8M0 NaN) is not a weight",
                           where / (size_t)blocks, where % (size_t)blocks);
        }
        if (s->p->experts == SL_FMT_M4 && !sl_m4_fits(scales, rows, blocks))
            b->escape[x] |= (uint8_t)(1 << m);
    }
    sl_progress_add(s->progress, 0, done);
    return 0;
}

int sl_plan_scan(struct sl_plan *p, struct sl_jobs *jobs, struct sl_err *err)
{
    const struct sl_config *c = &p->in->cfg;
    uint64_t bytes = 0;
    for (int m = 0; m < SL_N_MATS; m++) bytes += sl_mat_scales_bytes(c, m);
    int n_tasks = p->n_banks * c->n_experts;
    struct scan s = {p, sl_progress_open("check", NULL, 0, bytes * (uint64_t)n_tasks)};
    int rc = sl_jobs_run(jobs, n_tasks, scan_expert, &s, err);
    sl_progress_close(s.progress);
    return rc;
}
