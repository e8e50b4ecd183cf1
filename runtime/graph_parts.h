/* Inside of the graph: its buffers, and the steps that graph.c strings together.
 *
 * One chunk of n tokens at a time. Work is cut into tasks by rows, heads, tokens or experts; a cut
 * decides who computes a number, never how: each output element is one kernel call's result whatever
 * the cut, because sl_kernels.mul is independent of row range and token batch.
 *
 *   stream  [n][n_slots][hidden]   slots 0..n_banked-1 are the banked vectors of attention residuals,
 *                                  slot n_banked is the running partial sum p. Banking p is moving on
 *                                  to the next slot: nothing is copied, and a mix is one call over
 *                                  n_banked + 1 rows that lie together.
 *
 * A chunk is walked in panels: a layer's attention and router run panel by panel, its experts once for
 * all tokens, what follows panel by panel again. So only a few buffers are as long as the chunk; they
 * are the graph's own for short ones, and lie in lent memory for long ones (graph_mem.c).
 *
 * Buffers that live only inside one sublayer share memory (kda, mla, moe, dense). */
#ifndef SL_RUNTIME_GRAPH_PARTS_H
#define SL_RUNTIME_GRAPH_PARTS_H

#include <limits.h>
#include <stdatomic.h>
#include "kernels/act.h"
#include "runtime/graph.h"
#include "offload/numa_deal.h"
#include "runtime/lookahead.h"

#define SL_GRAPH_TOKENS 16 /* tokens of a task that works token by token */
#define SL_GRAPH_BATCH                                                                             \
    48 /* tokens of one product inside a head or expert task: what kernels tile by */
#define SL_GRAPH_QUERIES 16   /* queries of one block in attention: bounds the score scratch */
#define SL_GRAPH_STRIP   4096 /* positions whose keys one head expands at a time without a cache */
#define SL_GRAPH_TILE    64 /* positions of one partial sum of attention; divides SL_GRAPH_STRIP */
#define SL_GRAPH_PAIRS   64 /* (token, expert) pairs computed row by row; at least top_k */

struct sl_kda_bufs {
    float *z[3]; /* [n][channels]: q, k, v projections */
    float *f_a;  /* [n][head_dim] */
    float *b;    /* [n][heads] */
    float *gate; /* [n][channels]: g_proj, then the gated output */
};

struct sl_mla_bufs {
    float *kv;   /* [n][kv_lora + rope]: what becomes a row of the state */
    float *q_a;  /* [n][q_lora] */
    float *q;    /* [n][heads * (nope + rope)] */
    float *gate; /* [n][heads * v]: g_proj, then the gated output */
};

/* Of a wave of tokens in MLA on the fast path (graph_latent.c). */
struct sl_latent_bufs {
    float *q, *acc, *ms;
};

struct sl_moe_bufs {
    /* as long as the chunk */
    float *latent;  /* [n][latent]: input of the experts, then their weighted sum */
    float *out;     /* [n * top_k][latent]: one row a (token, expert) pair, grouped by expert */
    float *weights; /* [n][top_k] */
    int *ids;       /* [n][top_k], best first */
    int *pair_of;   /* [n][top_k] row of `out` */
    int *token_of;  /* [n * top_k] token of that row */
    /* as long as a panel */
    float *scores;           /* [n][n_experts]: router logits, then sigmoids */
    float *in_rows;          /* [pairs][latent]: inputs of one row-wise batch, gathered */
    float *hidden[2];        /* [pairs][width]: gate, up */
    float *shared[2];        /* [n][shared width] */
    float *shared_out;       /* [n][hidden] */
    struct sl_route *routes; /* [n] */
    int *first;              /* [n_experts + 1] first row of an expert */
    int *base_row;           /* [n_experts] first row of its pairs that use the base planes alone */
    int *cursor;             /* [n_experts] work of the sort */
    int *wanted;             /* [n_experts] distinct ids of the chunk */
    bool *whole;             /* [n_experts] of each wanted id: a pair uses the refinement */
};

struct sl_dense_bufs {
    float *hidden[2]; /* [n][intermediate] */
};

/* All that the size of a chunk or panel decides. */
struct sl_graph_bufs {
    int n, n_panel;   /* tokens it is laid out for */
    float *stream;    /* [n][n_slots][hidden], see above */
    float *rms;       /* [n][n_slots] sqrt(mean square + eps) of each vector of the stream */
    uint16_t *kept;   /* [n_layers][tokens of the chunk][top_k]: routes of the whole chunk */
    float *x;         /* [n_panel][hidden] normed input of a sublayer */
    float *y;         /* [n_panel][hidden] output of a sublayer */
    int *with_logits; /* [n_panel] tokens whose logits are asked for */
    struct sl_kda_bufs kda;
    struct sl_mla_bufs mla;
    struct sl_moe_bufs moe;
    struct sl_dense_bufs dense;
};

