/* Arms of one case (shape, format, tokens) differ in ISA alone and take turns, so that a slow second
 * of the machine falls on all of them; the median of the turns is printed, in time of this thread, so
 * that other programs count as little as they can. Codes are random, scales those of a trained
 * layer; a matrix is larger than the second-level cache. */
#include "kernels/bench_kernels.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "kernels/act.h"
#include "kernels/kernels.h"

enum { MAX_TOKENS = 48, ACT_TOKENS = 16, MAX_TURNS = 101, MAX_RUNGS = SL_CPU_RUNGS };

static const struct {
    int rows, cols;
} shapes[] = {{3072, 3584}, {3584, 7168}};
static const enum sl_fmt fmts[] = {SL_FMT_F32,   SL_FMT_BF16, SL_FMT_T8,  SL_FMT_T6,  SL_FMT_T4,
                                   SL_FMT_MXFP4, SL_FMT_M4,   SL_FMT_W36, SL_FMT_W26, SL_FMT_W16};
static const int tokens[] = {1, 2, 4, 8, 48};
enum {
    N_SHAPES = sizeof shapes / sizeof shapes[0],
    N_FMTS = sizeof fmts / sizeof fmts[0],
    N_TOKENS = sizeof tokens / sizeof tokens[0]
};

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

/* act: the integer product instead, on every arm but the reference's, which takes seconds. */
static void run_case(FILE *out, const struct sl_mat *w, const struct sl_kernels *k, int n_rungs,
                     const float *x, const struct sl_act *act, float *y, int n_tok, double seconds)
{
    const int first = act && n_rungs > 1 ? 1 : 0;
    double t[MAX_RUNGS][MAX_TURNS], end = clock_s(CLOCK_MONOTONIC) + seconds;
    struct sl_planes p;
    sl_fmt_planes(w->fmt, (uint64_t)w->rows, (uint64_t)w->cols, &p);
    double weights = (double)w->rows * w->cols * n_tok;
    double bytes = (double)(p.codes + p.scales + p.row_scales);
    int turns = 0;
    do {
        for (int r = first; r < n_rungs; r++) {
            double t0 = clock_s(CLOCK_THREAD_CPUTIME_ID);
            if (act)
                sl_mul_a8_for(r + 1 < n_rungs ? k[r].cpu : sl_cpu_detect())(w, 0, w->rows, act, y,
                                                                            (size_t)w->rows);
            else
                k[r].mul(w, 0, w->rows, x, (size_t)w->cols, n_tok, y, (size_t)w->rows);
            t[r][turns] = clock_s(CLOCK_THREAD_CPUTIME_ID) - t0;
        }
    } while (++turns < MAX_TURNS && clock_s(CLOCK_MONOTONIC) < end);
    char name[16];
    snprintf(name, sizeof name, "%s%s", sl_fmt_name(w->fmt),
             !act               ? ""
             : act->planes == 1 ? " a8"
                                : " a8x2");
    fprintf(out, "%-10s %5d x %-5d %3d tok", name, w->rows, w->cols, n_tok);
    if (first) fprintf(out, " | %14s", "");
    for (int r = first; r < n_rungs; r++) {
        qsort(t[r], (size_t)turns, sizeof t[r][0], by_value);
        double s = t[r][turns / 2];
        fprintf(out, " | %7.2f %6.2f", weights / s * 1e-9, bytes / s * 1e-9);
    }
    fprintf(out, "  (%d turns)\n", turns);
}

/* One and sixteen tokens, 8 and 15 bits. */
static void run_act(FILE *out, const struct sl_mat *w, const struct sl_kernels *k, int n_rungs,
                    const float *x, int8_t *q, float *scale, float *y, double seconds)
{
    const size_t cols = (size_t)w->cols;
    struct sl_act act = {.order = sl_act_order_of(w->fmt), .cols = w->cols, .q = q, .scale = scale};
    if (act.order == SL_ACT_NONE) return;
    for (act.planes = 1; act.planes <= 2; act.planes++)
        for (act.n_tok = 1; act.n_tok <= ACT_TOKENS; act.n_tok += ACT_TOKENS - 1) {
            for (size_t t = 0; t < (size_t)act.n_tok; t++)
                sl_act_pack(act.order, act.planes, x + t * cols, w->cols,
                            q + t * (size_t)act.planes * 2 * cols, scale + t * cols / 32);
            run_case(out, w, k, n_rungs, x, &act, y, act.n_tok, seconds);
        }
}

int sl_bench_kernels(FILE *out, double seconds, struct sl_err *err)
{
    struct sl_kernels k[MAX_RUNGS];
    unsigned rungs[SL_CPU_RUNGS];
    int n_rungs = sl_cpu_rungs(sl_cpu_detect(), rungs);
    for (int r = 0; r < n_rungs; r++) sl_kernels_init(&k[r], rungs[r]);
    const size_t most = (size_t)3584 * 7168;
    uint8_t *codes = malloc(most * 4), *scales = malloc(most / 32), *row_scales = malloc(3584 * 2);
    float *x = malloc((size_t)MAX_TOKENS * 7168 * sizeof *x);
    float *y = malloc((size_t)MAX_TOKENS * 3584 * sizeof *y);
    int8_t *q = malloc((size_t)ACT_TOKENS * 4 * 7168);
    float *scale = malloc((size_t)ACT_TOKENS * 7168 / 32 * sizeof *scale);
    int rc = 0;
    if (!codes || !scales || !row_scales || !x || !y || !q || !scale) {
        rc =
            sl_fail(err, SL_E_NOMEM, NULL, "bench kernels", "no memory for %zu MB", most * 4 >> 20);
        goto done;
    }
    for (size_t i = 0; i < (size_t)MAX_TOKENS * 7168; i++)
        x[i] = (float)((int)(i * 2654435761u >> 20 & 2047) - 1024) * 0x1p-10f;
    fprintf(out, "%-31s", "one thread: G weights/s, GB/s");
    for (int r = 0; r < n_rungs; r++) fprintf(out, " | %14s", sl_cpu_name(rungs[r]));
    fputc('\n', out);
    const double each = seconds / (N_SHAPES * N_FMTS * (N_TOKENS + 4));
    for (int s = 0; s < N_SHAPES; s++) {
        for (int f = 0; f < N_FMTS; f++) {
            struct sl_mat w = {.fmt = fmts[f], .rows = shapes[s].rows, .cols = shapes[s].cols};
            fill(&w, codes, scales, row_scales);
            for (int t = 0; t < N_TOKENS; t++)
                run_case(out, &w, k, n_rungs, x, NULL, y, tokens[t], each);
            run_act(out, &w, k, n_rungs, x, q, scale, y, each);
        }
    }
done:
    free(codes);
    free(scales);
    free(row_scales);
    free(x);
    free(y);
    free(q);
    free(scale);
    return rc;
}
