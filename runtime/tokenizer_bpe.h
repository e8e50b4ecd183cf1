/* Rank BPE: one piece of bytes to ids. */
#ifndef SL_RUNTIME_TOKENIZER_BPE_H
#define SL_RUNTIME_TOKENIZER_BPE_H

#include <stddef.h>
#include "base/err.h"
#include "runtime/tokenizer.h"
#include "runtime/tokenizer_vocab.h"

#define SL_BPE_SHORT_BYTES 64 /* pieces up to here merge by scanning, longer ones by queue */

struct sl_bpe_run; /* scratch and cache of one call; not shared by threads */

/* v must outlive the run. with_cache: remember pieces and pairs, 1.25 MiB, worth it for long texts. */
int sl_bpe_run_open(struct sl_bpe_run **out, const struct sl_vocab *v, bool with_cache,
                    struct sl_err *err);
void sl_bpe_run_close(struct sl_bpe_run *r); /* NULL is fine */

/* Appends the ids of piece[len], len > 0, to ids: the piece's own rank if it is a token; else, from
 * single bytes on, the adjacent pair whose joined bytes have the lowest rank is merged, the leftmost
 * of equals, until no pair is a token. O(len) memory, O(len log len) time. SL_E_NOMEM: ids may have
 * grown by part of the piece. Formula: spec section 5, "BPE". */
int sl_bpe_piece(struct sl_bpe_run *r, const char *piece, size_t len, struct sl_ids *ids,
                 struct sl_err *err);

#endif
