/* Synthetic packs: the full shape of a model with made-up weights, for measuring what no small model
 * shows and no download is needed for.
 *
 *   layers   0  1  2  3  4  5 ...           alias_banks 2, alias_trunk 1
 *   banks    -  A  B  A  B  A ...           MoE layers take turns
 *   trunk    a  b  b  c  b  b ...           a, b, c: KDA + dense, KDA + MoE, MLA + MoE
 *
 * Shared are bytes on the drive alone: the store reads and holds every layer's experts separately, so
 * 93 layers fit on a small disk and still flow like 93. Routers are skewed (synth_routes.h); layers that
 * share a trunk layer also share its router, so look-ahead looks better on such a pack than it is.
 * pack.json says that the pack is synthetic in its source object, which conversions keep. */
#ifndef SL_CONVERT_SYNTH_H
#define SL_CONVERT_SYNTH_H

#include <stdbool.h>
#include <stdint.h>
#include "kernels/format.h"
#include "offload/config.h"

struct sl_synth_opts {
    const struct sl_config *cfg; /* checked (sl_config_check), vocabulary of 256 or more */
    enum sl_fmt experts, trunk;
    int alias_banks; /* distinct banks on the drive; 0: one a MoE layer */
    int alias_trunk; /* distinct trunk layers on the drive of each kind; 0: all */
    uint64_t seed;
    int jobs; /* 0: one a core. No byte depends on it */
    bool dry_run;
};

struct sl_synth_report {
    uint64_t trunk_bytes, bank_bytes, other_bytes, total_bytes; /* files, exact */
    uint64_t unshared_bytes; /* trunk and banks without sharing */
    uint64_t free_bytes, missing_bytes;
    int n_layers, n_trunk_layers, n_moe, n_banks; /* of the model; distinct ones on the drive */
    double zipf_exponent, designed_reuse;         /* 0 and top_k / n_experts when uniform */
    int jobs;
    double seconds;
};

/* dst must not exist or be an empty folder. Every file is written under a temporary name, synced and
 * renamed, pack.json last; on failure all of it is removed again. SL_E_NOSPACE (exit 5) with the missing
 * bytes before anything is written; a dry run fills the report and succeeds. */
int sl_synth(const char *dst, const struct sl_synth_opts *o, struct sl_synth_report *report,
             struct sl_err *err);

#endif
