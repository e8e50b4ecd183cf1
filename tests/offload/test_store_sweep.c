/* The store in prefill: each expert of a chunk is read once at most, lent memory is lent and comes back, and
 * the decode that follows finds what it would have found had the prompt been decoded, whenever the reads
 * of the refill land. The yardstick is a replay of the whole trace, token by token. */
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "offload/evict.h"
#include "offload/trace_replay.h"
#include "tests/offload/store_scene.h"

enum { LAYERS = 5, EXPERTS = 16, K = 3, TOKENS = 160, MOE = LAYERS - 1 };

static enum sl_io way = SL_IO_PREAD; /* every test runs for each way of reading */

static uint16_t routed[TOKENS][LAYERS][K]; /* in router order; layer 0 is dense */

static uint64_t next(uint64_t *r)
{
    *r ^= *r << 13;
    *r ^= *r >> 7;
    *r ^= *r << 17;
    return *r;
}

/* Skewed, favourites move on slowly. */
static void make_routes(uint64_t seed)
{
    for (int t = 0; t < TOKENS; t++)
        for (int l = 1; l < LAYERS; l++)
            for (int i = 0; i < K; i++) {
                bool twice = true;
                while (twice) {
                    uint64_t x = next(&seed) % 100;
                    routed[t][l][i] = (uint16_t)((x < 65 ? x % 5 + (uint64_t)t / 30 : x) % EXPERTS);
                    twice = false;
                    for (int j = 0; j < i; j++) twice |= routed[t][l][j] == routed[t][l][i];
                }
            }
}

static void open_scene(struct store_scene *c, const char *policy, uint32_t slots)
{
    make_routes(4711);
    ss_open(c, &(struct pm_spec){.n_layers = LAYERS, .n_experts = EXPERTS, .top_k = K}, slots,
            (struct sl_store_opts){.io = way, .evict = policy, .check_crc = true});
}

static void take_one(struct store_scene *c, int layer)
{
    struct sl_mat mat[SL_N_MATS];
    struct sl_err err = {0};
    uint32_t bytes;
    int expert = -1;
    if (sl_store_take_any(c->s, layer, &expert, mat, &err)) fail_msg("%s", err.text);
    uint8_t *want = pm_record(&c->m, layer, expert, &bytes);
    assert_memory_equal(mat[SL_GATE].codes, want, bytes);
    free(want);
    sl_store_put(c->s, layer, expert);
}

static int distinct(int layer, int from, int n, int ids[EXPERTS])
{
    bool wanted[EXPERTS] = {false};
    int count = 0;
    for (int t = from; t < from + n; t++)
        for (int i = 0; i < K; i++) wanted[routed[t][layer][i]] = true;
    for (int e = 0; e < EXPERTS; e++)
        if (wanted[e]) ids[count++] = e;
    return count;
}

/* Tokens one by one, as the engine decodes. */
static void decode(struct store_scene *c, int from, int n)
{
    struct sl_err err = {0};
    for (int t = from; t < from + n; t++)
        for (int l = 1; l < LAYERS; l++) {
            int ids[EXPERTS];
            const int k = distinct(l, t, 1, ids);
            if (sl_store_request(c->s, l, ids, k, &err)) fail_msg("%s", err.text);
            for (int i = 0; i < k; i++) take_one(c, l);
        }
}

/* A layer of a chunk, as the engine asks: resident ones first, then as far as there is room. */
static void sweep_layer(struct store_scene *c, int layer, int from, int n)
{
    struct sl_err err = {0};
    int ids[EXPERTS];
    int tokens[TOKENS * K];
    const int k = distinct(layer, from, n, ids);
    for (int t = 0; t < n; t++)
        for (int i = 0; i < K; i++) tokens[t * K + i] = routed[from + t][layer][i];
    sl_store_sweep_layer(c->s, layer, tokens, n);
    const uint64_t hits = ss_stats(c).hits;
    const int resident = sl_store_sort_resident(c->s, layer, ids, NULL, k);
    for (int i = 1; i < k; i++)
        if (i != resident) assert_true(ids[i] > ids[i - 1]); /* both parts in file order */
    const int room = sl_store_max_request(c->s);
    for (int asked = 0, done = 0; done < k; done++) {
        int more = k - asked < room - (asked - done) ? k - asked : room - (asked - done);
        if (more && sl_store_request(c->s, layer, ids + asked, more, &err))
            fail_msg("%s", err.text);
        asked += more;
        take_one(c, layer);
    }
    assert_int_equal(ss_stats(c).hits - hits, resident); /* no miss pushed out a hit */
}

