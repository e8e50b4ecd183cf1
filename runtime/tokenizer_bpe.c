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
 * In text words repeat, and so do pairs. Two direct-mapped caches of fixed size answer for most: ids of
 * short pieces, and what two parts join to. They belong to one call, so a tokenizer stays read-only
 * and shareable. The second one: k3-mini, one core, mixed scripts 27 -> 31 MB/s, 10 MB of blanks
 * 15 -> 26; a vocabulary of the release's size, mixed scripts 11 -> 16. */
#include "runtime/tokenizer_bpe.h"

#include <stdlib.h>
#include <string.h>
#include "runtime/tokenizer_queue.h"

#define CACHE_SLOTS (1u << 14)
#define CACHE_KEY   30
#define CACHE_IDS   8
#define PAIR_SLOTS  (1u << 14)

struct slot {
    int32_t id[CACHE_IDS];
    uint8_t n_ids;
    uint8_t len; /* 0: empty */
    char key[CACHE_KEY];
};
_Static_assert(sizeof(struct slot) == 64, "one cache line");

/* Two parts and what they join to, which may be SL_VOCAB_NONE. */
struct pair {
    uint32_t left, right, rank, full;
};

struct sl_bpe_run {
    const struct sl_vocab *v;
    struct slot *cache; /* [CACHE_SLOTS] or NULL */
    struct pair *pairs; /* [PAIR_SLOTS] or NULL */
    size_t room;        /* bytes of the longest piece that the arrays below hold */
    uint32_t *next;     /* [room] start of the part after this one; len: none */
    uint32_t *prev;     /* [room] start of the part before; only read where there is one */
    uint32_t *rank;     /* [room] of this part and the next joined, or NONE */
    uint32_t *id;       /* [room] of this part */
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
    /* Without memory for a cache it only goes slower. */
    if (with_cache) r->cache = aligned_alloc(64, CACHE_SLOTS * sizeof *r->cache);
    if (r->cache) memset(r->cache, 0, CACHE_SLOTS * sizeof *r->cache);
    if (with_cache) r->pairs = calloc(PAIR_SLOTS, sizeof *r->pairs);
    *out = r;
    return 0;
}

void sl_bpe_run_close(struct sl_bpe_run *r)
{
    if (!r) return;
    free(r->cache);
    free(r->pairs);
    free(r->next);
    free(r->prev);
    free(r->rank);
    free(r->id);
    sl_queue_free(&r->queue);
    free(r);
}

/* Rank of s[len], which is part `left` followed by part `right`. */
static uint32_t join(struct sl_bpe_run *r, uint32_t left, uint32_t right, const char *s, size_t len)
{
    if (!r->pairs || len == 2) return sl_vocab_rank(r->v, s, len);
    if (len > r->v->max_bytes) return SL_VOCAB_NONE;
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    struct pair *p = &r->pairs[h >> 50 & (PAIR_SLOTS - 1)];
    if (p->left != left || p->right != right || !p->full)
        *p = (struct pair){left, right, sl_vocab_rank(r->v, s, len), 1};
    return p->rank;
}

static int merge_short(struct sl_bpe_run *r, const char *s, size_t len, struct sl_ids *ids,
                       struct sl_err *err)
{
    struct {
        uint32_t start, id, rank;   /* rank: of this part and the next joined */
    } part[SL_BPE_SHORT_BYTES + 1]; /* the last one is the end */
    size_t n = len;
    for (size_t i = 0; i <= n; i++) {
        part[i].start = (uint32_t)i;
        part[i].id = i < n ? r->v->byte[(unsigned char)s[i]] : 0;
        part[i].rank = i + 1 < n ? sl_vocab_rank(r->v, s + i, 2) : SL_VOCAB_NONE;
    }
    for (;;) {
        size_t at = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (part[i].rank < part[at].rank) at = i;
        if (part[at].rank == SL_VOCAB_NONE) break;
        part[at].id = part[at].rank;
        memmove(part + at + 1, part + at + 2, (n - at - 1) * sizeof *part);
        n--;
        for (size_t i = at > 0 ? at - 1 : 0; i <= at; i++)
            part[i].rank = i + 1 == n ? SL_VOCAB_NONE
                                      : join(r, part[i].id, part[i + 1].id, s + part[i].start,
                                             part[i + 2].start - part[i].start);
    }
    for (size_t i = 0; i < n; i++) {
        int rc = sl_ids_push(ids, (int32_t)part[i].id, err);
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
    free(r->id);
    r->next = malloc(len * sizeof *r->next);
    r->prev = malloc(len * sizeof *r->prev);
    r->rank = malloc(len * sizeof *r->rank);
    r->id = malloc(len * sizeof *r->id);
    r->room = r->next && r->prev && r->rank && r->id ? len : 0;
    return r->room ? 0 : no_memory(err, len);
}

/* Ranks the pair that starts at part i and queues it. */
static void rank_pair(struct sl_bpe_run *r, const char *s, size_t len, size_t i)
{
    size_t mid = r->next[i];
    r->rank[i] = SL_VOCAB_NONE;
    if (mid >= len) return;
    r->rank[i] = join(r, r->id[i], r->id[mid], s + i, r->next[mid] - i);
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
        r->id[i] = r->v->byte[(unsigned char)s[i]];
        r->rank[i] = i + 1 < len ? sl_vocab_rank(r->v, s + i, 2) : SL_VOCAB_NONE;
        if (r->rank[i] != SL_VOCAB_NONE) sl_queue_push(&r->queue, (uint64_t)r->rank[i] << 32 | i);
    }
    uint64_t top;
    while ((top = sl_queue_pop(&r->queue)) != SL_QUEUE_NONE) {
        size_t i = (uint32_t)top;
        if (r->rank[i] != top >> 32) continue;
        size_t gone = r->next[i], after = r->next[gone];
        r->id[i] = r->rank[i];
        r->rank[gone] = SL_VOCAB_NONE; /* its entries are stale from here on */
        r->next[i] = (uint32_t)after;
        if (after < len) r->prev[after] = (uint32_t)i;
        if (i > 0) rank_pair(r, s, len, r->prev[i]);
        rank_pair(r, s, len, i);
    }
    for (size_t i = 0; i < len; i = r->next[i]) {
        rc = sl_ids_push(ids, (int32_t)r->id[i], err);
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
    if (len == 1) return sl_ids_push(ids, (int32_t)r->v->byte[(unsigned char)piece[0]], err);
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
             : len <= SL_BPE_SHORT_BYTES ? merge_short(r, piece, len, ids, err)
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
