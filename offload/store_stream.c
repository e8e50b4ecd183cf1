/* The ring of trunk pieces inside a store (see stream.h).
 *
 *   pieces   [ READY | READY | INFLIGHT | queued | EMPTY ]    slots[n_slots + i] is the slot of piece i
 *              tail: taken next          head: read next
 *
 * A piece is a slot like any other to those who read: it stands in a queue, goes to a drive, is checked
 * and lands. It is filled in ring order and emptied in ring order, so where it lies in the file follows
 * from a cursor (part, row) alone, and nothing is looked up.
 *
 * The crc32 of a tensor is that of all its bytes. Pieces are checked by those who read them, each gets
 * the crc of its own rows, and the reader combines them in order. */
#include "offload/stream.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/file.h"
#include "base/size.h"
#include "offload/store_parts.h"

uint64_t sl_stream_least_piece(uint64_t group_bytes)
{
    return sl_align_up(group_bytes + SL_PAGE - 1, SL_PAGE);
}

uint64_t sl_stream_table_bytes(uint32_t n_pieces)
{
    return sizeof(struct sl_stream) +
           n_pieces * (uint64_t)(sizeof(struct sl_ring_piece) + sizeof(struct sl_slot));
}

static int n_rows_of(const struct sl_stream_part *p)
{
    return (int)p->tensor->shape[0];
}

static uint64_t row_bytes_of(const struct sl_stream_part *p)
{
    return p->tensor->bytes / (uint64_t)p->tensor->shape[0];
}

/* Rows of each piece of a part but the last: an even cut, in whole groups. */
static int rows_a_piece(const struct sl_stream *r, const struct sl_stream_part *p)
{
    const uint64_t group = (uint64_t)p->group;
    const uint64_t rows = (uint64_t)n_rows_of(p);
    const uint64_t most = (r->piece_bytes - (SL_PAGE - 1)) / (row_bytes_of(p) * group) * group;
    const uint64_t n = (rows + most - 1) / most;
    const uint64_t each = (rows + n - 1) / n;
    return (int)((each + group - 1) / group * group);
}

/* ------------------------------------------------------------------ open and close */

static int check_part(const struct sl_stream *r, const struct sl_stream_part *p, struct sl_err *err)
{
    const struct sl_tensor *t = p->tensor;
    if (t->n_dims != 2 || t->shape[0] < 1 || t->shape[0] > INT32_MAX || p->group < 1 ||
        t->shape[0] % p->group)
        return sl_fail(err, SL_E_ARG, "trunk.bin", t->name, "no matrix that can be streamed");
    const uint64_t least = sl_stream_least_piece(row_bytes_of(p) * (uint64_t)p->group);
    if (least > r->piece_bytes)
        return sl_fail(err, SL_E_ARG, "trunk.bin", t->name,
                       "%d rows need a piece of %llu bytes, the ring has pieces of %u", p->group,
                       (unsigned long long)least, r->piece_bytes);
    return 0;
}

int sl_stream_open(struct sl_store *s, const struct sl_stream_opts *o, struct sl_err *err)
{
    if (o->piece_bytes % SL_PAGE || !o->piece_bytes || o->piece_bytes > SL_PIECE_BYTES ||
        o->n_pieces < 2 || o->n_pieces > SL_STREAM_PIECES_MAX || o->n_parts < 1)
        return sl_fail(err, SL_E_ARG, NULL, "trunk ring", "%u pieces of %u bytes, %d parts",
                       o->n_pieces, o->piece_bytes, o->n_parts);
    struct sl_stream *r = calloc(1, sizeof *r);
    if (!r) return sl_fail(err, SL_E_NOMEM, NULL, "trunk ring", "out of memory");
    s->stream = r;
    r->parts = o->parts;
    r->n_parts = o->n_parts;
    r->pass = (struct sl_stream_pass){o->n_parts, 1, 1};
    r->piece_bytes = o->piece_bytes;
    r->n_pieces = o->n_pieces;
    for (int i = 0; i < o->n_parts; i++) {
        int rc = check_part(r, &o->parts[i], err);
        if (rc) return rc;
    }
    r->pieces = calloc(r->n_pieces, sizeof *r->pieces);
    if (!r->pieces) return sl_fail(err, SL_E_NOMEM, NULL, "trunk ring", "out of memory");
    int rc = sl_arena_init(&r->arena, (size_t)r->n_pieces * r->piece_bytes, "trunk ring", err);
    if (!rc) (void)madvise(r->arena.base, r->arena.bytes, MADV_HUGEPAGE);
    return rc;
}

