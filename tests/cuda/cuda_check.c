/* Helpers of the GPU tests; see cuda_check.h. */
#include "tests/cuda/cuda_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct sl_cuda *gpu;

void cu_start(int argc, char **argv, const char *program)
{
    struct sl_err err = {0};
    kc_start(argc, argv, program);
    if (!sl_cuda_count()) {
        printf("SKIP no GPU\n");
        return;
    }
    if (sl_cuda_open(&gpu, 0, &err)) {
        printf("SKIP %s\n", err.text);
        return;
    }
    struct sl_cuda_info info;
    sl_cuda_get_info(gpu, &info);
    printf("%s: %s, compute capability %d.%d\n", program, info.name, info.cc / 10, info.cc % 10);
}

struct sl_cuda *cu_need(void)
{
    if (!gpu) skip();
    return gpu;
}

void cu_end(void)
{
    sl_cuda_close(gpu);
    gpu = NULL;
}

void *cu_room(size_t n)
{
    struct sl_err err = {0};
    void *p = NULL;
    if (sl_cuda_alloc(gpu, &p, n, &err)) fail_msg("%s", err.text);
    sl_cuda_fill(gpu, p, 0xff, n);
    return p;
}

void *cu_up(const void *from, size_t n)
{
    struct sl_err err = {0};
    void *p = cu_room(n);
    if (sl_cuda_put(gpu, p, from, n, &err)) fail_msg("%s", err.text);
    return p;
}

void cu_down(void *to, const void *from, size_t n)
{
    struct sl_err err = {0};
    if (sl_cuda_get(gpu, to, from, n, &err)) fail_msg("%s", err.text);
}

void cu_free(void *p)
{
    sl_cuda_free(gpu, p);
}

static size_t aligned(size_t n)
{
    return (n + SL_PLANE_ALIGN - 1) / SL_PLANE_ALIGN * SL_PLANE_ALIGN;
}

/* f16 of an ordinary size, either sign; 1, 2 or 4 for exact sums. */
static void put_f16(uint8_t *p, bool exact)
{
    p[0] = (uint8_t)(exact ? 0 : kc_rnd());
    p[1] = (uint8_t)(exact ? 0x3c + 4 * kc_below(2)
                           : 0x10 + kc_below(0x20) + (kc_below(2) ? 0x80 : 0));
}

static void fill_codes(struct cu_matrix *x, uint8_t *codes, uint64_t n, enum cu_fill fill)
{
    const struct sl_mat *m = &x->host;
    const uint64_t row = sl_fmt_row_bytes(m->fmt, (uint64_t)m->cols);
    const size_t nb = ((size_t)m->cols + 31) / 32;
    for (uint64_t i = 0; fill == CU_ENDS && i < n; i++)
        codes[i] = m->fmt == SL_FMT_T8 ? (kc_below(2) ? 127 : 128) : kc_below(2) ? 255 : 0;
    for (uint64_t r = 0; row && r < (uint64_t)m->rows; r++)
        for (size_t b = 0; b < nb; b++)
            put_f16(codes + r * row + row - 2 * nb + 2 * b, fill == CU_EXACT);
}

static void fill_scales(struct cu_matrix *x, uint8_t *scales, const struct sl_planes *p,
                        uint8_t *row_scales, enum cu_fill fill)
{
    const enum sl_fmt fmt = x->host.fmt;
    for (uint64_t i = 0; i < p->scales; i++) {
        if (fmt == SL_FMT_MXFP4)
            scales[i] = (uint8_t)(fill == CU_ENDS    ? kc_below(4) /* 2^-127 and its like */
                                  : fill == CU_EXACT ? 128 + kc_below(2)
                                                     : 100 + kc_below(40));
        else if (fill == CU_EXACT)
            scales[i] = 0; /* S = 4 */
    }
    for (uint64_t i = 0; i < p->row_scales; i += fmt == SL_FMT_M4 ? 1 : 2) {
        if (fmt == SL_FMT_M4)
            row_scales[i] = (uint8_t)(fill == CU_ENDS    ? 15 + kc_below(4)
                                      : fill == CU_EXACT ? 128
                                                         : 100 + kc_below(40));
        else
            put_f16(row_scales + i, false);
    }
}

