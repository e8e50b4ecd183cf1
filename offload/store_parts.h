/* Inside the store: what its parts share. Nobody else includes this.
 *
 *   store.c        slots, requests, prefetches: who gets a slot, under one lock
 *   store_open.c   sizes, tables, bank files and the drives they lie on
 *   store_sweep.c  what is different in prefill: the ring, lent memory, the refill afterwards
 *   store_read.c   which record is read next and from where; reading threads; what failed reads do
 *   store_uring.c  one thread that keeps an io_uring full
 *   store_stream.c the ring through which trunk matrices stream (stream.h)
 *
 *   request -> demand queue \                               / READY
 *   stream          -> queue --- begin_read -> drive -> check -
 *   prefetch, refill -> ----/  (one thread a read, or io_uring)  \ FAILED, or another try
 *
 * A drive is a folder with bank files. A bank may lie in several of them; each read goes where it is
 * expected to end first. */
#ifndef SL_OFFLOAD_STORE_PARTS_H
#define SL_OFFLOAD_STORE_PARTS_H

#include <stdatomic.h>
#include <pthread.h>

#include "base/arena.h"
#include "offload/evict.h"
#include "offload/store.h"
#include "offload/stream.h"

#define SL_NO_SLOT           UINT32_MAX
#define SL_NO_KEY            UINT32_MAX
#define SL_STORE_STACK       ((size_t)256 << 10)
#define SL_STORE_THREADS_MAX 64
#define SL_STORE_CHECKERS    3  /* threads that check records which io_uring brought */
#define SL_STORE_COPIES_MAX  32 /* of one bank */
#define SL_STREAM_PIECES_MAX 4096
/* Trunk pieces in flight at a time: enough for a drive, and what a demand read finds in its way. */
#define SL_STREAM_READS 3

enum sl_slot_state { SL_SLOT_EMPTY, SL_SLOT_INFLIGHT, SL_SLOT_READY, SL_SLOT_FAILED };
enum sl_read_cause { SL_READ_ERRNO, SL_READ_SHORT, SL_READ_CRC };

struct sl_slot {
    int32_t layer, expert; /* -1 while EMPTY */
    int32_t pins;
    uint32_t frame;      /* which piece of the arena is its memory */
    uint32_t stamp;      /* of its last entry among the swept ones */
    uint32_t next, prev; /* in a queue */
    uint32_t source;     /* of the last read */
    uint32_t tried;      /* bit i: source i of the bank has failed */
    uint32_t detail;     /* of FAILED: errno, bytes found, or the crc found */
    uint32_t have;       /* bytes of the record that are there: none, its base planes, or all */
    uint32_t target;     /* and those that should be, once all reads have landed */
    uint32_t from,
        upto;       /* of the read in progress, or the last: bytes [from, upto) of the record */
    uint32_t asked; /* bytes that the last request asked for: what its views show */
    uint8_t state;
    uint8_t cause;  /* of FAILED */
    bool wanted;    /* requested and not yet taken */
    bool ahead;     /* brought, or to be brought, by a prefetch; not requested since */
    bool guarded;   /* in the list of those */
    bool refill;    /* of INFLIGHT: read again after a sweep, and nobody has requested it */
    bool begun;     /* of INFLIGHT: out of its queue */
    bool loose;     /* of INFLIGHT: begun, and nobody has requested it */
    bool prefetch;  /* of INFLIGHT: begun as a prefetch, whoever waits for it now */
    bool again;     /* its one second try has begun */
    uint64_t order; /* of landing; hits land when they are requested */
};

/* Slots in line, oldest first; through next and prev. */
struct sl_slot_queue {
    uint32_t head, tail, n;
};

/* One file that holds a bank, or the trunk. */
struct sl_source {
    struct sl_direct_file file;
    const char *name; /* for messages, the pack's string */
    uint32_t drive;
};

struct sl_drive {
    struct sl_store_drive stats;
    uint32_t in_flight, prefetch_in_flight;
    uint32_t failed_in_a_row;
    uint64_t in_flight_bytes;
    double busy_since;
    double recent_bytes, recent_seconds; /* of busy time, old times fading */
};

/* A record that the sweep has passed; stale when the slot's stamp is another. */
struct sl_swept {
    double score;
    uint32_t slot, stamp;
};

