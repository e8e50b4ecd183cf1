/* MLA attention of the fast path: over the latent cache, absorbed or expanded by cost (spec 3.4).
 *
 * Absorbed, for few tokens. The key part of kv_b goes into the query, the value part onto the sum:
 *
 *   region 1   heads   a = [ W_k[h]^T q_nope | q_rope ]                    columns of a unit's query matrix
 *   region 2   units   kernels/attend.h of 48 columns over a range of positions: max, sum, weighted latents
 *   region 3   heads   ranges joined in order; W_v[h] times the sum; gate
 *
 * A unit is up to 16 tokens of one sequence; its columns are heads of its tokens, so that a row of the cache
 * is read once for 48 of them (60 FLOP a byte). A query's positions are cut into ranges of a length that its
 * position decides (128, doubled so that there are at most 64): whatever threads, chunk or company it
 * has, its bits are the same. Units are worked off in waves that the memory for partial sums bounds.
 *
 * Expanded, for long chunks: a task takes one head; strips of positions are turned into keys and values in
 * scratch, each strip serving up to 480 tokens. 576 + 512 multiply-adds a token, position and head become
 * 192 + 128, at the price of 131,072 a position and head: it pays from about 170 tokens on.
 *
 * Where kv_b streams, each of its strips does all of this for the heads that it has. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/size.h"
#include "kernels/attend.h"
#include "runtime/graph_parts.h"

enum {
    COLUMNS = 48,
    WAVE = 16,    /* tokens of a wave */
    RANGE = 128,  /* positions, the shortest */
    RANGES = 64,  /* of a query, at most; and tokens of a wave times their ranges */
    ROWS = 16,    /* of kv_b, decoded at a time */
    STRIP = 256,  /* positions expanded at a time */
    QUERIES = 480 /* tokens that an expanded strip serves */
};
_Static_assert(RANGE % SL_ATTEND_BLOCK == 0, "ranges are whole blocks");
_Static_assert(QUERIES % COLUMNS == 0, "whole blocks of columns");

/* Tokens [tok, tok + n) in view, of one part. */
struct unit {
    const struct sl_part *part;
    int tok, n, first; /* first: its number in the wave */
    uint64_t pos;      /* of the first token */
    uint64_t range;    /* positions of a range */
    int n_ranges;      /* that the last token sees */
    int heads;         /* of a group; the last one may have fewer */
    int n_groups;
    size_t ldq;     /* of a group's columns, padded */
    size_t acc, ms; /* where its part of the wave's sums begins, in floats */
    int first_task;
};

struct job {
    struct sl_graph *g;
    struct sl_mat kv_b; /* of heads [first, first + n_heads) */
    int first, n_heads;
    int nope, rope, vd, kd;
    int lora, row; /* latent, latent + rope */
    struct unit units[WAVE];
    int n_units, n_tokens, n_tasks;
    const struct sl_part *part; /* the one that is expanded */
};

/* ---- memory */

static uint64_t range_of(uint64_t pos)
{
    uint64_t range = RANGE;
    while (pos / range >= RANGES) range *= 2;
    return range;
}

static int ranges_of(uint64_t pos, uint64_t range)
{
    return (int)(pos / range) + 1;
}

/* Most products of tokens and ranges in a wave. */
static uint64_t most_pairs(uint64_t max_ctx)
{
    const uint64_t pos = max_ctx - 1;
    const uint64_t most = pos / RANGE >= RANGES ? RANGES : (pos / RANGE + 1) * WAVE;
    return most < RANGES ? most : RANGES;
}

/* Of a wave: queries [WAVE][heads][row]; of each unit weighted latents [range][heads][n][lora], maxima and
 * sums [range][group][2][ldq]. */
uint64_t sl_graph_latent_floats(const struct sl_config *c, uint64_t max_ctx,
                                struct sl_latent_bufs *b, float *base)
{
    const uint64_t heads = (uint64_t)c->n_heads;
    const uint64_t lora = (uint64_t)c->kv_lora_rank;
    const uint64_t pairs = most_pairs(max_ctx);
    const uint64_t q = WAVE * heads * (lora + (uint64_t)c->qk_rope_dim);
    const uint64_t acc = pairs * heads * lora;
    const uint64_t ms = pairs * 2 * (heads + COLUMNS);
    if (base) *b = (struct sl_latent_bufs){base, base + q, base + q + acc};
    return q + acc + ms;
}

