/* Inside the prefix cache: what prefix_cache.c (index and memory) and prefix_file.c (folder) share.
 *
 *   block     refs: snapshots and blocks that need it     hot: those of them that lie in memory
 *   in memory while hot > 0; in a file once it was written; gone when refs is 0
 *
 * A snapshot is in memory (hot), in a file (cold), or both. All of it under the cache's lock. */
#ifndef SL_RUNTIME_PREFIX_PARTS_H
#define SL_RUNTIME_PREFIX_PARTS_H

#include <pthread.h>
#include "base/arena.h"
#include "runtime/prefix_cache.h"

enum { SL_PREFIX_PAGE = 16 << 10, SL_PREFIX_BUCKETS = 1024, SL_PREFIX_DIGEST = 16 };

/* Where the bytes of a block or snapshot lie. */
struct sl_prefix_place {
    uint32_t *pages; /* NULL: not in memory */
    uint32_t n_pages;
    bool in_file;
};

struct sl_prefix_block {
    struct sl_prefix_block *parent; /* NULL: the sequence begins here */
    struct sl_prefix_block *next;   /* in the bucket */
    struct sl_prefix_snapshot *snapshots;
    uint64_t end; /* position behind it */
    uint64_t refs, hot;
    struct sl_prefix_place place;
    bool lost; /* its file could not be written or read: nothing behind it can be restored */
    unsigned char digest[SL_PREFIX_DIGEST];
    int32_t ids[]; /* [block] */
};

struct sl_prefix_snapshot {
    struct sl_prefix_snapshot *next; /* on the same block */
    struct sl_prefix_snapshot *newer, *older;
    struct sl_prefix_block *last; /* NULL: position is inside the first block */
    uint64_t position;
    struct sl_prefix_place place;
    unsigned char digest[SL_PREFIX_DIGEST];
    uint32_t n_tail;
    int32_t tail[]; /* ids behind the last block */
};

struct sl_prefix {
    pthread_mutex_t lock;
    const struct sl_config *cfg;
    uint32_t block;
    unsigned form;
    unsigned char identity[32];

    struct sl_arena arena;
    uint32_t n_pages, n_free;
    uint32_t *free_pages;
    uint64_t index_bytes, index_max; /* structs, ids and lists of pages */

    struct sl_prefix_block *buckets[SL_PREFIX_BUCKETS];
    struct sl_prefix_snapshot *root;            /* those before the first block end */
    struct sl_prefix_snapshot *newest, *oldest; /* by use */

    char *dir;
    int dir_lock; /* descriptor of the lock file, -1 */
    uint64_t disk_used, disk_max;
    sluice_prefix_stats stats;
};

typedef int (*sl_prefix_piece_fn)(void *ctx, void *data, uint64_t bytes);

/* prefix_cache.c */
uint64_t sl_prefix_block_bytes(const struct sl_prefix *p); /* of rows */
uint64_t sl_prefix_snapshot_bytes(const struct sl_prefix *p, uint32_t n_tail);
/* sha256(identity, parent's digest or zeros, kind, ids), cut to 16 bytes. false: no memory. */
bool sl_prefix_digest(const struct sl_prefix *p, unsigned char out[SL_PREFIX_DIGEST],
                      const struct sl_prefix_block *parent, char kind, const int32_t *ids,
                      uint32_t n);
struct sl_prefix_block *sl_prefix_find_block(const struct sl_prefix *p,
                                             const unsigned char digest[SL_PREFIX_DIGEST]);
/* Make an object of the index and link it; refs of what it stands on are taken. NULL: no room. */
struct sl_prefix_block *sl_prefix_new_block(struct sl_prefix *p, struct sl_prefix_block *parent,
                                            const int32_t *ids);
struct sl_prefix_snapshot *sl_prefix_new_snapshot(struct sl_prefix *p, struct sl_prefix_block *last,
                                                  const int32_t *tail, uint32_t n_tail);
/* Takes it out of index, memory and folder. */
void sl_prefix_drop(struct sl_prefix *p, struct sl_prefix_snapshot *s);
void sl_prefix_unref(struct sl_prefix *p, struct sl_prefix_block *b);
/* Copies from memory, in order. */
int sl_prefix_each_page(struct sl_prefix *p, const struct sl_prefix_place *place, uint64_t bytes,
                        sl_prefix_piece_fn fn, void *ctx);

/* prefix_file.c; all of it does nothing without a folder. */
int sl_prefix_dir_open(struct sl_prefix *p, struct sl_err *err); /* locks it and reads the index */
void sl_prefix_dir_close(struct sl_prefix *p);
/* Memory to file; true when it is there now. Older cold snapshots make room. */
bool sl_prefix_write_block(struct sl_prefix *p, struct sl_prefix_block *b);
bool sl_prefix_write_snapshot(struct sl_prefix *p, struct sl_prefix_snapshot *s);
void sl_prefix_unlink(struct sl_prefix *p, const unsigned char digest[SL_PREFIX_DIGEST], char kind,
                      struct sl_prefix_place *place, uint32_t n_ids, uint64_t payload);
/* File to state; false: it is damaged, and the state half written. */
bool sl_prefix_read_block(struct sl_prefix *p, const struct sl_prefix_block *b,
                          struct sl_state *st);
bool sl_prefix_read_snapshot(struct sl_prefix *p, const struct sl_prefix_snapshot *s,
                             struct sl_state *st);

#endif
