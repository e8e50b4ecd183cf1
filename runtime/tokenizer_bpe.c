/* Rank BPE by two routes that give the same merges.
 *
 * Short pieces (nearly all: words have five bytes) keep an array of parts and scan it for the lowest
 * rank: no memory, no pointers, a few dozen compares. Long ones (a run of one letter may be 400,000
 * characters) keep parts in a linked list and pairs in a queue ordered by (rank, position), which is
 * "lowest rank, leftmost of equals" in one number:
 *
 *   parts  [ start -> next start ]     rank[start]: of this part joined to the next, or NONE
 *   queue  rank << 32 | start          entries whose rank is no longer rank[start] are stale
 *
 * A rank names its bytes, so an entry that still agrees with rank[start] still means the same two
 * parts. A merge takes one entry and adds at most two: the queue never holds more than 2 * len.
 *
 * In text words repeat. A direct-mapped cache of short pieces answers for most of them; it is bounded
 * and belongs to one call, so a tokenizer stays read-only and shareable. */
#include "runtime/tokenizer_bpe.h"

#include <stdlib.h>
#include <string.h>
#include "runtime/tokenizer_queue.h"

#define CACHE_SLOTS (1u << 14)
#define CACHE_KEY   30
#define CACHE_IDS   8

struct slot {
    int32_t id[CACHE_IDS];
    uint8_t n_ids;
    uint8_t len; /* 0: empty */
    char key[CACHE_KEY];
};
_Static_assert(sizeof(struct slot) == 64, "one cache line");

struct sl_bpe_run {
    const struct sl_vocab *v;
    struct slot *cache; /* [CACHE_SLOTS] or NULL */
    size_t room;        /* bytes of the longest piece that the arrays below hold */
    uint32_t *next;     /* [room] start of the part after this one; len: none */
    uint32_t *prev;     /* [room] start of the part before; only read where there is one */
    uint32_t *rank;     /* [room] */
    struct sl_queue queue;
};

static int no_memory(struct sl_err *err, size_t len)
{
    return sl_fail(err, SL_E_NOMEM, NULL, "tokenizer", "no memory to merge a piece of %zu bytes",
                   len);
}

int sl_bpe_run_open(struct sl_bpe_run **out, const struct sl_vocab *v, bool with_cache,
                    struct sl_err *err)
{
    struct sl_bpe_run *r = calloc(1, sizeof *r);
    if (!r) return no_memory(err, 0);
    r->v = v;
    /* Without memory for the cache it only goes slower. */
    if (with_cache) r->cache = aligned_alloc(64, CACHE_SLOTS * sizeof *r->cache);
    if (r->cache) memset(r->cache, 0, CACHE_SLOTS * sizeof *r->cache);
    *out = r;
    return 0;
}

void sl_bpe_run_close(struct sl_bpe_run *r)
{
    if (!r) return;
    free(r->cache);
    free(r->next);
    free(r->prev);
    free(r->rank);
    sl_queue_free(&r->queue);
    free(r);
}

static int push_part(const struct sl_vocab *v, const char *s, size_t len, struct sl_ids *ids,
                     struct sl_err *err)
{
    return sl_ids_push(ids, (int32_t)sl_vocab_rank(v, s, len), err);
}

static int merge_short(const struct sl_vocab *v, const char *s, size_t len, struct sl_ids *ids,
                       struct sl_err *err)
{
    uint8_t start[SL_BPE_SHORT_BYTES + 1];
    uint32_t rank[SL_BPE_SHORT_BYTES]; /* rank[i]: parts i and i + 1 joined */
    size_t n = len;                    /* parts */
    for (size_t i = 0; i <= len; i++) start[i] = (uint8_t)i;
    for (size_t i = 0; i + 1 < n; i++) rank[i] = sl_vocab_rank(v, s + i, 2);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == SL_VOCAB_NONE) break;
        /* Part best + 1 goes; n - 1 parts stay, with n - 2 pairs. */
        memmove(start + best + 1, start + best + 2, n - best - 1);
        n--;
        if (best + 1 < n) {
            memmove(rank + best + 1, rank + best + 2, (n - best - 2) * sizeof *rank);
            rank[best] = sl_vocab_rank(v, s + start[best], (size_t)start[best + 2] - start[best]);
        }
        if (best > 0)
            rank[best - 1] =
                sl_vocab_rank(v, s + start[best - 1], (size_t)start[best + 1] - start[best - 1]);
    }
    for (size_t i = 0; i < n; i++) {
        int rc = push_part(v, s + start[i], (size_t)start[i + 1] - start[i], ids, err);
        if (rc) return rc;
    }
    return 0;
}

