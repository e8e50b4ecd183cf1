/* Cuts what is fed into chunks, and leases the slots' memory to long ones (see engine_prefill.h). */
#include "runtime/engine_prefill.h"

#include <string.h>

/* What n lent tokens take is n times token_bytes and at most fixed_bytes more. */
static void price_loan(const struct sl_config *c, bool wide, struct sl_sweep_in *in)
{
    enum { LOW = 1 << 14, HIGH = 1 << 15 };
    const uint64_t low = sl_graph_lent_bytes(c, LOW, wide);
    in->token_bytes = (sl_graph_lent_bytes(c, HIGH, wide) - low) / (HIGH - LOW) + 1;
    in->fixed_bytes = 0;
    for (int n = 1; n <= SL_GRAPH_CHUNK_MAX; n *= 2) {
        /* One less than a power of two: every buffer is rounded up. */
        const uint64_t need = sl_graph_lent_bytes(c, n > 1 ? n - 1 : 1, wide);
        const uint64_t linear = (uint64_t)(n > 1 ? n - 1 : 1) * in->token_bytes;
        if (need > linear && need - linear > in->fixed_bytes) in->fixed_bytes = need - linear;
    }
}

void sl_engine_plan_sweeps(const struct sl_pack *pack, uint64_t most, struct sl_engine_plan *plan)
{
    const struct sl_config *c = &pack->cfg;
    struct sl_sweep_in *in = &plan->sweep;
    *in = (struct sl_sweep_in){
        .n_slots = plan->info.n_slots,
        .slot_bytes = plan->info.slot_bytes,
        .n_experts = c->n_experts,
        .top_k = c->top_k,
        .panel = plan->panel,
        .most = most < SL_GRAPH_CHUNK_MAX ? most : SL_GRAPH_CHUNK_MAX,
    };
    for (int l = 0; l < c->n_layers; l++) in->n_moe += pack->bank_of[l] >= 0;
    in->n_records = (uint64_t)in->n_moe * (uint64_t)c->n_experts;
    plan->wide = plan->trunk_ring_bytes != 0;
    if (in->n_moe) price_loan(c, plan->wide, in);
    plan->info.chunk = sl_sweep_longest(in);
}

/* One chunk, and its logits to who wants them. */
static int feed_chunk(struct sluice_session *s, const int32_t *ids, int n, bool last,
                      sluice_logits_fn on_logits, void *ctx, struct sl_err *err)
{
    const size_t vocab = (size_t)s->p->pack->cfg.vocab_size;
    const int rows = on_logits ? n : last;
    const uint64_t at = s->state->position;
    int rc = sl_graph_feed(s->graph, s->state, ids, n, rows ? s->rows : NULL, rows, err);
    for (int r = 0; !rc && on_logits && r < rows; r++)
        rc = on_logits(ctx, at + (uint64_t)r, s->rows + (size_t)r * vocab);
    if (!rc && rows) {
        const float *row = s->rows + (size_t)(rows - 1) * vocab;
        if (s->e->n_seats > 1) row = memcpy(s->seat->own, row, vocab * sizeof *row);
        s->last = row;
    }
    return rc;
}

/* How the n tokens are cut. Who looks at every logit gets as many as there are rows; who looks into the
 * chunk beyond its routes sees panels alone. */
static struct sl_sweep_choice choose(const struct sluice_session *s, size_t n, bool all_logits)
{
    struct sl_sweep_choice c;
    struct sl_sweep_in in = s->plan.sweep;
    if (all_logits) in.most = s->plan.logit_rows;
    if (all_logits || sl_graph_wants_panels(s->graph)) in.token_bytes = 0; /* no loan */
    sl_sweep_choose(&in, n, &c);
    return c;
}

/* Chunks of several tokens are sweeps: the policy learns of them afterwards. */
static int begin(struct sluice_session *s, const struct sl_sweep_choice *c, struct sl_err *err)
{
    void *mem;
    uint64_t bytes = 0;
    if (c->lent_bytes) bytes = sl_graph_lent_bytes(&s->p->pack->cfg, (int)c->chunk, s->plan.wide);
    int rc = sl_store_sweep_begin(s->store, bytes, &mem, err);
    if (!rc && mem) rc = sl_graph_lend(s->graph, mem, bytes, (int)c->chunk, s->plan.wide, err);
    return rc;
}

static void end(struct sluice_session *s, bool ok)
{
    sl_graph_lend(s->graph, NULL, 0, 0, false, NULL);
    sl_store_sweep_end(s->store, ok);
}

int sl_engine_feed(struct sluice_session *s, const int32_t *ids, size_t n,
                   sluice_logits_fn on_logits, void *ctx, struct sl_err *err)
{
    if (!n) return 0;
    const struct sl_sweep_choice c = choose(s, n, on_logits != NULL);
    const bool sweep = s->store && n > 1 && c.chunk > 1;
    int rc = sweep ? begin(s, &c, err) : 0;
    atomic_store(&s->e->feed_at, 0);
    atomic_store(&s->e->feed_n, n);
    for (size_t i = 0; i < n && !rc;) {
        const size_t m = n - i < c.chunk ? n - i : (size_t)c.chunk;
        atomic_store(&s->e->feed_at, i);
        atomic_store(&s->e->feed_chunk, m);
        rc = feed_chunk(s, ids + i, (int)m, i + m == n, on_logits, ctx, err);
        if (!rc && sweep) sl_store_sweep_routes(s->store, sl_graph_routes(s->graph), (int)m);
        i += m;
        s->e->chunks += m > 1;
    }
    atomic_store(&s->e->feed_n, 0);
    if (sweep) end(s, !rc);
    return rc;
}

double sluice_progress(const sluice_session *s)
{
    const struct sl_engine *e = s->e;
    const double n = (double)atomic_load(&e->feed_n);
    if (n == 0) return 0;
    const double share = (double)sl_graph_layers_done(e->graph) / s->p->pack->cfg.n_layers;
    return ((double)atomic_load(&e->feed_at) + share * (double)atomic_load(&e->feed_chunk)) / n;
}
