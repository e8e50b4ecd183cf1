/* The graph's contract beside its numbers: exact memory, refusals that change nothing, interrupts,
 * damaged weights and failing reads that stop a chunk with the place named. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "tests/golden/golden_engine.h"
#include "tests/golden/golden_files.h"

#define SOURCE "tests/fixtures/tiny-a"

static char pack[SL_PATH_MAX];
static struct golden_seq seq; /* len-64 */

static int set_up(void **state)
{
    (void)state;
    struct golden g;
    golden_pack(pack, SOURCE, SL_FMT_M4, SL_FMT_BF16);
    golden_load(&g, SOURCE);
    golden_seq_named(&g, "len-64", &seq);
    seq.name = seq.logits = NULL; /* owned by the tree */
    golden_free(&g);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    golden_remove_packs();
    return 0;
}

static float *row_of(const struct golden_engine *e)
{
    float *row = malloc(sizeof(float) * (size_t)golden_vocab(e));
    assert_non_null(row);
    return row;
}

/* ---- memory */

static void bytes_are_what_is_taken(void **state)
{
    (void)state;
    struct golden_engine e;
    golden_open(&e, pack, &(struct golden_opts){.threads = 3});
    static const struct sl_graph_opts opts[] = {
        {1, 1, false}, {7, 100, false}, {64, 5000, false}, {300, 300, false},
        {1, 1, true},  {7, 100, true},  {64, 5000, true},  {300, 300, true}};
    for (size_t i = 0; i < sizeof opts / sizeof *opts; i++) {
        struct sl_err err = {0};
        struct sl_graph *g;
        struct sl_arena a;
        const uint64_t want = sl_graph_bytes(&e.pack->cfg, &opts[i], 3);
        assert_int_equal(sl_arena_init(&a, want, "test", &err), 0);
        assert_int_equal(sl_graph_open(&g, e.model, &e.k, e.pool, e.store, &a, &opts[i], &err), 0);
        assert_int_equal(a.used, want);
        sl_graph_close(g);
        sl_arena_free(&a);
        assert_int_equal(sl_arena_init(&a, want - 4096, "test", &err), 0);
        assert_int_equal(sl_graph_open(&g, e.model, &e.k, e.pool, e.store, &a, &opts[i], &err),
                         SL_E_BUDGET);
        sl_arena_free(&a);
    }
    golden_close(&e);
}

static void absurd_options(void **state)
{
    (void)state;
    static const struct sl_graph_opts opts[] = {{0, 100, false},
                                                {-1, 100, false},
                                                {1 << 20, 100, false},
                                                {10, 0, false},
                                                {10, UINT64_MAX, true}};
    struct golden_engine e;
    golden_open(&e, pack, &(struct golden_opts){0});
    for (size_t i = 0; i < sizeof opts / sizeof *opts; i++) {
        struct sl_err err = {0};
        struct sl_graph *g;
        assert_true(sl_graph_bytes(&e.pack->cfg, &opts[i], 1) == UINT64_MAX);
        assert_int_equal(
            sl_graph_open(&g, e.model, &e.k, e.pool, e.store, &e.arena, &opts[i], &err), SL_E_ARG);
        assert_null(g);
    }
    /* A mixture of experts needs a store. */
    const struct sl_graph_opts o = {1, 1, false};
    struct sl_err err = {0};
    struct sl_graph *g;
    assert_int_equal(sl_graph_open(&g, e.model, &e.k, e.pool, NULL, &e.arena, &o, &err), SL_E_ARG);
    golden_close(&e);
}

/* A model's own tables take exactly what sl_model_bytes says; a trunk tensor of the wrong shape is
 * the trunk reader's refusal (tests/offload). */
static void model_bytes(void **state)
{
    (void)state;
    struct golden_engine e;
    golden_open(&e, pack, &(struct golden_opts){0});
    struct sl_arena a;
    struct sl_model *m;
    struct sl_err err = {0};
    const uint64_t want = sl_model_bytes(e.pack);
    assert_int_equal(sl_arena_init(&a, want, "test", &err), 0);
    assert_int_equal(sl_model_open(&m, e.pack, e.trunk, &a, &err), 0);
    assert_int_equal(a.used, want);
    assert_null(m->layers[0].attn_mix); /* nothing is banked before layer 0 */
    sl_arena_free(&a);
    assert_int_equal(sl_arena_init(&a, 4096, "test", &err), 0);
    assert_int_equal(sl_model_open(&m, e.pack, e.trunk, &a, &err), SL_E_BUDGET);
    sl_arena_free(&a);
    golden_close(&e);
}

/* ---- refusals */

