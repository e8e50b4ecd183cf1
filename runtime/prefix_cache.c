/* Index and memory of earlier states (prefix_cache.h, prefix_parts.h).
 *
 * Memory is one arena cut into pages of 16 KiB, because blocks (28 MB at full size) and snapshots
 * (465 MB + tail) come and go in any order: pages never fragment, and copying them is a drop beside
 * computing what is in them. The index is malloc'ed, counted, and bounded by a share of the same budget.
 *
 * Everything a snapshot needs is counted up the chain: refs keep a block known, hot keeps its rows in
 * memory. Both follow one rule, the last one out tells the parent. */
#include "runtime/prefix_parts.h"

#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/size.h"

enum { INDEX_SHARE = 32, INDEX_LEAST = 64 << 10, BLOCK_MAX = 65536 };

/* ---------------------------------------------------------------- sizes */

uint64_t sl_prefix_block_bytes(const struct sl_prefix *p)
{
    return sl_state_row_bytes(p->cfg) * p->block;
}

uint64_t sl_prefix_snapshot_bytes(const struct sl_prefix *p, uint32_t n_tail)
{
    return sl_state_recurrent_bytes(p->cfg, p->form) + sl_state_row_bytes(p->cfg) * n_tail;
}

uint32_t sl_prefix_block_ids(const struct sl_prefix *p)
{
    return p->block;
}

static uint32_t pages_of(uint64_t bytes)
{
    return (uint32_t)((bytes + SL_PREFIX_PAGE - 1) / SL_PREFIX_PAGE);
}

uint64_t sl_prefix_bytes(const struct sl_config *cfg, unsigned form, uint32_t block, uint64_t n_ids,
                         uint64_t n_snapshots)
{
    const uint64_t rows = sl_state_row_bytes(cfg);
    if (!block) block = SL_PREFIX_BLOCK;
    const uint64_t blocks = n_ids / block * pages_of(rows * block);
    const uint64_t snapshots =
        n_snapshots * pages_of(sl_state_recurrent_bytes(cfg, form) + rows * block);
    const uint64_t pages = (blocks + snapshots) * SL_PREFIX_PAGE;
    return pages + pages / (INDEX_SHARE - 1) + INDEX_LEAST + SL_PREFIX_PAGE;
}

/* ---------------------------------------------------------------- pages */

static bool take_index(struct sl_prefix *p, uint64_t bytes)
{
    if (bytes > p->index_max - p->index_bytes) return false;
    p->index_bytes += bytes;
    return true;
}

static bool take_pages(struct sl_prefix *p, struct sl_prefix_place *place, uint64_t bytes)
{
    const uint32_t n = pages_of(bytes);
    if (n > p->n_free || !take_index(p, n * sizeof *place->pages)) return false;
    place->pages = malloc((n + 1) * sizeof *place->pages);
    if (!place->pages) {
        p->index_bytes -= n * sizeof *place->pages;
        return false;
    }
    for (uint32_t i = 0; i < n; i++) place->pages[i] = p->free_pages[--p->n_free];
    place->n_pages = n;
    return true;
}

static void give_pages(struct sl_prefix *p, struct sl_prefix_place *place)
{
    if (!place->pages) return;
    for (uint32_t i = 0; i < place->n_pages; i++) p->free_pages[p->n_free++] = place->pages[i];
    p->index_bytes -= place->n_pages * sizeof *place->pages;
    free(place->pages);
    place->pages = NULL;
    place->n_pages = 0;
}

int sl_prefix_each_page(struct sl_prefix *p, const struct sl_prefix_place *place, uint64_t bytes,
                        sl_prefix_piece_fn fn, void *ctx)
{
    int rc = 0;
    for (uint32_t i = 0; bytes && !rc; i++) {
        const uint64_t n = bytes < SL_PREFIX_PAGE ? bytes : SL_PREFIX_PAGE;
        rc = fn(ctx, p->arena.base + (uint64_t)place->pages[i] * SL_PREFIX_PAGE, n);
        bytes -= n;
    }
    return rc;
}

