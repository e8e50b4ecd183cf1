/* Made-up weights: rows of trunk tensors and whole expert records from counters, at the speed of memory.
 *
 * Every row and every expert has a stream of its own, so no byte depends on how work is cut or on the
 * number of jobs. Numbers lie at the magnitudes of a trained model with normalised inputs: matrices keep
 * the size of what they multiply, those that write to the residual stream add a fraction of it. All of
 * it is valid in its format: no NaN scale, no code that an encoder would not write. */
#ifndef SL_CONVERT_SYNTH_FILL_H
#define SL_CONVERT_SYNTH_FILL_H

#include "convert/inventory.h"
#include "offload/pack_layout.h"

enum sl_synth_kind {
    SL_SYNTH_RANDOM, /* symmetric about 0, root mean square `rms` */
    SL_SYNTH_ONES,   /* weights of a norm: 0.94 to 1.12 */
    SL_SYNTH_RANGE,  /* uniform in low..high, then zeros from `used` on (A_log, dt_bias) */
    SL_SYNTH_ROUTER  /* router biases, sl_synth_router_bias() */
};

struct sl_synth_rule {
    enum sl_synth_kind kind;
    double rms, low, high;
    int used;
};

/* What a tensor of the inventory holds; name without prefix. */
void sl_synth_rule_of(struct sl_synth_rule *r, const struct sl_config *c, const char *name,
                      int cols);

/* One row of cols numbers in fmt (f32, bf16, t8, t6, t4) to sl_fmt_row_bytes(fmt, cols) bytes. */
void sl_synth_row(const struct sl_synth_rule *r, enum sl_fmt fmt, int cols, uint64_t stream,
                  uint8_t *row);
/* Biases of a router whose weights follow sl_synth_rule_of: f32 [n_experts], popular experts shuffled.
 * false: no memory. */
bool sl_synth_router_bias(const struct sl_config *c, uint64_t stream, uint8_t *row);
/* A record of layout e, padding included; e->bytes bytes. */
void sl_synth_record(const struct sl_config *c, const struct sl_bank_entry *e, uint64_t stream,
                     uint8_t *record);

/* The stream of a thing: a hash of its numbers. */
uint64_t sl_synth_stream(uint64_t seed, uint64_t what, uint64_t a, uint64_t b);

#endif
