/* Slot cache over positioned reads: one arena, one record a slot, one read a record.
 *
 *   slots   [ L3 e17 READY | L3 e402 INFLIGHT | EMPTY | L4 e88 READY pin 1 ]
 *   lookup  where[layer][expert] -> slot
 *   queue   misses in the order asked, served by a few reading threads
 *
 * A request does all deciding under one lock: hits are pinned first, then each miss takes an empty slot
 * or the policy's victim among unpinned READY ones. So hits, misses and evictions follow from the order
 * of requests, and timing only moves the moment a record lands. A slot that is being read is pinned by
 * the request that asked for it and can be neither evicted nor handed out: publishing too early has
 * given other engines wrong tokens.
 *
 * A failed read lands too: the slot keeps what went wrong until someone takes it, then is EMPTY. So
 * nobody waits for a record that will not come, and asking again reads again.
 *
 * With a budget for every record nothing is ever evicted: the same code, with as many slots. */
#define _GNU_SOURCE
#include "offload/store.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/size.h"
#include "offload/evict.h"

#define NO_SLOT      UINT32_MAX
#define READER_STACK ((size_t)256 << 10)
#define READERS_MAX  64

enum state { EMPTY, INFLIGHT, READY, FAILED };
enum cause { CAUSE_ERRNO, CAUSE_SHORT, CAUSE_CRC };

struct slot {
    int32_t layer, expert; /* -1 while EMPTY */
    int32_t pins;
    uint32_t next, prev; /* in a queue */
    uint8_t state;
    uint8_t cause;   /* of FAILED */
    bool wanted;     /* requested and not yet taken */
    bool ahead;      /* brought, or to be brought, by a prefetch; not requested since */
    bool begun;      /* of INFLIGHT: out of its queue */
    bool loose;      /* of INFLIGHT: begun, and nobody has requested it */
    uint32_t detail; /* of FAILED: errno, bytes found, or the crc found */
    uint64_t order;  /* of landing; hits land when they are requested */
};

/* Slots waiting to be read, oldest first. */
struct queue {
    uint32_t head, tail, n;
};

struct sl_store {
    const struct sl_pack *p;
    bool check_crc;
    uint32_t n_slots;
    uint64_t slot_bytes;
    struct sl_arena arena;        /* the slots, n_slots * slot_bytes */
    struct sl_direct_file *files; /* [n_banks] */

    pthread_mutex_t lock;
    pthread_cond_t work;   /* the queue has something, or stop */
    pthread_cond_t landed; /* a read has ended */
    struct slot *slots;    /* [n_slots] */
    uint32_t *where;       /* [n_layers * n_experts] */
    uint32_t *empty;       /* stack of EMPTY slots */
    uint32_t n_empty;
    uint32_t *wanted; /* slots with .wanted, any order */
    uint32_t n_wanted;
    struct queue demand, prefetch;
    uint32_t reading;          /* reads in progress */
    uint32_t prefetch_reading; /* those of them that began as prefetch */
    uint32_t n_loose;          /* slots with .loose: they can be had when they have landed */
    uint32_t n_pinned;         /* slots with pins */
    uint32_t *mark;            /* [n_experts]: number of the last request that named the expert */
    uint32_t request;
    uint64_t order;
    struct sl_evict *evict;
    struct sl_store_stats stats;
    bool stop;

    pthread_t *readers;
    int n_readers;
};

/* ------------------------------------------------------------------ sizes */

static uint64_t total_records(const struct sl_pack *p)
{
    uint64_t n = 0;
    for (int l = 0; l < p->cfg.n_layers; l++)
        if (p->bank_of[l] >= 0) n += (uint64_t)p->cfg.n_experts;
    return n;
}

static uint64_t floor_slots(const struct sl_pack *p)
{
    uint64_t all = total_records(p);
    uint64_t least = (uint64_t)p->cfg.top_k + 1;
    return least < all ? least : all;
}

uint64_t sl_store_slot_bytes(const struct sl_pack *p)
{
    return sl_align_up(p->slot_bytes, SL_PAGE);
}

uint64_t sl_store_floor_bytes(const struct sl_pack *p)
{
    return floor_slots(p) * sl_store_slot_bytes(p);
}

uint64_t sl_store_resident_bytes(const struct sl_pack *p)
{
    return total_records(p) * sl_store_slot_bytes(p);
}

