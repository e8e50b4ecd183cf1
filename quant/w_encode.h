/* Encoder of the trellis formats (kernels/block_w.h): tables, scales, paths, error feedback.
 *
 * What it minimises for a matrix W with columns weighted by h (diagonal) or by a covariance H of its
 * input (feedback), E = W - Q:
 *
 *     sum over rows of  e diag(h) e'    or    e H e'
 *
 * Rows are independent; SL_TRELLIS_LANES of them go through the search side by side. Nothing depends
 * on threads, ISA or neighbours, so the bytes do not either. Callers run matrices in parallel, each
 * with its own scratch. */
#ifndef SL_QUANT_W_ENCODE_H
#define SL_QUANT_W_ENCODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "kernels/format.h"
#include "kernels/trellis.h"

/* Tables of one (layer, matrix kind). Values are integers after sl_w_tables_round. */
struct sl_w_tables {
    enum sl_fmt fmt; /* SL_FMT_W26, W36, P36 or W16 */
    float t2[64];    /* w26, w16, p36 base */
    float t3[128];   /* w36, p36 full */
    float lambda;    /* p36: weight of the base reading in the joint metric */
    float rms;       /* of the values that codes reach: the scale a block of that rms gets is 1 */
};

/* Metric of the blocks of 32 columns: symmetric M, and its factor as the search reads it. */
struct sl_w_metric {
    float *full;   /* [cols/32][32][32] M */
    float *weight; /* [cols] with M = C C', C upper triangular: C_jj^2 */
    float *next;   /* [cols/32][32][32] C_ij / C_jj above the diagonal, else 0 */
};

/* Feedback for one input covariance H [cols][cols] (design: layer, or layer and expert mixed). */
struct sl_w_feedback {
    int cols;
    /* In order of columns: what the errors of earlier blocks A ask of block B, C_AB C_BB^-1 with H = C C';
     * what remains for block B to answer for is then its own error in the metric C_BB C_BB'. */
    float *carry; /* [cols][cols], zero unless A < B */
    struct sl_w_metric ahead;
    /* All others fixed: H_AB H_BB^-1, and H_BB. */
    float *rest; /* [cols][cols], zero for A = B */
    struct sl_w_metric alone;
};
/* H: symmetric, f64 [cols][cols], damped here by damp * mean diagonal (0.01) and destroyed;
 * cols % 32 == 0. SL_E_ARG when it is not positive definite even so. */
int sl_w_feedback_open(struct sl_w_feedback *f, double *H, int cols, double damp,
                       struct sl_err *err);
void sl_w_feedback_close(struct sl_w_feedback *f);

struct sl_w_device;
struct sl_w_job {
    const struct sl_w_tables *tables;
    const struct sl_trellis *search;
    const float *w; /* [rows][cols], cols % 32 == 0 */
    int rows, cols;
    const float *h;                       /* [cols] >= 0, or NULL for ones; ignored with feedback */
    const struct sl_w_feedback *feedback; /* NULL: none */
    int rounds; /* row scale refits, 1 or more; 2 is the default of convert */
    /* Encodes what it takes (w_device.h) when no feedback and no report is asked for; NULL: this CPU. */
    struct sl_w_device *device;
    int sweeps; /* with feedback: times that every block is searched again against all others' errors */
};

/* Where the planes go; sizes as sl_fmt_planes. Refinement planes for p36 only. */
struct sl_w_planes {
    uint8_t *codes, *scales, *row_scales, *table;
    uint8_t *fine_codes, *fine_table;
};

struct sl_w_report {
    double err2, norm2; /* sum of h * (w - q)^2 and of h * w^2; plain squares with feedback */
    double base_err2;   /* p36: the same for the base reading */
};

size_t sl_w_scratch_bytes(int cols);
/* scratch: sl_w_scratch_bytes(cols), aligned to 64. Values that are not finite: SL_E_ARG with the place. */
int sl_w_encode(const struct sl_w_job *job, void *scratch, const struct sl_w_planes *out,
                struct sl_w_report *report, struct sl_err *err);

/* Seed tables of a format: Gaussian, trained once (w_seeds.c); p36 from T3 = T2 -+ 0.5 so that the plain
 * bit is the fine one. */
void sl_w_tables_seed(struct sl_w_tables *t, enum sl_fmt fmt, float lambda);

/* Trains tables on sample rows [rows][cols] (rows % 16 == 0 helps): `rounds` times search, then refit of every entry as the weighted
 * mean of what chose it (generalised Lloyd); ends with rounding to int8. Deterministic. Scratch as for encode. */
int sl_w_tables_train(struct sl_w_tables *t, const struct sl_trellis *search, const float *w,
                      int rows, int cols, const float *h, int rounds, void *scratch,
                      struct sl_err *err);
/* Scales so that the largest value is 127 and rounds to integers. */
void sl_w_tables_round(struct sl_w_tables *t);

#endif
