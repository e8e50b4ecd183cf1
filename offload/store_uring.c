/* Reads through io_uring: one thread keeps all misses of a layer in flight.
 *
 *   record   [ piece | piece | piece | rest ]     submitted together, READY when all have landed
 *
 * Pieces keep a drive's own queue filled even when a single record is missing, and let it work on all
 * records at once. The thread begins what the queues hold, submits, sleeps until something lands or
 * someone wakes it (a read on an eventfd in the same ring), and hands whole records on; it never
 * computes, checks are done by others. What a single read may do (stop early, be interrupted, want
 * another alignment) is dealt with piece by piece. */
#define _GNU_SOURCE
#include "offload/store_parts.h"

#ifndef SL_HAVE_URING

int sl_uring_open(struct sl_uring **out, struct sl_store *s, struct sl_err *err)
{
    (void)s;
    *out = NULL;
    return sl_fail(err, SL_E_DEVICE, NULL, NULL, "this build is without liburing");
}

void sl_uring_close(struct sl_uring *u)
{
    (void)u;
}

void sl_uring_wake(struct sl_uring *u)
{
    (void)u;
}

void *sl_uring_thread(void *store)
{
    return store;
}

#else

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/size.h"

enum { ENTRIES_MAX = 4096, TRIES_MAX = 1000, ASK_AGAIN_NS = 500000 };

/* A part of a record, until it has landed as a whole. */
struct piece {
    struct reading *of;
    uint64_t offset; /* in the file, of its next byte */
    uint8_t *to;
    uint32_t bytes; /* still missing */
    uint32_t asked; /* of the read in flight */
    uint32_t tries; /* in a row that brought nothing */
    bool plain;     /* goes through the plain descriptor from here on */
    bool later;     /* a test holds it back; `got` waits */
    ssize_t got;
};

struct reading {
    uint32_t slot;
    uint32_t open; /* pieces that have not landed */
    struct sl_read_end end;
    struct piece *pieces; /* [pieces_max] */
    struct reading *next_free;
};

struct sl_uring {
    struct sl_store *s;
    struct io_uring ring;
    bool ring_open;
    int wake_fd;
    uint64_t wake_count; /* where the read on wake_fd lands */
    uint32_t pieces_max, piece_bytes;
    uint32_t n_readings, n_open, n_later;
    struct reading *readings; /* [n_readings] */
    struct piece *pieces;
    struct reading *unused;
};

/* ------------------------------------------------------------------ open and close */

static int open_ring(struct sl_uring *u, struct sl_err *err)
{
    uint64_t entries = (uint64_t)u->n_readings * u->pieces_max + 1;
    struct io_uring_params par = {.flags = IORING_SETUP_CQSIZE};
    par.cq_entries = (uint32_t)(entries + 1); /* rounded up by the kernel */
    int e = io_uring_queue_init_params((unsigned)(entries < 1024 ? entries : 1024), &u->ring, &par);
    if (e) return sl_fail_errno(err, SL_E_DEVICE, -e, NULL, "io_uring");
    u->ring_open = true;
    u->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (u->wake_fd < 0) return sl_fail_errno(err, SL_E_DEVICE, errno, NULL, "eventfd");
    return 0;
}

int sl_uring_open(struct sl_uring **out, struct sl_store *s, struct sl_err *err)
{
    *out = NULL;
    struct sl_uring *u = calloc(1, sizeof *u);
    if (!u) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "out of memory");
    u->s = s;
    u->wake_fd = -1;
    u->n_readings = s->depth * s->n_drives;
    /* As many pieces as asked for, unless all of them together would be too many. */
    u->piece_bytes = s->piece_bytes;
    uint64_t longest = s->slot_bytes;
    if (s->stream && s->stream->piece_bytes > longest) longest = s->stream->piece_bytes;
    while ((sl_align_up(longest, u->piece_bytes) / u->piece_bytes) * u->n_readings > ENTRIES_MAX)
        u->piece_bytes *= 2;
    u->pieces_max = (uint32_t)(sl_align_up(longest, u->piece_bytes) / u->piece_bytes);
    u->readings = calloc(u->n_readings, sizeof *u->readings);
    u->pieces = calloc((size_t)u->n_readings * u->pieces_max, sizeof *u->pieces);
    if (!u->readings || !u->pieces) {
        sl_uring_close(u);
        return sl_fail(err, SL_E_NOMEM, NULL, NULL, "out of memory");
    }
    int rc = open_ring(u, err);
    if (rc) {
        sl_uring_close(u);
        return rc;
    }
    for (uint32_t i = 0; i < u->n_readings; i++) {
        struct reading *r = &u->readings[i];
        r->pieces = u->pieces + (size_t)i * u->pieces_max;
        r->next_free = u->unused;
        u->unused = r;
    }
    *out = u;
    return 0;
}

