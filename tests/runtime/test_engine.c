/* Sessions behind sluice.h: the plan is kept, ways of feeding agree to the bit, errors leave no doubt
 * about the state, sessions of one pack share weights and may run side by side. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "runtime/engine.h"
#include "tests/golden/golden_engine.h"

#define NANO  "models/k3-nano"
#define VOCAB 4096

static char pack_path[SL_PATH_MAX];
static const int32_t prompt[] = {3840, 395, 3105, 3102, 3103, 58,   3530, 45,  50,  46,  48, 266,
                                 1297, 268, 10,   3282, 118,  1908, 673,  101, 286, 493, 10, 1297};
enum { N_PROMPT = sizeof prompt / sizeof prompt[0] };

static void no_error(int rc, const sluice_error *e)
{
    if (rc) fail_msg("code %d: %s", rc, e->text);
}

static sluice_pack *open_pack(void)
{
    sluice_pack *p = NULL;
    sluice_error e = {0};
    no_error(sluice_pack_open(&p, pack_path, NULL, &e), &e);
    return p;
}

static sluice_session *open_session(sluice_pack *p, const sluice_options *o)
{
    sluice_session *s = NULL;
    sluice_error e = {0};
    no_error(sluice_session_open(&s, p, o, &e), &e);
    return s;
}

static void feed(sluice_session *s, const int32_t *ids, size_t n)
{
    sluice_error e = {0};
    no_error(sluice_feed(s, ids, n, &e), &e);
}

static float *copy_logits(const sluice_session *s)
{
    float *l = malloc(VOCAB * sizeof *l);
    assert_non_null(l);
    assert_non_null(sluice_logits(s));
    return memcpy(l, sluice_logits(s), VOCAB * sizeof *l);
}

static void same_logits(const sluice_session *s, const float *want)
{
    assert_memory_equal(sluice_logits(s), want, VOCAB * sizeof *want);
}

struct rows {
    float *v;
    uint64_t n, stop_at;
};

static int keep_row(void *ctx, uint64_t position, const float *logits)
{
    struct rows *r = ctx;
    if (position == r->stop_at) return 77;
    assert_int_equal(position, r->n);
    memcpy(r->v + r->n * VOCAB, logits, VOCAB * sizeof *logits);
    r->n++;
    return 0;
}

/* All at once, in pieces, one by one, with all rows, after a reset: the same bits. */
static void test_ways_of_feeding(void **state)
{
    (void)state;
    sluice_pack *p = open_pack();
    const sluice_options o = {.ctx = 64, .chunk = 8, .logit_rows = 3, .threads = 2, .exact = 1};
    sluice_session *s = open_session(p, &o);
    assert_null(sluice_logits(s));
    feed(s, prompt, N_PROMPT);
    assert_int_equal(sluice_position(s), N_PROMPT);
    float *want = copy_logits(s);

    sluice_session_reset(s);
    assert_int_equal(sluice_position(s), 0);
    assert_null(sluice_logits(s));
    for (int i = 0; i < N_PROMPT; i++) feed(s, prompt + i, 1);
    same_logits(s, want);

    sluice_session_reset(s);
    feed(s, prompt, 5);
    feed(s, prompt + 5, 0);
    feed(s, prompt + 5, N_PROMPT - 5);
    same_logits(s, want);

    struct rows r = {calloc(N_PROMPT, VOCAB * sizeof(float)), 0, UINT64_MAX};
    sluice_error e = {0};
    assert_non_null(r.v);
    sluice_session_reset(s);
    no_error(sluice_feed_logits(s, prompt, N_PROMPT, keep_row, &r, &e), &e);
    assert_int_equal(r.n, N_PROMPT);
    same_logits(s, want);
    for (int i = 0; i < N_PROMPT; i += 7) {
        sluice_session_reset(s);
        feed(s, prompt, (size_t)i + 1);
        same_logits(s, r.v + (size_t)i * VOCAB);
    }
    free(r.v);
    sluice_session_close(s);

    const sluice_options small = {.ctx = 32, .threads = 1, .exact = 1};
    s = open_session(p, &small);
    feed(s, prompt, N_PROMPT);
    same_logits(s, want);
    sluice_session_close(s);
    free(want);
    sluice_pack_close(p);
}

