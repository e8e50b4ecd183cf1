/* Routes of one session for another: who leads notes the experts it chose, who follows takes them.
 *
 * Two packs of one model flip near-tied experts, and a flip moves the logits more than all rounding does
 * (expert choice is discrete). With the routes of the reference, what is left is arithmetic. Not a part
 * of normal runs: the table is allocated when it is asked for. */
#include <stdlib.h>
#include <string.h>
#include "base/size.h"
#include "runtime/engine.h"

static int32_t *route_at(const struct sluice_session *s, int layer, uint64_t position)
{
    const struct sl_config *c = &s->p->pack->cfg;
    uint64_t row = position * (uint64_t)c->n_layers + (uint64_t)layer;
    return s->routes + row * (uint64_t)c->top_k;
}

void sl_engine_note_routes(struct sluice_session *s, int layer, uint64_t position, int n_tokens,
                           const struct sl_route *r)
{
    int top_k = s->p->pack->cfg.top_k;
    for (int t = 0; t < n_tokens; t++) {
        int32_t *out = route_at(s, layer, position + (uint64_t)t);
        for (int i = 0; i < top_k; i++) out[i] = r[t].ids[i];
    }
}

static bool follow(void *ctx, int layer, uint64_t position, int *ids)
{
    const struct sluice_session *leader = ctx;
    if (position >= leader->state->position) return false; /* not there yet: own choice */
    const int32_t *from = route_at(leader, layer, position);
    for (int i = 0; i < leader->p->pack->cfg.top_k; i++) ids[i] = from[i];
    return true;
}

static int start_noting(struct sluice_session *s, struct sl_err *err)
{
    const struct sl_config *c = &s->p->pack->cfg;
    uint64_t n;
    if (s->routes) return 0;
    if (!sl_mul_u64(s->plan.info.ctx, (uint64_t)c->n_layers * (uint64_t)c->top_k, &n) ||
        !(s->routes = calloc(n, sizeof *s->routes)))
        return sl_fail(err, SL_E_NOMEM, NULL, "routes", "no memory for %llu positions",
                       (unsigned long long)s->plan.info.ctx);
    sl_engine_observe(s);
    return 0;
}

int sl_engine_keep_routes(struct sluice_session *s, struct sl_err *err)
{
    return start_noting(s, err);
}

void sl_engine_flips(const struct sluice_session *s, const struct sluice_session *ref, uint64_t n,
                     uint64_t *flips)
{
    const struct sl_config *c = &s->p->pack->cfg;
    for (uint64_t t = 0; t < n; t++)
        for (int l = 0; l < c->n_layers; l++) {
            if (!sl_config_is_moe(c, l)) continue;
            const int32_t *own = route_at(s, l, t), *other = route_at(ref, l, t);
            for (int i = 0; i < c->top_k; i++) {
                int j = 0;
                while (j < c->top_k && other[j] != own[i]) j++;
                flips[l] += j == c->top_k;
            }
        }
}

int sluice_follow_routes(sluice_session *s, sluice_session *leader, sluice_error *error)
{
    struct sl_err err = {0};
    if (!leader) {
        sl_graph_force_routes(s->graph, NULL, NULL);
        return 0;
    }
    const struct sl_config *a = &s->p->pack->cfg;
    const struct sl_config *b = &leader->p->pack->cfg;
    int rc = 0;
    if (s->e->n_seats > 1)
        rc = sl_fail(&err, SL_E_ARG, NULL, "routes", "an engine of %d seats cannot follow",
                     s->e->n_seats);
    else if (a->n_layers != b->n_layers || a->n_experts != b->n_experts || a->top_k != b->top_k)
        rc = sl_fail(&err, SL_E_ARG, NULL, "routes",
                     "the models differ: %d and %d layers, top %d of %d and top %d of %d",
                     a->n_layers, b->n_layers, a->top_k, a->n_experts, b->top_k, b->n_experts);
    if (!rc && leader->state->position)
        rc = sl_fail(&err, SL_E_ARG, NULL, "routes", "the leading session has begun already");
    if (!rc) rc = start_noting(leader, &err);
    if (rc) return sl_engine_give(error, &err, rc);
    sl_graph_force_routes(s->graph, follow, leader);
    return 0;
}
