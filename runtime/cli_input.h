/* What commands take in: texts, lists of ids, files of ids, documents. Everything is checked and every
 * refusal names the place: files of a user are SL_E_SOURCE (exit 3), lists on the command line SL_E_ARG. */
#ifndef SL_RUNTIME_CLI_INPUT_H
#define SL_RUNTIME_CLI_INPUT_H

#include "base/err.h"
#include "runtime/sluice.h"
#include "runtime/tokenizer.h"

/* Whole file, or standard input for "-", in malloc'ed memory with one NUL appended (not counted). */
int sl_input_text(char **text, size_t *len, const char *path, struct sl_err *err);

/* Appends "1,2,3" (spaces and line ends allowed) or {"ids": [1, 2, 3]}, other keys ignored. Ids must
 * lie in [0, n_vocab). name is what errors call the list: "--ids" or a file; code SL_E_ARG or SL_E_SOURCE. */
int sl_input_ids(struct sl_ids *out, const char *text, size_t len, int n_vocab, const char *name,
                 int code, struct sl_err *err);

/* Appends a file of ids: *.u16 and *.u32 are little-endian binary, anything else text as above. */
int sl_input_ids_file(struct sl_ids *out, const char *path, int n_vocab, struct sl_err *err);

/* Appends the documents of text[len], NUL between two: each becomes [BOS] text [EOS], concatenated.
 * name is the file, for errors; a vocabulary without these two names is an error. */
int sl_input_tokenize(struct sl_ids *out, const struct sl_tokenizer *t, const char *text,
                      size_t len, const char *name, struct sl_err *err);
int sl_input_documents(struct sl_ids *out, const sluice_pack *p, const char *text, size_t len,
                       const char *name, struct sl_err *err);

#endif
