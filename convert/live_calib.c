/* Experts run for their outputs alone (live_calib.h): a kill between a bank and its layer's end. */
#include "convert/live_calib.h"

#include "convert/jobs.h"

struct pass {
    const struct sl_live_calib *live;
    const struct sl_input *in;
    int layer;
};

void sl_live_mats(const struct sl_config *c, const struct sl_in_expert *x,
                  struct sl_mat mats[SL_N_MATS])
{
    for (int m = 0; m < SL_N_MATS; m++)
        mats[m] = (struct sl_mat){.fmt = SL_FMT_MXFP4,
                                  .rows = sl_mat_rows(c, m),
                                  .cols = sl_mat_cols(c, m),
                                  .codes = x->codes[m],
                                  .scales = x->scales[m]};
}

static int run_expert(void *ctx, int expert, uint8_t *buf, struct sl_err *err)
{
    const struct pass *k = ctx;
    struct sl_in_expert x;
    struct sl_mat mats[SL_N_MATS];
    int rc = k->in->ops->read_expert(k->in, k->layer, expert, buf, &x, err);
    if (rc) return rc;
    sl_live_mats(&k->in->cfg, &x, mats);
    return k->live->expert(k->live->ctx, expert, mats, NULL, NULL, err);
}

int sl_live_run_experts(const struct sl_live_calib *live, const struct sl_input *in, int layer,
                        struct sl_jobs *jobs, struct sl_err *err)
{
    struct pass k = {live, in, layer};
    return sl_jobs_run(jobs, in->cfg.n_experts, run_expert, &k, err);
}
