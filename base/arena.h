/* Arena: one mapping, allocated once, handed out in aligned pieces and released by mark.
 *
 * The planner sizes it; nothing grows afterwards. Running out is our own planning error and is
 * reported as SL_E_BUDGET by the caller, never by a crash. */
#ifndef SL_BASE_ARENA_H
#define SL_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct sl_arena {
    unsigned char *base; /* page-aligned, NULL when empty */
    size_t bytes;        /* capacity */
    size_t used;         /* handed out now */
    size_t peak;         /* largest `used` ever */
};

/* Maps `bytes` (rounded up to pages) of zeroed memory. SL_E_NOMEM names `what` and the size. */
int sl_arena_init(struct sl_arena *a, size_t bytes, const char *what, struct sl_err *err);
void sl_arena_free(struct sl_arena *a);

/* `bytes` aligned to `align` (power of two, at most 4096); NULL when it does not fit. Memory is zero
 * the first time a page is handed out and whatever was left there after a release. */
void *sl_arena_alloc(struct sl_arena *a, size_t bytes, size_t align);
static inline size_t sl_arena_mark(const struct sl_arena *a)
{
    return a->used;
}
static inline void sl_arena_release(struct sl_arena *a, size_t mark)
{
    a->used = mark;
}

#endif
