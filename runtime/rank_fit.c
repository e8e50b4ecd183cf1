/* Plans of ranks from measurement (rank_fit.h). */
#include "runtime/rank_fit.h"

#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "offload/pack.h"
#include "runtime/engine.h"
#include "runtime/kl_window.h"

enum { ENDS = 2, BETWEEN = 3 };

struct fit {
    sluice_session *s, *ref;
    const struct sl_rank_text *text;
    struct sl_rank_plan *r;
    int vocab, n_layers, top_k;
    struct sl_kl_window window; /* the reference's logits, and the KL of the run in progress */
    struct sl_progress *progress;
};

static void see(void *ctx, enum sl_point point, int layer, uint64_t position, int n,
                const void *data)
{
    struct fit *f = ctx;
    (void)position;
    if (point != SL_POINT_ROUTE) return;
    const struct sl_route *routes = data;
    double *share = f->r->share + (size_t)layer * (size_t)f->top_k;
    for (int t = 0; t < n; t++)
        for (int j = 0; j < f->top_k; j++)
            share[j] += (double)routes[t].weights[j] * (double)routes[t].weights[j];
}

static int feed(struct fit *f, sluice_session *s, const int32_t *ids, sluice_logits_fn fn,
                sluice_error *e)
{
    sluice_session_reset(s);
    return sluice_feed_logits(s, ids, f->text->window, fn, &f->window, e);
}

/* Mean KL of n choices of ranks, [n][n_layers], window by window. */
static int measure(struct fit *f, const int *ranks, int n, double *kl, sluice_error *e)
{
    const size_t W = f->text->window, n_windows = f->text->n / W;
    int rc = 0;
    for (int i = 0; i < n; i++) kl[i] = 0;
    for (size_t w = 0; w < n_windows && !rc; w++) {
        rc = feed(f, f->ref, f->text->ids + w * W, sl_kl_window_keep, e);
        for (int i = 0; i < n && !rc; i++) {
            f->window.kl = 0;
            sl_graph_set_ranks(f->s->graph, ranks + (size_t)i * (size_t)f->n_layers);
            rc = feed(f, f->s, f->text->ids + w * W, sl_kl_window_compare, e);
            kl[i] += f->window.kl;
            sl_progress_add(f->progress, 1, 0);
        }
    }
    for (int i = 0; i < n; i++) kl[i] /= (double)(n_windows * W);
    return rc;
}

static void fill(int *ranks, int n, int value)
{
    for (int i = 0; i < n; i++) ranks[i] = value;
}

static void normalise_shares(struct sl_rank_plan *r)
{
    for (int l = 0; l < r->n_layers; l++) {
        double *share = r->share + (size_t)l * (size_t)r->top_k;
        double sum = 0;
        for (int j = 0; j < r->top_k; j++) sum += share[j];
        for (int j = 0; j < r->top_k && sum > 0; j++) share[j] /= sum;
    }
}

/* All base, all whole, each layer with something to choose whole alone. */
static int measure_layers(struct fit *f, int *ranks, double *kl, double ends[ENDS], sluice_error *e)
{
    const struct sl_pack *p = f->s->p->pack;
    int n = ENDS;
    fill(ranks, f->n_layers, 0);
    fill(ranks + f->n_layers, f->n_layers, f->top_k);
    for (int l = 0; l < f->n_layers; l++) {
        double base, whole;
        if (p->bank_of[l] < 0) continue;
        sl_rank_bits(p, l, &base, &whole);
        if (base == whole) continue;
        int *one = ranks + (size_t)n++ * (size_t)f->n_layers;
        fill(one, f->n_layers, 0);
        one[l] = f->top_k;
    }
    int rc = measure(f, ranks, n, kl, e);
    if (rc) return rc;
    for (int i = ENDS; i < n; i++)
        for (int l = 0; l < f->n_layers; l++)
            if (ranks[(size_t)i * (size_t)f->n_layers + (size_t)l])
                f->r->drop[l] = kl[0] > kl[i] ? kl[0] - kl[i] : 0;
    ends[0] = kl[0];
    ends[1] = kl[1];
    return 0;
}

static int choose(const struct fit *f, double bits, struct sl_rank_choice *c, sluice_error *e)
{
    struct sl_err err = {0};
    int rc = sl_rank_choose(f->s->p->pack, f->r, bits, c, &err);
    return rc ? sl_engine_give(e, &err, rc) : 0;
}