static void sweep_chunk(struct store_scene *c, int from, int n)
{
    static uint16_t routes[LAYERS * TOKENS * K];
    const struct sl_store_stats before = ss_stats(c);
    uint64_t asked = 0;
    for (int l = 1; l < LAYERS; l++) {
        int ids[EXPERTS];
        asked += (uint64_t)distinct(l, from, n, ids);
        sweep_layer(c, l, from, n);
        for (int t = 0; t < n; t++)
            memcpy(routes + ((size_t)l * (size_t)n + (size_t)t) * K, routed[from + t][l],
                   sizeof routed[0][0]);
    }
    const struct sl_store_stats after = ss_stats(c);
    assert_int_equal(after.hits + after.misses - before.hits - before.misses, asked);
    assert_int_equal(after.reads - before.reads, after.misses - before.misses); /* each once */
    sl_store_sweep_routes(c->s, routes, n);
}

/* A prompt in chunks; lent memory is written over. */
static void prompt(struct store_scene *c, int from, int n, int chunk, uint32_t lend)
{
    struct sl_err err = {0};
    void *mem;
    const uint64_t bytes = lend ? lend * sl_store_slot_bytes(c->p) - 100 : 0;
    if (sl_store_sweep_begin(c->s, bytes, &mem, &err)) fail_msg("%s", err.text);
    assert_int_equal(mem != NULL, lend != 0);
    assert_int_equal(ss_stats(c).lent_bytes, lend * sl_store_slot_bytes(c->p));
    if (lend) memset(mem, 0xa5, lend * sl_store_slot_bytes(c->p));
    for (int at = 0; at < n; at += chunk)
        sweep_chunk(c, from + at, n - at < chunk ? n - at : chunk);
    sl_store_sweep_end(c->s, true);
    assert_int_equal(ss_stats(c).lent_bytes, 0);
}

/* Hits of the first n tokens, one by one. */
static uint64_t replayed(const char *policy, uint32_t slots, int n)
{
    static struct sl_trace_record records[TOKENS * MOE];
    static uint16_t ids[TOKENS * MOE * K];
    struct sl_trace t = {
        .n_layers = LAYERS, .n_experts = EXPERTS, .k = K, .records = records, .ids = ids};
    struct sl_replay *r;
    struct sl_err err = {0};
    uint64_t hits;
    for (int tok = 0; tok < n; tok++)
        for (int l = 1; l < LAYERS; l++) {
            memcpy(ids + t.n_ids, routed[tok][l], sizeof routed[0][0]);
            records[t.n_records++] =
                (struct sl_trace_record){(uint32_t)tok, (uint16_t)l, K, t.n_ids};
            t.n_ids += K;
        }
    if (sl_replay_open(&r, &t, &err)) fail_msg("%s", err.text);
    if (sl_replay_run(r, policy, slots, &hits, &err)) fail_msg("%s", err.text);
    sl_replay_close(r);
    return hits;
}

/* Prompts and answers in turn; the hits of each answer are those of the replay. */
static void turns(const char *policy, uint32_t slots, uint32_t lend, int chunk, int delay_us,
                  bool wait)
{
    static const int parts[] = {40, 15, 9, 20, 2, 10, 50, 14}; /* prompt, answer, prompt, ... */
    struct store_scene c;
    open_scene(&c, policy, slots);
    c.faults.seed = 99;
    c.faults.max_delay_us = delay_us;
    int at = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i += 2) {
        prompt(&c, at, parts[i], chunk, lend);
        at += parts[i];
        if (wait) sl_store_wait_refill(c.s);
        const uint64_t before = ss_stats(&c).hits;
        decode(&c, at, parts[i + 1]);
        const uint64_t got = ss_stats(&c).hits - before;
        const uint64_t want =
            replayed(policy, slots, at + parts[i + 1]) - replayed(policy, slots, at);
        at += parts[i + 1];
        if (got != want)
            fail_msg("%s, %u slots, %u lent, chunks of %d, answer %zu: %llu hits, replay %llu",
                     policy, slots, lend, chunk, i / 2, (unsigned long long)got,
                     (unsigned long long)want);
    }
    assert_int_equal(at, TOKENS);
    ss_close(&c);
}