void sl_stream_close(struct sl_stream *r)
{
    if (!r) return;
    sl_arena_free(&r->arena);
    free(r->pieces);
    free(r);
}

/* ------------------------------------------------------------------ the ring, under the lock */

static uint32_t tail_slot(const struct sl_store *s)
{
    return s->n_slots + s->stream->tail;
}

/* A part is queued whole: on to the next one, or back to the first of its segment. */
static void next_part(struct sl_stream *r)
{
    const int n = r->pass.n_parts;
    const int segment = r->parts[r->next_part].segment;
    const bool last = segment == r->parts[n - 1].segment;
    r->next_row = 0;
    if (++r->next_part < n && r->parts[r->next_part].segment == segment) return;
    if (++r->next_round < (last ? r->pass.last_rounds : r->pass.rounds)) {
        while (r->next_part > 0 && r->parts[r->next_part - 1].segment == segment) r->next_part--;
        return;
    }
    r->next_round = 0;
    if (r->next_part >= n) r->next_part = 0;
}

/* Puts the next piece of the cursor into line. */
static void queue_next(struct sl_store *s)
{
    struct sl_stream *r = s->stream;
    if (r->next_part >= r->pass.n_parts) r->next_part = r->next_row = r->next_round = 0;
    const struct sl_stream_part *p = &r->parts[r->next_part];
    const uint32_t i = (r->tail + r->n_open++) % r->n_pieces;
    struct sl_ring_piece *piece = &r->pieces[i];
    const int rows = n_rows_of(p);
    int n = rows_a_piece(r, p);
    if (n > rows - r->next_row) n = rows - r->next_row;
    const uint64_t at = p->tensor->offset + (uint64_t)r->next_row * row_bytes_of(p);
    *piece = (struct sl_ring_piece){.offset = at - at % SL_PAGE,
                                    .skip = (uint32_t)(at % SL_PAGE),
                                    .part = r->next_part,
                                    .row0 = r->next_row,
                                    .n_rows = n};
    struct sl_slot *x = &s->slots[s->n_slots + i];
    *x = (struct sl_slot){.layer = -1, .expert = -1, .state = SL_SLOT_INFLIGHT};
    x->target = piece->skip + (uint32_t)((uint64_t)n * row_bytes_of(p));
    sl_slot_queue_push(s, &s->streamed, s->n_slots + i);
    r->next_row += n;
    if (r->next_row == rows) next_part(r);
}

static void fill(struct sl_store *s)
{
    const struct sl_stream *r = s->stream;
    while (r->n_open < r->n_pieces) queue_next(s);
    sl_store_wake(s);
}

static void wait_piece(struct sl_store *s, uint32_t slot)
{
    if (s->slots[slot].state != SL_SLOT_INFLIGHT) return;
    double start = sl_store_now();
    while (s->slots[slot].state == SL_SLOT_INFLIGHT) pthread_cond_wait(&s->landed, &s->lock);
    s->stats.stream_stall_seconds += sl_store_now() - start;
}

static void empty_tail(struct sl_store *s)
{
    struct sl_stream *r = s->stream;
    s->slots[tail_slot(s)].state = SL_SLOT_EMPTY;
    r->tail = (r->tail + 1) % r->n_pieces;
    r->n_open--;
}

