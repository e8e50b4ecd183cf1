/* Long chunks in a session: the slots' memory is lent and comes back, no bit changes, each expert is read
 * once a chunk, the decode that follows hits what a replay of the whole trace hits, and nothing is lost
 * when a chunk ends in the middle.
 *
 * The model is small, so panels are made small too: what counts is that chunks have many of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/file.h"
#include "offload/trace.h"
#include "offload/trace_replay.h"
#include "runtime/engine_prefill.h"
#include "tests/golden/golden_engine.h"
#include "tests/offload/pack_maker.h"

#define NANO "models/k3-nano"

enum { VOCAB = 4096, N = 420, ANSWER = 12, CTX = 512 };

static char pack_path[SL_PATH_MAX];
static int32_t ids[N + ANSWER];
static float *want; /* logits after the prompt: chunks of one token, every expert in memory */

static void no_error(int rc, const sluice_error *e)
{
    if (rc) fail_msg("code %d: %s", rc, e->text);
}

struct way {
    uint64_t slots; /* 0: all */
    uint64_t panel, chunk;
    int threads;
    const char *io, *evict;
};

struct scene {
    sluice_pack *p;
    sluice_session *s;
};

static void open_scene(struct scene *c, const struct way *w)
{
    sluice_error e = {0};
    sluice_plan_info info;
    sluice_options o = {.ctx = CTX,
                        .exact = 1,
                        .chunk = w->chunk,
                        .threads = w->threads ? w->threads : 1,
                        .io = w->io,
                        .evict = w->evict};
    no_error(sluice_pack_open(&c->p, pack_path, &o, &e), &e);
    c->p->opts.panel = w->panel;
    no_error(sluice_plan(c->p, NULL, &info, &e), &e);
    assert_int_equal(info.n_slots, 256);
    if (w->slots)
        c->p->opts.ram_bytes =
            info.planned_peak_bytes - (256 - w->slots) * info.slot_bytes + info.slot_bytes / 2;
    no_error(sluice_session_open(&c->s, c->p, NULL, &e), &e);
    /* What the process has touched meanwhile may cost a few. */
    if (w->slots) assert_in_range(c->s->plan.info.n_slots, w->slots / 2, w->slots + 40);
}

static void close_scene(struct scene *c)
{
    sluice_session_close(c->s);
    sluice_pack_close(c->p);
}

static void feed(struct scene *c, const int32_t *v, size_t n)
{
    sluice_error e = {0};
    no_error(sluice_feed(c->s, v, n, &e), &e);
}

static void same_logits(const struct scene *c, const float *w, const char *what)
{
    if (memcmp(sluice_logits(c->s), w, VOCAB * sizeof *w) != 0) fail_msg("%s: other logits", what);
}

static int set_up(void **state)
{
    (void)state;
    char *bytes;
    size_t len;
    struct scene c;
    golden_pack(pack_path, NANO, SL_FMT_M4, SL_FMT_BF16);
    assert_int_equal(
        sl_read_file(&bytes, &len, NANO "/golden/valid-ids.u16", 1 << 24, SL_E_SOURCE, NULL), 0);
    assert_true(len >= 2 * (N + ANSWER));
    for (int t = 0; t < N + ANSWER; t++) ids[t] = sl_le16(bytes + 2 * t);
    free(bytes);
    open_scene(&c, &(struct way){.chunk = 1});
    want = malloc(VOCAB * sizeof *want);
    assert_non_null(want);
    feed(&c, ids, N);
    memcpy(want, sluice_logits(c.s), VOCAB * sizeof *want);
    close_scene(&c);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(want);
    golden_remove_packs();
    return 0;
}

/* Distinct (layer, expert) pairs in chunks of `chunk` tokens, summed: what sweeps may ask for. */
static uint64_t distinct(const struct sl_trace *t, uint64_t chunk, uint64_t n)
{
    uint64_t count = 0;
    unsigned char *seen = calloc((size_t)t->n_layers * (size_t)t->n_experts, 1);
    assert_non_null(seen);
    for (uint64_t at = 0; at < n; at += chunk) {
        memset(seen, 0, (size_t)t->n_layers * (size_t)t->n_experts);
        for (uint64_t r = 0; r < t->n_records; r++) {
            const struct sl_trace_record *x = &t->records[r];
            if (x->position < at || x->position >= at + chunk || x->position >= n) continue;
            for (int i = 0; i < x->k; i++) {
                unsigned char *s = &seen[x->layer * t->n_experts + t->ids[x->first + (uint64_t)i]];
                count += !*s;
                *s = 1;
            }
        }
    }
    free(seen);
    return count;
}

static int by_token(const void *a, const void *b)
{
    const struct sl_trace_record *x = a;
    const struct sl_trace_record *y = b;
    if (x->position != y->position) return x->position < y->position ? -1 : 1;
    return (int)x->layer - (int)y->layer;
}

