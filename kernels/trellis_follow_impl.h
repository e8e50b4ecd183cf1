/* The search under a whole metric (follow in trellis.h), compiled once for each ISA with SL_TRELLIS_NAME(k) set.
 *
 * y[j][node] is what the survivor in that node asks of weight j, for all weights still ahead; a step
 * picks the winner's row for each new node and adds its error. That copy is most of the work (120
 * picks a weight of a lane against 64 edges), so node rows are read from one buffer and written to the
 * other. Layout of nodes and windows: trellis_impl.h. */
#include <stddef.h>
#include <string.h>
#include "kernels/trellis.h"
#include "kernels/trellis_vec.h"

enum { F_N = 32, F_NODES = 16, F_WAYS = 4 };

/* Targets ahead of each survivor. */
typedef float f_ahead[F_N][F_NODES][VW];

/* Who won each node, and the error its weight made. */
struct f_won {
    vm over[F_NODES][F_WAYS - 1]; /* way a + 1 beat all before it */
    float e[F_NODES][VW], e2[F_NODES][VW];
};

/* Cost of taking window w from target y (and y2 of the base); *bit is set where the plain bit is. */
static inline __attribute__((always_inline)) vf
f_cost(int w, vf y, vf y2, vf weight, const struct sl_trellis_tables *t, vm *bit, int mode)
{
    if (mode == 0) {
        vf e = V_SUB(y, V_SET(t->t2[w]));
        *bit = V_LT(e, e);
        return V_MUL(V_MUL(e, e), weight);
    }
    vf e0 = V_SUB(y, V_SET(t->t3[w])), e1 = V_SUB(y, V_SET(t->t3[w + SL_TRELLIS_ENTRIES]));
    e0 = V_MUL(e0, e0);
    e1 = V_MUL(e1, e1);
    *bit = V_LT(e1, e0);
    vf c = V_MIN(e1, e0);
    if (mode == 2) {
        vf e = V_SUB(y2, V_SET(t->t2[w]));
        c = V_ADD(V_MUL(c, V_SET(1.0f - t->lambda)), V_MUL(V_MUL(e, e), V_SET(t->lambda)));
    }
    return V_MUL(c, weight);
}

/* Step j for all nodes: to[] costs, way[] the way and, as bit 2, the plain bit. */
static inline __attribute__((always_inline)) void
f_step(float (*restrict to)[VW], int32_t (*restrict way)[VW], float (*restrict from)[VW],
       float (*restrict y)[VW], float (*restrict y2)[VW], const float *px, const float *px2,
       float weight, const struct sl_trellis_tables *t, struct f_won *won, int mode)
{
    const vf x = V_LOAD(px), x2 = mode == 2 ? V_LOAD(px2) : x, h = V_SET(weight);
    for (int m = 0; m < F_NODES; m++) {
        const int p = (m << 2) & (F_NODES - 1);
        vf best = x, value = x, value2 = x;
        vi who = V_SETI(0);
        for (int a = 0; a < F_WAYS; a++) {
            const int w = a | m << 2;
            vm bit;
            const vf c = V_ADD(
                V_LOAD(from[p + a]),
                f_cost(w, V_LOAD(y[p + a]), mode == 2 ? V_LOAD(y2[p + a]) : x, h, t, &bit, mode));
            vf v = V_SET(mode == 0 ? t->t2[w] : t->t3[w]);
            vi id = V_SETI(a);
            if (mode != 0) {
                v = V_PICKF(bit, V_SET(t->t3[w + SL_TRELLIS_ENTRIES]), v);
                id = V_PICK(bit, V_SETI(a | F_WAYS), id);
            }
            if (a == 0) {
                best = c, value = v, who = id;
                if (mode == 2) value2 = V_SET(t->t2[w]);
                continue;
            }
            const vm lt = V_LT(c, best);
            won->over[m][a - 1] = lt;
            best = V_MIN(c, best);
            value = V_PICKF(lt, v, value);
            who = V_PICK(lt, id, who);
            if (mode == 2) value2 = V_PICKF(lt, V_SET(t->t2[w]), value2);
        }
        V_STORE(to[m], best);
        V_STOREI(way[m], who);
        V_STORE(won->e[m], V_SUB(x, value));
        if (mode == 2) V_STORE(won->e2[m], V_SUB(x2, value2));
    }
}

