/* Slot cache: one arena, one record a slot, and who gets which slot.
 *
 *   slots   [ L3 e17 READY | L3 e402 INFLIGHT | EMPTY | L4 e88 READY pin 1 ]
 *   lookup  where[layer][expert] -> slot
 *
 * A request does all deciding under one lock: hits are pinned first, then each miss takes an empty slot
 * or the policy's victim among unpinned READY ones. So hits, misses and evictions follow from the order
 * of requests, and timing only moves the moment a record lands. A slot that is being read is pinned by
 * the request that asked for it and can be neither evicted nor handed out: publishing too early has
 * given other engines wrong tokens.
 *
 * A prefetch holds a slot without a pin. Demand may take that slot back: at once when the read has not
 * begun or has landed, after the landing (one record) otherwise.
 *
 * In prefill another rule decides what gives way, and some slots may be lent (store_sweep.c). What is
 * read again afterwards has its slot like a resident record and counts as one.
 *
 * A failed read lands too: the slot keeps what went wrong until someone takes it, then is EMPTY. So
 * nobody waits for a record that will not come, and asking again reads again.
 *
 * With a budget for every record nothing is ever evicted: the same code, with as many slots. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "offload/store_parts.h"

/* ------------------------------------------------------------------ slots, under the lock */

static size_t key_of(const struct sl_store *s, int layer, int expert)
{
    return (size_t)layer * (size_t)s->p->cfg.n_experts + (size_t)expert;
}

static void pin(struct sl_store *s, struct sl_slot *x)
{
    if (!x->pins++) s->n_pinned++;
}

static void unpin(struct sl_store *s, struct sl_slot *x)
{
    assert(x->pins > 0);
    if (!--x->pins) s->n_pinned--;
}

static void end_guard(struct sl_store *s, uint32_t slot)
{
    uint32_t i = 0;
    while (s->guarded[i] != slot) i++;
    s->guarded[i] = s->guarded[--s->n_guarded];
    s->slots[slot].guarded = false;
}

void sl_store_make_empty(struct sl_store *s, uint32_t slot)
{
    struct sl_slot *x = &s->slots[slot];
    assert(!x->pins && !x->wanted && !x->loose);
    if (x->guarded) end_guard(s, slot);
    if (x->state == SL_SLOT_READY && x->ahead) s->stats.prefetch_wasted++;
    s->where[key_of(s, x->layer, x->expert)] = SL_NO_SLOT;
    if (!s->sweep.on) sl_evict_drop(s->evict, slot);
    x->layer = x->expert = -1;
    x->state = SL_SLOT_EMPTY;
    x->ahead = x->begun = x->again = x->refill = false;
    x->tried = x->have = x->target = 0;
    s->empty[s->n_empty++] = slot;
}

void sl_store_give_up(struct sl_store *s, uint32_t slot)
{
    struct sl_slot *x = &s->slots[slot];
    if (!x->have) {
        sl_store_make_empty(s, slot);
        return;
    }
    x->state = SL_SLOT_READY;
    x->target = x->have;
}

/* Bytes of a record that are needed of it. */
static uint32_t needed(const struct sl_store *s, int layer, int expert, bool whole)
{
    const struct sl_bank_entry *e = &s->p->banks[s->p->bank_of[layer]].entries[expert];
    return whole ? e->bytes : e->base_bytes;
}

static void want(struct sl_store *s, uint32_t slot, uint32_t need)
{
    struct sl_slot *x = &s->slots[slot];
    pin(s, x);
    x->asked = need;
    s->stats.bytes_used += need;
    x->wanted = true;
    s->wanted[s->n_wanted++] = slot;
    if (!s->sweep.on) sl_evict_use(s->evict, slot, key_of(s, x->layer, x->expert));
}

static void unwant(struct sl_store *s, uint32_t slot)
{
    for (uint32_t i = 0; i < s->n_wanted; i++) {
        if (s->wanted[i] != slot) continue;
        s->wanted[i] = s->wanted[--s->n_wanted];
        s->slots[slot].wanted = false;
        return;
    }
    assert(!"a wanted slot is in the list");
}

