/* State: exact prices, refusals, and what has to be kept to go on with a sequence elsewhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "tests/golden/golden_engine.h"
#include "tests/golden/golden_files.h"

#define SOURCE "tests/fixtures/tiny-b"

static char pack[SL_PATH_MAX];
static struct golden_seq seq; /* len-300 */

static int set_up(void **state)
{
    (void)state;
    struct golden g;
    golden_pack(pack, SOURCE, SL_FMT_M4, SL_FMT_BF16);
    golden_load(&g, SOURCE);
    golden_seq_named(&g, "len-300", &seq);
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

/* The sizes that the model's description states for the released shape (f32). */
static void released_shape(void **state)
{
    (void)state;
    struct sl_config c;
    struct sl_state_bytes b;
    sl_config_k3(&c);
    sl_state_price(&c, 1000, true, &b);
    assert_int_equal(b.kda, 434110464);
    assert_int_equal(b.conv, 30523392);
    assert_int_equal(b.mla_rows, 24 * 2304 * 1000);
    assert_int_equal(b.mla_expanded, 24ull * 96 * (192 + 128) * 4 * 1000);
    sl_state_price(&c, 1000, false, &b);
    assert_int_equal(b.mla_expanded, 0);
}

/* The fast form: a tile beside each S, and 16 rows of history more to go back. */
static void released_shape_fast(void **state)
{
    (void)state;
    struct sl_config c;
    struct sl_state_bytes b;
    sl_config_k3(&c);
    sl_state_price(&c, 1000, SL_STATE_FAST, &b);
    assert_int_equal(b.kda, 434110464 + 69ull * 96 * 3 * 16 * 128 * 4);
    assert_int_equal(b.conv, 30523392);
    assert_int_equal(b.mla_expanded, 0);
    assert_int_equal(sl_state_recurrent_bytes(&c, SL_STATE_FAST), b.kda + b.conv);
    sl_state_price(&c, 1000, SL_STATE_FAST | SL_STATE_REWIND, &b);
    assert_int_equal(b.conv, 30523392 / 3 * 19);
    assert_int_equal(sl_state_recurrent_bytes(&c, SL_STATE_FAST | SL_STATE_REWIND),
                     b.kda + 30523392);
}

static void price_is_what_is_taken(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 7, 100, 4097};
    struct golden_engine e;
    golden_open(&e, pack, &(struct golden_opts){0});
    for (int i = 0; i < 32; i++) {
        const unsigned form = (unsigned)i % 8;
        const bool expanded = form & SL_STATE_EXPANDED;
        const uint64_t ctx = sizes[i / 8];
        struct sl_state_bytes b;
        struct sl_state *s;
        struct sl_arena a;
        struct sl_err err = {0};
        sl_state_price(&e.pack->cfg, ctx, form, &b);
        const uint64_t want = b.kda + b.conv + b.mla_rows + b.mla_expanded + b.tables;
        assert_int_equal(sl_arena_init(&a, want, "test", &err), 0);
        assert_int_equal(sl_state_open(&s, &e.pack->cfg, ctx, form, &a, &err), 0);
        assert_int_equal(a.used, want);
        assert_int_equal(s->ctx, ctx);
        assert_true((s->mla_expanded != NULL) == expanded);
        sl_arena_free(&a);
        /* A page less holds nothing of it. */
        if (want <= 4096) continue;
        assert_int_equal(sl_arena_init(&a, want - 4096, "test", &err), 0);
        assert_int_equal(sl_state_open(&s, &e.pack->cfg, ctx, form, &a, &err), SL_E_BUDGET);
        assert_null(s);
        assert_int_equal(a.used, 0);
        assert_non_null(strstr(err.text, "do not fit the arena"));
        sl_arena_free(&a);
    }
    golden_close(&e);
}