uint64_t sl_store_table_bytes(const struct sl_pack *p, uint64_t n_slots)
{
    uint64_t a_slot = sizeof(struct slot) + 2 * sizeof(uint32_t) + 2 * sizeof(uint32_t);
    uint64_t lookup = (uint64_t)p->cfg.n_layers * (uint64_t)p->cfg.n_experts * sizeof(uint32_t);
    return sizeof(struct sl_store) + n_slots * a_slot + lookup +
           (uint64_t)p->cfg.n_experts * sizeof(uint32_t) +
           (uint64_t)p->n_banks * sizeof(struct sl_direct_file) + SL_STORE_READERS * READER_STACK;
}

/* ------------------------------------------------------------------ reading threads */

static uint8_t *slot_memory(const struct sl_store *s, uint32_t slot)
{
    return s->arena.base + (uint64_t)slot * s->slot_bytes;
}

static const struct sl_bank *bank_of(const struct sl_store *s, const struct slot *x)
{
    return &s->p->banks[s->p->bank_of[x->layer]];
}

/* One record into its slot. The slot is INFLIGHT: nobody else touches its memory, and its layer and
 * expert do not change. */
static enum state read_record(struct sl_store *s, uint32_t slot, enum cause *cause,
                              uint32_t *detail)
{
    const struct slot *x = &s->slots[slot];
    int bank = s->p->bank_of[x->layer];
    const struct sl_bank_entry *e = &s->p->banks[bank].entries[x->expert];
    uint8_t *to = slot_memory(s, slot);
    int64_t got = sl_direct_read(&s->files[bank], to, e->bytes, e->offset);
    if (got < 0) {
        *cause = CAUSE_ERRNO;
        *detail = (uint32_t)-got;
        return FAILED;
    }
    if ((uint64_t)got < e->bytes) {
        *cause = CAUSE_SHORT;
        *detail = (uint32_t)got;
        return FAILED;
    }
    if (s->check_crc) {
        uint32_t crc = sl_crc32(0, to, e->bytes);
        if (crc != e->crc32) {
            *cause = CAUSE_CRC;
            *detail = crc;
            return FAILED;
        }
    }
    return READY;
}

/* ------------------------------------------------------------------ queues, under the lock */

static void queue_push(struct sl_store *s, struct queue *q, uint32_t slot)
{
    struct slot *x = &s->slots[slot];
    x->prev = q->n ? q->tail : NO_SLOT;
    x->next = NO_SLOT;
    if (q->n++)
        s->slots[q->tail].next = slot;
    else
        q->head = slot;
    q->tail = slot;
}

static void queue_remove(struct sl_store *s, struct queue *q, uint32_t slot)
{
    const struct slot *x = &s->slots[slot];
    if (x->prev != NO_SLOT)
        s->slots[x->prev].next = x->next;
    else
        q->head = x->next;
    if (x->next != NO_SLOT)
        s->slots[x->next].prev = x->prev;
    else
        q->tail = x->prev;
    q->n--;
}

/* The next record to read, NO_SLOT when none may begin. A prefetch begins only when no demand waits,
 * and few at a time: a demand that comes later shares the drive with that many records at most. */
static uint32_t begin_read(struct sl_store *s)
{
    uint32_t slot = NO_SLOT;
    if (s->demand.n) {
        slot = s->demand.head;
        queue_remove(s, &s->demand, slot);
    } else if (s->prefetch.n && s->prefetch_reading < SL_STORE_PREFETCH_READS) {
        slot = s->prefetch.head;
        queue_remove(s, &s->prefetch, slot);
        s->prefetch_reading++;
        s->slots[slot].loose = true;
        s->n_loose++;
    }
    if (slot == NO_SLOT) return slot;
    s->slots[slot].begun = true;
    s->reading++;
    return slot;
}

static void not_loose(struct sl_store *s, struct slot *x)
{
    if (x->loose) s->n_loose--;
    x->loose = false;
}

static void make_empty(struct sl_store *s, uint32_t slot);

static void end_read(struct sl_store *s, uint32_t slot, bool prefetch, enum state now,
                     enum cause cause, uint32_t detail)
{
    struct slot *x = &s->slots[slot];
    bool unasked = x->loose;
    x->state = (uint8_t)now;
    x->cause = (uint8_t)cause;
    x->detail = detail;
    x->order = s->order++;
    not_loose(s, x);
    if (now == READY) {
        s->stats.reads++;
        s->stats.bytes_read += bank_of(s, x)->entries[x->expert].bytes;
    } else if (unasked) {
        make_empty(s, slot); /* whoever needs it reads it again, and is told then */
    }
    s->reading--;
    if (prefetch) s->prefetch_reading--;
    pthread_cond_broadcast(&s->landed);
}

