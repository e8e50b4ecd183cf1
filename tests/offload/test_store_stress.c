/* Many threads, few slots, slow and failing reads: no wrong byte, no lost slot, nobody waits for ever.
 *
 * Each engine thread works on a layer of its own and checks every record it gets, byte for byte; reads
 * are cut, interrupted, delayed and failed at random. Meant for the thread sanitizer. The seed is
 * printed; SLUICE_SEED replays the choices (not the timing). */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "offload/store.h"
#include "tests/offload/faulty_reader.h"
#include "tests/offload/pack_maker.h"

enum { LAYERS = 4, EXPERTS = 12, STEPS = 300, WANT_MAX = 4 };

static enum sl_io way = SL_IO_PREAD; /* every test runs for each way of reading */

struct shared {
    struct sl_store *s;
    struct sl_pack *p;
    uint8_t *records[LAYERS][EXPERTS];
    uint32_t bytes[EXPERTS];
    atomic_int failures, taken, wrong; /* wrong: anything a test must not see */
    bool prefetch;                     /* engines also name likely experts */
};

struct worker {
    struct shared *h;
    int layer;
    uint64_t rnd;
};

static uint64_t next(uint64_t *r)
{
    *r ^= *r << 13;
    *r ^= *r >> 7;
    *r ^= *r << 17;
    return *r;
}

static uint64_t seed(void)
{
    const char *text = getenv("SLUICE_SEED");
    uint64_t s = text ? strtoull(text, NULL, 10) : (uint64_t)time(NULL) * 2654435761u;
    print_message("seed %llu\n", (unsigned long long)s);
    return s | 1;
}

/* cmocka's asserts jump and belong to the main thread: workers count what is wrong. */
static void blame(struct shared *h, const char *what, int layer, int expert, const char *text)
{
    fprintf(stderr, "layer %d expert %d: %s %s\n", layer, expert, what, text);
    atomic_fetch_add(&h->wrong, 1);
}

static void check(struct shared *h, int layer, int expert, int rc, const struct sl_mat *mat,
                  const struct sl_err *err)
{
    if (!rc) {
        atomic_fetch_add(&h->taken, 1);
        if (memcmp(mat[SL_GATE].codes, h->records[layer][expert], h->bytes[expert]) != 0)
            blame(h, "wrong bytes", layer, expert, "");
        sl_store_put(h->s, layer, expert);
        return;
    }
    char want[64];
    snprintf(want, sizeof want, "L%03d.bank: layer %d expert %d: ", layer, layer, expert);
    atomic_fetch_add(&h->failures, 1);
    if (rc != SL_E_IO || !strstr(err->text, want))
        blame(h, "wrong error", layer, expert, err->text);
}

static int choose(struct worker *w, int ids[WANT_MAX])
{
    int n = 1 + (int)(next(&w->rnd) % WANT_MAX);
    int first = (int)(next(&w->rnd) % EXPERTS);
    int step = 1 + (int)(next(&w->rnd) % 2) * 4; /* 1 or 5: both walk 12 without repeating in 4 */
    for (int i = 0; i < n; i++) ids[i] = (first + i * step) % EXPERTS;
    return n;
}

/* Anything goes: known ones, other layers, more than fit. */
static void guess(struct worker *w)
{
    int ids[EXPERTS];
    int n = (int)(next(&w->rnd) % EXPERTS);
    for (int i = 0; i < n; i++) ids[i] = (int)(next(&w->rnd) % EXPERTS);
    sl_store_prefetch(w->h->s, (int)(next(&w->rnd) % LAYERS), ids, n);
}

static void *engine(void *arg)
{
    struct worker *w = arg;
    struct shared *h = w->h;
    for (int i = 0; i < STEPS; i++) {
        int ids[WANT_MAX];
        int n = choose(w, ids);
        bool any = next(&w->rnd) & 1;
        struct sl_err err = {0};
        if (h->prefetch) guess(w);
        if (sl_store_request(h->s, w->layer, ids, n, &err)) {
            blame(h, "request refused", w->layer, ids[0], err.text);
            continue;
        }
        for (int k = 0; k < n; k++) {
            struct sl_mat mat[SL_N_MATS];
            int expert = ids[n - 1 - k];
            int rc = any ? sl_store_take_any(h->s, w->layer, &expert, mat, &err)
                         : sl_store_take(h->s, w->layer, expert, mat, &err);
            check(h, w->layer, expert, rc, mat, &err);
        }
    }
    return NULL;
}

