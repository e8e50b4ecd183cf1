/* Routed experts of a chunk: asked for as far as the store has room, computed as they land.
 *
 *   wanted: resident ones, then the others in file order -> request -> batches -> put -> request ...
 *
 * As records are put back the next ones are asked for, so the slots are a ring that keeps the drive
 * busy while experts are computed, and each is read once a chunk. A batch is what is known to be there:
 * first the hits together, then records as they arrive. Two ways to cut a batch into tasks:
 *
 *   by rows      few pairs (decode): gate, up and SiTU of all its experts in one region, down in the
 *                next; the shared experts ride along with the first batch
 *   by experts   many pairs (prefill): one task is one expert and up to SL_GRAPH_BATCH of its tokens,
 *                all three matrices, in the worker's scratch
 *
 * Both make the same kernel calls on the same rows, so the bits do not depend on the cut. */
#include <string.h>

#include "runtime/graph_parts.h"

size_t sl_graph_moe_scratch(const struct sl_config *c)
{
    const int widest =
        c->latent_size > c->moe_intermediate_size ? c->latent_size : c->moe_intermediate_size;
    const size_t rows =
        (size_t)SL_GRAPH_BATCH * ((size_t)c->latent_size + 2 * (size_t)c->moe_intermediate_size) +
        sl_graph_pack_floats(widest);
    const size_t chosen = (size_t)c->top_k + 1; /* of the router */
    return rows > chosen ? rows : chosen;
}

/* The pairs of an expert that was taken: at most one part for each reading of its planes. */
static int hold(const struct sl_graph *g, int expert, const struct sl_mat mats[SL_N_MATS],
                struct sl_held h[2])
{
    const int first = g->moe.first[expert], end = g->moe.first[expert + 1];
    const int whole = mats[SL_GATE].fine_codes || mats[SL_UP].fine_codes || mats[SL_DOWN].fine_codes
                          ? g->moe.base_row[expert]
                          : end;
    const int node = g->n_nodes > 1 ? sl_store_node_of(g->store, mats[SL_GATE].codes) : -1;
    int n = 0;
    for (int base = 0; base < 2; base++) {
        const int row = base ? whole : first, stop = base ? end : whole;
        if (row == stop) continue;
        h[n] = (struct sl_held){.expert = expert, .row = row, .n = stop - row, .node = node};
        memcpy(h[n].mats, mats, sizeof h[n].mats);
        for (int m = 0; m < SL_N_MATS && base; m++)
            h[n].mats[m].fine_codes = h[n].mats[m].fine_table = NULL;
        n++;
    }
    return n;
}

/* Inputs of pair rows [row, row + n) side by side in out. */
static void gather_rows(const struct sl_graph *g, int row, int n, float *out)
{
    const size_t latent = (size_t)g->c->latent_size;
    for (int i = 0; i < n; i++)
        memcpy(out + (size_t)i * latent, g->moe.latent + (size_t)g->moe.token_of[row + i] * latent,
               sizeof(float) * latent);
}

/* ---- by rows */

static void add_shared(struct sl_graph *g, int step, int at)
{
    const struct sl_config *c = g->c;
    const struct sl_ffn_weights *w = &g->layer->ffn;
    const size_t hidden = (size_t)c->hidden_size;
    const size_t width = (size_t)c->n_shared_experts * (size_t)c->moe_intermediate_size;
    if (step == 0)
        g->segs[at] = (struct sl_seg){.w = &w->gate,
                                      .w2 = &w->up,
                                      .x = g->x,
                                      .ldx = hidden,
                                      .y = g->moe.shared[0],
                                      .y2 = g->moe.shared[1],
                                      .ldy = width,
                                      .n_tok = g->n,
                                      .post = SL_POST_SITU};
    else
        g->segs[at] = (struct sl_seg){.w = &w->down,
                                      .x = g->moe.shared[0],
                                      .ldx = width,
                                      .y = g->moe.shared_out,
                                      .ldy = hidden,
                                      .n_tok = g->n};
}

