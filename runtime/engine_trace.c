/* What a session's graph shows to others: routes to the sessions that follow it, and to a trace file.
 *
 * The graph has one observer; it is set here, for whoever wants something, and shows one session's tokens. A trace holds the tokens fed
 * while it is open, decode and prefill alike, and appears under its name when it is ended. */
#include "offload/trace.h"
#include "runtime/engine.h"

static void trace_routes(struct sluice_session *s, int layer, uint64_t position, int n_tokens,
                         const struct sl_route *r)
{
    int top_k = s->p->pack->cfg.top_k;
    for (int t = 0; t < n_tokens; t++)
        sl_trace_add(s->trace, position + (uint64_t)t, layer, top_k, r[t].ids, r[t].weights);
}

static void see(void *ctx, enum sl_point point, int layer, uint64_t position, int n_tokens,
                const void *data)
{
    struct sluice_session *s = ctx;
    if (point != SL_POINT_ROUTE || sl_graph_seen(s->graph) != s->state) return;
    if (s->routes) sl_engine_note_routes(s, layer, position, n_tokens, data);
    if (s->trace) trace_routes(s, layer, position, n_tokens, data);
}

void sl_engine_observe(struct sluice_session *s)
{
    const struct sl_observer o = {.see = see, .ctx = s};
    sl_graph_observe(s->graph, s->routes || s->trace ? &o : NULL);
}

int sluice_trace(sluice_session *s, const char *path, sluice_error *error)
{
    const struct sl_config *c = &s->p->pack->cfg;
    struct sl_err err = {0};
    int rc = 0;
    if (s->trace) rc = sl_trace_finish(s->trace, true, &err);
    s->trace = NULL;
    if (!rc && path)
        rc = sl_trace_create(&s->trace, path, c->n_layers, c->n_experts, c->top_k, &err);
    sl_engine_observe(s);
    return rc ? sl_engine_give(error, &err, rc) : 0;
}