static void answers_hit_what_a_replay_hits(void **state)
{
    (void)state;
    for (int k = 0; sl_evict_names[k]; k++) {
        for (uint32_t slots = K + 1; slots <= MOE * EXPERTS; slots += 20)
            for (int wait = 0; wait < 2; wait++) {
                turns(sl_evict_names[k], slots, 0, TOKENS, wait ? 0 : 300, wait);
                turns(sl_evict_names[k], slots, slots > 9 ? slots / 2 : 0, 17, wait ? 0 : 300,
                      wait);
            }
        turns(sl_evict_names[k], 30, 30 - K - 1, 23, 200, false); /* all but the floor */
    }
}

/* A short prompt takes a few slots for its ring and gives them back: little is read again. */
static void a_short_prompt_leaves_a_warm_cache(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, "lrfu", 40);
    decode(&c, 0, 60);
    prompt(&c, 60, 2, TOKENS, 0);
    sl_store_wait_refill(c.s);
    const struct sl_store_stats st = ss_stats(&c);
    assert_true(st.refill_queued <= 6);
    assert_int_equal(st.refill_queued * sl_store_slot_bytes(c.p) >= st.refill_bytes, 1);
    assert_true(st.refill_bytes > 0 || !st.refill_queued);
    ss_close(&c);
}

/* What stays is chosen while the records pass, so a long prompt, too, reads little twice. */
static void little_is_read_twice(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, "lrfu", 40);
    prompt(&c, 0, 100, TOKENS, 0);
    sl_store_wait_refill(c.s);
    const struct sl_store_stats st = ss_stats(&c);
    assert_int_equal(st.slots_touched, 40);
    assert_int_equal(st.reads, st.misses + st.refill_queued);
    assert_true(st.refill_queued <= 8); /* of 40; 15 if any records stayed */
    assert_int_equal(st.hits, 0);
    ss_close(&c);
}

/* What lies ahead of the sweep stays although its reads need room: a second chunk finds all of it but
 * the ring. */
static void a_second_chunk_finds_what_is_there(void **state)
{
    (void)state;
    struct store_scene c;
    struct sl_err err = {0};
    void *mem;
    open_scene(&c, "lrfu", 40);
    if (sl_store_sweep_begin(c.s, 0, &mem, &err)) fail_msg("%s", err.text);
    sweep_chunk(&c, 0, 80);
    assert_int_equal(ss_stats(&c).hits, 0);
    sweep_chunk(&c, 80, 80);
    const uint64_t hits = ss_stats(&c).hits;
    assert_true(hits >= 40 - 2 * EXPERTS / K);
    sl_store_sweep_end(c.s, true);
    ss_close(&c);
}

static void what_is_refused(void **state)
{
    (void)state;
    struct store_scene c;
    struct sl_err err = {0};
    void *mem;
    open_scene(&c, NULL, 12);
    const uint64_t slot = sl_store_slot_bytes(c.p);
    assert_int_equal(sl_store_sweep_begin(c.s, (12 - K) * slot, &mem, &err), SL_E_BUDGET);
    assert_non_null(strstr(err.text, "fewer than 4 slots"));
    assert_int_equal(sl_store_sweep_begin(c.s, UINT64_MAX / 2, &mem, &err), SL_E_BUDGET);
    assert_int_equal(sl_store_request(c.s, 1, (int[]){0}, 1, &err), 0);
    assert_int_equal(sl_store_sweep_begin(c.s, 0, &mem, &err), SL_E_ARG);
    take_one(&c, 1);
    assert_int_equal(sl_store_sweep_begin(c.s, (12 - K - 1) * slot, &mem, &err), 0);
    assert_int_equal(sl_store_max_request(c.s), K + 1);
    assert_int_equal(sl_store_sweep_begin(c.s, 0, &mem, &err), SL_E_ARG); /* it is on */
    sl_store_sweep_end(c.s, true);
    assert_int_equal(sl_store_max_request(c.s), 12);
    sl_store_sweep_end(c.s, true); /* it is off: nothing happens */
    sl_store_sweep_routes(c.s, NULL, 0);
    decode(&c, 0, 5);
    ss_close(&c);
}