/* Pairs [skip, skip + n) of an expert, at row `used` of the batch's buffers. */
static void add_expert(struct sl_graph *g, int step, int at, const struct sl_held *h, int skip,
                       int n, int used)
{
    const size_t latent = (size_t)g->c->latent_size;
    const size_t width = (size_t)g->c->moe_intermediate_size;
    const int row = h->row + skip;
    float *hidden = g->moe.hidden[0] + (size_t)used * width;
    if (step == 1) {
        g->segs[at] = (struct sl_seg){.w = &h->mats[SL_DOWN],
                                      .x = hidden,
                                      .ldx = width,
                                      .y = g->moe.out + (size_t)row * latent,
                                      .ldy = latent,
                                      .placed = h->node >= 0,
                                      .node = h->node,
                                      .n_tok = n,
                                      .n_all = h->n};
        return;
    }
    const float *x = g->moe.latent; /* one token: every pair reads it */
    if (g->n > 1) {
        float *rows = g->moe.in_rows + (size_t)used * latent;
        gather_rows(g, row, n, rows);
        x = rows;
    }
    g->segs[at] = (struct sl_seg){.w = &h->mats[SL_GATE],
                                  .w2 = &h->mats[SL_UP],
                                  .x = x,
                                  .ldx = latent,
                                  .y = hidden,
                                  .y2 = g->moe.hidden[1] + (size_t)used * width,
                                  .ldy = width,
                                  .placed = h->node >= 0,
                                  .node = h->node,
                                  .n_tok = n,
                                  .n_all = h->n,
                                  .post = SL_POST_SITU};
}

/* n pairs of an expert from row `used` of the batch's buffers, gate and up done: what w2 will read. */
static void see_hidden(struct sl_graph *g, int expert, int n, int used)
{
    if (!g->observer.hidden) return;
    const size_t width = (size_t)g->c->moe_intermediate_size;
    const struct sl_hidden h = {
        .expert = expert, .rows = g->moe.hidden[0] + (size_t)used * width, .ld = width};
    g->observer.see(g->observer.ctx, SL_POINT_HIDDEN, g->l, sl_graph_position(g, 0), n, &h);
}

/* All pairs of the batch, which fit the buffers, and the shared experts. */
static void run_rows(struct sl_graph *g, const struct sl_held *held, int n, bool shared)
{
    for (int step = 0; step < 2; step++) {
        int at = 0;
        int used = 0;
        if (shared) add_shared(g, step, at++);
        for (int i = 0; i < n; i++) {
            const int pairs = held[i].n;
            add_expert(g, step, at++, &held[i], 0, pairs, used);
            used += pairs;
        }
        if (at) sl_graph_mul(g, g->segs, at);
        for (int i = 0, row = 0; step == 0 && i < n; i++) {
            const int pairs = held[i].n;
            see_hidden(g, held[i].expert, pairs, row);
            row += pairs;
        }
    }
}

/* One expert with more pairs than the buffers hold. */
static void run_rows_of_one(struct sl_graph *g, const struct sl_held *h)
{
    const int pairs = h->n;
    for (int skip = 0; skip < pairs; skip += g->n_pairs) {
        const int n = pairs - skip < g->n_pairs ? pairs - skip : g->n_pairs;
        for (int step = 0; step < 2; step++) {
            add_expert(g, step, 0, h, skip, n, 0);
            sl_graph_mul(g, g->segs, 1);
            if (step == 0) see_hidden(g, h->expert, n, 0);
        }
    }
}

/* ---- by experts */

struct batch {
    struct sl_graph *g;
    struct sl_held *held;
    int n;
};

static void expert_task(void *ctx, int task, int worker)
{
    const struct batch *b = ctx;
    struct sl_graph *g = b->g;
    const struct sl_config *c = g->c;
    int lo = 0;
    int hi = b->n - 1;
    while (lo < hi) { /* last expert whose first task is not beyond this one */
        const int mid = (lo + hi + 1) / 2;
        if (b->held[mid].first_task <= task)
            lo = mid;
        else
            hi = mid - 1;
    }
    const struct sl_held *h = &b->held[lo];
    const int skip = (task - h->first_task) * SL_GRAPH_BATCH;
    const int left = h->n - skip;
    const int n = left < SL_GRAPH_BATCH ? left : SL_GRAPH_BATCH;
    const int row = h->row + skip;
    const int width = c->moe_intermediate_size;
    const size_t latent = (size_t)c->latent_size;
    const size_t ldh = (size_t)width;
    float *x = sl_graph_scratch(g, worker);
    float *gate = x + SL_GRAPH_BATCH * latent;
    float *up = gate + SL_GRAPH_BATCH * ldh;
    float *mem = up + SL_GRAPH_BATCH * ldh;
    gather_rows(g, row, n, x);
    struct sl_seg s = {.w = &h->mats[SL_GATE],
                       .w2 = &h->mats[SL_UP],
                       .x = x,
                       .ldx = latent,
                       .y = gate,
                       .y2 = up,
                       .ldy = ldh,
                       .n_tok = n,
                       .n_all = h->n};
    sl_graph_mul_here(g, &s, mem);
    for (int i = 0; i < n; i++) sl_graph_situ(g, &s, i, 0, width);
    s = (struct sl_seg){.w = &h->mats[SL_DOWN],
                        .x = gate,
                        .ldx = ldh,
                        .y = g->moe.out + (size_t)row * latent,
                        .ldy = latent,
                        .n_tok = n,
                        .n_all = h->n};
    sl_graph_mul_here(g, &s, mem);
}

