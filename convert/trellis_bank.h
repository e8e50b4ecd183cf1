/* Experts of one bank in a trellis format: tables trained on a sample, then every matrix encoded.
 *
 * One table a (layer, matrix kind), trained on rows of up to 18 experts chosen by id, so that bytes do
 * not depend on jobs. At most SL_TRELLIS_SAMPLE weights a kind are held. */
#ifndef SL_CONVERT_TRELLIS_BANK_H
#define SL_CONVERT_TRELLIS_BANK_H

#include "convert/calib_bank.h"
#include "convert/jobs.h"
#include "convert/plan_pack.h"
#include "quant/w_encode.h"

#define SL_TRELLIS_SAMPLE       (2 << 20) /* weights a table is trained on */
#define SL_TRELLIS_TRAIN_ROUNDS 60        /* 6 cost 2 to 6 % KL on k3-mini */
#define SL_TRELLIS_SCALE_ROUNDS 2
/* Sweeps under feedback: w26 keeps to 2 M weights/s a core (a second would take 1.4 times as long for 1.5 % of
 * KL); w36 and p36 take the second, 2.5 % there. */
#define SL_TRELLIS_SWEEPS(fmt) ((fmt) == SL_FMT_W26 ? 1 : 2)
#define SL_TRELLIS_LAMBDA      0.25f /* p36: weight of the base reading (progressive.md) */

#define SL_TRELLIS_FORMATS 4 /* w16, w26, w36, p36 */

struct sl_trellis_bank {
    /* One a format that the bank uses; fmt SL_FMT_NONE: not used. */
    struct sl_w_tables tables[SL_N_MATS][SL_TRELLIS_FORMATS];
    struct sl_trellis search;
    struct sl_calib_bank *calib; /* NULL: not calibrated */
};

bool sl_trellis_is(enum sl_fmt fmt);
/* Bytes of work memory that sl_trellis_fill needs for this plan; 0 for other formats. */
uint64_t sl_trellis_work_bytes(const struct sl_plan *p);
/* Fills t; sl_trellis_bank_free releases what it holds, also after a failure. */
int sl_trellis_train(struct sl_trellis_bank *t, const struct sl_plan *p,
                     const struct sl_plan_bank *b, struct sl_jobs *jobs, struct sl_err *err);
void sl_trellis_bank_free(struct sl_trellis_bank *t);
/* Encodes the three matrices of src, expert `expert`, into a zeroed record of layout e. work: sl_trellis_work_bytes. */
int sl_trellis_fill(const struct sl_trellis_bank *t, const struct sl_plan *p, int expert,
                    const struct sl_bank_entry *e, const struct sl_in_expert *src, uint8_t *record,
                    uint8_t *work, struct sl_err *err);

#endif