static void start(struct shared *h, struct pm_pack *m, struct faulty_reader *f,
                  struct sl_store_opts o, uint64_t slots)
{
    struct sl_err err = {0};
    memset(h, 0, sizeof *h);
    pm_make(m, &(struct pm_spec){.n_layers = LAYERS, .n_experts = EXPERTS});
    h->p = pm_open(m);
    for (int l = 1; l < LAYERS; l++)
        for (int x = 0; x < EXPERTS; x++) h->records[l][x] = pm_record(m, l, x, &h->bytes[x]);
    o.slot_budget_bytes = slots * sl_store_slot_bytes(h->p);
    o.ops = &f->ops;
    o.io = way;
    if (sl_store_open(&h->s, h->p, &o, &err)) fail_msg("%s", err.text);
}

static void finish(struct shared *h, struct pm_pack *m)
{
    sl_store_close(h->s);
    sl_pack_close(h->p);
    for (int l = 1; l < LAYERS; l++)
        for (int x = 0; x < EXPERTS; x++) free(h->records[l][x]);
    pm_free(m);
}

/* All slots can be had at once: none was lost, none stayed pinned. */
static void expect_all_slots_free(struct shared *h, struct faulty_reader *f, int slots)
{
    struct sl_err err = {0};
    pthread_mutex_lock(&f->lock);
    f->permille_errno = 0;
    pthread_mutex_unlock(&f->lock);
    for (int l = 1; l < LAYERS; l++) {
        int ids[EXPERTS];
        struct sl_mat mat[SL_N_MATS];
        for (int x = 0; x < slots; x++) ids[x] = x;
        if (sl_store_request(h->s, l, ids, slots, &err)) fail_msg("%s", err.text);
        for (int x = 0; x < slots; x++) {
            if (sl_store_take(h->s, l, x, mat, &err)) fail_msg("%s", err.text);
            sl_store_put(h->s, l, x);
        }
    }
}

static void run_engines(struct shared *h, struct pm_pack *m, struct faulty_reader *f, bool prefetch,
                        struct sl_store_opts o, struct sl_store_stats *st)
{
    struct worker w[LAYERS - 1];
    pthread_t t[LAYERS - 1];
    uint64_t rnd = seed();
    fr_init(f);
    f->seed = next(&rnd);
    f->permille_errno = 200;
    f->permille_short = 150;
    f->permille_intr = 100;
    f->max_delay_us = 300;
    /* Just enough for what three threads hold at a time: eviction all the time. */
    const int slots = (LAYERS - 1) * WANT_MAX;
    start(h, m, f, o, (uint64_t)slots);
    h->prefetch = prefetch;
    for (int i = 0; i < LAYERS - 1; i++) {
        w[i] = (struct worker){h, i + 1, next(&rnd)};
        assert_int_equal(pthread_create(&t[i], NULL, engine, &w[i]), 0);
    }
    for (int i = 0; i < LAYERS - 1; i++) assert_int_equal(pthread_join(t[i], NULL), 0);
    assert_int_equal(h->wrong, 0);
    sl_store_get_stats(h->s, st);
    assert_int_equal(st->hits + st->prefetch_used + st->misses, (uint64_t)(h->taken + h->failures));
    assert_true(h->failures > 0 && st->hits > 0 && st->retries > 0);
    print_message("%d taken, %d failed, %llu hits, %llu retries\n", h->taken, h->failures,
                  (unsigned long long)st->hits, (unsigned long long)st->retries);
    expect_all_slots_free(h, f, slots);
    finish(h, m);
    fr_free(f);
}

static void threads_delays_and_errors(void **state)
{
    (void)state;
    struct shared h;
    struct pm_pack m;
    struct faulty_reader f;
    struct sl_store_stats st;
    run_engines(&h, &m, &f, false, (struct sl_store_opts){.check_crc = true}, &st);
    assert_int_equal(st.misses, st.reads + (uint64_t)h.failures);
    /* An error is tried again once and then reported: none lost, none reported twice. */
    assert_int_equal((uint64_t)h.failures + st.retries, f.errnos);
    assert_int_equal(st.prefetch_issued, 0);
}

