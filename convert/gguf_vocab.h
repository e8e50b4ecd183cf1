/* The vocabulary in GGUF and back: byte-pair tokens spelled with printable characters, control tokens as
 * their names, merges derived from ranks.
 *
 * Spelling of a byte: printable Latin-1 stands for itself, the other 68 bytes take the code points from
 * 256 on, in order (the byte-level alphabet of GPT-2). A token's id is its rank, as in tiktoken.model. */
#ifndef SL_CONVERT_GGUF_VOCAB_H
#define SL_CONVERT_GGUF_VOCAB_H

#include "convert/gguf.h"
#include "convert/gguf_put.h"

/* A vocabulary as the exporter's caller knows it. */
struct sl_gguf_vocab {
    int n, n_ordinary; /* ids [n_ordinary, n) are control tokens */
    /* Bytes of an id (a control token's: its name), owned by the callee. */
    const char *(*bytes)(void *ctx, int id, size_t *len);
    void *ctx;
};

/* tokenizer.ggml.*: model, pre, tokens, types, merges, special ids (-1: left out). SL_E_PACK when a
 * token cannot be split into two that come before it (file names the pack); SL_E_NOMEM. */
int sl_gguf_vocab_put(struct sl_gguf_put *p, const struct sl_gguf_vocab *v, int bos, int eos,
                      int pad, const char *file, struct sl_err *err);

/* The texts of tiktoken.model and tokenizer_config.json, malloc'ed. SL_E_SOURCE names the id. */
int sl_gguf_vocab_read(const struct sl_gguf *g, char **model, size_t *model_len, char **config,
                       size_t *config_len, struct sl_err *err);

#endif
