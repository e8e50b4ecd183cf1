/* Which record is read next, from which drive, and what becomes of reads that fail.
 *
 * Demand goes first, in the order asked; pieces of a streamed trunk next, a few at a time, for they were
 * known long before (stream.h). A prefetch begins only when neither waits, and what is read again after a
 * sweep only when no prefetch does, one a drive at a time (refills have the drive for themselves until the
 * first request): a demand read that comes later shares its drive with one such record at most. A record that lies
 * on several drives goes where it is expected to end first, (bytes in flight + its own) / measured
 * speed; while the best drive is full it waits, unless a slower one would still be done earlier. A naive
 * half and half gains little when one drive is slower than the other.
 *
 * What failed is tried on the next drive that holds the bank. On the last one EIO is tried once more;
 * only then is it an error. A prefetch that fails is forgotten. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "base/file.h"
#include "base/size.h"
#include "offload/store_parts.h"

#define FADE_SECONDS  1.0 /* of busy time: what is older counts half, then a quarter */
#define GUESSED_SPEED 1e9 /* bytes a second, before anything was measured */
#define FAILURES_MAX  3   /* in a row, until a drive is avoided where another has the bank */

double sl_store_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ------------------------------------------------------------------ queues */

void sl_slot_queue_push(struct sl_store *s, struct sl_slot_queue *q, uint32_t slot)
{
    struct sl_slot *x = &s->slots[slot];
    x->prev = q->n ? q->tail : SL_NO_SLOT;
    x->next = SL_NO_SLOT;
    if (q->n++)
        s->slots[q->tail].next = slot;
    else
        q->head = slot;
    q->tail = slot;
}

static void push_front(struct sl_store *s, struct sl_slot_queue *q, uint32_t slot)
{
    struct sl_slot *x = &s->slots[slot];
    x->prev = SL_NO_SLOT;
    x->next = q->n ? q->head : SL_NO_SLOT;
    if (q->n++)
        s->slots[q->head].prev = slot;
    else
        q->tail = slot;
    q->head = slot;
}

void sl_slot_queue_remove(struct sl_store *s, struct sl_slot_queue *q, uint32_t slot)
{
    const struct sl_slot *x = &s->slots[slot];
    if (x->prev != SL_NO_SLOT)
        s->slots[x->prev].next = x->next;
    else
        q->head = x->next;
    if (x->next != SL_NO_SLOT)
        s->slots[x->next].prev = x->prev;
    else
        q->tail = x->prev;
    q->n--;
}

void sl_store_wake(struct sl_store *s)
{
    if (s->uring)
        sl_uring_wake(s->uring);
    else
        pthread_cond_broadcast(&s->work);
}

/* ------------------------------------------------------------------ drives */

static double speed_of(const struct sl_store *s, const struct sl_drive *d)
{
    double best = 0;
    if (d->recent_seconds > 0 && d->recent_bytes > 0) return d->recent_bytes / d->recent_seconds;
    for (uint32_t i = 0; i < s->n_drives;
         i++) /* unknown: as fast as the best, so it gets its try */
        if (s->drives[i].stats.bytes_per_second > best) best = s->drives[i].stats.bytes_per_second;
    return best > 0 ? best : GUESSED_SPEED;
}

/* The bank that a slot's record is of; the trunk counts as the bank after the last. */
static int bank_of(const struct sl_store *s, const struct sl_slot *x)
{
    return x->layer < 0 ? s->p->n_banks : s->p->bank_of[x->layer];
}

/* The source for the record, false when its best drive can take no more just now. */
static bool choose_source(const struct sl_store *s, const struct sl_slot *x, bool prefetch,
                          uint32_t *source)
{
    int bank = bank_of(s, x);
    uint64_t bytes = sl_slot_missing(x);
    uint32_t first = s->first_source[bank];
    uint32_t best = SL_NO_SLOT;
    double best_time = 0;
    for (uint32_t i = first; i < s->first_source[bank + 1]; i++) {
        if (x->tried >> (i - first) & 1) continue;
        const struct sl_drive *d = &s->drives[s->sources[i].drive];
        double t = (double)(d->in_flight_bytes + bytes) / speed_of(s, d);
        if (d->failed_in_a_row >= FAILURES_MAX) t *= 1e6; /* a last resort from now on */
        if (best != SL_NO_SLOT && t >= best_time) continue;
        best = i;
        best_time = t;
    }
    const struct sl_drive *d = &s->drives[s->sources[best].drive];
    *source = best;
    return d->in_flight < s->depth && (!prefetch || (x->refill && s->refill_alone) ||
                                       d->prefetch_in_flight < SL_STORE_PREFETCH_READS);
}

