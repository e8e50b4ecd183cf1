/* Behind sluice.h: what a pack and a session hold, and the plan that prices them.
 *
 *   sluice_pack      manifest + tokenizer + weights (trunk, bound model), loaded by the first session,
 *                    shared by all, dropped with the last
 *   sl_engine        pool, expert store, graph; one arena for everything but slots and trunk; seats
 *   sluice_session   one sequence: a seat of an engine. Sessions of one engine may take a step together
 *
 * Nothing here grows after sluice_session_open(). */
#ifndef SL_RUNTIME_ENGINE_H
#define SL_RUNTIME_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include "base/arena.h"
#include "base/pool.h"
#include "offload/budget.h"
#include "offload/store.h"
#include "offload/sweep_plan.h"
#include "runtime/draft.h"
#include "runtime/engine_error.h"
#include "runtime/graph.h"
#include "runtime/lookahead.h"
#include "runtime/prefix_cache.h"
#include "runtime/sampling.h"
#include "runtime/sluice.h"
#include "runtime/tokenizer.h"

/* Options with every default filled in but those that memory decides (0 stays 0 there). */
struct sl_engine_opts {
    int threads;
    uint64_t ram_bytes, ctx, chunk, logit_rows;
    uint64_t
        panel; /* 0: the planner's; tests make small ones, so that small models have long chunks */
    enum sl_io io;
    const char *evict; /* a name of evict.h */
    double bits;       /* mean bits a weight read of p36 experts, 0: as the pack's plan says */
    int lookahead;     /* experts of the next layer named ahead, 0: none */
    bool fast;         /* the fast path */
    bool check_crc, check_first;
    bool draft_auto;
    uint64_t prefix_bytes, prefix_disk_bytes;
    const char *prefix_dir; /* NULL: none */
    uint32_t prefix_block;
    int seats;         /* sequences side by side */
    int draft;         /* guesses of a step at most, 0: none */
    bool stream_trunk; /* the engine may leave a part of the trunk on the drive */
};

struct sl_engine_plan {
    sluice_plan_info info;
    int threads;
    uint64_t panel;           /* tokens that the session's own activations hold */
    bool expanded;            /* keep expanded keys and values */
    unsigned form;            /* of the state: SL_STATE_* */
    bool wide;                /* a lent chunk is one panel */
    struct sl_sweep_in sweep; /* how prompts are cut: engine_prefill.h */
    uint64_t logit_rows;      /* rows of the logits buffer */
    int seats, draft;
    /* Trunk weights held in memory, and the ring through which the others stream; a ring of 0: all are
     * held. Streamed is what one token, or one prefill chunk, reads of the trunk. Rows of the embedding
     * come one by one when a part is not held. The ring is the session's, the held part is shared. */
    uint64_t trunk_resident_bytes, trunk_ring_bytes, trunk_streamed_bytes;
    uint64_t weights_bytes; /* arena of the shared weights */
    uint64_t session_bytes; /* arena of the session */
    uint64_t slot_budget;   /* for the store */
    struct sl_rank_choice ranks;
};

/* Places of the groups in info.groups[]: a group that a model lacks is left out of the report. */
enum sl_engine_group {
    SL_EG_TRUNK,
    SL_EG_RING,
    SL_EG_TABLES,
    SL_EG_KDA,
    SL_EG_CONV,
    SL_EG_MLA,
    SL_EG_KEYS,
    SL_EG_ACTIVATIONS,
    SL_EG_DRAFT,
    SL_EG_LOGITS,
    SL_EG_SLOTS,
    SL_EG_PREFIX,
    SL_EG_THREADS,
    SL_EG_TOKENIZER,
    SL_EG_PROCESS,
    SL_N_ENGINE_GROUPS
};

struct sluice_pack {
    struct sl_pack *pack;
    struct sl_tokenizer *tokenizer;
    struct sl_engine_opts opts;
    char *prefix_dir;         /* opts point to it */
    uint64_t tokenizer_bytes; /* resident memory it took, measured */
    int32_t stop[4];
    int n_stop;

    pthread_mutex_t lock; /* of the rest */
    int users;
    struct sl_arena arena;
    uint64_t trunk_bytes;      /* of the arena; the rest are the model's tables */
    uint64_t trunk_held_bytes; /* 0: not loaded */
    struct sl_trunk *trunk;
    struct sl_model *model;
    struct sl_prefix *prefix;              /* states of earlier prompts, NULL: none are kept */
    const struct sl_ahead_map *ahead_maps; /* NULL: none in the pack, or look-ahead was off */
};

#define SL_ENGINE_SEATS SLUICE_MAX_SEATS

/* What one sequence takes. */
struct sl_seat {
    struct sl_state *state;
    int32_t *ids; /* [ctx], those below the position were fed */
    float *own; /* [vocab]: logits that outlive other seats' steps; with one seat the shared rows */
    unsigned char
        *before; /* recurrent state before a step with guesses; NULL without, or where it rewinds */
    bool taken;
};

