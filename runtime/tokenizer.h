/* Tokenizer: text to token ids and back, for the byte-pair vocabularies of this model family.
 *
 *   text -> guards -> [control strings] -> pre-tokenizer -> rank BPE -> ids
 *
 * Two ways in. encode_plain takes text from people: a control string spelled in it stays text.
 * encode_markup takes text that we rendered ourselves: control strings become control ids. All ids
 * are those of the loaded vocabulary; control ids are looked up by name, never assumed.
 *
 * Equality: ids equal those of tiktoken with the reference's pattern behind the reference's guards
 * (spec section 5; tests/crosscheck/tokenizer_tiktoken.py). decode(encode_*(x)) == x for every byte
 * string x, valid UTF-8 or not: each byte outside valid UTF-8 is a piece of its own.
 *
 * Threads: an open tokenizer is read-only and may be shared; each call owns its scratch. Time is
 * linear in the input (n log n in one piece), memory beside the ids is bounded by the 400,000
 * characters of one slice. */
#ifndef SL_RUNTIME_TOKENIZER_H
#define SL_RUNTIME_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

/* n_vocab for sl_tokenizer_open() when no config is at hand: ordinary ids + 256, as in the release. */
#define SL_TOKENIZER_VOCAB_AUTO 0

struct sl_tokenizer;

/* Ids grow at the end; start from {0}, release with sl_ids_free(). */
struct sl_ids {
    int32_t *v;
    size_t n, cap;
};
/* SL_E_NOMEM leaves the ids as they were. */
int sl_ids_push(struct sl_ids *ids, int32_t id, struct sl_err *err);
void sl_ids_free(struct sl_ids *ids);

/* Reads dir/tiktoken.model and dir/tokenizer_config.json. Ids are [0, n_vocab): the n ranks of
 * tiktoken.model (dense, all 256 single bytes among them), then control ids, named by
 * added_tokens_decoder or `<|reserved_token_ID|>`.
 * code: what an unusable file is to the caller, SL_E_SOURCE or SL_E_PACK; the line in err names file,
 * line or key, and value. Also SL_E_NOMEM. */
int sl_tokenizer_open(struct sl_tokenizer **out, const char *dir, int n_vocab, int code,
                      struct sl_err *err);
void sl_tokenizer_close(struct sl_tokenizer *t); /* NULL is fine */

/* Appends the ids of text[len] to out. text may hold NUL and invalid UTF-8 (see above). On an error
 * (SL_E_NOMEM, SL_E_INTR) out keeps the ids it had before the call. No BOS is added.
 *
 * Guards, as in the reference, come before everything else: slices of 400,000 characters, cut again
 * where more than 25,000 characters in a row are all white space or all not. In markup a control
 * string that a cut runs through is therefore text; at one position the longest name wins. */
int sl_tokenizer_encode_plain(const struct sl_tokenizer *t, const char *text, size_t len,
                              struct sl_ids *out, struct sl_err *err);
int sl_tokenizer_encode_markup(const struct sl_tokenizer *t, const char *text, size_t len,
                               struct sl_ids *out, struct sl_err *err);

/* Bytes of ids[n], control ids as their names, in malloc'ed memory with one NUL appended (not
 * counted). Bytes need not be valid UTF-8: a character may be spread over ids, or never end.
 * Streams use runtime/utf8.h. SL_E_ARG names the first id outside [0, n_vocab). */
int sl_tokenizer_decode(const struct sl_tokenizer *t, const int32_t *ids, size_t n, char **out,
                        size_t *len, struct sl_err *err);
/* Bytes of one id, owned by t, not terminated; NULL and *len 0 when id is outside [0, n_vocab). */
const char *sl_tokenizer_bytes(const struct sl_tokenizer *t, int32_t id, size_t *len);

int sl_tokenizer_n_vocab(const struct sl_tokenizer *t);
int sl_tokenizer_n_ordinary(const struct sl_tokenizer *t);
/* Control id of a name such as "[BOS]" or "<|end_of_msg|>", reserved ones included; -1: none. */
int32_t sl_tokenizer_control(const struct sl_tokenizer *t, const char *name);
bool sl_tokenizer_is_control(const struct sl_tokenizer *t, int32_t id);
/* Ids of tokenizer_config's bos_token and eos_token, else of "[BOS]" and "[EOS]"; -1: none. The
 * model's own end of turn is `<|end_of_msg|>`: a stop set takes that name too. */
int32_t sl_tokenizer_bos(const struct sl_tokenizer *t);
int32_t sl_tokenizer_eos(const struct sl_tokenizer *t);

#endif
