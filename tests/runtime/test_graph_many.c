/* Several sequences in one step: each gets, bit for bit, what it gets alone.
 *
 * The yardstick feeds every sequence by itself, one token at a time. The mixes draw, step by step, which
 * sequences take part, with how many tokens (single ones as in decode, runs as in prefill) and how many
 * rows of logits each wants, from the seed printed. So positions differ, sequences pause, and spans lie
 * across panels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/size.h"
#include "tests/golden/golden_engine.h"

#define N_SEQS   8
#define N_TOKENS 40
#define CTX      64

enum { TINY_A, TINY_B, NANO, N_MODELS };
static const char *const sources[N_MODELS] = {"tests/fixtures/tiny-a", "tests/fixtures/tiny-b",
                                              "models/k3-nano"};
static const int top_k[N_MODELS] = {4, 5, 4};

static struct {
    char pack[SL_PATH_MAX];
    size_t vocab;
    int32_t ids[N_SEQS][N_TOKENS];
    float *logits[N_SEQS]; /* [N_TOKENS][vocab] */
    unsigned char *state[N_SEQS];
    size_t state_bytes;
} yard[N_MODELS];

static uint64_t seed = 1;

static int draw(int n)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)(seed >> 33) % n;
}

struct bytes {
    unsigned char *v;
    size_t n;
};

static int append(void *ctx, void *data, uint64_t n)
{
    struct bytes *b = ctx;
    unsigned char *grown = realloc(b->v, b->n + n);
    if (!grown) return -1;
    memcpy(grown + b->n, data, n);
    b->v = grown;
    b->n += n;
    return 0;
}

static int set_up(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        struct golden_engine e;
        golden_pack(yard[m].pack, sources[m], SL_FMT_M4, SL_FMT_BF16);
        golden_open(&e, yard[m].pack, &(struct golden_opts){.chunk = 1, .ctx = CTX});
        yard[m].vocab = (size_t)golden_vocab(&e);
        for (int i = 0; i < N_SEQS; i++) {
            struct bytes b = {0};
            for (int t = 0; t < N_TOKENS; t++) yard[m].ids[i][t] = draw((int)yard[m].vocab);
            yard[m].logits[i] = malloc(sizeof(float) * N_TOKENS * yard[m].vocab);
            assert_non_null(yard[m].logits[i]);
            sl_state_reset(e.state);
            golden_feed(&e, yard[m].ids[i], N_TOKENS, yard[m].logits[i]);
            assert_int_equal(sl_state_each(e.state, append, &b), 0);
            yard[m].state[i] = b.v;
            yard[m].state_bytes = b.n;
        }
        golden_close(&e);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++)
        for (int i = 0; i < N_SEQS; i++) {
            free(yard[m].logits[i]);
            free(yard[m].state[i]);
        }
    golden_remove_packs();
    return 0;
}

/* States beside the engine's own. */
struct crowd {
    struct sl_arena arena;
    struct sl_state *st[N_SEQS];
    int at[N_SEQS];
};

static void crowd_open(struct crowd *c, const struct golden_engine *e, int n, bool expanded)
{
    struct sl_state_bytes b;
    struct sl_err err = {0};
    memset(c, 0, sizeof *c);
    sl_state_price(&e->pack->cfg, CTX, expanded, &b);
    const uint64_t each = b.kda + b.conv + b.mla_rows + b.mla_expanded + b.tables;
    assert_int_equal(sl_arena_init(&c->arena, each * (uint64_t)n, "states", &err), 0);
    for (int i = 0; i < n; i++)
        if (sl_state_open(&c->st[i], &e->pack->cfg, CTX, expanded, &c->arena, &err))
            fail_msg("%s", err.text);
}

/* One step of a drawn mix; false when every sequence is through. */
static bool mixed_step(int m, struct golden_engine *e, struct crowd *c, int n, float *rows,
                       const char *what)
{
    struct sl_graph_seq seqs[N_SEQS];
    int who[N_SEQS];
    int32_t ids[N_SEQS * N_TOKENS];
    struct sl_err err = {0};
    int n_seqs = 0, n_ids = 0;
    bool left = false;
    const int start = draw(n); /* not always in the same order */
    for (int k = 0; k < n; k++) {
        const int i = (start + k) % n;
        const int rest = N_TOKENS - c->at[i];
        left |= rest > 0;
        if (!rest || draw(4) == 0) continue;
        int take = draw(3) ? 1 : 1 + draw(11);
        if (take > rest) take = rest;
        if (take > sl_graph_chunk(e->graph) - n_ids) continue;
        who[n_seqs] = i;
        seqs[n_seqs++] = (struct sl_graph_seq){c->st[i], take, draw(take + 1)};
        memcpy(ids + n_ids, yard[m].ids[i] + c->at[i], sizeof(int32_t) * (size_t)take);
        n_ids += take;
    }
    if (!n_seqs) return left;
    if (sl_graph_feed_many(e->graph, seqs, n_seqs, ids, rows, &err)) fail_msg("%s", err.text);
    const float *row = rows;
    for (int k = 0; k < n_seqs; k++) {
        const int i = who[k];
        c->at[i] += seqs[k].n;
        assert_int_equal(c->st[i]->position, c->at[i]);
        for (int r = 0; r < seqs[k].n_logits; r++, row += yard[m].vocab) {
            const int t = c->at[i] - seqs[k].n_logits + r;
            if (memcmp(row, yard[m].logits[i] + (size_t)t * yard[m].vocab,
                       sizeof(float) * yard[m].vocab) != 0)
                fail_msg("%s, %s: sequence %d of %d in the step, position %d: other logits",
                         sources[m], what, k, n_seqs, t);
        }
    }
    return true;
}

