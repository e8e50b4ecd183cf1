/* Matrix products of a region: several matrices, cut into row blocks of like cost.
 *
 * In decode a region is a few microseconds long, so all products that can run together do (q, k, v and
 * gate of a layer; gate and up of all its experts) and blocks are as large as balance allows: about
 * four tasks a thread. In prefill tokens go through a block SL_GRAPH_BATCH at a time, so that what
 * follows a product finds its rows in the cache.
 *
 * A matrix that streams is a row of products, one a strip, each in all threads: y[r] = w[r] . x is the
 * same whatever strip r lies in, so the bits are those of the matrix in memory. Of a pair (gate and up)
 * the first is finished before the second begins, as they lie in the file, and what follows on the same
 * rows comes with the second. What is in memory is computed first, while strips land. */
#include <math.h>
#include <string.h>

#include "runtime/graph_parts.h"

#define MIN_COST   16384 /* multiply-adds that are worth a task: about 2 us */
#define ROW_STEP   8     /* kernels take rows in fours or eights */
#define POST_CHUNK 256
#define FAST_BATCH 192 /* tokens at a time on the fast path: turning a panel must not count */

struct mul_job {
    struct sl_graph *g;
    struct sl_seg *segs;
    int n_segs;
};

struct sl_mat sl_graph_rows(const struct sl_mat *w, int row, int n)
{
    struct sl_mat out = *w;
    out.rows = n;
    out.codes += sl_fmt_row_bytes(w->fmt, (uint64_t)w->cols) * (uint64_t)row;
    return out;
}

void sl_graph_situ(struct sl_graph *g, const struct sl_seg *s, int tok, int row0, int row1)
{
    float part[POST_CHUNK]; /* the kernel's output may not overlap its inputs */
    float *y = s->y + (size_t)tok * s->ldy;
    const float *u = s->y2 + (size_t)tok * s->ldy;
    for (int r = row0; r < row1; r += POST_CHUNK) {
        const int n = row1 - r < POST_CHUNK ? row1 - r : POST_CHUNK;
        g->k.situ(part, y + r, u + r, n, (float)g->c->situ_beta, (float)g->c->situ_linear_beta);
        memcpy(y + r, part, sizeof(float) * (size_t)n);
    }
}

static void post_resid(struct sl_graph *g, const struct sl_seg *s, int tok, int row0, int row1)
{
    float *y = s->y + (size_t)tok * s->ldy + row0;
    float *p = sl_graph_partial(g, tok) + s->row_base + row0;
    const int n = row1 - row0;
    if (s->extra) g->k.add(y, y, s->extra + (size_t)tok * s->ldy + row0, n);
    if (s->fresh)
        memcpy(p, y, sizeof(float) * (size_t)n);
    else
        g->k.add(p, p, y, n);
}

static void post_finite(struct sl_graph *g, const struct sl_seg *s, int tok, int row0, int row1)
{
    const float *y = s->y + (size_t)tok * s->ldy;
    bool bad = false;
    for (int r = row0; r < row1; r++) bad |= !isfinite(y[r]);
    if (bad) sl_graph_note_bad(g, tok);
}

/* Rows of one matrix for tokens [t, t + n), to y of token 0. */
static void product(const struct sl_graph *g, const struct sl_seg *s, const struct sl_mat *w,
                    int act, int row0, int row1, int t, int n, float *y)
{
    y += (size_t)t * s->ldy;
    if (act < 0) {
        sl_graph_mul_floats(g, w, row0, row1, s->x + (size_t)t * s->ldx, s->ldx, n,
                            sl_seg_tokens(s), y, s->ldy);
        return;
    }
    struct sl_act a = g->packed[act].act;
    a.q += (size_t)t * sl_act_bytes(a.planes, a.cols);
    a.scale += (size_t)t * sl_act_scales(a.cols);
    a.n_tok = n;
    g->mul_a8(w, row0, row1, &a, y, s->ldy);
}

static void mul_rows(struct sl_graph *g, const struct sl_seg *s, int row0, int row1)
{
    const int batch = g->o.fast ? FAST_BATCH : SL_GRAPH_BATCH;
    for (int t = 0; t < s->n_tok; t += batch) {
        const int n = s->n_tok - t < batch ? s->n_tok - t : batch;
        float *y = s->to_y2 ? s->y2 : s->y;
        product(g, s, s->w, s->act, row0, row1, t, n, y);
        if (s->w2) product(g, s, s->w2, s->act2, row0, row1, t, n, s->y2);
        for (int i = t; i < t + n; i++) {
            if (s->post == SL_POST_SITU) sl_graph_situ(g, s, i, row0, row1);
            if (s->post == SL_POST_RESID) post_resid(g, s, i, row0, row1);
            if (s->post == SL_POST_FINITE) post_finite(g, s, i, row0, row1);
        }
    }
}

static void mul_task(void *ctx, int task, int worker)
{
    (void)worker;
    const struct mul_job *job = ctx;
    int i = job->n_segs - 1;
    while (job->segs[i].first_task > task) i--;
    const struct sl_seg *s = &job->segs[i];
    const int row0 = (task - s->first_task) * s->block_rows;
    const int row1 = row0 + s->block_rows < s->w->rows ? row0 + s->block_rows : s->w->rows;
    mul_rows(job->g, s, row0, row1);
}