static bool may_evict(void *ctx, uint32_t slot)
{
    const struct sl_store *s = ctx;
    const struct sl_slot *x = &s->slots[slot];
    return !x->pins && (x->state == SL_SLOT_READY || (x->refill && !x->begun));
}

/* What a prefetch brought and nobody has asked for has no history yet, and every policy would give it up
 * first. So it is guarded until its layer is asked for; then it was right, or is like any other. */
static bool may_evict_unguarded(void *ctx, uint32_t slot)
{
    const struct sl_store *s = ctx;
    return may_evict(ctx, slot) && !s->slots[slot].guarded;
}

static void guard(struct sl_store *s, uint32_t slot)
{
    s->slots[slot].guarded = true;
    s->guarded[s->n_guarded++] = slot;
}

static void end_guards(struct sl_store *s, int layer)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->n_guarded; i++) {
        struct sl_slot *x = &s->slots[s->guarded[i]];
        if (x->layer != layer)
            s->guarded[kept++] = s->guarded[i];
        else
            x->guarded = false;
    }
    s->n_guarded = kept;
}

/* Gives up what the policy chose. */
static void evict(struct sl_store *s, uint32_t slot)
{
    if (s->slots[slot].state == SL_SLOT_INFLIGHT) {
        sl_slot_queue_remove(s, &s->refill, slot);
        s->stats.refill_dropped++;
    }
    sl_store_make_empty(s, slot);
}

/* Forgets a prefetch that has not begun. */
static void drop_prefetch(struct sl_store *s, uint32_t slot)
{
    sl_slot_queue_remove(s, &s->prefetch, slot);
    s->stats.prefetch_dropped++;
    sl_store_make_empty(s, slot);
}

void sl_store_drop_prefetches(struct sl_store *s)
{
    while (s->prefetch.n) drop_prefetch(s, s->prefetch.tail);
    for (uint32_t i = 0; i < s->n_guarded; i++) s->slots[s->guarded[i]].guarded = false;
    s->n_guarded = 0;
}

static bool free_one(struct sl_store *s, bool prefetch)
{
    if (s->sweep.on) return sl_sweep_free_one(s);
    if (s->n_empty) return true;
    uint32_t victim = sl_evict_victim(s->evict, may_evict_unguarded, s);
    if (victim == SL_EVICT_NONE && !prefetch) {
        if (s->prefetch.n) {
            drop_prefetch(s, s->prefetch.tail); /* the least likely of the last ones named */
            return true;
        }
        victim = sl_evict_victim(s->evict, may_evict, s);
    }
    if (victim != SL_EVICT_NONE) evict(s, victim);
    return s->n_empty > 0;
}

/* An EMPTY slot for (layer, expert), which is INFLIGHT and in no queue then. */
static uint32_t assign_slot(struct sl_store *s, int layer, int expert, uint32_t need)
{
    uint32_t slot = s->empty[--s->n_empty];
    struct sl_slot *x = &s->slots[slot];
    x->layer = layer;
    x->expert = expert;
    x->state = SL_SLOT_INFLIGHT;
    x->have = 0;
    x->target = need;
    s->where[key_of(s, layer, expert)] = slot;
    return slot;
}

/* The caller has counted: there is a slot to be had. */
static void start_read(struct sl_store *s, int layer, int expert, uint32_t need)
{
    bool found = free_one(s, false);
    assert(found);
    (void)found;
    uint32_t slot = assign_slot(s, layer, expert, need);
    want(s, slot, need);
    sl_slot_queue_push(s, &s->demand, slot);
}

