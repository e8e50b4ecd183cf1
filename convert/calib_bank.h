/* Calibration statistics for the encoder: from a file of sums to what one expert's matrices are judged by.
 *
 *   gate, up   covariance of the latent: the expert's own mixed with the layer's, both with mean
 *              diagonal 1; n tokens for d dimensions give the own one a share of 0.8 n / (n + 4 d)
 *   down       the expert's own covariance, off-diagonals times 0.9 n / (n + 4 d); without one, its
 *              diagonal
 *
 * Both damped (calib_bank.c says how the numbers were chosen). An expert without tokens gets the layer's for gate
 * and up and plain weights for down, never garbage. */
#ifndef SL_CONVERT_CALIB_BANK_H
#define SL_CONVERT_CALIB_BANK_H

#include "offload/config.h"
#include "offload/pack_layout.h"
#include "quant/stats_file.h"
#include "quant/w_encode.h"

struct sl_calib_file; /* an open statistics file for one model */

/* SL_E_SOURCE when it is not sound or belongs to another model. */
int sl_calib_file_open(struct sl_calib_file **out, const char *path, const struct sl_config *c,
                       struct sl_err *err);
void sl_calib_file_close(struct sl_calib_file *f); /* NULL is fine */
const char *sl_calib_file_sha256(const struct sl_calib_file *f);

/* Tokens of each expert of a layer, counts [n_experts]. */
int sl_calib_file_counts(const struct sl_calib_file *f, int layer, uint64_t *counts,
                         struct sl_err *err);

/* Statistics of one layer, read whole. Immutable once open; shared by jobs. */
struct sl_calib_bank;
/* From sums taken on the way: latent [L][L], counts [E], both copied. Those of an expert come with it. */
int sl_calib_bank_open_live(struct sl_calib_bank **out, const struct sl_config *c,
                            const double *latent, const uint64_t *counts, struct sl_err *err);
int sl_calib_bank_open(struct sl_calib_bank **out, const struct sl_calib_file *f, int layer,
                       struct sl_err *err);
void sl_calib_bank_close(struct sl_calib_bank *b);

/* The metric an expert's matrix is encoded in, as a full matrix h [cols][cols], mean diagonal near 1; the
 * identity where calibration knows nothing. */
void sl_calib_metric(const struct sl_calib_bank *b, int expert, int mat, double *h);

/* How the matrices of one expert are weighted. */
struct sl_calib_expert {
    struct sl_w_feedback
        own[2]; /* what this expert alone uses: gate and up, down; cols 0 when unused */
    const struct sl_w_feedback *feedback[SL_N_MATS]; /* NULL: none */
    /* Weights of the columns, [cols] of gate and up, then of down: for a format without feedback, and for
     * down without a covariance. NULL: plain. */
    float *h[2];
};
int sl_calib_expert_open(struct sl_calib_expert *x, const struct sl_calib_bank *b, int expert,
                         struct sl_err *err);
/* Of a live bank: latent_e [L][L] and hidden_e [W][W] are the expert's own sums. */
int sl_calib_expert_open_live(struct sl_calib_expert *x, const struct sl_calib_bank *b, int expert,
                              const float *latent_e, const float *hidden_e, struct sl_err *err);
void sl_calib_expert_close(struct sl_calib_expert *x);

#endif
