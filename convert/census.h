/* What a checkpoint consists of, and what packs of it would take: the figures of spec 2 and 4.
 *
 * Counted from the tensors that were found, not from the config, so that the totals of the release
 * are evidence about the files. Groups hold matrices only (bf16, two axes, more than one row); vectors
 * of all groups are counted apart by type, as the spec's table does. Bytes are as stored; GB is 10^9. */
#ifndef SL_CONVERT_CENSUS_H
#define SL_CONVERT_CENSUS_H

#include "convert/inventory.h"
#include "convert/source.h"
#include "kernels/format.h"

struct sl_count {
    uint64_t tensors, params, bytes;
};

enum sl_layer_kind {
    SL_LAYER_DENSE_KDA,
    SL_LAYER_DENSE_MLA,
    SL_LAYER_MOE_KDA,
    SL_LAYER_MOE_MLA,
    SL_N_LAYER_KINDS
};
const char *sl_layer_kind_name(enum sl_layer_kind kind); /* "moe+kda" */

struct sl_census {
    struct sl_count dtype[SL_DT_OTHER]; /* by enum sl_dtype; params = elements stored */
    struct sl_count group[SL_N_GROUPS]; /* matrices; EXPERT: params are the weights, two a byte */
    struct sl_count small_bf16,
        small_f32; /* norms, score vectors, conv taps, biases, A_log, dt_bias */
    struct {
        int layers;
        uint64_t bytes; /* payload of all layers of the kind */
    } kind[SL_N_LAYER_KINDS];
    uint64_t params; /* text model: matrices, vectors, experts */
    uint64_t
        active_params; /* matrices a token passes: all but the embedding, top_k experts a layer */
    uint64_t experts, expert_bytes; /* how many; bytes of one as released */
    uint64_t file_bytes;            /* shard files, headers included */
};

int sl_census_take(struct sl_census *out, const struct sl_source *s, struct sl_err *err);

/* Exact sizes of a pack's parts for a config, tensors in the shapes of the release. A bank of m4 is
 * priced without escapes: a matrix whose exponents spread too far for m4 makes its record longer. */
int sl_price_bank(const struct sl_config *c, enum sl_fmt experts, uint64_t *bytes,
                  struct sl_err *err);
int sl_price_trunk(const struct sl_config *c, enum sl_fmt trunk, uint64_t *bytes,
                   struct sl_err *err);

#endif
