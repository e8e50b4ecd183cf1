/* Replays steps of keys through a policy (see trace_replay.h).
 *
 * Belady needs to know when a key is asked for next: filled in once from the end of the trace. Its heap
 * is lazy: an entry is stale when its slot has been used since. */
#include "offload/trace_replay.h"

#include <stdlib.h>
#include <string.h>

#include "offload/evict.h"

#define NONE  UINT32_MAX
#define NEVER UINT64_MAX

struct sl_replay {
    uint64_t n_keys, n_steps, n_uses, n_distinct, largest;
    uint32_t *keys;  /* [n_uses], ascending within a step */
    uint64_t *first; /* [n_steps + 1] into keys */
    uint64_t *next;  /* [n_uses] use of the same key after this one, or NEVER */
};

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* The distinct keys of the records [i, j), which are of one layer. */
static void add_step(struct sl_replay *r, const struct sl_trace *t, uint64_t i, uint64_t j)
{
    uint32_t *step = r->keys + r->n_uses;
    uint64_t n = 0;
    uint64_t distinct = 0;
    for (uint64_t k = i; k < j; k++)
        for (uint32_t x = 0; x < t->records[k].k; x++)
            step[n++] = (uint32_t)t->records[k].layer * (uint32_t)t->n_experts +
                        t->ids[t->records[k].first + x];
    qsort(step, n, sizeof *step, by_number);
    for (uint64_t k = 0; k < n; k++)
        if (!distinct || step[distinct - 1] != step[k]) step[distinct++] = step[k];
    r->first[r->n_steps++] = r->n_uses;
    r->n_uses += distinct;
    if (distinct > r->largest) r->largest = distinct;
}

static int find_next_uses(struct sl_replay *r)
{
    uint64_t *seen = malloc((r->n_keys + 1) * sizeof *seen);
    if (!seen) return -1;
    for (uint64_t k = 0; k < r->n_keys; k++) seen[k] = NEVER;
    for (uint64_t i = r->n_uses; i-- > 0;) {
        r->next[i] = seen[r->keys[i]];
        if (r->next[i] == NEVER) r->n_distinct++;
        seen[r->keys[i]] = i;
    }
    free(seen);
    return 0;
}

int sl_replay_open(struct sl_replay **out, const struct sl_trace *t, struct sl_err *err)
{
    *out = NULL;
    struct sl_replay *r = calloc(1, sizeof *r);
    if (r) {
        r->n_keys = (uint64_t)t->n_layers * (uint64_t)t->n_experts;
        r->keys = malloc((t->n_ids + 1) * sizeof *r->keys);
        r->next = malloc((t->n_ids + 1) * sizeof *r->next);
        r->first = malloc((t->n_records + 1) * sizeof *r->first);
    }
    bool ok = r && r->keys && r->next && r->first;
    for (uint64_t i = 0, j; ok && i < t->n_records; i = j) {
        for (j = i + 1; j < t->n_records && t->records[j].layer == t->records[i].layer;) j++;
        add_step(r, t, i, j);
    }
    if (ok) r->first[r->n_steps] = r->n_uses;
    if (!ok || find_next_uses(r)) {
        sl_replay_close(r);
        return sl_fail(err, SL_E_NOMEM, NULL, "replay", "out of memory");
    }
    *out = r;
    return 0;
}

void sl_replay_close(struct sl_replay *r)
{
    if (!r) return;
    free(r->keys);
    free(r->first);
    free(r->next);
    free(r);
}

uint64_t sl_replay_requests(const struct sl_replay *r)
{
    return r->n_uses;
}

uint64_t sl_replay_distinct(const struct sl_replay *r)
{
    return r->n_distinct;
}

uint64_t sl_replay_largest(const struct sl_replay *r)
{
    return r->largest;
}

/* ------------------------------------------------------------------ one run */

struct later {
    uint64_t next;
    uint32_t slot;
};

struct run {
    const struct sl_replay *r;
    uint32_t n_slots, n_used;
    uint32_t *where;    /* [n_keys] slot or NONE */
    uint32_t *key;      /* [n_slots] */
    uint64_t *request;  /* [n_slots] last request that needed it: those may not go */
    uint64_t n_request; /* the present one */
    struct sl_evict *evict;
    /* of belady: the farthest next use on top */
    struct later *heap;
    uint64_t n_heap;
    struct later *aside; /* [n_slots] */
    uint64_t *next;      /* [n_slots] next use of what the slot holds */
};

static bool may_go(void *ctx, uint32_t slot)
{
    const struct run *u = ctx;
    return u->request[slot] != u->n_request;
}

