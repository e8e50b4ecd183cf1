/* GGUF values written to a stream, little-endian. Failures show in ferror() of the stream; n counts the
 * values, for the header that precedes them. */
#ifndef SL_CONVERT_GGUF_PUT_H
#define SL_CONVERT_GGUF_PUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct sl_gguf_put {
    FILE *f;
    uint64_t n;
};

void sl_gguf_put_u32(struct sl_gguf_put *p, const char *key, uint32_t v);
void sl_gguf_put_f32(struct sl_gguf_put *p, const char *key, float v);
void sl_gguf_put_bool(struct sl_gguf_put *p, const char *key, bool v);
void sl_gguf_put_str(struct sl_gguf_put *p, const char *key, const char *s);
/* The head of an array; its items follow by the raw calls below. */
void sl_gguf_put_array(struct sl_gguf_put *p, const char *key, uint32_t item_type, uint64_t n);

void sl_gguf_raw_u32(FILE *f, uint32_t v);
void sl_gguf_raw_u64(FILE *f, uint64_t v);
void sl_gguf_raw_str(FILE *f, const char *s, size_t n);

#endif
