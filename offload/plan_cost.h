/* Seconds from counts: what a token and a prompt take on a board, and where the time goes.
 *
 * A model of this engine, not of an ideal one. Four ceilings bound each stage (drive, memory bus,
 * multiplications, and for several drives their sum), and stages follow each other in the engine's
 * order:
 *
 *   decode, per layer   attention + router + max(reads of misses, shared and routed experts) + latent
 *                       out; never less than all bytes of the layer over the drive
 *   prefill, per layer  attention of the whole chunk + max(sweep of the experts, their arithmetic)
 *
 * The memory bus carries every weight that is multiplied once, and what the drive writes into memory
 * once more. Everything that is assumed rather than measured is said in words by sl_cost_assumptions. */
#ifndef SL_OFFLOAD_PLAN_COST_H
#define SL_OFFLOAD_PLAN_COST_H

#include <stddef.h>
#include "offload/board.h"
#include "offload/plan_work.h"
#include "offload/sweep_plan.h"

struct sl_cost_in {
    const struct sl_pack_work *work;
    const struct sl_board *board;
    int threads; /* that compute; 0: all cores of the board */
    uint64_t n_slots;
    uint64_t trunk_streamed_bytes; /* of the trunk weights that a token uses: not resident */
    bool expanded_keys;
    bool latents;             /* the fast path: attention over latent rows, no expanded keys */
    uint64_t chunk;           /* tokens of a prefill step, where sweep says nothing */
    struct sl_sweep_in sweep; /* how prompts are cut; n_slots 0: not known */
    uint64_t position;        /* at which a token is decoded */
};

/* Share of a token's experts found in memory, look-ahead off.
 *   low    uniform choice: slots / records
 *   high   the largest of low, the hit rate measured on k3-mini at that share of slots, and, where one
 *          token's records fit, the public figure for reuse from one token to the next */
void sl_cost_hits(const struct sl_pack_work *w, uint64_t n_slots, double *low, double *high);

struct sl_token_cost {
    double seconds;
    double attention_s, experts_s, wait_s, head_s; /* sum to seconds; dense FFN counts as experts */
    double drive_s, bus_s, compute_s; /* each ceiling alone: the largest is what binds */
    uint64_t drive_bytes;             /* read from drives for one token */
    uint64_t bus_bytes;
};
void sl_cost_token(const struct sl_cost_in *in, double hits, struct sl_token_cost *out);

struct sl_prompt_cost {
    double seconds; /* until the first new token can be picked */
    double drive_s, compute_s;
    uint64_t drive_bytes;
    uint64_t chunks;     /* sweeps of the experts */
    uint64_t chunk;      /* tokens of one */
    uint64_t lent_bytes; /* of the slots, to its activations */
};
/* n_tokens from an empty state, cold slots. */
void sl_cost_prompt(const struct sl_cost_in *in, uint64_t n_tokens, struct sl_prompt_cost *out);

/* Name of the ceiling that binds a token: "drive", "memory bus" or "arithmetic". Static. */
const char *sl_cost_bound(const struct sl_token_cost *t);

/* One sentence an assumption, separated by spaces. */
void sl_cost_assumptions(const struct sl_cost_in *in, char *out, size_t size);

#endif