static void refusals_change_nothing(void **state)
{
    (void)state;
    struct golden_engine a;
    struct golden_engine b;
    const struct golden_opts o = {.chunk = 16, .ctx = 40};
    golden_open(&a, pack, &o);
    golden_open(&b, pack, &o);
    float *want = row_of(&a);
    float *got = row_of(&b);
    struct sl_err err = {0};
    golden_feed(&a, seq.ids, 30, NULL);
    golden_feed(&b, seq.ids, 30, NULL);
    int32_t ids[17];
    memcpy(ids, seq.ids, sizeof ids);

    assert_int_equal(sl_graph_feed(b.graph, b.state, ids, 11, got, 1, &err), SL_E_CTX);
    assert_non_null(strstr(err.text, "11 tokens"));
    assert_non_null(strstr(err.text, "40"));
    assert_int_equal(sl_graph_feed(b.graph, b.state, ids, 17, got, 1, &err), SL_E_ARG);
    assert_int_equal(sl_graph_feed(b.graph, b.state, ids, 0, got, 0, &err), SL_E_ARG);
    assert_int_equal(sl_graph_feed(b.graph, b.state, ids, 3, got, 4, &err), SL_E_ARG);
    assert_int_equal(sl_graph_feed(b.graph, b.state, ids, 3, got, -1, &err), SL_E_ARG);
    ids[2] = golden_vocab(&b);
    assert_int_equal(sl_graph_feed(b.graph, b.state, ids, 3, got, 1, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "640 at position 32"));
    ids[2] = -1;
    assert_int_equal(sl_graph_feed(b.graph, b.state, ids, 3, got, 1, &err), SL_E_ARG);
    assert_int_equal(b.state->position, 30);

    ids[2] = golden_vocab(&b) - 1; /* the control: the last id there is */
    assert_int_equal(sl_graph_feed(a.graph, a.state, ids, 10, want, 1, &err), 0);
    assert_int_equal(sl_graph_feed(b.graph, b.state, ids, 10, got, 1, &err), 0);
    assert_memory_equal(want, got, sizeof(float) * (size_t)golden_vocab(&a));
    assert_int_equal(sl_graph_feed(b.graph, b.state, ids, 1, got, 1, &err), SL_E_CTX);
    free(want);
    free(got);
    golden_close(&a);
    golden_close(&b);
}

/* A state may be longer than the graph was sized for: that is refused, not overrun. */
static void longer_state(void **state)
{
    (void)state;
    struct golden_engine a;
    struct golden_engine b;
    struct sl_err err = {0};
    golden_open(&a, pack, &(struct golden_opts){.ctx = 40});
    golden_open(&b, pack, &(struct golden_opts){.ctx = 41});
    assert_int_equal(sl_graph_feed(a.graph, b.state, seq.ids, 1, NULL, 0, &err), SL_E_ARG);
    assert_int_equal(sl_graph_feed(b.graph, a.state, seq.ids, 1, NULL, 0, &err), 0);
    golden_close(&a);
    golden_close(&b);
}

/* ---- interrupts: polled at each layer */

static void interrupt_at(void *ctx, enum sl_point point, int layer, uint64_t position, int n_tokens,
                         const void *data)
{
    (void)position, (void)n_tokens, (void)data;
    int *last = ctx;
    *last = layer;
    if (layer == 3 && point == SL_POINT_ATTN_OUT) sl_interrupt();
}

static void interrupts(void **state)
{
    (void)state;
    struct golden_engine e;
    struct sl_err err = {0};
    golden_open(&e, pack, &(struct golden_opts){.threads = 2});
    float *want = row_of(&e);
    float *got = row_of(&e);
    assert_int_equal(sl_graph_feed(e.graph, e.state, seq.ids, 20, want, 1, &err), 0);
    int last = -1;
    sl_state_reset(e.state);
    sl_graph_observe(e.graph, &(struct sl_observer){.see = interrupt_at, .ctx = &last});
    assert_int_equal(sl_graph_feed(e.graph, e.state, seq.ids, 20, got, 1, &err), SL_E_INTR);
    assert_true(last == 3 || last == 4); /* no layer after the next poll */
    sl_interrupt_clear();
    sl_graph_observe(e.graph, NULL);
    sl_state_reset(e.state);
    assert_int_equal(sl_graph_feed(e.graph, e.state, seq.ids, 20, got, 1, &err), 0);
    assert_memory_equal(want, got, sizeof(float) * (size_t)golden_vocab(&e));
    free(want);
    free(got);
    golden_close(&e);
}

/* ---- damaged weights */

/* What lies in memory is const to everyone but the arena's owner, which this test is. */
static float *writable(const float *p)
{
    float *w;
    memcpy(&w, &p, sizeof w);
    return w;
}

