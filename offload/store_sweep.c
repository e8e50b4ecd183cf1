/* The store in prefill: slots as a ring, some of their memory lent, and what they hold afterwards.
 *
 *   slots in decode   [ warm .................................................... ]
 *   in a sweep        [ warm, ahead of the sweep | swept, best first ... | ring   ][ lent ]
 *   afterwards        [ what decode would have left, read again where it is missing ]
 *
 * A chunk of a prompt asks for nearly every expert of a layer, once; treated like decode it would push
 * out everything. Three things are different while a sweep is on:
 *
 *   - The policy is not told of requests. When a chunk is done it is told of the routes of its tokens in
 *     the order in which decode would have asked, as if each had been decoded. What it would hold then
 *     is what the slots are to hold, so the hits of the decode that follows are those of a replay of the
 *     whole trace (offload/test_store_sweep).
 *   - A record gives way only to a record of its own layer or a later one: what lies ahead of the sweep
 *     is about to be used. Among the swept ones the least goes first, by the score that the policy will
 *     give it at the end of the chunk: the part of that score that comes from this chunk is known as soon
 *     as the layer is routed. So most of what is to stay is there already and few records are read again.
 *   - The last slots' memory may be lent. What they held is read again if it is still wanted.
 *
 * Reading again (refill) begins when the sweep ends, behind everything else. A record on its way counts
 * as resident: the policy's decisions never depend on how far the refill has come. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "offload/store_parts.h"

static uint32_t key_of(const struct sl_store *s, int layer, int expert)
{
    return (uint32_t)layer * (uint32_t)s->p->cfg.n_experts + (uint32_t)expert;
}

uint64_t sl_sweep_bytes(uint64_t n_slots, uint64_t n_keys, uint64_t n_experts)
{
    return n_slots *
               (sizeof(struct sl_slot) + 3 * sizeof(uint32_t) + 2 * sizeof(struct sl_swept) + 1) +
           n_keys * sizeof(uint32_t) + n_experts * sizeof(double);
}

int sl_sweep_open(struct sl_store *s)
{
    struct sl_sweep *w = &s->sweep;
    const size_t n = s->n_slots;
    const size_t keys = (size_t)s->p->cfg.n_layers * (size_t)s->p->cfg.n_experts;
    w->spare = malloc(n * sizeof *w->spare);
    w->held = malloc(n * sizeof *w->held);
    w->unused = malloc(n * sizeof *w->unused);
    w->asked = calloc(n, sizeof *w->asked);
    w->swept = malloc(2 * n * sizeof *w->swept);
    w->touched = calloc(n, sizeof *w->touched);
    w->at = malloc(keys * sizeof *w->at);
    w->score = malloc((size_t)s->p->cfg.n_experts * sizeof *w->score);
    w->n_frames = s->n_slots;
    return w->spare && w->held && w->unused && w->asked && w->swept && w->touched && w->at &&
                   w->score
               ? 0
               : -1;
}

void sl_sweep_close(struct sl_store *s)
{
    struct sl_sweep *w = &s->sweep;
    free(w->spare);
    free(w->held);
    free(w->unused);
    free(w->asked);
    free(w->swept);
    free(w->touched);
    free(w->at);
    free(w->score);
}

/* ------------------------------------------------------------------ swept slots, least score first */

static bool less(const struct sl_swept *a, const struct sl_swept *b)
{
    return a->score < b->score || (a->score == b->score && a->slot < b->slot);
}

/* Whether the slot still is what it was when it came into the heap. */
static bool is_fresh(const struct sl_store *s, const struct sl_swept *e)
{
    const struct sl_slot *x = &s->slots[e->slot];
    return x->stamp == e->stamp && x->state == SL_SLOT_READY && !x->pins;
}

static void sift_down(struct sl_sweep *w, uint32_t at)
{
    const struct sl_swept e = w->swept[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= w->n_swept) break;
        if (child + 1 < w->n_swept && less(&w->swept[child + 1], &w->swept[child])) child++;
        if (!less(&w->swept[child], &e)) break;
        w->swept[at] = w->swept[child];
        at = child;
    }
    w->swept[at] = e;
}

static void drop_stale(struct sl_store *s)
{
    struct sl_sweep *w = &s->sweep;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < w->n_swept; i++)
        if (is_fresh(s, &w->swept[i])) w->swept[kept++] = w->swept[i];
    w->n_swept = kept;
    for (uint32_t i = kept / 2; i-- > 0;) sift_down(w, i);
}

