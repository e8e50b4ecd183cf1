/* Strings to small numbers, half a million at a time.
 *
 *   slots    [ hash32 | 1 + entry ]   power of two, at most 5/8 full, linear probing
 *   entries  [ offset | length | value ]   in insertion order
 *   blob     keys end to end
 *
 * The hash is seeded per map: names come from files we do not trust, and nobody may choose half a
 * million keys that share a probe chain. Nothing visible depends on the seed, since the order of
 * keys is the order of insertion. */
#define _GNU_SOURCE
#include "base/strmap.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct slot {
    uint32_t hash;
    uint32_t entry; /* 1 + index, 0 = empty */
};

struct entry {
    size_t offset;
    uint32_t len;
    uint32_t value;
};

struct sl_strmap {
    uint64_t seed;
    struct slot *slots;
    size_t mask; /* slots - 1 */
    struct entry *entries;
    size_t count, entry_room;
    char *blob;
    size_t blob_used, blob_room;
};

static uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 p = (unsigned __int128)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

/* Eight bytes a step; each step is a full 64x64 product folded to 64 bits. */
static uint32_t hash_key(uint64_t seed, const char *key, size_t len)
{
    const uint64_t k0 = 0x9e3779b97f4a7c15u, k1 = 0xd6e8feb86659fd93u;
    uint64_t h = seed ^ fold(len ^ k0, k1);
    uint64_t w;
    size_t n = len;
    for (; n >= 8; n -= 8, key += 8) {
        memcpy(&w, key, 8);
        h = fold(h ^ w, k0);
    }
    w = 0;
    if (n) memcpy(&w, key, n);
    h = fold(fold(h ^ w, k1) ^ seed, k0);
    return (uint32_t)(h ^ h >> 32);
}

struct sl_strmap *sl_strmap_open(size_t expected)
{
    if (expected > UINT32_MAX / 2) return NULL;
    struct sl_strmap *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    m->seed = fold((uint64_t)(uintptr_t)m ^ 0xa0761d6478bd642fu,
                   (uint64_t)now.tv_nsec << 20 ^ (uint64_t)now.tv_sec);
    size_t slots = 16;
    while (slots / 8 * 5 < expected) slots *= 2;
    m->mask = slots - 1;
    m->entry_room = expected > 8 ? expected : 8;
    m->slots = calloc(slots, sizeof *m->slots);
    m->entries = malloc(m->entry_room * sizeof *m->entries);
    if (!m->slots || !m->entries) {
        sl_strmap_close(m);
        return NULL;
    }
    return m;
}

void sl_strmap_close(struct sl_strmap *m)
{
    if (!m) return;
    free(m->slots);
    free(m->entries);
    free(m->blob);
    free(m);
}

/* The slot that holds the key, or the empty one where it belongs. */
static struct slot *find(const struct sl_strmap *m, uint32_t hash, const char *key, size_t len)
{
    for (size_t i = hash & m->mask;; i = (i + 1) & m->mask) {
        struct slot *s = &m->slots[i];
        if (!s->entry) return s;
        if (s->hash != hash) continue;
        const struct entry *e = &m->entries[s->entry - 1];
        if (e->len == len && (!len || !memcmp(m->blob + e->offset, key, len))) return s;
    }
}

static int double_slots(struct sl_strmap *m)
{
    size_t n = (m->mask + 1) * 2;
    struct slot *fresh = calloc(n, sizeof *fresh);
    if (!fresh) return -1;
    for (size_t i = 0; i <= m->mask; i++) {
        if (!m->slots[i].entry) continue;
        size_t at = m->slots[i].hash & (n - 1);
        while (fresh[at].entry) at = (at + 1) & (n - 1);
        fresh[at] = m->slots[i];
    }
    free(m->slots);
    m->slots = fresh;
    m->mask = n - 1;
    return 0;
}

/* Room for one more entry and len more key bytes. */
static int make_room(struct sl_strmap *m, size_t len)
{
    if (m->count == m->entry_room) {
        size_t room = m->entry_room * 2;
        struct entry *e = realloc(m->entries, room * sizeof *e);
        if (!e) return -1;
        m->entries = e;
        m->entry_room = room;
    }
    if (len > m->blob_room - m->blob_used) {
        size_t room = m->blob_room + m->blob_room / 2 + len + 256;
        if (room < m->blob_room) return -1;
        char *b = realloc(m->blob, room);
        if (!b) return -1;
        m->blob = b;
        m->blob_room = room;
    }
    return 0;
}

int sl_strmap_put(struct sl_strmap *m, const char *key, size_t len, uint32_t value)
{
    if (len > UINT32_MAX || m->count >= UINT32_MAX / 2) return -1;
    uint32_t hash = hash_key(m->seed, key, len);
    struct slot *s = find(m, hash, key, len);
    if (s->entry) return 0;
    if (make_room(m, len)) return -1;
    if (m->count + 1 > (m->mask + 1) / 8 * 5) {
        if (double_slots(m)) return -1;
        s = find(m, hash, key, len);
    }
    m->entries[m->count] = (struct entry){m->blob_used, (uint32_t)len, value};
    if (len) memcpy(m->blob + m->blob_used, key, len);
    m->blob_used += len;
    *s = (struct slot){hash, (uint32_t)++m->count};
    return 1;
}

bool sl_strmap_get(const struct sl_strmap *m, const char *key, size_t len, uint32_t *value)
{
    if (len > UINT32_MAX) return false;
    const struct slot *s = find(m, hash_key(m->seed, key, len), key, len);
    if (!s->entry) return false;
    *value = m->entries[s->entry - 1].value;
    return true;
}

size_t sl_strmap_count(const struct sl_strmap *m)
{
    return m->count;
}

const char *sl_strmap_key(const struct sl_strmap *m, size_t i, size_t *len)
{
    *len = m->entries[i].len;
    return m->blob ? m->blob + m->entries[i].offset : "";
}