/* What the sessions of one engine share; the last of them closes it. Used by one thread at a time. */
struct sl_engine {
    struct sl_rank_choice ranks; /* what the graph reads of p36 experts */
    int users, n_seats;
    struct sl_seat seat[SL_ENGINE_SEATS];
    struct sl_arena arena;
    struct sl_pool *pool;
    struct sl_store *store;
    struct sl_graph *graph;
    struct sl_lookahead *ahead; /* NULL: off */
    struct sl_sampler sampler;
    float *rows;       /* [plan.logit_rows][vocab] */
    int32_t *step_ids; /* [plan.panel] */

    uint64_t prefill_tokens, decode_tokens, chunks; /* chunks: of more than one token */
    uint64_t decode_steps, guessed, accepted;
    struct sl_draft draft;
    atomic_uint_least64_t feed_n, feed_at, feed_chunk; /* tokens of the call in progress, 0: none */
    double prefill_seconds, decode_seconds;
    sluice_stages prefill_stages, decode_stages;
    double prefill_busy, decode_busy; /* drive seconds, mean over drives */
};

struct sluice_session {
    struct sluice_pack *p;
    struct sl_engine *e;
    struct sl_seat *seat;
    /* Of the engine and the seat, for short. */
    struct sl_engine_plan plan;
    struct sl_kernels kernels;
    struct sl_pool *pool;
    struct sl_store *store;
    struct sl_graph *graph;
    struct sl_state *state;
    int32_t *ids;
    float *rows;

    const float *last; /* row of the last token fed, NULL before the first */
    bool spoiled;      /* a feed failed half way */
    const char *evict; /* the policy's name */
    int32_t *routes;   /* [ctx][n_layers][top_k], of a session that others follow; else NULL */
    struct sl_trace_writer *trace;       /* NULL: no trace is being written */
    uint64_t minor_faults, major_faults; /* of the process when the session was opened */
};

/* Checks o (NULL: all defaults) against the model and fills out. SL_E_ARG names option and value. */
int sl_engine_options(const struct sl_config *c, const sluice_options *o,
                      struct sl_engine_opts *out, struct sl_err *err);

/* For who times a feed himself: begin, then end with what it turned out to be. */
struct sl_feed_clock {
    struct sl_stage_seconds stages;
    double busy, start;
};
void sl_engine_clock_begin(const struct sl_engine *e, struct sl_feed_clock *c);
/* share: of the time, between 0 and 1, that goes to decode; the rest is prefill's. Returns the seconds. */
double sl_engine_clock_end(struct sl_engine *e, const struct sl_feed_clock *c, double share);
/* SL_E_ARG or SL_E_CTX when these ids cannot be fed. */
int sl_engine_check_feed(const struct sluice_session *s, const int32_t *ids, size_t n,
                         struct sl_err *err);
/* Token after `position` tokens by these logits; SL_E_ARG for sampling that cannot be. */
int sl_engine_pick(struct sluice_session *s, const float *logits, uint64_t position,
                   const sluice_sampling *sampling, int32_t *id, struct sl_err *err);

/* Sets the graph's observer for what the session's routes and trace need now. */
void sl_engine_observe(struct sluice_session *s);
/* The store of earlier states that o asks for; with the pack's lock held. o->prefix_bytes 0: none. */
int sl_engine_open_prefix(struct sluice_pack *p, const struct sl_engine_plan *plan,
                          const struct sl_engine_opts *o, struct sl_err *err);
/* Keeps the routes of all positions from here on, for sl_engine_flips; takes ctx * layers * top_k * 4 bytes
 * beside the plan. SL_E_NOMEM. */
int sl_engine_keep_routes(struct sluice_session *s, struct sl_err *err);
/* Experts that s chose and ref did not, over their first n positions: added to flips [n_layers]. Both keep
 * routes, and their models have the same layers and experts. */
void sl_engine_flips(const struct sluice_session *s, const struct sluice_session *ref, uint64_t n,
                     uint64_t *flips);
void sl_engine_note_routes(struct sluice_session *s, int layer, uint64_t position, int n_tokens,
                           const struct sl_route *r);

/* What a plan is made for: this machine, or another one's numbers. */
struct sl_engine_machine {
    struct sl_memory_limit limit;
    uint64_t process_bytes; /* of the program itself, tokenizer and weights not counted */
    uint64_t peak_bytes;    /* of this process so far; 0 for another machine */
    uint64_t
        trunk_bytes; /* held already, by sessions that are open: the plan keeps to it; 0: none */
};
/* root is "" or, in tests, a folder with proc/ and sys/ (see budget.h). */
int sl_engine_machine_here(struct sluice_pack *p, const char *root, uint64_t ram_bytes,
                           struct sl_engine_machine *out, struct sl_err *err);

/* Prices a session (design section 5). out->info is filled also when SL_E_BUDGET is returned. Of p only
 * pack, tokenizer_bytes and arena are used, so a pack of shapes will do. */
int sl_engine_plan_on(struct sluice_pack *p, const struct sl_engine_opts *o,
                      const struct sl_engine_machine *machine, struct sl_engine_plan *out,
                      struct sl_err *err);
/* The same on this machine, with o->ram_bytes. */
int sl_engine_plan(struct sluice_pack *p, const struct sl_engine_opts *o,
                   struct sl_engine_plan *out, struct sl_err *err);

#endif