/* A requested record that has a slot: it is resident, or a prefetch brings it, or was about to. */
static void request_found(struct sl_store *s, uint32_t slot, uint32_t need)
{
    struct sl_slot *x = &s->slots[slot];
    bool more = x->target < need;
    if (more) x->target = need;
    if (more && x->state == SL_SLOT_READY) {
        /* Pinned or not, the planes that are there stay where they are. */
        x->state = SL_SLOT_INFLIGHT;
        x->begun = x->prefetch = x->again = false;
        x->tried = 0;
        sl_slot_queue_push(s, &s->demand, slot);
        s->stats.upgrades++;
        *(x->ahead ? &s->stats.prefetch_used : &s->stats.misses) += 1;
    } else if (!x->ahead) {
        s->stats.hits++;
        if (x->state == SL_SLOT_INFLIGHT && !x->begun) { /* of a refill */
            sl_slot_queue_remove(s, &s->refill, slot);
            sl_slot_queue_push(s, &s->demand, slot);
        }
    } else if (x->state == SL_SLOT_INFLIGHT && !x->begun) {
        sl_slot_queue_remove(s, &s->prefetch, slot);
        sl_slot_queue_push(s, &s->demand, slot);
        s->stats.prefetch_dropped++;
        s->stats.misses++;
    } else {
        s->stats.prefetch_used++;
    }
    sl_store_not_loose(s, x);
    x->ahead = x->refill = false;
    want(s, slot, need);
    if (x->state != SL_SLOT_INFLIGHT) x->order = s->order++;
}

/* ------------------------------------------------------------------ requests */

/* Slots that may hold records now. */
static uint32_t usable(const struct sl_store *s)
{
    return s->sweep.n_frames;
}

/* Everything that can be wrong with a request, before anything changes. *wait: it must wait for a
 * prefetch to land, since the slot is needed for something else; or for the reads of a refill, among
 * which the policy may choose. */
static int check_request(struct sl_store *s, int layer, const int *ids, int n, bool *wait,
                         struct sl_err *err)
{
    const struct sl_config *c = &s->p->cfg;
    char where[48];
    snprintf(where, sizeof where, "request of layer %d", layer);
    if (layer < 0 || layer >= c->n_layers || s->p->bank_of[layer] < 0)
        return sl_fail(err, SL_E_ARG, NULL, where, "the layer has no routed experts");
    if (n < 0 || n > sl_store_max_request(s))
        return sl_fail(err, SL_E_ARG, NULL, where, "%d experts, at most %d fit", n,
                       sl_store_max_request(s));
    uint32_t fresh = 0;     /* slots that this request is the first to pin */
    uint32_t loose = 0;     /* those of them that are being read already */
    uint32_t refilling = 0; /* of these: by a refill */
    uint32_t misses = 0;
    *wait = false;
    s->request++;
    for (int i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= c->n_experts)
            return sl_fail(err, SL_E_ARG, NULL, where, "expert %d of %d", ids[i], c->n_experts);
        uint32_t slot = s->where[key_of(s, layer, ids[i])];
        if (s->mark[ids[i]] == s->request || (slot != SL_NO_SLOT && s->slots[slot].wanted))
            return sl_fail(err, SL_E_ARG, NULL, where, "expert %d is asked for twice", ids[i]);
        s->mark[ids[i]] = s->request;
        if (slot == SL_NO_SLOT || !s->slots[slot].pins) fresh++;
        misses += slot == SL_NO_SLOT;
        if (slot == SL_NO_SLOT || !s->slots[slot].loose) continue;
        loose++;
        refilling += s->slots[slot].refill;
    }
    if (fresh > usable(s) - s->n_pinned)
        return sl_fail(err, SL_E_ARG, NULL, where, "%u more slots, but %u of %u are in use", fresh,
                       s->n_pinned, usable(s));
    *wait = fresh - loose > usable(s) - s->n_pinned - s->n_loose ||
            (misses > s->n_empty && s->n_refilling > refilling);
    return 0;
}

static void wait_landing(struct sl_store *s)
{
    double start = sl_store_now();
    pthread_cond_wait(&s->landed, &s->lock);
    s->stats.stall_seconds += sl_store_now() - start;
}

