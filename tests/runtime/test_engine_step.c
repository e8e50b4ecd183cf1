/* Sessions of one engine, and steps of several of them with guesses: what each gets is what it gets alone
 * and one token at a time, whatever the guesses were; the plan holds all of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "runtime/engine.h"
#include "tests/golden/golden_engine.h"

enum { VOCAB = 4096, CTX = 64, SEATS = 5, LENGTH = 48 };

static char pack_path[SL_PATH_MAX];
static sluice_pack *pack;
static int32_t text[SEATS][LENGTH];
static float *want[SEATS]; /* [LENGTH][VOCAB] */
static uint64_t rng = 20;

static size_t draw(size_t n)
{
    rng = rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (size_t)(rng >> 33) % n;
}

static void no_error(int rc, const sluice_error *e)
{
    if (rc) fail_msg("code %d: %s", rc, e->text);
}

static void feed(sluice_session *s, const int32_t *ids, size_t n)
{
    sluice_error e = {0};
    no_error(sluice_feed(s, ids, n, &e), &e);
}

/* Greedy continuations of short prompts, so that right guesses are known. */
static int set_up(void **state)
{
    (void)state;
    static const int32_t start[SEATS] = {3840, 395, 1297, 286, 118};
    sluice_error e = {0};
    sluice_session *s;
    golden_pack(pack_path, "models/k3-nano", SL_FMT_M4, SL_FMT_BF16);
    no_error(sluice_pack_open(&pack, pack_path, NULL, &e), &e);
    const sluice_options o = {.ctx = CTX, .threads = 2, .exact = 1};
    no_error(sluice_session_open(&s, pack, &o, &e), &e);
    for (int i = 0; i < SEATS; i++) {
        want[i] = malloc(sizeof(float) * LENGTH * VOCAB);
        assert_non_null(want[i]);
        sluice_session_reset(s);
        text[i][0] = start[i];
        text[i][1] = start[(i + 1) % SEATS];
        for (int t = 0; t < LENGTH; t++) {
            const sluice_sampling greedy = {.ignore_eos = 1};
            feed(s, &text[i][t], 1);
            memcpy(want[i] + t * VOCAB, sluice_logits(s), sizeof(float) * VOCAB);
            if (t > 0 && t + 1 < LENGTH)
                assert_int_equal(sluice_pick(s, &greedy, &text[i][t + 1], &e), 0);
        }
    }
    sluice_session_close(s);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < SEATS; i++) free(want[i]);
    sluice_pack_close(pack);
    golden_remove_packs();
    return 0;
}

struct crowd {
    sluice_session *s[SEATS];
    size_t at[SEATS];
};

static void open_crowd(struct crowd *c, const sluice_options *o)
{
    sluice_error e = {0};
    memset(c, 0, sizeof *c);
    no_error(sluice_session_open(&c->s[0], pack, o, &e), &e);
    for (int i = 1; i < o->seats; i++) no_error(sluice_session_join(&c->s[i], c->s[0], &e), &e);
}

static void close_crowd(struct crowd *c)
{
    for (int i = 0; i < SEATS; i++) sluice_session_close(c->s[i]);
}

static void same(const struct crowd *c, int i)
{
    assert_int_equal(sluice_position(c->s[i]), c->at[i]);
    if (!c->at[i]) {
        assert_null(sluice_logits(c->s[i]));
        return;
    }
    if (memcmp(sluice_logits(c->s[i]), want[i] + (c->at[i] - 1) * VOCAB, sizeof(float) * VOCAB))
        fail_msg("sequence %d: other logits after %zu tokens", i, c->at[i]);
}

/* A drawn step: some sessions, runs and single tokens, guesses right up to a drawn place. false: done. */
static bool drawn_step(struct crowd *c, const sluice_options *o, int draft)
{
    static const sluice_sampling greedy = {.ignore_eos = 1};
    sluice_part parts[SEATS];
    int32_t guesses[SEATS][SLUICE_MAX_GUESSES];
    size_t right[SEATS];
    int who[SEATS];
    size_t n_parts = 0;
    bool left = false;
    for (int i = 0; i < o->seats; i++) {
        const size_t rest = LENGTH - c->at[i];
        left |= rest > 0;
        if (!rest || !draw(4)) continue;
        size_t n = draw(3) ? 1 : 1 + draw(12);
        if (n > rest) n = rest;
        size_t k = draft && c->at[i] ? draw((size_t)draft + 1) : 0;
        if (k > rest - n) k = rest - n;
        const size_t good = k ? draw(k + 1) : 0;
        for (size_t j = 0; j < k; j++) {
            guesses[i][j] = text[i][c->at[i] + n + j];
            if (j == good) guesses[i][j] = (guesses[i][j] + 1) % VOCAB;
        }
        right[n_parts] = good;
        who[n_parts] = i;
        parts[n_parts++] = (sluice_part){.session = c->s[i],
                                         .ids = text[i] + c->at[i],
                                         .n = n,
                                         .guesses = guesses[i],
                                         .n_guesses = k,
                                         .sampling = &greedy};
    }
    if (!n_parts) return left;
    sluice_error e = {0};
    no_error(sluice_step(parts, n_parts, &e), &e);
    for (size_t p = 0; p < n_parts; p++) {
        assert_int_equal(parts[p].accepted, right[p]);
        c->at[who[p]] += parts[p].n + parts[p].accepted;
    }
    for (int i = 0; i < o->seats; i++) same(c, i); /* those that took no part, too */
    return true;
}