/* Pairs of an expert that is pinned in the store and waits for its turn; whole and base readings of one
 * expert are two of these. */
struct sl_held {
    int expert;
    int row, n; /* pairs [row, row + n) */
    int node;   /* of its memory; -1 where there is one node only */
    int first_task;
    struct sl_mat mats[SL_N_MATS];
};

enum sl_post {
    SL_POST_NONE,
    SL_POST_SITU,  /* y = situ(y, y2) */
    SL_POST_RESID, /* y += extra (if any); p = fresh ? y : p + y */
    SL_POST_FINITE /* note a value that is not finite */
};

/* One product in a region: y[t][r] = w[r] . x[t], and what follows on the same rows. */
struct sl_seg {
    const struct sl_mat *w, *w2; /* w2: second matrix of the same shape, result in y2; or NULL */
    const float *x;
    size_t ldx;
    float *y, *y2;
    size_t ldy;
    int n_tok;
    /* Tokens that decide how it is computed on the fast path, where a product is done in parts; 0: n_tok. */
    int n_all;
    enum sl_post post;
    const float *extra; /* [n_tok][ldy] */
    bool fresh;
    bool placed; /* w and w2 lie on `node`; otherwise on all alike */
    int node;
    /* Of a strip, set by sl_graph_mul: w holds rows from row_base on, every pointer above stands at that
     * row, and with to_y2 the product goes to y2. */
    int row_base;
    bool to_y2;
    int block_rows, first_task; /* set by sl_graph_mul */
    int act, act2; /* set by sl_graph_pack: number of the packed x for w and w2, -1: none */
};
/* What decides how it is computed on the fast path. */
static inline int sl_seg_tokens(const struct sl_seg *s)
{
    return s->n_all ? s->n_all : s->n_tok;
}

/* Inputs of one product or more as int8 activations. */
struct sl_packed {
    struct sl_act act;
    const float *x; /* what was packed, [n_tok][ldx] */
    size_t ldx;
    int8_t *q;
    float *scale;
    int first_task;
};

/* Tokens [tok, tok + n), of the chunk or of what is in view, that go on with one sequence at pos. */
struct sl_part {
    struct sl_state *st;
    int tok, n;
    uint64_t pos;
    uint64_t n_expanded; /* positions whose keys are in the state's cache before them */
    int n_logits;        /* of its last tokens; of a part of the chunk alone */
};

struct sl_graph {
    const struct sl_model *m;
    const struct sl_config *c;
    struct sl_kernels k;
    struct sl_pool *pool;
    struct sl_store *store;
    struct sl_graph_opts o;
    struct sl_observer observer;
    sl_routes_fn routes_fn; /* NULL: the router decides */
    void *routes_ctx;
    struct sl_lookahead *ahead; /* NULL: no look-ahead */
    int n_threads;
    struct {
        bool kda, mla, moe, dense;
    } has;       /* kinds of sublayers of the model */
    int n_slots; /* of the stream */
    size_t ld_stream;

    struct sl_graph_bufs own, use; /* use: own, or those in lent memory */

    /* `use` from the first token in view on; see sl_graph_view */
    float *stream, *rms, *x, *y;
    struct sl_kda_bufs kda;
    struct sl_mla_bufs mla;
    struct sl_moe_bufs moe;
    struct sl_dense_bufs dense;
    struct sl_latent_bufs latent;
    float *scratch; /* [n_threads][ld_scratch], the worker's own */
    size_t ld_scratch;
    struct sl_seg *segs; /* [n_pairs + 2] */
    int n_pairs;
    struct sl_held *held;       /* [2 * n_experts] */
    int n_nodes;                /* memory nodes that slots are spread over */
    struct sl_numa_span *spans; /* [2 * n_experts + n_pairs + 8], for dealing tasks to nodes */
    /* fast path: graph_fast.c */
    sl_mul_a8_fn mul_a8;
    sl_act_pack_fn pack;
    struct sl_packed *packed; /* [2 * n_pairs + 8], of the region in progress */
    int n_packed;
    unsigned char *pack_mem;
    size_t pack_bytes, pack_used;
    const int *ranks; /* [n_layers] read whole, NULL: all */
    int moved_layer;  /* see sl_graph_move_experts; only with moved_eps > 0 */
    float moved_eps;