static void *reader_main(void *arg)
{
    struct sl_store *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        uint32_t slot = begin_read(s);
        if (slot == NO_SLOT) {
            pthread_cond_wait(&s->work, &s->lock);
            continue;
        }
        bool prefetch = s->slots[slot].loose;
        pthread_mutex_unlock(&s->lock);

        enum cause cause = CAUSE_ERRNO;
        uint32_t detail = 0;
        enum state now = read_record(s, slot, &cause, &detail);

        pthread_mutex_lock(&s->lock);
        end_read(s, slot, prefetch, now, cause, detail);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int start_readers(struct sl_store *s, int n, struct sl_err *err)
{
    pthread_attr_t attr;
    sigset_t all;
    sigset_t old;
    int e = pthread_attr_init(&attr);
    if (e) return sl_fail_errno(err, SL_E_NOMEM, e, NULL, "reading threads");
    /* Signals belong to the threads of the host program. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    (void)pthread_attr_setstacksize(&attr, READER_STACK);
    while (s->n_readers < n && !e) {
        e = pthread_create(&s->readers[s->n_readers], &attr, reader_main, s);
        if (!e) s->n_readers++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return e ? sl_fail_errno(err, SL_E_NOMEM, e, NULL, "reading threads") : 0;
}

/* ------------------------------------------------------------------ open and close */

static int choose_slots(struct sl_store *s, uint64_t budget, struct sl_err *err)
{
    const struct sl_pack *p = s->p;
    uint64_t all = total_records(p);
    uint64_t n = budget ? budget / s->slot_bytes : all;
    if (n > all) n = all;
    if (n < floor_slots(p))
        return sl_fail(err, SL_E_BUDGET, NULL, "expert slots",
                       "%llu bytes hold %llu records of %llu; top-%d routing needs at least %llu "
                       "(%llu bytes)",
                       (unsigned long long)budget, (unsigned long long)n,
                       (unsigned long long)s->slot_bytes, p->cfg.top_k,
                       (unsigned long long)floor_slots(p),
                       (unsigned long long)sl_store_floor_bytes(p));
    if (n < 1 || n > UINT32_MAX - 1)
        return sl_fail(err, SL_E_BUDGET, NULL, "expert slots", "%llu slots cannot be had",
                       (unsigned long long)n);
    s->n_slots = (uint32_t)n;
    return 0;
}

static int make_tables(struct sl_store *s, const struct sl_store_opts *o, struct sl_err *err)
{
    const struct sl_pack *p = s->p;
    size_t n = s->n_slots;
    size_t keys = (size_t)p->cfg.n_layers * (size_t)p->cfg.n_experts;
    int rc = sl_arena_init(&s->arena, (size_t)(n * s->slot_bytes), "expert slots", err);
    if (rc) return rc;
    rc = sl_evict_open(&s->evict, o->evict, s->n_slots, err);
    if (rc) return rc;
    s->slots = calloc(n, sizeof *s->slots);
    s->where = malloc(keys * sizeof *s->where);
    s->empty = malloc(n * sizeof *s->empty);
    s->wanted = malloc(n * sizeof *s->wanted);
    s->mark = calloc((size_t)p->cfg.n_experts, sizeof *s->mark);
    s->files = calloc((size_t)p->n_banks, sizeof *s->files);
    s->readers = calloc(READERS_MAX, sizeof *s->readers);
    if (!s->slots || !s->where || !s->empty || !s->wanted || !s->mark || !s->files || !s->readers)
        return sl_fail(err, SL_E_NOMEM, NULL, "expert slots", "out of memory for %zu slots", n);
    for (size_t k = 0; k < keys; k++) s->where[k] = NO_SLOT;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        s->slots[i].layer = s->slots[i].expert = -1;
        s->empty[i] = s->n_slots - 1 - i; /* slot 0 is taken first */
    }
    s->n_empty = s->n_slots;
    s->stats.direct_io = true;
    for (int b = 0; b < p->n_banks; b++) {
        sl_direct_open(&s->files[b], p->banks[b].path, p->banks[b].fd, o->ops);
        if (!sl_direct_in_effect(&s->files[b])) s->stats.direct_io = false;
    }
    return 0;
}

int sl_store_open(struct sl_store **out, const struct sl_pack *pack,
                  const struct sl_store_opts *opts, struct sl_err *err)
{
    static const struct sl_store_opts defaults;
    const struct sl_store_opts *o = opts ? opts : &defaults;
    *out = NULL;
    if (o->io != SL_IO_AUTO && o->io != SL_IO_PREAD)
        return sl_fail(err, SL_E_ARG, NULL, "io", "%s is not in this build; there is pread",
                       o->io == SL_IO_URING ? "uring" : "mmap");
    int n_readers = o->n_readers ? o->n_readers : SL_STORE_READERS;
    if (n_readers < 1 || n_readers > READERS_MAX)
        return sl_fail(err, SL_E_ARG, NULL, "readers", "%d, allowed are 1 to %d", n_readers,
                       READERS_MAX);
    if (!pack->n_banks)
        return sl_fail(err, SL_E_ARG, NULL, "expert slots", "the pack has no routed experts");
    struct sl_store *s = calloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_E_NOMEM, NULL, "expert slots", "out of memory");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->landed, NULL);
    s->p = pack;
    s->check_crc = o->check_crc;
    s->slot_bytes = sl_store_slot_bytes(pack);
    int rc = choose_slots(s, o->slot_budget_bytes, err);
    if (!rc) rc = make_tables(s, o, err);
    if (!rc) rc = start_readers(s, n_readers, err);
    if (rc) {
        sl_store_close(s);
        return rc;
    }
    s->stats.n_slots = s->n_slots;
    s->stats.slot_bytes = s->slot_bytes;
    s->stats.io = SL_IO_PREAD;
    *out = s;
    return 0;
}