static void charge_drive(struct sl_store *s, const struct sl_slot *x)
{
    struct sl_drive *d = &s->drives[s->sources[x->source].drive];
    if (!d->in_flight++) d->busy_since = sl_store_now();
    d->prefetch_in_flight += x->prefetch;
    d->in_flight_bytes += sl_slot_reading(x);
}

void sl_store_drive_done(struct sl_store *s, uint32_t slot, bool ok)
{
    const struct sl_slot *x = &s->slots[slot];
    struct sl_drive *d = &s->drives[s->sources[x->source].drive];
    uint64_t bytes = sl_slot_reading(x);
    double t = sl_store_now();
    d->in_flight--;
    if (sl_slot_is_piece(s, slot)) s->stream->in_flight--;
    d->prefetch_in_flight -= x->prefetch;
    d->in_flight_bytes -= bytes;
    d->stats.busy_seconds += t - d->busy_since;
    d->recent_seconds += t - d->busy_since;
    d->busy_since = t;
    if (ok) {
        d->recent_bytes += (double)bytes;
        d->stats.bytes_per_second = d->recent_seconds > 0 ? d->recent_bytes / d->recent_seconds : 0;
        d->stats.bytes += bytes;
        d->stats.reads++;
        d->failed_in_a_row = 0;
    } else {
        d->stats.errors++;
        d->failed_in_a_row++;
    }
    if (d->recent_seconds > FADE_SECONDS) {
        d->recent_seconds /= 2;
        d->recent_bytes /= 2;
    }
    /* Another thread may have waited for this drive; io_uring's own thread looks by itself. */
    if (!s->uring && (s->demand.n || s->streamed.n || s->prefetch.n || s->refill.n))
        pthread_cond_signal(&s->work);
}

/* ------------------------------------------------------------------ begin and end */

static uint32_t first_that_may(const struct sl_store *s, const struct sl_slot_queue *q,
                               bool prefetch, uint32_t *source)
{
    uint32_t slot = q->n ? q->head : SL_NO_SLOT;
    while (slot != SL_NO_SLOT && !choose_source(s, &s->slots[slot], prefetch, source))
        slot = s->slots[slot].next;
    return slot;
}

static bool all_drives_full(const struct sl_store *s)
{
    uint32_t full = 0;
    for (uint32_t d = 0; d < s->n_drives; d++) full += s->drives[d].in_flight >= s->depth;
    return full == s->n_drives;
}

uint32_t sl_store_begin_read(struct sl_store *s)
{
    uint32_t source = 0;
    bool prefetch = false;
    if (s->stop || all_drives_full(s)) return SL_NO_SLOT;
    uint32_t slot = first_that_may(s, &s->demand, false, &source);
    if (slot != SL_NO_SLOT) {
        sl_slot_queue_remove(s, &s->demand, slot);
    } else if (s->streamed.n && s->stream->in_flight < SL_STREAM_READS &&
               choose_source(s, &s->slots[s->streamed.head], false, &source)) {
        slot = s->streamed.head;
        sl_slot_queue_remove(s, &s->streamed, slot);
        s->stream->in_flight++;
    } else if (!s->demand.n && !s->streamed.n) {
        struct sl_slot_queue *q = s->prefetch.n || s->refill_held ? &s->prefetch : &s->refill;
        slot = first_that_may(s, q, true, &source);
        if (slot == SL_NO_SLOT) return slot;
        sl_slot_queue_remove(s, q, slot);
        prefetch = true;
    }
    if (slot == SL_NO_SLOT) return slot;
    struct sl_slot *x = &s->slots[slot];
    x->begun = true;
    s->n_loose += prefetch;
    s->n_refilling += prefetch && x->refill;
    if (!sl_slot_is_piece(s, slot)) sl_sweep_touch(s, x->frame);
    x->prefetch = x->loose = prefetch;
    x->source = source;
    x->from = x->have;
    x->upto = x->target;
    s->reading += !sl_slot_is_piece(s, slot);
    charge_drive(s, x);
    return slot;
}

