/* Value tables of the trellis formats: seeds, training, rounding.
 *
 * A table belongs to one (layer, matrix kind): experts do not differ enough to want their own
 * (beyond-plain, section 2). Training alternates search and weighted means; 60 rounds instead of 6 are
 * worth 2 to 6 % KL. The int8 table has its largest value at 127. */
#include "quant/w_encode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/block_w.h"
#include "quant/w_seeds.h"
#include "quant/w_strip.h"

enum { L = SL_W_LANES, B = SL_W_BLOCK, MIN_STRIPS = 16 };

static bool has_base(enum sl_fmt fmt)
{
    return fmt != SL_FMT_W36;
}
static bool has_plain(enum sl_fmt fmt)
{
    return fmt == SL_FMT_W36 || fmt == SL_FMT_P36;
}

/* Rms over entries: windows of good codes are used about equally often. */
static void set_rms(struct sl_w_tables *t)
{
    const float *v = has_plain(t->fmt) ? t->t3 : t->t2;
    int n = has_plain(t->fmt) ? 128 : 64;
    double s = 0;
    for (int i = 0; i < n; i++) s += (double)v[i] * (double)v[i];
    t->rms = (float)sqrt(s / n);
}

void sl_w_tables_seed(struct sl_w_tables *t, enum sl_fmt fmt, float lambda)
{
    memset(t, 0, sizeof *t);
    t->fmt = fmt;
    t->lambda = fmt == SL_FMT_P36 ? lambda : 0.0f;
    if (has_base(fmt)) memcpy(t->t2, fmt == SL_FMT_W16 ? sl_w_seed_k1 : sl_w_seed_k2, sizeof t->t2);
    if (fmt == SL_FMT_W36) memcpy(t->t3, sl_w_seed_k2_plain, sizeof t->t3);
    /* The plain bit of a normally trained table chooses between far values; read without it such a table
     * is noise. Started half a unit to either side, it stays the fine bit. */
    for (int i = 0; i < 64 && fmt == SL_FMT_P36; i++) {
        t->t3[i] = t->t2[i] - 0.5f;
        t->t3[i + 64] = t->t2[i] + 0.5f;
    }
    set_rms(t);
}

void sl_w_tables_round(struct sl_w_tables *t)
{
    float top = 0.0f;
    for (int i = 0; i < 64 && has_base(t->fmt); i++) top = fmaxf(top, fabsf(t->t2[i]));
    for (int i = 0; i < 128 && has_plain(t->fmt); i++) top = fmaxf(top, fabsf(t->t3[i]));
    float q = top > 0.0f ? 127.0f / top : 1.0f;
    for (int i = 0; i < 64; i++) t->t2[i] = rintf(t->t2[i] * q);
    for (int i = 0; i < 128; i++) t->t3[i] = rintf(t->t3[i] * q);
    set_rms(t);
}

struct sums {
    double num2[64], den2[64], num3[128], den3[128];
};

static void collect(const struct sl_w_strip *s, enum sl_fmt fmt, int rows, struct sums *a)
{
    for (int i = 0; i < rows; i++)
        for (int c = 0; c < s->cols; c++) {
            unsigned p, w = sl_w_strip_index(s, c, i, &p);
            double scale =
                (double)s->row[i] * sl_w_scale(s->nibble[(size_t)(c / B) * L + (size_t)i]);
            double h = s->h ? (double)s->h[c] : 1.0;
            double num = h * scale * (double)s->w[(size_t)c * L + (size_t)i],
                   den = h * scale * scale;
            a->num2[w] += num;
            a->den2[w] += den;
            if (!has_plain(fmt)) continue;
            a->num3[w | p << 6] += num;
            a->den3[w | p << 6] += den;
        }
}

int sl_w_tables_train(struct sl_w_tables *t, const struct sl_trellis *search, const float *w,
                      int rows, int cols, const float *h, int rounds, void *scratch,
                      struct sl_err *err)
{
    if (cols <= 0 || cols % B || rows <= 0)
        return sl_fail(err, SL_E_ARG, NULL, "training sample",
                       "%d x %d is not rows of blocks of 32", rows, cols);
    /* Row scales and nibbles live from round to round: a full choice among neighbours costs three
     * searches, so a strip makes it at its first three visits and then once in eight. The first two
     * thirds of the rounds see a quarter of the strips each, in turn: half the time of full rounds,
     * the same tables to within 0.1 % of their error. */
    int strips = (rows + L - 1) / L, all_from = rounds - rounds / 3;
    size_t nib = (size_t)((cols / B + 1) & ~1) * L;
    float *row = malloc((size_t)strips * L * sizeof *row);
    uint8_t *nibble = calloc((size_t)strips, nib);
    int *visits = calloc((size_t)strips, sizeof *visits);
    struct sums *sum = malloc(sizeof *sum);
    int rc = 0;
    float target = t->lambda;
    struct sl_w_strip s;
    if (!row || !nibble || !visits || !sum) {
        rc = sl_fail(err, SL_E_NOMEM, NULL, "training sample", "no memory for %d rows", rows);
        goto done;
    }
    sl_w_strip_init(&s, t->fmt, cols, h, scratch);
    for (int k = 0; k < rounds && !rc; k++) {
        if (t->fmt ==
            SL_FMT_P36) { /* falls from one half to its target over the first 60 % of the rounds */
            float at = (float)k / (0.6f * (float)rounds);
            t->lambda = at < 1.0f && target < 0.5f ? 0.5f + (target - 0.5f) * at : target;
        }
        memset(sum, 0, sizeof *sum);
        int step = k < all_from && strips >= 4 * MIN_STRIPS ? 4 : 1;
        for (int b = k % step; b < strips && !rc; b += step) {
            int n = rows - b * L < L ? rows - b * L : L;
            rc = sl_interrupted() ? sl_fail(err, SL_E_INTR, NULL, NULL, "interrupted")
                                  : sl_w_strip_load(&s, w, b * L, n, t->rms, err);
            if (rc) break;
            bool choose = visits[b] < 3 || visits[b] % 8 == 0;
            if (visits[b]++ > 0) {
                memcpy(s.row, row + (size_t)b * L, sizeof s.row);
                memcpy(s.nibble, nibble + (size_t)b * nib, nib);
            }
            sl_w_strip_search(&s, t, search, choose ? SL_W_CHOOSE : SL_W_KEEP);
            sl_w_strip_refit(&s, t);
            memcpy(row + (size_t)b * L, s.row, sizeof s.row);
            memcpy(nibble + (size_t)b * nib, s.nibble, nib);
            collect(&s, t->fmt, n, sum);
        }
        if (rc) break;
        for (int i = 0; i < 64 && has_base(t->fmt); i++)
            if (sum->den2[i] > 0) t->t2[i] = (float)(sum->num2[i] / sum->den2[i]);
        for (int i = 0; i < 128 && has_plain(t->fmt); i++)
            if (sum->den3[i] > 0) t->t3[i] = (float)(sum->num3[i] / sum->den3[i]);
        set_rms(t);
    }
done:
    t->lambda = target;
    free(row);
    free(nibble);
    free(visits);
    free(sum);
    if (rc) return rc;
    sl_w_tables_round(t);
    return 0;
}
