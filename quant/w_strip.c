/* Scales, candidates and feedback around the trellis search, for 16 rows at once (w_strip.h). */
#include "quant/w_strip.h"

#include <float.h>
#include <math.h>
#include <string.h>
#include "base/size.h"
#include "kernels/block_w.h"
#include "kernels/half.h"

enum { L = SL_W_LANES, B = SL_W_BLOCK };

static size_t take(size_t *used, size_t bytes)
{
    size_t at = *used;
    *used += (size_t)sl_align_up(bytes, 64);
    return at;
}

/* Offsets of the work arrays for `cols`, and the total. */
struct places {
    size_t w, e, e2, h, nibble, word, bits, x, hx, t, x2, t2, total;
};

static struct places place(int cols)
{
    size_t padded = (size_t)sl_align_up((uint64_t)cols, SL_W_MAX_UNIT), used = 0;
    struct places p;
    p.w = take(&used, padded * L * sizeof(float));
    p.e = take(&used, padded * L * sizeof(float));
    p.e2 = take(&used, padded * L * sizeof(float));
    p.h = take(&used, padded * sizeof(float));
    p.nibble = take(&used, padded / B * L);
    p.word = take(&used, padded / B * L * sizeof(uint64_t));
    p.bits = take(&used, padded / B * L * sizeof(uint64_t));
    p.x = take(&used, (size_t)SL_W_MAX_UNIT * L * sizeof(float));
    p.hx = take(&used, (size_t)SL_W_MAX_UNIT * L * sizeof(float));
    p.t = take(&used, (size_t)SL_W_MAX_UNIT * L * sizeof(float));
    p.x2 = take(&used, (size_t)SL_W_MAX_UNIT * L * sizeof(float));
    p.t2 = take(&used, (size_t)SL_W_MAX_UNIT * L * sizeof(float));
    p.total = used;
    return p;
}

size_t sl_w_strip_bytes(int cols)
{
    return place(cols).total;
}

void sl_w_strip_init(struct sl_w_strip *s, enum sl_fmt fmt, int cols, const float *h, void *scratch)
{
    struct places p = place(cols);
    unsigned char *m = scratch;
    memset(s, 0, sizeof *s);
    s->cols = cols;
    s->unit = fmt == SL_FMT_W16 ? 64 : 32;
    s->n_units = (cols + s->unit - 1) / s->unit;
    s->w = (float *)(m + p.w);
    s->e[0] = (float *)(m + p.e);
    s->e[1] = (float *)(m + p.e2);
    s->nibble = m + p.nibble;
    s->word = (uint64_t *)(m + p.word);
    s->bits = (uint64_t *)(m + p.bits);
    s->x = (float *)(m + p.x);
    s->hx = (float *)(m + p.hx);
    s->t = (float *)(m + p.t);
    s->x2 = (float *)(m + p.x2);
    s->t2 = (float *)(m + p.t2);
    int padded = s->n_units * s->unit;
    if (h || padded > cols) { /* columns past the end weigh nothing */
        s->h = (float *)(m + p.h);
        for (int c = 0; c < padded; c++) s->h[c] = c >= cols ? 0.0f : h ? h[c] : 1.0f;
    }
}

float sl_w_round_row(float r)
{
    return sl_f16_to_f32(sl_f32_to_f16(r / SL_W_ROW_UNIT)) * SL_W_ROW_UNIT;
}

