/* The GPU's trellis encoder against the CPU's: the same bytes, for every shape, format and weighting; and
 * the same refusals. --all: the release's shapes, and rates. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/cuda/cuda_trellis.h"
#include "quant/w_encode.h"
#include "tests/cuda/cuda_check.h"

static double gauss(void)
{
    double s = 0;
    for (int i = 0; i < 12; i++) s += (double)kc_rnd() * 0x1p-32;
    return s - 6;
}

struct planes {
    uint8_t *at[3];
    size_t n[3];
};

static struct planes planes(enum sl_fmt fmt, int rows, int cols)
{
    struct sl_planes p;
    struct planes x;
    assert_true(sl_fmt_planes(fmt, (uint64_t)rows, (uint64_t)cols, &p));
    x.n[0] = p.codes, x.n[1] = p.scales, x.n[2] = p.row_scales;
    for (int i = 0; i < 3; i++) {
        x.at[i] = malloc(x.n[i]);
        assert_non_null(x.at[i]);
        memset(x.at[i], 0xa5, x.n[i]);
    }
    return x;
}

struct scene {
    enum sl_fmt fmt;
    struct sl_w_tables tables;
    int rows, cols, rounds;
    bool weighted;
    float *w, *h;
};

static struct scene scene(enum sl_fmt fmt, int rows, int cols, bool weighted, int rounds)
{
    struct scene s = {
        .fmt = fmt, .rows = rows, .cols = cols, .weighted = weighted, .rounds = rounds};
    sl_w_tables_seed(&s.tables, fmt, 0);
    sl_w_tables_round(&s.tables);
    s.w = malloc((size_t)rows * (size_t)cols * sizeof *s.w);
    s.h = malloc((size_t)cols * sizeof *s.h);
    for (int r = 0; r < rows; r++) {
        const double size = exp(gauss()) * 0.02;
        for (int c = 0; c < cols; c++) {
            double v = gauss() * size * (c / 32 % 3 ? 1 : 0.3);
            if (kc_below(400) == 0) v *= 20; /* outliers */
            s.w[(size_t)r * (size_t)cols + (size_t)c] = (float)v;
        }
        if (r % 9 == 4) /* a row of zeros, and one with empty blocks */
            for (int c = 0; c < (r % 2 ? cols : 32); c++)
                s.w[(size_t)r * (size_t)cols + (size_t)c] = 0;
    }
    for (int c = 0; c < cols; c++) s.h[c] = (float)exp(gauss());
    return s;
}

static void scene_free(struct scene *s)
{
    free(s->w);
    free(s->h);
}

static int on_gpu(struct sl_cuda_encoder *e, const struct scene *s, const struct planes *out,
                  double *ms, struct sl_err *err)
{
    const struct sl_cuda_encode job = {.fmt = s->fmt,
                                       .table = s->fmt == SL_FMT_W36 ? s->tables.t3 : s->tables.t2,
                                       .rms = s->tables.rms,
                                       .w = s->w,
                                       .rows = s->rows,
                                       .cols = s->cols,
                                       .h = s->weighted ? s->h : NULL,
                                       .rounds = s->rounds,
                                       .codes = out->at[0],
                                       .scales = out->at[1],
                                       .row_scales = out->at[2],
                                       .ms = ms};
    return sl_cuda_encode(e, &job, err);
}

static int on_cpu(const struct scene *s, int rows, const struct planes *out, struct sl_err *err)
{
    struct sl_trellis search;
    uint8_t table[128];
    sl_trellis_init(&search, sl_cpu_detect());
    void *scratch = aligned_alloc(64, (sl_w_scratch_bytes(s->cols) + 63) / 64 * 64);
    const struct sl_w_job job = {.tables = &s->tables,
                                 .search = &search,
                                 .w = s->w,
                                 .rows = rows,
                                 .cols = s->cols,
                                 .h = s->weighted ? s->h : NULL,
                                 .rounds = s->rounds};
    const struct sl_w_planes p = {
        .codes = out->at[0], .scales = out->at[1], .row_scales = out->at[2], .table = table};
    const int rc = sl_w_encode(&job, scratch, &p, NULL, err);
    free(scratch);
    return rc;
}