/* Points of the curve: the ends, and plans between them. */
static int measure_points(struct fit *f, int *ranks, const double ends[ENDS], sluice_error *e)
{
    struct sl_rank_choice *c = malloc(sizeof *c);
    double bits[BETWEEN], kl[BETWEEN];
    struct sl_err err = {0};
    if (!c)
        return sl_engine_give(e, &err, sl_fail(&err, SL_E_NOMEM, NULL, "ranks", "out of memory"));
    int rc = choose(f, 1e-9, c, e);
    const double base = c->bits;
    if (!rc) rc = choose(f, 32, c, e);
    const double whole = c->bits;
    for (int i = 0; i < BETWEEN && !rc; i++) {
        rc = choose(f, base + (whole - base) * (i + 1) / (BETWEEN + 1), c, e);
        bits[i] = c->bits;
        memcpy(ranks + (size_t)i * (size_t)f->n_layers, c->ranks,
               (size_t)f->n_layers * sizeof *ranks);
    }
    free(c);
    if (!rc) rc = measure(f, ranks, BETWEEN, kl, e);
    if (rc) return rc;
    struct sl_rank_point *to = f->r->points;
    int n = 0;
    to[n++] = (struct sl_rank_point){base, ends[0]};
    for (int i = 0; i < BETWEEN; i++) /* a model of few ranks may not have them all */
        if (bits[i] > to[n - 1].bits && bits[i] < whole)
            to[n++] = (struct sl_rank_point){bits[i], kl[i]};
    to[n++] = (struct sl_rank_point){whole, ends[1]};
    f->r->n_points = n;
    if (!f->r->bits) f->r->bits = (base + whole) / 2;
    return 0;
}

static bool has_choice(const struct sl_pack *p)
{
    for (int l = 0; l < p->cfg.n_layers; l++) {
        double base, whole;
        if (p->bank_of[l] < 0) continue;
        sl_rank_bits(p, l, &base, &whole);
        if (whole > base) return true;
    }
    return false;
}

static int run(struct fit *f, double bits, sluice_error *e)
{
    const size_t most = (size_t)f->n_layers + ENDS + BETWEEN;
    int *ranks = calloc(most * (size_t)f->n_layers, sizeof *ranks);
    double *kl = calloc(most, sizeof *kl);
    struct sl_err err = {0};
    double ends[ENDS] = {0};
    if (sl_kl_window_init(&f->window, f->text->window, f->vocab) || !ranks || !kl) {
        free(f->window.kept);
        free(ranks);
        free(kl);
        return sl_engine_give(e, &err, sl_fail(&err, SL_E_NOMEM, NULL, "ranks", "out of memory"));
    }
    const struct sl_observer o = {.see = see, .ctx = f};
    sl_graph_observe(f->s->graph, &o);
    f->r->bits = bits;
    f->r->tokens = f->text->n / f->text->window * f->text->window;
    int rc = measure_layers(f, ranks, kl, ends, e);
    sl_graph_observe(f->s->graph, NULL);
    sl_engine_observe(f->s);
    normalise_shares(f->r);
    if (!rc) rc = measure_points(f, ranks, ends, e);
    sl_graph_set_ranks(f->s->graph, f->s->e->ranks.ranks);
    sluice_session_reset(f->s);
    sluice_session_reset(f->ref);
    free(f->window.kept);
    free(ranks);
    free(kl);
    return rc;
}

int sl_rank_fit(struct sl_rank_plan **out, sluice_session *s, sluice_session *ref,
                const struct sl_rank_text *text, double bits, sluice_error *e)
{
    struct sl_err err = {0};
    const struct sl_config *c = &s->p->pack->cfg;
    struct fit f = {.s = s,
                    .ref = ref,
                    .text = text,
                    .vocab = c->vocab_size,
                    .n_layers = c->n_layers,
                    .top_k = c->top_k};
    *out = NULL;
    int rc = 0;
    if (!has_choice(s->p->pack))
        rc = sl_fail(&err, SL_E_ARG, s->p->pack->dir, "--ranks",
                     "no expert of the pack has a refinement plane; p36 has");
    else if (text->n < text->window)
        rc = sl_fail(&err, SL_E_SOURCE, NULL, "text", "%zu tokens are less than one window of %zu",
                     text->n, text->window);
    else if (ref->p->pack->cfg.vocab_size != f.vocab)
        rc = sl_fail(&err, SL_E_PACK, ref->p->pack->dir, "vocab_size", "%d, the pack has %d",
                     ref->p->pack->cfg.vocab_size, f.vocab);
    else
        rc = sl_rank_plan_new(&f.r, c, &err);
    if (rc) return sl_engine_give(e, &err, rc);
    int choices = ENDS + BETWEEN;
    for (int l = 0; l < f.n_layers; l++) choices += s->p->pack->bank_of[l] >= 0;
    f.progress =
        sl_progress_open("ranks", "windows", (uint64_t)choices * (text->n / text->window), 0);
    rc = run(&f, bits, e);
    sl_progress_close(f.progress);
    if (rc) {
        sl_rank_plan_close(f.r);
        return rc;
    }
    *out = f.r;
    return 0;
}
