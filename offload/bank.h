/* One bank file of an open pack: header and index, checked before anything is believed.
 *
 * Inside a bank nothing is free: the index must lie where the layout puts it, records must follow each
 * other without a gap to the last byte of the file, and plane offsets must be those that the formats
 * and the shape give. A reader past this point needs no checks of its own. */
#ifndef SL_OFFLOAD_BANK_H
#define SL_OFFLOAD_BANK_H

#include "offload/pack.h"

/* What the manifest promises about every bank. */
struct sl_bank_shape {
    uint32_t n_experts;
    int latent, width;   /* gate and up are [width][latent], down is [latent][width] */
    uint64_t slot_bytes; /* no record may be larger */
};

/* Fills b; on failure b is closed. b->label is used in messages and owned by b. SL_E_PACK names file,
 * field (or expert), found and expected. */
int sl_bank_open(struct sl_bank *b, const char *path, const char *label,
                 const struct sl_bank_shape *shape, struct sl_err *err);
void sl_bank_close(struct sl_bank *b);
/* A further file of that name, used beside the first when size and header are equal. Another bank, or
 * the same file by another way, is left out. SL_E_PACK when it cannot be opened. */
int sl_bank_add_copy(struct sl_bank *b, const char *path, struct sl_err *err);

/* Largest record, for the slot size. */
uint32_t sl_bank_max_record(const struct sl_bank *b);

#endif