static uint64_t row_cost(const struct sl_seg *s)
{
    return (uint64_t)s->w->cols * (uint64_t)s->n_tok * (s->w2 ? 2 : 1);
}

/* Where matrices lie on single nodes: a span for each. */
static bool deals(struct sl_graph *g, const struct sl_seg *segs, int n, int n_tasks)
{
    bool any = false;
    if (g->n_nodes < 2) return false;
    for (int i = 0; i < n; i++) {
        const int end = i + 1 < n ? segs[i + 1].first_task : n_tasks;
        g->spans[i] = (struct sl_numa_span){.first = segs[i].first_task,
                                            .n = end - segs[i].first_task,
                                            .node = segs[i].placed ? segs[i].node : -1};
        any |= segs[i].placed;
    }
    return any;
}

static void mul_held(struct sl_graph *g, struct sl_seg *segs, int n)
{
    if (!n) return;
    sl_graph_pack(g, segs, n);
    uint64_t total = 0;
    for (int i = 0; i < n; i++) total += row_cost(&segs[i]) * (uint64_t)segs[i].w->rows;
    uint64_t want = total / ((uint64_t)g->n_threads * 4);
    if (want < MIN_COST) want = MIN_COST;
    int n_tasks = 0;
    for (int i = 0; i < n; i++) {
        struct sl_seg *s = &segs[i];
        const uint64_t rows = (uint64_t)s->w->rows;
        uint64_t block = (want / row_cost(s) + ROW_STEP - 1) / ROW_STEP * ROW_STEP;
        if (block < ROW_STEP) block = ROW_STEP;
        /* An even cut: no short block at the end of a matrix. */
        const uint64_t n_blocks = (rows + block - 1) / block;
        block = ((rows + n_blocks - 1) / n_blocks + ROW_STEP - 1) / ROW_STEP * ROW_STEP;
        s->block_rows = (int)block;
        s->first_task = n_tasks;
        n_tasks += (int)((rows + block - 1) / block);
    }
    struct mul_job job = {g, segs, n};
    if (deals(g, segs, n, n_tasks))
        sl_graph_deal(g, n, mul_task, &job);
    else
        sl_graph_run(g, n_tasks, mul_task, &job);
}

/* ---- strips */

bool sl_graph_take_strip(struct sl_graph *g, const struct sl_mat *w, int row, struct sl_mat *strip)
{
    struct sl_strip got;
    struct sl_err err = {0};
    if (atomic_load_explicit(&g->failed, memory_order_relaxed)) return false;
    int rc = sl_stream_take(g->store, w->stream - 1, row, &got, &err);
    if (rc) {
        sl_graph_note_failure(g, rc, &err);
        return false;
    }
    *strip = *w;
    strip->stream = 0;
    strip->rows = got.n_rows;
    strip->codes = got.rows;
    return true;
}

void sl_graph_put_strip(struct sl_graph *g)
{
    sl_stream_put(g->store);
}

/* One matrix of s, w or (second) w2, strip by strip; what follows on its rows only with last. */
static void mul_strips(struct sl_graph *g, const struct sl_seg *s, bool second, bool last)
{
    const struct sl_mat *w = second ? s->w2 : s->w;
    struct sl_mat strip;
    for (int row = 0; row < w->rows && sl_graph_take_strip(g, w, row, &strip); row += strip.rows) {
        struct sl_seg part = *s;
        part.w = &strip;
        part.w2 = NULL;
        part.y += row;
        if (part.y2) part.y2 += row;
        if (part.extra) part.extra += row;
        part.row_base = row;
        part.to_y2 = second;
        if (!last) part.post = SL_POST_NONE;
        mul_held(g, &part, 1);
        sl_graph_put_strip(g);
    }
}

static void mul_streamed(struct sl_graph *g, const struct sl_seg *s)
{
    const bool first = s->w->stream != 0;
    const bool second = s->w2 && s->w2->stream;
    if (s->w2 && first != second) { /* the one in memory, while the other lands */
        struct sl_seg held = *s;
        held.w = first ? s->w2 : s->w;
        held.w2 = NULL;
        held.to_y2 = first;
        held.post = SL_POST_NONE;
        mul_held(g, &held, 1);
    }
    if (first) mul_strips(g, s, false, !second);
    if (second) mul_strips(g, s, true, true);
}

/* Number of the first part that a product needs, 0 when it needs none. */
static int first_part(const struct sl_seg *s)
{
    return s->w->stream ? s->w->stream : s->w2 ? s->w2->stream : 0;
}

void sl_graph_mul(struct sl_graph *g, struct sl_seg *segs, int n)
{
    int held = 0;
    for (int i = 1; i < n; i++) { /* few, and in order as a rule */
        const struct sl_seg s = segs[i];
        int at = i;
        for (; at > 0 && first_part(&segs[at - 1]) > first_part(&s); at--) segs[at] = segs[at - 1];
        segs[at] = s;
    }
    while (held < n && !first_part(&segs[held])) held++;
    mul_held(g, segs, held);
    for (int i = held; i < n; i++) mul_streamed(g, &segs[i]);
}
