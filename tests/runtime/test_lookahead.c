/* Look-ahead never changes a bit, names what the router then chooses, turns misses into hits, and reads
 * only maps that are whole and this model's. k3-nano: real weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "quant/stats_file.h"
#include "runtime/lookahead_fit.h"
#include "tests/golden/golden_engine.h"
#include "tests/offload/pack_maker.h"

enum { N = 96, FIRST = 40000 /* ids that the maps are not fitted on */ };

static char pack[SL_PATH_MAX], maps_path[SL_PATH_MAX];
static int32_t ids[60000];
static int n_ids;

struct run {
    float *logits;
    struct sl_lookahead_stats ahead;
    struct sl_store_stats store;
};

/* Feeds N tokens one by one; n: experts named, 0: no look-ahead. */
static void run_with(struct run *r, const struct golden_opts *o, int n, bool with_maps)
{
    struct golden_engine e;
    struct sl_arena arena;
    struct sl_lookahead *la = NULL;
    const struct sl_ahead_map *maps = NULL;
    struct golden_opts one = *o;
    one.chunk = 1;
    golden_open(&e, pack, &one);
    assert_int_equal(sl_arena_init(&arena, 4 << 20, "look-ahead", NULL), 0);
    if (with_maps) {
        assert_int_equal(sl_ahead_maps_open(&maps, e.pack, &arena, NULL), 0);
        assert_non_null(maps);
        assert_true(arena.used <= sl_ahead_maps_bytes(e.pack));
    }
    if (n) {
        const size_t mark = arena.used;
        assert_int_equal(sl_lookahead_open(&la, e.model, maps, n, &arena, NULL), 0);
        assert_true(arena.used - mark <= sl_lookahead_bytes(&e.pack->cfg));
    }
    sl_graph_look_ahead(e.graph, la);
    memset(r, 0, sizeof *r);
    r->logits = malloc((size_t)N * (size_t)golden_vocab(&e) * sizeof(float));
    assert_non_null(r->logits);
    golden_feed(&e, ids + FIRST, N, r->logits);
    sl_store_get_stats(e.store, &r->store);
    if (la) r->ahead = la->stats;
    golden_close(&e);
    sl_arena_free(&arena);
}

static void same_bits(const struct run *a, const struct run *b, const char *what)
{
    if (memcmp(a->logits, b->logits, sizeof(float) * N * 4096) != 0)
        fail_msg("%s: logits differ from those without look-ahead", what);
}

static void never_changes_a_bit(void **state)
{
    (void)state;
    static const int slots[] = {0, 7, 23, 60}, named[] = {1, 3, 8, 64};
    static const enum sl_io ways[] = {SL_IO_PREAD, SL_IO_URING};
    struct run want;
    run_with(&want, &(struct golden_opts){0}, 0, false);
    assert_int_equal(want.ahead.named, 0);
    assert_int_equal(want.store.prefetch_issued, 0);
    for (size_t i = 0; i < 4; i++)
        for (size_t w = 0; w < 2; w++) {
            struct run r;
            char what[64];
            if (!pm_can_read(ways[w])) continue;
            const struct golden_opts o = {
                .threads = 1 + (int)i % 3, .slots = slots[i], .io = ways[w]};
            const int n = named[(i + 2 * w) % 4];
            run_with(&r, &o, n, w == 1);
            snprintf(what, sizeof what, "%d slots, %d named, %s", slots[i], n, sl_io_name(ways[w]));
            same_bits(&r, &want, what);
            /* Four layers have experts, each named once a token. */
            assert_int_equal(r.ahead.named, (uint64_t)N * 4 * (uint64_t)n);
            assert_int_equal(r.ahead.queued, r.store.prefetch_issued);
            free(r.logits);
        }
    free(want.logits);
}

/* Chance would be right with 4 of 64. */
static void names_what_the_router_chooses(void **state)
{
    (void)state;
    struct run plain, mapped, all;
    const struct golden_opts o = {.slots = 60, .io = SL_IO_PREAD};
    run_with(&plain, &o, 4, false);
    run_with(&mapped, &o, 4, true);
    run_with(&all, &o, 64, false);
    const double p = (double)plain.ahead.right / (double)plain.ahead.named;
    const double m = (double)mapped.ahead.right / (double)mapped.ahead.named;
    print_message("right: router %.3f, fitted map %.3f\n", p, m);
    assert_true(p > 0.4);
    assert_true(m > 0.4);
    /* Who names all experts names all that are chosen. */
    assert_int_equal(all.ahead.right * 16, all.ahead.named);
    free(plain.logits);
    free(mapped.logits);
    free(all.logits);
}

static void every_request_is_counted_once(void **state)
{
    (void)state;
    struct run off, on;
    const struct golden_opts o = {.slots = 40, .io = SL_IO_PREAD};
    run_with(&off, &o, 0, false);
    run_with(&on, &o, 3, false);
    const uint64_t asked = (uint64_t)N * 4 * 4;
    assert_int_equal(off.store.hits + off.store.misses, asked);
    assert_int_equal(on.store.hits + on.store.misses + on.store.prefetch_used, asked);
    assert_true(on.store.prefetch_used > 0);
    assert_true(on.store.misses < off.store.misses);
    free(off.logits);
    free(on.logits);
}

