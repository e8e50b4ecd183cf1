/* Guards: the cuts that the reference makes before it tokenizes. They change ids, so they are part
 * of the contract and not a precaution of ours. */
#ifndef SL_RUNTIME_TOKENIZER_GUARD_H
#define SL_RUNTIME_TOKENIZER_GUARD_H

#include <stdbool.h>
#include <stddef.h>

#define SL_GUARD_SLICE_CHARS 400000 /* first the text is cut every so many characters, */
#define SL_GUARD_RUN_CHARS   25000  /* then a slice inside runs of one kind longer than this */

/* Set text and len, the rest zero. */
struct sl_guard {
    const char *text;
    size_t len;  /* bytes */
    size_t pos;  /* start of the next part */
    int n_chars; /* characters of the current slice before pos */
    int n_run;   /* characters of the current run since its last cut */
    bool space;  /* kind of that run */
};

/* The next part, text[*start .. *start + *n), n > 0; false at the end. Parts join up to the text and
 * never split a well-formed character. A byte outside UTF-8 counts as one character, not white
 * space. White space is Python's str.isspace(): White_Space and U+001C..U+001F. */
bool sl_guard_next(struct sl_guard *g, size_t *start, size_t *n);

#endif