void sl_store_not_loose(struct sl_store *s, struct sl_slot *x)
{
    if (x->loose) s->n_loose--;
    if (x->loose && x->refill) s->n_refilling--;
    x->loose = false;
}

/* Whether there is something left to try; the record is back in line then. */
static bool try_again(struct sl_store *s, uint32_t slot, const struct sl_read_end *end)
{
    struct sl_slot *x = &s->slots[slot];
    int bank = bank_of(s, x);
    uint32_t first = s->first_source[bank];
    uint32_t n = s->first_source[bank + 1] - first;
    uint32_t all = (uint32_t)((UINT64_C(1) << n) - 1);
    uint32_t tried = x->tried | 1u << (x->source - first);
    if (tried != all) {
        x->tried = tried;
        s->stats.failovers++;
    } else if (end->cause == SL_READ_ERRNO && end->detail == EIO && !x->again) {
        x->again = true;
        s->stats.retries++;
    } else {
        return false;
    }
    x->begun = x->prefetch = false;
    push_front(s, sl_slot_is_piece(s, slot) ? &s->streamed : &s->demand, slot);
    sl_store_wake(s);
    return true;
}

void sl_store_end_read(struct sl_store *s, uint32_t slot, const struct sl_read_end *end)
{
    struct sl_slot *x = &s->slots[slot];
    bool unasked = x->loose;
    if (x->refill && end->state == SL_SLOT_READY) s->stats.refill_bytes += sl_slot_reading(x);
    s->reading -= !sl_slot_is_piece(s, slot);
    if (end->state == SL_SLOT_FAILED && !unasked && try_again(s, slot, end)) {
        pthread_cond_broadcast(&s->landed); /* whoever cancels counts the reads */
        return;
    }
    if (end->state == SL_SLOT_READY && sl_slot_is_piece(s, slot)) {
        s->stats.stream_reads++;
        s->stats.stream_bytes += sl_slot_reading(x);
        x->have = x->upto;
    } else if (end->state == SL_SLOT_READY) {
        s->stats.reads++;
        s->stats.bytes_read += sl_slot_reading(x);
        x->have = x->upto;
        if (x->have < x->target) { /* more was asked for while a prefetch brought the base planes */
            x->begun = x->prefetch = x->again = false;
            x->tried = 0;
            s->stats.upgrades++;
            push_front(s, &s->demand, slot);
            sl_store_wake(s);
            pthread_cond_broadcast(&s->landed);
            return;
        }
    }
    x->state = (uint8_t)end->state;
    x->cause = (uint8_t)end->cause;
    x->detail = end->detail;
    x->order = s->order++;
    sl_store_not_loose(s, x);
    x->refill = false;
    if (end->state == SL_SLOT_FAILED && unasked)
        sl_store_make_empty(s, slot); /* whoever needs it reads it again, and is told then */
    pthread_cond_broadcast(&s->landed);
}

uint32_t sl_slot_crc32(const struct sl_store *s, const struct sl_slot *x)
{
    const struct sl_bank_entry *e = sl_slot_entry(s, x);
    if (x->from) return sl_record_fine_crc32(e);
    return x->upto < e->bytes ? e->base_crc32 : e->crc32;
}

void sl_store_check(const struct sl_store *s, uint32_t slot, struct sl_read_end *end)
{
    const struct sl_slot *x = &s->slots[slot];
    if (end->state != SL_SLOT_READY || !s->check_crc) return;
    if (sl_slot_is_piece(s, slot)) { /* a part of a tensor: whoever takes it knows the whole */
        const uint32_t skip = s->stream->pieces[slot - s->n_slots].skip;
        end->detail = sl_crc32(0, sl_slot_memory(s, slot) + skip, x->upto - skip);
        return;
    }
    const struct sl_bank_entry *e = sl_slot_entry(s, x);
    /* Refinement, base planes, or all: each has a checksum of its own. */
    unsigned char kind = x->from ? 1 : x->upto < e->bytes ? 2 : 4;
    atomic_uchar *seen = NULL;
    if (s->seen)
        seen = &s->seen[(size_t)s->p->bank_of[x->layer] * (size_t)s->p->cfg.n_experts +
                        (size_t)x->expert];
    if (seen && atomic_load_explicit(seen, memory_order_relaxed) & kind) return;
    uint32_t crc = sl_crc32(0, sl_slot_memory(s, slot) + x->from, sl_slot_reading(x));
    if (crc == sl_slot_crc32(s, x)) {
        if (seen) atomic_fetch_or_explicit(seen, kind, memory_order_relaxed);
        return;
    }
    *end = (struct sl_read_end){SL_SLOT_FAILED, SL_READ_CRC, crc};
}

