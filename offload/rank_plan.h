/* Ranks read whole, layer by layer: where the refinement planes of p36 experts pay.
 *
 * A router's first choices weigh most, so they are read with both plane sets and the others by their
 * base planes. How many ranks, each layer says by what was measured on the pack itself (calibrate
 * --ranks): the KL that falls when this layer alone is read whole, times the share of a rank in the
 * squared weights of its experts. The best (layer, rank) pairs are taken until the bits a weight that a
 * token reads reach the target. The choice follows from the router's order alone, so slots, chunks and
 * ways of reading never change a result.
 *
 * The plan is the "ranks" object of pack.json, version 1. */
#ifndef SL_OFFLOAD_RANK_PLAN_H
#define SL_OFFLOAD_RANK_PLAN_H

#include <cjson/cJSON.h>
#include "offload/config.h"

#define SL_RANK_VERSION 1
#define SL_RANK_POINTS  8

struct sl_pack;

struct sl_rank_point {
    double bits, kl; /* mean KL(reference || pack) in nats at a plan of that many bits */
};

struct sl_rank_plan {
    int n_layers, top_k;
    uint64_t tokens;                             /* that it was measured on */
    double bits;                                 /* default target, mean bits a weight read */
    struct sl_rank_point points[SL_RANK_POINTS]; /* measured, bits rising */
    int n_points;
    double *drop;  /* [n_layers] KL that falls when this layer alone is read whole; 0 for none */
    double *share; /* [n_layers][top_k] of squared router weights, adding up to 1 */
};

struct sl_rank_choice {
    int ranks[SL_MAX_LAYERS]; /* read whole; top_k where there is nothing to choose */
    double bits;              /* mean bits a weight that a token reads of its experts, nominal */
    double kl;                /* between measured points; negative: not known */
    uint64_t token_bytes;     /* of records and base planes, at the mean of each layer's */
};

/* SL_E_NOMEM. Everything zero. */
int sl_rank_plan_new(struct sl_rank_plan **out, const struct sl_config *c, struct sl_err *err);
void sl_rank_plan_close(struct sl_rank_plan *r); /* NULL is fine */

/* From the "ranks" object of a manifest: SL_E_PACK names `file` and the key. */
int sl_rank_plan_read(struct sl_rank_plan **out, const cJSON *ranks, const struct sl_config *c,
                      const char *file, struct sl_err *err);
/* Puts the plan into DIR/pack.json in place of the one it had; everything else stays byte by byte. */
int sl_rank_plan_save(const struct sl_rank_plan *r, const char *dir, struct sl_err *err);

/* The plan for a target; r NULL: all whole, or all base where the target is no more than that.
 * Anything between needs a plan: SL_E_ARG. bits 0: the plan's default, or whole without one. */
int sl_rank_choose(const struct sl_pack *p, const struct sl_rank_plan *r, double bits,
                   struct sl_rank_choice *out, struct sl_err *err);
/* Nominal bits a weight of a layer's experts, read by base planes and whole; equal without p36. */
void sl_rank_bits(const struct sl_pack *p, int layer, double *base, double *whole);

#endif
