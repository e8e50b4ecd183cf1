/* Replays beside the store itself: on the same requests, for every policy and number of slots, both count
 * the same hits. And beside a search over all choices: nobody beats belady. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "offload/evict.h"
#include "offload/store.h"
#include "offload/trace_replay.h"
#include "tests/offload/pack_maker.h"

enum { LAYERS = 4, EXPERTS = 12, K = 3, TOKENS = 120, RECORDS = TOKENS * (LAYERS - 1) };

struct made {
    struct sl_trace t;
    struct sl_trace_record records[RECORDS];
    uint16_t ids[RECORDS * K];
    float weights[RECORDS * K];
};

static uint64_t next(uint64_t *r)
{
    *r ^= *r << 13;
    *r ^= *r >> 7;
    *r ^= *r << 17;
    return *r;
}

/* Skewed routes, ids not in order; favourites move on slowly. */
static void make_trace(struct made *m, int tokens, int experts, int first_layer, uint64_t seed)
{
    memset(m, 0, sizeof *m);
    m->t = (struct sl_trace){.n_layers = LAYERS,
                             .n_experts = experts,
                             .k = K,
                             .records = m->records,
                             .ids = m->ids,
                             .weights = m->weights};
    for (int tok = 0; tok < tokens; tok++)
        for (int l = first_layer; l < LAYERS; l++) {
            uint16_t *ids = m->ids + m->t.n_ids;
            for (int i = 0; i < K; i++) {
                bool twice = true;
                while (twice) {
                    uint64_t x = next(&seed) % 100;
                    ids[i] =
                        (uint16_t)((x < 70 ? x % 4 + (uint64_t)tok / 40 : x) % (uint64_t)experts);
                    twice = false;
                    for (int j = 0; j < i; j++) twice |= ids[j] == ids[i];
                }
            }
            m->records[m->t.n_records++] =
                (struct sl_trace_record){(uint32_t)tok, (uint16_t)l, K, m->t.n_ids};
            m->t.n_ids += K;
        }
}

static int ascending(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* What the engine does in decode. */
static uint64_t hits_of_store(struct sl_pack *p, const struct made *m, const char *policy,
                              uint32_t slots, enum sl_io io)
{
    struct sl_store *s;
    struct sl_store_stats st;
    struct sl_err err = {0};
    const struct sl_store_opts o = {
        .slot_budget_bytes = slots * sl_store_slot_bytes(p), .evict = policy, .io = io};
    if (sl_store_open(&s, p, &o, &err)) fail_msg("%s", err.text);
    for (uint64_t r = 0; r < m->t.n_records; r++) {
        int layer = m->records[r].layer;
        int ids[K];
        for (int i = 0; i < K; i++) ids[i] = m->ids[m->records[r].first + (uint64_t)i];
        qsort(ids, K, sizeof *ids, ascending);
        if (sl_store_request(s, layer, ids, K, &err)) fail_msg("%s", err.text);
        for (int i = 0; i < K; i++) {
            struct sl_mat mats[SL_N_MATS];
            int expert = -1;
            if (sl_store_take_any(s, layer, &expert, mats, &err)) fail_msg("%s", err.text);
            sl_store_put(s, layer, expert);
        }
    }
    sl_store_get_stats(s, &st);
    assert_int_equal(st.hits + st.misses, m->t.n_ids);
    sl_store_close(s);
    return st.hits;
}

static uint64_t replayed(const struct sl_replay *r, const char *policy, uint32_t slots)
{
    uint64_t hits;
    struct sl_err err = {0};
    if (sl_replay_run(r, policy, slots, &hits, &err)) fail_msg("%s", err.text);
    return hits;
}

static void the_store_and_a_replay_count_alike(void **state)
{
    (void)state;
    static struct made m;
    struct pm_pack pack;
    struct sl_replay *r;
    struct sl_err err = {0};
    static const uint32_t slots[] = {4, 5, 9, 17, 30, 36};
    pm_make(&pack, &(struct pm_spec){.n_layers = LAYERS, .n_experts = EXPERTS, .top_k = K});
    struct sl_pack *p = pm_open(&pack);
    make_trace(&m, TOKENS, EXPERTS, 1, 4711);
    assert_int_equal(sl_replay_open(&r, &m.t, &err), 0);
    assert_int_equal(sl_replay_requests(r), m.t.n_ids);
    assert_int_equal(sl_replay_largest(r), K);
    for (int k = 0; sl_evict_names[k]; k++) {
        uint64_t last = 0;
        for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
            const char *policy = sl_evict_names[k];
            uint64_t want = replayed(r, policy, slots[i]);
            enum sl_io io = i % 2 ? SL_IO_AUTO : SL_IO_PREAD;
            uint64_t got = hits_of_store(p, &m, policy, slots[i], io);
            if (got != want)
                fail_msg("%s, %u slots: store %llu, replay %llu", policy, slots[i],
                         (unsigned long long)got, (unsigned long long)want);
            assert_true(want <= replayed(r, SL_REPLAY_BEST, slots[i]));
            assert_true(want >= last); /* not true of every policy and trace; of this one */
            last = want;
        }
        /* With a slot for everything only the first time is a miss. */
        assert_int_equal(last, sl_replay_requests(r) - sl_replay_distinct(r));
    }
    assert_int_not_equal(replayed(r, "lru", 9), replayed(r, "lrfu", 9));
    sl_replay_close(r);
    sl_pack_close(p);
    pm_free(&pack);
}

