/* The tokenizer folder of a synthetic pack. */
#ifndef SL_CONVERT_SYNTH_FILES_H
#define SL_CONVERT_SYNTH_FILES_H

#include "offload/config.h"

/* Bytes that sl_synth_tokenizer will write, or 0: no memory. */
uint64_t sl_synth_tokenizer_bytes(const struct sl_config *c);
/* Of SHA256SUMS beside them. */
uint64_t sl_synth_sums_bytes(void);
/* Writes tiktoken.model and tokenizer_config.json into dir, which exists: one token a byte, ids 0 to 255;
 * the ids from 256 on are control tokens, those of the config under their usual names. */
int sl_synth_tokenizer(const struct sl_config *c, const char *dir, struct sl_err *err);

#endif