void sl_sweep_put(struct sl_store *s, uint32_t slot)
{
    struct sl_sweep *w = &s->sweep;
    struct sl_slot *x = &s->slots[slot];
    if (!w->on || x->pins || x->state != SL_SLOT_READY) return;
    if (w->n_swept == 2 * s->n_slots) drop_stale(s); /* at most one fresh entry a slot is left */
    const struct sl_swept e = {x->layer == w->layer ? w->score[x->expert] : 0, slot, ++x->stamp};
    uint32_t at = w->n_swept++;
    while (at && less(&e, &w->swept[(at - 1) / 2])) {
        w->swept[at] = w->swept[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    w->swept[at] = e;
}

static uint32_t least_swept(struct sl_store *s)
{
    struct sl_sweep *w = &s->sweep;
    while (w->n_swept) {
        const struct sl_swept e = w->swept[0];
        w->swept[0] = w->swept[--w->n_swept];
        if (w->n_swept) sift_down(w, 0);
        if (is_fresh(s, &e)) return e.slot;
    }
    return SL_NO_SLOT;
}

/* Before anything was swept: what is used last again. The layer just passed comes last, then the ones
 * before it, then the model's last layers. */
static uint32_t farthest(const struct sl_store *s)
{
    const int n = s->p->cfg.n_layers;
    uint32_t best = SL_NO_SLOT;
    int best_wait = -1;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const struct sl_slot *x = &s->slots[i];
        if (x->state != SL_SLOT_READY || x->pins) continue;
        const int wait = (x->layer - s->sweep.layer - 1 + n) % n; /* own layer: n - 1 */
        if (wait <= best_wait) continue;
        best = i;
        best_wait = wait;
    }
    return best;
}

bool sl_sweep_free_one(struct sl_store *s)
{
    if (s->n_empty) return true;
    uint32_t slot = least_swept(s);
    if (slot == SL_NO_SLOT) slot = farthest(s);
    if (slot != SL_NO_SLOT) sl_store_make_empty(s, slot);
    return s->n_empty > 0;
}

/* ------------------------------------------------------------------ scores of a layer */

static double requests_a_token(const struct sl_store *s)
{
    int n_moe = 0;
    for (int l = 0; l < s->p->cfg.n_layers; l++) n_moe += s->p->bank_of[l] >= 0;
    return (double)n_moe * (double)s->p->cfg.top_k;
}

void sl_store_sweep_layer(struct sl_store *s, int layer, const int *ids, int n_tokens)
{
    struct sl_sweep *w = &s->sweep;
    const int k = s->p->cfg.top_k;
    pthread_mutex_lock(&s->lock);
    if (w->on) {
        const double fade = exp2(-requests_a_token(s) / sl_evict_half_life(s->evict));
        const double old = pow(fade, n_tokens);
        w->layer = layer;
        for (int e = 0; e < s->p->cfg.n_experts; e++)
            w->score[e] = old * sl_evict_score(s->evict, key_of(s, layer, e));
        double use = 1;
        for (int t = n_tokens - 1; t >= 0 && use > 1e-30; t--, use *= fade)
            for (int j = 0; j < k; j++) w->score[ids[t * k + j]] += use;
    }
    pthread_mutex_unlock(&s->lock);
}

int sl_store_sort_resident(struct sl_store *s, int layer, int *ids, bool *whole, int n)
{
    uint32_t *rest = s->mark; /* of no use between requests; [n_experts] */
    int n_resident = 0;
    int n_rest = 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        const int e = ids[i];
        const bool all = !whole || whole[i];
        if (s->where[key_of(s, layer, e)] == SL_NO_SLOT) {
            rest[n_rest++] = (uint32_t)e << 1 | all;
            continue;
        }
        ids[n_resident] = e;
        if (whole) whole[n_resident] = all;
        n_resident++;
    }
    for (int i = 0; i < n_rest; i++) {
        ids[n_resident + i] = (int)(rest[i] >> 1);
        if (whole) whole[n_resident + i] = rest[i] & 1;
    }
    memset(s->mark, 0, sizeof *s->mark * (size_t)s->p->cfg.n_experts);
    s->request = 0;
    pthread_mutex_unlock(&s->lock);
    return n_resident;
}

/* ------------------------------------------------------------------ what the policy would hold */

/* In the policy's eyes slots hold keys, read or not. */
static void remember(struct sl_store *s)
{
    struct sl_sweep *w = &s->sweep;
    const size_t keys = (size_t)s->p->cfg.n_layers * (size_t)s->p->cfg.n_experts;
    for (size_t k = 0; k < keys; k++) w->at[k] = SL_NO_SLOT;
    w->n_unused = 0;
    for (uint32_t i = s->n_slots; i-- > 0;) {
        const struct sl_slot *x = &s->slots[i];
        w->held[i] = x->layer < 0 ? SL_NO_KEY : key_of(s, x->layer, x->expert);
        if (x->layer < 0)
            w->unused[w->n_unused++] = i;
        else
            w->at[w->held[i]] = i;
    }
}

