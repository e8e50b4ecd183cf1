/* Memory bandwidth and products: all threads stream through buffers that no cache holds, a window at a
 * time, round and round. A window takes a few milliseconds and the best one counts: one that was
 * disturbed says nothing about the machine, and on a busy machine long passes are all disturbed. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/size.h"
#include "kernels/kernels.h"
#include "offload/probe.h"

enum { COLS = 3584, BLOCK_ROWS = 128, PREFILL_TOKENS = 48, SLICE = 4 << 20 };

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef uint64_t vec __attribute__((vector_size(32), aligned(32)));

struct stream {
    unsigned char *base;
    int n_slices; /* of SLICE bytes */
    int first;    /* of the window, taken round */
    volatile uint64_t sink[1024];
};

static unsigned char *slice_of(const struct stream *s, int task)
{
    return s->base + (size_t)((s->first + task) % s->n_slices) * SLICE;
}

static void read_task(void *ctx, int task, int worker)
{
    (void)worker;
    struct stream *s = ctx;
    /* Four streams a thread: one alone does not keep enough lines in flight. */
    const size_t quarter = SLICE / sizeof(vec) / 4;
    const vec *v = (const vec *)slice_of(s, task);
    vec a = {0};
    vec b = {0};
    vec c = {0};
    vec d = {0};
    for (size_t i = 0; i < quarter; i++) {
        a ^= v[i];
        b ^= v[i + quarter];
        c ^= v[i + 2 * quarter];
        d ^= v[i + 3 * quarter];
    }
    a ^= b ^ c ^ d;
    s->sink[task % 1024] = a[0] ^ a[1] ^ a[2] ^ a[3];
}

static void copy_task(void *ctx, int task, int worker)
{
    (void)worker;
    struct stream *s = ctx;
    unsigned char *from = slice_of(s, task);
    memcpy(from + SLICE / 2, from, SLICE / 2);
}

static void fill_task(void *ctx, int task, int worker)
{
    (void)worker;
    struct stream *s = ctx;
    memset(s->base + (size_t)task * SLICE, task, SLICE);
}

/* Seconds of the fastest window; *first is where the next one starts. Three at least, but for Ctrl-C. */
static double best_window(struct sl_pool *pool, int n_tasks, sl_task_fn fn, void *ctx, int *first,
                          double seconds)
{
    double best = 0;
    const double end = now_seconds() + seconds;
    for (int i = 0; !i || (!sl_interrupted() && (i < 3 || now_seconds() < end)); i++) {
        double t0 = now_seconds();
        sl_pool_run(pool, n_tasks, fn, ctx);
        double t = now_seconds() - t0;
        if (!i || t < best) best = t;
        *first += n_tasks;
    }
    return best > 1e-9 ? best : 1e-9;
}

int sl_probe_memory(struct sl_pool *pool, uint64_t bytes, double seconds, double *read_bps,
                    double *copy_bps, struct sl_err *err)
{
    struct stream *s = calloc(1, sizeof *s);
    const int n = sl_pool_threads(pool) * 4; /* slices of a window */
    int slices = (int)(bytes / SLICE) > n ? (int)(bytes / SLICE) : n;
    int rc = 0;
    if (s) s->base = aligned_alloc(4096, (size_t)slices * SLICE);
    if (!s || !s->base) {
        rc = sl_fail(err, SL_E_NOMEM, NULL, "probe", "no memory for %zu bytes",
                     (size_t)slices * SLICE);
    } else {
        s->n_slices = slices;
        sl_pool_run(pool, slices, fill_task, s);
        double window = (double)n * SLICE;
        *read_bps = window / best_window(pool, n, read_task, s, &s->first, seconds);
        *copy_bps = window / best_window(pool, n, copy_task, s, &s->first, seconds);
        if (sl_interrupted()) rc = sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted");
    }
    if (s) free(s->base);
    free(s);
    return rc;
}

/* ---------------------------------------------------------------- products */

struct product {
    const struct sl_kernels *k;
    struct sl_mat w;
    const float *x;
    float *y; /* [tasks of a window][tokens][BLOCK_ROWS] */
    int tokens;
    int n_blocks, first; /* of BLOCK_ROWS rows; where the window starts, taken round */
};

static void product_task(void *ctx, int task, int worker)
{
    (void)worker;
    const struct product *p = ctx;
    int row = (p->first + task) % p->n_blocks * BLOCK_ROWS;
    float *y = p->y + (size_t)task * (size_t)p->tokens * BLOCK_ROWS;
    /* The kernel writes y[t * ldy + r] for r in the range: shift so that the block is its own. */
    p->k->mul(&p->w, row, row + BLOCK_ROWS, p->x, COLS, p->tokens, y - row, BLOCK_ROWS);
}

