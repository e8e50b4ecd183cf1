/* The forward pass over a chunk of tokens (design section 4, spec 3): the exact path, or the fast one.
 *
 * Exact: a function of the token sequence alone: KDA by the per-token recurrence, MLA with expanded keys in
 * position order, every sum in one order fixed by shape. Chunk size, threads, ISA, slots and resume
 * position never change a bit. Layer-major inside a chunk: each layer is finished for all its tokens
 * before the next, so an expert is read once a chunk.
 *
 * A chunk may hold tokens of several sequences, each with its own state: projections, router, experts and
 * head run over all of them together, so that a step reads and decodes an expert once for all; attention
 * runs a sequence at a time. On the exact path a sequence gets what it gets alone, bit for bit.
 *
 * Fast: KDA by tiles over a committed state, MLA absorbed over the latent cache or expanded by cost (states
 * of a form of their own, SL_STATE_FAST); products of few tokens take int8 activations of two planes
 * (kernels/act.h), chosen by format and number of tokens. Same build, cuts into chunks and panels give the same bytes; threads, slots, the order
 * in which experts arrive and how they were read never change a bit.
 *
 * A chunk is walked in panels of at most max_chunk tokens, which is what the graph has memory for. With
 * lent memory (a few buffers for every token) chunks are longer than a panel. */
#ifndef SL_RUNTIME_GRAPH_H
#define SL_RUNTIME_GRAPH_H

#include "base/pool.h"
#include "kernels/kernels.h"
#include "offload/store.h"
#include "runtime/model.h"
#include "runtime/state.h"

/* Values seen on the way, for golden tests, traces and calibration. Called in token order from the
 * calling thread, panel by panel; data is valid during the call. Of a chunk of several panels the
 * points up to ROUTE come for all panels, then HIDDEN, then the others. Of a chunk of several sequences
 * each has its own call (sl_graph_seen says which). */
enum sl_point {
    SL_POINT_ATTN_IN,  /* [n][hidden] normed input of attention */
    SL_POINT_ATTN_OUT, /* [n][hidden] after o_proj */
    SL_POINT_FFN_IN,   /* [n][hidden] */
    SL_POINT_FFN_OUT,  /* [n][hidden] routed + shared */
    SL_POINT_RESID,    /* [n][hidden] after the layer */
    SL_POINT_FINAL,    /* [n][hidden] input of lm_head, layer = n_layers */
    SL_POINT_LATENT,   /* [n][latent] input of the routed experts */
    SL_POINT_ROUTE,    /* struct sl_route [n] */
    SL_POINT_AHEAD,    /* [n][hidden] next layer's FFN mix and norm, early; to who asks for it */
    SL_POINT_HIDDEN    /* struct sl_hidden: one expert's pairs; only to observers that ask for it */
};
struct sl_route {
    const int *ids;       /* [top_k], best selection score first */
    const float *weights; /* [top_k] combining weights */
    float margin;         /* last taken less first left out, in selection score */
    const float *scores;  /* [n_experts] sigmoids, without the selection bias */
};
/* What w2 of an expert reads: rows after SiTU, in token order. n_tokens of the call is their number. */
struct sl_hidden {
    int expert;
    const float *rows; /* [n][ld], moe_intermediate_size wide */
    size_t ld;
};
struct sl_observer {
    void (*see)(void *ctx, enum sl_point point, int layer, uint64_t position, int n_tokens,
                const void *data);
    void *ctx;
    /* Report SL_POINT_HIDDEN too; all experts are then computed row by row, and a chunk may have one
     * sequence only. */
    bool hidden;
    bool ahead; /* report SL_POINT_AHEAD too */
};

struct sl_graph;
struct sl_graph_opts {
    int max_chunk; /* tokens of a panel, and of a call without lent memory */
    uint64_t max_ctx;
    bool fast; /* not the exact path; states must have its form (SL_STATE_FAST) */
};
#define SL_GRAPH_CHUNK_MAX (1 << 16) /* tokens, of any chunk */
/* Activation memory for max_chunk tokens, taken from the arena at open; nothing is allocated later. */
uint64_t sl_graph_bytes(const struct sl_config *cfg, const struct sl_graph_opts *o, int n_threads);
int sl_graph_open(struct sl_graph **out, const struct sl_model *m, const struct sl_kernels *k,
                  struct sl_pool *pool, struct sl_store *store, struct sl_arena *arena,
                  const struct sl_graph_opts *o, struct sl_err *err);
void sl_graph_close(struct sl_graph *g);
void sl_graph_observe(struct sl_graph *g, const struct sl_observer *o); /* NULL: none */

/* During a call of the observer: the state whose tokens it shows. */
const struct sl_state *sl_graph_seen(const struct sl_graph *g);

/* Routes decided outside (comparisons where flipped experts would hide everything else): fn writes the
 * top_k distinct ids of a token, best first, and returns true; false leaves the choice to the router.
 * Weights are this model's own scores of those ids, the margin is 0. Called from worker threads, in no
 * order. fn NULL: own routes again. Ids outside the model or repeated end the chunk with SL_E_ARG. */
