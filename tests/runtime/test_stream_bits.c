/* A trunk that streams gives the bits of a trunk that is held: for budgets from the floor to all of it,
 * rings from the smallest, chunks, threads, ways of reading, decode and prefill, and a state that goes
 * on elsewhere. Reads that fail end the chunk with file and tensor named, and the next one starts clean.
 *
 * The yardstick is the whole trunk in memory, one token at a time, one thread. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "tests/golden/golden_engine.h"
#include "tests/golden/golden_files.h"
#include "tests/offload/faulty_reader.h"
#include "tests/offload/pack_maker.h"

#define N_TOKENS 60

enum { TINY_A, TINY_B, NANO, N_MODELS };
static const char *const sources[N_MODELS] = {"tests/fixtures/tiny-a", "tests/fixtures/tiny-b",
                                              "models/k3-nano"};
static const int trunk_fmts[N_MODELS] = {SL_FMT_T8, SL_FMT_BF16, SL_FMT_T8};
static char packs[N_MODELS][SL_PATH_MAX];
static int32_t ids[N_MODELS][N_TOKENS];
static float *want[N_MODELS]; /* [N_TOKENS][vocab] */

static int set_up(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        struct golden_engine e;
        golden_pack(packs[m], sources[m], SL_FMT_M4, trunk_fmts[m]);
        golden_open(&e, packs[m], &(struct golden_opts){.threads = 1, .chunk = 1});
        for (int t = 0; t < N_TOKENS; t++) ids[m][t] = (t * 37 + 11 * t * t) % golden_vocab(&e);
        want[m] = malloc(sizeof(float) * N_TOKENS * (size_t)golden_vocab(&e));
        assert_non_null(want[m]);
        golden_feed(&e, ids[m], N_TOKENS, want[m]);
        golden_close(&e);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) free(want[m]);
    golden_remove_packs();
    return 0;
}

static void same(int m, int from, int n, int vocab, const float *got, const char *what)
{
    const float *w = want[m] + (size_t)from * (size_t)vocab;
    for (size_t i = 0; i < (size_t)n * (size_t)vocab; i++)
        if (memcmp(&got[i], &w[i], sizeof *w) != 0)
            fail_msg("%s, %s: logits differ first at position %zu, entry %zu: %a, want %a",
                     sources[m], what, (size_t)from + i / (size_t)vocab, i % (size_t)vocab,
                     (double)got[i], (double)w[i]);
}

static void check(int m, int n, const struct golden_opts *o, const char *what)
{
    struct golden_engine e;
    golden_open(&e, packs[m], o);
    float *got = malloc(sizeof(float) * (size_t)n * (size_t)golden_vocab(&e));
    assert_non_null(got);
    golden_feed(&e, ids[m], n, got);
    same(m, 0, n, golden_vocab(&e), got, what);
    struct sl_store_stats st;
    sl_store_get_stats(e.store, &st);
    if (e.model->n_parts) assert_true(st.stream_reads > 0 && st.stream_bytes > 0);
    free(got);
    golden_close(&e);
}

static uint64_t whole_trunk(int m)
{
    struct sl_pack *p;
    struct sl_err err = {0};
    if (sl_pack_open(&p, packs[m], NULL, 0, &err)) fail_msg("%s", err.text);
    const uint64_t bytes = sl_trunk_bytes(p);
    sl_pack_close(p);
    return bytes;
}

/* Bytes of the trunk that are streamed fall as the budget grows; nothing but speed follows. */
static void budgets(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        const uint64_t all = whole_trunk(m);
        int last = INT32_MAX;
        int least = INT32_MAX;
        for (int i = 0; i <= 6; i++) {
            char what[64];
            struct golden_opts o = {
                .threads = 2, .chunk = 1, .trunk_budget = 1 + all / 6 * (uint64_t)i};
            if (i == 6) o.trunk_budget = all;
            snprintf(what, sizeof what, "budget of %d sixths", i);
            check(m, i % 3 ? 12 : N_TOKENS, &o, what);
            o.chunk = 23;
            check(m, N_TOKENS, &o, what);
            struct golden_engine e;
            golden_open(&e, packs[m], &o);
            assert_true(e.model->n_parts <= last);
            last = e.model->n_parts;
            if (last < least) least = last;
            if (!i) assert_true(last > 10);
            golden_close(&e);
        }
        assert_int_equal(least, 0);
    }
}