static void test_refused_feeds(void **state)
{
    (void)state;
    sluice_pack *p = open_pack();
    const sluice_options o = {.ctx = 20};
    sluice_session *s = open_session(p, &o);
    sluice_error e = {0};
    int32_t id;
    assert_int_equal(sluice_pick(s, NULL, &id, &e), SL_E_ARG);
    assert_int_equal(e.exit_status, 2);

    feed(s, prompt, 10);
    float *want = copy_logits(s);
    /* Refused as a whole: nothing is fed, the session goes on. */
    assert_int_equal(sluice_feed(s, prompt, 11, &e), SL_E_CTX);
    assert_int_equal(e.exit_status, 5);
    assert_non_null(strstr(e.text, "11 tokens at position 10 do not fit into 20"));
    const int32_t outside[] = {5, 6, VOCAB};
    assert_int_equal(sluice_feed(s, outside, 3, &e), SL_E_ARG);
    assert_non_null(strstr(e.text, "token 2: id 4096 is outside the vocabulary of 4096"));
    const int32_t negative[] = {-1};
    assert_int_equal(sluice_feed(s, negative, 1, NULL), SL_E_ARG);
    assert_int_equal(sluice_position(s), 10);
    same_logits(s, want);
    feed(s, prompt + 10, 10);
    assert_int_equal(sluice_feed(s, prompt, 1, &e), SL_E_CTX);

    /* A callback that stops, and an interrupt: only a reset helps. */
    struct rows r = {calloc(N_PROMPT, VOCAB * sizeof(float)), 0, 4};
    assert_non_null(r.v);
    sluice_session_reset(s);
    assert_int_equal(sluice_feed_logits(s, prompt, 10, keep_row, &r, &e), 77);
    assert_int_equal(r.n, 4);
    assert_null(sluice_logits(s));
    assert_int_equal(sluice_feed(s, prompt, 1, &e), SL_E_ARG);
    assert_non_null(strstr(e.text, "reset"));
    sluice_session_reset(s);
    sluice_interrupt();
    assert_int_equal(sluice_feed(s, prompt, 10, &e), SL_E_INTR);
    assert_int_equal(e.exit_status, 130);
    sluice_interrupt_clear();
    assert_int_equal(sluice_feed(s, prompt, 10, &e), SL_E_ARG);
    sluice_session_reset(s);
    feed(s, prompt, 10);
    same_logits(s, want);
    free(r.v);
    free(want);
    sluice_session_close(s);
    sluice_pack_close(p);
}

static void test_pick_and_next(void **state)
{
    (void)state;
    sluice_pack *p = open_pack();
    const sluice_options o = {.ctx = 64};
    sluice_session *s = open_session(p, &o);
    sluice_error e = {0};
    sluice_sampling hot = {.temperature = 1.5, .top_p = 0.9, .seed = 3, .ignore_eos = 1};
    int32_t picked[8];
    int32_t id;
    feed(s, prompt, N_PROMPT);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(sluice_pick(s, &hot, &picked[i], &e), 0);
        assert_int_equal(sluice_pick(s, &hot, &id, &e),
                         0); /* a function of position: again the same */
        assert_int_equal(id, picked[i]);
        assert_int_equal(sluice_position(s), N_PROMPT + i);
        feed(s, &picked[i], 1);
    }
    sluice_session_reset(s);
    feed(s, prompt, N_PROMPT);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(sluice_next(s, &hot, &id, &e), 0);
        assert_int_equal(id, picked[i]);
        assert_int_equal(sluice_position(s), N_PROMPT + i + 1);
    }
    hot.top_p = 1.5;
    assert_int_equal(sluice_pick(s, &hot, &id, &e), SL_E_ARG);
    assert_non_null(strstr(e.text, "top_p"));
    hot = (sluice_sampling){.temperature = -1};
    assert_int_equal(sluice_pick(s, &hot, &id, &e), SL_E_ARG);
    hot.temperature = 0.0 / 0.0;
    assert_int_equal(sluice_pick(s, &hot, &id, &e), SL_E_ARG);

    /* Greedy follows the logits. */
    const float *l = sluice_logits(s);
    int32_t best = 0;
    for (int32_t i = 1; i < VOCAB; i++)
        if (l[i] > l[best]) best = i;
    int rc = sluice_pick(s, NULL, &id, &e);
    assert_int_equal(id, best);
    assert_int_equal(rc, sluice_is_stop(p, best));
    sluice_session_close(s);
    sluice_pack_close(p);
}

