/* What a conversion writes into its journal, and what a later run reads back from it.
 *
 *   begin {"version":..,"source":..,"experts":..,"trunk":..,"vision":..,"bank_dirs":[..]}
 *   scan LAYER DIGITS        one digit an expert: bits of the matrices that m4 cannot hold
 *   unit NAME [CRC ...]      finished and on disk; the checksums of its tensors, in order
 *   calib LAYER              its tokens' way to the next layer is on the drive (live_calib.h)
 *   freed SHARD              may be removed (written before it is) */
#ifndef SL_CONVERT_RESUME_H
#define SL_CONVERT_RESUME_H

#include "convert/journal.h"
#include "convert/plan_pack.h"

/* The `begin` record, malloc'ed; NULL: no memory. */
char *sl_resume_begin(const struct sl_plan *p, const struct sl_convert_opts *o);
/* SL_E_ARG unless the journal's first record is `begin`; names the first option that differs and says
 * how to go on. check_source false: compare all but the source, which is gone. */
int sl_resume_check(const struct sl_journal *j, const char *begin, const char *dst,
                    bool check_source, struct sl_err *err);

/* First records of a new journal. */
int sl_resume_create(struct sl_journal *j, const char *begin, const struct sl_plan *p,
                     struct sl_err *err);
/* Fills the plan's escapes from the journal; SL_E_PACK when a layer is missing. */
int sl_resume_scan(const struct sl_journal *j, struct sl_plan *p, struct sl_err *err);

int sl_resume_note_unit(struct sl_journal *j, const struct sl_unit *u, struct sl_err *err);
/* Fills done[n_units] and the checksums of finished tensors. */
int sl_resume_units(const struct sl_journal *j, struct sl_plan *p, bool *done, struct sl_err *err);

int sl_resume_note_calib(struct sl_journal *j, int layer, struct sl_err *err);
int sl_resume_calib_layers(const struct sl_journal *j); /* how many, from the first */

int sl_resume_note_freed(struct sl_journal *j, const char *shard, struct sl_err *err);
bool sl_resume_freed(const struct sl_journal *j, const char *shard);

#endif