static void chunks_and_threads(void **state)
{
    (void)state;
    static const struct {
        int threads, chunk;
        uint32_t pieces, bytes;
    } ways[] = {{1, 1, 2, 0},  {2, 1, 16, 0},      {3, 7, 2, 0},      {2, 17, 5, 12288 * 4},
                {2, 60, 3, 0}, {5, 33, 64, 65536}, {1, 60, 2, 262144}};
    for (int m = 0; m < N_MODELS; m++)
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            char what[64];
            struct golden_opts o = {.threads = ways[i].threads,
                                    .chunk = ways[i].chunk,
                                    .trunk_budget = 1,
                                    .ring_pieces = ways[i].pieces,
                                    .ring_bytes = m == NANO ? 0 : ways[i].bytes};
            snprintf(what, sizeof what, "%d threads, chunks of %d, %u pieces", o.threads, o.chunk,
                     o.ring_pieces);
            check(m, o.chunk == 1 ? 20 : N_TOKENS, &o, what);
        }
}

static void ways_of_reading(void **state)
{
    (void)state;
    static const enum sl_io methods[] = {SL_IO_PREAD, SL_IO_MMAP, SL_IO_URING};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        for (int m = 0; m < N_MODELS && pm_can_read(methods[i]); m++) {
            struct golden_opts o = {
                .threads = 2, .chunk = 1, .slots = 9, .trunk_budget = 1, .io = methods[i]};
            check(m, 15, &o, sl_io_name(methods[i]));
            o.chunk = 21;
            o.no_expanded = true;
            check(m, N_TOKENS, &o, sl_io_name(methods[i]));
        }
}

static int copy_out(void *ctx, void *data, uint64_t bytes)
{
    uint8_t **at = ctx;
    memcpy(*at, data, bytes);
    *at += bytes;
    return 0;
}

static int copy_in(void *ctx, void *data, uint64_t bytes)
{
    uint8_t **at = ctx;
    memcpy(data, *at, bytes);
    *at += bytes;
    return 0;
}

static int count_bytes(void *ctx, void *data, uint64_t bytes)
{
    (void)data;
    *(uint64_t *)ctx += bytes;
    return 0;
}

/* Half of the tokens with a trunk that streams, the others with one that is held, and the other way
 * round. */
static void a_state_goes_on(void **state)
{
    (void)state;
    const int half = N_TOKENS / 2;
    for (int m = 0; m < N_MODELS; m++)
        for (int streams_first = 0; streams_first < 2; streams_first++) {
            struct golden_engine e[2];
            for (int i = 0; i < 2; i++) {
                const struct golden_opts o = {.threads = 2,
                                              .chunk = i ? 1 : half,
                                              .trunk_budget = i != streams_first ? 1 : 0};
                golden_open(&e[i], packs[m], &o);
            }
            const int vocab = golden_vocab(&e[0]);
            golden_feed(&e[0], ids[m], half, NULL);
            uint64_t bytes = 0;
            assert_int_equal(sl_state_each(e[0].state, count_bytes, &bytes), 0);
            uint8_t *image = malloc(bytes);
            float *got = malloc(sizeof(float) * (size_t)half * (size_t)vocab);
            assert_true(image && got);
            uint8_t *at = image;
            assert_int_equal(sl_state_each(e[0].state, copy_out, &at), 0);
            e[1].state->position = e[0].state->position;
            at = image;
            assert_int_equal(sl_state_each(e[1].state, copy_in, &at), 0);
            golden_feed(&e[1], ids[m] + half, half, got);
            same(m, half, half, vocab, got, "resumed");
            free(image);
            free(got);
            for (int i = 0; i < 2; i++) golden_close(&e[i]);
        }
}

/* Chunks of several panels pass over a layer's matrices once a panel, and the order in which pieces are read
 * ahead knows it; wide ones pass once. */
