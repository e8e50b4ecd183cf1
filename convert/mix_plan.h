/* Which format each matrix of each expert gets in a mixed pack (--experts mix:X).
 *
 *   harm(layer, expert, matrix, format) = sensitivity of the layer        (calibrate --sensitivity)
 *                                       * the expert's share of its tokens  (routing counts)
 *                                       * relative error of the format in the matrix's own metric
 *
 * The error is measured here, on rows of a few experts of each layer, encoded as the conversion will do it,
 * with feedback; sensitivities are KL a unit of relative error power at the experts' outputs. So the sum
 * of harms is an estimate of the pack's KL. Formats are w16, w26 and w36; the budget is met by the knapsack
 * of quant/mix.h. An expert that calibration never met counts as half a token: it gets few bits, and is
 * never dropped. Everything follows from the source, the statistics and the target: not from jobs. */
#ifndef SL_CONVERT_MIX_PLAN_H
#define SL_CONVERT_MIX_PLAN_H

#include "convert/plan_pack.h"

#define SL_MIX_FORMATS 3
extern const enum sl_fmt sl_mix_formats[SL_MIX_FORMATS]; /* w16, w26, w36 */

struct sl_mix_layer {
    int layer;
    double sensitivity;
    double error[SL_N_MATS][SL_MIX_FORMATS];     /* relative, squared */
    uint32_t experts[SL_N_MATS][SL_MIX_FORMATS]; /* how many got it */
    double bits, read_bits;                      /* a weight: stored; weighted by tokens */
    double harm;
    uint64_t unseen; /* experts without a token */
};

struct sl_mix_report {
    double target, bits, read_bits; /* bits a weight */
    double harm;                    /* estimate of the pack's KL when sensitivities were given */
    bool measured;                  /* they were */
    int n_layers;                   /* with experts */
    struct sl_mix_layer *layers;
};

/* Chooses formats and writes them into p->banks[].escape as layout codes. p->calib is open; sensitivity:
 * the file of calibrate --sensitivity, or NULL: all layers alike. SL_E_ARG for a target outside what the
 * formats span. *out is the caller's, sl_mix_report_close frees it. */
int sl_mix_plan(struct sl_plan *p, const char *sensitivity, double bits, struct sl_jobs *jobs,
                struct sl_mix_report **out, struct sl_err *err);
void sl_mix_report_close(struct sl_mix_report *r); /* NULL is fine */

/* Formats of a layout code, and back. */
void sl_mix_code_formats(int code, enum sl_fmt fmt[SL_N_MATS]);

#endif