static int grow(struct sl_bpe_run *r, size_t len, struct sl_err *err)
{
    if (len >= SL_VOCAB_NONE || len > SIZE_MAX / 2) return no_memory(err, len);
    if (!sl_queue_reset(&r->queue, 2 * len)) return no_memory(err, len);
    if (len <= r->room) return 0;
    free(r->next);
    free(r->prev);
    free(r->rank);
    r->next = malloc(len * sizeof *r->next);
    r->prev = malloc(len * sizeof *r->prev);
    r->rank = malloc(len * sizeof *r->rank);
    r->room = r->next && r->prev && r->rank ? len : 0;
    return r->room ? 0 : no_memory(err, len);
}

/* Ranks the pair that starts at part i and queues it. */
static void rank_pair(struct sl_bpe_run *r, const char *s, size_t len, size_t i)
{
    size_t mid = r->next[i];
    r->rank[i] = SL_VOCAB_NONE;
    if (mid >= len) return;
    r->rank[i] = sl_vocab_rank(r->v, s + i, r->next[mid] - i);
    if (r->rank[i] != SL_VOCAB_NONE) sl_queue_push(&r->queue, (uint64_t)r->rank[i] << 32 | i);
}

static int merge_long(struct sl_bpe_run *r, const char *s, size_t len, struct sl_ids *ids,
                      struct sl_err *err)
{
    int rc = grow(r, len, err);
    if (rc) return rc;
    for (size_t i = 0; i < len; i++) {
        r->next[i] = (uint32_t)(i + 1);
        r->prev[i] = (uint32_t)(i - (i > 0));
        r->rank[i] = i + 1 < len ? sl_vocab_rank(r->v, s + i, 2) : SL_VOCAB_NONE;
        if (r->rank[i] != SL_VOCAB_NONE) sl_queue_push(&r->queue, (uint64_t)r->rank[i] << 32 | i);
    }
    uint64_t top;
    while ((top = sl_queue_pop(&r->queue)) != SL_QUEUE_NONE) {
        size_t i = (uint32_t)top;
        if (r->rank[i] != top >> 32) continue;
        size_t gone = r->next[i], after = r->next[gone];
        r->rank[gone] = SL_VOCAB_NONE; /* its entries are stale from here on */
        r->next[i] = (uint32_t)after;
        if (after < len) r->prev[after] = (uint32_t)i;
        if (i > 0) rank_pair(r, s, len, r->prev[i]);
        rank_pair(r, s, len, i);
    }
    for (size_t i = 0; i < len; i = r->next[i]) {
        rc = push_part(r->v, s + i, r->next[i] - i, ids, err);
        if (rc) return rc;
    }
    return 0;
}

/* Eight bytes a step; the high bits of the last product are the best mixed. */
static uint32_t cache_index(const char *s, size_t len)
{
    uint64_t h = len;
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        uint64_t w;
        memcpy(&w, s + i, 8);
        h = (h ^ w) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    uint64_t w = 0;
    memcpy(&w, s + i, len - i);
    h = (h ^ w) * 0xd6e8feb86659fd93u;
    return (uint32_t)(h >> 40) & (CACHE_SLOTS - 1);
}

int sl_bpe_piece(struct sl_bpe_run *r, const char *piece, size_t len, struct sl_ids *ids,
                 struct sl_err *err)
{
    if (len == 1) return push_part(r->v, piece, 1, ids, err);
    struct slot *slot = NULL;
    if (r->cache && len <= CACHE_KEY) {
        slot = &r->cache[cache_index(piece, len)];
        if (slot->len == len && memcmp(slot->key, piece, len) == 0) {
            for (unsigned i = 0; i < slot->n_ids; i++) {
                int rc = sl_ids_push(ids, slot->id[i], err);
                if (rc) return rc;
            }
            return 0;
        }
    }
    size_t before = ids->n;
    uint32_t whole = sl_vocab_rank(r->v, piece, len);
    int rc = whole != SL_VOCAB_NONE      ? sl_ids_push(ids, (int32_t)whole, err)
             : len <= SL_BPE_SHORT_BYTES ? merge_short(r->v, piece, len, ids, err)
                                         : merge_long(r, piece, len, ids, err);
    if (rc) return rc;
    size_t n_ids = ids->n - before;
    if (slot && n_ids <= CACHE_IDS) {
        slot->len = (uint8_t)len;
        slot->n_ids = (uint8_t)n_ids;
        memcpy(slot->key, piece, len);
        memcpy(slot->id, ids->v + before, n_ids * sizeof *slot->id);
    }
    return 0;
}
