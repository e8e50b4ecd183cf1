/* Blocks in a list, filled from the front (chunk.h). A piece larger than a block gets its own. */
#include "base/chunk.h"

#include <stdint.h>
#include <stdlib.h>

enum { BLOCK_BYTES = 8 << 10, ALIGN = 16 };

struct sl_chunk {
    struct sl_chunk *next;
    size_t used, bytes; /* of the memory behind the head */
};
_Static_assert(sizeof(struct sl_chunk) % 8 == 0, "the memory behind it is aligned below");

static size_t head_bytes(void)
{
    return (sizeof(struct sl_chunk) + ALIGN - 1) / ALIGN * ALIGN;
}

void *sl_chunk_alloc(struct sl_chunk **c, size_t n)
{
    if (n > SIZE_MAX / 2) return NULL;
    n = (n ? n + ALIGN - 1 : ALIGN) / ALIGN * ALIGN;
    struct sl_chunk *b = *c;
    if (!b || b->bytes - b->used < n) {
        size_t bytes = n > BLOCK_BYTES / 2 ? n : BLOCK_BYTES;
        b = malloc(head_bytes() + bytes);
        if (!b) return NULL;
        b->used = 0;
        b->bytes = bytes;
        /* One that is full at once goes behind the head, which may still have room. */
        if (*c && bytes == n) {
            b->next = (*c)->next;
            (*c)->next = b;
        } else {
            b->next = *c;
            *c = b;
        }
    }
    void *p = (char *)b + head_bytes() + b->used;
    b->used += n;
    return p;
}

void sl_chunk_free(struct sl_chunk **c)
{
    for (struct sl_chunk *b = *c; b;) {
        struct sl_chunk *next = b->next;
        free(b);
        b = next;
    }
    *c = NULL;
}