/* The same with guesses from all sides, and records in three pieces where reads have pieces. */
static void prefetch_in_between(void **state)
{
    (void)state;
    struct shared h;
    struct pm_pack m;
    struct faulty_reader f;
    struct sl_store_stats st;
    run_engines(&h, &m, &f, true,
                (struct sl_store_opts){.check_crc = true, .piece_bytes = SL_PAGE, .n_readers = 3},
                &st);
    assert_true(st.prefetch_issued > 0 && st.prefetch_used > 0 && st.prefetch_wasted > 0);
    assert_true(st.prefetch_used + st.prefetch_wasted + st.prefetch_dropped <= st.prefetch_issued);
}

/* Workers of one region draw from one request until it is empty, as an engine's pool does. */
static void *helper(void *arg)
{
    struct worker *w = arg;
    struct shared *h = w->h;
    for (;;) {
        struct sl_mat mat[SL_N_MATS];
        struct sl_err err = {0};
        int expert = -1;
        int rc = sl_store_take_any(h->s, w->layer, &expert, mat, &err);
        if (rc == SL_E_ARG) return NULL; /* all taken */
        check(h, w->layer, expert, rc, mat, &err);
    }
}

static void several_takers_share_a_request(void **state)
{
    (void)state;
    struct shared h;
    struct pm_pack m;
    struct faulty_reader f;
    uint64_t rnd = seed();
    fr_init(&f);
    f.seed = next(&rnd);
    f.permille_errno = 150;
    f.max_delay_us = 200;
    start(&h, &m, &f, (struct sl_store_opts){.n_readers = 3}, 8);
    int asked = 0;
    for (int round = 0; round < 60; round++) {
        struct worker w[3];
        pthread_t t[3];
        int ids[8];
        int layer = 1 + round % (LAYERS - 1);
        struct sl_err err = {0};
        for (int i = 0; i < 8; i++) ids[i] = (round * 3 + i) % EXPERTS;
        if (sl_store_request(h.s, layer, ids, 8, &err)) fail_msg("%s", err.text);
        asked += 8;
        for (int i = 0; i < 3; i++) {
            w[i] = (struct worker){&h, layer, 1};
            assert_int_equal(pthread_create(&t[i], NULL, helper, &w[i]), 0);
        }
        for (int i = 0; i < 3; i++) assert_int_equal(pthread_join(t[i], NULL), 0);
    }
    assert_int_equal(h.wrong, 0);
    assert_int_equal(h.taken + h.failures, asked); /* each exactly once */
    struct sl_store_stats st;
    sl_store_get_stats(h.s, &st);
    assert_int_equal((uint64_t)h.failures + st.retries, f.errnos);
    expect_all_slots_free(&h, &f, 8);
    finish(&h, &m);
    fr_free(&f);
}

/* Steps given up in the middle, at every point. */
static void cancels_in_the_middle(void **state)
{
    (void)state;
    struct shared h;
    struct pm_pack m;
    struct faulty_reader f;
    uint64_t rnd = seed();
    fr_init(&f);
    f.seed = next(&rnd);
    f.permille_errno = 150;
    f.permille_short = 100;
    f.max_delay_us = 100;
    start(&h, &m, &f, (struct sl_store_opts){.n_readers = 2}, 8);
    for (int round = 0; round < 200; round++) {
        int ids[8];
        int layer = 1 + (int)(next(&rnd) % (LAYERS - 1));
        int n = 1 + (int)(next(&rnd) % 8);
        int taken = (int)(next(&rnd) % (uint64_t)(n + 1));
        struct sl_err err = {0};
        for (int i = 0; i < n; i++) ids[i] = (round + i) % EXPERTS;
        if (sl_store_request(h.s, layer, ids, n, &err)) fail_msg("%s", err.text);
        for (int i = 0; i < taken; i++) {
            struct sl_mat mat[SL_N_MATS];
            int expert = -1;
            int rc = sl_store_take_any(h.s, layer, &expert, mat, &err);
            check(&h, layer, expert, rc, mat, &err);
        }
        sl_store_cancel(h.s);
    }
    assert_int_equal(h.wrong, 0);
    expect_all_slots_free(&h, &f, 8);
    finish(&h, &m);
    fr_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_delays_and_errors),
        cmocka_unit_test(prefetch_in_between),
        cmocka_unit_test(several_takers_share_a_request),
        cmocka_unit_test(cancels_in_the_middle),
    };
    int failed = cmocka_run_group_tests_name("pread", tests, NULL, NULL);
    way = SL_IO_URING;
    if (pm_can_read(way)) failed += cmocka_run_group_tests_name("uring", tests, NULL, NULL);
    return failed;
}