static void panels(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++)
        for (int wide = 0; wide < 2; wide++)
            for (int sweep = 0; sweep < 2; sweep++) {
                struct golden_engine e;
                struct sl_err err = {0};
                struct sl_store_stats st;
                void *unused;
                golden_open(&e, packs[m],
                            &(struct golden_opts){.threads = 2,
                                                  .chunk = 9,
                                                  .slots = 9,
                                                  .trunk_budget = 1,
                                                  .ring_pieces = 4,
                                                  .ring_bytes = m == NANO ? 65536 : 0});
                const uint64_t bytes = sl_graph_lent_bytes(&e.pack->cfg, N_TOKENS / 2, wide);
                void *mem = aligned_alloc(64, (bytes + 63) / 64 * 64);
                float *got = malloc(sizeof(float) * N_TOKENS * (size_t)golden_vocab(&e));
                assert_true(mem && got);
                if (sl_graph_lend(e.graph, mem, bytes, N_TOKENS / 2, wide, &err))
                    fail_msg("%s", err.text);
                e.chunk = N_TOKENS / 2;
                if (sweep && sl_store_sweep_begin(e.store, 0, &unused, &err))
                    fail_msg("%s", err.text);
                golden_feed(&e, ids[m], N_TOKENS, got);
                same(m, 0, N_TOKENS, golden_vocab(&e), got, wide ? "one wide panel" : "panels");
                sl_store_get_stats(e.store, &st);
                assert_int_equal(st.stream_dropped, 0);
                uint64_t layers = 0;
                for (int i = 0; i < e.model->n_layer_parts; i++)
                    layers += e.model->parts[i].tensor->bytes;
                const uint64_t passes = wide ? 2 : 2 * 4; /* chunks, and panels of a chunk */
                const uint64_t head = e.model->parts[e.model->n_layer_parts].tensor->bytes;
                assert_true(st.stream_bytes >= passes * (layers + head));
                /* Pieces of 64 KiB overlap by a page at most. */
                if (m == NANO)
                    assert_true(st.stream_bytes < passes * (layers + head) * 11 / 10 + 4 * 65536);
                if (sweep) sl_store_sweep_end(e.store, true);
                assert_int_equal(sl_graph_lend(e.graph, NULL, 0, 0, false, &err), 0);
                free(got);
                free(mem);
                golden_close(&e);
            }
}

