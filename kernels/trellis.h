/* Viterbi search of the tail-biting trellis formats w26, w36, p36 and w16, many blocks side by side.
 *
 * A block of n weights is one cyclic word of n*k bits (w26, w36: n 32, k 2; w16: n 64, k 1). Weight t
 * reads the 6 bits from bit k*t upward, cyclically, as a window w; its value is a table entry. The
 * search finds the word with the least
 *
 *     sum_t h[t] * d(x[t], w_t)        d = (x - T[w])^2                       one plane
 *                                      d = min over bit of (x - T[w | bit<<6])^2   with a plain bit
 *                                      d = (1-l) * min over bit of (x - T3[w | bit<<6])^2
 *                                          + l * (x - T2[w])^2                joint (p36)
 *
 * Two passes instead of one for each of the start nodes: first free, started half a block early, whose
 * best path names the node at the block's start; then constrained to begin and end there (0.03 dB
 * above the exact search, 8 to 16 times faster: spec quantization.md, 2.5).
 *
 * SL_TRELLIS_LANES blocks are searched at once, one in each lane: rows of one block column, so that
 * error feedback can run along the columns. A lane never sees its neighbours, every operation is
 * rounded on its own, so results are the same on every ISA. */
#ifndef SL_KERNELS_TRELLIS_H
#define SL_KERNELS_TRELLIS_H

#include <stdint.h>

#define SL_TRELLIS_LANES   16
#define SL_TRELLIS_WINDOW  6
#define SL_TRELLIS_ENTRIES 64 /* windows; tables with a plain bit have twice as many */

struct sl_trellis_tables {
    const float *t2; /* [64] base values, or NULL */
    const float *t3; /* [128] with the plain bit as bit 6, or NULL */
    float lambda;    /* weight of the base reading when both are given; else ignored */
};

/* Searches one block in each lane.
 *
 *   x      f32 [n][SL_TRELLIS_LANES], already divided by the block's scale
 *   h      f32 [n][SL_TRELLIS_LANES] weights >= 0, or NULL for ones
 *   word   u64 [SL_TRELLIS_LANES] out
 *   bits   u64 [SL_TRELLIS_LANES] out: plain bit of weight t as bit t; may be NULL without t3
 *   cost   f32 [SL_TRELLIS_LANES] out: the least sum found
 *
 * Never fails, never allocates. Equality: bits equal to _c on every ISA. */
typedef void (*sl_trellis_fn)(const float *x, const float *h, const struct sl_trellis_tables *t,
                              uint64_t *word, uint64_t *bits, float *cost);

/* Error feedback: t[j] += sum_a e[a] * f[a*ldf + j] for j < 32, a < n ascending, in every lane.
 *   t f32 [32][SL_TRELLIS_LANES], e f32 [n][SL_TRELLIS_LANES], f f32 [n][ldf]
 * Each product rounded, then added to a sum that starts at 0; the sum is added to t last. */
typedef void (*sl_trellis_carry_fn)(float *t, const float *e, int n, const float *f, int ldf);

/* One block of 32 weights in every lane under a whole metric, each survivor of the pass carrying its own
 * errors. With H the 32 x 32 metric and H = C C', C upper triangular, column j of e C holds errors of
 * weights up to j alone:
 *
 *     e H e' = |e C|^2 = sum_j weight[j] * (e_j + sum over i < j of e_i * next[i][j])^2
 *     weight[j] = C_jj^2, next[i][j] = C_ij / C_jj
 *
 * So a survivor asks weight j for x_j + sum_i e_i next[i][j], and the cost of its path is the exact
 * quadratic. Still a beam of 16, not an optimum: what loses now could have won later.
 *
 *   x      f32 [32][SL_TRELLIS_LANES], already divided by the block's scale
 *   x2     the same for the base reading of joint tables (t2 and t3), which has errors and so targets of
 *          its own; NULL otherwise
 *   start  u64 [SL_TRELLIS_LANES]: the word begins and ends in the node of its low 4 bits
 *   word, bits, cost as sl_trellis_fn, bits not NULL; joint: (1 - lambda) * full + lambda * base
 *
 * Never fails, never allocates. Equality: bits equal to _c on every ISA. */
struct sl_trellis_metric {
    const float *weight; /* [32] */
    const float *next;   /* [32][32], read above the diagonal only */
};
typedef void (*sl_trellis_follow_fn)(const float *x, const float *x2,
                                     const struct sl_trellis_metric *m,
                                     const struct sl_trellis_tables *t, const uint64_t *start,
                                     uint64_t *word, uint64_t *bits, float *cost);

struct sl_trellis {
    sl_trellis_carry_fn carry;
    sl_trellis_follow_fn follow;
    sl_trellis_fn k2; /* n 32, 2 bits a weight: w26 (t2), w36 (t3), p36 (both) */
    sl_trellis_fn k1; /* n 64, 1 bit a weight: w16 (t2) */
};

/* cpu: SL_CPU_* mask of kernels.h. */
void sl_trellis_init(struct sl_trellis *t, unsigned cpu);

/* Window of weight t of a 64-bit word; k bits a weight. */
static inline unsigned sl_trellis_window(uint64_t word, int t, int k)
{
    unsigned s = (unsigned)(t * k) & 63;
    return (unsigned)((word >> s | word << (-s & 63)) & 63);
}

#endif
