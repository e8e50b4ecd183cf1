/* Trunk in memory: matrices as they lie in trunk.bin (packed), vectors widened to f32.
 *
 * Everything is placed in one arena sized by sl_trunk_bytes(), or a part of it when memory is short: the
 * rest streams through a ring (stream.h), but for the embedding, of which rows are read one by one.
 * Layers that share bytes in the file are read and held separately: what a synthetic pack costs is what
 * the real one would. Reads are pieces of at most 32 MiB. */
#ifndef SL_OFFLOAD_TRUNK_H
#define SL_OFFLOAD_TRUNK_H

#include "base/arena.h"
#include "offload/direct_file.h"
#include "offload/pack.h"

struct sl_trunk;

/* Bytes that sl_trunk_open takes from the arena. */
uint64_t sl_trunk_bytes(const struct sl_pack *p);

/* What a budget makes of the trunk: vectors and the matrices that every layer needs at once (router,
 * decay, beta) are always held, the other matrices as far as the budget goes, in an order of their own
 * (trunk_split.c). */
struct sl_trunk_split {
    uint64_t held_bytes; /* taken from the arena; above the budget when that is below the floor */
    uint64_t streamed_bytes; /* of the file: what a token, or a chunk of a prompt, reads */
    int n_streamed;          /* matrices */
    bool rows_apart;         /* rows of the embedding come one by one */
};
/* where: NULL, or [n_tensors] enum sl_trunk_place. SL_E_NOMEM. */
enum sl_trunk_place { SL_TRUNK_HELD, SL_TRUNK_STREAMED, SL_TRUNK_BY_ROW };
int sl_trunk_split(const struct sl_pack *p, uint64_t budget, struct sl_trunk_split *out,
                   uint8_t *where, struct sl_err *err);
/* Rows of a matrix that are used together, so that a strip must not cut them: the heads of kv_b, else 1. */
int sl_trunk_row_group(const struct sl_pack *p, const struct sl_tensor *t);
/* A ring for whatever may stream of this pack; both 0 when nothing may. */
void sl_trunk_ring(const struct sl_pack *p, uint32_t *piece_bytes, uint32_t *n_pieces);

struct sl_trunk_opts {
    uint64_t budget; /* sl_trunk_split; 0: all of it is held */
    bool check_crc;
    const struct sl_read_ops *ops; /* NULL: as the kernel does it; tests put faults here */
};
/* Loads what is held; with check_crc every such tensor's crc32 is checked (SL_E_PACK names it). o NULL:
 * all of it, checked. */
int sl_trunk_open(struct sl_trunk **out, const struct sl_pack *p, struct sl_arena *arena,
                  const struct sl_trunk_opts *o, struct sl_err *err);
void sl_trunk_close(struct sl_trunk *t);
uint64_t sl_trunk_bytes_read(const struct sl_trunk *t); /* at open */

/* A 2-D tensor of exactly rows x cols as a matrix view; SL_E_PACK names a missing one or a wrong shape.
 * One that is not held has codes NULL. */
int sl_trunk_mat(const struct sl_trunk *t, const char *name, int64_t rows, int64_t cols,
                 struct sl_mat *out, struct sl_err *err);
/* n leading elements of a tensor with at least n (any shape), as f32: widened from bf16/f16, or the
 * stored f32. Used for norms, A_log (padded), dt_bias, conv taps, res_proj, router bias. */
int sl_trunk_vec(const struct sl_trunk *t, const char *name, int64_t n, const float **out,
                 struct sl_err *err);

/* One row of a tensor that is not held, from the drive: *row points into buf, which lies on a page and
 * has room for sl_trunk_row_room(). A row is not checked: the crc32 is that of the whole table. Any
 * thread. */
uint64_t sl_trunk_row_room(uint64_t row_bytes);
int sl_trunk_read_row(const struct sl_trunk *t, const struct sl_tensor *x, int64_t row,
                      uint8_t *buf, const uint8_t **out, struct sl_err *err);

#endif
