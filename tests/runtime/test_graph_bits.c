/* The exact path is a function of the token sequence alone: chunk size, threads, ISA, expert format,
 * slot count, cache of expanded keys and resume position never change a bit.
 *
 * The yardstick is the plainest way: one token at a time, one thread. Every other way must give the
 * same logits at every position and leave the same state, compared with memcmp. tiny-b has the odd
 * dimensions, k3-nano real weights with near-tied experts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "offload/numa_place.h"
#include "tests/golden/golden_engine.h"
#include "tests/golden/golden_files.h"

#define N_TOKENS 300

enum { TINY_A, TINY_B, NANO, N_MODELS };
static const char *const sources[N_MODELS] = {"tests/fixtures/tiny-a", "tests/fixtures/tiny-b",
                                              "models/k3-nano"};
static char packs[N_MODELS][SL_PATH_MAX];

/* What a run leaves behind. */
struct run {
    float *logits; /* [N_TOKENS][vocab] */
    unsigned char *state;
    size_t logits_bytes, state_bytes;
};

static struct {
    int32_t ids[N_TOKENS];
    struct run want;
} yard[N_MODELS];

static int append_state(void *ctx, void *data, uint64_t bytes)
{
    struct run *r = ctx;
    unsigned char *grown = realloc(r->state, r->state_bytes + bytes);
    if (!grown) return -1;
    memcpy(grown + r->state_bytes, data, bytes);
    r->state = grown;
    r->state_bytes += bytes;
    return 0;
}

static void run_free(struct run *r)
{
    free(r->logits);
    free(r->state);
    memset(r, 0, sizeof *r);
}

static void run_with(struct run *r, const char *pack, const int32_t *ids, int n,
                     const struct golden_opts *o)
{
    struct golden_engine e;
    golden_open(&e, pack, o);
    memset(r, 0, sizeof *r);
    r->logits_bytes = sizeof(float) * (size_t)n * (size_t)golden_vocab(&e);
    r->logits = malloc(r->logits_bytes);
    assert_non_null(r->logits);
    golden_feed(&e, ids, n, r->logits);
    assert_int_equal(sl_state_each(e.state, append_state, r), 0);
    assert_true(r->state_bytes > 0);
    golden_close(&e);
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* The logits of the first n tokens; the state as well when they are all. */
static void same(int m, const struct run *got, int n, const char *what)
{
    const struct run *want = &yard[m].want;
    const size_t vocab = want->logits_bytes / sizeof(float) / N_TOKENS;
    assert_int_equal(got->logits_bytes, sizeof(float) * vocab * (size_t)n);
    for (size_t i = 0; i < vocab * (size_t)n; i++)
        if (bits_of(got->logits[i]) != bits_of(want->logits[i]))
            fail_msg("%s, %s: logits differ first at position %zu, entry %zu: %a, want %a",
                     sources[m], what, i / vocab, i % vocab, (double)got->logits[i],
                     (double)want->logits[i]);
    if (n != N_TOKENS) return;
    assert_int_equal(got->state_bytes, want->state_bytes);
    assert_memory_equal(got->state, want->state, want->state_bytes);
}

static void check(int m, const char *pack, int n, const struct golden_opts *o, const char *what)
{
    struct run r;
    run_with(&r, pack, yard[m].ids, n, o);
    same(m, &r, n, what);
    run_free(&r);
}

static int set_up(void **state)
{
    (void)state;
    const struct golden_opts plain = {.threads = 1, .chunk = 1};
    for (int m = 0; m < N_MODELS; m++) {
        golden_pack(packs[m], sources[m], SL_FMT_M4, SL_FMT_BF16);
        golden_ids(sources[m], yard[m].ids, N_TOKENS);
        run_with(&yard[m].want, packs[m], yard[m].ids, N_TOKENS, &plain);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) run_free(&yard[m].want);
    golden_remove_packs();
    return 0;
}

static void chunks(void **state)
{
    (void)state;
    static const int sizes[] = {1, 7, 16, 17, 64, 300};
    for (int m = 0; m < N_MODELS; m++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            char what[32];
            snprintf(what, sizeof what, "chunks of %d", sizes[i]);
            check(m, packs[m], N_TOKENS, &(struct golden_opts){.chunk = sizes[i]}, what);
        }
}

static void threads(void **state)
{
    (void)state;
    static const struct {
        int threads, chunk, n;
    } ways[] = {{2, 1, 100}, {2, 17, 300}, {2, 300, 300}, {3, 64, 300}, {5, 7, 100}};
    for (int m = 0; m < N_MODELS; m++)
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            char what[48];
            const struct golden_opts o = {.threads = ways[i].threads, .chunk = ways[i].chunk};
            snprintf(what, sizeof what, "%d threads, chunks of %d", o.threads, o.chunk);
            check(m, packs[m], ways[i].n, &o, what);
        }
}