void sl_uring_close(struct sl_uring *u)
{
    if (!u) return;
    if (u->ring_open) io_uring_queue_exit(&u->ring);
    if (u->wake_fd >= 0) close(u->wake_fd);
    free(u->readings);
    free(u->pieces);
    free(u);
}

void sl_uring_wake(struct sl_uring *u)
{
    uint64_t one = 1;
    ssize_t n = write(u->wake_fd, &one, sizeof one); /* fails only when many wakes are pending */
    (void)n;
}

/* ------------------------------------------------------------------ submitting */

static struct io_uring_sqe *next_sqe(struct sl_uring *u)
{
    struct io_uring_sqe *q = io_uring_get_sqe(&u->ring);
    while (!q) { /* the submission side is full: hand it over */
        io_uring_submit(&u->ring);
        q = io_uring_get_sqe(&u->ring);
    }
    return q;
}

static void submit_piece(struct sl_uring *u, struct piece *p)
{
    const struct sl_source *src = &u->s->sources[u->s->slots[p->of->slot].source];
    bool direct = sl_direct_in_effect(&src->file) && !p->plain;
    struct io_uring_sqe *q = next_sqe(u);
    p->asked = direct ? (uint32_t)sl_align_up(p->bytes, SL_PAGE) : p->bytes;
    io_uring_prep_read(q, direct ? src->file.direct_fd : src->file.plain_fd, p->to, p->asked,
                       p->offset);
    io_uring_sqe_set_data(q, p);
}

static void arm_wake(struct sl_uring *u)
{
    struct io_uring_sqe *q = next_sqe(u);
    io_uring_prep_read(q, u->wake_fd, &u->wake_count, sizeof u->wake_count, 0);
    io_uring_sqe_set_data(q, NULL);
}

static void begin(struct sl_uring *u, uint32_t slot)
{
    struct sl_store *s = u->s;
    const uint64_t offset = sl_slot_offset(s, slot);
    struct reading *r = u->unused;
    u->unused = r->next_free;
    u->n_open++;
    r->slot = slot;
    r->open = 0;
    r->end = (struct sl_read_end){SL_SLOT_READY, SL_READ_ERRNO, 0};
    const struct sl_slot *x = &s->slots[slot];
    for (uint32_t at = x->from; at < x->upto; at += u->piece_bytes) {
        struct piece *p = &r->pieces[r->open++];
        uint32_t left = x->upto - at;
        *p = (struct piece){.of = r,
                            .offset = offset + at,
                            .to = sl_slot_memory(s, slot) + at,
                            .bytes = left < u->piece_bytes ? left : u->piece_bytes};
        submit_piece(u, p);
    }
}

/* ------------------------------------------------------------------ landing */

/* The worst of a record's pieces decides: an error, or the first byte that is missing. */
static void note_failure(struct reading *r, enum sl_read_cause cause, uint32_t detail)
{
    struct sl_read_end *e = &r->end;
    if (e->state == SL_SLOT_FAILED &&
        (e->cause == SL_READ_ERRNO || (cause == SL_READ_SHORT && e->detail <= detail)))
        return;
    *e = (struct sl_read_end){SL_SLOT_FAILED, cause, detail};
}

static void record_landed(struct sl_uring *u, struct reading *r)
{
    struct sl_store *s = u->s;
    uint32_t slot = r->slot;
    const struct sl_slot *x = &s->slots[slot];
    const struct sl_direct_file *f = &s->sources[x->source].file;
    if (!sl_direct_in_effect(f))
        (void)posix_fadvise(f->plain_fd, (off_t)(sl_slot_offset(s, slot) + x->from),
                            (off_t)sl_slot_reading(x), POSIX_FADV_DONTNEED);
    r->next_free = u->unused;
    u->unused = r;
    u->n_open--;
    pthread_mutex_lock(&s->lock);
    sl_store_drive_done(s, slot, r->end.state == SL_SLOT_READY);
    if (s->check_crc && r->end.state == SL_SLOT_READY) {
        sl_slot_queue_push(s, &s->unchecked, slot);
        pthread_cond_signal(&s->check);
    } else {
        sl_store_end_read(s, slot, &r->end);
    }
    pthread_mutex_unlock(&s->lock);
}