static void run_experts(struct sl_graph *g, struct sl_held *held, int n)
{
    struct batch b = {g, held, n};
    int n_tasks = 0;
    for (int i = 0; i < n; i++) {
        held[i].first_task = n_tasks;
        n_tasks += (held[i].n + SL_GRAPH_BATCH - 1) / SL_GRAPH_BATCH;
        g->spans[i] = (struct sl_numa_span){
            .first = held[i].first_task, .n = n_tasks - held[i].first_task, .node = held[i].node};
    }
    if (g->n_nodes > 1)
        sl_graph_deal(g, n, expert_task, &b);
    else
        sl_graph_run(g, n_tasks, expert_task, &b);
}

/* ---- batches */

static void run_batch(struct sl_graph *g, struct sl_held *held, int n, bool shared)
{
    int pairs = 0;
    for (int i = 0; i < n; i++) pairs += held[i].n;
    if (pairs <= g->n_pairs) {
        run_rows(g, held, n, shared);
        return;
    }
    if (shared) run_rows(g, held, 0, true);
    if (n >= 2 * g->n_threads && !g->observer.hidden) {
        run_experts(g, held, n);
        return;
    }
    for (int i = 0; i < n; i++) run_rows_of_one(g, &held[i]);
}

void sl_graph_shared(struct sl_graph *g)
{
    run_rows(g, g->held, 0, true);
}

/* Experts of one layer on their way: asked for in order, taken as they land. */
struct sweep {
    const int *ids;    /* [n] in the order of asking */
    const bool *whole; /* [n] */
    int n, asked, done;
    int room; /* records that may be asked for and not yet put */
};

static int ask_for_more(struct sl_graph *g, struct sweep *w, struct sl_err *err)
{
    const int left = w->n - w->asked;
    const int room = w->room - (w->asked - w->done);
    const int n = left < room ? left : room;
    if (n < 1) return 0;
    int rc =
        sl_store_request_planes(g->store, g->l, w->ids + w->asked, w->whole + w->asked, n, err);
    if (rc) return rc;
    w->asked += n;
    if (w->asked == w->n) sl_graph_name_ahead(g); /* behind the last of our own reads */
    return 0;
}

/* Takes and computes what is there, or the first to come. While more is to be read a batch leaves the
 * drive half of the room. */
static int run_some(struct sl_graph *g, struct sweep *w, bool shared, struct sl_err *err)
{
    int n = sl_store_ready(g->store, g->l);
    if (shared && n == 0) run_batch(g, g->held, 0, true); /* while the drive works */
    const bool with = shared && n > 0;
    if (n < 1) n = 1;
    if (w->asked < w->n && n > (w->room + 1) / 2) n = (w->room + 1) / 2;
    int got = 0;
    int rc = 0;
    int parts = 0;
    while (got < n && !rc) {
        struct sl_mat mats[SL_N_MATS];
        int expert;
        rc = sl_store_take_any(g->store, g->l, &expert, mats, err);
        if (rc) break;
        parts += hold(g, expert, mats, &g->held[parts]);
        got++;
    }
    if (!rc) run_batch(g, g->held, parts, with);
    for (int i = 0; i < parts; i++)
        if (!i || g->held[i].expert != g->held[i - 1].expert)
            sl_store_put(g->store, g->l, g->held[i].expert);
    w->done += got;
    return rc;
}

int sl_graph_experts(struct sl_graph *g, int n_wanted, bool shared, struct sl_err *err)
{
    struct sweep w = {.ids = g->moe.wanted,
                      .whole = g->moe.whole,
                      .n = n_wanted,
                      .room = sl_store_max_request(g->store)};
    int rc = 0;
    sl_store_sweep_layer(g->store, g->l, g->moe.ids, g->n);
    /* A chunk asks for what is resident first, so that its reads do not evict it. */
    if (g->n > 1) sl_store_sort_resident(g->store, g->l, g->moe.wanted, g->moe.whole, n_wanted);
    while (w.done < w.n && !rc) {
        rc = ask_for_more(g, &w, err);
        if (!rc) rc = run_some(g, &w, shared, err);
        shared = false;
        if (!rc && sl_interrupted()) rc = sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted");
    }
    if (rc) sl_store_cancel(g->store);
    return rc;
}