/* ---- maps */

static void fit(const char *path, int threads, size_t n)
{
    sluice_pack *p;
    sluice_session *s;
    struct sl_ahead_fit *f;
    const sluice_options o = {.ctx = 256, .chunk = 256, .threads = threads};
    assert_int_equal(sluice_pack_open(&p, pack, &o, NULL), 0);
    assert_int_equal(sluice_session_open(&s, p, &o, NULL), 0);
    assert_int_equal(sl_ahead_fit_open(&f, s, 1000, NULL), SL_E_BUDGET);
    assert_int_equal(sl_ahead_fit_open(&f, s, UINT64_MAX, NULL), 0);
    for (size_t at = 0; at < n; at += 256) {
        sluice_session_reset(s);
        assert_int_equal(sluice_feed(s, ids + at, 256, NULL), 0);
    }
    assert_int_equal(sl_ahead_fit_save(f, path, NULL), 0);
    sl_ahead_fit_close(f);
    sluice_session_close(s);
    sluice_pack_close(p);
}

static void threads_give_the_same_maps(void **state)
{
    (void)state;
    char a[SL_PATH_MAX + 8], b[SL_PATH_MAX + 8];
    snprintf(a, sizeof a, "%s.1", maps_path);
    snprintf(b, sizeof b, "%s.3", maps_path);
    fit(a, 1, 1024);
    fit(b, 3, 1024);
    size_t n, m;
    uint8_t *x = pm_read(a, &n), *y = pm_read(b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
    unlink(a);
    unlink(b);
}

static int open_session(struct sl_err *err, int lookahead)
{
    sluice_pack *p;
    sluice_session *s;
    sluice_error e = {0};
    const sluice_options o = {.ctx = 64, .lookahead = lookahead};
    int rc = sluice_pack_open(&p, pack, &o, &e);
    if (rc) p = NULL;
    if (!rc) {
        rc = sluice_session_open(&s, p, &o, &e);
        if (!rc) sluice_session_close(s);
    }
    snprintf(err->text, sizeof err->text, "%s", e.text);
    sluice_pack_close(p);
    return rc;
}

static void refuses_maps_that_are_not_sound(void **state)
{
    (void)state;
    struct sl_err err = {0};
    size_t n;
    uint8_t *good = pm_read(maps_path, &n);
    if (open_session(&err, SLUICE_LOOKAHEAD_ON)) fail_msg("%s", err.text);
    for (int i = 0; i < 8; i++) {
        pm_flip(maps_path, (uint64_t)i * (n - 1) / 7, 0x10);
        assert_int_equal(open_session(&err, 3), SL_E_PACK);
        assert_non_null(strstr(err.text, "lookahead.stats"));
        pm_write(maps_path, good, n);
    }
    pm_truncate(maps_path, n - 1);
    assert_int_equal(open_session(&err, 3), SL_E_PACK);
    assert_int_equal(open_session(&err, 0), 0); /* who does not use them does not read them */
    /* Whole, but of another source. */
    struct sl_config c = {.n_layers = 5, .hidden_size = 1, .n_experts = 1};
    c.first_k_dense = 5;
    assert_int_equal(sl_ahead_maps_save(NULL, &c, "other", maps_path, NULL), 0);
    assert_int_equal(open_session(&err, 3), SL_E_PACK);
    assert_non_null(strstr(err.text, "another model"));
    pm_write(maps_path, good, n);
    free(good);
    assert_int_equal(open_session(&err, SL_LOOKAHEAD_MAX + 1), SL_E_ARG);
    assert_non_null(strstr(err.text, "--lookahead"));
}

static int setup(void **state)
{
    (void)state;
    char *bytes;
    size_t len;
    if (sl_read_file(&bytes, &len, "models/k3-nano/golden/valid-ids.u16", 1 << 24, SL_E_SOURCE,
                     NULL))
        return 1;
    n_ids = (int)(len / 2) < 60000 ? (int)(len / 2) : 60000;
    for (int i = 0; i < n_ids; i++) ids[i] = sl_le16(bytes + 2 * i);
    free(bytes);
    if (n_ids < FIRST + N) return 1;
    golden_pack(pack, "models/k3-nano", SL_FMT_M4, SL_FMT_BF16);
    char dir[SL_PATH_MAX];
    if (!sl_path_join(dir, pack, "calib") || !sl_path_join(maps_path, pack, SL_LOOKAHEAD_FILE))
        return 1;
    if (sl_make_dirs(dir, NULL)) return 1;
    fit(maps_path, 2, 8192);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    golden_remove_packs();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(never_changes_a_bit),
        cmocka_unit_test(names_what_the_router_chooses),
        cmocka_unit_test(every_request_is_counted_once),
        cmocka_unit_test(threads_give_the_same_maps),
        cmocka_unit_test(refuses_maps_that_are_not_sound),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
