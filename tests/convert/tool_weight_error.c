/* Weight error of a pack: ||W - V|| / ||W|| over a lossless pack of the same source, by group.
 *
 *   tool_weight_error PACK REF     lines "GROUP FORMAT WEIGHTS ERROR": experts by matrix and format, trunk by format
 *
 * Both packs are read row by row through the scalar decoders that define the formats. A p36 matrix counts
 * twice: whole (p36) and its base plane alone (p36-base). Tensors that both hold alike are left out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "kernels/kernels.h"
#include "offload/pack.h"

static const char *const mats[SL_N_MATS] = {"gate", "up", "down"};

enum { GROUPS = 64 };
static struct group {
    char name[48];
    double error, power, weights;
} groups[GROUPS];

static void die(const char *text)
{
    fprintf(stderr, "tool_weight_error: %s\n", text);
    exit(1);
}

static struct group *group_of(const char *what, const char *fmt)
{
    char name[48];
    snprintf(name, sizeof name, "%s %s", what, fmt);
    for (int i = 0; i < GROUPS; i++) {
        if (!groups[i].name[0]) strcpy(groups[i].name, name);
        if (!strcmp(groups[i].name, name)) return &groups[i];
    }
    die("too many groups");
    return NULL;
}

static void *get(uint64_t n)
{
    void *p = malloc(n ? n : 1);
    if (!p) die("out of memory");
    return p;
}

static void load(void *to, int fd, uint64_t at, uint64_t n, const char *file)
{
    for (uint64_t done = 0; done < n;) {
        ssize_t got = pread(fd, (char *)to + done, n - done, (off_t)(at + done));
        if (got <= 0) die(file);
        done += (uint64_t)got;
    }
}

static void compare(struct group *g, const struct sl_mat *a, const struct sl_mat *ref)
{
    float *x = get((uint64_t)a->cols * sizeof *x), *y = get((uint64_t)a->cols * sizeof *y);
    for (int r = 0; r < a->rows; r++) {
        sl_mat_decode_row(a, r, x);
        sl_mat_decode_row(ref, r, y);
        for (int c = 0; c < a->cols; c++) {
            const double d = (double)x[c] - (double)y[c];
            g->error += d * d;
            g->power += (double)y[c] * (double)y[c];
        }
    }
    g->weights += (double)a->rows * (double)a->cols;
    free(x);
    free(y);
}

static void compare_expert(const struct sl_pack *p, const struct sl_bank *b,
                           const struct sl_pack *q, const struct sl_bank *ref, uint32_t e)
{
    const struct sl_bank_entry *at = &b->entries[e], *from = &ref->entries[e];
    uint8_t *x = get(at->bytes), *y = get(from->bytes);
    struct sl_mat m[SL_N_MATS], w[SL_N_MATS];
    load(x, b->fd, at->offset, at->bytes, b->path);
    load(y, ref->fd, from->offset, from->bytes, ref->path);
    sl_record_views(at, x, p->cfg.latent_size, p->cfg.moe_intermediate_size, m);
    sl_record_views(from, y, q->cfg.latent_size, q->cfg.moe_intermediate_size, w);
    for (int i = 0; i < SL_N_MATS; i++) {
        compare(group_of(mats[i], sl_fmt_name(m[i].fmt)), &m[i], &w[i]);
        compare(group_of("experts", sl_fmt_name(m[i].fmt)), &m[i], &w[i]);
        if (!m[i].fine_codes) continue;
        m[i].fine_codes = m[i].fine_table = NULL;
        compare(group_of("experts", "p36-base"), &m[i], &w[i]);
    }
    free(x);
    free(y);
}

static bool tensor_mat(const struct sl_pack *p, const struct sl_tensor *t, struct sl_mat *m)
{
    if (t->n_dims != 2 || t->shape[0] > INT32_MAX || t->shape[1] > INT32_MAX) return false;
    uint8_t *x = get(t->bytes);
    load(x, p->trunk_fd, t->offset, t->bytes, p->dir);
    *m = (struct sl_mat){
        .fmt = t->fmt, .rows = (int)t->shape[0], .cols = (int)t->shape[1], .codes = x};
    return true;
}

int main(int argc, char **argv)
{
    struct sl_pack *p, *q;
    struct sl_err err = {0};
    if (argc != 3) die("usage: tool_weight_error PACK REF");
    if (sl_pack_open(&p, argv[1], NULL, 0, &err) || sl_pack_open(&q, argv[2], NULL, 0, &err))
        die(err.text);
    if (strcmp(p->source_sha256, q->source_sha256) != 0) die("packs of different sources");
    for (int l = 0; l < p->cfg.n_layers; l++) {
        if (p->bank_of[l] < 0) continue;
        const struct sl_bank *b = &p->banks[p->bank_of[l]], *ref = &q->banks[q->bank_of[l]];
        for (uint32_t e = 0; e < b->n_experts; e++) compare_expert(p, b, q, ref, e);
    }
    for (int i = 0; i < p->n_tensors; i++) {
        const struct sl_tensor *t = &p->tensors[i], *ref = sl_pack_find(q, t->name);
        struct sl_mat m, w;
        if (!ref || t->fmt == ref->fmt || !tensor_mat(p, t, &m)) continue;
        if (tensor_mat(q, ref, &w)) {
            compare(group_of("trunk", sl_fmt_name(t->fmt)), &m, &w);
            free((void *)w.codes);
        }
        free((void *)m.codes);
    }
    for (int i = 0; i < GROUPS && groups[i].name[0]; i++)
        printf("%s %.0f %.5f\n", groups[i].name, groups[i].weights,
               sqrt(groups[i].error / groups[i].power));
    sl_pack_close(p);
    sl_pack_close(q);
    return 0;
}