static void rungs(void **state)
{
    (void)state;
    unsigned masks[8];
    const int n = golden_rungs(masks);
    for (int i = 0; i < n; i++) {
        printf("kernels: %s\n", sl_cpu_name(masks[i]));
        for (int m = 0; m < N_MODELS; m++) {
            struct golden_opts o = {.chunk = 1, .cpu = masks[i], .reference = masks[i] == 0};
            check(m, packs[m], 40, &o, sl_cpu_name(masks[i]));
            o.chunk = 100;
            check(m, packs[m], m == NANO ? 100 : N_TOKENS, &o, sl_cpu_name(masks[i]));
        }
    }
}

static void expert_formats(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        char pack[SL_PATH_MAX];
        golden_pack(pack, sources[m], SL_FMT_MXFP4, SL_FMT_BF16);
        check(m, pack, 100, &(struct golden_opts){.chunk = 1}, "mxfp4, one by one");
        check(m, pack, N_TOKENS, &(struct golden_opts){.chunk = 64}, "mxfp4, chunks of 64");
    }
}

static void io_methods(void **state)
{
    (void)state;
    static const enum sl_io methods[] = {SL_IO_PREAD, SL_IO_MMAP, SL_IO_URING};
    struct golden_engine e;
    struct sl_store_stats st;
    golden_open(&e, packs[TINY_A], &(struct golden_opts){0});
    sl_store_get_stats(e.store, &st);
    golden_close(&e);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (methods[i] == SL_IO_URING && st.io != SL_IO_URING) {
            printf("io_uring is not tested: %s\n", st.io_note);
            continue;
        }
        for (int m = 0; m < N_MODELS; m++) {
            const struct golden_opts o = {.threads = 2, .chunk = 33, .slots = 16, .io = methods[i]};
            check(m, packs[m], 66, &o, sl_io_name(methods[i]));
        }
    }
}

/* From the fewest slots the store accepts: a chunk then wants more experts than fit. */
static void slots(void **state)
{
    (void)state;
    static const int top_k[N_MODELS] = {4, 5, 4};
    for (int m = 0; m < N_MODELS; m++)
        for (int more = 1; more <= 9; more += 4)
            for (int chunk = 1; chunk <= 65; chunk += 32) {
                char what[48];
                const struct golden_opts o = {
                    .threads = 2, .chunk = chunk, .slots = top_k[m] + more};
                snprintf(what, sizeof what, "%d slots, chunks of %d", o.slots, chunk);
                check(m, packs[m], 66, &o, what);
            }
}

static void without_cache(void **state)
{
    (void)state;
    static const int sizes[] = {1, 17, 300};
    for (int m = 0; m < N_MODELS; m++)
        for (int i = 0; i < 3; i++) {
            const struct golden_opts o = {.threads = 2, .chunk = sizes[i], .no_expanded = true};
            check(m, packs[m], sizes[i] == 1 ? 100 : N_TOKENS, &o, "without expanded keys");
        }
}

/* Slots spread over nodes that are made up: other threads take the tasks, nothing else changes. */
static int made_up_nodes(void *ctx)
{
    return *(int *)ctx;
}

static void bind_nothing(void *ctx, void *base, size_t bytes, int node)
{
    assert_true(bytes > 0 && base && node >= 0 && node < *(int *)ctx);
}

static void nodes(void **state)
{
    (void)state;
    for (int n = 2; n <= 5; n += 3)
        for (int m = 0; m < N_MODELS; m++)
            for (int chunk = 1; chunk <= 100; chunk += 99) {
                const struct sl_numa_ops ops = {
                    .nodes = made_up_nodes, .bind = bind_nothing, .ctx = &n};
                const struct golden_opts o = {
                    .threads = 4, .chunk = chunk, .slots = chunk == 1 ? 20 : 0, .numa = &ops};
                check(m, packs[m], chunk == 1 ? 60 : N_TOKENS, &o, "several nodes");
            }
}

