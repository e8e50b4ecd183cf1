/* One private mapping; the kernel gives zeroed pages on first touch.
 *
 * mmap and not malloc: page alignment for O_DIRECT targets comes for free, untouched pages cost
 * nothing, and the heap stays out of a budget that must hold to 2 %. */
#define _GNU_SOURCE
#include "base/arena.h"

#include <assert.h>
#include <sys/mman.h>

#include "base/size.h"

#define PAGE 4096u

int sl_arena_init(struct sl_arena *a, size_t bytes, const char *what, struct sl_err *err)
{
    *a = (struct sl_arena){0};
    if (!bytes) return 0;
    char human[32];
    sl_format_bytes(human, sizeof human, bytes);
    if (bytes > SIZE_MAX - PAGE)
        return sl_fail(err, SL_E_NOMEM, NULL, what, "cannot allocate %s", human);
    bytes = sl_align_up(bytes, PAGE);
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return sl_fail(err, SL_E_NOMEM, NULL, what, "cannot allocate %s", human);
    a->base = base;
    a->bytes = bytes;
    return 0;
}

void sl_arena_free(struct sl_arena *a)
{
    if (a->base) munmap(a->base, a->bytes);
    *a = (struct sl_arena){0};
}

void *sl_arena_alloc(struct sl_arena *a, size_t bytes, size_t align)
{
    assert(align && !(align & (align - 1)) && align <= PAGE);
    if (!a->base) return NULL;
    size_t at = sl_align_up(a->used, align); /* used <= bytes, far from overflow */
    if (at > a->bytes || bytes > a->bytes - at) return NULL;
    a->used = at + bytes;
    if (a->used > a->peak) a->peak = a->used;
    return a->base + at;
}
