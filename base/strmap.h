/* String to u32 hash table: tensor names (497,220 in the release), control tokens, byte-pair ranks.
 *
 * Open addressing over an owned copy of the keys; keys are byte strings and may hold NUL. */
#ifndef SL_BASE_STRMAP_H
#define SL_BASE_STRMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sl_strmap;

struct sl_strmap *sl_strmap_open(size_t expected); /* NULL: no memory */
void sl_strmap_close(struct sl_strmap *m);
/* 1 added, 0 the key was there already (value kept), -1 no memory. */
int sl_strmap_put(struct sl_strmap *m, const char *key, size_t len, uint32_t value);
bool sl_strmap_get(const struct sl_strmap *m, const char *key, size_t len, uint32_t *value);
size_t sl_strmap_count(const struct sl_strmap *m);
/* i-th key in insertion order, i < count; the pointer stays valid until close or the next put. */
const char *sl_strmap_key(const struct sl_strmap *m, size_t i, size_t *len);

#endif
