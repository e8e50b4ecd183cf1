/* Trellis codes under feedback: one strip of rows against the covariance H of its input (w_encode.h).
 *
 * First in order of columns: a block is searched for its weights plus what the errors before it ask of
 * it. Then sweeps: each block again, for its weights plus what the errors of all others ask, which can
 * only lower e H e'. Scales of rows are refitted in H between them. Inside a block the search carries
 * the errors of each survivor (sl_trellis_follow_fn), so every cost here is the quadratic itself.
 *
 * p36 has two readings, each with errors and targets of its own; what is lowered is
 * (1 - lambda) e3 H e3' + lambda e2 H e2'. */
#include "quant/w_strip.h"

#include <math.h>
#include <string.h>
#include "kernels/block_w.h"

enum { L = SL_W_LANES, B = SL_W_BLOCK };

/* One float a lane; compilers split it into what the machine has. */
typedef float lanes_of_f32 __attribute__((vector_size(L * sizeof(float)), aligned(16)));

/* Codes of one block column, one row a lane. */
struct codes {
    uint64_t word[L], bits[L];
    uint8_t nib[L];
    float cost[L];
};

struct reading {
    const float *values;
    bool plain; /* the plain bit counts */
    float share;
};

/* The readings of a format; returns how many. */
static int readings_of(const struct sl_w_tables *t, struct reading r[2])
{
    if (t->fmt == SL_FMT_W26) {
        r[0] = (struct reading){t->t2, false, 1.0f};
        return 1;
    }
    bool joint = t->fmt == SL_FMT_P36;
    r[0] = (struct reading){t->t3, true, joint ? 1.0f - t->lambda : 1.0f};
    r[1] = (struct reading){t->t2, false, t->lambda};
    return joint ? 2 : 1;
}

static unsigned index_of(const struct reading *r, const struct codes *k, int lane, int j)
{
    unsigned w = sl_trellis_window(k->word[lane], j, 2);
    return r->plain ? w | (unsigned)(k->bits[lane] >> j & 1) << 6 : w;
}

static void scales_of(const struct sl_w_strip *s, const uint8_t nib[L], float scale[L])
{
    for (int i = 0; i < L; i++) scale[i] = s->row[i] * (float)sl_w_scale(nib[i]);
}

/* e M e' of codes k against the targets, into k->cost. */
static void price(const struct sl_w_strip *s, const struct sl_w_tables *t, const float *full,
                  const float *const target[2], struct codes *k)
{
    struct reading r[2];
    int n = readings_of(t, r);
    float scale[L];
    lanes_of_f32 sum = {0};
    scales_of(s, k->nib, scale);
    for (int a = 0; a < n; a++) {
        lanes_of_f32 e[B], q = {0};
        for (int j = 0; j < B; j++)
            for (int i = 0; i < L; i++)
                e[j][i] = target[a][j * L + i] - scale[i] * r[a].values[index_of(&r[a], k, i, j)];
        for (int j = 0; j < B; j++) { /* the metric is symmetric */
            lanes_of_f32 p = {0};
            for (int m = 0; m < j; m++) p += full[j * B + m] * e[m];
            q += (full[j * B + j] * e[j] + 2.0f * p) * e[j];
        }
        sum += r[a].share * q;
    }
    memcpy(k->cost, &sum, sizeof k->cost);
}

/* x and x2 of the strip: targets in units of the blocks' scales. */
static void scale_targets(struct sl_w_strip *s, const struct sl_w_tables *t,
                          const float *const target[2], const float scale[L])
{
    float inv[L];
    for (int i = 0; i < L; i++) inv[i] = scale[i] > 0.0f ? 1.0f / scale[i] : 0.0f;
    for (int j = 0; j < B; j++)
        for (int i = 0; i < L; i++) s->x[j * L + i] = target[0][j * L + i] * inv[i];
    if (t->fmt != SL_FMT_P36) return;
    for (int j = 0; j < B; j++)
        for (int i = 0; i < L; i++) s->x2[j * L + i] = target[1][j * L + i] * inv[i];
}

