/* The fast path: close to the exact one, and what it promises about its own bits.
 *
 * The yardstick is the exact path of the same pack. tiny-b has the odd dimensions, k3-nano real weights with
 * near-tied experts. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "tests/golden/golden_engine.h"
#include "tests/golden/golden_files.h"

#define N_TOKENS 300

enum { TINY_A, TINY_B, NANO, N_MODELS };
static const char *const sources[N_MODELS] = {"tests/fixtures/tiny-a", "tests/fixtures/tiny-b",
                                              "models/k3-nano"};
static char packs[N_MODELS][SL_PATH_MAX];
static int32_t ids[N_MODELS][N_TOKENS];

static int set_up(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        golden_pack(packs[m], sources[m], SL_FMT_M4, SL_FMT_BF16);
        golden_ids(sources[m], ids[m], N_TOKENS);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    golden_remove_packs();
    return 0;
}

static float *rows_of(const struct golden_engine *e, int n)
{
    float *rows = malloc(sizeof *rows * (size_t)n * (size_t)golden_vocab(e));
    assert_non_null(rows);
    return rows;
}

/* Logits of n tokens, from a fresh engine. */
static float *run(int m, int n, const struct golden_opts *o, int *vocab)
{
    struct golden_engine e;
    golden_open(&e, packs[m], o);
    *vocab = golden_vocab(&e);
    float *rows = rows_of(&e, n);
    golden_feed(&e, ids[m], n, rows);
    golden_close(&e);
    return rows;
}

static double log_sum(const float *x, int n, int *top)
{
    double sum = 0;
    *top = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[*top]) *top = i;
    for (int i = 0; i < n; i++) sum += exp((double)x[i] - x[*top]);
    return log(sum) + x[*top];
}

/* Mean KL(want || got); top-1 must agree where want's lead is at least `gap`. */
static double kl_of(const float *want, const float *got, int n, int vocab, double gap,
                    const char *what)
{
    double kl = 0;
    for (int t = 0; t < n; t++) {
        const float *w = want + (size_t)t * (size_t)vocab, *g = got + (size_t)t * (size_t)vocab;
        int top_w, top_g;
        const double lw = log_sum(w, vocab, &top_w), lg = log_sum(g, vocab, &top_g);
        double second = -INFINITY;
        for (int i = 0; i < vocab; i++) {
            const double p = exp((double)w[i] - lw);
            kl += p * (((double)w[i] - lw) - ((double)g[i] - lg));
            if (i != top_w && w[i] > second) second = (double)w[i];
        }
        if (top_w != top_g && (double)w[top_w] - second >= gap)
            fail_msg("%s: top-1 at position %d is %d, exact %d by %g", what, t, top_g, top_w,
                     (double)w[top_w] - second);
    }
    return kl / n;
}

static void close_to_exact(void **state)
{
    (void)state;
    static const int chunks[] = {1, 7, 64, 300};
    for (int m = 0; m < N_MODELS; m++) {
        int vocab;
        float *want = run(m, N_TOKENS, &(struct golden_opts){0}, &vocab);
        for (int i = 0; i < 4; i++) {
            float *got =
                run(m, N_TOKENS,
                    &(struct golden_opts){.fast = true, .chunk = chunks[i], .threads = 2}, &vocab);
            const double kl = kl_of(want, got, N_TOKENS, vocab, 1e-2, sources[m]);
            printf("%s, chunks of %d: mean KL %.2g\n", sources[m], chunks[i], kl);
            assert_true(kl < 5e-4);
            free(got);
        }
        free(want);
    }
}

/* Same chunks: same bytes, whatever threads. */
static void same_plan_same_bytes(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        int vocab;
        const struct golden_opts plan = {.fast = true, .chunk = 50};
        float *want = run(m, N_TOKENS, &plan, &vocab);
        const size_t bytes = sizeof(float) * (size_t)vocab * N_TOKENS;
        for (int threads = 1; threads <= 3; threads++) {
            struct golden_opts o = plan;
            o.threads = threads;
            float *got = run(m, N_TOKENS, &o, &vocab);
            assert_memory_equal(got, want, bytes);
            free(got);
        }
        free(want);
    }
}

/* Saved at every position of a tile and its ends, a sequence goes on elsewhere with the same bits. */
static void go_on_elsewhere(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        struct golden_engine a, b;
        golden_open(&a, packs[m], &(struct golden_opts){.fast = true, .chunk = 20});
        golden_open(&b, packs[m], &(struct golden_opts){.fast = true, .chunk = 20});
        float *want = rows_of(&a, 20), *got = rows_of(&a, 20);
        const size_t bytes = sizeof(float) * 20 * (size_t)golden_vocab(&a);
        for (int cut = 31; cut <= 49; cut++) {
            sl_state_reset(a.state);
            golden_feed(&a, ids[m], cut, NULL);
            struct golden_copy kept = golden_save(&a);
            golden_feed(&a, ids[m] + cut, 20, want);
            golden_feed(&b, ids[m] + 9, 33 + cut % 7, NULL); /* something else was there before */
            sl_state_place(b.state, (uint64_t)cut);
            golden_restore(&b, &kept);
            assert_int_equal(sl_state_rollback_room(b.state), 0);
            golden_feed(&b, ids[m] + cut, 20, got);
            if (memcmp(got, want, bytes) != 0) fail_msg("%s, cut at %d", sources[m], cut);
            free(kept.data);
            sl_state_reset(b.state);
        }
        free(want);
        free(got);
        golden_close(&a);
        golden_close(&b);
    }
}

