/* Checksums of a pack's small files: PACK/SHA256SUMS, as sha256sum writes it.
 *
 *   64 hex digits, two spaces, name          pack.json, then tokenizer/NAME in order of bytes
 *
 * Trunk, records and indexes carry their own crc32, which pack.json and the banks hold; what was left are
 * the files read as text, where a flipped bit can be another number or another token that nothing else
 * contradicts. A file of its own can name pack.json itself, and `sha256sum -c SHA256SUMS` works without
 * us. Packs without one are as good as they were: nothing is compared.
 *
 * pack.json may appear twice while it is being replaced: either will do, so that no moment of a power cut
 * leaves a pack that refuses itself. */
#ifndef SL_OFFLOAD_PACK_SUMS_H
#define SL_OFFLOAD_PACK_SUMS_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

#define SL_SUMS_FILE "SHA256SUMS"

/* Writes DIR/pack.json, the last step of making or changing a pack, and the sums beside it: of this text
 * and of what DIR/tokenizer holds now. SL_E_IO, SL_E_NOMEM; what was there is whole after a failure. */
int sl_sums_publish(const char *dir, const char *manifest, size_t len, struct sl_err *err);
/* Bytes of a line for a file of that name, so that a dry run is exact. */
uint64_t sl_sums_line_bytes(const char *name);

/* Compares. Each difference is one line to fault (NULL: none); *has says whether there is a file to
 * compare with (NULL is fine). 0, or SL_E_PACK with the first difference in err; SL_E_IO where the drive
 * fails, SL_E_NOMEM. A file of tokenizer/ without a line is not a difference. */
int sl_sums_check(const char *dir, void (*fault)(void *ctx, const char *line), void *ctx, int *has,
                  struct sl_err *err);

#endif
