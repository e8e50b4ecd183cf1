/* GPU kernels at the release's shapes: share of the bandwidth that a kernel reaches which only reads.
 *
 * Products walk over copies of a matrix that together are several times the second-level cache. Codes
 * are random. Of five turns the median is printed; each turn is timed by device events. Results:
 * docs/results/cuda.md. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cuda/cuda_kda.h"
#include "kernels/cuda/cuda_mla.h"
#include "kernels/cuda/cuda_mul.h"
#include "kernels/cuda/cuda_vec.h"

enum { TURNS = 5, MAX_COPIES = 512 };
static const size_t SPAN = (size_t)1 << 30;

static struct sl_cuda *dev;
static double peak; /* bytes a millisecond, reading alone */

static void check(int rc, const struct sl_err *err)
{
    if (!rc) return;
    fprintf(stderr, "bench_cuda: %s\n", err->text);
    exit(sl_exit_status(rc));
}

static void *room(size_t bytes)
{
    struct sl_err err = {0};
    void *p = NULL;
    check(sl_cuda_alloc(dev, &p, bytes, &err), &err);
    return p;
}

static uint32_t rnd_state = 1;
static uint32_t rnd(void)
{
    rnd_state = rnd_state * 1664525u + 1013904223u;
    return rnd_state >> 8;
}

static void *up(const void *from, size_t bytes)
{
    struct sl_err err = {0};
    void *p = room(bytes);
    check(sl_cuda_put(dev, p, from, bytes, &err), &err);
    return p;
}