struct way {
    struct golden_opts o;
    int seqs;
    int lent; /* tokens of a chunk in lent memory, 0: none */
    bool wide, sweep;
    const char *what;
};

static void run_way(int m, const struct way *w)
{
    struct golden_engine e;
    struct crowd c;
    struct golden_opts o = w->o;
    struct sl_err err = {0};
    unsigned char *mem = NULL;
    void *unused;
    o.ctx = CTX;
    if (o.slots) o.slots += top_k[m];
    golden_open(&e, yard[m].pack, &o);
    if (w->lent) {
        const uint64_t bytes = sl_graph_lent_bytes(&e.pack->cfg, w->lent, w->wide);
        mem = aligned_alloc(64, sl_align_up(bytes, 64));
        assert_non_null(mem);
        memset(mem, 0xff, bytes);
        assert_int_equal(sl_graph_lend(e.graph, mem, bytes, w->lent, w->wide, &err), 0);
    }
    if (w->sweep && sl_store_sweep_begin(e.store, 0, &unused, &err)) fail_msg("%s", err.text);
    crowd_open(&c, &e, w->seqs, !o.no_expanded);
    float *rows = malloc(sizeof(float) * N_SEQS * N_TOKENS * yard[m].vocab);
    assert_non_null(rows);
    while (mixed_step(m, &e, &c, w->seqs, rows, w->what)) {
    }
    for (int i = 0; i < w->seqs; i++) {
        struct bytes b = {0};
        assert_int_equal(sl_state_each(c.st[i], append, &b), 0);
        assert_int_equal(b.n, yard[m].state_bytes);
        if (memcmp(b.v, yard[m].state[i], b.n) != 0)
            fail_msg("%s, %s: sequence %d leaves another state", sources[m], w->what, i);
        free(b.v);
    }
    if (w->sweep) sl_store_sweep_end(e.store, true);
    sl_arena_free(&c.arena);
    golden_close(&e);
    free(rows);
    free(mem);
}

static void mixes(void **state)
{
    (void)state;
    static const struct way ways[] = {
        {{.threads = 1, .chunk = 64}, 8, 0, false, false, "one thread"},
        {{.threads = 2, .chunk = 64}, 8, 0, false, false, "two threads"},
        {{.threads = 3, .chunk = 16}, 5, 0, false, false, "three threads, small chunks"},
        {{.threads = 2, .chunk = 64, .slots = 1}, 8, 0, false, false, "fewest slots"},
        {{.threads = 3, .chunk = 64, .slots = 7}, 3, 0, false, false, "few slots"},
        {{.threads = 2, .chunk = 40, .no_expanded = true}, 4, 0, false, false, "no expanded keys"},
        {{.threads = 2, .chunk = 5}, 6, 64, false, false, "panels of 5 in lent memory"},
        {{.threads = 1, .chunk = 1, .slots = 3}, 8, 33, false, true, "panels of one, a sweep"},
        {{.threads = 2, .chunk = 3, .slots = 9}, 8, 48, true, true, "a wide loan, a sweep"},
        {{.threads = 2, .chunk = 24, .trunk_budget = 1},
         6,
         0,
         false,
         false,
         "a trunk that streams"},
        {{.threads = 2, .chunk = 4, .trunk_budget = 1}, 4, 30, false, false, "panels that stream"},
        {{.threads = 1, .chunk = 2}, 1, 0, false, false, "one sequence"},
    };
    for (int m = 0; m < N_MODELS; m++)
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) run_way(m, &ways[i]);
}

/* Shown to an observer sequence by sequence, with the positions of each. */
struct watch {
    struct sl_graph *g;
    struct crowd *c;
    int seen[2], finals[2];
};

