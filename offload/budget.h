/* Memory as a promise: what the machine allows, what each group takes, and what is left for experts.
 *
 *   limit = smallest of physical memory, cgroup limits up the tree, and --ram
 *   limit - reserve = group + group + ... + expert slots
 *
 * Nothing here allocates or measures weights: callers bring named sizes computed from tensor shapes.
 * A floor that does not fit is refused with every term and the smallest --ram that would do. */
#ifndef SL_OFFLOAD_BUDGET_H
#define SL_OFFLOAD_BUDGET_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

#define SL_NO_LIMIT UINT64_MAX

struct sl_memory_limit {
    uint64_t physical_bytes; /* of the machine */
    uint64_t cgroup_bytes;   /* smallest limit of any control group above us, or SL_NO_LIMIT */
    uint64_t ram_bytes;      /* the user's number, or SL_NO_LIMIT */
    uint64_t limit_bytes;    /* the smallest of the three */
    uint64_t reserve_bytes;  /* of it, left to others; see sl_budget_machine_limit */
    const char *source; /* "--ram", "cgroup limit" or "physical memory": which one is smallest */
};

/* root is "" for this machine, or a folder that holds proc/ and sys/ (tests). ram_bytes 0: not given.
 * Reserve: none of --ram, which is a promise about this process alone; of a cgroup limit 1/16, at
 * most 1 GiB (page cache and helpers of the same container); of physical memory 1/4, at most 8 GiB
 * (system, page cache, everything else that runs: engines that took the last quarter by default got
 * slower, not faster). SL_E_IO when the machine does not say how much memory it has. */
int sl_budget_machine_limit(const char *root, uint64_t ram_bytes, struct sl_memory_limit *out,
                            struct sl_err *err);

/* The same from numbers: another machine's, for planning. cgroup_bytes SL_NO_LIMIT: none. */
void sl_budget_limit_of(uint64_t physical_bytes, uint64_t cgroup_bytes, uint64_t ram_bytes,
                        struct sl_memory_limit *out);

#define SL_BUDGET_GROUPS 24

struct sl_budget {
    struct sl_memory_limit limit;
    int n_groups;
    struct {
        const char *name; /* caller's, static */
        uint64_t bytes;
    } groups[SL_BUDGET_GROUPS];
};

void sl_budget_init(struct sl_budget *b, const struct sl_memory_limit *limit);
/* Adds a group; the same name twice adds up. Sums saturate at UINT64_MAX: hostile sizes are refused
 * later instead of wrapping. */
void sl_budget_add(struct sl_budget *b, const char *name, uint64_t bytes);
uint64_t sl_budget_total(const struct sl_budget *b);
/* Bytes not yet given to a group; 0 when the groups are over it. */
uint64_t sl_budget_left(const struct sl_budget *b);

/* Gives what is left to `name` in units of unit_bytes, at least min_units and at most max_units, and
 * adds it as a group. *n_units is set also on failure, to min_units, so that a plan can be shown.
 * SL_E_BUDGET names limit, reserve and each term, and the smallest --ram that works. */
int sl_budget_take_rest(struct sl_budget *b, const char *name, uint64_t unit_bytes,
                        uint64_t min_units, uint64_t max_units, uint64_t *n_units,
                        struct sl_err *err);

/* The same refusal without a group of units: 0 when the groups fit. */
int sl_budget_check(const struct sl_budget *b, struct sl_err *err);

/* Memory of this process now and at its peak (VmRSS and VmHWM). False where /proc does not say. */
bool sl_process_memory(uint64_t *resident_bytes, uint64_t *peak_bytes);

#endif