struct cu_matrix cu_matrix(enum sl_fmt fmt, int rows, int cols, enum cu_fill fill, bool fine)
{
    struct sl_planes p, f;
    assert_true(sl_fmt_planes(fmt, (uint64_t)rows, (uint64_t)cols, &p));
    sl_fmt_fine_planes(fmt, (uint64_t)rows, (uint64_t)cols, &f);
    const size_t at[6] = {p.codes, p.scales, p.row_scales, p.table, f.codes, f.table};
    size_t n = 0, place[6];
    for (int i = 0; i < 6; i++) {
        place[i] = n;
        n += aligned(at[i]);
    }
    struct cu_matrix x = {.host = {.fmt = fmt, .rows = rows, .cols = cols}};
    x.bytes = malloc(n);
    assert_non_null(x.bytes);
    for (size_t i = 0; i < n; i++) x.bytes[i] = (uint8_t)kc_rnd();
    fill_codes(&x, x.bytes, p.codes, fill);
    fill_scales(&x, x.bytes + place[1], &p, x.bytes + place[2], fill);
    for (uint64_t i = 0; fill == CU_ENDS && i < p.table; i++)
        x.bytes[place[3] + i] = kc_below(2) ? 127 : 128;
    for (uint64_t i = 0; fill == CU_ENDS && i < f.table; i++)
        x.bytes[place[5] + i] = kc_below(2) ? 127 : 128;
    x.device = cu_up(x.bytes, n);
    x.gpu = x.host;
    for (int side = 0; side < 2; side++) {
        struct sl_mat *m = side ? &x.gpu : &x.host;
        uint8_t *base = side ? x.device : x.bytes;
        const uint8_t **to[6] = {&m->codes, &m->scales,     &m->row_scales,
                                 &m->table, &m->fine_codes, &m->fine_table};
        for (int i = 0; i < 6; i++) *to[i] = at[i] && (i < 4 || fine) ? base + place[i] : NULL;
    }
    return x;
}

void cu_matrix_free(struct cu_matrix *m)
{
    free(m->bytes);
    cu_free(m->device);
}

int cu_column(enum sl_cuda_order order, int i)
{
    if (order == SL_CUDA_NATURAL) return i;
    for (int k = 0; k < 4; k++)
        for (int h = 0; h < 2; h++)
            for (int j = 0; j < 4; j++)
                if (8 * k + 4 * h + j == i) return 4 * k + 2 * h + (j >> 1) + 16 * (j & 1);
    return -1;
}

/* Place of column c of a block in act.h's orders. */
static int host_place(enum sl_act_order order, int c)
{
    if (order == SL_ACT_PAIRS) return c / 2 + (c % 2 ? 16 : 0);
    if (order == SL_ACT_ROT4) return 8 * (c % 4) + c / 4;
    if (order == SL_ACT_ROT8) return 4 * (c % 8) + c / 8;
    return c;
}

struct cu_act cu_act(enum sl_fmt fmt, int cols, int n_tok, int planes, const int8_t *q,
                     const float *scale)
{
    const size_t nb = ((size_t)cols + 31) / 32, plane = nb * 32, n = (size_t)n_tok;
    const enum sl_act_order order = sl_act_order_of(fmt);
    const enum sl_cuda_order mine = sl_cuda_order_of(fmt);
    const int ld = sl_cuda_ld_scale(n_tok);
    int8_t *host = calloc(n * (size_t)planes * 2, plane), *dev = calloc(n * (size_t)planes, plane);
    float *s = calloc(n * nb, sizeof *s), *turned = calloc(nb * (size_t)ld, sizeof *turned);
    assert_true(host && dev && s && turned);
    for (size_t t = 0; t < n; t++)
        for (size_t p = 0; p < (size_t)planes; p++)
            for (size_t i = 0; i < plane; i++) {
                const int8_t *from = q + (t * (size_t)planes + p) * plane + i / 32 * 32;
                int8_t *to = host + (t * (size_t)planes + p) * 2 * plane + i / 32 * 32;
                const int at = host_place(order, (int)(i % 32));
                to[at] = from[i % 32];
                to[plane + (size_t)at] = (int8_t)abs(from[i % 32]);
                dev[(t * (size_t)planes + p) * plane + i] = from[cu_column(mine, (int)(i % 32))];
            }
    for (size_t t = 0; t < n; t++)
        for (size_t b = 0; b < nb; b++) {
            s[t * nb + b] = scale[t * nb + b];
            turned[b * (size_t)ld + t] = scale[t * nb + b];
        }
    struct cu_act a = {.host = {order, cols, n_tok, planes, host, s},
                       .gpu = {mine, cols, n_tok, planes, ld, NULL, NULL}};
    a.gpu.q = cu_up(dev, n * (size_t)planes * plane);
    a.gpu.scale = cu_up(turned, nb * (size_t)ld * sizeof *turned);
    free(dev);
    free(turned);
    return a;
}

void cu_act_free(struct cu_act *a)
{
    free((void *)a->host.q);
    free((void *)a->host.scale);
    cu_free(a->gpu.q);
    cu_free(a->gpu.scale);
}
