/* One KDA head in several arithmetics, for measuring (tool_stability.c); none of them is in the engine
 * but the f32 recurrence.
 *
 * Recurrence (spec 3.3): S <- diag(e^g) S; S <- S + beta k (v - k S)'; o = q S.
 *
 * Tile of 16 tokens with G_t the sum of g from the tile's start to t, K~ = k e^G, K^ = k e^-G, Q~ = q e^G:
 *
 *     W  = (I + diag(beta) strict(K~ K^'))^-1 diag(beta) (V - K~ S)
 *     O  = Q~ S + lower(Q~ K^') W
 *     S <- diag(e^G_16) S + (k e^(G_16 - G))' W
 *
 * e^-G is what the bound on g is for: with g > -5 it stays below e^80 = 5.5e34, inside f32 and bf16. */
#ifndef SL_TESTS_KDA_VARIANTS_H
#define SL_TESTS_KDA_VARIANTS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/kernels.h"

#define KDA_TILE 16

enum kda_how {
    KDA_F64,        /* the recurrence in double: what the others are measured against */
    KDA_F32,        /* the engine's own step */
    KDA_STATE_BF16, /* that, state rounded to bf16 after every token */
    KDA_DECAY_BF16, /* the f32 recurrence with e^g rounded to bf16: above 0.998 it becomes 1 */
    KDA_COMMIT,     /* the f32 recurrence, state rounded to bf16 after every 16th */
    KDA_TILE_F32,   /* tiles in f32 */
    KDA_TILE_BF16   /* tiles, every operand of a product rounded to bf16, sums in f32 */
};

/* Tokens of one head: q (scaled), k, v, g [n][d], beta [n]. */
struct kda_tokens {
    int d, n;
    const float *q, *k, *v, *g, *beta;
};

struct kda_head {
    enum kda_how how;
    int d;
    double *S64;
    float *S; /* [d][d] key channel, value channel */
};
bool kda_open(struct kda_head *h, enum kda_how how, int d);
void kda_close(struct kda_head *h);
/* Runs all tokens (n % 16 == 0 for tiles) from the head's state on; o [n][d] double. */
void kda_run(struct kda_head *h, const struct sl_kernels *k, const struct kda_tokens *t, double *o);
/* |S - S_ref| / |S_ref|; NaN when anything is not finite. */
double kda_state_error(const struct kda_head *h, const struct kda_head *ref);
/* |o - ref| / |ref| over n values, likewise. */
double kda_error(const double *o, const double *ref, size_t n);

#endif
