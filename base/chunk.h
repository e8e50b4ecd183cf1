/* Small pieces of memory that live and end together: trees and strings made from one input. */
#ifndef SL_BASE_CHUNK_H
#define SL_BASE_CHUNK_H

#include <stddef.h>

struct sl_chunk; /* head of a list of blocks; NULL: nothing taken yet */

/* n bytes, aligned for anything, not cleared; NULL: no memory. n 0 gives a valid pointer too. */
void *sl_chunk_alloc(struct sl_chunk **c, size_t n);
void sl_chunk_free(struct sl_chunk **c); /* all of it; *c is NULL again */

#endif