static void steps(void **state)
{
    (void)state;
    static const sluice_options ways[] = {
        {.ctx = CTX, .threads = 1, .seats = 5, .exact = 1},
        {.ctx = CTX, .threads = 2, .seats = 5, .draft = 4, .exact = 1},
        {.ctx = CTX, .threads = 3, .seats = 3, .draft = 16, .exact = 1},
        {.ctx = CTX, .threads = 2, .seats = 4, .chunk = 3, .draft = 9, .exact = 1},
        {.ctx = CTX, .threads = 1, .seats = 5, .chunk = 1, .draft = 2, .exact = 1},
        {.ctx = CTX, .threads = 2, .seats = 1, .draft = 5, .exact = 1},
    };
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
        for (int again = 0; again < 3; again++) {
            struct crowd c;
            sluice_plan_info plan;
            sluice_stats st;
            open_crowd(&c, &ways[w]);
            sluice_session_plan(c.s[0], &plan);
            assert_int_equal(plan.seats, ways[w].seats);
            assert_true(plan.draft < (int)plan.panel && plan.draft <= ways[w].draft);
            while (drawn_step(&c, &ways[w], plan.draft)) {
            }
            sluice_get_stats(c.s[0], &st);
            assert_int_equal(st.prefill_tokens + st.decode_tokens, LENGTH * ways[w].seats);
            assert_true(st.accepted_tokens <= st.guessed_tokens);
            assert_int_equal(st.guessed_tokens > 0, plan.draft > 0);
            close_crowd(&c);
        }
}

/* A sampled guess holds when it is the token that would have been drawn at its position. */
static void sampled(void **state)
{
    (void)state;
    enum { N = 24, DRAFT = 3 };
    const sluice_options o = {.ctx = CTX, .threads = 1, .draft = DRAFT, .exact = 1};
    const sluice_sampling hot = {.temperature = 1.3, .top_p = 0.9, .seed = 5, .ignore_eos = 1};
    int32_t ids[N + 1];
    sluice_error e = {0};
    struct crowd c;
    open_crowd(&c, &(sluice_options){.ctx = CTX, .threads = 1, .seats = 1, .exact = 1});
    feed(c.s[0], text[0], 2);
    for (int i = 0; i <= N; i++) assert_int_equal(sluice_next(c.s[0], &hot, &ids[i], &e), 0);
    close_crowd(&c);

    sluice_options with = o;
    with.seats = 1;
    open_crowd(&c, &with);
    feed(c.s[0], text[0], 2);
    size_t accepted = 0;
    for (size_t at = 0; at + DRAFT < N;) {
        int32_t id;
        int32_t guesses[DRAFT];
        assert_int_equal(sluice_pick(c.s[0], &hot, &id, &e), 0);
        assert_int_equal(id, ids[at]);
        memcpy(guesses, ids + at + 1, sizeof guesses);
        const size_t wrong = draw(DRAFT + 1);
        if (wrong < DRAFT) guesses[wrong] ^= 1;
        sluice_part part = {.session = c.s[0],
                            .ids = &id,
                            .n = 1,
                            .guesses = guesses,
                            .n_guesses = DRAFT,
                            .sampling = &hot};
        no_error(sluice_step(&part, 1, &e), &e);
        assert_int_equal(part.accepted, wrong);
        accepted += wrong;
        at += 1 + wrong;
    }
    assert_true(accepted > 0);
    close_crowd(&c);
}

/* A stop token ends the text, it is not appended, even where it was guessed. */
static void guessed_stop(void **state)
{
    (void)state;
    const sluice_options o = {.ctx = CTX, .threads = 1, .seats = 1, .draft = 1, .exact = 1};
    sluice_error e = {0};
    struct crowd c;
    int32_t stop = 0;
    while (stop < VOCAB && !sluice_is_stop(pack, stop)) stop++;
    assert_true(stop < VOCAB);
    open_crowd(&c, &o);
    for (int i = 0; i < SEATS; i++) /* it need not be likely: it must not be kept in any case */
        for (size_t t = 4; t < 12; t++) {
            sluice_session_reset(c.s[0]);
            feed(c.s[0], text[i], t);
            sluice_part part = {
                .session = c.s[0], .ids = text[i] + t, .n = 1, .guesses = &stop, .n_guesses = 1};
            no_error(sluice_step(&part, 1, &e), &e);
            assert_int_equal(part.accepted, 0);
            c.at[0] = t + 1;
            assert_int_equal(sluice_position(c.s[0]), t + 1);
            assert_memory_equal(sluice_logits(c.s[0]), want[i] + t * VOCAB, sizeof(float) * VOCAB);
        }
    close_crowd(&c);
}