static void look(void *ctx, enum sl_point point, int layer, uint64_t position, int n_tokens,
                 const void *data)
{
    struct watch *w = ctx;
    (void)layer;
    const int i = sl_graph_seen(w->g) == w->c->st[1];
    assert_true(i || sl_graph_seen(w->g) == w->c->st[0]);
    assert_int_equal(position, i ? 0 : 3);
    assert_int_equal(n_tokens, i ? 6 : 2);
    if (point == SL_POINT_ROUTE)
        assert_true(((const struct sl_route *)data)[n_tokens - 1].weights[0] > 0);
    w->seen[i]++;
    w->finals[i] += point == SL_POINT_FINAL;
}

static void watched(void **state)
{
    (void)state;
    struct golden_engine e;
    struct crowd c;
    struct sl_err err = {0};
    golden_open(&e, yard[NANO].pack, &(struct golden_opts){.ctx = CTX});
    crowd_open(&c, &e, 2, true);
    struct watch w = {.g = e.graph, .c = &c};
    const size_t vocab = yard[NANO].vocab;
    float *rows = malloc(sizeof(float) * 2 * vocab);
    int32_t ids[8];
    assert_non_null(rows);
    assert_int_equal(sl_graph_feed(e.graph, c.st[0], yard[NANO].ids[0], 3, NULL, 0, &err), 0);
    sl_graph_observe(e.graph, &(struct sl_observer){.see = look, .ctx = &w});
    memcpy(ids, yard[NANO].ids[0] + 3, sizeof(int32_t) * 2);
    memcpy(ids + 2, yard[NANO].ids[1], sizeof(int32_t) * 6);
    const struct sl_graph_seq seqs[2] = {{c.st[0], 2, 1}, {c.st[1], 6, 1}};
    if (sl_graph_feed_many(e.graph, seqs, 2, ids, rows, &err)) fail_msg("%s", err.text);
    assert_true(w.seen[0] > 1 && w.seen[0] == w.seen[1]);
    assert_int_equal(w.finals[0], 1);
    assert_memory_equal(rows, yard[NANO].logits[0] + 4 * vocab, sizeof(float) * vocab);
    assert_memory_equal(rows + vocab, yard[NANO].logits[1] + 5 * vocab, sizeof(float) * vocab);
    free(rows);
    sl_arena_free(&c.arena);
    golden_close(&e);
}

/* What cannot be is refused before anything happens. */
static void refusals(void **state)
{
    (void)state;
    struct golden_engine e;
    struct crowd c;
    struct sl_err err = {0};
    const int32_t *ids = yard[TINY_A].ids[0];
    golden_open(&e, yard[TINY_A].pack, &(struct golden_opts){.ctx = CTX, .chunk = 8});
    crowd_open(&c, &e, 2, true);
    struct sl_graph *g = e.graph;
    struct sl_graph_seq s[2] = {{c.st[0], 2, 0}, {c.st[0], 2, 0}};
    assert_int_equal(sl_graph_feed_many(g, s, 2, ids, NULL, &err), SL_E_ARG); /* one state twice */
    s[1] = (struct sl_graph_seq){c.st[1], 7, 0};
    assert_int_equal(sl_graph_feed_many(g, s, 2, ids, NULL, &err), SL_E_ARG); /* 9 tokens */
    assert_int_equal(sl_graph_feed_many(g, s, 0, ids, NULL, &err), SL_E_ARG);
    s[1] = (struct sl_graph_seq){c.st[1], 2, 3};
    assert_int_equal(sl_graph_feed_many(g, s, 2, ids, NULL, &err), SL_E_ARG); /* 3 rows of 2 */
    s[1] = (struct sl_graph_seq){c.st[1], 2, 0};
    const int32_t beyond[4] = {1, 2, 3, (int32_t)yard[TINY_A].vocab};
    assert_int_equal(sl_graph_feed_many(g, s, 2, beyond, NULL, &err), SL_E_ARG);
    sl_graph_observe(g, &(struct sl_observer){.see = look, .hidden = true});
    assert_int_equal(sl_graph_feed_many(g, s, 2, ids, NULL, &err), SL_E_ARG);
    sl_graph_observe(g, NULL);
    assert_int_equal(c.st[0]->position, 0);
    c.st[1]->position = CTX - 1;
    assert_int_equal(sl_graph_feed_many(g, s, 2, ids, NULL, &err), SL_E_CTX);
    c.st[1]->position = 0;
    assert_int_equal(sl_graph_feed_many(g, s, 2, ids, NULL, &err), 0); /* the control */
    assert_int_equal(c.st[0]->position, 2);
    assert_int_equal(c.st[1]->position, 2);
    sl_arena_free(&c.arena);
    golden_close(&e);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--seed") == 0) seed = strtoull(argv[2], NULL, 10);
    printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {cmocka_unit_test(mixes), cmocka_unit_test(watched),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