/* n floats within `top`. */
static float *floats(size_t n, float top, float least)
{
    float *x = malloc(n * sizeof *x);
    if (!x) exit(5);
    for (size_t i = 0; i < n; i++) x[i] = least + (top - least) * ((float)rnd() * 0x1p-24f);
    float *p = up(x, n * sizeof *x);
    free(x);
    return p;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Milliseconds of one call of fn, median of turns of `calls` calls. */
static double timed(void (*fn)(void *ctx, int call), void *ctx, int calls)
{
    struct sl_err err = {0};
    double t[TURNS];
    for (int i = 0; i < calls; i++) fn(ctx, i);
    for (int turn = 0; turn < TURNS; turn++) {
        sl_cuda_start(dev);
        for (int i = 0; i < calls; i++) fn(ctx, i);
        check(sl_cuda_stop(dev, &t[turn], &err), &err);
    }
    qsort(t, TURNS, sizeof *t, by_value);
    return t[TURNS / 2] / calls;
}

/* ---- bandwidth */

struct reading {
    uint8_t *at;
    size_t bytes;
    unsigned *sum;
};
static void read_once(void *ctx, int call)
{
    (void)call;
    const struct reading *r = ctx;
    sl_cuda_read(dev, r->at, r->bytes, r->sum);
}
static void copy_once(void *ctx, int call)
{
    (void)call;
    const struct reading *r = ctx;
    sl_cuda_copy(dev, r->at, r->at + r->bytes / 2, r->bytes / 2);
}

static void bandwidth(void)
{
    struct reading r = {.at = room(2 * SPAN), .bytes = 2 * SPAN, .sum = room(4)};
    sl_cuda_fill(dev, r.at, 0x5a, r.bytes);
    sl_cuda_fill(dev, r.sum, 0, 4);
    peak = (double)r.bytes / timed(read_once, &r, 10);
    const double copied = (double)r.bytes / timed(copy_once, &r, 10);
    printf("bandwidth: reads %.0f GB/s, copies %.0f GB/s (read and written)\n\n", peak / 1e6,
           copied / 1e6);
    sl_cuda_free(dev, r.at);
    sl_cuda_free(dev, r.sum);
}

/* ---- products */

struct product {
    struct sl_mat mats[MAX_COPIES];
    int copies, jobs, n_tok;
    bool dual;
    struct sl_cuda_act act;
    float *x, *y;
    size_t ldy;
};

static void multiply(void *ctx, int call)
{
    const struct product *p = ctx;
    struct sl_cuda_product job[SL_CUDA_PRODUCTS];
    const int per = p->jobs * (p->dual ? 2 : 1);
    memset(job, 0, sizeof job);
    for (int i = 0; i < p->jobs; i++) {
        const int at = call * per + i * (p->dual ? 2 : 1);
        job[i].w = p->mats[at % p->copies];
        if (p->dual) job[i].w2 = p->mats[(at + 1) % p->copies];
        job[i].y = p->y + (size_t)i * (size_t)p->n_tok * p->ldy;
        job[i].ldy = p->ldy;
    }
    if (p->mats[0].fmt == SL_FMT_BF16)
        sl_cuda_mul_plain(dev, &job[0].w, p->x, (size_t)p->act.cols, p->n_tok, p->y, p->ldy);
    else
        sl_cuda_mul_a8(dev, job, p->jobs, &p->act, p->n_tok, 4, 25);
}

/* Copies of one random matrix, each with all its planes; returns bytes of one. */
static size_t spread(struct product *p, enum sl_fmt fmt, int rows, int cols, uint8_t **base)
{
    struct sl_planes q, f;
    sl_fmt_planes(fmt, (uint64_t)rows, (uint64_t)cols, &q);
    sl_fmt_fine_planes(fmt, (uint64_t)rows, (uint64_t)cols, &f);
    const size_t size[6] = {q.codes, q.scales, q.row_scales, q.table, f.codes, f.table};
    size_t at[6], n = 0, bytes = 0;
    for (int i = 0; i < 6; i++) {
        at[i] = n;
        n += (size[i] + 255) / 256 * 256;
        bytes += size[i];
    }
    uint8_t *host = malloc(n);
    if (!host) exit(5);
    for (size_t i = 0; i < n; i++) host[i] = (uint8_t)rnd();
    const uint64_t row = sl_fmt_row_bytes(fmt, (uint64_t)cols);
    for (uint64_t i = 0; fmt == SL_FMT_BF16 && i < q.codes; i++)
        if (i % 2) host[i] = (uint8_t)(0x3c | (host[i] & 0x80));
    for (uint64_t i = 0; row && fmt != SL_FMT_BF16 && i < q.codes; i++)
        if (i % row >= row - (uint64_t)cols / 16 && i % 2) host[i] = 0x10;
    for (uint64_t i = 0; fmt == SL_FMT_MXFP4 && i < q.scales; i++) host[at[1] + i] = 118;
    for (uint64_t i = 0; i < q.row_scales; i++)
        host[at[2] + i] = fmt == SL_FMT_M4 ? 119 : (uint8_t)(i % 2 ? 0x10 : 0);
    p->copies = (int)(SPAN / n) + 1;
    if (p->copies > MAX_COPIES) p->copies = MAX_COPIES;
    *base = room((size_t)p->copies * n);
    struct sl_err err = {0};
    for (int i = 0; i < p->copies; i++) {
        uint8_t *to = *base + (size_t)i * n;
        check(sl_cuda_put(dev, to, host, n, &err), &err);
        p->mats[i] = (struct sl_mat){.fmt = fmt, .rows = rows, .cols = cols};
        const uint8_t **plane[6] = {&p->mats[i].codes,      &p->mats[i].scales,
                                    &p->mats[i].row_scales, &p->mats[i].table,
                                    &p->mats[i].fine_codes, &p->mats[i].fine_table};
        for (int k = 0; k < 6; k++) *plane[k] = size[k] ? to + at[k] : NULL;
    }
    free(host);
    return bytes;
}

static void products(const char *what, const enum sl_fmt *fmts, int n_fmts, int rows, int cols,
                     int jobs, bool dual)
{
    static const int tokens[] = {1, 2, 4, 8, 16};
    printf("%s, %d x %d%s\n%-6s %10s", what, rows, cols,
           jobs > 1 ? dual ? ", 16 of gate and up" : ", 16 together" : "", "format", "MB");
    for (int i = 0; i < 5; i++) printf("   batch %2d      ", tokens[i]);
    printf("\n");
    for (int f = 0; f < n_fmts; f++) {
        static struct product p;
        uint8_t *base;
        memset(&p, 0, sizeof p);
        p.jobs = jobs;
        p.dual = dual;
        p.ldy = (size_t)rows;
        const size_t one = spread(&p, fmts[f], rows, cols, &base);
        const double bytes = (double)one * jobs * (dual ? 2 : 1);
        p.x = floats(16 * (size_t)cols, 1, -1);
        p.y = room((size_t)jobs * 16 * (size_t)rows * sizeof *p.y);
        p.act = (struct sl_cuda_act){.order = sl_cuda_order_of(fmts[f]), .cols = cols, .planes = 2};
        p.act.q = room(16 * 2 * (size_t)cols);
        p.act.scale = room(16 * (size_t)cols);
        printf("%-6s %10.1f", sl_fmt_name(fmts[f]), bytes / 1e6);
        for (int i = 0; i < 5; i++) {
            p.n_tok = p.act.n_tok = tokens[i];
            p.act.ld_scale = sl_cuda_ld_scale(tokens[i]);
            if (p.act.order != SL_CUDA_NO_ORDER) sl_cuda_act_pack(dev, &p.act, p.x, (size_t)cols);
            const double ms = timed(multiply, &p, 40);
            printf("  %7.1f us %4.0f%%", ms * 1e3, 100 * bytes / ms / peak);
        }
        printf("\n");
        sl_cuda_free(dev, base);
        sl_cuda_free(dev, p.x);
        sl_cuda_free(dev, p.y);
        sl_cuda_free(dev, p.act.q);
        sl_cuda_free(dev, p.act.scale);
    }
    printf("\n");
}

/* ---- attention and what lies around it, at the release's shapes */

enum { HEADS = 96, D = 128, W = HEADS * D, HIDDEN = 7168, LAYERS = 69, CHUNK = 4096 };

struct attn {
    float *x[5], *o;
    struct sl_cuda_kda_state st[LAYERS];
    struct sl_cuda_mla mla;
    float *stream, *rms, *w, *mixed, *logits, *bias, *weights;
    int *ids;
};

static void kda_step(void *ctx, int call)
{
    const struct attn *a = ctx;
    sl_cuda_kda_step(dev, &a->st[call % LAYERS], a->x[0], a->x[1], a->x[2], a->x[3], a->x[4], a->o,
                     HEADS, D, call / LAYERS % 16);
}
static void kda_prefill(void *ctx, int call)
{
    const struct attn *a = ctx;
    sl_cuda_kda_prefill(dev, &a->st[call % LAYERS], a->x[0], a->x[1], a->x[2], a->x[3], a->x[4],
                        a->o, HEADS, D, CHUNK);
}
static void attend(void *ctx, int call)
{
    (void)call;
    sl_cuda_mla_attend(dev, &((const struct attn *)ctx)->mla);
}
static void mix(void *ctx, int call)
{
    (void)call;
    const struct attn *a = ctx;
    sl_cuda_mix(dev, a->mixed, a->stream, a->rms, 9, 8, a->w, a->w, 1, HIDDEN, 1e-5f, NULL);
}
static void route(void *ctx, int call)
{
    (void)call;
    const struct attn *a = ctx;
    sl_cuda_route(dev, a->logits, a->bias, 1, 896, 16, 1, 1, a->ids, a->weights, NULL);
}

static void attention(void)
{
    static struct attn a;
    const size_t n = (size_t)CHUNK * W;
    for (int i = 0; i < 3; i++) a.x[i] = floats(n, 0.09f, -0.09f);
    a.x[3] = floats(n, 0, -5);
    a.x[4] = floats((size_t)CHUNK * HEADS, 1, 0);
    a.o = room(n * 4);
    const size_t S = (size_t)HEADS * D * D * 4, tile = (size_t)HEADS * 16 * D * 4;
    for (int i = 0; i < LAYERS; i++) {
        a.st[i] = (struct sl_cuda_kda_state){room(S), room(tile), room(tile), room(tile)};
        sl_cuda_fill(dev, a.st[i].S, 0, S);
        sl_cuda_fill(dev, a.st[i].k, 0, tile);
        sl_cuda_fill(dev, a.st[i].G, 0, tile);
        sl_cuda_fill(dev, a.st[i].u, 0, tile);
    }
    /* 16 steps read S 16 times and write it once; of the tile 0 to 15 rows of three kinds, read and one
     * written. */
    const double bytes = (double)S * 17 / 16 + (double)tile * 3 / 16 * 8.5;
    double ms = timed(kda_step, &a, 16 * LAYERS);
    printf("kda step, 96 heads of 128: %.1f us, %.1f MB, %.0f%% of the read bandwidth\n", ms * 1e3,
           bytes / 1e6, 100 * bytes / ms / peak);
    ms = timed(kda_prefill, &a, 4);
    printf("kda prefill, 4096 tokens: %.2f ms a layer, %.0f tokens/s over 69 layers\n", ms,
           CHUNK / ms * 1e3 / LAYERS);

    enum { MAX = 131072, ROW = 576 };
    a.mla =
        (struct sl_cuda_mla){.n_q = 1, .heads = HEADS, .lora = 512, .rope = 64, .scale = 0.072f};
    a.mla.q = floats((size_t)HEADS * ROW, 1, -1);
    a.mla.rows = floats((size_t)MAX * ROW, 1, -1);
    a.mla.out = room((size_t)HEADS * 512 * 4);
    a.mla.work = room(sl_cuda_mla_work(1, HEADS, 512, MAX - 1));
    for (size_t pos = 1024; pos <= MAX; pos *= 8) {
        a.mla.first = pos - 1;
        ms = timed(attend, &a, 10);
        printf("mla step, %6zu positions: %.1f us, cache read at %.0f%% of the bandwidth, "
               "%.1f TFLOP/s\n",
               pos, ms * 1e3, 100.0 * (double)pos * ROW * 4 / ms / peak,
               2.0 * (double)pos * HEADS * (576 + 512) / ms * 1e-9);
    }
    a.mla.n_q = 1;
    a.stream = floats(9 * HIDDEN, 1, -1);
    a.rms = floats(9, 1, 0.5f);
    a.w = floats(HIDDEN, 0.1f, -0.1f);
    a.mixed = room(HIDDEN * 4);
    a.logits = floats(896, 1, -1);
    a.bias = floats(896, 0.1f, -0.1f);
    a.weights = room(64);
    a.ids = room(64);
    printf("mix of 9 and norm: %.1f us\n", timed(mix, &a, 100) * 1e3);
    printf("router, 16 of 896: %.1f us\n", timed(route, &a, 100) * 1e3);
}

int main(void)
{
    struct sl_err err = {0};
    if (!sl_cuda_count()) {
        printf("SKIP no GPU\n");
        return 0;
    }
    check(sl_cuda_open(&dev, 0, &err), &err);
    struct sl_cuda_info info;
    sl_cuda_get_info(dev, &info);
    printf("%s, compute capability %d.%d, %d multiprocessors\n", info.name, info.cc / 10,
           info.cc % 10, info.n_sm);
    bandwidth();
    static const enum sl_fmt trunk[] = {SL_FMT_BF16, SL_FMT_T8, SL_FMT_T6, SL_FMT_T4};
    static const enum sl_fmt experts[] = {SL_FMT_MXFP4, SL_FMT_M4,  SL_FMT_W36,
                                          SL_FMT_P36,   SL_FMT_W26, SL_FMT_W16};
    products("trunk", trunk, 4, 12288, 7168, 1, false);
    products("trunk", trunk, 4, 7168, 12288, 1, false);
    products("trunk", trunk, 4, 3584, 7168, 1, false);
    products("experts", experts, 6, 3072, 3584, 16, true);
    products("experts", experts, 6, 3584, 3072, 16, false);
    attention();
    sl_cuda_close(dev);
    return 0;
}