static void keep_better(struct codes *best, const struct codes *now)
{
    for (int i = 0; i < L; i++) {
        if (!(now->cost[i] < best->cost[i])) continue;
        best->cost[i] = now->cost[i];
        best->word[i] = now->word[i];
        best->bits[i] = now->bits[i];
        best->nib[i] = now->nib[i];
    }
}

static void get_codes(const struct sl_w_strip *s, int u, struct codes *k)
{
    memcpy(k->word, s->word + (size_t)u * L, sizeof k->word);
    memcpy(k->bits, s->bits + (size_t)u * L, sizeof k->bits);
    memcpy(k->nib, s->nibble + (size_t)u * L, sizeof k->nib);
}

static void put_codes(struct sl_w_strip *s, int u, const struct codes *k)
{
    memcpy(s->word + (size_t)u * L, k->word, sizeof k->word);
    memcpy(s->bits + (size_t)u * L, k->bits, sizeof k->bits);
    memcpy(s->nibble + (size_t)u * L, k->nib, sizeof k->nib);
}

/* Errors of block u for the codes in s. */
static void errors_of(struct sl_w_strip *s, const struct sl_w_tables *t, int u)
{
    struct reading r[2];
    struct codes k;
    float scale[L];
    int n = readings_of(t, r);
    get_codes(s, u, &k);
    scales_of(s, k.nib, scale);
    for (int a = 0; a < n; a++)
        for (int j = 0; j < B; j++)
            for (int i = 0; i < L; i++) {
                size_t at = ((size_t)u * B + (size_t)j) * L + (size_t)i;
                s->e[a][at] = s->w[at] - scale[i] * r[a].values[index_of(&r[a], &k, i, j)];
            }
}

/* Targets of block u: its weights and what the errors of the first `cols` columns ask of it. */
static void targets_of(struct sl_w_strip *s, const struct sl_w_tables *t,
                       const struct sl_trellis *search, const float *by, int ld, int u, int cols)
{
    float *const to[2] = {s->t, s->t2};
    for (int a = 0; a < (t->fmt == SL_FMT_P36 ? 2 : 1); a++) {
        memcpy(to[a], s->w + (size_t)u * B * L, (size_t)B * L * sizeof *to[a]);
        if (cols > 0) search->carry(to[a], s->e[a], cols, by + (size_t)u * B, ld);
    }
}

static uint8_t clamp_nibble(int n)
{
    return (uint8_t)(n < 0 ? 0 : n > 15 ? 15 : n);
}

/* Codes for the nibbles within `reach` of `centre`, better than *best (INFINITY: any). The plain search under
 * the diagonal of the metric is quick: it names the best nibble and the node where the word begins; then
 * one search under the whole metric. */
static void search_block(struct sl_w_strip *s, const struct sl_w_tables *t,
                         const struct sl_trellis *search, const struct sl_w_metric *m, int u,
                         const uint8_t centre[L], int reach, struct codes *best)
{
    struct sl_trellis_tables tt = {t->fmt == SL_FMT_W36 ? NULL : t->t2,
                                   t->fmt == SL_FMT_W26 ? NULL : t->t3, t->lambda};
    struct sl_trellis_metric metric = {m->weight + (size_t)u * B, m->next + (size_t)u * B * B};
    const float *full = m->full + (size_t)u * B * B;
    const float *const target[2] = {s->t, s->t2};
    struct codes first, now;
    float scale[L];
    for (int j = 0; j < B; j++)
        for (int i = 0; i < L; i++) s->hx[j * L + i] = full[j * B + j];
    for (int i = 0; i < L; i++) first.cost[i] = INFINITY;
    for (int d = -reach; d <= reach; d++) {
        for (int i = 0; i < L; i++) now.nib[i] = clamp_nibble(centre[i] + d);
        scales_of(s, now.nib, scale);
        scale_targets(s, t, target, scale);
        search->k2(s->x, s->hx, &tt, now.word, now.bits, now.cost);
        price(s, t, full, target, &now);
        keep_better(&first, &now);
    }
    keep_better(best, &first);
    scales_of(s, first.nib, scale);
    scale_targets(s, t, target, scale);
    now = first;
    search->follow(s->x, t->fmt == SL_FMT_P36 ? s->x2 : NULL, &metric, &tt, first.word, now.word,
                   now.bits, now.cost);
    for (int i = 0; i < L; i++) now.cost[i] *= scale[i] * scale[i];
    keep_better(best, &now);
}