/* A worker's scratch: what one of the tasks needs. */
struct absorb_bufs {
    float *in;    /* [WAVE][nope] */
    float *rows;  /* [ROWS][lora, padded] */
    float *out;   /* [WAVE][lora] */
    float *value; /* [WAVE][vd] */
};
struct attend_bufs {
    float *q;    /* [row][COLUMNS] */
    float *work; /* of the kernel */
};
struct expand_bufs {
    float *rows;      /* [ROWS][lora, padded] */
    float *w;         /* [lora][nope + vd] */
    float *strip;     /* [STRIP][kd + vd] */
    float *q;         /* [QUERIES / COLUMNS][kd][COLUMNS] */
    float *acc;       /* [QUERIES][vd] */
    float *max, *sum; /* [QUERIES] */
    float *work;
};

static size_t carve(float *base, float **const at[], const size_t sizes[], int n)
{
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        *at[i] = base ? base + used : NULL;
        used += (sizes[i] + 15) & ~(size_t)15;
    }
    return used;
}

static size_t padded(int lora)
{
    return ((size_t)lora + 31) / 32 * 32;
}

static size_t absorb_scratch(const struct sl_config *c, float *base, struct absorb_bufs *b)
{
    float **const at[4] = {&b->in, &b->rows, &b->out, &b->value};
    const size_t lora = padded(c->kv_lora_rank);
    const size_t sizes[4] = {WAVE * (size_t)c->qk_nope_dim, ROWS * lora, WAVE * lora,
                             WAVE * (size_t)c->v_head_dim};
    return carve(base, at, sizes, 4);
}

static size_t attend_scratch(const struct sl_config *c, float *base, struct attend_bufs *b)
{
    float **const at[2] = {&b->q, &b->work};
    const size_t sizes[2] = {((size_t)c->kv_lora_rank + (size_t)c->qk_rope_dim) * COLUMNS,
                             (SL_ATTEND_BLOCK + 1) * COLUMNS};
    return carve(base, at, sizes, 2);
}

static size_t expand_scratch(const struct sl_config *c, float *base, struct expand_bufs *b)
{
    float **const at[8] = {&b->rows, &b->w, &b->strip, &b->q, &b->acc, &b->max, &b->sum, &b->work};
    const size_t lora = (size_t)c->kv_lora_rank;
    const size_t kd = (size_t)c->qk_nope_dim + (size_t)c->qk_rope_dim;
    const size_t vd = (size_t)c->v_head_dim;
    const size_t sizes[8] = {ROWS * padded(c->kv_lora_rank),
                             lora * ((size_t)c->qk_nope_dim + vd),
                             STRIP * (kd + vd),
                             kd * QUERIES,
                             QUERIES * vd,
                             QUERIES,
                             QUERIES,
                             (SL_ATTEND_BLOCK + 1) * COLUMNS};
    return carve(base, at, sizes, 8);
}

size_t sl_graph_latent_scratch(const struct sl_config *c)
{
    struct absorb_bufs a;
    struct attend_bufs t;
    struct expand_bufs e;
    const size_t sizes[3] = {absorb_scratch(c, NULL, &a), attend_scratch(c, NULL, &t),
                             expand_scratch(c, NULL, &e)};
    size_t most = 0;
    for (int i = 0; i < 3; i++) most = sizes[i] > most ? sizes[i] : most;
    return most;
}

static const float *latent_rows(const struct job *j, const struct sl_part *p)
{
    return p->st->mla_rows[j->g->l];
}

static float scale_of(const struct job *j)
{
    return (float)(1.0 / sqrt((double)j->kd));
}

/* Columns [at, at + n) of q to be the queries of n rows, ld apart: a transpose. */
static void turn(float *q, size_t ldq, const float *rows, size_t ld, int n, int width)
{
    for (int k = 0; k < width; k++)
        for (int i = 0; i < n; i++)
            q[(size_t)k * ldq + (size_t)i] = rows[(size_t)i * ld + (size_t)k];
}

