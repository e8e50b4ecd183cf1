/* Attention of a few queries over a run of positions, by blocks with a running softmax.
 *
 * A query is a column: of one token's heads that share latent rows (absorbed: keys are the rows, values
 * their first vd numbers), or of one head's tokens (expanded). Position-major scores make both products
 * the same row-times-matrix kernel without turning the cache around:
 *
 *   s[pos][query] = keys[pos] . q[:, query]        acc[query] += sum_pos p[pos][query] * values[pos]
 *
 * Blocks of SL_ATTEND_BLOCK positions from the first one of the call on. Before a block's weights are
 * added, max grows to the block's and sum and acc shrink by exp(old - new). A run may be cut into calls
 * at multiples of the block; bits stay. Runs over separate ranges are joined by the caller. */
#ifndef SL_KERNELS_ATTEND_H
#define SL_KERNELS_ATTEND_H

#include "kernels/kernels.h"

#define SL_ATTEND_BLOCK 64
#define SL_ATTEND_NONE  (-3.0e38f) /* max before the first position */

struct sl_attend {
    int n_query, kd, vd;
    size_t ldq;      /* n_query rounded up to 16 */
    const float *q;  /* [kd][ldq], zero beyond n_query */
    size_t ldk, ldv; /* of keys, of values */
    float scale;
    const int *seen; /* [n_query] positions of the call that a query may see; NULL: all */
    float *max;      /* [ldq] of scaled scores; SL_ATTEND_NONE before the first call */
    float *sum;      /* [ldq] of weights; 0 before the first call */
    float *acc;      /* [n_query][vd] weighted values; 0 before the first call */
    float *scratch;  /* [SL_ATTEND_BLOCK + 1][ldq] */
};

static inline size_t sl_attend_ldq(int n_query)
{
    return ((size_t)n_query + 15) & ~(size_t)15;
}

#endif
