/* Pre-tokenizer: cuts text into the pieces that byte-pair merging never crosses. */
#ifndef SL_RUNTIME_TOKENIZER_PRETOK_H
#define SL_RUNTIME_TOKENIZER_PRETOK_H

#include <stddef.h>
#include "base/err.h"

struct sl_pretok;     /* the compiled pattern: read-only, shared by threads */
struct sl_pretok_run; /* match scratch of one call */

int sl_pretok_open(struct sl_pretok **out, struct sl_err *err); /* SL_E_NOMEM */
void sl_pretok_close(struct sl_pretok *p);                      /* NULL is fine */

int sl_pretok_run_open(struct sl_pretok_run **out, const struct sl_pretok *p, struct sl_err *err);
void sl_pretok_run_close(struct sl_pretok_run *r); /* NULL is fine */

/* Bytes of the first piece of text[len] into *piece. text is well-formed UTF-8 (unchecked; the
 * caller has split off everything else), len > 0. Pieces leave no gaps: 1 <= *piece <= len, always
 * whole characters. The end of text counts as the end of the world for look-ahead, so the caller
 * passes all that remains of its segment. SL_E_NOMEM when the matcher has no memory. */
int sl_pretok_next(struct sl_pretok_run *r, const char *text, size_t len, size_t *piece,
                   struct sl_err *err);

/* Turns machine code off, for tests of the interpreted path; before the first run is opened. */
void sl_pretok_no_jit(struct sl_pretok *p);

#endif
