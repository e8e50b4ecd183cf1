/* The search of trellis.h, written once and compiled once for each ISA with SL_TRELLIS_NAME(k) set.
 *
 * Nodes are the bits that two neighbouring windows share: 4 bits for k = 2 (16 nodes, 4 ways in), 5
 * bits for k = 1 (32 nodes, 2 ways in). Window w = a | m << k comes from node w & (nodes - 1) and leads
 * to node m:
 *
 *     cost'[m] = min over a < 2^k of cost[w & (nodes - 1)] + h * d(x, w)
 *
 * Vectors run across blocks, not across nodes: no transposes, any width, and a table entry is one
 * broadcast. Against the same loop left to the compiler, explicit vectors are worth 2 times under gcc.
 * A smaller `a` wins a tie. */
#include <stddef.h>
#include <string.h>
#include "kernels/trellis.h"
#include "kernels/trellis_vec.h"

/* Joint metric without x^2, which all paths of a block share: for one plain bit it is line[0] * x +
 * line[1], so that both cost four operations instead of ten. The block's cost is summed afresh along
 * the path. */
struct joint {
    float line[2 * SL_TRELLIS_ENTRIES][2];
};

static void joint_lines(struct joint *j, const struct sl_trellis_tables *t)
{
    for (int i = 0; i < 2 * SL_TRELLIS_ENTRIES; i++) {
        float full = t->t3[i], base = t->t2[i & (SL_TRELLIS_ENTRIES - 1)];
        j->line[i][0] = -2.0f * ((1.0f - t->lambda) * full + t->lambda * base);
        j->line[i][1] = (1.0f - t->lambda) * (full * full) + t->lambda * (base * base);
    }
}

/* d(x, w) of trellis.h, weighted. mode 0 base, 1 plain bit, 2 joint without x^2. */
static inline __attribute__((always_inline)) vf edge_cost(int w, vf x, vf h, int weighted,
                                                          const struct sl_trellis_tables *t,
                                                          const struct joint *j, int mode)
{
    vf c;
    if (mode == 0) {
        vf e = V_SUB(x, V_SET(t->t2[w]));
        c = V_MUL(e, e);
    } else if (mode == 1) {
        vf e0 = V_SUB(x, V_SET(t->t3[w])), e1 = V_SUB(x, V_SET(t->t3[w + SL_TRELLIS_ENTRIES]));
        c = V_MIN(V_MUL(e0, e0), V_MUL(e1, e1));
    } else {
        const float *a = j->line[w], *b = j->line[w + SL_TRELLIS_ENTRIES];
        c = V_MIN(V_ADD(V_MUL(x, V_SET(a[0])), V_SET(a[1])),
                  V_ADD(V_MUL(x, V_SET(b[0])), V_SET(b[1])));
    }
    if (weighted) c = V_MUL(c, h);
    return c;
}

/* One step: from[node] -> to[node], way[node] = the a that won. */
static inline __attribute__((always_inline)) void
step(float (*restrict to)[VW], int32_t (*restrict way)[VW], float (*restrict from)[VW],
     const float *restrict px, const float *restrict ph, const struct sl_trellis_tables *t,
     const struct joint *j, int k, int mode)
{
    const int nodes = 64 >> k, ways = 1 << k;
    const vf x = V_LOAD(px), h = ph ? V_LOAD(ph) : x;
    for (int m = 0; m < nodes; m++) {
        vf best = V_ADD(V_LOAD(from[(m << k) & (nodes - 1)]),
                        edge_cost(m << k, x, h, ph != NULL, t, j, mode));
        vi who = V_SETI(0);
        for (int a = 1; a < ways; a++) {
            int w = a | m << k;
            vf c = V_ADD(V_LOAD(from[w & (nodes - 1)]), edge_cost(w, x, h, ph != NULL, t, j, mode));
            who = V_PICK(V_LT(c, best), V_SETI(a), who);
            best = V_MIN(c, best);
        }
        V_STORE(to[m], best);
        V_STOREI(way[m], who);
    }
}