void sl_store_close(struct sl_store *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_readers; i++) pthread_join(s->readers[i], NULL);
    for (int b = 0; s->files && b < s->p->n_banks; b++)
        if (s->files[b].ops) sl_direct_close(&s->files[b]); /* zeroed where not opened */
    sl_evict_close(s->evict);
    sl_arena_free(&s->arena);
    free(s->slots);
    free(s->where);
    free(s->empty);
    free(s->wanted);
    free(s->mark);
    free(s->files);
    free(s->readers);
    pthread_cond_destroy(&s->landed);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* ------------------------------------------------------------------ slots, under the lock */

static size_t key_of(const struct sl_store *s, int layer, int expert)
{
    return (size_t)layer * (size_t)s->p->cfg.n_experts + (size_t)expert;
}

static void pin(struct sl_store *s, struct slot *x)
{
    if (!x->pins++) s->n_pinned++;
}

static void unpin(struct sl_store *s, struct slot *x)
{
    assert(x->pins > 0);
    if (!--x->pins) s->n_pinned--;
}

static void make_empty(struct sl_store *s, uint32_t slot)
{
    struct slot *x = &s->slots[slot];
    assert(!x->pins && !x->wanted && !x->loose);
    if (x->state == READY && x->ahead) s->stats.prefetch_wasted++;
    s->where[key_of(s, x->layer, x->expert)] = NO_SLOT;
    sl_evict_drop(s->evict, slot);
    x->layer = x->expert = -1;
    x->state = EMPTY;
    x->ahead = x->begun = false;
    s->empty[s->n_empty++] = slot;
}

static void want(struct sl_store *s, uint32_t slot)
{
    struct slot *x = &s->slots[slot];
    pin(s, x);
    x->wanted = true;
    s->wanted[s->n_wanted++] = slot;
    sl_evict_use(s->evict, slot, key_of(s, x->layer, x->expert));
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
    return s->slots[slot].state == READY && !s->slots[slot].pins;
}

/* A prefetch must not push out another one that may still prove right. */
static bool may_evict_for_prefetch(void *ctx, uint32_t slot)
{
    const struct sl_store *s = ctx;
    return may_evict(ctx, slot) && !s->slots[slot].ahead;
}

/* Forgets a prefetch that has not begun. */
static void drop_prefetch(struct sl_store *s, uint32_t slot)
{
    queue_remove(s, &s->prefetch, slot);
    s->stats.prefetch_dropped++;
    make_empty(s, slot);
}

static bool free_one(struct sl_store *s, bool prefetch)
{
    if (s->n_empty) return true;
    uint32_t victim = sl_evict_victim(s->evict, prefetch ? may_evict_for_prefetch : may_evict, s);
    if (victim != SL_EVICT_NONE)
        make_empty(s, victim);
    else if (!prefetch && s->prefetch.n)
        drop_prefetch(s, s->prefetch.tail); /* the least likely of the last ones named */
    return s->n_empty > 0;
}

