/* States of earlier prompts, found by the ids they were computed from.
 *
 *   ids   | block 0 | block 1 | block 2 | tail |            chain: hash(parent, 512 ids) names a block
 *   rows  |  MLA rows of a block, shared by every sequence that begins with it |
 *   snapshot at position p: KDA and convolution state, + ids and rows of the tail [last block end, p)
 *
 * A recurrent state cannot be rewound, so that a prompt can go on only from a position where a snapshot
 * lies, and only while every block before it is there. A snapshot holds its last block, a block its
 * parent: rows live exactly as long as a snapshot needs them. At full size a snapshot is 465 MB (690 MB with
 * an open tile) and a block 28 MB. Ids are compared in full: a hash only says where to look.
 *
 * Memory is one mapping of fixed pages, sized by the planner, index included. The least recently used
 * snapshot leaves first: to files in opts.dir if there is one (a file a block, a file a snapshot, each
 * atomic, with version, model identity and checksum), else for good. Files of an earlier process are found
 * at open; what is damaged or belongs to another model is not used, and said in the statistics.
 *
 * Thread-safe: one lock, held while rows are copied. */
#ifndef SL_RUNTIME_PREFIX_CACHE_H
#define SL_RUNTIME_PREFIX_CACHE_H

#include <stdint.h>
#include "runtime/sluice.h"
#include "runtime/state.h"

#define SL_PREFIX_BLOCK 512

struct sl_prefix_opts {
    uint64_t memory_bytes;      /* of everything */
    const char *dir;            /* NULL: no files; made if missing */
    uint64_t disk_bytes;        /* ceiling on the files, 0: 8 times the memory */
    uint32_t block;             /* ids, 0: SL_PREFIX_BLOCK */
    unsigned form;              /* of the states (runtime/state.h) */
    unsigned char identity[32]; /* of the weights that states were computed with */
};

struct sl_prefix;
/* cfg must outlive the cache. SL_E_NOMEM, SL_E_ARG (a block above 65536 ids, memory below 128 KiB), SL_E_IO for a
 * folder that cannot be made or read. */
int sl_prefix_open(struct sl_prefix **out, const struct sl_config *cfg,
                   const struct sl_prefix_opts *o, struct sl_err *err);
void sl_prefix_close(
    struct sl_prefix *p); /* NULL is fine; with a folder, memory is written out first */

/* Bytes of memory that n_snapshots states take that share one sequence of n_ids, for defaults. */
uint64_t sl_prefix_bytes(const struct sl_config *cfg, unsigned form, uint32_t block, uint64_t n_ids,
                         uint64_t n_snapshots);

uint32_t sl_prefix_block_ids(const struct sl_prefix *p); /* ids a block */

/* The same, and puts the state there: st->position is the result. 0: st is untouched. A file that turns
 * out damaged is dropped and the next best start is taken. SL_E_* only when st is half written: reset it. */
int sl_prefix_restore(struct sl_prefix *p, const int32_t *ids, size_t n, uint64_t above,
                      struct sl_state *st, uint64_t *position, struct sl_err *err);

/* Stores st, computed from ids[0..st->position). Nothing happens at position 0 or where it is there
 * already (it counts as used). Too large for the memory: 0 too, counted nowhere. */
int sl_prefix_insert(struct sl_prefix *p, const int32_t *ids, struct sl_state *st,
                     struct sl_err *err);

void sl_prefix_get_stats(struct sl_prefix *p, sluice_prefix_stats *out);

#endif