/* A walk over the pieces of a state beside the pages of a place. */
struct copy {
    struct sl_prefix *p;
    const struct sl_prefix_place *place;
    uint64_t at;
    bool to_state;
};

static int copy_piece(void *ctx, void *data, uint64_t bytes)
{
    struct copy *c = ctx;
    unsigned char *s = data;
    while (bytes) {
        const uint64_t in = c->at % SL_PREFIX_PAGE;
        const uint64_t n = bytes < SL_PREFIX_PAGE - in ? bytes : SL_PREFIX_PAGE - in;
        unsigned char *page = c->p->arena.base +
                              (uint64_t)c->place->pages[c->at / SL_PREFIX_PAGE] * SL_PREFIX_PAGE +
                              in;
        if (c->to_state)
            memcpy(s, page, n);
        else
            memcpy(page, s, n);
        c->at += n;
        s += n;
        bytes -= n;
    }
    return 0;
}

static void copy_block(struct sl_prefix *p, const struct sl_prefix_block *b, struct sl_state *st,
                       bool to_state)
{
    struct copy c = {p, &b->place, 0, to_state};
    sl_state_each_row(st, b->end - p->block, b->end, copy_piece, &c);
}

static void copy_snapshot(struct sl_prefix *p, const struct sl_prefix_snapshot *s,
                          struct sl_state *st, bool to_state)
{
    struct copy c = {p, &s->place, 0, to_state};
    sl_state_each_recurrent(st, copy_piece, &c);
    sl_state_each_row(st, s->position - s->n_tail, s->position, copy_piece, &c);
}

/* ---------------------------------------------------------------- index */

