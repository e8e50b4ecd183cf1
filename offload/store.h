/* Expert store: where the records of routed experts come from.
 *
 * The engine asks for a layer's experts, computes on each as it lands, and gives it back. A slot holds
 * one record; it is EMPTY, INFLIGHT or READY, READY only after a full, length-checked read, and is
 * never evicted while pinned. A missing or corrupt expert is an error naming layer, expert and file:
 * never a silent zero. */
#ifndef SL_OFFLOAD_STORE_H
#define SL_OFFLOAD_STORE_H

#include "offload/pack.h"

struct sl_store;

enum sl_io { SL_IO_AUTO = 0, SL_IO_URING, SL_IO_PREAD, SL_IO_MMAP };

struct sl_store_opts {
    uint64_t slot_budget_bytes; /* memory for slots; at least top_k + 1 records. 0: all records of the pack */
    enum sl_io io;
    bool check_crc; /* check each record's crc32 when it is read */
};

struct sl_store_stats {
    uint64_t hits, misses;       /* resident before the step, or not */
    uint64_t bytes_read, reads;
    double stall_seconds;        /* the engine waited for a read */
    uint64_t n_slots, slot_bytes;
    bool direct_io;              /* O_DIRECT was really in effect */
    enum sl_io io;
};

/* The pack must outlive the store. SL_E_BUDGET when the floor does not fit. */
int sl_store_open(struct sl_store **out, const struct sl_pack *pack, const struct sl_store_opts *opts, struct sl_err *err);
void sl_store_close(struct sl_store *s);

/* Declares what the coming step of `layer` needs, all at once: hits are pinned, misses start. The same
 * ids must then be taken with sl_store_take and put back. n <= slots; ids distinct. */
int sl_store_request(struct sl_store *s, int layer, const int *ids, int n, struct sl_err *err);
/* Waits for one expert of the request; views stay valid until sl_store_put. */
int sl_store_take(struct sl_store *s, int layer, int expert, struct sl_mat out[SL_N_MATS], struct sl_err *err);
/* Any expert of the open request that is READY and not yet taken, or the first to land: lets compute
 * follow arrival. Returns its id through *expert. */
int sl_store_take_any(struct sl_store *s, int layer, int *expert, struct sl_mat out[SL_N_MATS], struct sl_err *err);
void sl_store_put(struct sl_store *s, int layer, int expert);
/* Drops what was requested and not taken (after an error or an interrupt). */
void sl_store_cancel(struct sl_store *s);

/* Largest n that sl_store_request accepts. */
int sl_store_max_request(const struct sl_store *s);
void sl_store_get_stats(const struct sl_store *s, struct sl_store_stats *out);

#endif
