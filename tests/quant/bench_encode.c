/* Encoding speed of the trellis formats on one core, stage by stage: 256 x 1024 normal numbers under a
 * covariance with columns that move together. Best of five runs of each; M weights/s of CPU time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/size.h"
#include "kernels/kernels.h"
#include "quant/w_encode.h"

enum { ROWS = 256, COLS = 1024, RUNS = 5 };

static uint64_t seed = 1;

static double uniform(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return ((double)(seed >> 11) + 0.5) * 0x1p-53;
}

static double normal(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *get(size_t n)
{
    void *p = aligned_alloc(64, sl_align_up(n, 64));
    if (!p) exit(1);
    return p;
}

/* M weights/s of one encoding. */
static double rate(const struct sl_w_job *job, void *scratch)
{
    struct sl_planes p, fine;
    struct sl_err err;
    sl_fmt_planes(job->tables->fmt, ROWS, COLS, &p);
    sl_fmt_fine_planes(job->tables->fmt, ROWS, COLS, &fine);
    struct sl_w_planes out = {get(p.codes), get(p.scales),        get(p.row_scales),
                              get(p.table), get(fine.codes + 64), get(fine.table + 64)};
    double best = INFINITY;
    for (int i = 0; i < RUNS; i++) {
        double t = cpu_seconds();
        if (sl_w_encode(job, scratch, &out, NULL, &err)) {
            fprintf(stderr, "%s\n", err.text);
            exit(1);
        }
        t = cpu_seconds() - t;
        if (t < best) best = t;
    }
    free(out.codes);
    free(out.scales);
    free(out.row_scales);
    free(out.table);
    free(out.fine_codes);
    free(out.fine_table);
    return ROWS * (double)COLS / best / 1e6;
}

int main(void)
{
    static const enum sl_fmt fmts[] = {SL_FMT_W26, SL_FMT_W36, SL_FMT_P36, SL_FMT_W16};
    float *w = get(sizeof(float) * ROWS * COLS), *factor = get(sizeof(float) * COLS * 8);
    double *H = get(sizeof(double) * COLS * COLS);
    void *scratch = get(sl_w_scratch_bytes(COLS));
    struct sl_w_feedback f;
    struct sl_trellis search;
    struct sl_err err;
    sl_trellis_init(&search, sl_cpu_detect());
    for (int i = 0; i < ROWS * COLS; i++) w[i] = (float)(0.02 * normal());
    for (int i = 0; i < COLS * 8; i++) factor[i] = (float)normal();
    for (int i = 0; i < COLS; i++)
        for (int j = 0; j < COLS; j++) {
            double s = i == j ? 1 : 0;
            for (int k = 0; k < 8; k++)
                s += 0.2 * (double)factor[i * 8 + k] * (double)factor[j * 8 + k];
            H[(size_t)i * COLS + (size_t)j] = s;
        }
    double t = cpu_seconds();
    if (sl_w_feedback_open(&f, H, COLS, 0.1, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("factoring a covariance of %d columns: %.2f s\n", COLS, cpu_seconds() - t);
    printf("M weights/s       plain   feedback   and a sweep   and two\n");
    for (size_t i = 0; i < sizeof fmts / sizeof *fmts; i++) {
        struct sl_w_tables tables;
        struct sl_w_job job = {
            .tables = &tables, .search = &search, .w = w, .rows = ROWS, .cols = COLS, .rounds = 2};
        sl_w_tables_seed(&tables, fmts[i], 0.25f);
        sl_w_tables_round(&tables);
        printf("%-12s %10.2f", sl_fmt_name(fmts[i]), rate(&job, scratch));
        job.feedback = fmts[i] == SL_FMT_W16 ? NULL : &f;
        for (; job.feedback && job.sweeps <= 2; job.sweeps++)
            printf(" %10.2f", rate(&job, scratch));
        printf("\n");
        fflush(stdout);
    }
    sl_w_feedback_close(&f);
    free(H);
    free(factor);
    free(w);
    free(scratch);
    return 0;
}