/* The gated output of one token and head. */
static void put_out(const struct job *j, int tok, int head, const float *o)
{
    const struct sl_graph *g = j->g;
    float *gate =
        g->mla.gate + ((size_t)tok * (size_t)g->c->n_heads + (size_t)head) * (size_t)j->vd;
    if (!g->c->mla_output_gate) {
        memcpy(gate, o, sizeof(float) * (size_t)j->vd);
        return;
    }
    g->k.sigmoid(gate, gate, j->vd);
    g->k.mulv(gate, o, gate, j->vd);
}

static const float *query(const struct job *j, int tok, int head)
{
    return j->g->mla.q + ((size_t)tok * (size_t)j->g->c->n_heads + (size_t)head) * (size_t)j->kd;
}

/* ---- absorbed */

/* Query of wave token t and local head h: [row]. */
static float *absorbed(const struct job *j, int t, int h)
{
    return j->g->latent.q + ((size_t)t * (size_t)j->n_heads + (size_t)h) * (size_t)j->row;
}

static float *unit_acc(const struct job *j, const struct unit *u, int range, int h)
{
    return j->g->latent.acc + u->acc +
           ((size_t)range * (size_t)j->n_heads + (size_t)h) * (size_t)u->n * (size_t)j->lora;
}

static float *unit_ms(const struct job *j, const struct unit *u, int range, int group)
{
    return j->g->latent.ms + u->ms +
           ((size_t)range * (size_t)u->n_groups + (size_t)group) * 2 * u->ldq;
}

static void absorb_task(void *ctx, int h, int worker)
{
    const struct job *j = ctx;
    const struct sl_graph *g = j->g;
    const int head = j->first + h;
    struct absorb_bufs b;
    absorb_scratch(g->c, sl_graph_scratch(g, worker), &b);
    for (int i = 0; i < j->n_units; i++)
        for (int t = 0; t < j->units[i].n; t++) {
            const struct unit *u = &j->units[i];
            const float *q = query(j, u->tok + t, head);
            memcpy(b.in + (size_t)(u->first + t) * (size_t)j->nope, q,
                   sizeof(float) * (size_t)j->nope);
            memcpy(absorbed(j, u->first + t, h) + j->lora, q + j->nope,
                   sizeof(float) * (size_t)j->rope);
        }
    const int row0 = h * (j->nope + j->vd);
    const size_t ld = padded(j->lora);
    for (int r = 0; r < j->nope; r += ROWS) {
        const int n = j->nope - r < ROWS ? j->nope - r : ROWS;
        g->k.decode(&j->kv_b, row0 + r, row0 + r + n, j->lora, b.rows, ld);
        const struct sl_mm mm = {.A = b.in + r,
                                 .si = (size_t)j->nope,
                                 .sk = 1,
                                 .B = b.rows,
                                 .ldb = ld,
                                 .C = absorbed(j, 0, h),
                                 .ldc = (size_t)j->n_heads * (size_t)j->row,
                                 .m = j->n_tokens,
                                 .n = j->lora,
                                 .depth = n,
                                 .add = r > 0};
        g->k.mm(&mm);
    }
}

/* One group of one unit over one range. */
static void attend_task(void *ctx, int task, int worker)
{
    const struct job *j = ctx;
    const struct sl_graph *g = j->g;
    int i = j->n_units - 1;
    while (j->units[i].first_task > task) i--;
    const struct unit *u = &j->units[i];
    const int range = (task - u->first_task) / u->n_groups;
    const int group = (task - u->first_task) % u->n_groups;
    const int h0 = group * u->heads;
    const int n_heads = j->n_heads - h0 < u->heads ? j->n_heads - h0 : u->heads;
    const int columns = n_heads * u->n;
    const uint64_t from = (uint64_t)range * u->range;
    const uint64_t end = u->pos + (uint64_t)u->n; /* what the last token sees */
    const int n_pos = (int)(end - from < u->range ? end - from : u->range);
    struct attend_bufs b;
    int seen[COLUMNS];
    attend_scratch(g->c, sl_graph_scratch(g, worker), &b);

    float *max = unit_ms(j, u, range, group), *sum = max + u->ldq;
    float *acc = unit_acc(j, u, range, h0);
    for (size_t c = 0; c < u->ldq; c++) {
        max[c] = SL_ATTEND_NONE;
        sum[c] = 0.0f;
    }
    memset(acc, 0, sizeof(float) * (size_t)columns * (size_t)j->lora);
    memset(b.q, 0, sizeof(float) * (size_t)j->row * u->ldq);
    bool masked = false;
    for (int t = 0; t < u->n; t++) { /* column of head h and token t: h * n + t */
        const int64_t sees = (int64_t)u->pos + t + 1 - (int64_t)from;
        masked |= sees < n_pos;
        for (int h = 0; h < n_heads; h++) seen[h * u->n + t] = sees < n_pos ? (int)sees : n_pos;
    }
    for (int h = 0; h < n_heads; h++)
        turn(b.q + h * u->n, u->ldq, absorbed(j, u->first, h0 + h),
             (size_t)j->n_heads * (size_t)j->row, u->n, j->row);
    const float *rows = latent_rows(j, u->part) + from * (uint64_t)j->row;
    const struct sl_attend p = {.n_query = columns,
                                .kd = j->row,
                                .vd = j->lora,
                                .ldq = u->ldq,
                                .q = b.q,
                                .ldk = (size_t)j->row,
                                .ldv = (size_t)j->row,
                                .scale = scale_of(j),
                                .seen = masked ? seen : NULL,
                                .max = max,
                                .sum = sum,
                                .acc = acc,
                                .scratch = b.work};
    g->k.attend(&p, rows, rows, n_pos);
}