static void piece_landed(struct sl_uring *u, struct piece *p)
{
    if (--p->of->open == 0) record_landed(u, p->of);
}

static void piece_failed(struct sl_uring *u, struct piece *p, enum sl_read_cause cause,
                         uint32_t detail)
{
    note_failure(p->of, cause, detail);
    piece_landed(u, p);
}

/* What a read brought: on to the next bytes, another try, or the end of the piece. */
static void take_result(struct sl_uring *u, struct piece *p, ssize_t got)
{
    const struct sl_store *s = u->s;
    const struct sl_slot *x = &s->slots[p->of->slot];
    bool direct = sl_direct_in_effect(&s->sources[x->source].file) && !p->plain;
    bool again = got == -EINTR || got == -EAGAIN;
    if (got == -EINVAL && direct) { /* stricter alignment than a page */
        p->plain = again = true;
    }
    if (again && ++p->tries < TRIES_MAX) {
        submit_piece(u, p);
        return;
    }
    if (got < 0) {
        piece_failed(u, p, SL_READ_ERRNO, (uint32_t)-got);
        return;
    }
    if (got == 0) { /* the end of the file */
        piece_failed(u, p, SL_READ_SHORT, (uint32_t)(p->offset - sl_slot_offset(s, p->of->slot)));
        return;
    }
    p->tries = 0;
    if ((uint64_t)got >= p->bytes) {
        piece_landed(u, p);
        return;
    }
    /* A direct read goes on at a whole page; inside one, the plain descriptor reads it again. */
    uint32_t have = (uint32_t)got;
    if (direct && have % SL_PAGE) {
        have -= have % SL_PAGE;
        p->plain = true;
    }
    p->offset += have;
    p->to += have;
    p->bytes -= have;
    submit_piece(u, p);
}

static void hear(struct sl_uring *u, struct piece *p, ssize_t got, bool again)
{
    const struct sl_read_ops *ops = u->s->sources[u->s->slots[p->of->slot].source].file.ops;
    ssize_t use = got;
    if (ops->landed) use = ops->landed(ops->ctx, p->to, p->asked, (off_t)p->offset, got, again);
    if (p->later) u->n_later--;
    p->later = use == SL_READ_LATER;
    if (p->later) {
        u->n_later++;
        p->got = got;
        return;
    }
    take_result(u, p, use);
}

static void ask_later_ones(struct sl_uring *u)
{
    for (uint32_t i = 0; i < u->n_readings && u->n_later; i++)
        for (uint32_t k = 0; k < u->pieces_max && u->n_later; k++) {
            struct piece *p = &u->readings[i].pieces[k];
            if (p->later) hear(u, p, p->got, true);
        }
}

static void reap(struct sl_uring *u)
{
    struct io_uring_cqe *c;
    while (!io_uring_peek_cqe(&u->ring, &c)) {
        struct piece *p = io_uring_cqe_get_data(c);
        ssize_t got = c->res;
        io_uring_cqe_seen(&u->ring, c);
        if (p)
            hear(u, p, got, false);
        else
            arm_wake(u);
    }
}

void *sl_uring_thread(void *store)
{
    struct sl_store *s = store;
    struct sl_uring *u = s->uring;
    arm_wake(u);
    for (;;) {
        pthread_mutex_lock(&s->lock);
        uint32_t slot;
        while (u->unused && (slot = sl_store_begin_read(s)) != SL_NO_SLOT) begin(u, slot);
        bool stop = s->stop;
        pthread_mutex_unlock(&s->lock);
        if (stop && !u->n_open) return NULL;
        struct io_uring_cqe *c;
        io_uring_submit(&u->ring);
        if (u->n_later) {
            struct __kernel_timespec t = {.tv_nsec = ASK_AGAIN_NS};
            (void)io_uring_wait_cqe_timeout(&u->ring, &c, &t);
            ask_later_ones(u);
        } else {
            (void)io_uring_wait_cqe(&u->ring, &c);
        }
        reap(u);
    }
}

#endif