/* One bf16 weight of a matrix, row r, column 0. */
static void spoil_bf16(const struct sl_mat *m, int r)
{
    assert_int_equal(m->fmt, SL_FMT_BF16);
    uint8_t *codes;
    memcpy(&codes, &m->codes, sizeof codes);
    codes += 2 * (size_t)r * (size_t)m->cols;
    codes[0] = 0xC0;
    codes[1] = 0x7F; /* NaN */
}

enum spoiled { ATTN, FFN, LAST_FFN, ROUTER, HEAD, EMBED, N_SPOILED };

static void spoil(const struct golden_engine *e, enum spoiled what)
{
    const struct sl_model *m = e->model;
    const int last = m->cfg.n_layers - 1;
    switch (what) {
    case ATTN:
        *writable(m->layers[2].input_norm) = NAN;
        break;
    case FFN:
        *writable(m->layers[4].latent_norm) = INFINITY;
        break;
    case LAST_FFN:
        spoil_bf16(&m->layers[last].ffn.down, 3);
        break;
    case ROUTER:
        spoil_bf16(&m->layers[5].router, 7);
        break;
    case HEAD:
        spoil_bf16(&m->head, 11);
        break;
    case EMBED:
        spoil_bf16(&m->embed, seq.ids[6]);
        break;
    default:
        fail();
    }
}

static void not_finite(void **state)
{
    (void)state;
    static const char *const says[N_SPOILED] = {
        [ATTN] = "layer 2: output of attention is not finite at position 0",
        [FFN] = "layer 4: output of the FFN is not finite at position 0",
        [LAST_FFN] = "layer 8: output of the FFN is not finite",
        [ROUTER] = "layer 5: a router score is not finite at position 0",
        [HEAD] = "model: a logit is not finite",
        [EMBED] = "model: embedding is not finite at position 6"};
    for (int i = 0; i < N_SPOILED; i++)
        for (int threads = 1; threads <= 2; threads++) {
            struct golden_engine e;
            struct sl_err err = {0};
            golden_open(&e, pack, &(struct golden_opts){.threads = threads});
            float *row = row_of(&e);
            spoil(&e, i);
            assert_int_equal(sl_graph_feed(e.graph, e.state, seq.ids, 20, row, 1, &err), SL_E_PACK);
            if (!strstr(err.text, says[i])) fail_msg("%s, wanted %s", err.text, says[i]);
            free(row);
            golden_close(&e);
        }
}

/* ---- reads that fail */

struct faults {
    atomic_int calls;
    atomic_bool on;
};

/* Works for a while, then not any more: a second try does not help. */
static ssize_t faulty(void *ctx, int fd, void *buf, size_t n, off_t off)
{
    struct faults *f = ctx;
    if (atomic_load(&f->on) && atomic_fetch_add(&f->calls, 1) >= 7) {
        errno = EIO;
        return -1;
    }
    return pread(fd, buf, n, off);
}

static void failing_drive(void **state)
{
    (void)state;
    struct faults f = {0};
    const struct sl_read_ops ops = {.pread = faulty, .ctx = &f};
    struct golden_engine e;
    struct sl_err err = {0};
    golden_open(&e, pack, &(struct golden_opts){.threads = 2, .slots = 9, .ops = &ops});
    float *want = row_of(&e);
    float *got = row_of(&e);
    assert_int_equal(sl_graph_feed(e.graph, e.state, seq.ids, 40, want, 1, &err), 0);
    for (int n = 1; n <= 40; n += 13) {
        atomic_store(&f.calls, 0);
        atomic_store(&f.on, true);
        sl_state_reset(e.state);
        assert_int_equal(sl_graph_feed(e.graph, e.state, seq.ids, n, NULL, 0, &err), SL_E_IO);
        assert_non_null(strstr(err.text, "expert"));
        atomic_store(&f.on, false);
        sl_state_reset(e.state);
        assert_int_equal(sl_graph_feed(e.graph, e.state, seq.ids, 40, got, 1, &err), 0);
        assert_memory_equal(want, got, sizeof(float) * (size_t)golden_vocab(&e));
    }
    free(want);
    free(got);
    golden_close(&e);
}

/* ---- routes from outside */

struct routes {
    const struct sl_config *c;
    int shift;          /* added to every recorded id */
    int spoil;          /* 1: an id out of range, 2: a repeated one */
    int ids[16][64][8]; /* [layer][position][rank] */
};