/* Ranges of one query joined, in order, over those that it sees. */
static void join(const struct job *j, const struct unit *u, int t, int h, float *out)
{
    const struct sl_graph *g = j->g;
    const int n = ranges_of(u->pos + (uint64_t)t, u->range);
    const int group = h / u->heads;
    const size_t column = (size_t)(h % u->heads) * (size_t)u->n + (size_t)t;
    float w[RANGES], most = SL_ATTEND_NONE, total = 0.0f;
    for (int r = 0; r < n; r++) {
        w[r] = unit_ms(j, u, r, group)[column];
        most = most < w[r] ? w[r] : most;
    }
    for (int r = 0; r < n; r++) w[r] = w[r] - most;
    g->k.exp(w, w, n);
    for (int r = 0; r < n; r++) total += w[r] * unit_ms(j, u, r, group)[u->ldq + column];
    memset(out, 0, sizeof(float) * (size_t)j->lora);
    for (int r = 0; r < n; r++)
        g->k.axpy(out, w[r] / total, unit_acc(j, u, r, h) + (size_t)t * (size_t)j->lora, j->lora);
}

static void value_task(void *ctx, int h, int worker)
{
    const struct job *j = ctx;
    struct sl_graph *g = j->g;
    struct absorb_bufs b;
    absorb_scratch(g->c, sl_graph_scratch(g, worker), &b);
    for (int i = 0; i < j->n_units; i++)
        for (int t = 0; t < j->units[i].n; t++)
            join(j, &j->units[i], t, h, b.out + (size_t)(j->units[i].first + t) * (size_t)j->lora);
    const struct sl_mat w_v = sl_graph_rows(&j->kv_b, h * (j->nope + j->vd) + j->nope, j->vd);
    g->k.mul(&w_v, 0, j->vd, b.out, (size_t)j->lora, j->n_tokens, b.value, (size_t)j->vd);
    for (int i = 0; i < j->n_units; i++)
        for (int t = 0; t < j->units[i].n; t++)
            put_out(j, j->units[i].tok + t, j->first + h,
                    b.value + (size_t)(j->units[i].first + t) * (size_t)j->vd);
}

static void run_wave(struct job *j)
{
    if (!j->n_units) return;
    sl_graph_run(j->g, j->n_heads, absorb_task, j);
    sl_graph_run(j->g, j->n_tasks, attend_task, j);
    sl_graph_run(j->g, j->n_heads, value_task, j);
    j->n_units = j->n_tokens = j->n_tasks = 0;
}

/* How many of n tokens from pos on are one unit: of one length of ranges, and such that the columns of
 * whole heads fill COLUMNS. */
static int unit_tokens(uint64_t pos, int n)
{
    static const int sizes[] = {16, 12, 8, 6, 4, 3, 2, 1};
    const uint64_t range = range_of(pos);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes - 1; i++) {
        const uint64_t last = pos + (uint64_t)sizes[i] - 1;
        if (sizes[i] <= n && range_of(last) == range && sizes[i] * ranges_of(last, range) <= RANGES)
            return sizes[i];
    }
    return 1;
}

