/* LRU as a ring through two index arrays, LRFU as a heap of faded counts.
 *
 * LRU: node n_slots is the head of the ring. Slots in use are the recent ones, so a victim is found at
 * the old end at once.
 *
 * LRFU (recency and frequency in one number): the score of a key is the sum of 2^-(age / half) over its
 * requests, age and half-life counted in requests. Instead of fading all scores at each request the
 * weight of new ones grows, so the order of slots changes only where something is asked for, and a heap
 * keeps it. Scores of keys without a slot are kept, so a key that comes back is not a stranger. The
 * half-life that traces favoured: docs/results/eviction.md. */
#include "offload/evict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HALF_LIFE   8.0   /* in requests, times the number of slots */
#define WEIGHT_MAX  1e100 /* then all scores are scaled down */
#define SCALE_DOWN  1e-100
#define NOT_IN_HEAP UINT32_MAX

enum policy { LRFU, LRU };
const char *const sl_evict_names[] = {"lrfu", "lru", NULL};

struct sl_evict {
    enum policy policy;
    uint32_t n_slots;
    uint64_t n_keys;
    /* LRU: [n_slots + 1]; a slot that is not in the ring points at itself */
    uint32_t *older, *newer;
    /* LRFU */
    double *score;   /* [n_keys] */
    uint64_t *key;   /* [n_slots] */
    uint32_t *heap;  /* [n_heap] slots, least score first */
    uint32_t *place; /* [n_slots] in heap, or NOT_IN_HEAP */
    uint32_t n_heap;
    double weight, growth;
};

uint64_t sl_evict_bytes(uint64_t n_slots, uint64_t n_keys)
{
    return sizeof(struct sl_evict) + n_keys * sizeof(double) + (n_slots + 1) * 4 * sizeof(uint32_t);
}

static bool open_lru(struct sl_evict *e)
{
    size_t nodes = (size_t)e->n_slots + 1;
    e->older = malloc(nodes * sizeof *e->older);
    e->newer = malloc(nodes * sizeof *e->newer);
    if (!e->older || !e->newer) return false;
    for (uint32_t i = 0; i <= e->n_slots; i++) e->older[i] = e->newer[i] = i;
    return true;
}

static bool open_lrfu(struct sl_evict *e)
{
    e->score = calloc(e->n_keys ? e->n_keys : 1, sizeof *e->score);
    e->key = calloc((size_t)e->n_slots + 1, sizeof *e->key);
    e->heap = malloc(((size_t)e->n_slots + 1) * sizeof *e->heap);
    e->place = malloc(((size_t)e->n_slots + 1) * sizeof *e->place);
    if (!e->score || !e->key || !e->heap || !e->place) return false;
    for (uint32_t i = 0; i < e->n_slots; i++) e->place[i] = NOT_IN_HEAP;
    e->weight = 1;
    e->growth = exp2(1 / (HALF_LIFE * (e->n_slots ? e->n_slots : 1)));
    return true;
}

int sl_evict_open(struct sl_evict **out, const char *name, uint32_t n_slots, uint64_t n_keys,
                  struct sl_err *err)
{
    int policy = 0;
    *out = NULL;
    while (name && sl_evict_names[policy] && strcmp(name, sl_evict_names[policy]) != 0) policy++;
    if (!sl_evict_names[policy])
        return sl_fail(err, SL_E_ARG, NULL, "evict",
                       "unknown policy \"%.32s\"; there are lrfu, lru", name);
    struct sl_evict *e = calloc(1, sizeof *e);
    bool ok = e != NULL;
    if (ok) {
        e->policy = (enum policy)policy;
        e->n_slots = n_slots;
        e->n_keys = n_keys;
        ok = e->policy == LRU ? open_lru(e) : open_lrfu(e);
    }
    if (!ok) {
        sl_evict_close(e);
        return sl_fail(err, SL_E_NOMEM, NULL, "evict", "out of memory");
    }
    *out = e;
    return 0;
}

void sl_evict_close(struct sl_evict *e)
{
    if (!e) return;
    free(e->older);
    free(e->newer);
    free(e->score);
    free(e->key);
    free(e->heap);
    free(e->place);
    free(e);
}

/* ------------------------------------------------------------------ the ring of LRU */

static void ring_drop(struct sl_evict *e, uint32_t slot)
{
    e->newer[e->older[slot]] = e->newer[slot];
    e->older[e->newer[slot]] = e->older[slot];
    e->older[slot] = e->newer[slot] = slot;
}

static void ring_use(struct sl_evict *e, uint32_t slot)
{
    uint32_t head = e->n_slots;
    ring_drop(e, slot);
    e->older[slot] = e->older[head];
    e->newer[slot] = head;
    e->newer[e->older[head]] = slot;
    e->older[head] = slot;
}