/* Tokens taken back leave nothing behind: the state, and what other tokens then give, as if never fed. */
static void rollback_is_never_fed(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        struct golden_engine a, b;
        struct sl_err err = {0};
        golden_open(&a, packs[m], &(struct golden_opts){.fast = true});
        golden_open(&b, packs[m], &(struct golden_opts){.fast = true});
        float *want = rows_of(&a, 24), *got = rows_of(&a, 24);
        const size_t bytes = sizeof(float) * 24 * (size_t)golden_vocab(&a);
        for (int at = 1; at <= 50; at += at < 4 || at > 28 ? 1 : 5) {
            const uint64_t span = 16 - (uint64_t)at % 16;
            sl_state_reset(a.state);
            sl_state_reset(b.state);
            golden_feed(&a, ids[m], at, NULL);
            golden_feed(&b, ids[m], at, NULL);
            assert_int_equal(sl_state_rewind_span(b.state), span);
            /* one token that stays, then as many as the tile takes, all taken back */
            golden_feed(&a, ids[m] + at, 1, NULL);
            golden_feed(&b, ids[m] + at, 1, NULL);
            if (span > 1) golden_feed(&b, ids[m] + 200, (int)span - 1, NULL);
            assert_int_equal(sl_state_rollback_room(b.state), (at + (int)span - 1) % 16);
            assert_int_equal(sl_state_rollback(b.state, span - 1, &err), 0);
            struct golden_copy ca = golden_save(&a), cb = golden_save(&b);
            assert_int_equal(ca.bytes, cb.bytes);
            assert_memory_equal(ca.data, cb.data, ca.bytes);
            free(ca.data);
            free(cb.data);
            golden_feed(&a, ids[m] + at + 1, 24, want);
            golden_feed(&b, ids[m] + at + 1, 24, got);
            if (memcmp(got, want, bytes) != 0) fail_msg("%s, back to %d", sources[m], at + 1);
        }
        assert_int_equal(sl_state_rollback(b.state, 16, &err), SL_E_ARG);
        assert_non_null(strstr(err.text, "rollback"));
        free(want);
        free(got);
        golden_close(&a);
        golden_close(&b);
    }
}

/* A state and a graph of different paths: refused, with nothing done. */
static void paths_do_not_mix(void **state)
{
    (void)state;
    struct golden_engine a, b;
    struct sl_err err = {0};
    golden_open(&a, packs[TINY_A], &(struct golden_opts){.fast = true});
    golden_open(&b, packs[TINY_A], &(struct golden_opts){0});
    assert_int_equal(sl_graph_feed(a.graph, b.state, ids[TINY_A], 3, NULL, 0, &err), SL_E_ARG);
    assert_int_equal(sl_graph_feed(b.graph, a.state, ids[TINY_A], 3, NULL, 0, &err), SL_E_ARG);
    assert_int_equal(a.state->position + b.state->position, 0);
    assert_int_equal(sl_graph_feed(a.graph, a.state, ids[TINY_A], 3, NULL, 0, &err), 0);
    golden_close(&a);
    golden_close(&b);
}

/* Long contexts: several ranges of positions, their length doubled once (beyond 8,192 positions), absorbed
 * token by token and expanded in one chunk. */
static void long_context(void **state)
{
    (void)state;
    enum { LONG = 8400, LAST = 40 };
    int32_t *text = malloc(sizeof *text * LONG);
    assert_non_null(text);
    for (int i = 0; i < LONG; i++) text[i] = ids[TINY_A][(i * 7 + i / 300) % N_TOKENS];
    struct golden_engine e[3];
    float *rows[3];
    const struct golden_opts o[3] = {{.ctx = LONG, .chunk = 512, .threads = 2},
                                     {.ctx = LONG, .chunk = 512, .threads = 2, .fast = true},
                                     {.ctx = LONG, .chunk = 512, .threads = 2, .fast = true}};
    for (int i = 0; i < 3; i++) {
        golden_open(&e[i], packs[TINY_A], &o[i]);
        rows[i] = rows_of(&e[i], LAST);
        golden_feed(&e[i], text, 8170, NULL);
        if (i < 2)
            golden_feed(&e[i], text + 8170, LAST, rows[i]);
        else
            for (int t = 0; t < LAST; t++)
                golden_feed(&e[i], text + 8170 + t, 1,
                            rows[i] + (size_t)t * (size_t)golden_vocab(&e[i]));
    }
    const int vocab = golden_vocab(&e[0]);
    const double kl = kl_of(rows[0], rows[1], LAST, vocab, 1e-2, "8170 and a chunk");
    const double one = kl_of(rows[0], rows[2], LAST, vocab, 1e-2, "8170 and tokens");
    printf("after 8,170 positions: mean KL %.2g, token by token %.2g\n", kl, one);
    assert_true(kl < 5e-4 && one < 5e-4);
    for (int i = 0; i < 3; i++) {
        golden_close(&e[i]);
        free(rows[i]);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(close_to_exact),   cmocka_unit_test(same_plan_same_bytes),
        cmocka_unit_test(go_on_elsewhere),  cmocka_unit_test(rollback_is_never_fed),
        cmocka_unit_test(paths_do_not_mix), cmocka_unit_test(long_context)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
