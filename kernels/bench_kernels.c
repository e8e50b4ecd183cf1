/* Arms of one case (shape, format, tokens) differ in ISA alone and take turns, so that a slow second
 * of the machine falls on all of them; the median of the turns is printed, in time of this thread, so
 * that other programs count as little as they can. Codes are random, scales those of a trained
 * layer; a matrix is larger than the second-level cache.
 *
 * Each turn also takes a slice of the two ceilings (roof.h). The roof of a call is the slower of its
 * bytes at the core's read rate and its products at the rate of fused floats; the last column is roof
 * time over the time of the fastest arm. Integer products may pass 100 %: they have more units. */
#include "kernels/bench_kernels.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "kernels/act.h"
#include "kernels/kernels.h"
#include "kernels/mul_batch.h"
#include "kernels/roof.h"

enum {
    MAX_TOKENS = 128,
    ACT_TOKENS = 16,
    MAX_TURNS = 101,
    MAX_RUNGS = SL_CPU_RUNGS,
    FMA_ROUNDS = 100000,   /* about 0.2 ms */
    READ_FLOATS = 1 << 20, /* a slice of 4 MiB */
    READ_SLICES = 32       /* 128 MiB: past every cache but the largest */
};

static const struct {
    int rows, cols;
} shapes[] = {{3072, 3584}, {3584, 7168}};
static const enum sl_fmt fmts[] = {SL_FMT_F32,   SL_FMT_BF16, SL_FMT_T8,  SL_FMT_T6,  SL_FMT_T4,
                                   SL_FMT_MXFP4, SL_FMT_M4,   SL_FMT_W36, SL_FMT_W26, SL_FMT_W16};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0], N_FMTS = sizeof fmts / sizeof fmts[0] };