bool sl_prefix_digest(const struct sl_prefix *p, unsigned char out[SL_PREFIX_DIGEST],
                      const struct sl_prefix_block *parent, char kind, const int32_t *ids,
                      uint32_t n)
{
    static const unsigned char none[SL_PREFIX_DIGEST];
    struct sl_sha256 *h = sl_sha256_open();
    char hex[65];
    if (!h) return false;
    sl_sha256_add(h, p->identity, sizeof p->identity);
    sl_sha256_add(h, &p->block, sizeof p->block);
    sl_sha256_add(h, parent ? parent->digest : none, SL_PREFIX_DIGEST);
    sl_sha256_add(h, &kind, 1);
    sl_sha256_add(h, ids, n * sizeof *ids);
    sl_sha256_close(h, hex);
    for (int i = 0; i < SL_PREFIX_DIGEST; i++) {
        const char *c = hex + 2 * i;
        const int high = c[0] <= '9' ? c[0] - '0' : c[0] - 'a' + 10;
        const int low = c[1] <= '9' ? c[1] - '0' : c[1] - 'a' + 10;
        out[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

static struct sl_prefix_block **bucket(const struct sl_prefix *p, const unsigned char *digest)
{
    const unsigned i = (digest[0] | (unsigned)digest[1] << 8) % SL_PREFIX_BUCKETS;
    return (struct sl_prefix_block **)&p->buckets[i];
}

struct sl_prefix_block *sl_prefix_find_block(const struct sl_prefix *p,
                                             const unsigned char digest[SL_PREFIX_DIGEST])
{
    struct sl_prefix_block *b = *bucket(p, digest);
    while (b && memcmp(b->digest, digest, SL_PREFIX_DIGEST) != 0) b = b->next;
    return b;
}

/* The block that goes on from parent with these ids, NULL: not known. */
static struct sl_prefix_block *child(const struct sl_prefix *p,
                                     const struct sl_prefix_block *parent, const int32_t *ids)
{
    unsigned char digest[SL_PREFIX_DIGEST];
    if (!sl_prefix_digest(p, digest, parent, 'b', ids, p->block)) return NULL;
    struct sl_prefix_block *b = sl_prefix_find_block(p, digest);
    if (!b || b->parent != parent || memcmp(b->ids, ids, p->block * sizeof *ids) != 0) return NULL;
    return b;
}

static uint64_t block_index_bytes(const struct sl_prefix *p)
{
    return sizeof(struct sl_prefix_block) + p->block * sizeof(int32_t);
}

static uint64_t snapshot_index_bytes(uint32_t n_tail)
{
    return sizeof(struct sl_prefix_snapshot) + n_tail * sizeof(int32_t);
}

struct sl_prefix_block *sl_prefix_new_block(struct sl_prefix *p, struct sl_prefix_block *parent,
                                            const int32_t *ids)
{
    const uint64_t bytes = block_index_bytes(p);
    if (!take_index(p, bytes)) return NULL;
    struct sl_prefix_block *b = calloc(1, bytes);
    if (!b || !sl_prefix_digest(p, b->digest, parent, 'b', ids, p->block)) {
        free(b);
        p->index_bytes -= bytes;
        return NULL;
    }
    memcpy(b->ids, ids, p->block * sizeof *ids);
    b->parent = parent;
    b->end = (parent ? parent->end : 0) + p->block;
    if (parent) parent->refs++;
    struct sl_prefix_block **at = bucket(p, b->digest);
    b->next = *at;
    *at = b;
    p->stats.blocks++;
    return b;
}

static void free_block(struct sl_prefix *p, struct sl_prefix_block *b)
{
    struct sl_prefix_block **at = bucket(p, b->digest);
    while (*at && *at != b) at = &(*at)->next;
    if (*at) *at = b->next;
    give_pages(p, &b->place);
    sl_prefix_unlink(p, b->digest, 'b', &b->place, p->block, sl_prefix_block_bytes(p));
    p->index_bytes -= block_index_bytes(p);
    p->stats.blocks--;
    free(b);
}

void sl_prefix_unref(struct sl_prefix *p, struct sl_prefix_block *b)
{
    while (b && --b->refs == 0) {
        struct sl_prefix_block *parent = b->parent;
        free_block(p, b);
        b = parent;
    }
}

/* The rows of b and all before it are wanted in memory, by one more. Who calls fills those that are new. */
static void heat(struct sl_prefix_block *b)
{
    while (b && b->hot++ == 0) b = b->parent;
}

/* By one less. Rows that nobody wants in memory go to the folder, if somebody still needs them: kept is
 * false when the caller gives up its ref right after, and with it what only it needs. */
static void cool(struct sl_prefix *p, struct sl_prefix_block *b, bool kept)
{
    while (b && --b->hot == 0) {
        kept = kept || b->refs > 1;
        if (kept && b->place.pages && !b->place.in_file && !sl_prefix_write_block(p, b))
            b->lost = true;
        give_pages(p, &b->place);
        b = b->parent;
    }
}

static void link_newest(struct sl_prefix *p, struct sl_prefix_snapshot *s)
{
    s->newer = NULL;
    s->older = p->newest;
    if (p->newest) p->newest->newer = s;
    p->newest = s;
    if (!p->oldest) p->oldest = s;
}

static void unlink_use(struct sl_prefix *p, struct sl_prefix_snapshot *s)
{
    *(s->newer ? &s->newer->older : &p->newest) = s->older;
    *(s->older ? &s->older->newer : &p->oldest) = s->newer;
}

static void touch(struct sl_prefix *p, struct sl_prefix_snapshot *s)
{
    unlink_use(p, s);
    link_newest(p, s);
}

struct sl_prefix_snapshot *sl_prefix_new_snapshot(struct sl_prefix *p, struct sl_prefix_block *last,
                                                  const int32_t *tail, uint32_t n_tail)
{
    const uint64_t bytes = snapshot_index_bytes(n_tail);
    if (!take_index(p, bytes)) return NULL;
    struct sl_prefix_snapshot *s = calloc(1, bytes);
    if (!s || !sl_prefix_digest(p, s->digest, last, 's', tail, n_tail)) {
        free(s);
        p->index_bytes -= bytes;
        return NULL;
    }
    if (n_tail) memcpy(s->tail, tail, n_tail * sizeof *tail);
    s->n_tail = n_tail;
    s->last = last;
    s->position = (last ? last->end : 0) + n_tail;
    if (last) last->refs++;
    struct sl_prefix_snapshot **list = last ? &last->snapshots : &p->root;
    s->next = *list;
    *list = s;
    link_newest(p, s);
    p->stats.snapshots++;
    return s;
}

/* Out of memory; kept: it stays known, in its file. */
static void cool_snapshot(struct sl_prefix *p, struct sl_prefix_snapshot *s, bool kept)
{
    if (!s->place.pages) return;
    give_pages(p, &s->place);
    cool(p, s->last, kept);
}

void sl_prefix_drop(struct sl_prefix *p, struct sl_prefix_snapshot *s)
{
    struct sl_prefix_snapshot **at = s->last ? &s->last->snapshots : &p->root;
    while (*at && *at != s) at = &(*at)->next;
    if (*at) *at = s->next;
    unlink_use(p, s);
    sl_prefix_unlink(p, s->digest, 's', &s->place, s->n_tail,
                     sl_prefix_snapshot_bytes(p, s->n_tail));
    cool_snapshot(p, s, false);
    sl_prefix_unref(p, s->last);
    p->index_bytes -= snapshot_index_bytes(s->n_tail);
    p->stats.snapshots--;
    free(s);
}

/* The least recently used one in memory goes: to its file, or for good. false: none is left. */
static bool evict(struct sl_prefix *p)
{
    struct sl_prefix_snapshot *s = p->oldest;
    while (s && !s->place.pages) s = s->newer;
    if (!s) return false;
    struct sl_prefix_block *const last = s->last;
    if (last) last->refs++; /* making room in the folder may drop s itself */
    if (p->dir && (s->place.in_file || sl_prefix_write_snapshot(p, s))) {
        cool_snapshot(p, s, true);
    } else {
        p->stats.evicted++;
        sl_prefix_drop(p, s);
    }
    sl_prefix_unref(p, last);
    return true;
}

/* ---------------------------------------------------------------- open, close */

int sl_prefix_open(struct sl_prefix **out, const struct sl_config *cfg,
                   const struct sl_prefix_opts *o, struct sl_err *err)
{
    *out = NULL;
    const uint32_t block = o->block ? o->block : SL_PREFIX_BLOCK;
    if (block > BLOCK_MAX)
        return sl_fail(err, SL_E_ARG, NULL, "prefix block", "%u ids, at most %d", block, BLOCK_MAX);
    if (o->memory_bytes < 2 * INDEX_LEAST)
        return sl_fail(err, SL_E_ARG, NULL, "prefix cache", "%llu bytes, at least %d",
                       (unsigned long long)o->memory_bytes, 2 * INDEX_LEAST);
    struct sl_prefix *p = calloc(1, sizeof *p);
    if (!p) return sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for the prefix cache");
    pthread_mutex_init(&p->lock, NULL);
    p->cfg = cfg;
    p->form = o->form;
    p->block = block;
    p->dir_lock = -1;
    memcpy(p->identity, o->identity, sizeof p->identity);
    uint64_t index = o->memory_bytes / INDEX_SHARE;
    if (index < INDEX_LEAST) index = INDEX_LEAST;
    const uint64_t pages = o->memory_bytes > index ? (o->memory_bytes - index) / SL_PREFIX_PAGE : 0;
    p->n_pages = pages < UINT32_MAX ? (uint32_t)pages : UINT32_MAX;
    p->index_max = index;
    p->index_bytes = sizeof *p + p->n_pages * sizeof *p->free_pages;
    p->stats.memory_bytes = o->memory_bytes;
    p->disk_max = o->disk_bytes ? o->disk_bytes : 8 * o->memory_bytes;
    int rc = 0;
    p->free_pages = malloc((p->n_pages + UINT64_C(1)) * sizeof *p->free_pages);
    if (!p->free_pages) rc = sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory for the prefix cache");
    if (!rc && p->n_pages)
        rc = sl_arena_init(&p->arena, (size_t)p->n_pages * SL_PREFIX_PAGE, "prefix cache", err);
    while (!rc && p->n_free < p->n_pages) {
        p->free_pages[p->n_free] = p->n_pages - 1 - p->n_free; /* low pages are taken first */
        p->n_free++;
    }
    if (!rc && o->dir) {
        p->dir = strdup(o->dir);
        rc =
            p->dir ? sl_prefix_dir_open(p, err) : sl_fail(err, SL_E_NOMEM, NULL, NULL, "no memory");
    }
    if (rc) {
        sl_prefix_dir_close(p); /* nothing of this process is worth a file */
        sl_prefix_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

void sl_prefix_close(struct sl_prefix *p)
{
    if (!p) return;
    if (p->dir)
        while (evict(p)) continue;
    sl_prefix_dir_close(p); /* from here on dropping touches no file */
    while (p->newest) sl_prefix_drop(p, p->newest);
    sl_arena_free(&p->arena);
    free(p->free_pages);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* ---------------------------------------------------------------- find, restore, insert */

/* Best snapshot for ids[0..n): behind `above`, before n, every block before it at hand. */
static struct sl_prefix_snapshot *best(const struct sl_prefix *p, const int32_t *ids, size_t n,
                                       uint64_t above)
{
    struct sl_prefix_snapshot *found = NULL;
    const struct sl_prefix_block *b = NULL;
    for (;;) {
        const uint64_t from = b ? b->end : 0;
        for (struct sl_prefix_snapshot *s = b ? b->snapshots : p->root; s; s = s->next)
            if (s->position < n && s->position > above &&
                (!found || s->position > found->position) &&
                (!s->n_tail || memcmp(s->tail, ids + from, s->n_tail * sizeof *ids) == 0))
                found = s;
        if (n - from < p->block) return found;
        b = child(p, b, ids + from);
        if (!b || b->lost) return found;
    }
}

/* A session of the other path has no use for this cache. */
static bool same_form(const struct sl_prefix *p, const struct sl_state *st)
{
    return (p->form & SL_STATE_FAST) == (st->form & SL_STATE_FAST);
}

/* Rows first, the snapshot last. false: a file was damaged; what depends on it is dropped. */
static bool restore(struct sl_prefix *p, struct sl_prefix_snapshot *s, struct sl_state *st)
{
    for (struct sl_prefix_block *b = s->last; b; b = b->parent) {
        if (b->place.pages) {
            copy_block(p, b, st, true);
        } else if (!sl_prefix_read_block(p, b, st)) {
            sl_prefix_unlink(p, b->digest, 'b', &b->place, p->block, sl_prefix_block_bytes(p));
            b->lost = true;
            p->stats.refused++;
            return false;
        }
    }
    sl_state_place(st, s->position);
    if (s->place.pages) {
        copy_snapshot(p, s, st, true);
    } else if (!sl_prefix_read_snapshot(p, s, st)) {
        p->stats.refused++;
        sl_prefix_drop(p, s);
        return false;
    }
    touch(p, s);
    return true;
}

int sl_prefix_restore(struct sl_prefix *p, const int32_t *ids, size_t n, uint64_t above,
                      struct sl_state *st, uint64_t *position, struct sl_err *err)
{
    struct sl_prefix_snapshot *s;
    bool spoiled = false;
    (void)err;
    *position = 0;
    if (!same_form(p, st)) return 0;
    pthread_mutex_lock(&p->lock);
    p->stats.lookups++;
    /* A state that a damaged file spoiled is no longer worth its own position. */
    while ((s = best(p, ids, n < st->ctx ? n : st->ctx, spoiled ? 0 : above)) != NULL) {
        if (restore(p, s, st)) {
            *position = s->position;
            p->stats.hits++;
            p->stats.restored_tokens += s->position;
            break;
        }
        spoiled = true;
    }
    pthread_mutex_unlock(&p->lock);
    if (!s && spoiled) sl_state_reset(st);
    return 0;
}

static struct sl_prefix_snapshot *find_snapshot(const struct sl_prefix *p,
                                                const struct sl_prefix_block *last,
                                                const int32_t *tail, uint32_t n_tail)
{
    struct sl_prefix_snapshot *s = last ? last->snapshots : p->root;
    while (s && (s->n_tail != n_tail || (n_tail && memcmp(s->tail, tail, n_tail * sizeof *tail))))
        s = s->next;
    return s;
}

/* Makes room for all that the sequence needs beyond what is in memory now. deepest is pinned. */
static bool make_room(struct sl_prefix *p, const struct sl_prefix_block *deepest, uint64_t n_new,
                      uint32_t n_tail)
{
    const uint64_t each = pages_of(sl_prefix_block_bytes(p));
    const uint64_t own = pages_of(sl_prefix_snapshot_bytes(p, n_tail));
    uint64_t cold = 0;
    for (const struct sl_prefix_block *b = deepest; b; b = b->parent) cold += !b->place.pages;
    const uint64_t pages = (n_new + cold) * each + own;
    const uint64_t index =
        n_new * block_index_bytes(p) + snapshot_index_bytes(n_tail) + pages * sizeof(uint32_t);
    if (pages > p->n_pages) return false;
    while (p->n_free < pages || p->index_max - p->index_bytes < index)
        if (!evict(p)) return false;
    return true;
}

/* Rows of b and all before it that are not in memory, from st. The room was made. */
static bool fill(struct sl_prefix *p, struct sl_prefix_block *b, struct sl_state *st)
{
    for (; b; b = b->parent) {
        if (b->place.pages) continue;
        if (!take_pages(p, &b->place, sl_prefix_block_bytes(p))) return false;
        copy_block(p, b, st, false);
        b->lost = false;
    }
    return true;
}

static bool insert(struct sl_prefix *p, const int32_t *ids, struct sl_state *st)
{
    const uint64_t n = st->position;
    const uint64_t levels = n / p->block;
    const uint32_t n_tail = (uint32_t)(n % p->block);
    struct sl_prefix_block *b = NULL;
    uint64_t have = 0;
    for (struct sl_prefix_block *next; have < levels; have++, b = next)
        if (!(next = child(p, b, ids + have * p->block))) break;
    const int32_t *tail = ids + levels * p->block;
    struct sl_prefix_snapshot *s = have == levels ? find_snapshot(p, b, tail, n_tail) : NULL;
    if (s && s->place.pages) {
        touch(p, s);
        return true;
    }
    /* Pinned, the chain outlives whatever leaves to make room. s might not: it is found again. */
    if (b) b->refs++;
    heat(b);
    bool ok = make_room(p, b, levels - have, n_tail) && fill(p, b, st);
    for (; ok && have < levels; have++) {
        struct sl_prefix_block *next = sl_prefix_new_block(p, b, ids + have * p->block);
        ok = next != NULL;
        if (!ok) break;
        next->refs++;
        heat(next);
        cool(p, b, false); /* next holds it now */
        sl_prefix_unref(p, b);
        b = next;
        ok = fill(p, b, st);
    }
    if (ok) s = find_snapshot(p, b, tail, n_tail);
    if (ok && !s) ok = (s = sl_prefix_new_snapshot(p, b, tail, n_tail)) != NULL;
    if (ok) {
        ok = take_pages(p, &s->place, sl_prefix_snapshot_bytes(p, n_tail));
        if (ok) {
            heat(b);
            copy_snapshot(p, s, st, false);
            touch(p, s);
        } else if (!s->place.in_file) {
            sl_prefix_drop(p, s);
        }
    }
    cool(p, b, false);
    sl_prefix_unref(p, b);
    return ok;
}

int sl_prefix_insert(struct sl_prefix *p, const int32_t *ids, struct sl_state *st,
                     struct sl_err *err)
{
    (void)err;
    if (!st->position || !same_form(p, st)) return 0;
    pthread_mutex_lock(&p->lock);
    insert(p, ids, st);
    pthread_mutex_unlock(&p->lock);
    return 0;
}

void sl_prefix_get_stats(struct sl_prefix *p, sluice_prefix_stats *out)
{
    pthread_mutex_lock(&p->lock);
    *out = p->stats;
    out->memory_used = (uint64_t)(p->n_pages - p->n_free) * SL_PREFIX_PAGE + p->index_bytes;
    out->disk_bytes = p->dir ? p->disk_max : 0;
    out->disk_used = p->disk_used;
    pthread_mutex_unlock(&p->lock);
}