/* ------------------------------------------------------------------ the heap of LRFU */

static double score_at(const struct sl_evict *e, uint32_t place)
{
    return e->score[e->key[e->heap[place]]];
}

static void put_at(struct sl_evict *e, uint32_t place, uint32_t slot)
{
    e->heap[place] = slot;
    e->place[slot] = place;
}

static void sift_up(struct sl_evict *e, uint32_t at)
{
    uint32_t slot = e->heap[at];
    double score = e->score[e->key[slot]];
    while (at && score_at(e, (at - 1) / 2) > score) {
        put_at(e, at, e->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put_at(e, at, slot);
}

static void sift_down(struct sl_evict *e, uint32_t at)
{
    uint32_t slot = e->heap[at];
    double score = e->score[e->key[slot]];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= e->n_heap) break;
        if (child + 1 < e->n_heap && score_at(e, child + 1) < score_at(e, child)) child++;
        if (score_at(e, child) >= score) break;
        put_at(e, at, e->heap[child]);
        at = child;
    }
    put_at(e, at, slot);
}

static void heap_drop(struct sl_evict *e, uint32_t slot)
{
    uint32_t at = e->place[slot];
    if (at == NOT_IN_HEAP) return;
    uint32_t last = e->heap[--e->n_heap];
    e->place[slot] = NOT_IN_HEAP;
    if (last == slot) return;
    put_at(e, at, last);
    sift_up(e, at);
    sift_down(e, e->place[last]);
}

/* Multiplying all by one number keeps the order; what falls to zero was asked for ages ago. */
static void scale_down(struct sl_evict *e)
{
    for (uint64_t k = 0; k < e->n_keys; k++) e->score[k] *= SCALE_DOWN;
    e->weight *= SCALE_DOWN;
}

static void heap_put(struct sl_evict *e, uint32_t slot, uint64_t key)
{
    e->key[slot] = key;
    if (e->place[slot] == NOT_IN_HEAP) {
        put_at(e, e->n_heap++, slot);
        sift_up(e, e->n_heap - 1);
    } else {
        sift_down(e, e->place[slot]);
    }
}

static void heap_use(struct sl_evict *e, uint32_t slot, uint64_t key)
{
    if (e->weight > WEIGHT_MAX) scale_down(e);
    e->weight *= e->growth;
    e->score[key] += e->weight;
    heap_put(e, slot, key);
}

/* The least slot that may go in the subtree at `at`. Below one that may go nothing is smaller, so only
 * what is pinned is walked through. Depth is that of the heap. */
static void find_least(const struct sl_evict *e, uint32_t at, bool (*may)(void *, uint32_t),
                       void *ctx, uint32_t *best)
{
    if (at >= e->n_heap) return;
    if (*best != SL_EVICT_NONE && score_at(e, at) >= e->score[e->key[*best]]) return;
    if (may(ctx, e->heap[at])) {
        *best = e->heap[at];
        return;
    }
    find_least(e, 2 * at + 1, may, ctx, best);
    find_least(e, 2 * at + 2, may, ctx, best);
}

/* ------------------------------------------------------------------ either */

void sl_evict_drop(struct sl_evict *e, uint32_t slot)
{
    if (e->policy == LRU)
        ring_drop(e, slot);
    else
        heap_drop(e, slot);
}

void sl_evict_use(struct sl_evict *e, uint32_t slot, uint64_t key)
{
    if (e->policy == LRU)
        ring_use(e, slot);
    else
        heap_use(e, slot, key);
}

void sl_evict_put(struct sl_evict *e, uint32_t slot, uint64_t key)
{
    if (e->policy == LRU)
        ring_use(e, slot);
    else
        heap_put(e, slot, key);
}

double sl_evict_score(const struct sl_evict *e, uint64_t key)
{
    return e->policy == LRU ? 0 : e->score[key] / e->weight;
}

double sl_evict_half_life(const struct sl_evict *e)
{
    return (e->policy == LRU ? 0.5 : HALF_LIFE) * (e->n_slots ? e->n_slots : 1);
}

uint32_t sl_evict_victim(const struct sl_evict *e, bool (*may)(void *ctx, uint32_t slot), void *ctx)
{
    uint32_t best = SL_EVICT_NONE;
    if (e->policy == LRFU) {
        find_least(e, 0, may, ctx, &best);
        return best;
    }
    uint32_t head = e->n_slots;
    for (uint32_t s = e->newer[head]; s != head && best == SL_EVICT_NONE; s = e->newer[s])
        if (may(ctx, s)) best = s;
    return best;
}
