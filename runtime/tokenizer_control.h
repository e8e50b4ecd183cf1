/* Control tokens: names and ids from tokenizer_config.json, and finding them in markup. */
#ifndef SL_RUNTIME_TOKENIZER_CONTROL_H
#define SL_RUNTIME_TOKENIZER_CONTROL_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

#define SL_CONTROL_FILE_MAX_BYTES (16u << 20)
#define SL_CONTROL_NAME_MAX_BYTES 256u

struct sl_control;

/* Ids [first, end): those in added_tokens_decoder by their content, all others
 * `<|reserved_token_ID|>`. Refused, with key and value: an id outside the range, a name that is
 * empty, overlong, not UTF-8, or there twice. bos and eos are the ids of bos_token and eos_token (a
 * string or an object with content), which must be names; "[BOS]" and "[EOS]" when the key is absent
 * or null. code: SL_E_SOURCE or SL_E_PACK; also SL_E_NOMEM. */
int sl_control_open(struct sl_control **out, const char *path, int32_t first, int32_t end, int code,
                    struct sl_err *err);
void sl_control_close(struct sl_control *c); /* NULL is fine */

int32_t sl_control_bos(const struct sl_control *c); /* -1: none */
int32_t sl_control_eos(const struct sl_control *c);
int32_t sl_control_find(const struct sl_control *c, const char *name, size_t len); /* -1: none */
/* first <= id < end */
const char *sl_control_name(const struct sl_control *c, int32_t id, size_t *len);

/* First control name in text[len]: its offset, length in *n and id in *id; `len` (with *n 0) when
 * there is none. Leftmost, then longest. */
size_t sl_control_seek(const struct sl_control *c, const char *text, size_t len, size_t *n,
                       int32_t *id);

#endif