void sl_w_follow_search(struct sl_w_strip *s, const struct sl_w_tables *t,
                        const struct sl_trellis *search, const struct sl_w_feedback *f,
                        enum sl_w_nibbles nibbles)
{
    for (int u = 0; u < s->n_units; u++) {
        struct codes best;
        uint8_t centre[L];
        targets_of(s, t, search, f->carry, f->cols, u, u * B);
        if (nibbles == SL_W_KEEP)
            memcpy(centre, s->nibble + (size_t)u * L, L);
        else
            sl_w_strip_guess(s, t, s->t, centre);
        for (int i = 0; i < L; i++) best.cost[i] = INFINITY;
        search_block(s, t, search, &f->ahead, u, centre, nibbles == SL_W_CHOOSE, &best);
        put_codes(s, u, &best);
        errors_of(s, t, u);
    }
}

void sl_w_follow_sweep(struct sl_w_strip *s, const struct sl_w_tables *t,
                       const struct sl_trellis *search, const struct sl_w_feedback *f)
{
    const float *const target[2] = {s->t, s->t2};
    for (int u = 0; u < s->n_units; u++) {
        struct codes best;
        uint8_t centre[L];
        targets_of(s, t, search, f->rest, f->cols, u, s->cols);
        get_codes(s, u, &best);
        memcpy(centre, best.nib, L);
        price(s, t, f->alone.full + (size_t)u * B * B, target, &best);
        search_block(s, t, search, &f->alone, u, centre, 1, &best);
        put_codes(s, u, &best);
        errors_of(s, t, u);
    }
}

/* With v = q / row: the best change of row is (e H v') / (v H v'). H v' block by block is
 * M_BB (v_B + what the other blocks' v ask of B). */
void sl_w_follow_refit(struct sl_w_strip *s, const struct sl_w_tables *t,
                       const struct sl_trellis *search, const struct sl_w_feedback *f)
{
    struct reading r[2];
    int n = readings_of(t, r);
    double num[L] = {0}, den[L] = {0};
    for (int a = 0; a < n; a++) {
        /* q in place of the errors; e = w - q is put back below. */
        for (size_t i = 0; i < (size_t)s->cols * L; i++) s->e[a][i] = s->w[i] - s->e[a][i];
        for (int u = 0; u < s->n_units; u++) {
            const float *full = f->alone.full + (size_t)u * B * B;
            const float *q = s->e[a] + (size_t)u * B * L, *w = s->w + (size_t)u * B * L;
            memcpy(s->t, q, (size_t)B * L * sizeof *s->t);
            search->carry(s->t, s->e[a], s->cols, f->rest + (size_t)u * B, f->cols);
            for (int j = 0; j < B; j++) {
                lanes_of_f32 hq = {0};
                for (int m = 0; m < B; m++) {
                    lanes_of_f32 v;
                    memcpy(&v, s->t + (size_t)m * L, sizeof v);
                    hq += full[j * B + m] * v;
                }
                for (int i = 0; i < L; i++) {
                    double h = (double)r[a].share * (double)hq[i];
                    num[i] += h * (double)w[j * L + i];
                    den[i] += h * (double)q[j * L + i];
                }
            }
        }
    }
    for (int i = 0; i < L; i++) { /* q = row * v, so the best row is row * (w H q') / (q H q') */
        double by = den[i] > 0 ? num[i] / den[i] : 0;
        float row = by > 0 ? sl_w_round_row((float)((double)s->row[i] * by)) : 0.0f;
        if (row > 0.0f && isfinite(row)) s->row[i] = row;
    }
    for (int u = 0; u < s->n_units; u++) errors_of(s, t, u);
}