/* Chunks without logits leave the head out: it is not read. */
static void a_head_not_wanted_is_not_read(void **state)
{
    (void)state;
    struct golden_engine e;
    struct sl_store_stats st;
    struct sl_err err = {0};
    golden_open(&e, packs[NANO],
                &(struct golden_opts){.chunk = 20, .trunk_budget = 1, .ring_bytes = 65536});
    uint64_t layers = 0;
    for (int i = 0; i < e.model->n_layer_parts; i++) layers += e.model->parts[i].tensor->bytes;
    assert_int_equal(e.model->n_parts, e.model->n_layer_parts + 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(sl_graph_feed(e.graph, e.state, ids[NANO] + 20 * i, 20, NULL, 0, &err), 0);
    sl_store_get_stats(e.store, &st);
    /* Pieces overlap by a page at most; three of them were read ahead. */
    const uint64_t head = e.model->parts[e.model->n_layer_parts].tensor->bytes;
    assert_true(st.stream_bytes >= 3 * layers);
    assert_true(st.stream_bytes < 3 * layers + 3 * head / 2);
    assert_int_equal(st.stream_dropped, 0);
    golden_close(&e);
}

/* The tensor's bytes end up wrong, missing or unreadable: the feed says which, and when the fault is
 * gone a fresh start gives the right bits. */
static void failed_reads(void **state)
{
    (void)state;
    static const struct {
        const char *tensor;
        enum fr_kind kind;
        int64_t value;
        int rc;
        const char *says;
    } faults[] = {
        {"model.layers.2.self_attn.v_proj.weight", FR_ERRNO, EIO, SL_E_IO, "error"},
        {"model.layers.2.self_attn.o_proj.weight", FR_END, 0, SL_E_PACK, "cut"},
        {"model.layers.3.self_attn.kv_b_proj.weight", FR_WRONG, 0, SL_E_PACK, "crc32"},
        {"model.layers.3.self_attn.q_b_proj.weight", FR_ERRNO, EIO, SL_E_IO, "error"},
        {"model.layers.0.mlp.up_proj.weight", FR_WRONG, 0, SL_E_PACK, "crc32"},
        {"model.layers.3.block_sparse_moe.routed_expert_down_proj.weight", FR_ERRNO, EIO, SL_E_IO,
         "error"},
        {"model.layers.3.block_sparse_moe.shared_experts.down_proj.weight", FR_END, 0, SL_E_PACK,
         "cut"},
        {"model.layers.3.block_sparse_moe.routed_expert_up_proj.weight", FR_WRONG, 0, SL_E_PACK,
         "crc32"},
        {"model.embed_tokens.weight", FR_ERRNO, EIO, SL_E_IO, "error"},
        {"lm_head.weight", FR_ERRNO, EIO, SL_E_IO, "error"},
    };
    const int m = NANO;
    static const enum sl_io methods[] = {SL_IO_PREAD, SL_IO_URING};
    for (size_t k = 0; k < 2 && pm_can_read(methods[k]); k++)
        for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
            struct faulty_reader r;
            struct golden_engine e;
            struct sl_err err = {0};
            fr_init(&r);
            const struct golden_opts o = {.threads = 2,
                                          .chunk = 8,
                                          .trunk_budget = 1,
                                          .ops = &r.ops,
                                          .io = methods[k],
                                          .with_faults = true};
            golden_open(&e, packs[m], &o);
            const struct sl_tensor *t = sl_pack_find(e.pack, faults[i].tensor);
            assert_non_null(t);
            if (!t) return; /* for the analyzer: the test has ended */
            /* The experts' files end before, or their reads come later. */
            fr_add(&r, faults[i].kind, t->offset, t->offset + t->bytes, faults[i].value, -1);
            float *got = malloc(sizeof(float) * 8 * (size_t)golden_vocab(&e));
            assert_non_null(got);
            int rc = sl_graph_feed(e.graph, e.state, ids[m], 8, got, 8, &err);
            if (rc != faults[i].rc || !strstr(err.text, "trunk.bin") ||
                !strstr(err.text, faults[i].tensor) || !strstr(err.text, faults[i].says))
                fail_msg("%s by %s: %d, %s", faults[i].tensor, sl_io_name(methods[k]), rc,
                         err.text);
            assert_int_equal(sl_exit_status(rc), 4);
            fr_clear(&r);
            sl_state_reset(e.state);
            for (int c = 0; c < 16; c += 8) {
                if (sl_graph_feed(e.graph, e.state, ids[m] + c, 8, got, 8, &err))
                    fail_msg("%s", err.text);
                same(m, c, 8, golden_vocab(&e), got, "after a failure");
            }
            free(got);
            golden_close(&e);
            fr_free(&r);
        }
}

/* Errors that a second try mends, short reads and delays at random: the bits stay. */
static void flaky_reads(void **state)
{
    (void)state;
    static const enum sl_io methods[] = {SL_IO_PREAD, SL_IO_URING};
    for (size_t k = 0; k < 2 && pm_can_read(methods[k]); k++)
        for (int m = 0; m < 2; m++) {
            struct faulty_reader r;
            fr_init(&r);
            r.seed = 77 + (uint64_t)m;
            r.permille_short = 200;
            r.permille_intr = 100;
            r.max_delay_us = 300;
            const struct golden_opts o = {.threads = 2,
                                          .chunk = 9,
                                          .slots = 9,
                                          .trunk_budget = 1,
                                          .ring_pieces = 6,
                                          .ops = &r.ops,
                                          .io = methods[k],
                                          .with_faults = true};
            check(m, 27, &o, "flaky reads");
            fr_free(&r);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budgets),         cmocka_unit_test(chunks_and_threads),
        cmocka_unit_test(ways_of_reading), cmocka_unit_test(a_state_goes_on),
        cmocka_unit_test(panels),          cmocka_unit_test(a_head_not_wanted_is_not_read),
        cmocka_unit_test(failed_reads),    cmocka_unit_test(flaky_reads)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
