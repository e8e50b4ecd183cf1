/* Reference product and dot: the order of kernels.h, spelled out.
 *
 * A row is decoded a segment at a time and used for up to eight tokens; the sixteen lanes of each
 * token live across segments, so that the order of additions depends on the column alone. Segments
 * are a multiple of 16 columns: a lane meets its columns in the same order as in one long loop. */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "kernels/lanes.h"
#include "kernels/reference.h"

enum { SEGMENT = 1024, TOKENS = 8 };

/* lane[j] += a[j + 16 i] * b[j + 16 i], i ascending. Columns past n would add a product of +0.0,
 * which changes no sum that started at +0.0: they are left out. */
static void add_products(float *lane, const float *a, const float *b, int n)
{
    int i = 0;
    for (; i + SL_LANES <= n; i += SL_LANES)
        for (int j = 0; j < SL_LANES; j++) lane[j] += a[i + j] * b[i + j];
    for (int j = 0; i + j < n; j++) lane[j] += a[i + j] * b[i + j];
}

float sl_dot_c(const float *a, const float *b, int n)
{
    float lane[SL_LANES] = {0};
    add_products(lane, a, b, n);
    return sl_lanes_sum(lane);
}

void sl_mul_c(const struct sl_mat *w, int row0, int row1, const float *x, size_t ldx, int n_tok,
              float *y, size_t ldy)
{
    assert(row0 >= 0 && row0 <= row1 && row1 <= w->rows && n_tok >= 0);
    float seg[SEGMENT], lane[TOKENS][SL_LANES];
    for (int r = row0; r < row1; r++) {
        for (int t0 = 0; t0 < n_tok; t0 += TOKENS) {
            int nt = n_tok - t0 < TOKENS ? n_tok - t0 : TOKENS;
            memset(lane, 0, sizeof lane);
            for (int c = 0; c < w->cols; c += SEGMENT) {
                int n = w->cols - c < SEGMENT ? w->cols - c : SEGMENT;
                sl_mat_decode_cols(w, r, c, n, seg);
                for (int t = 0; t < nt; t++)
                    add_products(lane[t], seg, x + (size_t)(t0 + t) * ldx + c, n);
            }
            for (int t = 0; t < nt; t++) y[(size_t)(t0 + t) * ldy + r] = sl_lanes_sum(lane[t]);
        }
    }
}

void sl_mul_fused_c(const struct sl_mat *w, int row0, int row1, const float *x, size_t ldx,
                    int n_tok, float *y, size_t ldy)
{
    assert(row0 >= 0 && row0 <= row1 && row1 <= w->rows && n_tok >= 0);
    float seg[SEGMENT];
    for (int r = row0; r < row1; r++)
        for (int c = 0; c < w->cols; c += SEGMENT) {
            const int n = w->cols - c < SEGMENT ? w->cols - c : SEGMENT;
            sl_mat_decode_cols(w, r, c, n, seg);
            for (int t = 0; t < n_tok; t++) {
                const float *from = x + (size_t)t * ldx + c;
                float *to = y + (size_t)t * ldy + r;
                float s = c ? *to : 0.0f;
                for (int i = 0; i < n; i++) s = fmaf(from[i], seg[i], s);
                *to = s;
            }
        }
}
