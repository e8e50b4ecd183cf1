/* How a prompt is cut into chunks, and how much of the slots' memory its activations borrow.
 *
 * Each chunk of a prompt reads nearly all experts, so longer chunks read less; but a chunk longer than a
 * panel needs memory that experts would otherwise stay in. Planner and engine ask the same function, so a
 * plan is what a run does. The rule, in records read:
 *
 *   keep   chunks of a panel:    n / panel times (distinct experts of a panel - all slots)
 *   lend   as long as memory is: n / chunk times  distinct experts of such a chunk  + slots lent, read again
 *
 * Memory is lent when even its worst case (nothing is found in memory) reads less than the best case
 * without (every slot holds something that is asked for). So a short prompt leaves a warm cache alone, and
 * so does a machine that holds all experts. Chunks of a prompt are equally long, which lends least. */
#ifndef SL_OFFLOAD_SWEEP_PLAN_H
#define SL_OFFLOAD_SWEEP_PLAN_H

#include <stdbool.h>
#include <stdint.h>

struct sl_sweep_in {
    uint64_t n_slots, slot_bytes;
    uint64_t n_records; /* of the pack */
    int n_moe, n_experts, top_k;
    uint64_t panel;       /* tokens of a chunk that needs no loan */
    uint64_t most;        /* tokens of any chunk: --chunk, the context */
    uint64_t token_bytes; /* that a lent chunk takes for each token, rounded up */
    uint64_t fixed_bytes; /* and beside them */
};

struct sl_sweep_choice {
    uint64_t chunk;      /* tokens; the last chunk of a prompt may be shorter */
    uint64_t n_chunks;   /* sweeps of the experts */
    uint64_t lent_bytes; /* 0: none */
};

/* Tokens of the longest chunk that fits when all slots but top_k + 1 are lent; panel when that is no
 * more. */
uint64_t sl_sweep_longest(const struct sl_sweep_in *in);
/* For a prompt of n_tokens >= 1. */
void sl_sweep_choose(const struct sl_sweep_in *in, uint64_t n_tokens, struct sl_sweep_choice *out);

#endif
