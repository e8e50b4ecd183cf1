/* UTF-8: checking input, and streams that never show half a character.
 *
 * Well-formed is the Unicode standard's table 3-7: no overlong forms, no surrogates, at most
 * U+10FFFF. Ill-formed bytes are grouped as "maximal subparts" (the longest start of a well-formed
 * character, else one byte), the way Python and browsers count replacement characters.
 *
 * Bytes of tokens arrive in any cut. A stream lets through complete characters only, holds back at
 * most 3 bytes that may still become one, and writes U+FFFD for each ill-formed subpart, also for
 * what is held when the stream ends: its output is always well-formed. Who needs the raw bytes
 * (detokenize) takes them from sl_tokenizer_decode() instead. */
#ifndef SL_RUNTIME_UTF8_H
#define SL_RUNTIME_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Length (1..4) of the well-formed character at s[0..n), its code point in *cp (may be NULL). When
 * there is none: 0, and *bad (may be NULL) is the length of the ill-formed subpart, 1..3; 0 with
 * *bad 0 when all of s[0..n), n < 4, is the start of a character that may still be completed. n > 0. */
size_t sl_utf8_char(const char *s, size_t n, uint32_t *cp, size_t *bad);

/* Bytes of the longest well-formed start of s[0..n): n when all is well. */
size_t sl_utf8_valid(const char *s, size_t n);

/* Bytes of s[0..n) that may be shown now: all but a last, unfinished character. Ill-formed bytes
 * count as finished. n - result <= 3. */
size_t sl_utf8_complete(const char *s, size_t n);

/* Writes code point cp (valid, no surrogate) to out[4]; its length. */
size_t sl_utf8_put(char *out, uint32_t cp);

struct sl_utf8_stream {
    unsigned char held[4]; /* start of a character, not yet shown */
    unsigned n_held;       /* 0..3 */
};

/* Room that feed and finish may need for n new bytes: three per ill-formed byte. */
#define SL_UTF8_ROOM(n) (3 * ((size_t)(n) + 4))

/* Takes in[n], writes what is complete to out[SL_UTF8_ROOM(n)], returns bytes written. Start from
 * {0}. in and out must not overlap. */
size_t sl_utf8_feed(struct sl_utf8_stream *u, const char *in, size_t n, char *out);
/* The end: one U+FFFD if a character was left open. out[SL_UTF8_ROOM(0)]; the stream is fresh again. */
size_t sl_utf8_finish(struct sl_utf8_stream *u, char *out);

#endif
