/* Ordinary vocabulary: tiktoken.model, rank by bytes and bytes by rank. A token's id is its rank. */
#ifndef SL_RUNTIME_TOKENIZER_VOCAB_H
#define SL_RUNTIME_TOKENIZER_VOCAB_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/strmap.h"

#define SL_VOCAB_FILE_MAX_BYTES  (64u << 20) /* the release's file has 2.8 MB */
#define SL_VOCAB_TOKEN_MAX_BYTES 1024u       /* the family's longest tokens are runs of blanks */
#define SL_VOCAB_NONE            UINT32_MAX

struct sl_vocab {
    uint32_t n;            /* ranks 0..n-1, n >= 256 */
    uint32_t max_bytes;    /* length of the longest token */
    char *blob;            /* bytes of all tokens, in file order */
    uint32_t *at;          /* [n] offset in blob */
    uint16_t *len;         /* [n] 1..SL_VOCAB_TOKEN_MAX_BYTES */
    struct sl_strmap *map; /* bytes -> rank */
    uint32_t byte[256];    /* rank of each single byte */
    uint32_t *pair;        /* [65536] rank of bytes (hi << 8 | lo), or SL_VOCAB_NONE */
};

/* Reads path. Refused, with line and value: anything but `base64 SP rank`, an empty or overlong
 * token, a rank outside 0..lines-1, a rank or a token twice, a single byte missing, more than
 * max_tokens. Blank lines are skipped. code: SL_E_SOURCE or SL_E_PACK; also SL_E_NOMEM. */
int sl_vocab_open(struct sl_vocab **out, const char *path, uint32_t max_tokens, int code,
                  struct sl_err *err);
void sl_vocab_close(struct sl_vocab *v); /* NULL is fine */

/* Rank of s[len], or SL_VOCAB_NONE; len > 0. Inline up to the hash table: merging asks for two bytes
 * most of the time, and often for more than any token has. */
static inline uint32_t sl_vocab_rank(const struct sl_vocab *v, const char *s, size_t len)
{
    if (len == 1) return v->byte[(unsigned char)s[0]];
    if (len == 2) return v->pair[(unsigned)(unsigned char)s[0] << 8 | (unsigned char)s[1]];
    uint32_t rank;
    if (len > v->max_bytes || !sl_strmap_get(v->map, s, len, &rank)) return SL_VOCAB_NONE;
    return rank;
}

#endif