int sl_w_strip_load(struct sl_w_strip *s, const float *w, int row0, int rows, float table_rms,
                    struct sl_err *err)
{
    int padded = s->n_units * s->unit;
    memset(s->w, 0, (size_t)padded * L * sizeof *s->w);
    memset(s->nibble, 0, sl_align_up((uint64_t)padded / B, 2) * L);
    for (int r = 0; r < L; r++) {
        float top = 0.0f;
        const float *from = w + (size_t)(row0 + r) * (size_t)s->cols;
        for (int c = 0; r < rows && c < s->cols; c += B) {
            float sum = 0.0f;
            for (int j = 0; j < B; j++) {
                float v = from[c + j];
                if (!isfinite(v))
                    return sl_fail(err, SL_E_ARG, NULL, "weight", "row %d column %d is not finite",
                                   row0 + r, c + j);
                s->w[(size_t)(c + j) * L + (size_t)r] = v;
                sum += v * v;
            }
            float rms = sqrtf(sum / B);
            if (rms > top) top = rms;
        }
        /* The strongest block gets S near 36 of 4..56: room to move up, nine to one downward. */
        s->row[r] = sl_w_round_row(top / (table_rms * 36.0f));
        if (!isfinite(s->row[r]))
            return sl_fail(err, SL_E_ARG, NULL, "weight",
                           "row %d has values near %g, too large for the f16 scale of a row",
                           row0 + r, (double)top);
    }
    return 0;
}

/* Nibble whose S is nearest to `want` in ratio. */
static int nearest_nibble(float want)
{
    int best = 0;
    for (int n = 1; n < 16; n++)
        if (want * want > (float)(sl_w_scale((unsigned)n) * sl_w_scale((unsigned)n - 1))) best = n;
    return best;
}

static int clamp_nibble(int n)
{
    return n < 0 ? 0 : n > 15 ? 15 : n;
}

/* Value of the reading that errors are judged by: full where there is a plain bit, else base. p36 takes
 * both in the ratio of its joint metric. */
static inline float reading(const struct sl_w_tables *t, unsigned w, unsigned plain)
{
    if (t->fmt == SL_FMT_W36) return t->t3[w | plain << 6];
    if (t->fmt == SL_FMT_P36)
        return (1.0f - t->lambda) * t->t3[w | plain << 6] + t->lambda * t->t2[w];
    return t->t2[w];
}

struct path {
    uint64_t word[L], bits[L];
    float cost[L];
};

/* Searches unit u with a nibble for each of its blocks and lane, cost in units of w squared. */
static void search_unit(struct sl_w_strip *s, const struct sl_w_tables *t,
                        const struct sl_trellis *search, int u, const float *target,
                        uint8_t nib[2][L], struct path *out)
{
    struct sl_trellis_tables tt = {t->fmt == SL_FMT_W36 ? NULL : t->t2,
                                   t->fmt == SL_FMT_W36 || t->fmt == SL_FMT_P36 ? t->t3 : NULL,
                                   t->lambda};
    int n = s->unit, c0 = u * n, blocks = n / B;
    float scale[2][L] = {{0}}, inv[2][L] = {{0}};
    for (int b = 0; b < blocks; b++)
        for (int i = 0; i < L; i++) {
            scale[b][i] = s->row[i] * (float)sl_w_scale(nib[b][i]);
            inv[b][i] = scale[b][i] > 0.0f ? 1.0f / scale[b][i] : 0.0f;
        }
    for (int j = 0; j < n; j++)
        for (int i = 0; i < L; i++) s->x[j * L + i] = target[j * L + i] * inv[j / B][i];

    bool weighted = s->h || blocks > 1;
    if (weighted)
        for (int j = 0; j < n; j++) {
            float hc = s->h ? s->h[c0 + j] : 1.0f;
            /* Two blocks under one word: their scales differ, so they enter the weights. */
            for (int i = 0; i < L; i++)
                s->hx[j * L + i] = blocks > 1 ? hc * scale[j / B][i] * scale[j / B][i] : hc;
        }
    (n == 64 ? search->k1 : search->k2)(s->x, weighted ? s->hx : NULL, &tt, out->word, out->bits,
                                        out->cost);

    if (blocks == 1)
        for (int i = 0; i < L; i++) out->cost[i] *= scale[0][i] * scale[0][i];
}