static void absorb_part(struct job *j, const struct sl_part *part)
{
    int pairs = 0;
    for (int i = 0; i < j->n_units; i++) pairs += j->units[i].n * j->units[i].n_ranges;
    for (int t = 0, n; t < part->n; t += n) {
        const uint64_t pos = part->pos + (uint64_t)t;
        n = unit_tokens(pos, part->n - t);
        const uint64_t range = range_of(pos);
        const int n_ranges = ranges_of(pos + (uint64_t)n - 1, range);
        if (j->n_tokens + n > WAVE || pairs + n * n_ranges > RANGES) {
            run_wave(j);
            pairs = 0;
        }
        struct unit *u = &j->units[j->n_units];
        *u = (struct unit){.part = part,
                           .tok = part->tok + t,
                           .n = n,
                           .first = j->n_tokens,
                           .pos = pos,
                           .range = range,
                           .n_ranges = n_ranges,
                           .heads = COLUMNS / n < j->n_heads ? COLUMNS / n : j->n_heads,
                           .first_task = j->n_tasks};
        u->n_groups = (j->n_heads + u->heads - 1) / u->heads;
        u->ldq = sl_attend_ldq(u->heads * n);
        if (j->n_units) {
            const struct unit *before = u - 1;
            const size_t seen = (size_t)before->n_ranges;
            u->acc = before->acc + seen * (size_t)j->n_heads * (size_t)before->n * (size_t)j->lora;
            u->ms = before->ms + seen * (size_t)before->n_groups * 2 * before->ldq;
        }
        pairs += n * n_ranges;
        j->n_units++;
        j->n_tokens += n;
        j->n_tasks += u->n_groups * n_ranges;
    }
}

/* ---- expanded */

/* Keys and values of positions [pos, pos + n) to b->strip: kd numbers, then vd. */
static void expand(const struct job *j, const struct expand_bufs *b, uint64_t pos, int n)
{
    const struct sl_graph *g = j->g;
    const float *rows = latent_rows(j, j->part) + pos * (uint64_t)j->row;
    const size_t ld = (size_t)(j->kd + j->vd);
    struct sl_mm mm = {.A = rows,
                       .si = (size_t)j->row,
                       .sk = 1,
                       .B = b->w,
                       .ldb = (size_t)(j->nope + j->vd),
                       .C = b->strip,
                       .ldc = ld,
                       .m = n,
                       .n = j->nope,
                       .depth = j->lora};
    g->k.mm(&mm);
    mm.B += j->nope;
    mm.C += j->kd;
    mm.n = j->vd;
    g->k.mm(&mm);
    for (int i = 0; i < n; i++)
        memcpy(b->strip + (size_t)i * ld + j->nope, rows + (size_t)i * (size_t)j->row + j->lora,
               sizeof(float) * (size_t)j->rope);
}

/* Queries of tokens [t, t + n) of the part, n <= QUERIES, to their outputs. */
static void expanded_tokens(const struct job *j, const struct expand_bufs *b, int head, int t,
                            int n)
{
    const struct sl_graph *g = j->g;
    const uint64_t first = j->part->pos + (uint64_t)t + 1; /* positions the first query sees */
    const uint64_t n_pos = first + (uint64_t)n - 1;
    const size_t ldq = (size_t)g->c->n_heads * (size_t)j->kd;
    const size_t block = (size_t)j->kd * COLUMNS;
    const size_t ld = (size_t)(j->kd + j->vd);
    memset(b->q, 0, sizeof(float) * (size_t)j->kd * QUERIES);
    for (int i = 0; i < n; i += COLUMNS)
        turn(b->q + (size_t)(i / COLUMNS) * block, COLUMNS, query(j, j->part->tok + t + i, head),
             ldq, n - i < COLUMNS ? n - i : COLUMNS, j->kd);
    for (int i = 0; i < QUERIES; i++) {
        b->max[i] = SL_ATTEND_NONE;
        b->sum[i] = 0.0f;
    }
    memset(b->acc, 0, sizeof(float) * (size_t)n * (size_t)j->vd);
    for (uint64_t s = 0; s < n_pos; s += STRIP) {
        const int rows = (int)(n_pos - s < STRIP ? n_pos - s : STRIP);
        expand(j, b, s, rows);
        for (int i = 0; i < n; i += COLUMNS) {
            int seen[COLUMNS];
            const int columns = n - i < COLUMNS ? n - i : COLUMNS;
            const int64_t sees = (int64_t)(first + (uint64_t)i) - (int64_t)s;
            const int64_t most = sees + columns - 1;
            if (most <= 0) continue;
            for (int c = 0; c < columns; c++) seen[c] = sees + c < rows ? (int)(sees + c) : rows;
            const struct sl_attend p = {.n_query = columns,
                                        .kd = j->kd,
                                        .vd = j->vd,
                                        .ldq = COLUMNS,
                                        .q = b->q + (size_t)(i / COLUMNS) * block,
                                        .ldk = ld,
                                        .ldv = ld,
                                        .scale = scale_of(j),
                                        .seen = sees < rows ? seen : NULL,
                                        .max = b->max + i,
                                        .sum = b->sum + i,
                                        .acc = b->acc + (size_t)i * (size_t)j->vd,
                                        .scratch = b->work};
            g->k.attend(&p, b->strip, b->strip + j->kd, most < rows ? (int)most : rows);
        }
    }
    for (int i = 0; i < n; i++) {
        float *o = b->acc + (size_t)i * (size_t)j->vd;
        for (int k = 0; k < j->vd; k++) o[k] = o[k] / b->sum[i];
        put_out(j, j->part->tok + t + i, head, o);
    }
}