/* The targets of weight k for the new survivors: the winner's, moved by its error times `by`. */
static inline __attribute__((always_inline)) void f_move(float (*restrict to)[VW],
                                                         float (*restrict from)[VW],
                                                         const struct f_won *won,
                                                         float (*restrict e)[VW], float by)
{
    const vf f = V_SET(by);
    for (int g = 0; g < F_WAYS; g++) {
        const vf p0 = V_LOAD(from[4 * g]), p1 = V_LOAD(from[4 * g + 1]),
                 p2 = V_LOAD(from[4 * g + 2]), p3 = V_LOAD(from[4 * g + 3]);
        for (int m = g; m < F_NODES; m += F_WAYS) {
            vf v = V_PICKF(won->over[m][0], p1, p0);
            v = V_PICKF(won->over[m][1], p2, v);
            v = V_PICKF(won->over[m][2], p3, v);
            V_STORE(to[m], V_ADD(v, V_MUL(V_LOAD(e[m]), f)));
        }
    }
}

static inline __attribute__((always_inline)) void f_search(const float *x, const float *x2,
                                                           const struct sl_trellis_metric *metric,
                                                           const struct sl_trellis_tables *t,
                                                           const uint64_t *start, uint64_t *word,
                                                           uint64_t *bits, float *cost, int mode)
{
    float buf[2][F_NODES][VW];
    f_ahead y[2], y2[2];
    int32_t way[F_N][F_NODES][VW];
    struct f_won won;

    for (int m = 0; m < F_NODES; m++)
        for (int i = 0; i < VW; i++)
            buf[0][m][i] = m == (int)(start[i] & (F_NODES - 1)) ? 0.0f : 3e38f;
    for (int j = 0; j < F_N; j++)
        for (int m = 0; m < F_NODES; m++) {
            memcpy(y[0][j][m], x + (size_t)j * LANES, sizeof y[0][j][m]);
            if (mode == 2) memcpy(y2[0][j][m], x2 + (size_t)j * LANES, sizeof y2[0][j][m]);
        }
    for (int j = 0; j < F_N; j++) {
        const int a = j & 1, b = ~j & 1;
        f_step(buf[b], way[j], buf[a], y[a][j], y2[a][j], x + (size_t)j * LANES,
               x2 + (size_t)j * LANES, metric->weight[j], t, &won, mode);
        for (int k = j + 1; k < F_N; k++) {
            const float by = metric->next[j * F_N + k];
            f_move(y[b][k], y[a][k], &won, won.e, by);
            if (mode == 2) f_move(y2[b][k], y2[a][k], &won, won.e2, by);
        }
    }
    for (int i = 0; i < VW; i++) {
        int node = (int)(start[i] & (F_NODES - 1));
        uint64_t out = 0, plain = 0;
        cost[i] = buf[0][node][i];
        for (int j = F_N - 1; j >= 0; j--) {
            const int a = way[j][node][i] & (F_WAYS - 1);
            out |= (uint64_t)a << (2 * j);
            plain |= (uint64_t)(way[j][node][i] >> 2) << j;
            node = (a | node << 2) & (F_NODES - 1);
        }
        word[i] = out;
        bits[i] = plain;
    }
}

#define FOLLOW_ALL(mode)                                                                           \
    for (int i = 0; i < LANES; i += VW)                                                            \
    f_search(x + i, x2 + i, m, t, start + i, word + i, bits + i, cost + i, mode)

void SL_TRELLIS_NAME(follow)(const float *x, const float *x2, const struct sl_trellis_metric *m,
                             const struct sl_trellis_tables *t, const uint64_t *start,
                             uint64_t *word, uint64_t *bits, float *cost)
{
    if (!x2) x2 = x;
    if (!t->t3)
        FOLLOW_ALL(0);
    else if (!t->t2)
        FOLLOW_ALL(1);
    else
        FOLLOW_ALL(2);
}