static double clock_s(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Values of every format that are ordinary numbers, from one stream of random bytes. */
static void fill(struct sl_mat *w, uint8_t *codes, uint8_t *scales, uint8_t *row_scales)
{
    struct sl_planes p;
    uint32_t rnd = 1;
    sl_fmt_planes(w->fmt, (uint64_t)w->rows, (uint64_t)w->cols, &p);
    for (uint64_t i = 0; i < p.codes; i++) {
        rnd = rnd * 1664525u + 1013904223u;
        codes[i] = (uint8_t)(rnd >> 24);
        if (w->fmt == SL_FMT_BF16 && i % 2) codes[i] = (uint8_t)(0x3c | (rnd & 0x80));
        if (w->fmt == SL_FMT_F32 && i % 4 == 3) codes[i] = (uint8_t)(0x3c | (rnd & 0x80));
    }
    uint64_t row = sl_fmt_row_bytes(w->fmt, (uint64_t)w->cols);
    const bool low = w->fmt == SL_FMT_T8 || w->fmt == SL_FMT_T6 || w->fmt == SL_FMT_T4;
    for (uint64_t i = 0; low && i < p.codes; i++)
        if (i % row >= row - (uint64_t)w->cols / 16) codes[i] = (uint8_t)(i % 2 ? 0x10 : i & 255);
    for (uint64_t i = 0; i < p.scales; i++)
        scales[i] = (uint8_t)(w->fmt == SL_FMT_M4 ? (i * 7 & 0x33) : 116 + i * 7 % 4);
    memset(row_scales, 119, p.row_scales);
    w->codes = codes;
    w->scales = p.scales ? scales : NULL;
    w->row_scales = p.row_scales ? row_scales : NULL;
    static uint8_t table[128];
    for (int i = 0; i < 128; i++) table[i] = (uint8_t)(i * 37);
    for (uint64_t i = 0; sl_fmt_is_trellis(w->fmt) && i < p.row_scales; i++)
        row_scales[i] = (uint8_t)(i % 2 ? 0x01 : i & 255);
    w->table = p.table ? table : NULL;
}

struct bench {
    FILE *out;
    struct sl_kernels k[MAX_RUNGS];
    unsigned cpu[MAX_RUNGS]; /* mask of the arm's integer products */
    int n_rungs, slice;
    struct sl_roof roof;
    float *memory; /* [READ_SLICES][READ_FLOATS] */
    float *x, *y, *scale;
    int8_t *q;
    double seconds; /* of a case */
};

enum op { OP_EXACT, OP_FUSED, OP_A8, OP_A8X2, OP_BATCH };

static double median(double *t, int n)
{
    qsort(t, (size_t)n, sizeof *t, by_value);
    return t[n / 2];
}

static void call(const struct bench *s, const struct sl_mat *w, enum op op, int rung, int n_tok)
{
    const struct sl_kernels *k = &s->k[rung];
    const size_t ldx = (size_t)w->cols, ldy = (size_t)w->rows;
    const enum sl_act_order order = sl_act_order_of(w->fmt);
    if (op == OP_EXACT) {
        k->mul(w, 0, w->rows, s->x, ldx, n_tok, s->y, ldy);
    } else if (op == OP_FUSED) {
        k->mul_fused(w, 0, w->rows, s->x, ldx, n_tok, s->y, ldy);
    } else if (op == OP_BATCH) {
        const struct sl_batch_x x = {
            .order = order, .cols = w->cols, .n_tok = n_tok, .q = s->q, .scale = s->scale};
        sl_mul_batch_for(s->cpu[rung])->mul(w, 0, w->rows, &x, s->y, ldy);
    } else {
        const struct sl_act x = {.order = order,
                                 .cols = w->cols,
                                 .n_tok = n_tok,
                                 .planes = op == OP_A8 ? 1 : 2,
                                 .q = s->q,
                                 .scale = s->scale};
        sl_mul_a8_for(s->cpu[rung])(w, 0, w->rows, &x, s->y, ldy);
    }
}

/* Once a case: packing is not in the figures, one input serves many matrices. */
static void pack(const struct bench *s, const struct sl_mat *w, enum op op, int rung, int n_tok)
{
    const enum sl_act_order order = sl_act_order_of(w->fmt);
    const int planes = op == OP_A8 ? 1 : 2;
    for (size_t t = 0; t < (size_t)n_tok && op >= OP_A8; t++) {
        const float *x = s->x + t * (size_t)w->cols;
        float *scale = s->scale + t * sl_act_scales(w->cols);
        if (op == OP_BATCH)
            sl_mul_batch_for(s->cpu[rung])
                ->pack(order, x, w->cols, s->q + t * sl_batch_bytes(w->cols), scale);
        else
            sl_act_pack(order, planes, x, w->cols, s->q + t * sl_act_bytes(planes, w->cols), scale);
    }
}

/* The fast path skips the reference, which takes seconds, where there is another arm. */
static void run_case(struct bench *s, const struct sl_mat *w, enum op op, int n_tok)
{
    static const char *const names[] = {"", " fused", " a8", " a8x2", " batch"};
    const int first = op != OP_EXACT && s->n_rungs > 1 ? 1 : 0;
    double t[MAX_RUNGS][MAX_TURNS], fma[MAX_TURNS], read[MAX_TURNS];
    const double end = clock_s(CLOCK_MONOTONIC) + s->seconds;
    struct sl_planes p;
    sl_fmt_planes(w->fmt, (uint64_t)w->rows, (uint64_t)w->cols, &p);
    const double weights = (double)w->rows * w->cols * n_tok;
    const double bytes = (double)(p.codes + p.scales + p.row_scales);
    volatile float kept = 0.0f;
    int turns = 0;
    do {
        for (int r = first; r < s->n_rungs; r++) {
            pack(s, w, op, r, n_tok);
            const double t0 = clock_s(CLOCK_THREAD_CPUTIME_ID);
            call(s, w, op, r, n_tok);
            t[r][turns] = clock_s(CLOCK_THREAD_CPUTIME_ID) - t0;
        }
        const double t0 = clock_s(CLOCK_THREAD_CPUTIME_ID);
        kept = kept + s->roof.fma(FMA_ROUNDS);
        const double t1 = clock_s(CLOCK_THREAD_CPUTIME_ID);
        s->slice = (s->slice + 1) % READ_SLICES;
        kept = kept + s->roof.read(s->memory + (size_t)s->slice * READ_FLOATS, READ_FLOATS);
        fma[turns] = t1 - t0;
        read[turns] = clock_s(CLOCK_THREAD_CPUTIME_ID) - t1;
    } while (++turns < MAX_TURNS && clock_s(CLOCK_MONOTONIC) < end);
    char name[16];
    snprintf(name, sizeof name, "%s%s", sl_fmt_name(w->fmt), names[op]);
    fprintf(s->out, "%-11s %5d x %-5d %3d tok", name, w->rows, w->cols, n_tok);
    if (first) fprintf(s->out, " | %14s", "");
    double best = 0.0;
    for (int r = first; r < s->n_rungs; r++) {
        const double m = median(t[r], turns);
        if (r == first || m < best) best = m;
        fprintf(s->out, " | %7.2f %6.2f", weights / m * 1e-9, bytes / m * 1e-9);
    }
    const double mac = FMA_ROUNDS * (double)s->roof.fma_products / median(fma, turns);
    const double memory = READ_FLOATS * sizeof(float) / median(read, turns);
    const double by_mac = weights / mac, by_bytes = bytes / memory;
    fprintf(s->out, " | %6.1f %6.1f %4.0f %% of %-6s (%d turns)\n", mac * 1e-9, memory * 1e-9,
            100 * (by_mac > by_bytes ? by_mac : by_bytes) / best,
            by_mac > by_bytes ? "floats" : "memory", turns);
}

/* What the exact path, then what the fast path calls. */
static int run_format(struct bench *s, const struct sl_mat *w, bool count)
{
    static const struct {
        enum op op;
        int n_tok;
    } cases[] = {{OP_EXACT, 1},  {OP_EXACT, 2},   {OP_EXACT, 4},  {OP_EXACT, 8},  {OP_EXACT, 48},
                 {OP_FUSED, 16}, {OP_FUSED, 128}, {OP_A8, 1},     {OP_A8X2, 1},   {OP_A8X2, 4},
                 {OP_BATCH, 8},  {OP_BATCH, 16},  {OP_BATCH, 48}, {OP_BATCH, 128}};
    int n = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].op >= OP_A8 && sl_act_order_of(w->fmt) == SL_ACT_NONE) continue;
        if (!count) run_case(s, w, cases[i].op, cases[i].n_tok);
        n++;
    }
    return n;
}