static void record(void *ctx, enum sl_point point, int layer, uint64_t position, int n_tokens,
                   const void *data)
{
    struct routes *r = ctx;
    const struct sl_route *route = data;
    if (point != SL_POINT_ROUTE) return;
    for (int t = 0; t < n_tokens; t++)
        memcpy(r->ids[layer][position + (uint64_t)t], route[t].ids,
               sizeof(int) * (size_t)r->c->top_k);
}

static bool replay(void *ctx, int layer, uint64_t position, int *ids)
{
    const struct routes *r = ctx;
    for (int j = 0; j < r->c->top_k; j++)
        ids[j] = (r->ids[layer][position][j] + r->shift) % r->c->n_experts;
    if (r->spoil == 1) ids[1] = r->c->n_experts;
    if (r->spoil == 2) ids[1] = ids[0];
    return position != 5; /* position 5 is left to the router */
}

/* A model forced to its own choice gives its own bits; forced elsewhere, the other experts' output. */
static void forced_routes(void **state)
{
    (void)state;
    struct golden_engine e;
    struct sl_err err = {0};
    golden_open(&e, pack, &(struct golden_opts){.threads = 2});
    static struct routes r;
    static struct routes seen;
    r = (struct routes){.c = &e.pack->cfg};
    seen = r;
    const size_t bytes = sizeof(float) * (size_t)golden_vocab(&e);
    float *want = row_of(&e);
    float *got = row_of(&e);
    sl_graph_observe(e.graph, &(struct sl_observer){.see = record, .ctx = &r});
    assert_int_equal(sl_graph_feed(e.graph, e.state, seq.ids, 40, want, 1, &err), 0);
    sl_graph_observe(e.graph, &(struct sl_observer){.see = record, .ctx = &seen});
    sl_graph_force_routes(e.graph, replay, &r);
    sl_state_reset(e.state);
    assert_int_equal(sl_graph_feed(e.graph, e.state, seq.ids, 40, got, 1, &err), 0);
    assert_memory_equal(got, want, bytes);
    assert_memory_equal(seen.ids, r.ids, sizeof r.ids);
    r.shift = 1;
    sl_state_reset(e.state);
    assert_int_equal(sl_graph_feed(e.graph, e.state, seq.ids, 40, got, 1, &err), 0);
    assert_true(memcmp(got, want, bytes) != 0);
    assert_int_equal(seen.ids[3][17][2], (r.ids[3][17][2] + 1) % r.c->n_experts);
    assert_int_equal(seen.ids[1][5][0], r.ids[1][5][0]);
    for (r.spoil = 1; r.spoil <= 2; r.spoil++) {
        sl_state_reset(e.state);
        assert_int_equal(sl_graph_feed(e.graph, e.state, seq.ids, 40, got, 1, &err), SL_E_ARG);
    }
    sl_graph_force_routes(e.graph, NULL, NULL);
    sl_state_reset(e.state);
    assert_int_equal(sl_graph_feed(e.graph, e.state, seq.ids, 40, got, 1, &err), 0);
    assert_memory_equal(got, want, bytes);
    free(want);
    free(got);
    golden_close(&e);
}

/* ---- the store is asked for an expert once a chunk */

static void expert_read_once_a_chunk(void **state)
{
    (void)state;
    struct golden_engine e;
    struct sl_err err = {0};
    struct sl_store_stats before;
    struct sl_store_stats after;
    golden_open(&e, pack, &(struct golden_opts){.threads = 2, .slots = 24});
    const struct sl_config *c = &e.pack->cfg;
    assert_int_equal(sl_graph_feed(e.graph, e.state, seq.ids, 1, NULL, 0, &err), 0);
    sl_store_get_stats(e.store, &before);
    assert_int_equal(sl_graph_feed(e.graph, e.state, seq.ids + 1, 63, NULL, 0, &err), 0);
    sl_store_get_stats(e.store, &after);
    const uint64_t asked = after.hits + after.misses - before.hits - before.misses;
    const uint64_t moe_layers = (uint64_t)(c->n_layers - c->first_k_dense);
    assert_true(asked <= moe_layers * (uint64_t)c->n_experts);
    assert_true(asked < moe_layers * 63 * (uint64_t)c->top_k);
    assert_true(asked >= moe_layers * (uint64_t)c->top_k);
    golden_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_are_what_is_taken),
                                       cmocka_unit_test(absurd_options),
                                       cmocka_unit_test(model_bytes),
                                       cmocka_unit_test(refusals_change_nothing),
                                       cmocka_unit_test(longer_state),
                                       cmocka_unit_test(interrupts),
                                       cmocka_unit_test(not_finite),
                                       cmocka_unit_test(failing_drive),
                                       cmocka_unit_test(forced_routes),
                                       cmocka_unit_test(expert_read_once_a_chunk)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