/* An EMPTY slot for (layer, expert), which is INFLIGHT and in no queue then. */
static uint32_t assign_slot(struct sl_store *s, int layer, int expert)
{
    uint32_t slot = s->empty[--s->n_empty];
    struct slot *x = &s->slots[slot];
    x->layer = layer;
    x->expert = expert;
    x->state = INFLIGHT;
    s->where[key_of(s, layer, expert)] = slot;
    return slot;
}

/* The caller has counted: there is a slot to be had. */
static void start_read(struct sl_store *s, int layer, int expert)
{
    bool found = free_one(s, false);
    assert(found);
    (void)found;
    uint32_t slot = assign_slot(s, layer, expert);
    want(s, slot);
    queue_push(s, &s->demand, slot);
}

/* A requested record that has a slot: it is resident, or a prefetch brings it, or was about to. */
static void request_found(struct sl_store *s, uint32_t slot)
{
    struct slot *x = &s->slots[slot];
    if (!x->ahead) {
        s->stats.hits++;
    } else if (x->state == INFLIGHT && !x->begun) {
        queue_remove(s, &s->prefetch, slot);
        queue_push(s, &s->demand, slot);
        s->stats.prefetch_dropped++;
        s->stats.misses++;
    } else {
        s->stats.prefetch_used++;
    }
    x->ahead = false;
    not_loose(s, x);
    want(s, slot);
    if (x->state != INFLIGHT) x->order = s->order++;
}

/* ------------------------------------------------------------------ requests */

/* Everything that can be wrong with a request, before anything changes. *wait: it must wait for a
 * prefetch to land, since the slot is needed for something else. */
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
    uint32_t fresh = 0; /* slots that this request is the first to pin */
    uint32_t loose = 0; /* those of them that are being read already */
    *wait = false;
    s->request++;
    for (int i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= c->n_experts)
            return sl_fail(err, SL_E_ARG, NULL, where, "expert %d of %d", ids[i], c->n_experts);
        uint32_t slot = s->where[key_of(s, layer, ids[i])];
        if (s->mark[ids[i]] == s->request || (slot != NO_SLOT && s->slots[slot].wanted))
            return sl_fail(err, SL_E_ARG, NULL, where, "expert %d is asked for twice", ids[i]);
        s->mark[ids[i]] = s->request;
        if (slot == NO_SLOT || !s->slots[slot].pins) fresh++;
        if (slot != NO_SLOT && s->slots[slot].loose) loose++;
    }
    if (fresh > s->n_slots - s->n_pinned)
        return sl_fail(err, SL_E_ARG, NULL, where, "%u more slots, but %u of %u are in use", fresh,
                       s->n_pinned, s->n_slots);
    *wait = fresh - loose > s->n_slots - s->n_pinned - s->n_loose;
    return 0;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void wait_landing(struct sl_store *s)
{
    double start = now();
    pthread_cond_wait(&s->landed, &s->lock);
    s->stats.stall_seconds += now() - start;
}

int sl_store_request(struct sl_store *s, int layer, const int *ids, int n, struct sl_err *err)
{
    pthread_mutex_lock(&s->lock);
    bool wait;
    int rc = check_request(s, layer, ids, n, &wait, err);
    while (!rc && wait) {
        wait_landing(s);
        rc = check_request(s, layer, ids, n, &wait, err);
    }
    /* Hits first: a miss must not evict what this very request needs. */
    for (int i = 0; i < n && !rc; i++) {
        uint32_t slot = s->where[key_of(s, layer, ids[i])];
        if (slot != NO_SLOT) request_found(s, slot);
    }
    for (int i = 0; i < n && !rc; i++) {
        if (s->where[key_of(s, layer, ids[i])] != NO_SLOT) continue;
        start_read(s, layer, ids[i]);
        s->stats.misses++;
    }
    if (s->demand.n) pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int sl_store_prefetch(struct sl_store *s, int layer, const int *ids, int n)
{
    int queued = 0;
    if (layer < 0 || layer >= s->p->cfg.n_layers || s->p->bank_of[layer] < 0) return 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= s->p->cfg.n_experts) continue;
        if (s->where[key_of(s, layer, ids[i])] != NO_SLOT) continue;
        if (!free_one(s, true)) break;
        uint32_t slot = assign_slot(s, layer, ids[i]);
        s->slots[slot].ahead = true;
        sl_evict_use(s->evict, slot, key_of(s, layer, ids[i]));
        queue_push(s, &s->prefetch, slot);
        s->stats.prefetch_issued++;
        queued++;
    }
    if (queued) pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    return queued;
}