/* Hits of the first n tokens had they been decoded one by one. */
static uint64_t replayed(struct sl_trace *t, const char *policy, uint64_t slots, uint64_t n)
{
    struct sl_replay *r;
    struct sl_err err = {0};
    uint64_t hits;
    const uint64_t all = t->n_records;
    qsort(t->records, all, sizeof *t->records, by_token);
    t->n_records = 0;
    while (t->n_records < all && t->records[t->n_records].position < n) t->n_records++;
    if (sl_replay_open(&r, t, &err) || sl_replay_run(r, policy, (uint32_t)slots, &hits, &err))
        fail_msg("%s", err.text);
    sl_replay_close(r);
    t->n_records = all;
    return hits;
}

static void every_way_gives_the_same_bits(void **state)
{
    (void)state;
    static const struct way ways[] = {
        {0, 16, 0, 1, NULL, NULL},       {100, 16, 0, 1, NULL, NULL},
        {100, 16, 0, 2, "pread", "lru"}, {160, 7, 0, 2, "uring", NULL},
        {40, 16, 0, 1, "pread", NULL},   {230, 33, 300, 3, "mmap", "lru"},
        {9, 16, 0, 2, NULL, NULL},       {128, 512, 0, 2, NULL, NULL},
        {200, 16, 64, 2, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct scene c;
        const struct way *w = &ways[i];
        char what[64];
        if (w->io && strcmp(w->io, "uring") == 0 && !pm_can_read(SL_IO_URING)) continue;
        snprintf(what, sizeof what, "way %zu", i);
        open_scene(&c, w);
        feed(&c, ids, N);
        same_logits(&c, want, what);
        /* Again in parts, over what the first prompt left behind. */
        sluice_session_reset(c.s);
        feed(&c, ids, 3);
        feed(&c, ids + 3, 200);
        feed(&c, ids + 203, 1);
        feed(&c, ids + 204, N - 204);
        same_logits(&c, want, what);
        close_scene(&c);
    }
}

/* Chunks, loans and bytes are those of the plan; the answer's hits those of a replay. */
static void a_prompt_and_its_answer(const struct way *w, bool lends)
{
    struct scene c;
    struct sl_sweep_choice choice;
    struct sl_err err = {0};
    sluice_error e = {0};
    sluice_stats st;
    char path[SL_PATH_MAX + 16];
    open_scene(&c, w);
    const uint64_t slots = c.s->plan.info.n_slots;
    sl_sweep_choose(&c.s->plan.sweep, N, &choice);
    assert_int_equal(choice.lent_bytes != 0, lends);
    snprintf(path, sizeof path, "%s.trace", pack_path);
    no_error(sluice_trace(c.s, path, &e), &e);
    feed(&c, ids, N);
    same_logits(&c, want, "traced");
    sluice_get_stats(c.s, &st);
    assert_int_equal(st.prefill_chunks, choice.n_chunks);
    const uint64_t slot = c.s->plan.info.slot_bytes;
    assert_in_range(st.lent_peak_bytes, lends ? choice.lent_bytes / 2 : 0,
                    choice.lent_bytes + slot);
    const uint64_t asked = st.expert_hits + st.expert_misses;
    const uint64_t misses = st.expert_misses;
    const uint64_t hits = st.expert_hits;
    feed(&c, ids + N, 1);
    sl_store_wait_refill(c.s->store);
    for (int t = 1; t < ANSWER; t++) feed(&c, ids + N + t, 1);
    sluice_get_stats(c.s, &st);
    const uint64_t answer = st.expert_hits - hits;
    no_error(sluice_trace(c.s, NULL, &e), &e);

    struct sl_trace *t;
    if (sl_trace_read(&t, path, &err)) fail_msg("%s", err.text);
    remove(path);
    assert_int_equal(asked, distinct(t, choice.chunk, N));
    if (choice.n_chunks == 1) assert_int_equal(misses, asked); /* one sweep: each once */
    const uint64_t expect =
        replayed(t, w->evict, slots, N + ANSWER) - replayed(t, w->evict, slots, N);
    if (answer != expect)
        fail_msg("%llu slots: %llu hits in the answer, replay %llu", (unsigned long long)slots,
                 (unsigned long long)answer, (unsigned long long)expect);
    /* Records of this pack have one size. */
    const uint64_t record = c.s->p->pack->banks[0].entries[0].bytes;
    assert_int_equal(st.expert_bytes_read % record, 0);
    assert_true(st.expert_bytes_read <= (st.expert_misses + slots) * record);
    assert_true(st.expert_bytes_read >= st.expert_misses * record);
    sl_trace_free(t);
    close_scene(&c);
}

static void counts_are_those_of_plan_and_replay(void **state)
{
    (void)state;
    a_prompt_and_its_answer(&(struct way){.slots = 140, .panel = 16}, true);
    a_prompt_and_its_answer(&(struct way){.slots = 140, .panel = 16, .evict = "lru"}, true);
    a_prompt_and_its_answer(&(struct way){.slots = 60, .panel = 8, .threads = 2}, true);
    a_prompt_and_its_answer(&(struct way){.slots = 60, .panel = 16, .chunk = 64}, true);
    /* Seven sweeps with half of the slots lent read more than 27 that find 140 records. */
    a_prompt_and_its_answer(&(struct way){.slots = 140, .panel = 16, .chunk = 64}, false);
    a_prompt_and_its_answer(&(struct way){.slots = 140, .panel = 512}, false);
    a_prompt_and_its_answer(&(struct way){.panel = 16}, false); /* all in memory */
    a_prompt_and_its_answer(&(struct way){.slots = 8, .panel = 16}, false);
}

/* A prompt of a panel borrows nothing, whatever could be lent. */
static void short_prompts_borrow_nothing(void **state)
{
    (void)state;
    struct scene c;
    sluice_stats st;
    open_scene(&c, &(struct way){.slots = 140, .panel = 16});
    for (int i = 0; i < 10; i++) feed(&c, ids + i * 16, 16);
    sluice_get_stats(c.s, &st);
    assert_int_equal(st.prefill_chunks, 10);
    assert_int_equal(st.lent_peak_bytes, 0);
    close_scene(&c);
}

static void *interrupt_later(void *us)
{
    const struct timespec t = {.tv_nsec = *(long *)us * 1000};
    nanosleep(&t, NULL);
    sluice_interrupt();
    return NULL;
}

/* Interrupted at many moments; afterwards the session is as good as new. */
static void an_interrupt_loses_nothing(void **state)
{
    (void)state;
    struct scene c;
    int interrupted = 0;
    open_scene(&c, &(struct way){.slots = 120, .panel = 16, .threads = 2});
    for (long us = 200; us < 400000; us = us * 3 / 2) {
        pthread_t thread;
        sluice_error e = {0};
        assert_int_equal(pthread_create(&thread, NULL, interrupt_later, &us), 0);
        int rc = sluice_feed(c.s, ids, N, &e);
        pthread_join(thread, NULL);
        sluice_interrupt_clear();
        if (rc) {
            assert_int_equal(e.exit_status, 130);
            interrupted++;
            assert_int_equal(sluice_feed(c.s, ids, 1, &e), SL_E_ARG);
        }
        struct sl_store_stats st;
        sl_store_get_stats(c.s->store, &st);
        assert_int_equal(st.lent_bytes, 0);
        sluice_session_reset(c.s);
    }
    assert_true(interrupted > 0);
    feed(&c, ids, N);
    same_logits(&c, want, "after interrupts");
    close_scene(&c);
}

/* A record that is damaged ends the chunk with its name; put right, all goes on. */
static void a_damaged_record_loses_nothing(void **state)
{
    (void)state;
    struct scene c;
    sluice_error e = {0};
    open_scene(&c, &(struct way){.slots = 120, .panel = 16});
    const struct sl_bank *b = &c.p->pack->banks[2];
    const uint64_t at = b->entries[20].offset + 100;
    for (int round = 0; round < 2; round++) {
        pm_flip(b->path, at, 1);
        assert_int_equal(sluice_feed(c.s, ids, N, &e), SL_E_PACK);
        pm_flip(b->path, at, 1);
        assert_non_null(strstr(e.text, "expert 20"));
        assert_int_equal(e.exit_status, 4);
        struct sl_store_stats st;
        sl_store_get_stats(c.s->store, &st);
        assert_int_equal(st.lent_bytes, 0);
        assert_true(st.lent_peak_bytes > 0);
        sluice_session_reset(c.s);
    }
    feed(&c, ids, N);
    same_logits(&c, want, "after damage");
    close_scene(&c);
}

static int stop_at(void *ctx, uint64_t position, const float *logits)
{
    (void)logits;
    return position == *(uint64_t *)ctx ? 77 : 0;
}

/* All logits: chunks of as many tokens as there are rows, and a caller who has seen enough. */
static void all_logits_in_rows(void **state)
{
    (void)state;
    struct scene c;
    sluice_error e = {0};
    uint64_t stop = UINT64_MAX;
    open_scene(&c, &(struct way){.slots = 120, .panel = 64});
    no_error(sluice_feed_logits(c.s, ids, N, stop_at, &stop, &e), &e);
    same_logits(&c, want, "row by row");
    sluice_session_reset(c.s);
    stop = 100;
    assert_int_equal(sluice_feed_logits(c.s, ids, N, stop_at, &stop, &e), 77);
    sluice_session_reset(c.s);
    feed(&c, ids, N);
    same_logits(&c, want, "after a stop");
    close_scene(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_gives_the_same_bits),
        cmocka_unit_test(counts_are_those_of_plan_and_replay),
        cmocka_unit_test(short_prompts_borrow_nothing),
        cmocka_unit_test(an_interrupt_loses_nothing),
        cmocka_unit_test(a_damaged_record_loses_nothing),
        cmocka_unit_test(all_logits_in_rows),
    };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    printf("SKIP a sanitizer's own memory is in no plan: slots cannot be set by --ram\n");
    (void)tests;
    return 0;
#endif
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