    /* the chunk in progress */
    const struct sl_layer *layer;
    int l;
    int n_chunk; /* its tokens */
    int at, n;   /* tokens in view: a panel, or the whole chunk */
    int n_banked;
    int n_seqs, n_parts;
    const struct sl_state *seen;        /* see sl_graph_seen */
    struct sl_part seq[SL_GRAPH_SEQS];  /* the chunk: its sequences, one behind the other */
    struct sl_part part[SL_GRAPH_SEQS]; /* what of them is in view, rising in tok */
    atomic_int bad; /* first token with a value that is not finite; INT_MAX: none */
    struct sl_stage_seconds stages;
    atomic_bool failed; /* a read of the trunk failed: fail_rc and fail say how */
    int fail_rc;
    struct sl_err fail;
    atomic_bool bad_routes; /* routes_fn gave ids that cannot be */
    atomic_int layers_done;
    atomic_bool stopped; /* interrupted: tasks were left out, nothing computed since counts */
};

/* Parallel region; a single task runs in place. After an interrupt tasks are left out, and the next
 * sl_graph_check ends the chunk: a region of a long chunk may take many seconds. */
void sl_graph_run(struct sl_graph *g, int n_tasks, sl_task_fn fn, void *ctx);
/* The same for tasks of spans[n], threads of a span's node first. */
void sl_graph_deal(struct sl_graph *g, int n_spans, sl_task_fn fn, void *ctx);

static inline float *sl_graph_scratch(const struct sl_graph *g, int worker)
{
    return g->scratch + g->ld_scratch * (size_t)worker;
}

static inline float *sl_graph_partial(const struct sl_graph *g, int tok)
{
    return g->stream + (size_t)tok * g->ld_stream + (size_t)g->n_banked * (size_t)g->c->hidden_size;
}

/* Keeps the smallest token number, whatever the order of the tasks. */
static inline void sl_graph_note_bad(struct sl_graph *g, int tok)
{
    int seen = atomic_load_explicit(&g->bad, memory_order_relaxed);
    while (tok < seen && !atomic_compare_exchange_weak(&g->bad, &seen, tok)) {
    }
}

/* A read of the trunk failed: what the chunk computes from here on is void, and its next check says so.
 * Any thread; the first one counts. */
void sl_graph_note_failure(struct sl_graph *g, int rc, const struct sl_err *err);

/* The failed read, if there was one; SL_E_INTR when tasks were left out; SL_E_PACK naming layer (-1: none),
 * `what` and position when a token was noted; 0 otherwise. */
int sl_graph_check(struct sl_graph *g, int layer, const char *what, struct sl_err *err);

/* The part that token tok in view belongs to, and its position in that sequence. */
static inline const struct sl_part *sl_graph_part_of(const struct sl_graph *g, int tok)
{
    int i = g->n_parts - 1;
    while (i > 0 && g->part[i].tok > tok) i--;
    return &g->part[i];
}
static inline uint64_t sl_graph_position(const struct sl_graph *g, int tok)
{
    const struct sl_part *p = sl_graph_part_of(g, tok);
    return p->pos + (uint64_t)(tok - p->tok);
}

/* graph.c: shows data, one row a token in view, to the observer if there is one. */
void sl_graph_see(struct sl_graph *g, enum sl_point point, int layer, const void *data);

/* graph_mem.c: sets every pointer of g from base (NULL: only counts), returns the bytes. g->c, o and
 * n_threads are set. */
uint64_t sl_graph_lay_out(struct sl_graph *g, unsigned char *base);
/* Points all buffers at tokens [at, at + n) of the chunk: a panel, or all of it. Of a view longer than a
 * panel only what is as long as the chunk may be used. */
void sl_graph_view(struct sl_graph *g, int at, int n);
static inline bool sl_graph_one_panel(const struct sl_graph *g)
{
    return g->n_chunk <= g->use.n_panel;
}

/* graph_mul.c: all products of segs[n], in one region but for matrices that stream: those follow one after
 * the other, strip by strip. Reorders segs. */
void sl_graph_mul(struct sl_graph *g, struct sl_seg *segs, int n);
/* The strip of a streaming matrix that starts at `row`, as a matrix; waits for it. false: its read failed,
 * or one before it; noted. Put back before the next is taken. */
bool sl_graph_take_strip(struct sl_graph *g, const struct sl_mat *w, int row, struct sl_mat *strip);
void sl_graph_put_strip(struct sl_graph *g);
/* SiTU of one token: rows [row0, row1) of y and y2, result in y. */
void sl_graph_situ(struct sl_graph *g, const struct sl_seg *s, int tok, int row0, int row1);
/* Rows [row, row + n) of a plain or trunk matrix as a matrix. */
struct sl_mat sl_graph_rows(const struct sl_mat *w, int row, int n);