typedef bool (*sl_routes_fn)(void *ctx, int layer, uint64_t position, int *ids);
void sl_graph_force_routes(struct sl_graph *g, sl_routes_fn fn, void *ctx);

/* Ranks read whole (p36): in layer l the experts of a token's first ranks[l] choices are used with their
 * refinement, the others by their base planes. ranks [n_layers] is read at each layer and must outlive
 * the graph; NULL: all whole. Experts of one plane set are the same either way. */
void sl_graph_set_ranks(struct sl_graph *g, const int *ranks);

/* Moves every output entry of the routed experts of one layer by eps times the rms of its row, up or down
 * by layer, position, rank and entry: what an error of that size does (runtime/sensitivity.h). layer -1:
 * nothing is moved. */
void sl_graph_move_experts(struct sl_graph *g, int layer, float eps);

/* Where the time of all feeds so far went; the sum is the time inside sl_graph_feed but for its checks. */
struct sl_stage_seconds {
    double attention; /* mix, norm, KDA or MLA, embedding */
    double experts;   /* mix, norm, router, shared and routed experts, dense FFN; without waiting */
    double waiting;   /* for reads of experts, and of a trunk that streams */
    double head;      /* final mix, norm, logits */
};
void sl_graph_get_stages(const struct sl_graph *g, struct sl_stage_seconds *out);

/* Memory for chunks of up to n_tokens, until it is taken back with mem NULL; both between two feeds.
 * mem: sl_graph_lent_bytes, aligned to 64, not cleared, the caller's. wide: a chunk is one panel (where
 * weights stream from the drive, each panel would be one more pass over them). SL_E_BUDGET when bytes are
 * too few. Never changes a bit. */
uint64_t sl_graph_lent_bytes(const struct sl_config *cfg, int n_tokens, bool wide);
int sl_graph_lend(struct sl_graph *g, void *mem, uint64_t bytes, int n_tokens, bool wide,
                  struct sl_err *err);
/* Whether the observer asks for what only chunks of one panel show in order: hidden, ahead. */
bool sl_graph_wants_panels(const struct sl_graph *g);
/* Layers of the feed in progress, or of the last one, that are done; from any thread. */
int sl_graph_layers_done(const struct sl_graph *g);
/* Tokens that a feed may have now. */
int sl_graph_chunk(const struct sl_graph *g);
/* Routes of the last chunk, [n_layers][its tokens][top_k], rows of layers without experts undefined;
 * valid until the next feed or loan. NULL for a model without experts. */
const uint16_t *sl_graph_routes(const struct sl_graph *g);

/* Feeds n <= sl_graph_chunk() tokens at state->position and advances it. logits: NULL for none; otherwise
 * rows for the last n_logits tokens, [n_logits][vocab]. On error or interrupt the state is spoiled and
 * must be reset or restored by the caller (SL_E_INTR within a task of one layer). */
#define SL_GRAPH_SEQS 64
struct sl_graph_seq {
    struct sl_state *st; /* its tokens follow st->position */
    int n;               /* tokens, 1 or more */
    int n_logits;        /* rows for its last tokens, 0 to n */
};
/* The same for n_seqs sequences with a state each, at most SL_GRAPH_SEQS and together at most
 * sl_graph_chunk() tokens. ids and logits follow each other in the order of seqs. On error all their
 * states are spoiled, unless it is SL_E_ARG or SL_E_CTX: then nothing happened. */
int sl_graph_feed_many(struct sl_graph *g, const struct sl_graph_seq *seqs, int n_seqs,
                       const int32_t *ids, float *logits, struct sl_err *err);
int sl_graph_feed(struct sl_graph *g, struct sl_state *st, const int32_t *ids, int n, float *logits,
                  int n_logits, struct sl_err *err);

/* One layer alone, of one sequence of n tokens from position 0 that is one panel: for a pass whose stream
 * and experts lie elsewhere (fused calibration). The calls of a feed in their order, so the same bits; the
 * store is not used.
 *
 *   place  says where the stream lies: the caller fills vectors [0, n_banked] of each token, and the rms
 *          of those below n_banked
 *   begin  attention; all of a dense layer, of another up to its routes (st at position 0, reset). The
 *          layer may bank a vector: *n_banked goes up
 *   end    the rest of a mixture: weights [n][top_k], outputs of the experts [n][top_k][latent] in router
 *          order, with the stream (and every rms below n_banked) as begin left it */
struct sl_layer_place {
    float *stream; /* [n][n_slots][hidden]: banked vectors, then the running sum */
    float *rms;    /* [n][n_slots] */
    int n_slots;
    const float *latent;           /* [n][latent], after begin */
    const struct sl_route *routes; /* [n], after begin */
};
void sl_graph_layer_place(struct sl_graph *g, struct sl_layer_place *out);
int sl_graph_layer_begin(struct sl_graph *g, struct sl_state *st, int layer, int n, int *n_banked,
                         struct sl_err *err);
int sl_graph_layer_end(struct sl_graph *g, struct sl_state *st, int layer, int n, int n_banked,
                       const float *weights, const float *outputs, struct sl_err *err);

#endif
