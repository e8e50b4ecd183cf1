/* Disk space of a plan: need at the worst moment against what is free, for every file system. */
#ifndef SL_CONVERT_PLAN_SPACE_H
#define SL_CONVERT_PLAN_SPACE_H

#include "convert/plan_pack.h"

struct sl_space {
    uint64_t free_bytes;    /* of all file systems written to */
    uint64_t missing_bytes; /* sum of what each lacks; 0 when the pack fits */
    char short_path[4096];  /* the first target that is too small, and its terms */
    uint64_t short_need, short_free;
};

/* done[n_units]: finished by an earlier run. last_use[n_shards] as from sl_plan_shard_use when shards
 * are freed on the way, NULL otherwise. Shards that no unit reads count as kept. */
int sl_plan_space(struct sl_plan *p, const bool *done, const int *last_use, struct sl_space *out,
                  struct sl_err *err);

/* SL_E_NOSPACE with need, free and missing bytes of the target that is too small. */
int sl_space_refuse(const struct sl_space *s, struct sl_err *err);

#endif