/* See store_sweep.c. */
struct sl_sweep {
    bool on;
    int layer;              /* in progress, or the last one */
    uint32_t n_frames;      /* of the arena that hold records; those behind them are lent */
    uint64_t n_records;     /* of the pack */
    struct sl_slot *spare;  /* [n_slots] for putting slots in another order */
    struct sl_swept *swept; /* heap [2 * n_slots], least score first */
    uint32_t n_swept;
    double *score;          /* [n_experts] of `layer`, at the end of the chunk */
    unsigned char *touched; /* [n_slots] frames that were ever written */
    uint32_t n_touched;
    /* What the policy holds while a sweep is on. */
    uint32_t *held;   /* [n_slots] key, or SL_NO_KEY */
    uint32_t *at;     /* [n_keys] slot, or SL_NO_SLOT */
    uint32_t *unused; /* stack of slots without a key */
    uint32_t n_unused;
    uint32_t *asked; /* [n_slots] last step that asked for it */
    uint32_t n_asked;
};

/* How one attempt ended. */
struct sl_read_end {
    enum sl_slot_state state; /* READY or FAILED */
    enum sl_read_cause cause;
    uint32_t detail;
};

/* Where a piece of the ring comes from: rows [row0, row0 + n_rows) of a part. */
struct sl_ring_piece {
    uint64_t offset; /* in the file, of the first byte that is read: on a page */
    uint32_t skip;   /* bytes before the first row */
    int32_t part, row0, n_rows;
};

struct sl_stream {
    const struct sl_stream_part *parts;
    int n_parts;
    struct sl_stream_pass pass; /* in progress */
    struct sl_arena arena;
    uint32_t piece_bytes, n_pieces;
    struct sl_ring_piece *pieces; /* [n_pieces]; slots[n_slots + i] is the slot of pieces[i] */
    uint32_t tail, n_open;        /* n_open pieces from tail on are queued, read or landed */
    uint32_t in_flight;
    int next_part, next_row, next_round; /* where the next piece starts */
    uint32_t crc;                        /* of the rows that were taken of the part in progress */
    bool taken;                          /* the tail is in the reader's hands */
};

struct sl_uring;

struct sl_store {
    const struct sl_pack *p;
    bool check_crc;
    atomic_uchar
        *seen; /* [n_banks][n_experts] which kinds of its reads were sound (check_first); NULL */
    enum sl_io io;  /* in use; never AUTO */
    uint32_t depth; /* records in flight a drive */
    uint32_t piece_bytes;
    uint32_t n_slots;
    uint64_t slot_bytes;
    struct sl_arena arena;     /* the slots, n_slots * slot_bytes */
    int n_nodes;               /* that the arena is spread over */
    struct sl_source *sources; /* [n_sources], those of a bank side by side */
    uint32_t n_sources;
    uint32_t *first_source; /* [n_banks + 2]; the trunk's stands behind the banks' */
    struct sl_drive *drives;
    uint32_t n_drives;

    pthread_mutex_t lock;
    pthread_cond_t work;   /* a queue has something, or stop */
    pthread_cond_t landed; /* a read has ended */
    pthread_cond_t check;  /* `unchecked` has something, or stop */
    struct sl_slot *slots; /* [n_slots], then those of the ring */
    uint32_t *where;       /* [n_layers * n_experts] */
    uint32_t *empty;       /* stack of EMPTY slots */
    uint32_t n_empty;
    uint32_t *wanted; /* slots with .wanted, any order */
    uint32_t n_wanted;
    uint32_t *guarded; /* slots of prefetches whose layer was not asked for since */
    uint32_t n_guarded;
    struct sl_slot_queue demand, streamed, prefetch, refill, unchecked;
    uint32_t n_refilling; /* slots with .loose and .refill */
    bool refill_held;     /* a request waits for those to land: none may begin */
    bool refill_alone;    /* no request since the sweep ended: the drive is theirs */
    struct sl_sweep sweep;
    uint32_t reading;  /* records begun and not ended; pieces of the trunk do not count */
    uint32_t n_loose;  /* slots with .loose: they can be had when they have landed */
    uint32_t n_pinned; /* slots with pins */
    uint32_t *mark;    /* [n_experts]: number of the last request that named the expert */
    uint32_t request;
    uint64_t order;
    struct sl_evict *evict;
    struct sl_stream *stream; /* NULL: the whole trunk is held */
    struct sl_store_stats stats;
    bool stop;

    pthread_t threads[SL_STORE_THREADS_MAX];
    uint32_t n_threads;
    struct sl_uring *uring;
};

/* ---- store.c, under the lock */
void sl_store_make_empty(struct sl_store *s, uint32_t slot);
/* Of a FAILED slot: what it had before the read is still good; without anything it becomes EMPTY. */
void sl_store_give_up(struct sl_store *s, uint32_t slot);
/* Forgets prefetches that have not begun; none is guarded any more. */
void sl_store_drop_prefetches(struct sl_store *s);

