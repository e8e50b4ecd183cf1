/* What the tokenizer tests share: vocabularies to test with, random text, folders to break. */
#ifndef SL_TESTS_TOKENIZER_CASE_H
#define SL_TESTS_TOKENIZER_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "runtime/tokenizer.h"

/* Folder of a checkpoint by name ("k3-nano", "k3-mini", "tiny-a", "tiny-b"), in the project or among
 * the shared ones; NULL when it is not there. Valid until the next call. */
const char *tok_folder(const char *name);
/* Opens, or fails the running test with the library's message. n_vocab as in sl_tokenizer_open(). */
struct sl_tokenizer *tok_open(const char *dir, int n_vocab);
void tok_encode(const struct sl_tokenizer *t, bool markup, const char *text, size_t len,
                struct sl_ids *out);

/* A random number stream; the seed is printed once and SLUICE_SEED replays it. */
struct tok_rng {
    uint64_t state;
};
struct tok_rng tok_seeded(void);
uint32_t tok_below(struct tok_rng *r, uint32_t n); /* 0..n-1, n > 0 */

/* Characters (as UTF-8 strings) that stand for every class and special case of the pattern, all of
 * them in Unicode 13, so that every library with tables for it agrees about them. */
extern const char *const tok_chars[];
extern const int tok_n_chars;
/* Random text of at most cap bytes, from the first..last of few characters when `few` > 0 (long runs
 * and near misses), else from all. */
size_t tok_random_text(struct tok_rng *r, char *buf, size_t cap, int few);

/* A fresh folder, removed by tok_remove_folder(). */
const char *tok_make_folder(void);
void tok_remove_folder(void);
void tok_write(const char *name, const void *data, size_t len); /* into that folder */

/* Growing text. */
struct tok_text {
    char *s;
    size_t n, cap;
};
void tok_add(struct tok_text *t, const void *s, size_t n);
void tok_add_repeat(struct tok_text *t, const char *s, size_t times);
void tok_printf(struct tok_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void tok_text_free(struct tok_text *t);

/* One line of tiktoken.model. */
void tok_add_line(struct tok_text *t, const void *token, size_t len, uint32_t rank);

#endif