static bool may_go(void *ctx, uint32_t slot)
{
    const struct sl_sweep *w = ctx;
    return w->asked[slot] != w->n_asked;
}

static void use(struct sl_store *s, uint32_t slot)
{
    s->sweep.asked[slot] = s->sweep.n_asked;
    sl_evict_use(s->evict, slot, s->sweep.held[slot]);
}

/* A step of decode: the store's own rule (store.c) without memory. ids ascending. */
static void step(struct sl_store *s, int layer, const uint16_t *ids, int n)
{
    struct sl_sweep *w = &s->sweep;
    if (!++w->n_asked) { /* wrapped: no slot may look asked for */
        memset(w->asked, 0, sizeof *w->asked * s->n_slots);
        w->n_asked = 1;
    }
    for (int i = 0; i < n; i++) {
        const uint32_t slot = w->at[key_of(s, layer, ids[i])];
        if (slot != SL_NO_SLOT) use(s, slot);
    }
    for (int i = 0; i < n; i++) {
        const uint32_t key = key_of(s, layer, ids[i]);
        if (w->at[key] != SL_NO_SLOT) continue;
        uint32_t slot;
        if (w->n_unused) {
            slot = w->unused[--w->n_unused];
        } else {
            slot = sl_evict_victim(s->evict, may_go, w);
            assert(slot != SL_EVICT_NONE); /* more slots than a token asks for */
            sl_evict_drop(s->evict, slot);
            w->at[w->held[slot]] = SL_NO_SLOT;
        }
        w->held[slot] = key;
        w->at[key] = slot;
        use(s, slot);
    }
}

static void sort_ids(uint16_t *out, const uint16_t *in, int k)
{
    for (int i = 0; i < k; i++) {
        int at = i;
        for (; at && out[at - 1] > in[i]; at--) out[at] = out[at - 1];
        out[at] = in[i];
    }
}

/* Whether a record may be missing afterwards; with a slot for each there is nothing to decide. */
static bool may_lack(const struct sl_store *s)
{
    return s->n_slots < s->sweep.n_records || s->sweep.n_frames < s->n_slots;
}

void sl_store_sweep_routes(struct sl_store *s, const uint16_t *routes, int n_tokens)
{
    struct sl_sweep *w = &s->sweep;
    const struct sl_config *c = &s->p->cfg;
    const size_t k = (size_t)c->top_k;
    pthread_mutex_lock(&s->lock);
    w->n_swept = 0; /* everything lies ahead of the next chunk */
    for (int t = 0; w->on && may_lack(s) && t < n_tokens; t++)
        for (int l = 0; l < c->n_layers; l++) {
            uint16_t ids[1 + SL_MAX_TOP_K];
            if (s->p->bank_of[l] < 0) continue;
            sort_ids(ids, routes + ((size_t)l * (size_t)n_tokens + (size_t)t) * k, c->top_k);
            step(s, l, ids, c->top_k);
        }
    pthread_mutex_unlock(&s->lock);
}

/* ------------------------------------------------------------------ begin and end */

/* Forgets what a slot holds or waits for, while the policy goes on counting it. */
static void forget(struct sl_store *s, uint32_t slot)
{
    if (s->slots[slot].state != SL_SLOT_EMPTY) sl_store_make_empty(s, slot);
}