static void keep_better(struct path *best, uint8_t best_nib[2][L], const struct path *now,
                        uint8_t nib[2][L])
{
    for (int i = 0; i < L; i++) {
        if (!(now->cost[i] < best->cost[i])) continue;
        best->cost[i] = now->cost[i];
        best->word[i] = now->word[i];
        best->bits[i] = now->bits[i];
        best_nib[0][i] = nib[0][i];
        best_nib[1][i] = nib[1][i];
    }
}

void sl_w_strip_guess(const struct sl_w_strip *s, const struct sl_w_tables *t, const float *target,
                      uint8_t nib[L])
{
    for (int i = 0; i < L; i++) {
        float sum = 0.0f;
        for (int j = 0; j < B; j++) sum += target[j * L + i] * target[j * L + i];
        float unit = s->row[i] * t->rms;
        nib[i] = (uint8_t)(unit > 0.0f ? nearest_nibble(sqrtf(sum / B) / unit) : 0);
    }
}

void sl_w_strip_search(struct sl_w_strip *s, const struct sl_w_tables *t,
                       const struct sl_trellis *search, enum sl_w_nibbles nibbles)
{
    int n = s->unit, blocks = n / B;
    for (int u = 0; u < s->n_units; u++) {
        int c0 = u * n;
        const float *target = s->w + (size_t)c0 * L;
        uint8_t centre[2][L] = {{0}}, nib[2][L], best_nib[2][L];
        struct path best, now;
        for (int b = 0; b < blocks; b++) {
            if (nibbles != SL_W_KEEP)
                sl_w_strip_guess(s, t, target + (size_t)b * B * L, centre[b]);
            else
                memcpy(centre[b], s->nibble + (size_t)(u * blocks + b) * L, L);
        }
        memcpy(best_nib, centre, sizeof best_nib);
        search_unit(s, t, search, u, target, centre, &best);
        /* One block after the other: with two under one word the second moves around the first's best. */
        for (int b = 0; b < blocks && nibbles == SL_W_CHOOSE; b++) {
            uint8_t from[2][L];
            memcpy(from, best_nib, sizeof from);
            for (int d = -1; d <= 1; d += 2) {
                memcpy(nib, from, sizeof nib);
                for (int i = 0; i < L; i++) nib[b][i] = (uint8_t)clamp_nibble(centre[b][i] + d);
                search_unit(s, t, search, u, target, nib, &now);
                keep_better(&best, best_nib, &now, nib);
            }
        }
        memcpy(s->word + (size_t)u * L, best.word, sizeof best.word);
        memcpy(s->bits + (size_t)u * L, best.bits, sizeof best.bits);
        for (int b = 0; b < blocks; b++)
            memcpy(s->nibble + (size_t)(u * blocks + b) * L, best_nib[b], L);
    }
}

void sl_w_strip_refit(struct sl_w_strip *s, const struct sl_w_tables *t)
{
    const double l = t->fmt == SL_FMT_P36 ? (double)t->lambda : 0.0;
    for (int i = 0; i < L; i++) {
        double num = 0, den = 0;
        for (int c = 0; c < s->cols; c++) {
            unsigned plain, w = sl_w_strip_index(s, c, i, &plain);
            double scale = sl_w_scale(s->nibble[(size_t)(c / B) * L + (size_t)i]);
            double v = (double)reading(t, w, plain) * scale, v2 = v * v;
            double h = s->h ? (double)s->h[c] : 1.0;
            if (l > 0) { /* both readings count: the mean of squares, not the square of the mean */
                double full = (double)t->t3[w | plain << 6] * scale,
                       base = (double)t->t2[w] * scale;
                v2 = (1 - l) * full * full + l * base * base;
            }
            num += h * v * (double)s->w[(size_t)c * L + (size_t)i];
            den += h * v2;
        }
        float row = den > 0 && num > 0 ? sl_w_round_row((float)(num / den)) : 0.0f;
        if (row > 0.0f && isfinite(row)) s->row[i] = row;
    }
}