/* Records of one layer in a row are one request, as in a prefill chunk: the union, in parts when it is
 * larger than the cache. */
static void a_chunk_is_one_request(void **state)
{
    (void)state;
    static struct made m;
    struct sl_replay *r;
    uint64_t hits;
    struct sl_err err = {0};
    memset(&m, 0, sizeof m);
    m.t = (struct sl_trace){.n_layers = 2,
                            .n_experts = 10,
                            .k = K,
                            .records = m.records,
                            .ids = m.ids,
                            .weights = m.weights};
    static const struct {
        uint16_t layer, ids[K];
    } rows[] = {{0, {1, 2, 3}}, {0, {3, 2, 9}}, {1, {1, 2, 3}}, {0, {9, 1, 2}}};
    for (int i = 0; i < 4; i++) {
        m.records[i] = (struct sl_trace_record){(uint32_t)i, rows[i].layer, K, m.t.n_ids};
        for (int k = 0; k < K; k++) m.ids[m.t.n_ids++] = rows[i].ids[k];
        m.t.n_records++;
    }
    assert_int_equal(sl_replay_open(&r, &m.t, &err), 0);
    assert_int_equal(sl_replay_requests(r), 4 + 3 + 3);
    assert_int_equal(sl_replay_largest(r), 4);
    assert_int_equal(sl_replay_distinct(r), 7);
    assert_int_equal(replayed(r, "lru", 7), 3);
    assert_int_equal(replayed(r, "lru", 4), 1); /* 1 2 3 9, then 9 and layer 1's three */
    assert_int_equal(replayed(r, "lru", 2), 0);
    assert_int_equal(sl_replay_run(r, "lru", 0, &hits, &err), SL_E_ARG);
    assert_int_equal(sl_replay_run(r, "magic", 4, &hits, &err), SL_E_ARG);
    sl_replay_close(r);
}

/* The most hits over all ways to evict: keys asked for one by one. */
struct search {
    const int *keys;
    int n, slots;
};

static int most_hits(const struct search *q, int at, unsigned held)
{
    while (at < q->n && (held >> q->keys[at] & 1)) return 1 + most_hits(q, at + 1, held);
    if (at == q->n) return 0;
    unsigned with = held | 1u << q->keys[at];
    if (__builtin_popcount(held) < q->slots) return most_hits(q, at + 1, with);
    int best = 0;
    for (int k = 0; k < 6; k++) {
        if (!(held >> k & 1)) continue;
        int hits = most_hits(q, at + 1, with & ~(1u << k));
        if (hits > best) best = hits;
    }
    return best;
}

static void belady_finds_the_best_there_is(void **state)
{
    (void)state;
    uint64_t rnd = 99;
    for (int round = 0; round < 60; round++) {
        static struct made m;
        int keys[16];
        struct sl_replay *r;
        struct sl_err err = {0};
        memset(&m, 0, sizeof m);
        /* Two layers in turn, so that no two records are one request. */
        m.t = (struct sl_trace){.n_layers = 2,
                                .n_experts = 3,
                                .k = 1,
                                .records = m.records,
                                .ids = m.ids,
                                .weights = m.weights};
        for (int i = 0; i < 16; i++) {
            m.ids[i] = (uint16_t)(next(&rnd) % 3);
            keys[i] = i % 2 * 3 + m.ids[i];
            m.records[i] = (struct sl_trace_record){(uint32_t)i, (uint16_t)(i % 2), 1, (uint64_t)i};
        }
        m.t.n_records = m.t.n_ids = 16;
        assert_int_equal(sl_replay_open(&r, &m.t, &err), 0);
        for (int slots = 1; slots <= 4; slots++) {
            const struct search q = {keys, 16, slots};
            assert_int_equal(replayed(r, SL_REPLAY_BEST, (uint32_t)slots), most_hits(&q, 0, 0));
        }
        sl_replay_close(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_store_and_a_replay_count_alike),
        cmocka_unit_test(a_chunk_is_one_request),
        cmocka_unit_test(belady_finds_the_best_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