int sl_store_sweep_begin(struct sl_store *s, uint64_t lent_bytes, void **lent, struct sl_err *err)
{
    struct sl_sweep *w = &s->sweep;
    const uint64_t n_lent = lent_bytes / s->slot_bytes + (lent_bytes % s->slot_bytes != 0);
    const uint64_t n_least = (uint64_t)s->p->cfg.top_k + 1;
    int rc = 0;
    *lent = NULL;
    pthread_mutex_lock(&s->lock);
    if (w->on || s->n_pinned || s->n_wanted)
        rc = sl_fail(err, SL_E_ARG, NULL, "sweep", "experts are in use");
    else if (n_lent && (n_lent > s->n_slots || s->n_slots - n_lent < n_least))
        rc = sl_fail(err, SL_E_BUDGET, NULL, "sweep",
                     "%llu bytes of %u slots leave fewer than %llu slots",
                     (unsigned long long)lent_bytes, s->n_slots, (unsigned long long)n_least);
    if (rc) {
        pthread_mutex_unlock(&s->lock);
        return rc;
    }
    sl_store_drop_prefetches(s);
    remember(s);
    w->on = true;
    w->layer = 0;
    w->n_swept = 0;
    w->n_frames = s->n_slots - (uint32_t)n_lent;
    while (s->refill.n) { /* not begun: the policy has it, the memory does not */
        const uint32_t slot = s->refill.head;
        sl_slot_queue_remove(s, &s->refill, slot);
        forget(s, slot);
    }
    while (s->reading) pthread_cond_wait(&s->landed, &s->lock);
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->slots[i].frame >= w->n_frames) {
            forget(s, i);
            sl_sweep_touch(s, s->slots[i].frame);
        }
    s->n_empty = 0;
    for (uint32_t i = s->n_slots; i-- > 0;)
        if (s->slots[i].state == SL_SLOT_EMPTY && s->slots[i].frame < w->n_frames)
            s->empty[s->n_empty++] = i;
    if (n_lent) *lent = s->arena.base + (uint64_t)w->n_frames * s->slot_bytes;
    s->stats.lent_bytes = n_lent * s->slot_bytes;
    if (s->stats.lent_bytes > s->stats.lent_peak_bytes)
        s->stats.lent_peak_bytes = s->stats.lent_bytes;
    pthread_mutex_unlock(&s->lock);
    return 0;
}

static void clear_slot(struct sl_slot *x, uint32_t frame)
{
    memset(x, 0, sizeof *x);
    x->layer = x->expert = -1;
    x->frame = frame;
}

/* Slots in the policy's order: what is resident keeps its memory, the others get what is left. */
static void settle(struct sl_store *s, bool refill)
{
    struct sl_sweep *w = &s->sweep;
    struct sl_slot *now = w->spare;
    uint32_t *frames = w->asked; /* free ones; cleared below */
    uint32_t n_frames = 0;
    const uint32_t E = (uint32_t)s->p->cfg.n_experts;
    for (uint32_t i = 0; i < s->n_slots; i++) now[i].layer = -1;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const struct sl_slot *x = &s->slots[i];
        const uint32_t to =
            x->state == SL_SLOT_READY ? w->at[key_of(s, x->layer, x->expert)] : SL_NO_SLOT;
        if (to == SL_NO_SLOT)
            frames[n_frames++] = x->frame;
        else
            now[to] = *x;
    }
    s->n_empty = 0;
    for (uint32_t i = s->n_slots; i-- > 0;) {
        if (now[i].layer >= 0) continue;
        const uint32_t key = w->held[i];
        clear_slot(&now[i], frames[--n_frames]);
        if (key != SL_NO_KEY && refill) {
            now[i].layer = (int32_t)(key / E);
            now[i].expert = (int32_t)(key % E);
            now[i].state = SL_SLOT_INFLIGHT;
            now[i].refill = true;
            now[i].target = sl_slot_entry(s, &now[i])->bytes;
            continue;
        }
        if (key != SL_NO_KEY) {
            sl_evict_drop(s->evict, i);
            w->at[key] = SL_NO_SLOT;
        }
        s->empty[s->n_empty++] = i;
    }
    /* In place: slots of trunk pieces stand behind, and one of them may be read just now. */
    memcpy(s->slots, now, sizeof *now * s->n_slots);
    memset(w->asked, 0, sizeof *w->asked * s->n_slots);
    w->n_asked = 0;
    const size_t keys = (size_t)s->p->cfg.n_layers * E;
    for (size_t k = 0; k < keys; k++) { /* in file order */
        s->where[k] = w->at[k];
        if (w->at[k] == SL_NO_SLOT || !s->slots[w->at[k]].refill) continue;
        sl_slot_queue_push(s, &s->refill, w->at[k]);
        s->stats.refill_queued++;
    }
}

void sl_store_sweep_end(struct sl_store *s, bool refill)
{
    struct sl_sweep *w = &s->sweep;
    pthread_mutex_lock(&s->lock);
    if (w->on) {
        assert(!s->n_pinned && !s->demand.n && !s->reading);
        const bool lacks = may_lack(s);
        w->on = false;
        w->n_frames = s->n_slots;
        s->stats.lent_bytes = 0;
        if (lacks) {
            settle(s, refill);
        } else { /* a slot for every record: all that was read stays */
            s->n_empty = 0;
            for (uint32_t i = s->n_slots; i-- > 0;)
                if (s->slots[i].state == SL_SLOT_EMPTY) s->empty[s->n_empty++] = i;
        }
        s->refill_alone = true;
        if (s->refill.n) sl_store_wake(s);
    }
    pthread_mutex_unlock(&s->lock);
}

void sl_store_wait_refill(struct sl_store *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->refill.n || s->reading) pthread_cond_wait(&s->landed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}
