/* The trunk on its way through memory: matrices that are not held, in the order in which they are used.
 *
 *   trunk.bin  [ q of layer 0 | k | v | ... | lm_head ]      parts, in the order of use
 *                  |   |   |
 *   ring       [ rows 0-1100 | rows 1100-2200 | ... ]        pieces of whole rows, read ahead of use
 *
 * A ring of equal pieces belongs to a store: the same queues, threads and drives serve it. Reads of
 * pieces come after demand for experts and before look-ahead. Demand first, because an expert is asked
 * for when it is needed while a piece was known long before; look-ahead last, because a piece is certain.
 * A piece begins as soon as the drive has room and no demand waits for it, so neither starves: demand of
 * a layer ends, and pieces end when the ring is full.
 *
 * One reader follows a pass (a token, or a chunk of a prompt): parts in order, rows in order, one strip
 * at a time. Whoever leaves the order (a pass that failed, a head that was not wanted) is followed: what
 * was read in vain is dropped. Order is a matter of speed, never of results. */
#ifndef SL_OFFLOAD_STREAM_H
#define SL_OFFLOAD_STREAM_H

#include "offload/pack.h"

struct sl_store;

/* A matrix of trunk.bin, rows one after the other. */
struct sl_stream_part {
    const struct sl_tensor *tensor; /* two dimensions, the pack's */
    int32_t group;                  /* rows that a piece never cuts; divides the rows */
    int32_t segment; /* parts of one segment lie side by side and are passed again together */
};

struct sl_stream_opts {
    const struct sl_stream_part *parts; /* [n_parts], valid while the store is open */
    int n_parts;
    uint32_t piece_bytes; /* a multiple of 4096, at most SL_PIECE_BYTES */
    uint32_t n_pieces;    /* 2 at least */
};

/* Bytes a piece must have to hold a group of rows wherever in a page it starts. */
uint64_t sl_stream_least_piece(uint64_t group_bytes);
/* Tables beside the ring itself. */
uint64_t sl_stream_table_bytes(uint32_t n_pieces);

/* What the reader is going to take: a long chunk goes through a layer panel by panel, and so passes each
 * segment several times before the next. */
struct sl_stream_pass {
    int n_parts;     /* the first ones */
    int rounds;      /* over each segment but the last, 1 at least */
    int last_rounds; /* over the segment of part n_parts - 1 */
};
/* A new pass begins: reading starts at part 0, and goes on with part 0 when the pass is over. The reader's
 * thread only. Nothing happens without a ring. */
void sl_stream_begin(struct sl_store *s, const struct sl_stream_pass *pass);

/* Some rows of a part, as many as its piece holds. */
struct sl_strip {
    const uint8_t *rows; /* valid until sl_stream_put */
    int row0, n_rows;
};
/* Waits for the strip of the part that starts at row0 (0, or where the last strip ended). Each strip is
 * put before the next is taken. SL_E_IO and SL_E_PACK name trunk.bin and the tensor: a failed read, a
 * file that ends too early, or, with the last strip, bytes that do not have the tensor's crc32. */
int sl_stream_take(struct sl_store *s, int part, int row0, struct sl_strip *out,
                   struct sl_err *err);
void sl_stream_put(struct sl_store *s);

#endif
