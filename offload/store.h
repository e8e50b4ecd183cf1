/* Expert store: where the records of routed experts come from.
 *
 * The engine asks for a layer's experts, computes on each as it lands, and gives it back. A slot holds
 * one record; it is EMPTY, INFLIGHT or READY, READY only after a full, length-checked read, and is
 * never evicted while pinned. A missing or corrupt expert is an error naming layer, expert and file:
 * never a silent zero.
 *
 * What is resident and what is evicted is decided when a request is made, from the order of requests
 * alone. Several requests may be open at once (consecutive layers) as long as their records fit the
 * slots together. Layers that share a bank file are held apart: a record belongs to (layer, expert).
 *
 * A record with two plane sets (p36) may be asked for by its base planes alone: one shorter read into the
 * same slot. Asked for whole later, only the refinement is read. What a request asked for is what its
 * views show, whatever the slot holds, so residency never changes a result.
 *
 * Threads: request, take, take_any and put may be called from several threads; cancel, close and the
 * sweep calls while no other call is in progress. */
#ifndef SL_OFFLOAD_STORE_H
#define SL_OFFLOAD_STORE_H

#include "offload/direct_file.h"
#include "offload/pack.h"

struct sl_store;
struct sl_numa_ops;    /* numa_place.h */
struct sl_stream_opts; /* stream.h */

enum sl_io { SL_IO_AUTO = 0, SL_IO_URING, SL_IO_PREAD, SL_IO_MMAP };

struct sl_store_opts {
    /* Memory for slots; at least top_k + 1 records. 0: all records of the pack. */
    uint64_t slot_budget_bytes;
    /* How records are read. AUTO is URING where the kernel lets us, else PREAD; MMAP goes through the
     * page cache and is there for comparison. */
    enum sl_io io;
    bool check_crc;       /* check each record's crc32 when it is read */
    bool check_first;     /* with check_crc: the first time alone that the session reads it */
    int n_readers;        /* records in flight a drive, 0: the default of the method */
    uint32_t piece_bytes; /* of one io_uring read, a multiple of 4096; 0: SL_STORE_PIECE */
    const char *evict;    /* policy name (evict.h), NULL: the default */
    const struct sl_stream_opts
        *stream;                    /* trunk matrices that stream beside the experts; NULL: none */
    const struct sl_read_ops *ops;  /* NULL: as the kernel does it; tests put faults here */
    const struct sl_numa_ops *numa; /* NULL: the machine's nodes; tests make some up */
};

/* Records in flight a drive. A reading thread each with preads: 12 to 17 MB keep a drive busy at depth
 * 2 to 4. io_uring takes all misses of a layer at once. */
#define SL_STORE_READERS 4
#define SL_STORE_DEPTH   16
/* Prefetches in progress at a time, a drive: a demand read waits behind one record at most. */
#define SL_STORE_PREFETCH_READS 1
/* One record is read in pieces of at most this size with io_uring. */
#define SL_STORE_PIECE (4u << 20)

/* A folder that holds banks. */
struct sl_store_drive {
    const char *dir; /* valid while the store is open */
    uint64_t reads, bytes;
    uint64_t errors;         /* attempts that failed */
    double bytes_per_second; /* measured lately, 0: not yet */
    double busy_seconds;     /* with a read in flight */
};
#define SL_STORE_DRIVES 16 /* told apart; further folders count with the last */

struct sl_store_stats {
    /* Of the experts requested: resident before the step thanks to an earlier request; thanks to a
     * prefetch (there, or on its way); neither, so that the request had to start the read. */
    uint64_t hits, prefetch_used, misses;
    uint64_t prefetch_issued;   /* queued by sl_store_prefetch */
    uint64_t prefetch_wasted;   /* read, and evicted before anyone asked */
    uint64_t prefetch_dropped;  /* not begun when it was asked for, or gave way to demand */
    uint64_t upgrades;          /* reads of a refinement alone, the base planes being there */
    uint64_t bytes_read, reads; /* failed reads are not counted */
    uint64_t bytes_used;        /* of records or base planes that requests asked for */
    uint64_t retries;           /* second tries after EIO */
    uint64_t failovers;         /* tries on another drive that holds the bank */
    double stall_seconds;       /* the engine waited for a read of an expert */
    uint64_t stream_reads, stream_bytes, stream_dropped; /* of pieces of the trunk */
    double stream_stall_seconds;                         /* the engine waited for one */
    /* After a sweep: records to be read again, those that gave way before their turn, bytes that came. */
    uint64_t refill_queued, refill_dropped, refill_bytes;
    uint64_t lent_bytes, lent_peak_bytes; /* of the slots' memory, now and at most */
    uint64_t n_slots, slot_bytes;
    uint64_t slots_touched; /* that ever held a record, or were lent: memory really taken */
    bool direct_io;         /* O_DIRECT was really in effect, on every bank */
    enum sl_io io;          /* in use */
    char io_note[96];       /* why AUTO did not take io_uring, else empty */
    int depth;              /* records in flight a drive */
    int n_drives;
    struct sl_store_drive drives[SL_STORE_DRIVES];
};
const char *sl_io_name(enum sl_io io); /* "uring", "pread", "mmap", "auto" */

/* Sizes for planners, all for this pack: one slot; the fewest slots that open accepts; a slot for
 * every record; and what a store of n slots takes beside them (tables, stacks of the readers). */
