/* Trunk in memory: matrices as they lie in trunk.bin (packed), vectors widened to f32.
 *
 * Reads pieces of at most 32 MiB. Everything is placed in one arena sized by sl_trunk_bytes(). */
#ifndef SL_OFFLOAD_TRUNK_H
#define SL_OFFLOAD_TRUNK_H

#include "base/arena.h"
#include "offload/pack.h"

struct sl_trunk;

/* Bytes that sl_trunk_open takes from the arena. */
uint64_t sl_trunk_bytes(const struct sl_pack *p);
/* Loads all trunk tensors; with check_crc every tensor's crc32 is checked (SL_E_PACK names it). */
int sl_trunk_open(struct sl_trunk **out, const struct sl_pack *p, struct sl_arena *arena,
                  bool check_crc, struct sl_err *err);
void sl_trunk_close(struct sl_trunk *t);

/* A 2-D tensor of exactly rows x cols as a matrix view; SL_E_PACK names a missing one or a wrong shape. */
int sl_trunk_mat(const struct sl_trunk *t, const char *name, int64_t rows, int64_t cols,
                 struct sl_mat *out, struct sl_err *err);
/* n leading elements of a tensor with at least n (any shape), as f32: widened from bf16/f16, or the
 * stored f32. Used for norms, A_log (padded), dt_bias, conv taps, res_proj, router bias. */
int sl_trunk_vec(const struct sl_trunk *t, const char *name, int64_t n, const float **out,
                 struct sl_err *err);

#endif
