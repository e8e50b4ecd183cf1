/* Writing the units of a plan: a range of trunk.bin or vision.bin, and a bank.
 *
 * Tasks read, encode, check and write at offsets that the plan fixed, so their order never shows in
 * the file. Nothing is synced here except by sl_write_bank, which publishes a whole file. */
#ifndef SL_CONVERT_PACK_WRITER_H
#define SL_CONVERT_PACK_WRITER_H

#include "base/progress.h"
#include "convert/jobs.h"
#include "convert/plan_pack.h"

/* Tensors of r, a range of f (p's trunk or vision), into fd (file name for messages); sets their crc32. */
int sl_write_range(const struct sl_plan *p, struct sl_plan_file *f, const struct sl_plan_range *r,
                   int fd, const char *name, struct sl_jobs *jobs, struct sl_progress *progress,
                   struct sl_err *err);

/* A bank under its temporary name, then synced and renamed; on failure nothing of it is left. Every
 * record is decoded again and compared with the source's bytes before it is written. */
int sl_write_bank(const struct sl_plan *p, const struct sl_plan_bank *b, struct sl_jobs *jobs,
                  struct sl_progress *progress, struct sl_err *err);

/* Header and index of a bank with their padding, in one write; entries[n] whole. */
int sl_write_bank_head(int fd, const char *path, const struct sl_bank_entry *entries, uint32_t n,
                       uint64_t file_bytes, struct sl_err *err);

#endif