uint64_t sl_store_slot_bytes(const struct sl_pack *pack);
uint64_t sl_store_floor_bytes(const struct sl_pack *pack);
uint64_t sl_store_resident_bytes(const struct sl_pack *pack);
uint64_t sl_store_table_bytes(const struct sl_pack *pack, uint64_t n_slots);

/* The pack must outlive the store. SL_E_BUDGET when the floor does not fit; SL_E_ARG for a way of
 * reading that this build or kernel lacks. Slots are allocated here, once. */
int sl_store_open(struct sl_store **out, const struct sl_pack *pack,
                  const struct sl_store_opts *opts, struct sl_err *err);
void sl_store_close(struct sl_store *s);

/* Declares what the coming step of `layer` needs, all at once: hits are pinned, misses start. The same
 * ids must then be taken with sl_store_take and put back. n <= sl_store_max_request(); ids distinct
 * and not asked for already. Slots pinned by earlier requests count: SL_E_ARG when no room is left,
 * and nothing has changed then. */
int sl_store_request(struct sl_store *s, int layer, const int *ids, int n, struct sl_err *err);
/* The same, with whole[i] false where the base planes of ids[i] will do; whole NULL: all of everything. A
 * record of one plane set is always read whole. */
int sl_store_request_planes(struct sl_store *s, int layer, const int *ids, const bool *whole, int n,
                            struct sl_err *err);
/* Names likely experts of a coming step, best first. Their reads queue behind all demand; slots that are
 * pinned, requested or guarded are never evicted for them: a prefetch is guarded until its layer is
 * requested. What is resident or in
 * flight already is skipped, and so is the rest once no slot may be taken. Returns how many reads were
 * queued. A prefetch that fails leaves no trace: the request reads again, and reports. */
int sl_store_prefetch(struct sl_store *s, int layer, const int *ids, int n);
/* The same, the first n_whole of them whole and the others by their base planes. */
int sl_store_prefetch_planes(struct sl_store *s, int layer, const int *ids, int n, int n_whole);
/* Experts of the layer's open request that can be taken now without waiting. */
int sl_store_ready(const struct sl_store *s, int layer);
/* Waits for one expert of the request; views stay valid until sl_store_put. On failure (SL_E_IO,
 * SL_E_PACK) the expert counts as taken and put, and may be asked for again. */
int sl_store_take(struct sl_store *s, int layer, int expert, struct sl_mat out[SL_N_MATS],
                  struct sl_err *err);
/* Any expert of the layer's open request that is READY and not yet taken, or the first to land: lets
 * compute follow arrival. Returns its id through *expert, also on failure. SL_E_ARG when all are
 * taken. */
int sl_store_take_any(struct sl_store *s, int layer, int *expert, struct sl_mat out[SL_N_MATS],
                      struct sl_err *err);
void sl_store_put(struct sl_store *s, int layer, int expert);
/* Drops what was requested and not taken (after an error or an interrupt); waits for the reads that
 * have begun, and keeps what they bring. What was taken must still be put. */
void sl_store_cancel(struct sl_store *s);

/* ---- prefill (store_sweep.c)
 *
 *   sweep_begin; for each chunk { for each layer { sweep_layer; requests ... } sweep_routes } sweep_end
 *
 * While a sweep is on, a chunk's experts pass through the slots once, and what lies ahead of the sweep
 * stays. begin also lends the memory of the last slots, at least lent_bytes of it, aligned to 4096, to the
 * caller, until end: whole slots, and top_k + 1 are left (SL_E_BUDGET), fewer by which sl_store_max_request
 * falls. It waits for reads in progress; SL_E_ARG while experts are requested or held. */
int sl_store_sweep_begin(struct sl_store *s, uint64_t lent_bytes, void **lent, struct sl_err *err);
/* Who wants what in the coming layer: ids [n_tokens][top_k]. Steers what stays in memory, no more; does
 * nothing outside a sweep. */
void sl_store_sweep_layer(struct sl_store *s, int layer, const int *ids, int n_tokens);
/* The chunk is done: routes [n_layers][n_tokens][top_k], rows of layers without experts are not read. The
 * policy is told of them token by token, as if they had been decoded. */
void sl_store_sweep_routes(struct sl_store *s, const uint16_t *routes, int n_tokens);
/* Takes lent memory back; the slots hold what they would after decoding the same tokens. What is missing
 * is read behind all else, and counts as resident from now on; without refill (after an error) its slots
 * are empty. Nothing may be requested or held. */
void sl_store_sweep_end(struct sl_store *s, bool refill);
/* Waits until nothing is being read or about to be. */
void sl_store_wait_refill(struct sl_store *s);
/* Puts what is resident, or on its way, first; otherwise the order stays. whole (may be NULL) moves along.
 * Returns how many those are. */
int sl_store_sort_resident(struct sl_store *s, int layer, int *ids, bool *whole, int n);

/* Memory nodes that the slots are spread over, and the one that holds an address of a taken record. */
int sl_store_nodes(const struct sl_store *s);
int sl_store_node_of(const struct sl_store *s, const void *address);

/* Largest n that sl_store_request accepts. */
int sl_store_max_request(const struct sl_store *s);
void sl_store_get_stats(const struct sl_store *s, struct sl_store_stats *out);

#endif