static void same_bytes(void **state)
{
    (void)state;
    cu_need();
    struct sl_cuda_encoder *e;
    struct sl_err err = {0};
    if (sl_cuda_encoder_open(&e, 0, 300 * 640, 640, &err)) fail_msg("%s", err.text);
    for (int turn = 0; turn < 24; turn++) {
        const int rows = turn % 3 ? 1 + kc_below(40) : 129 + kc_below(60),
                  cols = 32 * (1 + kc_below(20));
        struct scene s =
            scene(turn % 2 ? SL_FMT_W36 : SL_FMT_W26, rows, cols, turn % 4 > 1, 1 + turn / 2 % 3);
        struct planes a = planes(s.fmt, rows, cols), b = planes(s.fmt, rows, cols);
        if (on_gpu(e, &s, &a, NULL, &err) || on_cpu(&s, rows, &b, &err)) fail_msg("%s", err.text);
        static const char *const what[] = {"codes", "scales", "row scales"};
        for (int i = 2; i >= 0; i--)
            for (size_t k = 0; k < a.n[i]; k++)
                if (a.at[i][k] != b.at[i][k])
                    fail_msg("%s %d x %d, %s, %d rounds: %s differ at byte %zu of %zu: %02x, "
                             "expected %02x",
                             sl_fmt_name(s.fmt), rows, cols, s.weighted ? "weighted" : "plain",
                             s.rounds, what[i], k, a.n[i], a.at[i][k], b.at[i][k]);
        for (int i = 0; i < 3; i++) free(a.at[i]), free(b.at[i]);
        scene_free(&s);
    }
    sl_cuda_encoder_close(e);
}

static void refusals(void **state)
{
    (void)state;
    cu_need();
    struct sl_cuda_encoder *e;
    struct sl_err err = {0}, cpu = {0};
    if (sl_cuda_encoder_open(&e, 0, 64 * 64, 64, &err)) fail_msg("%s", err.text);
    struct scene s = scene(SL_FMT_W26, 20, 64, false, 2);
    struct planes a = planes(s.fmt, 20, 64);
    assert_int_equal(on_gpu(e, &s, &a, NULL, &err), 0);
    s.w[7 * 64 + 33] = INFINITY;
    assert_int_equal(on_gpu(e, &s, &a, NULL, &err), SL_E_ARG);
    assert_int_equal(on_cpu(&s, 20, &a, &cpu), SL_E_ARG);
    assert_string_equal(err.text, cpu.text);
    s.w[7 * 64 + 33] = 1e30f;
    assert_int_equal(on_gpu(e, &s, &a, NULL, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "row 7 "));
    s.w[7 * 64 + 33] = 0;
    s.cols = 96;
    assert_int_equal(on_gpu(e, &s, &a, NULL, &err), SL_E_ARG);
    s.cols = 64;
    assert_int_equal(on_gpu(e, &s, &a, NULL, &err), 0);
    for (int i = 0; i < 3; i++) free(a.at[i]);
    scene_free(&s);
    sl_cuda_encoder_close(e);
}

static void full_size(void **state)
{
    (void)state;
    cu_need();
    if (!kc_all()) skip();
    enum { ROWS = 3072, COLS = 3584, CHECKED = 64 };
    struct sl_cuda_encoder *e;
    struct sl_err err = {0};
    if (sl_cuda_encoder_open(&e, 0, (size_t)ROWS * COLS, COLS, &err)) fail_msg("%s", err.text);
    for (int f = 0; f < 4; f++) {
        struct scene s = scene(f % 2 ? SL_FMT_W36 : SL_FMT_W26, ROWS, COLS, f > 1, 2);
        struct planes a = planes(s.fmt, ROWS, COLS), b = planes(s.fmt, CHECKED, COLS);
        double ms = 0;
        for (int i = 0; i < 2; i++)
            if (on_gpu(e, &s, &a, &ms, &err)) fail_msg("%s", err.text);
        if (on_cpu(&s, CHECKED, &b, &err)) fail_msg("%s", err.text);
        assert_memory_equal(a.at[0], b.at[0], (size_t)CHECKED * COLS / 4);
        assert_memory_equal(a.at[1], b.at[1], b.n[1]);
        assert_memory_equal(a.at[2], b.at[2], b.n[2]);
        printf("%s%s %d x %d: %.2f ms on the GPU, %.2f thousand million weights/s\n",
               sl_fmt_name(s.fmt), s.weighted ? " weighted" : "", ROWS, COLS, ms,
               (double)ROWS * COLS / ms * 1e-6);
        for (int i = 0; i < 3; i++) free(a.at[i]), free(b.at[i]);
        scene_free(&s);
    }
    sl_cuda_encoder_close(e);
}

int main(int argc, char **argv)
{
    cu_start(argc, argv, "test_cuda_trellis");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bytes),
        cmocka_unit_test(refusals),
        cmocka_unit_test(full_size),
    };
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    cu_end();
    return rc;
}