static void expand_task(void *ctx, int h, int worker)
{
    const struct job *j = ctx;
    const struct sl_graph *g = j->g;
    const int n_rows = j->nope + j->vd;
    const size_t ld = padded(j->lora);
    struct expand_bufs b;
    expand_scratch(g->c, sl_graph_scratch(g, worker), &b);
    for (int r = 0; r < n_rows; r += ROWS) {
        const int n = n_rows - r < ROWS ? n_rows - r : ROWS;
        g->k.decode(&j->kv_b, h * n_rows + r, h * n_rows + r + n, j->lora, b.rows, ld);
        turn(b.w + r, (size_t)n_rows, b.rows, ld, n, j->lora);
    }
    for (int t = 0; t < j->part->n; t += QUERIES)
        expanded_tokens(j, &b, j->first + h, t,
                        j->part->n - t < QUERIES ? j->part->n - t : QUERIES);
}

/* Multiply-adds a head, of the two ways. */
static bool expansion_pays(const struct job *j, const struct sl_part *p)
{
    const double n = p->n, seen = n * ((double)p->pos + n / 2);
    const int passes = (p->n + QUERIES - 1) / QUERIES;
    const double expanded = passes * ((double)p->pos + n) * (double)j->lora * (j->nope + j->vd);
    return expanded + seen * (j->kd + j->vd) <
           seen * (j->row + j->lora) + n * j->lora * (j->nope + j->vd);
}

/* ---- both */

static void run_heads(struct job *j)
{
    struct sl_graph *g = j->g;
    for (int i = 0; i < g->n_parts; i++) {
        if (!expansion_pays(j, &g->part[i])) {
            absorb_part(j, &g->part[i]);
            continue;
        }
        j->part = &g->part[i];
        sl_graph_run(g, j->n_heads, expand_task, j);
    }
    run_wave(j);
}

void sl_graph_latent(struct sl_graph *g)
{
    const struct sl_config *c = g->c;
    const struct sl_mat *kv_b = &g->layer->attn.mla.kv_b;
    const int rows = c->qk_nope_dim + c->v_head_dim;
    struct job j = {.g = g,
                    .kv_b = *kv_b,
                    .n_heads = c->n_heads,
                    .nope = c->qk_nope_dim,
                    .rope = c->qk_rope_dim,
                    .vd = c->v_head_dim,
                    .kd = c->qk_nope_dim + c->qk_rope_dim,
                    .lora = c->kv_lora_rank,
                    .row = c->kv_lora_rank + c->qk_rope_dim};
    if (!kv_b->stream) {
        run_heads(&j);
        return;
    }
    while (j.first < c->n_heads && sl_graph_take_strip(g, kv_b, j.first * rows, &j.kv_b)) {
        j.n_heads = j.kv_b.rows / rows;
        run_heads(&j);
        j.first += j.n_heads;
        sl_graph_put_strip(g);
    }
}