/* graph_fast.c: products of the fast path. Packs what segs[n] read, each input once, and says in
 * the segments where it lies; nothing on the exact path. */
void sl_graph_pack(struct sl_graph *g, struct sl_seg *segs, int n);
/* Rows of w for n tokens of a product of n_all, from floats. */
void sl_graph_mul_floats(const struct sl_graph *g, const struct sl_mat *w, int row0, int row1,
                         const float *x, size_t ldx, int n, int n_all, float *y, size_t ldy);
/* Both products of s inside a task, with the bits of sl_graph_mul and without what follows them; mem: scratch
 * of sl_graph_pack_floats(cols). */
void sl_graph_mul_here(const struct sl_graph *g, const struct sl_seg *s, float *mem);
size_t sl_graph_pack_floats(int cols);
/* Bytes of the packed inputs of any one region. */
size_t sl_graph_pack_bytes(const struct sl_config *c, int n_pairs);

/* graph_mix.c: attention residuals and norms, token by token. */
void sl_graph_embed(struct sl_graph *g, const int32_t *ids);
int sl_graph_attn_in(struct sl_graph *g, struct sl_err *err); /* x; banks p where a block opens */
int sl_graph_ffn_in(struct sl_graph *g, struct sl_err *err);  /* x */
/* Input of lm_head: x[i] of token toks[i], rising; toks NULL: of all n tokens. */
int sl_graph_final(struct sl_graph *g, const int *toks, int n, struct sl_err *err);

/* What the next layer's FFN input would be if the stream stayed as it is: its mix and norm of token tok
 * to out [hidden]. After sl_graph_ffn_in and before the FFN changes the stream. */
void sl_graph_mix_ahead(const struct sl_graph *g, int tok, float *out);
/* The same of all tokens, to an observer that asks for it; uses y. */
void sl_graph_see_ahead(struct sl_graph *g);

/* Sublayers: read x, write y and add it to the stream. */
void sl_graph_kda(struct sl_graph *g);
void sl_graph_mla(struct sl_graph *g);
/* graph_latent.c: MLA's attention on the fast path, from mla.q and the states' rows to mla.gate. */
void sl_graph_latent(struct sl_graph *g);
uint64_t sl_graph_latent_floats(const struct sl_config *c, uint64_t max_ctx,
                                struct sl_latent_bufs *b, float *base);
void sl_graph_dense(struct sl_graph *g);
/* Ranks of the present layer, or the next, that are read whole. */
static inline int sl_graph_ranks(const struct sl_graph *g, int layer)
{
    return g->ranks && g->ranks[layer] < g->c->top_k ? g->ranks[layer] : g->c->top_k;
}
/* The mixture in three parts: routes and latent input of a panel; experts of the whole chunk; the sum
 * and what follows, panel by panel. A chunk of one panel computes its shared experts with the second
 * part, beside the reads; longer ones with the third. */
int sl_graph_moe_route(struct sl_graph *g, struct sl_err *err);
int sl_graph_moe_experts(struct sl_graph *g, struct sl_err *err);
int sl_graph_moe_out(struct sl_graph *g, struct sl_err *err);
/* The third part of a panel whose x is gone, from the pairs as they lie. */
int sl_graph_moe_late(struct sl_graph *g, struct sl_err *err);
/* graph.c: a layer up to its routes, all of a dense one. */
int sl_graph_layer_front(struct sl_graph *g, struct sl_err *err);
/* graph_experts.c: out rows of all pairs, shared_out if asked for; the routing is grouped already. */
int sl_graph_experts(struct sl_graph *g, int n_wanted, bool shared, struct sl_err *err);
/* shared_out of the panel in view, from x. */
void sl_graph_shared(struct sl_graph *g);

/* lookahead.c; nothing happens without look-ahead or for more than one token. Names experts of the next
 * layer from x and queues their reads (segs[0] is used); compares what was named with the routes. */
void sl_graph_name_ahead(struct sl_graph *g);
void sl_graph_judge_ahead(struct sl_graph *g);

/* Scratch floats a worker needs in each. */
size_t sl_graph_embed_scratch(const struct sl_config *c);
size_t sl_graph_kda_scratch(const struct sl_config *c, bool fast);
size_t sl_graph_mla_scratch(const struct sl_config *c, uint64_t max_ctx);
size_t sl_graph_latent_scratch(const struct sl_config *c); /* of MLA on the fast path */
size_t sl_graph_moe_scratch(const struct sl_config *c);

#endif