static void heap_push(struct run *u, struct later x)
{
    uint64_t at = u->n_heap++;
    while (at && u->heap[(at - 1) / 2].next < x.next) {
        u->heap[at] = u->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    u->heap[at] = x;
}

static struct later heap_pop(struct run *u)
{
    struct later top = u->heap[0];
    struct later last = u->heap[--u->n_heap];
    uint64_t at = 0;
    for (;;) {
        uint64_t child = 2 * at + 1;
        if (child >= u->n_heap) break;
        if (child + 1 < u->n_heap && u->heap[child + 1].next > u->heap[child].next) child++;
        if (u->heap[child].next <= last.next) break;
        u->heap[at] = u->heap[child];
        at = child;
    }
    u->heap[at] = last;
    return top;
}

static uint32_t farthest(struct run *u)
{
    uint64_t n_aside = 0;
    uint32_t slot = NONE;
    while (u->n_heap && slot == NONE) {
        struct later x = heap_pop(u);
        if (x.next != u->next[x.slot]) continue; /* used since */
        if (may_go(u, x.slot))
            slot = x.slot;
        else
            u->aside[n_aside++] = x;
    }
    while (n_aside) heap_push(u, u->aside[--n_aside]);
    return slot;
}

static void use(struct run *u, uint32_t slot, uint64_t i)
{
    u->request[slot] = u->n_request;
    if (u->evict) {
        sl_evict_use(u->evict, slot, u->r->keys[i]);
        return;
    }
    u->next[slot] = u->r->next[i];
    heap_push(u, (struct later){u->next[slot], slot});
}

/* A slot for key i: an unused one while there are any, then the policy's victim. */
static uint32_t slot_for(struct run *u, uint64_t i)
{
    uint32_t slot = u->n_used < u->n_slots ? u->n_used++ : NONE;
    if (slot == NONE) {
        slot = u->evict ? sl_evict_victim(u->evict, may_go, u) : farthest(u);
        u->where[u->key[slot]] = NONE;
        if (u->evict) sl_evict_drop(u->evict, slot);
    }
    u->key[slot] = u->r->keys[i];
    u->where[u->key[slot]] = slot;
    return slot;
}

/* Uses [i, j) as one request. Returns its hits. */
static uint64_t request(struct run *u, uint64_t i, uint64_t j)
{
    uint64_t hits = 0;
    u->n_request++;
    for (uint64_t k = i; k < j; k++) {
        uint32_t slot = u->where[u->r->keys[k]];
        if (slot == NONE) continue;
        use(u, slot, k);
        hits++;
    }
    for (uint64_t k = i; k < j; k++)
        if (u->where[u->r->keys[k]] == NONE) use(u, slot_for(u, k), k);
    return hits;
}

static int open_run(struct run *u, const char *policy, struct sl_err *err)
{
    const struct sl_replay *r = u->r;
    size_t slots = (size_t)u->n_slots + 1;
    bool best = policy && strcmp(policy, SL_REPLAY_BEST) == 0;
    int rc = best ? 0 : sl_evict_open(&u->evict, policy, u->n_slots, r->n_keys, err);
    if (rc) return rc;
    u->where = malloc((r->n_keys + 1) * sizeof *u->where);
    u->key = calloc(slots, sizeof *u->key);
    u->request = calloc(slots, sizeof *u->request);
    bool ok = u->where && u->key && u->request;
    if (best) {
        u->heap = malloc((r->n_uses + 1) * sizeof *u->heap);
        u->aside = malloc(slots * sizeof *u->aside);
        u->next = calloc(slots, sizeof *u->next);
        ok = ok && u->heap && u->aside && u->next;
    }
    if (!ok) return sl_fail(err, SL_E_NOMEM, NULL, "replay", "out of memory");
    for (uint64_t k = 0; k < r->n_keys; k++) u->where[k] = NONE;
    return 0;
}

int sl_replay_run(const struct sl_replay *r, const char *policy, uint32_t n_slots, uint64_t *hits,
                  struct sl_err *err)
{
    if (!n_slots) return sl_fail(err, SL_E_ARG, NULL, "replay", "a cache of 0 slots");
    struct run u = {.r = r, .n_slots = n_slots};
    int rc = open_run(&u, policy, err);
    *hits = 0;
    for (uint64_t s = 0; s < r->n_steps && !rc; s++) {
        if (sl_interrupted()) rc = sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted");
        for (uint64_t i = r->first[s]; i < r->first[s + 1];) {
            uint64_t left = r->first[s + 1] - i;
            uint64_t n = left < n_slots ? left : n_slots;
            *hits += request(&u, i, i + n);
            i += n;
        }
    }
    sl_evict_close(u.evict);
    free(u.where);
    free(u.key);
    free(u.request);
    free(u.heap);
    free(u.aside);
    free(u.next);
    return rc;
}
