/* Route traces: which experts the router chose, as a file (design section 8).
 *
 *   "SLTRACE1"  u32 n_layers  u32 n_experts  u32 k
 *   { u32 position  u16 layer  u16 k  k x { u16 id  f32 weight } } ...        little-endian
 *
 * Records come in the order in which the engine worked: layer by layer for a single token; for a prefill
 * chunk all its tokens of a layer before the next layer. Ids are in router order, best first. */
#ifndef SL_OFFLOAD_TRACE_H
#define SL_OFFLOAD_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

#define SL_TRACE_MAGIC "SLTRACE1"

/* ---- writing: to PATH.tmp, which takes its name when it is whole */
struct sl_trace_writer;
int sl_trace_create(struct sl_trace_writer **out, const char *path, int n_layers, int n_experts,
                    int k, struct sl_err *err);
/* A failed write is kept and reported by sl_trace_finish. n <= k. */
void sl_trace_add(struct sl_trace_writer *w, uint64_t position, int layer, int n, const int *ids,
                  const float *weights);
/* Publishes the file and frees w, also on failure; keep false: nothing is published. */
int sl_trace_finish(struct sl_trace_writer *w, bool keep, struct sl_err *err);

/* ---- reading: the whole file, every number checked before it is used */
struct sl_trace_record {
    uint32_t position;
    uint16_t layer, k;
    uint64_t first; /* of its ids and weights */
};
struct sl_trace {
    int n_layers, n_experts, k;
    uint64_t n_records, n_ids;
    struct sl_trace_record *records; /* [n_records], in file order */
    uint16_t *ids;                   /* [n_ids], below n_experts, distinct within a record */
    float *weights;                  /* [n_ids], finite */
};
/* SL_E_SOURCE names file, byte offset and what is wrong. */
int sl_trace_read(struct sl_trace **out, const char *path, struct sl_err *err);
/* Experts of all layers that the trace has routes of. */
uint64_t sl_trace_experts(const struct sl_trace *t);
void sl_trace_free(struct sl_trace *t); /* NULL is fine */

#endif
