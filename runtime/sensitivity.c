/* Layer by layer, window by window (sensitivity.h). */
#include "runtime/sensitivity.h"

#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "quant/stats_file.h"
#include "runtime/engine.h"
#include "runtime/kl_window.h"

int sl_sensitivity_measure(double *kl, sluice_session *s, const struct sl_rank_text *text,
                           sluice_error *e)
{
    struct sl_err err = {0};
    const struct sl_config *c = &s->p->pack->cfg;
    const size_t W = text->window, n = text->n / W;
    struct sl_kl_window m;
    int n_moe = 0;
    for (int l = 0; l < c->n_layers; l++) {
        kl[l] = 0;
        n_moe += s->p->pack->bank_of[l] >= 0;
    }
    if (!n)
        return sl_engine_give(e, &err,
                              sl_fail(&err, SL_E_SOURCE, NULL, "text",
                                      "%zu tokens are less than one window of %zu", text->n, W));
    if (sl_kl_window_init(&m, W, c->vocab_size))
        return sl_engine_give(e, &err,
                              sl_fail(&err, SL_E_NOMEM, NULL, "sensitivity", "out of memory"));
    struct sl_progress *bar =
        sl_progress_open("sensitivity", "windows", (uint64_t)n * (uint64_t)n_moe, 0);
    int rc = 0;
    for (size_t w = 0; w < n && !rc; w++) {
        const int32_t *ids = text->ids + w * W;
        sluice_session_reset(s);
        rc = sluice_feed_logits(s, ids, W, sl_kl_window_keep, &m, e);
        for (int l = 0; l < c->n_layers && !rc; l++) {
            if (s->p->pack->bank_of[l] < 0) continue;
            m.kl = 0;
            sl_graph_move_experts(s->graph, l, SL_SENSITIVITY_EPS);
            sluice_session_reset(s);
            rc = sluice_feed_logits(s, ids, W, sl_kl_window_compare, &m, e);
            sl_graph_move_experts(s->graph, -1, 0);
            kl[l] += m.kl;
            sl_progress_add(bar, 1, 0);
        }
    }
    const double eps = (double)SL_SENSITIVITY_EPS;
    for (int l = 0; l < c->n_layers; l++) kl[l] /= (double)(n * W) * eps * eps;
    sl_progress_close(bar);
    sluice_session_reset(s);
    free(m.kept);
    return rc;
}

int sl_sensitivity_save(const double *kl, const sluice_session *s, const char *path,
                        struct sl_err *err)
{
    struct sl_stats_out *o;
    const struct sl_pack *p = s->p->pack;
    int rc = sl_stats_create(&o, path, err);
    if (rc) return rc;
    rc = sl_stats_put(o, "source", p->source_sha256, 64, err);
    if (!rc) rc = sl_stats_put(o, "sensitivity", kl, (size_t)p->cfg.n_layers * sizeof *kl, err);
    if (!rc) return sl_stats_publish(o, err);
    sl_stats_discard(o);
    return rc;
}
