/* Conversations as requests, and the ids they are in k3-nano's vocabulary, written out by hand; vectors of
 * the released encoder beside them. */
#ifndef SL_TESTS_CHAT_CASES_H
#define SL_TESTS_CHAT_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chat_case {
    const char *name, *request;
    const int32_t *ids;
    size_t n_ids;
    bool start_only;  /* ids are the start of the prompt */
    bool whole_words; /* every piece of text is one token or single bytes */
};
extern const struct chat_case chat_cases[];
extern const size_t chat_n_cases;
extern const struct chat_case chat_released[];
extern const size_t chat_n_released;

struct chat_word {
    int id;
    const char *text;
};
extern const struct chat_word chat_words[];
extern const size_t chat_n_words;

#endif