static uint64_t sum_of_groups(const sluice_plan_info *i)
{
    uint64_t sum = 0;
    for (int g = 0; g < i->n_groups; g++) sum += i->groups[g].planned_bytes;
    return sum;
}

/* With less and less memory the expanded keys go first, then the trunk streams, then the panel shrinks,
 * then it is refused, and the number that the refusal names works. Everything planned is what a session
 * takes. */
static void plan_of(int exact)
{
    const sluice_options path = {.exact = exact};
    sluice_pack *p = open_pack();
    sluice_error e = {0};
    sluice_plan_info full;
    no_error(sluice_plan(p, &path, &full, &e), &e);
    assert_int_equal(full.ctx, 4096);
    assert_int_equal(full.chunk, 512);
    assert_int_equal(full.panel, 512);
    assert_int_equal(full.expanded_keys, exact); /* the fast path keeps none */
    assert_int_equal(full.n_slots, 256);         /* every expert of four layers */
    assert_true(full.planned_peak_bytes >= sum_of_groups(&full));

    uint64_t panel = full.panel;
    uint64_t slots = full.n_slots;
    uint64_t trunk = full.groups[0].planned_bytes;
    bool expanded = full.expanded_keys;
    bool shrank = false;
    bool lends = false;
    bool streamed = false;
    int rc = 0;
    sluice_plan_info info;
    for (uint64_t ram = full.planned_peak_bytes + (16 << 20); ram > (1 << 20); ram -= 256 << 10) {
        const sluice_options o = {.ram_bytes = ram, .exact = exact};
        rc = sluice_plan(p, &o, &info, &e);
        if (rc) break;
        assert_true(sum_of_groups(&info) <= ram);
        assert_true(info.limit_bytes <= ram);
        assert_true(info.panel <= panel);
        assert_true(info.chunk >= info.panel && info.chunk <= info.ctx);
        if (info.n_slots < full.n_slots && info.n_slots > 64) lends |= info.chunk > info.panel;
        assert_string_equal(info.groups[0].name, "trunk");
        if (info.panel < panel) {
            shrank = true;
            assert_false(info.expanded_keys);
            assert_true(info.trunk_streamed_bytes > 0);
        }
        streamed |= info.trunk_streamed_bytes > 0;
        /* What a matrix that is not held any more leaves goes to the slots. */
        if (info.panel == panel && info.expanded_keys == expanded &&
            info.groups[0].planned_bytes == trunk)
            assert_true(info.n_slots <= slots);
        if (!expanded && !streamed) assert_false(info.expanded_keys);
        trunk = info.groups[0].planned_bytes;
        expanded = info.expanded_keys;
        panel = info.panel;
        slots = info.n_slots;
    }
    assert_true(shrank);
    assert_true(lends);
    assert_int_equal(rc, SL_E_BUDGET);
    assert_int_equal(e.exit_status, 5);
    const char *terms[] = {"trunk",       "KDA state",    "MLA cache",
                           "activations", "expert slots", "process"};
    for (size_t i = 0; i < sizeof terms / sizeof terms[0]; i++)
        if (!strstr(e.text, terms[i])) fail_msg("'%s' is not named: %s", terms[i], e.text);
    const char *need = strstr(e.text, "works: --ram ");
    assert_non_null(need);
    const sluice_options least = {
        .ram_bytes = strtoull(need + 13, NULL, 10) + (1 << 20), .ctx = 4096, .exact = exact};
    sluice_session *s = open_session(p, &least);
    feed(s, prompt, N_PROMPT);
    float *want = copy_logits(s);
    sluice_session_plan(s, &info);
    assert_int_equal(info.n_groups, full.n_groups);
    for (int g = 0; g < info.n_groups; g++) {
        const sluice_group *x = &info.groups[g];
        if (strcmp(x->name, "process") == 0) continue;
        if (x->measured_bytes > x->planned_bytes)
            fail_msg("%s: planned %llu, took %llu", x->name, (unsigned long long)x->planned_bytes,
                     (unsigned long long)x->measured_bytes);
    }
    sluice_session_close(s);

    s = open_session(p, &path);
    feed(s, prompt, N_PROMPT);
    same_logits(s, want); /* memory never changes a bit */
    free(want);
    sluice_session_close(s);
    sluice_pack_close(p);
}