/* ------------------------------------------------------------------ a thread a read */

/* Through the page cache: a mapping of the record's range, so that what is mapped never adds up. The
 * size is looked at first, since a page beyond the end of a file is a signal, not an error. */
static int64_t read_mapped(const struct sl_direct_file *f, void *to, size_t n, uint64_t off)
{
    struct stat st;
    if (fstat(f->plain_fd, &st)) return -errno;
    uint64_t size = (uint64_t)st.st_size;
    size_t have = off >= size ? 0 : size - off < n ? (size_t)(size - off) : n;
    if (!have) return 0;
    void *map = mmap(NULL, have, PROT_READ, MAP_SHARED, f->plain_fd, (off_t)off);
    if (map == MAP_FAILED) return -errno;
    memcpy(to, map, have);
    munmap(map, have);
    return (int64_t)have;
}

/* A record, or its missing planes, into its slot. The slot is INFLIGHT: nobody else touches that memory,
 * and layer, expert, source and range do not change. */
static struct sl_read_end read_record(const struct sl_store *s, uint32_t slot)
{
    const struct sl_slot *x = &s->slots[slot];
    const uint64_t at = sl_slot_offset(s, slot) + x->from;
    const uint32_t bytes = sl_slot_reading(x);
    const struct sl_direct_file *f = &s->sources[x->source].file;
    uint8_t *to = sl_slot_memory(s, slot) + x->from;
    int64_t got =
        s->io == SL_IO_MMAP ? read_mapped(f, to, bytes, at) : sl_direct_read(f, to, bytes, at);
    if (got < 0) return (struct sl_read_end){SL_SLOT_FAILED, SL_READ_ERRNO, (uint32_t)-got};
    if ((uint64_t)got < bytes)
        return (struct sl_read_end){SL_SLOT_FAILED, SL_READ_SHORT, x->from + (uint32_t)got};
    return (struct sl_read_end){SL_SLOT_READY, SL_READ_ERRNO, 0};
}

void *sl_store_reader(void *store)
{
    struct sl_store *s = store;
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        uint32_t slot = sl_store_begin_read(s);
        if (slot == SL_NO_SLOT) {
            pthread_cond_wait(&s->work, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        struct sl_read_end end = read_record(s, slot);
        pthread_mutex_lock(&s->lock);
        sl_store_drive_done(s, slot, end.state == SL_SLOT_READY);
        if (s->check_crc) {
            pthread_mutex_unlock(&s->lock);
            sl_store_check(s, slot, &end);
            pthread_mutex_lock(&s->lock);
        }
        sl_store_end_read(s, slot, &end);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Checks what io_uring has brought, so that its thread never computes. */
void *sl_store_checker(void *store)
{
    struct sl_store *s = store;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->unchecked.n && !s->stop) pthread_cond_wait(&s->check, &s->lock);
        if (!s->unchecked.n) break;
        uint32_t slot = s->unchecked.head;
        sl_slot_queue_remove(s, &s->unchecked, slot);
        pthread_mutex_unlock(&s->lock);
        struct sl_read_end end = {SL_SLOT_READY, SL_READ_ERRNO, 0};
        sl_store_check(s, slot, &end);
        pthread_mutex_lock(&s->lock);
        sl_store_end_read(s, slot, &end);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int sl_store_start_threads(struct sl_store *s, void *(*body)(void *), uint32_t n,
                           struct sl_err *err)
{
    pthread_attr_t attr;
    sigset_t all;
    sigset_t old;
    int e = pthread_attr_init(&attr);
    if (e) return sl_fail_errno(err, SL_E_NOMEM, e, NULL, "reading threads");
    /* Signals belong to the threads of the host program. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    (void)pthread_attr_setstacksize(&attr, SL_STORE_STACK);
    for (uint32_t i = 0; i < n && s->n_threads < SL_STORE_THREADS_MAX && !e; i++) {
        e = pthread_create(&s->threads[s->n_threads], &attr, body, s);
        if (!e) s->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return e ? sl_fail_errno(err, SL_E_NOMEM, e, NULL, "reading threads") : 0;
}
