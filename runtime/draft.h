/* Guessing the next tokens from the text so far, and whether that pays.
 *
 * Guess: what followed the last place where the latest ids stood before (three of them, else two): code,
 * lists and quotations repeat themselves, and looking costs nothing beside a token. The engine judges guesses
 * (sluice_step), so that they change the time and nothing else.
 *
 * A guess is worth the time of a token, as often as it holds; it costs what a longer step takes more: the
 * arithmetic, the experts that it alone needs, and the second feed where one failed. Both are measured as
 * they happen. Below, guessing pauses, and is tried again now and then. */
#ifndef SL_RUNTIME_DRAFT_H
#define SL_RUNTIME_DRAFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise but for `automatic`. */
struct sl_draft {
    bool automatic;  /* false: always guess */
    double plain;    /* seconds of a token without guesses, 0: not yet known */
    double extra;    /* seconds that a guess adds to a step */
    double holds;    /* share of guesses that held, 0 to 1 */
    uint64_t tries;  /* steps with guesses */
    uint64_t passed; /* chances not taken since the last of these */
};

/* Up to `most` ids to out, for the text ids[n] followed by next. 0: it does not repeat itself. Reads ids
 * once from the end at worst. */
size_t sl_draft_guess(const int32_t *ids, size_t n, int32_t next, size_t most, int32_t *out);

/* There is something to guess: shall it be? */
bool sl_draft_wants(struct sl_draft *d);
/* A step of n sequences with a token each, done: its seconds; of its guesses, so many held. */
void sl_draft_learn(struct sl_draft *d, double seconds, size_t n, size_t guessed, size_t held);

#endif
