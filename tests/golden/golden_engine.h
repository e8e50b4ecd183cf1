/* The engine put together by hand for tests: pack, trunk, model, store, state, graph over one arena.
 *
 * Nothing of the session layer is in between, so that threads, ISA, slots, chunk and cache can be set
 * one by one. Every failure ends the running test with the library's own message. */
#ifndef SL_TESTS_GOLDEN_ENGINE_H
#define SL_TESTS_GOLDEN_ENGINE_H

#include "runtime/graph.h"

struct golden_opts {
    int threads;                    /* 0: 1 */
    int chunk;                      /* largest chunk, 0: 64 */
    uint64_t ctx;                   /* 0: 512 */
    unsigned cpu;                   /* feature mask, as far as this machine has it */
    bool reference;                 /* C kernels only: cpu is taken as 0 */
    bool fast;                      /* the fast path, with history to go back */
    bool no_expanded;               /* without the cache of expanded keys */
    int slots;                      /* expert slots, 0: all records */
    enum sl_io io;                  /* how records are read */
    const struct sl_read_ops *ops;  /* of store and trunk, NULL: plain reads */
    const struct sl_numa_ops *numa; /* memory nodes, NULL: the machine's */
    /* Trunk: bytes that may be held, 0: all of it. Below that matrices stream through a ring of ring_pieces
     * pieces (0: 3) of ring_bytes each (0: the fewest that do). */
    uint64_t trunk_budget;
    uint32_t ring_pieces, ring_bytes;
    bool with_faults; /* ops also for io_uring */
};

struct golden_engine {
    struct sl_pack *pack;
    struct sl_arena arena;
    struct sl_trunk *trunk;
    struct sl_model *model;
    struct sl_pool *pool;
    struct sl_store *store;
    struct sl_state *state;
    struct sl_graph *graph;
    struct sl_kernels k;
    int chunk;
};

/* Converts source into a fresh pack below build/ and returns its path in buf[SL_PATH_MAX]; removed by
 * golden_remove_packs(). experts and trunk: enum sl_fmt. */
const char *golden_pack(char *buf, const char *source, int experts, int trunk);
void golden_remove_packs(void);

void golden_open(struct golden_engine *e, const char *pack, const struct golden_opts *o);
void golden_close(struct golden_engine *e);
/* Appends n tokens in chunks of at most e->chunk, logits of all of them to out [n][vocab] (NULL: no). */
void golden_feed(struct golden_engine *e, const int32_t *ids, int n, float *out);
int golden_vocab(const struct golden_engine *e);

/* The pieces of sl_state_each, taken out of a state, and put into one that stands at that position. */
struct golden_copy {
    unsigned char *data; /* free() */
    size_t bytes, at;
};
struct golden_copy golden_save(struct golden_engine *e);
void golden_restore(struct golden_engine *e, struct golden_copy *c);

/* The kernel rungs this machine has: masks[0..n-1] from plain C up, at most 8. */
int golden_rungs(unsigned masks[8]);

#endif