/* Drops pieces until the tail is the one that starts at (part, row0); with none, reading goes on there. */
static void seek(struct sl_store *s, int part, int row0)
{
    struct sl_stream *r = s->stream;
    while (r->n_open) {
        const struct sl_ring_piece *p = &r->pieces[r->tail];
        const uint32_t slot = tail_slot(s);
        if (p->part == part && p->row0 == row0) return;
        if (s->slots[slot].state == SL_SLOT_INFLIGHT && !s->slots[slot].begun)
            sl_slot_queue_remove(s, &s->streamed, slot);
        else
            wait_piece(s, slot);
        empty_tail(s);
        s->stats.stream_dropped++;
    }
    r->next_part = part;
    r->next_row = row0;
    r->next_round = 0;
}

void sl_stream_begin(struct sl_store *s, const struct sl_stream_pass *pass)
{
    struct sl_stream *r = s->stream;
    if (!r) return;
    assert(pass->n_parts >= 0 && pass->n_parts <= r->n_parts && !r->taken);
    pthread_mutex_lock(&s->lock);
    r->pass = *pass;
    if (pass->n_parts) {
        seek(s, 0, 0);
        fill(s);
    }
    pthread_mutex_unlock(&s->lock);
}

/* ------------------------------------------------------------------ strips */

static int piece_failure(const struct sl_store *s, const struct sl_slot *x,
                         const struct sl_stream_part *p, struct sl_err *err)
{
    const char *file = s->sources[s->first_source[s->p->n_banks]].name;
    const struct sl_ring_piece *piece = &s->stream->pieces[x - s->slots - s->n_slots];
    if (x->cause == SL_READ_ERRNO)
        return sl_fail_errno(err, SL_E_IO, (int)x->detail, file, p->tensor->name);
    return sl_fail(err, SL_E_PACK, file, p->tensor->name,
                   "%u of %u bytes at offset %llu: the file is cut", x->detail, x->target,
                   (unsigned long long)piece->offset);
}

/* The crc of all rows so far; with the last ones, whether it is the tensor's. */
static int add_crc(struct sl_store *s, const struct sl_slot *x, const struct sl_ring_piece *piece,
                   const struct sl_stream_part *p, struct sl_err *err)
{
    struct sl_stream *r = s->stream;
    if (!s->check_crc) return 0;
    r->crc = piece->row0
                 ? sl_crc32_combine(r->crc, x->detail, (uint64_t)piece->n_rows * row_bytes_of(p))
                 : x->detail;
    if (piece->row0 + piece->n_rows < n_rows_of(p) || r->crc == p->tensor->crc32) return 0;
    return sl_fail(err, SL_E_PACK, s->sources[s->first_source[s->p->n_banks]].name, p->tensor->name,
                   "crc32 %08x, expected %08x; run 'sluice verify PACK --full'", r->crc,
                   p->tensor->crc32);
}

int sl_stream_take(struct sl_store *s, int part, int row0, struct sl_strip *out, struct sl_err *err)
{
    struct sl_stream *r = s->stream;
    if (!r || part < 0 || part >= r->n_parts || row0 < 0 || r->taken)
        return sl_fail(err, SL_E_ARG, NULL, "trunk ring", "part %d, row %d cannot be taken", part,
                       row0);
    const struct sl_stream_part *p = &r->parts[part];
    pthread_mutex_lock(&s->lock);
    const struct sl_ring_piece *piece = &r->pieces[r->tail];
    if (!r->n_open || piece->part != part || piece->row0 != row0) {
        seek(s, part, row0);
        fill(s);
        piece = &r->pieces[r->tail];
    }
    wait_piece(s, tail_slot(s));
    const struct sl_slot *x = &s->slots[tail_slot(s)];
    int rc =
        x->state == SL_SLOT_FAILED ? piece_failure(s, x, p, err) : add_crc(s, x, piece, p, err);
    if (rc) {
        empty_tail(s);
    } else {
        r->taken = true;
        *out = (struct sl_strip){.rows = sl_slot_memory(s, tail_slot(s)) + piece->skip,
                                 .row0 = piece->row0,
                                 .n_rows = piece->n_rows};
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void sl_stream_put(struct sl_store *s)
{
    pthread_mutex_lock(&s->lock);
    assert(s->stream->taken);
    s->stream->taken = false;
    empty_tail(s);
    fill(s);
    pthread_mutex_unlock(&s->lock);
}