int sl_store_request_planes(struct sl_store *s, int layer, const int *ids, const bool *whole, int n,
                            struct sl_err *err)
{
    pthread_mutex_lock(&s->lock);
    bool wait = false;
    s->refill_alone = false;
    int rc = check_request(s, layer, ids, n, &wait, err);
    while (!rc && wait) {
        s->refill_held = true;
        wait_landing(s);
        rc = check_request(s, layer, ids, n, &wait, err);
    }
    s->refill_held = false;
    if (!rc) end_guards(s, layer);
    /* Hits first: a miss must not evict what this very request needs. */
    for (int i = 0; i < n && !rc; i++) {
        uint32_t slot = s->where[key_of(s, layer, ids[i])];
        if (slot != SL_NO_SLOT)
            request_found(s, slot, needed(s, layer, ids[i], !whole || whole[i]));
    }
    for (int i = 0; i < n && !rc; i++) {
        if (s->where[key_of(s, layer, ids[i])] != SL_NO_SLOT) continue;
        start_read(s, layer, ids[i], needed(s, layer, ids[i], !whole || whole[i]));
        s->stats.misses++;
    }
    if (s->demand.n || s->refill.n) sl_store_wake(s);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int sl_store_request(struct sl_store *s, int layer, const int *ids, int n, struct sl_err *err)
{
    return sl_store_request_planes(s, layer, ids, NULL, n, err);
}

int sl_store_prefetch(struct sl_store *s, int layer, const int *ids, int n)
{
    return sl_store_prefetch_planes(s, layer, ids, n, n);
}

int sl_store_prefetch_planes(struct sl_store *s, int layer, const int *ids, int n, int n_whole)
{
    int queued = 0;
    if (layer < 0 || layer >= s->p->cfg.n_layers || s->p->bank_of[layer] < 0) return 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= s->p->cfg.n_experts) continue;
        if (s->where[key_of(s, layer, ids[i])] != SL_NO_SLOT) continue;
        if (!free_one(s, true)) break;
        uint32_t slot = assign_slot(s, layer, ids[i], needed(s, layer, ids[i], i < n_whole));
        s->slots[slot].ahead = true;
        guard(s, slot);
        sl_evict_put(s->evict, slot, key_of(s, layer, ids[i]));
        sl_slot_queue_push(s, &s->prefetch, slot);
        s->stats.prefetch_issued++;
        queued++;
    }
    if (queued) sl_store_wake(s);
    pthread_mutex_unlock(&s->lock);
    return queued;
}

static int read_failure(const struct sl_store *s, const struct sl_slot *x, struct sl_err *err)
{
    const struct sl_bank_entry *e = sl_slot_entry(s, x);
    const char *file = s->sources[x->source].name;
    char what[48];
    snprintf(what, sizeof what, "layer %d expert %d", x->layer, x->expert);
    if (x->cause == SL_READ_ERRNO) return sl_fail_errno(err, SL_E_IO, (int)x->detail, file, what);
    if (x->cause == SL_READ_SHORT)
        return sl_fail(err, SL_E_PACK, file, what, "%u of %u bytes at offset %llu: the file is cut",
                       x->detail, x->upto, (unsigned long long)e->offset);
    return sl_fail(err, SL_E_PACK, file, what,
                   "crc32 %08x, expected %08x; run 'sluice verify PACK --full'", x->detail,
                   sl_slot_crc32(s, x));
}

/* Hands a landed slot to its taker. */
static int hand_out(struct sl_store *s, uint32_t slot, struct sl_mat out[SL_N_MATS],
                    struct sl_err *err)
{
    struct sl_slot *x = &s->slots[slot];
    unwant(s, slot);
    if (x->state == SL_SLOT_FAILED) {
        int rc = read_failure(s, x, err);
        unpin(s, x);
        sl_store_give_up(s, slot);
        return rc;
    }
    const struct sl_bank_entry *e = sl_slot_entry(s, x);
    sl_record_views(e, sl_slot_memory(s, slot), s->p->cfg.latent_size,
                    s->p->cfg.moe_intermediate_size, out);
    for (int m = 0; m < SL_N_MATS && x->asked < e->bytes; m++)
        out[m].fine_codes = out[m].fine_table = NULL;
    return 0;
}

static bool is_known(const struct sl_store *s, int layer, int expert)
{
    return layer >= 0 && layer < s->p->cfg.n_layers && expert >= 0 && expert < s->p->cfg.n_experts;
}