/* Ordinary numbers in every format: random codes, small scales. */
static void fill_planes(const struct sl_mat *w, uint8_t *base, const struct sl_planes *pl)
{
    uint32_t rnd = 1;
    uint8_t *codes = base;
    for (uint64_t i = 0; i < pl->codes; i++) {
        rnd = rnd * 1664525u + 1013904223u;
        codes[i] = (uint8_t)(rnd >> 24);
    }
    if (w->fmt == SL_FMT_BF16)
        for (uint64_t i = 1; i < pl->codes; i += 2) codes[i] = (uint8_t)(0x3c | (codes[i] & 0x80));
    if (w->fmt == SL_FMT_F32)
        for (uint64_t i = 3; i < pl->codes; i += 4) codes[i] = (uint8_t)(0x3c | (codes[i] & 0x80));
    /* Trunk formats: f16 scales behind the codes of a row, one a block of 32. */
    uint64_t row = sl_fmt_row_bytes(w->fmt, COLS);
    bool blocks = w->fmt == SL_FMT_T8 || w->fmt == SL_FMT_T6 || w->fmt == SL_FMT_T4;
    for (uint64_t r = 0; r < (uint64_t)w->rows && blocks; r++)
        for (uint64_t i = row - COLS / 32 * 2; i < row; i++)
            codes[r * row + i] = (uint8_t)(i % 2 ? 0x10 : i);
    memset(base + pl->codes,
           w->fmt == SL_FMT_M4      ? 0x21
           : w->fmt == SL_FMT_MXFP4 ? 117
                                    : 0x32,
           pl->scales);
    uint8_t *rows = base + pl->codes + pl->scales;
    memset(rows, w->fmt == SL_FMT_M4 ? 119 : 0x10, pl->row_scales);
    for (uint64_t i = 0; i < pl->table; i++) rows[pl->row_scales + i] = (uint8_t)(i * 3);
}

static int measure_format(struct sl_pool *pool, const struct sl_kernels *k, enum sl_fmt fmt,
                          uint64_t bytes, double seconds, struct sl_board_mul *out,
                          struct sl_err *err)
{
    struct sl_planes one;
    struct sl_planes pl;
    if (!sl_fmt_planes(fmt, BLOCK_ROWS, COLS, &one))
        return sl_fail(err, SL_E_ARG, NULL, "probe", "format %s cannot be measured",
                       sl_fmt_name(fmt));
    int blocks = (int)(bytes / (one.codes + one.scales + one.row_scales));
    if (blocks < sl_pool_threads(pool)) blocks = sl_pool_threads(pool);
    struct product p = {.k = k, .w = {.fmt = fmt, .rows = blocks * BLOCK_ROWS, .cols = COLS}};
    if (!sl_fmt_planes(fmt, (uint64_t)p.w.rows, COLS, &pl))
        return sl_fail(err, SL_E_ARG, NULL, "probe", "format %s: %llu bytes are too many",
                       sl_fmt_name(fmt), (unsigned long long)bytes);
    /* Planes lie one after the other; kernels need no more than the alignment of their type. */
    uint8_t *base = malloc(pl.codes + pl.scales + pl.row_scales + pl.table + 64);
    int window = blocks < 4 * sl_pool_threads(pool) ? blocks : 4 * sl_pool_threads(pool);
    float *x = malloc((size_t)PREFILL_TOKENS * COLS * sizeof *x);
    float *y = malloc((size_t)window * PREFILL_TOKENS * BLOCK_ROWS * sizeof *y);
    int rc = 0;
    if (base && x && y) {
        fill_planes(&p.w, base, &pl);
        for (size_t i = 0; i < (size_t)PREFILL_TOKENS * COLS; i++)
            x[i] = (float)((int)(i * 2654435761u >> 20 & 2047) - 1024) * 0x1p-10f;
        p.w.codes = base;
        p.w.scales = pl.scales ? base + pl.codes : NULL;
        p.w.row_scales = pl.row_scales ? base + pl.codes + pl.scales : NULL;
        p.w.table = pl.table ? base + pl.codes + pl.scales + pl.row_scales : NULL;
        p.x = x;
        p.y = y;
        p.n_blocks = blocks;
        double weights = (double)window * BLOCK_ROWS * COLS;
        p.tokens = 1;
        out->decode =
            weights / best_window(pool, window, product_task, &p, &p.first, seconds) * 1e-9;
        p.tokens = PREFILL_TOKENS;
        out->prefill = weights * PREFILL_TOKENS /
                       best_window(pool, window, product_task, &p, &p.first, seconds) * 1e-9;
        out->fmt = fmt;
    } else {
        rc = sl_fail(err, SL_E_NOMEM, NULL, "probe", "no memory for %llu bytes",
                     (unsigned long long)pl.codes);
    }
    free(base);
    free(x);
    free(y);
    return rc;
}

int sl_probe_products(struct sl_pool *pool, const enum sl_fmt *fmts, int n, uint64_t bytes,
                      double seconds, struct sl_board *b, struct sl_err *err)
{
    struct sl_kernels k;
    sl_kernels_init(&k, sl_cpu_detect());
    b->cpu.n_muls = 0;
    for (int i = 0; i < n && i < SL_BOARD_MULS; i++) {
        int rc = measure_format(pool, &k, fmts[i], bytes, seconds, &b->cpu.mul[b->cpu.n_muls], err);
        if (!rc && sl_interrupted()) rc = sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted");
        if (rc) return rc;
        b->cpu.n_muls++;
    }
    return 0;
}