/* Chunks of many panels in lent memory: what the engine does with the slots' memory, and here with any. */
static void lent(void **state)
{
    (void)state;
    static const struct {
        int panel, chunk, threads, slots, sweep;
        bool wide, no_expanded;
    } ways[] = {{16, 300, 1, 0, 0, false, false},  {7, 100, 2, 9, 0, false, true},
                {16, 64, 3, 10, 1, false, false},  {5, 299, 2, 14, 1, true, false},
                {1, 33, 2, 6, 1, false, false},    {64, 128, 2, 30, 1, false, true},
                {300, 300, 2, 11, 1, false, false}};
    for (int m = 0; m < N_MODELS; m++)
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            struct golden_engine e;
            struct sl_err err = {0};
            struct run r = {0};
            char what[64];
            void *unused;
            golden_open(&e, packs[m],
                        &(struct golden_opts){.threads = ways[i].threads,
                                              .chunk = ways[i].panel,
                                              .slots = ways[i].slots,
                                              .no_expanded = ways[i].no_expanded});
            const struct sl_config *c = &e.pack->cfg;
            const uint64_t bytes = sl_graph_lent_bytes(c, ways[i].chunk, ways[i].wide);
            unsigned char *mem = aligned_alloc(64, bytes + 64);
            assert_non_null(mem);
            memset(mem, 0xff, bytes + 64); /* NaN wherever it is read before it is written */
            assert_int_equal(
                sl_graph_lend(e.graph, mem, bytes - 1, ways[i].chunk, ways[i].wide, &err),
                SL_E_BUDGET);
            assert_int_equal(sl_graph_chunk(e.graph), ways[i].panel);
            if (sl_graph_lend(e.graph, mem, bytes, ways[i].chunk, ways[i].wide, &err))
                fail_msg("%s", err.text);
            assert_int_equal(sl_graph_chunk(e.graph), ways[i].chunk);
            e.chunk = ways[i].chunk;
            if (ways[i].sweep && sl_store_sweep_begin(e.store, 0, &unused, &err))
                fail_msg("%s", err.text);
            const size_t vocab = (size_t)golden_vocab(&e);
            r.logits_bytes = sizeof(float) * N_TOKENS * vocab;
            r.logits = malloc(r.logits_bytes);
            assert_non_null(r.logits);
            golden_feed(&e, yard[m].ids, N_TOKENS, r.logits);
            assert_int_equal(sl_state_each(e.state, append_state, &r), 0);
            snprintf(what, sizeof what, "chunk of %d in panels of %d, lent", ways[i].chunk,
                     ways[i].panel);
            same(m, &r, N_TOKENS, what);
            for (int b = 0; b < 64; b++) assert_int_equal(mem[bytes + (uint64_t)b], 0xff);
            assert_int_equal(sl_graph_lend(e.graph, NULL, 0, 0, false, &err), 0);
            assert_int_equal(sl_graph_chunk(e.graph), ways[i].panel);
            if (ways[i].sweep) sl_store_sweep_end(e.store, true);
            run_free(&r);
            golden_close(&e);
            free(mem);
        }
}

/* Positions beyond one strip of keys, where the cacheless way expands in pieces. */
static void long_context(void **state)
{
    (void)state;
    enum { LONG = 4096 + 150 };
    int32_t *ids = malloc(sizeof(int32_t) * LONG);
    float *row[2];
    assert_non_null(ids);
    for (int t = 0; t < LONG; t++) ids[t] = yard[TINY_A].ids[(t * 7 + t / N_TOKENS) % N_TOKENS];
    for (int i = 0; i < 2; i++) {
        struct golden_engine e;
        const struct golden_opts o = {
            .threads = 2, .chunk = 256, .ctx = LONG, .no_expanded = i == 1};
        golden_open(&e, packs[TINY_A], &o);
        const size_t bytes = sizeof(float) * (size_t)golden_vocab(&e);
        row[i] = malloc(bytes);
        assert_non_null(row[i]);
        golden_feed(&e, ids, LONG - 1, NULL);
        struct sl_err err = {0};
        assert_int_equal(sl_graph_feed(e.graph, e.state, ids + LONG - 1, 1, row[i], 1, &err), 0);
        if (i) assert_memory_equal(row[0], row[1], bytes);
        golden_close(&e);
    }
    free(row[0]);
    free(row[1]);
    free(ids);
}

/* Which rows of logits are asked for, and whether someone looks on, changes nothing either. */
static void nothing_seen(void *ctx, enum sl_point point, int layer, uint64_t position, int n_tokens,
                         const void *data)
{
    (void)point, (void)layer, (void)position, (void)data;
    *(int *)ctx += n_tokens;
}

static void asking_and_looking(void **state)
{
    (void)state;
    struct golden_engine e;
    struct sl_err err = {0};
    golden_open(&e, packs[NANO], &(struct golden_opts){.threads = 2, .chunk = N_TOKENS});
    const size_t row = sizeof(float) * (size_t)golden_vocab(&e);
    float *got = malloc(5 * row);
    assert_non_null(got);
    int seen = 0;
    sl_graph_observe(e.graph, &(struct sl_observer){.see = nothing_seen, .ctx = &seen});
    assert_int_equal(sl_graph_feed(e.graph, e.state, yard[NANO].ids, 100, NULL, 0, &err), 0);
    assert_true(seen > 0);
    sl_graph_observe(e.graph, NULL);
    assert_int_equal(sl_graph_feed(e.graph, e.state, yard[NANO].ids + 100, 200, got, 5, &err), 0);
    assert_memory_equal(got, (unsigned char *)yard[NANO].want.logits + 295 * row, 5 * row);
    free(got);
    golden_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(chunks),
                                       cmocka_unit_test(threads),
                                       cmocka_unit_test(rungs),
                                       cmocka_unit_test(expert_formats),
                                       cmocka_unit_test(io_methods),
                                       cmocka_unit_test(slots),
                                       cmocka_unit_test(without_cache),
                                       cmocka_unit_test(lent),
                                       cmocka_unit_test(nodes),
                                       cmocka_unit_test(long_context),
                                       cmocka_unit_test(asking_and_looking)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