/* A sweep given up in the middle, by a failing record or by the user: nothing is lost, nothing read. */
static void a_sweep_that_fails(void **state)
{
    (void)state;
    struct store_scene c;
    struct sl_err err = {0};
    struct sl_mat mat[SL_N_MATS];
    void *mem;
    open_scene(&c, "lrfu", 20);
    decode(&c, 0, 10);
    assert_int_equal(sl_store_sweep_begin(c.s, 8 * sl_store_slot_bytes(c.p), &mem, &err), 0);
    sweep_layer(&c, 1, 10, 30);
    sweep_layer(&c, 2, 10, 30);
    fr_add(&c.faults, FR_ERRNO, 0, UINT64_MAX, EIO, -1);
    int ids[EXPERTS];
    const int n = distinct(3, 10, 30, ids);
    const int resident = sl_store_sort_resident(c.s, 3, ids, NULL, n);
    assert_true(n - resident > 2);
    assert_int_equal(sl_store_request(c.s, 3, ids + resident, 3, &err), 0);
    assert_int_equal(sl_store_take(c.s, 3, ids[resident], mat, &err), SL_E_IO);
    sl_store_cancel(c.s);
    const uint64_t reads = ss_stats(&c).reads;
    sl_store_sweep_end(c.s, false);
    sl_store_wait_refill(c.s);
    assert_int_equal(ss_stats(&c).reads, reads);
    assert_int_equal(ss_stats(&c).refill_queued, 0);
    fr_clear(&c.faults);
    assert_int_equal(sl_store_max_request(c.s), EXPERTS);
    decode(&c, 40, 20);
    prompt(&c, 60, 20, TOKENS, 9);
    decode(&c, 80, 10);
    ss_close(&c);
}

/* Reads of a refill that fail leave no trace; whoever needs the record reads it again. */
static void a_refill_that_fails(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, "lrfu", 30);
    prompt(&c, 0, 60, TOKENS, 0);
    sl_store_wait_refill(c.s);
    struct sl_err err = {0};
    void *mem;
    const struct sl_store_stats before = ss_stats(&c);
    assert_int_equal(sl_store_sweep_begin(c.s, 20 * sl_store_slot_bytes(c.p), &mem, &err), 0);
    fr_add(&c.faults, FR_ERRNO, 0, UINT64_MAX, EIO, -1);
    sl_store_sweep_end(c.s, true);
    sl_store_wait_refill(c.s);
    assert_int_equal(ss_stats(&c).refill_queued, before.refill_queued + 20);
    assert_int_equal(ss_stats(&c).refill_bytes, before.refill_bytes);
    fr_clear(&c.faults);
    decode(&c, 60, 20);
    ss_close(&c);
}

/* A second prompt while the first one's refill is under way, and closing in the middle of one. */
static void prompts_in_a_hurry(void **state)
{
    (void)state;
    for (int round = 0; round < 6; round++) {
        struct store_scene c;
        open_scene(&c, round % 2 ? "lru" : "lrfu", 24);
        c.faults.seed = 5 + (uint64_t)round;
        c.faults.max_delay_us = 400;
        prompt(&c, 0, 30, 11, 15);
        prompt(&c, 30, 30, 40, round < 3 ? 0 : 19);
        decode(&c, 60, 1);
        prompt(&c, 61, 3, 3, 5);
        ss_close(&c);
    }
}

/* With a slot for every record nothing gives way, lent or not. */
static void a_slot_for_every_record(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, "lrfu", MOE * EXPERTS);
    prompt(&c, 0, 60, 20, 0);
    const uint64_t misses = ss_stats(&c).misses;
    prompt(&c, 0, 60, 60, 0);
    assert_int_equal(ss_stats(&c).misses, misses);
    assert_int_equal(ss_stats(&c).refill_queued, 0);
    prompt(&c, 60, 40, 20, 10);
    decode(&c, 100, 20);
    ss_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_hit_what_a_replay_hits),
        cmocka_unit_test(a_short_prompt_leaves_a_warm_cache),
        cmocka_unit_test(little_is_read_twice),
        cmocka_unit_test(a_second_chunk_finds_what_is_there),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(a_sweep_that_fails),
        cmocka_unit_test(a_refill_that_fails),
        cmocka_unit_test(prompts_in_a_hurry),
        cmocka_unit_test(a_slot_for_every_record),
    };
    static const enum sl_io ways[] = {SL_IO_PREAD, SL_IO_URING};
    int failed = 0;
    for (int i = 0; i < 2; i++) {
        way = ways[i];
        if (pm_can_read(way)) failed += cmocka_run_group_tests(tests, NULL, NULL);
    }
    return failed;
}
