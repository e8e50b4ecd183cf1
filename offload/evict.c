/* LRU as a ring through two index arrays; node n_slots is the head.
 *
 * Public traces (440 runs) put LRU, LFRU, S3-FIFO and SLRU within noise of each other at realistic
 * sizes, so the simplest is the default. Slots in use are the recent ones, so a victim is found at the
 * old end at once. */
#include "offload/evict.h"

#include <stdlib.h>
#include <string.h>

struct sl_evict {
    uint32_t n_slots;
    uint32_t *older, *newer; /* [n_slots + 1]; a slot that is not in the ring points at itself */
};

uint64_t sl_evict_bytes(uint64_t n_slots, uint64_t n_keys)
{
    (void)n_keys;
    return sizeof(struct sl_evict) + (n_slots + 1) * 2 * sizeof(uint32_t);
}

int sl_evict_open(struct sl_evict **out, const char *name, uint32_t n_slots, uint64_t n_keys,
                  struct sl_err *err)
{
    (void)n_keys;
    *out = NULL;
    if (name && strcmp(name, "lru") != 0)
        return sl_fail(err, SL_E_ARG, NULL, "evict", "unknown policy \"%.32s\"; there is lru",
                       name);
    struct sl_evict *e = calloc(1, sizeof *e);
    size_t nodes = (size_t)n_slots + 1;
    if (e) {
        e->n_slots = n_slots;
        e->older = malloc(nodes * sizeof *e->older);
        e->newer = malloc(nodes * sizeof *e->newer);
    }
    if (!e || !e->older || !e->newer) {
        sl_evict_close(e);
        return sl_fail(err, SL_E_NOMEM, NULL, "evict", "out of memory");
    }
    for (uint32_t i = 0; i <= n_slots; i++) e->older[i] = e->newer[i] = i;
    *out = e;
    return 0;
}

void sl_evict_close(struct sl_evict *e)
{
    if (!e) return;
    free(e->older);
    free(e->newer);
    free(e);
}

void sl_evict_drop(struct sl_evict *e, uint32_t slot)
{
    e->newer[e->older[slot]] = e->newer[slot];
    e->older[e->newer[slot]] = e->older[slot];
    e->older[slot] = e->newer[slot] = slot;
}

void sl_evict_use(struct sl_evict *e, uint32_t slot, uint64_t key)
{
    (void)key; /* plain LRU has no memory of what left */
    uint32_t head = e->n_slots;
    sl_evict_drop(e, slot);
    e->older[slot] = e->older[head];
    e->newer[slot] = head;
    e->newer[e->older[head]] = slot;
    e->older[head] = slot;
}

uint32_t sl_evict_victim(const struct sl_evict *e, bool (*may)(void *ctx, uint32_t slot), void *ctx)
{
    uint32_t head = e->n_slots;
    for (uint32_t s = e->newer[head]; s != head; s = e->newer[s])
        if (may(ctx, s)) return s;
    return SL_EVICT_NONE;
}