/* Seats come and go; the first may leave before the others. */
static void seats(void **state)
{
    (void)state;
    const sluice_options o = {.ctx = CTX, .threads = 1, .seats = 2, .exact = 1};
    sluice_error e = {0};
    struct crowd c;
    sluice_session *third;
    open_crowd(&c, &o);
    assert_int_equal(sluice_session_join(&third, c.s[0], &e), SL_E_ARG);
    assert_null(third);
    feed(c.s[0], text[0], 7);
    feed(c.s[1], text[1], 9);
    sluice_session_close(c.s[0]);
    c.s[0] = NULL;
    c.at[1] = 9;
    same(&c, 1);
    no_error(sluice_session_join(&c.s[0], c.s[1], &e), &e); /* the seat is empty again */
    same(&c, 0);
    feed(c.s[0], text[0], 5);
    c.at[0] = 5;
    same(&c, 0);
    same(&c, 1);
    close_crowd(&c);
}

static void refusals(void **state)
{
    (void)state;
    const sluice_options o = {.ctx = CTX, .threads = 1, .seats = 2, .draft = 2, .exact = 1};
    sluice_error e = {0};
    struct crowd c, other;
    open_crowd(&c, &o);
    open_crowd(&other, &o);
    sluice_part p[2] = {{.session = c.s[0], .ids = text[0], .n = 1},
                        {.session = c.s[0], .ids = text[0], .n = 1}};
    assert_int_equal(sluice_step(p, 2, &e), SL_E_ARG); /* one session twice */
    p[1].session = other.s[0];
    assert_int_equal(sluice_step(p, 2, &e), SL_E_ARG); /* two engines */
    p[1].session = c.s[1];
    p[1].n = 0;
    assert_int_equal(sluice_step(p, 2, &e), SL_E_ARG);
    p[1].n = 1;
    p[1].guesses = text[0];
    p[1].n_guesses = 3;
    assert_int_equal(sluice_step(p, 2, &e), SL_E_ARG); /* more than planned */
    p[1].n_guesses = 0;
    const int32_t beyond = VOCAB;
    p[1].ids = &beyond;
    assert_int_equal(sluice_step(p, 2, &e), SL_E_ARG);
    p[1].ids = text[0];
    p[1].n = CTX;
    p[1].ids = calloc(CTX, sizeof(int32_t));
    assert_non_null(p[1].ids);
    p[1].n_guesses = 1;
    assert_int_equal(sluice_step(p, 2, &e), SL_E_CTX);
    assert_int_equal(e.exit_status, 5);
    free((void *)(uintptr_t)p[1].ids);
    p[1].ids = text[1];
    p[1].n = 3;
    p[1].n_guesses = 0;
    no_error(sluice_step(p, 2, &e), &e); /* the control */
    c.at[0] = 1;
    c.at[1] = 3;
    same(&c, 0);
    same(&c, 1);
    close_crowd(&c);
    close_crowd(&other);
}

/* What the plan says of the seats is what they take. */
static void plans(void **state)
{
    (void)state;
    sluice_plan_info one, four;
    sluice_error e = {0};
    const sluice_options a = {.ctx = CTX, .threads = 1, .exact = 1};
    const sluice_options b = {.ctx = CTX, .threads = 1, .seats = 4, .draft = 2, .exact = 1};
    no_error(sluice_plan(pack, &a, &one, &e), &e);
    no_error(sluice_plan(pack, &b, &four, &e), &e);
    static const int seated[] = {SL_EG_KDA, SL_EG_CONV, SL_EG_MLA, SL_EG_KEYS};
    for (size_t i = 0; i < sizeof seated / sizeof *seated; i++)
        assert_int_equal(four.groups[seated[i]].planned_bytes,
                         4 * one.groups[seated[i]].planned_bytes);
    assert_int_equal(one.groups[SL_EG_DRAFT].planned_bytes, 0);
    assert_true(four.groups[SL_EG_DRAFT].planned_bytes >= four.groups[SL_EG_KDA].planned_bytes);
    assert_int_equal(one.groups[SL_EG_TRUNK].planned_bytes, four.groups[SL_EG_TRUNK].planned_bytes);
    struct crowd c;
    sluice_plan_info got;
    open_crowd(&c, &b);
    sluice_session_plan(c.s[3], &got);
    for (int g = SL_EG_KDA; g <= SL_EG_LOGITS; g++) {
        if (g == SL_EG_ACTIVATIONS) continue;
        assert_int_equal(got.groups[g].measured_bytes, got.groups[g].planned_bytes);
    }
    close_crowd(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps),        cmocka_unit_test(sampled),
                                       cmocka_unit_test(guessed_stop), cmocka_unit_test(seats),
                                       cmocka_unit_test(refusals),     cmocka_unit_test(plans)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