static int read_failure(const struct sl_store *s, const struct slot *x, struct sl_err *err)
{
    const struct sl_bank *b = bank_of(s, x);
    const struct sl_bank_entry *e = &b->entries[x->expert];
    char what[48];
    snprintf(what, sizeof what, "layer %d expert %d", x->layer, x->expert);
    if (x->cause == CAUSE_ERRNO) return sl_fail_errno(err, SL_E_IO, (int)x->detail, b->label, what);
    if (x->cause == CAUSE_SHORT)
        return sl_fail(err, SL_E_PACK, b->label, what,
                       "%u of %u bytes at offset %llu: the file is cut", x->detail, e->bytes,
                       (unsigned long long)e->offset);
    return sl_fail(err, SL_E_PACK, b->label, what,
                   "crc32 %08x, expected %08x; run 'sluice verify PACK --full'", x->detail,
                   e->crc32);
}

/* Hands a landed slot to its taker. */
static int hand_out(struct sl_store *s, uint32_t slot, struct sl_mat out[SL_N_MATS],
                    struct sl_err *err)
{
    struct slot *x = &s->slots[slot];
    unwant(s, slot);
    if (x->state == FAILED) {
        int rc = read_failure(s, x, err);
        unpin(s, x);
        make_empty(s, slot);
        return rc;
    }
    sl_record_views(&bank_of(s, x)->entries[x->expert], slot_memory(s, slot), s->p->cfg.latent_size,
                    s->p->cfg.moe_intermediate_size, out);
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
        uint32_t slot = is_known(s, layer, expert) ? s->where[key_of(s, layer, expert)] : NO_SLOT;
        if (slot == NO_SLOT || !s->slots[slot].wanted) {
            rc = sl_fail(err, SL_E_ARG, NULL, "take", "layer %d expert %d is not asked for", layer,
                         expert);
            break;
        }
        if (s->slots[slot].state != INFLIGHT) {
            rc = hand_out(s, slot, out, err);
            break;
        }
        wait_landing(s);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* The wanted slot of the layer that landed first, NO_SLOT when none has; *open counts all of them. */
static uint32_t first_landed(const struct sl_store *s, int layer, uint32_t *open)
{
    uint32_t best = NO_SLOT;
    *open = 0;
    for (uint32_t i = 0; i < s->n_wanted; i++) {
        const struct slot *x = &s->slots[s->wanted[i]];
        if (x->layer != layer) continue;
        ++*open;
        if (x->state != INFLIGHT && (best == NO_SLOT || x->order < s->slots[best].order))
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
        if (slot != NO_SLOT) {
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
    assert(slot != NO_SLOT);
    unpin(s, &s->slots[slot]);
    pthread_mutex_unlock(&s->lock);
}

void sl_store_cancel(struct sl_store *s)
{
    pthread_mutex_lock(&s->lock);
    /* Reads that have not begun are forgotten. */
    while (s->demand.n) {
        s->slots[s->demand.head].state = FAILED;
        queue_remove(s, &s->demand, s->demand.head);
    }
    while (s->prefetch.n) drop_prefetch(s, s->prefetch.tail);
    while (s->reading) pthread_cond_wait(&s->landed, &s->lock);
    while (s->n_wanted) {
        uint32_t slot = s->wanted[s->n_wanted - 1];
        struct slot *x = &s->slots[slot];
        unwant(s, slot);
        unpin(s, x);
        if (x->state == FAILED) make_empty(s, slot);
    }
    pthread_mutex_unlock(&s->lock);
}

int sl_store_ready(const struct sl_store *s, int layer)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&s->lock; /* logically const */
    int n = 0;
    pthread_mutex_lock(lock);
    for (uint32_t i = 0; i < s->n_wanted; i++) {
        const struct slot *x = &s->slots[s->wanted[i]];
        n += x->layer == layer && x->state != INFLIGHT;
    }
    pthread_mutex_unlock(lock);
    return n;
}

int sl_store_max_request(const struct sl_store *s)
{
    uint32_t n = (uint32_t)s->p->cfg.n_experts;
    return (int)(s->n_slots < n ? s->n_slots : n);
}

void sl_store_get_stats(const struct sl_store *s, struct sl_store_stats *out)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&s->lock; /* logically const */
    pthread_mutex_lock(lock);
    *out = s->stats;
    pthread_mutex_unlock(lock);
}