int sl_store_take(struct sl_store *s, int layer, int expert, struct sl_mat out[SL_N_MATS],
                  struct sl_err *err)
{
    pthread_mutex_lock(&s->lock);
    int rc = 0;
    for (;;) {
        /* Looked up again after each wait: another thread may have taken it meanwhile. */
        uint32_t slot =
            is_known(s, layer, expert) ? s->where[key_of(s, layer, expert)] : SL_NO_SLOT;
        if (slot == SL_NO_SLOT || !s->slots[slot].wanted) {
            rc = sl_fail(err, SL_E_ARG, NULL, "take", "layer %d expert %d is not asked for", layer,
                         expert);
            break;
        }
        if (s->slots[slot].state != SL_SLOT_INFLIGHT) {
            rc = hand_out(s, slot, out, err);
            break;
        }
        wait_landing(s);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* The wanted slot of the layer that landed first, SL_NO_SLOT when none has; *open counts all of them. */
static uint32_t first_landed(const struct sl_store *s, int layer, uint32_t *open)
{
    uint32_t best = SL_NO_SLOT;
    *open = 0;
    for (uint32_t i = 0; i < s->n_wanted; i++) {
        const struct sl_slot *x = &s->slots[s->wanted[i]];
        if (x->layer != layer) continue;
        ++*open;
        if (x->state != SL_SLOT_INFLIGHT && (best == SL_NO_SLOT || x->order < s->slots[best].order))
            best = s->wanted[i];
    }
    return best;
}

int sl_store_take_any(struct sl_store *s, int layer, int *expert, struct sl_mat out[SL_N_MATS],
                      struct sl_err *err)
{
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        uint32_t open;
        uint32_t slot = first_landed(s, layer, &open);
        if (slot != SL_NO_SLOT) {
            *expert = s->slots[slot].expert;
            rc = hand_out(s, slot, out, err);
            break;
        }
        if (!open) {
            rc = sl_fail(err, SL_E_ARG, NULL, "take", "no expert of layer %d is asked for", layer);
            break;
        }
        wait_landing(s);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void sl_store_put(struct sl_store *s, int layer, int expert)
{
    pthread_mutex_lock(&s->lock);
    assert(is_known(s, layer, expert));
    uint32_t slot = s->where[key_of(s, layer, expert)];
    assert(slot != SL_NO_SLOT);
    unpin(s, &s->slots[slot]);
    sl_sweep_put(s, slot);
    pthread_mutex_unlock(&s->lock);
}

void sl_store_cancel(struct sl_store *s)
{
    pthread_mutex_lock(&s->lock);
    /* Reads that have not begun are forgotten, also those that only failed so far. */
    for (;;) {
        while (s->demand.n) {
            s->slots[s->demand.head].state = SL_SLOT_FAILED; /* upgrades too: given up below */
            sl_slot_queue_remove(s, &s->demand, s->demand.head);
        }
        while (s->prefetch.n) drop_prefetch(s, s->prefetch.tail);
        while (s->refill.n) evict(s, s->refill.tail);
        if (!s->reading) break;
        pthread_cond_wait(&s->landed, &s->lock);
    }
    while (s->n_wanted) {
        uint32_t slot = s->wanted[s->n_wanted - 1];
        struct sl_slot *x = &s->slots[slot];
        unwant(s, slot);
        unpin(s, x);
        if (x->state == SL_SLOT_FAILED) sl_store_give_up(s, slot);
        sl_sweep_put(s, slot);
    }
    pthread_mutex_unlock(&s->lock);
}

int sl_store_ready(const struct sl_store *s, int layer)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&s->lock; /* logically const */
    int n = 0;
    pthread_mutex_lock(lock);
    for (uint32_t i = 0; i < s->n_wanted; i++) {
        const struct sl_slot *x = &s->slots[s->wanted[i]];
        n += x->layer == layer && x->state != SL_SLOT_INFLIGHT;
    }
    pthread_mutex_unlock(lock);
    return n;
}

int sl_store_max_request(const struct sl_store *s)
{
    uint32_t n = (uint32_t)s->p->cfg.n_experts;
    return (int)(usable(s) < n ? usable(s) : n);
}

void sl_store_get_stats(const struct sl_store *s, struct sl_store_stats *out)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&s->lock; /* logically const */
    pthread_mutex_lock(lock);
    *out = s->stats;
    out->slots_touched = s->sweep.n_touched;
    for (uint32_t d = 0; d < s->n_drives; d++) out->drives[d] = s->drives[d].stats;
    pthread_mutex_unlock(lock);
}
