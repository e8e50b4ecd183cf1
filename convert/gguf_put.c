/* GGUF values as bytes. */
#include "convert/gguf_put.h"

#include <string.h>

#include "convert/gguf.h"

void sl_gguf_raw_u32(FILE *f, uint32_t v)
{
    for (int b = 0; b < 4; b++) putc((int)(v >> 8 * b & 0xff), f);
}

void sl_gguf_raw_u64(FILE *f, uint64_t v)
{
    sl_gguf_raw_u32(f, (uint32_t)v);
    sl_gguf_raw_u32(f, (uint32_t)(v >> 32));
}

void sl_gguf_raw_str(FILE *f, const char *s, size_t n)
{
    sl_gguf_raw_u64(f, n);
    fwrite(s, 1, n, f);
}

static void head(struct sl_gguf_put *p, const char *key, uint32_t type)
{
    sl_gguf_raw_str(p->f, key, strlen(key));
    sl_gguf_raw_u32(p->f, type);
    p->n++;
}

void sl_gguf_put_u32(struct sl_gguf_put *p, const char *key, uint32_t v)
{
    head(p, key, SL_GGUF_U32);
    sl_gguf_raw_u32(p->f, v);
}

void sl_gguf_put_f32(struct sl_gguf_put *p, const char *key, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    head(p, key, SL_GGUF_F32);
    sl_gguf_raw_u32(p->f, bits);
}

void sl_gguf_put_bool(struct sl_gguf_put *p, const char *key, bool v)
{
    head(p, key, SL_GGUF_BOOL);
    putc(v ? 1 : 0, p->f);
}

void sl_gguf_put_str(struct sl_gguf_put *p, const char *key, const char *s)
{
    head(p, key, SL_GGUF_STRING);
    sl_gguf_raw_str(p->f, s, strlen(s));
}

void sl_gguf_put_array(struct sl_gguf_put *p, const char *key, uint32_t item_type, uint64_t n)
{
    head(p, key, SL_GGUF_ARRAY);
    sl_gguf_raw_u32(p->f, item_type);
    sl_gguf_raw_u64(p->f, n);
}
