/* One strip of rows on its way through the trellis search: shared by encoder and table training.
 *
 * Everything is laid out [column][lane], a lane being a row, as the search wants it. */
#ifndef SL_QUANT_W_STRIP_H
#define SL_QUANT_W_STRIP_H

#include "quant/w_encode.h"

#define SL_W_LANES    SL_TRELLIS_LANES
#define SL_W_MAX_UNIT 64 /* weights of one word */

struct sl_w_strip {
    int cols, unit, n_units; /* unit: weights a word; the last word of w16 may be half used */
    float *w;                /* [n_units*unit][lanes], zero past cols and past the last row */
    float *e[2];             /* [cols][lanes] w - q, for feedback; [1] of the base reading of p36 */
    float *h;                /* [n_units*unit] weight of each column, 0 past cols; NULL: ones */
    uint8_t *nibble;         /* [cols/32 rounded up to even][lanes] */
    uint64_t *word, *bits;   /* [n_units][lanes] */
    float row[SL_W_LANES];   /* row scale, exactly as f16 stores it */
    float *x, *hx, *t, *x2, *t2; /* [unit][lanes] work */
};

size_t sl_w_strip_bytes(int cols);
void sl_w_strip_init(struct sl_w_strip *s, enum sl_fmt fmt, int cols, const float *h,
                     void *scratch);
/* Loads rows [row0, row0 + rows) of w [..][cols], at most 16, and guesses row scales from block rms.
 * SL_E_ARG, naming the place: a value that is not finite, or a row beyond the f16 range of its scale. */
int sl_w_strip_load(struct sl_w_strip *s, const float *w, int row0, int rows, float table_rms,
                    struct sl_err *err);
/* Where a block's nibble comes from. */
enum sl_w_nibbles {
    SL_W_KEEP,  /* s->nibble as it is */
    SL_W_GUESS, /* the target's rms */
    SL_W_CHOOSE /* the best of the guess and its two neighbours: three searches, five for w16 */
};
/* Searches every block with the present row scales, errors weighted by s->h. */
void sl_w_strip_search(struct sl_w_strip *s, const struct sl_w_tables *t,
                       const struct sl_trellis *search, enum sl_w_nibbles nibbles);
/* Least-squares row scales for the present codes, rounded to f16. */
void sl_w_strip_refit(struct sl_w_strip *s, const struct sl_w_tables *t);

/* ---- under feedback: w26, w36, p36 (w_follow.c). Errors s->e follow the codes from call to call. */

/* In order of columns, each block against the errors before it. */
void sl_w_follow_search(struct sl_w_strip *s, const struct sl_w_tables *t,
                        const struct sl_trellis *search, const struct sl_w_feedback *f,
                        enum sl_w_nibbles nibbles);
/* Every block once more, against the errors of all others; what raises e H e' is not taken. */
void sl_w_follow_sweep(struct sl_w_strip *s, const struct sl_w_tables *t,
                       const struct sl_trellis *search, const struct sl_w_feedback *f);
/* Row scales of least e H e' for the present codes, rounded to f16. */
void sl_w_follow_refit(struct sl_w_strip *s, const struct sl_w_tables *t,
                       const struct sl_trellis *search, const struct sl_w_feedback *f);

/* ---- shared by both */

/* Nibble whose scale fits the rms of target [32][lanes], lane by lane. */
void sl_w_strip_guess(const struct sl_w_strip *s, const struct sl_w_tables *t, const float *target,
                      uint8_t nib[SL_W_LANES]);
float sl_w_round_row(float r); /* as f16 stores it */

/* Table values of weight c of a lane: base and full reading; S of its block. */
static inline unsigned sl_w_strip_index(const struct sl_w_strip *s, int c, int lane,
                                        unsigned *plain)
{
    int u = c / s->unit, at = c % s->unit;
    size_t i = (size_t)u * SL_W_LANES + (size_t)lane;
    *plain = (unsigned)(s->bits[i] >> at & 1);
    return sl_trellis_window(s->word[i], at, 64 / s->unit);
}

#endif