int sl_bench_kernels(FILE *out, double seconds, struct sl_err *err)
{
    struct bench s = {.out = out};
    unsigned rungs[SL_CPU_RUNGS];
    s.n_rungs = sl_cpu_rungs(sl_cpu_detect(), rungs);
    for (int r = 0; r < s.n_rungs; r++) {
        sl_kernels_init(&s.k[r], rungs[r]);
        s.cpu[r] = r + 1 < s.n_rungs ? rungs[r] : sl_cpu_detect();
    }
    s.roof = sl_roof_for(sl_cpu_detect());
    const size_t most = (size_t)3584 * 7168, columns = (size_t)MAX_TOKENS * 7168;
    const size_t memory = (size_t)READ_SLICES * READ_FLOATS;
    uint8_t *codes = malloc(most * 4), *scales = malloc(most / 32), *row_scales = malloc(3584 * 2);
    s.x = malloc(columns * sizeof *s.x);
    s.y = malloc((size_t)MAX_TOKENS * 3584 * sizeof *s.y);
    s.q = malloc(columns * 4);
    s.scale = malloc(columns / 32 * sizeof *s.scale);
    s.memory = malloc(memory * sizeof *s.memory);
    int rc = 0;
    if (!codes || !scales || !row_scales || !s.x || !s.y || !s.q || !s.scale || !s.memory) {
        rc = sl_fail(err, SL_E_NOMEM, NULL, "bench kernels", "no memory for %zu MB",
                     (most * 4 >> 20) + 150);
        goto done;
    }
    for (size_t i = 0; i < columns; i++)
        s.x[i] = (float)((int)(i * 2654435761u >> 20 & 2047) - 1024) * 0x1p-10f;
    for (size_t i = 0; i < memory; i++) s.memory[i] = 1.0f;
    fprintf(out, "%-32s", "one thread: G products/s, GB/s");
    for (int r = 0; r < s.n_rungs; r++) fprintf(out, " | %14s", sl_cpu_name(rungs[r]));
    fprintf(out, " | ceilings, share of the roof\n");
    int n_cases = 0;
    for (int f = 0; f < N_FMTS; f++) {
        const struct sl_mat w = {.fmt = fmts[f]};
        n_cases += run_format(&s, &w, true);
    }
    s.seconds = seconds / (N_SHAPES * n_cases);
    for (int i = 0; i < N_SHAPES; i++) {
        for (int f = 0; f < N_FMTS; f++) {
            struct sl_mat w = {.fmt = fmts[f], .rows = shapes[i].rows, .cols = shapes[i].cols};
            fill(&w, codes, scales, row_scales);
            run_format(&s, &w, false);
        }
    }
done:
    free(codes);
    free(scales);
    free(row_scales);
    free(s.x);
    free(s.y);
    free(s.q);
    free(s.scale);
    free(s.memory);
    return rc;
}
