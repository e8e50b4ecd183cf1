/* config.json of a released checkpoint to struct sl_config (spec 1).
 *
 * The text model may be nested under "text_config" (released) or lie flat (text-only extractions).
 * Another family is refused before any other key is read, by what the file says it is. Every key that
 * shapes the forward pass is required: a default guessed for a missing one would run and be wrong. A
 * key whose value this program has no code for is refused by name and value. */
#ifndef SL_CONVERT_HF_CONFIG_H
#define SL_CONVERT_HF_CONFIG_H

#include <stddef.h>
#include "offload/config.h"

/* text[len] is the file's content; file is its name in errors, all SL_E_SOURCE. On success *c has
 * passed sl_config_check(). */
int sl_hf_config_parse(struct sl_config *c, const char *text, size_t len, const char *file,
                       struct sl_err *err);

#endif
