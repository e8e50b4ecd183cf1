/* The planner's arithmetic: groups against a limit. Where the limit comes from is memory_limit.c. */
#include "offload/budget.h"

#include <stdio.h>
#include <string.h>

#include "base/size.h"

static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return sl_add_u64(a, b, &sum) ? sum : UINT64_MAX;
}

void sl_budget_init(struct sl_budget *b, const struct sl_memory_limit *limit)
{
    memset(b, 0, sizeof *b);
    b->limit = *limit;
}

void sl_budget_add(struct sl_budget *b, const char *name, uint64_t bytes)
{
    int i = 0;
    while (i < b->n_groups && strcmp(b->groups[i].name, name) != 0) i++;
    if (i == SL_BUDGET_GROUPS) i--; /* a term too many is summed into the last, never lost */
    if (i == b->n_groups) b->groups[b->n_groups++].name = name;
    b->groups[i].bytes = add(b->groups[i].bytes, bytes);
}

uint64_t sl_budget_total(const struct sl_budget *b)
{
    uint64_t total = 0;
    for (int i = 0; i < b->n_groups; i++) total = add(total, b->groups[i].bytes);
    return total;
}

static uint64_t usable(const struct sl_budget *b)
{
    const struct sl_memory_limit *l = &b->limit;
    return l->limit_bytes > l->reserve_bytes ? l->limit_bytes - l->reserve_bytes : 0;
}

uint64_t sl_budget_left(const struct sl_budget *b)
{
    uint64_t have = usable(b);
    uint64_t total = sl_budget_total(b);
    return have > total ? have - total : 0;
}

/* "needs A, B are allowed (...): term + term ...; the smallest that works is --ram N". */
static int refuse(const struct sl_budget *b, struct sl_err *err)
{
    char terms[640];
    char need[32];
    char have[32];
    char limit[32];
    char reserve[32];
    size_t at = 0;
    uint64_t total = sl_budget_total(b);
    terms[0] = '\0';
    for (int i = 0; i < b->n_groups && at < sizeof terms; i++) {
        char size[32];
        int n = snprintf(terms + at, sizeof terms - at, "%s%s %s", i ? " + " : "",
                         b->groups[i].name, sl_format_bytes(size, sizeof size, b->groups[i].bytes));
        at += n > 0 ? (size_t)n : 0;
    }
    sl_format_bytes(need, sizeof need, total);
    sl_format_bytes(have, sizeof have, usable(b));
    sl_format_bytes(limit, sizeof limit, b->limit.limit_bytes);
    sl_format_bytes(reserve, sizeof reserve, b->limit.reserve_bytes);
    /* A number that the machine cannot give is no advice. */
    uint64_t most = b->limit.physical_bytes < b->limit.cgroup_bytes ? b->limit.physical_bytes
                                                                    : b->limit.cgroup_bytes;
    char advice[80];
    char top[32];
    if (total <= most)
        snprintf(advice, sizeof advice, "smallest that works: --ram %llu",
                 (unsigned long long)total);
    else
        snprintf(advice, sizeof advice, "this machine allows %s at most",
                 sl_format_bytes(top, sizeof top, most));
    return sl_fail(err, SL_E_BUDGET, NULL, "memory",
                   "needs %s, allowed are %s (%s %s, reserve %s): %s; %s", need, have,
                   b->limit.source ? b->limit.source : "limit", limit, reserve, terms, advice);
}

int sl_budget_check(const struct sl_budget *b, struct sl_err *err)
{
    return sl_budget_total(b) <= usable(b) ? 0 : refuse(b, err);
}

int sl_budget_take_rest(struct sl_budget *b, const char *name, uint64_t unit_bytes,
                        uint64_t min_units, uint64_t max_units, uint64_t *n_units,
                        struct sl_err *err)
{
    uint64_t n = unit_bytes ? sl_budget_left(b) / unit_bytes : max_units;
    uint64_t bytes;
    if (n > max_units) n = max_units;
    if (n < min_units) n = min_units;
    *n_units = n;
    sl_budget_add(b, name, sl_mul_u64(n, unit_bytes, &bytes) ? bytes : UINT64_MAX);
    return sl_budget_check(b, err);
}
