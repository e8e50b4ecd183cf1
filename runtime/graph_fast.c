/* Int8 activations of the fast path: which products take them, and where the packed inputs lie.
 *
 * A product of few tokens is bound by decoding its weights, which integers make shortest; one of many
 * decodes them once for all of its tokens, and fused floats are faster (from 4 tokens on with AVX2).
 * The choice looks at the format and at the tokens of the whole product alone (of an expert: its pairs of
 * the chunk), never at how the product is cut, so that neither threads nor the order in which experts
 * arrive can change a bit: an integer product gives a token the same bits in any batch.
 *
 * An input is packed once a region, for all matrices that read it in one order of codes. Small ones are
 * packed by the calling thread: handing them out would take longer. */
#include "base/size.h"
#include "runtime/graph_parts.h"

enum {
    ALIGN = 64,
    PLANES = 2,      /* a8x2: one plane flips experts that are nearly tied */
    TOKENS = 3,      /* of a packed product, at most */
    HERE_MAX = 16384 /* floats that the calling thread packs itself: about 5 us */
};

static bool packs(const struct sl_graph *g, enum sl_fmt fmt, int n)
{
    return g->o.fast && n <= TOKENS && sl_act_order_of(fmt) != SL_ACT_NONE;
}

void sl_graph_mul_floats(const struct sl_graph *g, const struct sl_mat *w, int row0, int row1,
                         const float *x, size_t ldx, int n, int n_all, float *y, size_t ldy)
{
    const bool fused = g->o.fast && n_all > TOKENS;
    (fused ? g->k.mul_fused : g->k.mul)(w, row0, row1, x, ldx, n, y, ldy);
}

static size_t bytes_of(int n_tok, int cols)
{
    const size_t one = sl_act_bytes(PLANES, cols) + sl_act_scales(cols) * sizeof(float);
    return (size_t)n_tok * one;
}

size_t sl_graph_pack_floats(int cols)
{
    return sl_align_up(bytes_of(TOKENS, cols), sizeof(float)) / sizeof(float);
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

/* A region reads TOKENS rows of one trunk input, or those of the shared experts and one row a pair; a pair
 * twice where gate and up differ in format. */
size_t sl_graph_pack_bytes(const struct sl_config *c, int n_pairs)
{
    const int shared = c->n_shared_experts * c->moe_intermediate_size;
    int cols = max_int(c->hidden_size, c->intermediate_size);
    cols = max_int(cols, max_int(c->q_lora_rank, shared));
    cols = max_int(cols, max_int(c->kda_heads * c->kda_head_dim, c->n_heads * c->v_head_dim));
    cols = max_int(cols, c->latent_size);
    const int pair = max_int(c->latent_size, c->moe_intermediate_size);
    return sl_align_up(bytes_of(TOKENS, cols), ALIGN) +
           2 * (size_t)n_pairs * sl_align_up(bytes_of(1, pair), ALIGN);
}

/* Where one input lies in mem once it is packed. */
static struct sl_packed packed_at(void *mem, enum sl_act_order order, const float *x, size_t ldx,
                                  int n_tok, int cols)
{
    struct sl_packed p = {.x = x, .ldx = ldx, .q = mem};
    p.scale = (float *)(p.q + (size_t)n_tok * sl_act_bytes(PLANES, cols)); /* a multiple of 64 */
    p.act = (struct sl_act){
        .order = order, .cols = cols, .n_tok = n_tok, .planes = PLANES, .q = p.q, .scale = p.scale};
    return p;
}

/* Number of the packed input of w, laid out if it is new; -1: w reads floats. */
static int find(struct sl_graph *g, const struct sl_seg *s, const struct sl_mat *w)
{
    if (!w || !packs(g, w->fmt, sl_seg_tokens(s))) return -1;
    const enum sl_act_order order = sl_act_order_of(w->fmt);
    for (int i = 0; i < g->n_packed; i++) {
        const struct sl_packed *p = &g->packed[i];
        if (p->x == s->x && p->act.order == order && p->act.cols == w->cols &&
            p->act.n_tok == s->n_tok)
            return i;
    }
    g->packed[g->n_packed] =
        packed_at(g->pack_mem + g->pack_used, order, s->x, s->ldx, s->n_tok, w->cols);
    g->pack_used += sl_align_up(bytes_of(s->n_tok, w->cols), ALIGN);
    return g->n_packed++;
}

static void pack_token(const struct sl_graph *g, const struct sl_packed *p, int tok)
{
    g->pack(p->act.order, PLANES, p->x + (size_t)tok * p->ldx, p->act.cols,
            p->q + (size_t)tok * sl_act_bytes(PLANES, p->act.cols),
            p->scale + (size_t)tok * sl_act_scales(p->act.cols));
}

static void pack_task(void *ctx, int task, int worker)
{
    (void)worker;
    const struct sl_graph *g = ctx;
    int i = g->n_packed - 1;
    while (g->packed[i].first_task > task) i--;
    pack_token(g, &g->packed[i], task - g->packed[i].first_task);
}

void sl_graph_pack(struct sl_graph *g, struct sl_seg *segs, int n)
{
    g->n_packed = 0;
    g->pack_used = 0;
    for (int i = 0; i < n; i++) {
        segs[i].act = find(g, &segs[i], segs[i].w);
        segs[i].act2 = find(g, &segs[i], segs[i].w2);
    }
    int n_tasks = 0;
    size_t floats = 0;
    for (int i = 0; i < g->n_packed; i++) {
        struct sl_packed *p = &g->packed[i];
        p->first_task = n_tasks;
        n_tasks += p->act.n_tok;
        floats += (size_t)p->act.n_tok * (size_t)p->act.cols;
    }
    if (floats > HERE_MAX && g->n_threads > 1) {
        sl_graph_run(g, n_tasks, pack_task, g);
        return;
    }
    for (int i = 0; i < g->n_packed; i++)
        for (int t = 0; t < g->packed[i].act.n_tok; t++) pack_token(g, &g->packed[i], t);
}

void sl_graph_mul_here(const struct sl_graph *g, const struct sl_seg *s, float *mem)
{
    const struct sl_mat *const mats[2] = {s->w, s->w2};
    float *const to[2] = {s->y, s->y2};
    struct sl_packed p = {0};
    for (int i = 0; i < 2 && mats[i]; i++) {
        const struct sl_mat *w = mats[i];
        if (!packs(g, w->fmt, sl_seg_tokens(s))) {
            sl_graph_mul_floats(g, w, 0, w->rows, s->x, s->ldx, s->n_tok, sl_seg_tokens(s), to[i],
                                s->ldy);
            continue;
        }
        const enum sl_act_order order = sl_act_order_of(w->fmt);
        if (p.act.order != order) {
            p = packed_at(mem, order, s->x, s->ldx, s->n_tok, w->cols);
            for (int t = 0; t < s->n_tok; t++) pack_token(g, &p, t);
        }
        g->mul_a8(w, 0, w->rows, &p.act, to[i], s->ldy);
    }
}