static void test_plan(void **state)
{
    (void)state;
    for (int exact = 0; exact < 2; exact++) plan_of(exact);
}

static void test_refused_options(void **state)
{
    (void)state;
    sluice_pack *p = open_pack();
    const struct {
        sluice_options o;
        const char *says;
    } bad[] = {
        {{.device = "cuda"}, "--device: 'cuda' is not available in this build"},
        {{.io = "tape"}, "--io: 'tape' is not available in this build"},
        {{.evict = "fifo"}, "--evict: 'fifo' is not available in this build"},
        {{.threads = -1}, "--threads: -1"},
        {{.threads = 5000}, "--threads: 5000"},
        {{.ctx = 1048577}, "--ctx: 1048577 is more than the model's 1048576"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        sluice_session *s = NULL;
        sluice_plan_info info;
        sluice_error e = {0};
        assert_int_equal(sluice_session_open(&s, p, &bad[i].o, &e), SL_E_ARG);
        assert_null(s);
        if (!strstr(e.text, bad[i].says)) fail_msg("'%s' lacks '%s'", e.text, bad[i].says);
        assert_int_equal(sluice_plan(p, &bad[i].o, &info, &e), SL_E_ARG);
    }
    const sluice_options good = {.device = "cpu", .io = "pread", .exact = 1, .ctx = 16};
    sluice_session_close(open_session(p, &good));
    sluice_pack_close(p);
}

struct side {
    sluice_session *s;
    float logits[VOCAB];
    int rc;
};

static void *feed_beside(void *arg)
{
    struct side *t = arg;
    t->rc = sluice_feed(t->s, prompt, N_PROMPT, NULL);
    if (!t->rc) memcpy(t->logits, sluice_logits(t->s), sizeof t->logits);
    return NULL;
}

static void test_sessions_share_weights(void **state)
{
    (void)state;
    sluice_pack *p = open_pack();
    const sluice_options o = {.ctx = 64, .chunk = 8, .threads = 2};
    assert_int_equal(p->users, 0);
    struct side a = {.s = open_session(p, &o)};
    struct side *b = calloc(1, sizeof *b);
    assert_non_null(b);
    const struct sl_model *m = p->model;
    b->s = open_session(p, &o);
    assert_int_equal(p->users, 2);
    assert_ptr_equal(p->model, m);
    pthread_t t[2];
    assert_int_equal(pthread_create(&t[0], NULL, feed_beside, &a), 0);
    assert_int_equal(pthread_create(&t[1], NULL, feed_beside, b), 0);
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    assert_int_equal(a.rc, 0);
    assert_int_equal(b->rc, 0);
    assert_memory_equal(a.logits, b->logits, sizeof a.logits);
    sluice_session_close(a.s);
    assert_int_equal(p->users, 1);
    feed(b->s, prompt, 1);
    sluice_session_close(b->s);
    assert_int_equal(p->users, 0);
    assert_null(p->model);
    sluice_session_close(open_session(p, &o)); /* and again from nothing */
    free(b);
    sluice_pack_close(p);
}

static void test_stats(void **state)
{
    (void)state;
    sluice_pack *p = open_pack();
    const sluice_options o = {.ctx = 64, .threads = 1};
    sluice_session *s = open_session(p, &o);
    sluice_stats st;
    feed(s, prompt, 20);
    for (int i = 20; i < N_PROMPT; i++) feed(s, prompt + i, 1);
    sluice_get_stats(s, &st);
    assert_int_equal(st.prefill_tokens, 20);
    assert_int_equal(st.decode_tokens, N_PROMPT - 20);
    assert_true(st.prefill_seconds > 0 && st.decode_seconds > 0);
    assert_int_equal(st.threads, 1);
    /* Every expert was read once: there is a slot for each. */
    assert_int_equal(st.expert_bytes_read % st.expert_misses, 0);
    assert_true(st.expert_misses > 0 && st.expert_misses <= 256);
    assert_true(st.measured_peak_bytes > 0);
    uint64_t read = st.expert_bytes_read;
    sluice_session_reset(s);
    feed(s, prompt, 20);
    sluice_get_stats(s, &st);
    assert_int_equal(st.expert_bytes_read, read); /* a reset keeps the slots */
    sluice_session_close(s);

    /* The fewest slots: more is read, the same comes out. */
    const sluice_options one = {.ctx = 64, .chunk = 16};
    sluice_plan_info info;
    no_error(sluice_plan(p, &one, &info, NULL), &(sluice_error){0});
    sluice_options tight = one;
    tight.ram_bytes = sum_of_groups(&info) - (info.n_slots - 8) * info.slot_bytes;
    s = open_session(p, &tight);
    for (int i = 0; i < N_PROMPT; i++) feed(s, prompt + i, 1);
    sluice_get_stats(s, &st);
    assert_true(st.expert_bytes_read > read);
    sluice_session_close(s);
    sluice_pack_close(p);
}

static void test_text(void **state)
{
    (void)state;
    sluice_pack *p = open_pack();
    const char text[] = "Hello [EOS] na\303\257ve";
    int32_t *ids;
    size_t n;
    sluice_error e = {0};
    assert_int_equal(sluice_vocab_size(p), VOCAB);
    for (int markup = 0; markup < 2; markup++) {
        char back[64];
        size_t len = 0;
        bool control = false;
        no_error(sluice_encode(p, text, sizeof text - 1, markup, &ids, &n, &e), &e);
        for (size_t i = 0; i < n; i++) {
            size_t k;
            const char *bytes = sluice_token_bytes(p, ids[i], &k);
            assert_true(len + k < sizeof back);
            memcpy(back + len, bytes, k);
            len += k;
            control |= ids[i] == sluice_control_id(p, "[EOS]");
        }
        assert_int_equal(len, sizeof text - 1);
        assert_memory_equal(back, text, len);
        assert_int_equal(control, markup);
        sluice_free(ids);
    }
    assert_int_equal(sluice_control_id(p, "<|end_of_msg|>"), 3842);
    assert_int_equal(sluice_control_id(p, "no such name"), -1);
    assert_true(sluice_is_stop(p, 3841) && sluice_is_stop(p, 3842));
    assert_false(sluice_is_stop(p, 3840) || sluice_is_stop(p, 0) || sluice_is_stop(p, -1));
    size_t len;
    assert_null(sluice_token_bytes(p, VOCAB, &len));
    assert_null(sluice_token_bytes(p, -1, &len));
    sluice_pack_close(p);
}

/* A flipped byte of the trunk is found when the weights are loaded, and names its tensor. */
static void test_damaged_trunk(void **state)
{
    (void)state;
    char trunk[SL_PATH_MAX];
    assert_true(sl_path_join(trunk, pack_path, "trunk.bin"));
    sluice_pack *p = open_pack();
    FILE *f = fopen(trunk, "r+b");
    assert_non_null(f);
    fseek(f, 4096 + 77, SEEK_SET);
    int byte = fgetc(f);
    for (int round = 0; round < 2; round++) {
        fseek(f, 4096 + 77, SEEK_SET);
        fputc(round ? byte : byte ^ 4, f);
        fflush(f);
        sluice_session *s = NULL;
        sluice_error e = {0};
        const sluice_options o = {.ctx = 16};
        int rc = sluice_session_open(&s, p, &o, &e);
        if (round) {
            no_error(rc, &e);
        } else {
            assert_int_equal(rc, SL_E_PACK);
            assert_int_equal(e.exit_status, 4);
            assert_non_null(strstr(e.text, "model."));
            assert_null(s);
            assert_int_equal(p->users, 0);
        }
        sluice_session_close(s);
    }
    fclose(f);
    sluice_pack_close(p);
}

static int setup(void **state)
{
    (void)state;
    golden_pack(pack_path, NANO, SL_FMT_M4, SL_FMT_BF16);
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
        cmocka_unit_test(test_ways_of_feeding), cmocka_unit_test(test_refused_feeds),
        cmocka_unit_test(test_pick_and_next),   cmocka_unit_test(test_plan),
        cmocka_unit_test(test_refused_options), cmocka_unit_test(test_sessions_share_weights),
        cmocka_unit_test(test_stats),           cmocka_unit_test(test_text),
        cmocka_unit_test(test_damaged_trunk),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