/* VW blocks: lanes [0, VW) of x, h, word, bits, cost. */
static inline __attribute__((always_inline)) void search(const float *x, const float *h,
                                                         const struct sl_trellis_tables *t,
                                                         uint64_t *word, uint64_t *bits,
                                                         float *cost, int k, int mode)
{
    enum { MAX_N = 64, MAX_NODES = 32 };
    const int n = 64 / k, nodes = 64 >> k;
    float buf[2][MAX_NODES][VW];
    int32_t way[MAX_N][MAX_NODES][VW];
    int start[VW];
    struct joint j;
    if (mode == 2) joint_lines(&j, t);

    /* Pass 1: from the middle of the block once around to the middle, free at both ends; where does the
     * best path pass the block's start? */
    memset(buf[0], 0, sizeof buf[0]);
    for (int s = 0; s < n; s++) {
        size_t i = (size_t)((s + n / 2) & (n - 1)) * LANES;
        step(buf[~s & 1], way[s], buf[s & 1], x + i, h ? h + i : NULL, t, &j, k, mode);
    }
    for (int i = 0; i < VW; i++) {
        int node = 0;
        for (int m = 1; m < nodes; m++)
            if (buf[0][m][i] < buf[0][node][i]) node = m;
        for (int s = n - 1; s >= n / 2; s--) node = (way[s][node][i] | node << k) & (nodes - 1);
        start[i] = node;
    }

    /* Pass 2: begin and end in that node. */
    for (int m = 0; m < nodes; m++)
        for (int i = 0; i < VW; i++) buf[0][m][i] = m == start[i] ? 0.0f : 3e38f;
    for (int s = 0; s < n; s++) {
        size_t i = (size_t)s * LANES;
        step(buf[~s & 1], way[s], buf[s & 1], x + i, h ? h + i : NULL, t, &j, k, mode);
    }
    for (int i = 0; i < VW; i++) {
        int node = start[i];
        uint64_t out = 0, plain = 0;
        float sum = 0.0f;
        for (int s = n - 1; s >= 0; s--) {
            int a = way[s][node][i];
            int w = a | node << k;
            out |=
                (uint64_t)a << (k * s); /* the low k bits of window s are the word's bits at k*s */
            if (mode != 0) {
                const size_t at = (size_t)s * LANES + (size_t)i;
                float e0 = x[at] - t->t3[w], e1 = x[at] - t->t3[w + SL_TRELLIS_ENTRIES];
                e0 *= e0, e1 *= e1;
                plain |= (uint64_t) !(e0 < e1) << s;
                if (mode == 2) {
                    float e = x[at] - t->t2[w];
                    e = (1.0f - t->lambda) * (e0 < e1 ? e0 : e1) + t->lambda * (e * e);
                    sum += h ? h[at] * e : e;
                }
            }
            node = w & (nodes - 1);
        }
        cost[i] = mode == 2 ? sum : buf[0][start[i]][i];
        word[i] = out;
        if (bits) bits[i] = plain;
    }
}

/* One copy of the search a mode, so that nothing is decided inside it. */
#define SEARCH_ALL(k, mode, hh)                                                                    \
    for (int i = 0; i < LANES; i += VW)                                                            \
    search(x + i, hh, t, word + i, bits ? bits + i : NULL, cost + i, k, mode)

void SL_TRELLIS_NAME(k2)(const float *x, const float *h, const struct sl_trellis_tables *t,
                         uint64_t *word, uint64_t *bits, float *cost)
{
    if (!t->t3 && !h)
        SEARCH_ALL(2, 0, NULL);
    else if (!t->t3)
        SEARCH_ALL(2, 0, h + i);
    else if (!t->t2 && !h)
        SEARCH_ALL(2, 1, NULL);
    else if (!t->t2)
        SEARCH_ALL(2, 1, h + i);
    else if (!h)
        SEARCH_ALL(2, 2, NULL);
    else
        SEARCH_ALL(2, 2, h + i);
}

void SL_TRELLIS_NAME(k1)(const float *x, const float *h, const struct sl_trellis_tables *t,
                         uint64_t *word, uint64_t *bits, float *cost)
{
    if (h)
        SEARCH_ALL(1, 0, h + i);
    else
        SEARCH_ALL(1, 0, NULL);
}

/* Eight sums at once whatever the width: enough to hide an addition's latency, few enough for registers. */
void SL_TRELLIS_NAME(carry)(float *t, const float *e, int n, const float *f, int ldf)
{
    enum { GROUPS = LANES / VW, COLS = 8 / GROUPS };
    for (int j = 0; j < 32; j += COLS) {
        vf s[COLS][GROUPS];
        for (int k = 0; k < COLS; k++)
            for (int g = 0; g < GROUPS; g++) s[k][g] = V_SET(0.0f);
        for (int a = 0; a < n; a++) {
            const float *fa = f + (size_t)a * (size_t)ldf + j, *ea = e + (size_t)a * LANES;
            for (int k = 0; k < COLS; k++)
                for (int g = 0; g < GROUPS; g++)
                    s[k][g] = V_ADD(s[k][g], V_MUL(V_LOAD(ea + g * VW), V_SET(fa[k])));
        }
        for (int k = 0; k < COLS; k++)
            for (int g = 0; g < GROUPS; g++) {
                float *to = t + (size_t)(j + k) * LANES + g * VW;
                V_STORE(to, V_ADD(V_LOAD(to), s[k][g]));
            }
    }
}