static void absurd_contexts(void **state)
{
    (void)state;
    struct golden_engine e;
    struct sl_state *s;
    struct sl_state_bytes b;
    struct sl_err err = {0};
    golden_open(&e, pack, &(struct golden_opts){0});
    const struct sl_config *c = &e.pack->cfg;
    assert_int_equal(sl_state_open(&s, c, 0, true, &e.arena, &err), SL_E_ARG);
    assert_int_equal(sl_state_open(&s, c, 1ull << 31, true, &e.arena, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "2147483648"));
    sl_state_price(c, UINT64_MAX / 8, true, &b); /* no wrap-around to a small number */
    assert_true(b.mla_rows == UINT64_MAX);
    assert_true(b.mla_expanded == UINT64_MAX);
    golden_close(&e);
}

/* ---- save and restore */

static int stop_at_third(void *ctx, void *data, uint64_t bytes)
{
    (void)data, (void)bytes;
    return ++*(int *)ctx == 3 ? 77 : 0;
}

static float *feed_rows(struct golden_engine *e, const int32_t *ids, int n, size_t *bytes)
{
    *bytes = sizeof(float) * (size_t)n * (size_t)golden_vocab(e);
    float *rows = malloc(*bytes);
    assert_non_null(rows);
    golden_feed(e, ids, n, rows);
    return rows;
}

/* A sequence saved at position 123 goes on in another engine, of another chunk size, as if nothing
 * had happened, whether that one keeps expanded keys or not. */
static void go_on_elsewhere(void **state)
{
    (void)state;
    struct golden_engine a;
    golden_open(&a, pack, &(struct golden_opts){.chunk = 50});
    golden_feed(&a, seq.ids, 123, NULL);
    struct golden_copy kept = golden_save(&a);
    size_t bytes;
    float *want = feed_rows(&a, seq.ids + 123, 60, &bytes);
    for (int i = 0; i < 2; i++) {
        struct golden_engine b;
        golden_open(&b, pack, &(struct golden_opts){.chunk = 7, .no_expanded = i == 1});
        golden_feed(&b, seq.ids + 9, 200, NULL); /* something else was there before */
        b.state->position = 123;
        b.state->n_expanded = 0;
        golden_restore(&b, &kept);
        float *got = feed_rows(&b, seq.ids + 123, 60, &bytes);
        assert_memory_equal(got, want, bytes);
        free(got);
        golden_close(&b);
    }
    int calls = 0;
    assert_int_equal(sl_state_each(a.state, stop_at_third, &calls), 77);
    assert_int_equal(calls, 3);
    free(want);
    free(kept.data);
    golden_close(&a);
}

/* Back to an earlier position of the same state: rows and expanded keys beyond it are stale, and the
 * other tokens that come now must not see them. */
static void rewind_and_differ(void **state)
{
    (void)state;
    struct golden_engine e;
    size_t bytes;
    golden_open(&e, pack, &(struct golden_opts){.chunk = 64});
    golden_feed(&e, seq.ids, 40, NULL);
    struct golden_copy kept = golden_save(&e);
    float *want = feed_rows(&e, seq.ids + 100, 30, &bytes);
    e.state->position = 40;
    golden_restore(&e, &kept);
    golden_feed(&e, seq.ids + 200, 60, NULL);
    e.state->position = 40;
    golden_restore(&e, &kept);
    float *got = feed_rows(&e, seq.ids + 100, 30, &bytes);
    assert_memory_equal(got, want, bytes);
    free(got);
    free(want);
    free(kept.data);
    golden_close(&e);
}

static void reset_forgets(void **state)
{
    (void)state;
    struct golden_engine e;
    size_t bytes;
    golden_open(&e, pack, &(struct golden_opts){.chunk = 64});
    float *want = feed_rows(&e, seq.ids, 20, &bytes);
    golden_feed(&e, seq.ids + 50, 100, NULL);
    sl_state_reset(e.state);
    assert_int_equal(e.state->position, 0);
    float *got = feed_rows(&e, seq.ids, 20, &bytes);
    assert_memory_equal(got, want, bytes);
    free(got);
    free(want);
    golden_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_shape),         cmocka_unit_test(released_shape_fast),
        cmocka_unit_test(price_is_what_is_taken), cmocka_unit_test(absurd_contexts),
        cmocka_unit_test(go_on_elsewhere),        cmocka_unit_test(rewind_and_differ),
        cmocka_unit_test(reset_forgets)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