/* ---- store_sweep.c; open and close without the lock. open: -1 when memory is out. */
uint64_t sl_sweep_bytes(uint64_t n_slots, uint64_t n_keys, uint64_t n_experts);
int sl_sweep_open(struct sl_store *s);
void sl_sweep_close(struct sl_store *s);
/* Makes an EMPTY slot if one can be had; false otherwise. */
bool sl_sweep_free_one(struct sl_store *s);
/* A slot has lost a pin: when nobody holds it any more the sweep has passed it. */
void sl_sweep_put(struct sl_store *s, uint32_t slot);

/* ---- store_read.c; all but the thread's own work under the lock */
void sl_slot_queue_push(struct sl_store *s, struct sl_slot_queue *q, uint32_t slot);
void sl_slot_queue_remove(struct sl_store *s, struct sl_slot_queue *q, uint32_t slot);
/* Tells whoever reads that a queue has something. */
void sl_store_wake(struct sl_store *s);
/* Takes the next record to read out of its queue, SL_NO_SLOT when none may begin now. Its source is
 * chosen, its drive charged. */
uint32_t sl_store_begin_read(struct sl_store *s);
/* The drive is done with the slot's record. */
void sl_store_drive_done(struct sl_store *s, uint32_t slot, bool ok);
/* The attempt is over: publishes the record, or its failure, or queues another try. */
void sl_store_end_read(struct sl_store *s, uint32_t slot, const struct sl_read_end *end);
void sl_store_not_loose(struct sl_store *s, struct sl_slot *x);
/* What the bytes of the last read must have as crc32. */
uint32_t sl_slot_crc32(const struct sl_store *s, const struct sl_slot *x);
/* Without the lock: what was read into the slot against its crc, when that is asked for. */
void sl_store_check(const struct sl_store *s, uint32_t slot, struct sl_read_end *end);
/* store_stream.c: fills s->stream, also on failure. */
int sl_stream_open(struct sl_store *s, const struct sl_stream_opts *o, struct sl_err *err);
void sl_stream_close(struct sl_stream *r);

int sl_store_start_threads(struct sl_store *s, void *(*body)(void *), uint32_t n,
                           struct sl_err *err);
void *sl_store_reader(void *store);
void *sl_store_checker(void *store);

/* ---- store_uring.c. open: SL_E_DEVICE when the build or the kernel has none, with the reason in err.
 * The thread's body ends after `stop` when all reads have landed. */
int sl_uring_open(struct sl_uring **out, struct sl_store *s, struct sl_err *err);
void sl_uring_close(struct sl_uring *u);
void sl_uring_wake(struct sl_uring *u);
void *sl_uring_thread(void *store);

static inline bool sl_slot_is_piece(const struct sl_store *s, uint32_t slot)
{
    return slot >= s->n_slots;
}

static inline uint8_t *sl_slot_memory(const struct sl_store *s, uint32_t slot)
{
    if (sl_slot_is_piece(s, slot))
        return s->stream->arena.base + (uint64_t)(slot - s->n_slots) * s->stream->piece_bytes;
    return s->arena.base + (uint64_t)s->slots[slot].frame * s->slot_bytes;
}

/* A frame is about to be written. */
static inline void sl_sweep_touch(struct sl_store *s, uint32_t frame)
{
    s->sweep.n_touched += !s->sweep.touched[frame];
    s->sweep.touched[frame] = 1;
}

static inline const struct sl_bank *sl_slot_bank(const struct sl_store *s, const struct sl_slot *x)
{
    return &s->p->banks[s->p->bank_of[x->layer]];
}

static inline const struct sl_bank_entry *sl_slot_entry(const struct sl_store *s,
                                                        const struct sl_slot *x)
{
    return &sl_slot_bank(s, x)->entries[x->expert];
}

/* Where in its file the slot's first byte comes from. */
static inline uint64_t sl_slot_offset(const struct sl_store *s, uint32_t slot)
{
    if (sl_slot_is_piece(s, slot)) return s->stream->pieces[slot - s->n_slots].offset;
    return sl_slot_entry(s, &s->slots[slot])->offset;
}

/* Bytes of the next read of the slot, and of the one in progress. */
static inline uint32_t sl_slot_missing(const struct sl_slot *x)
{
    return x->target - x->have;
}

static inline uint32_t sl_slot_reading(const struct sl_slot *x)
{
    return x->upto - x->from;
}

double sl_store_now(void); /* monotonic seconds */

#endif
