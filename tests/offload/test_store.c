/* The expert store, one behaviour a test: right bytes, counters by what was resident before, eviction
 * order, arrivals first, errors that name the expert and leave nothing hanging. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "base/file.h"
#include "tests/offload/store_scene.h"

/* Every test runs for each way of reading; what refuses to run here is told and left out. */
static enum sl_io way = SL_IO_PREAD;

/* slots 0: all records. Threads and faults as given in o. */
static void open_scene(struct store_scene *c, const struct pm_spec *spec, uint64_t slots,
                       struct sl_store_opts o)
{
    if (o.io == SL_IO_AUTO) o.io = way;
    ss_open(c, spec, slots, o);
}

static void request(struct store_scene *c, int layer, const int *ids, int n)
{
    struct sl_err err = {0};
    if (sl_store_request(c->s, layer, ids, n, &err)) fail_msg("%s", err.text);
}

/* The views must show the record that the pack was written with. */
static void expect_record(const struct store_scene *c, int layer, int expert,
                          const struct sl_mat mat[SL_N_MATS])
{
    uint32_t bytes;
    uint8_t *r = pm_record(&c->m, layer, expert, &bytes);
    struct sl_mat want[SL_N_MATS];
    const struct sl_bank_entry *e = &c->p->banks[c->p->bank_of[layer]].entries[expert];
    sl_record_views(e, r, c->p->cfg.latent_size, c->p->cfg.moe_intermediate_size, want);
    for (int i = 0; i < SL_N_MATS; i++) {
        assert_int_equal(mat[i].fmt, want[i].fmt);
        assert_int_equal(mat[i].rows, want[i].rows);
        assert_int_equal(mat[i].cols, want[i].cols);
    }
    /* One slot holds the whole record: compare all of it from its first plane on. */
    assert_int_equal((uintptr_t)mat[SL_GATE].codes % SL_PAGE, 0);
    assert_memory_equal(mat[SL_GATE].codes, r, bytes);
    assert_ptr_equal(mat[SL_DOWN].scales - mat[SL_GATE].codes, want[SL_DOWN].scales - r);
    free(r);
}

static void take(struct store_scene *c, int layer, int expert)
{
    struct sl_mat mat[SL_N_MATS];
    struct sl_err err = {0};
    if (sl_store_take(c->s, layer, expert, mat, &err)) fail_msg("%s", err.text);
    expect_record(c, layer, expert, mat);
}

/* A whole step: request, take, check, put. */
static void step(struct store_scene *c, int layer, const int *ids, int n)
{
    request(c, layer, ids, n);
    for (int i = 0; i < n; i++) take(c, layer, ids[i]);
    for (int i = 0; i < n; i++) sl_store_put(c->s, layer, ids[i]);
}

/* Whether the expert is resident, without disturbing the order much: a hit or a miss of one step. */
static bool hits(struct store_scene *c, int layer, int expert)
{
    uint64_t before = ss_stats(c).hits;
    step(c, layer, &expert, 1);
    return ss_stats(c).hits == before + 1;
}

static void every_record_is_right_and_stays(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, &(struct pm_spec){.n_layers = 5, .n_experts = 7}, 0, (struct sl_store_opts){0});
    const int ids[] = {3, 0, 6, 1, 2, 5, 4};
    for (int round = 0; round < 2; round++)
        for (int l = 1; l < 5; l++) step(&c, l, ids, 7);
    struct sl_store_stats st = ss_stats(&c);
    assert_int_equal(st.n_slots, 4 * 7);
    assert_int_equal(st.misses, 4 * 7);
    assert_int_equal(st.hits, 4 * 7); /* nothing was evicted */
    assert_int_equal(st.reads, 4 * 7);
    uint64_t bytes = 0;
    for (int b = 0; b < c.p->n_banks; b++)
        for (int x = 0; x < 7; x++) bytes += c.p->banks[b].entries[x].bytes;
    assert_int_equal(st.bytes_read, bytes);
    assert_int_equal(st.io, way);
    ss_close(&c);
}

/* Slots of 1, 3, 4 and 5 pages: an odd number must neither stop caching nor misalign. */
static void slot_sizes_of_any_number_of_pages(void **state)
{
    (void)state;
    static const struct {
        int latent, width;
        unsigned pages;
    } shapes[] = {{32, 32, 1}, {96, 64, 3}, {128, 64, 4}, {96, 96, 4}, {128, 96, 5}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct store_scene c;
        struct pm_spec spec = {.n_layers = 3, .latent = shapes[i].latent, .width = shapes[i].width};
        open_scene(&c, &spec, 6, (struct sl_store_opts){.check_crc = true});
        if (sl_store_slot_bytes(c.p) != shapes[i].pages * SL_PAGE)
            fail_msg("%d x %d: %llu bytes a slot", shapes[i].latent, shapes[i].width,
                     (unsigned long long)sl_store_slot_bytes(c.p));
        const int ids[] = {4, 2, 0};
        for (int round = 0; round < 3; round++) {
            step(&c, 1, ids, 3);
            step(&c, 2, ids, 3);
        }
        assert_int_equal(ss_stats(&c).misses, 6);
        assert_int_equal(ss_stats(&c).hits, 12);
        ss_close(&c);
    }
}

static void the_least_recently_asked_for_goes(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, &(struct pm_spec){.n_layers = 2, .n_experts = 8}, 3, (struct sl_store_opts){0});
    step(&c, 1, (int[]){0, 1, 2}, 3);
    assert_true(hits(&c, 1, 0));  /* 1 2 0 */
    assert_false(hits(&c, 1, 3)); /* 1 goes: 2 0 3 */
    assert_true(hits(&c, 1, 2));  /* 0 3 2 */
    assert_false(hits(&c, 1, 1)); /* 0 goes: 3 2 1 */
    assert_true(hits(&c, 1, 3));
    /* A request's own hits are safe from its misses: 2 is the oldest now, and asked for. */
    uint64_t before = ss_stats(&c).hits;
    step(&c, 1, (int[]){7, 6, 2}, 3);
    assert_int_equal(ss_stats(&c).hits, before + 1);
    ss_close(&c);
}

/* More slots, fewer bytes: the cache does what it is asked for. */
static void bytes_read_fall_when_slots_grow(void **state)
{
    (void)state;
    uint64_t last = UINT64_MAX;
    for (uint64_t slots = 3; slots <= 24; slots += 7) {
        struct store_scene c;
        uint64_t rnd = 12345;
        open_scene(&c, &(struct pm_spec){.n_layers = 4, .n_experts = 8}, slots,
                   (struct sl_store_opts){0});
        for (int i = 0; i < 300; i++) {
            int ids[2];
            for (int k = 0; k < 2; k++) {
                rnd = rnd * 6364136223846793005u + 1442695040888963407u;
                int x = (int)(rnd >> 33) % 64;
                ids[k] = x < 40 ? x % 3 : x % 8; /* skewed, as routing is */
            }
            step(&c, 1 + i % 3, ids, ids[0] == ids[1] ? 1 : 2);
        }
        assert_true(ss_stats(&c).bytes_read < last);
        last = ss_stats(&c).bytes_read;
        assert_int_equal(ss_stats(&c).reads, ss_stats(&c).misses);
        ss_close(&c);
    }
}

static void pinned_records_are_never_evicted(void **state)
{
    (void)state;
    struct store_scene c;
    struct sl_err err = {0};
    open_scene(&c, &(struct pm_spec){.n_layers = 3, .n_experts = 8}, 4, (struct sl_store_opts){0});
    struct sl_mat held[SL_N_MATS];
    request(&c, 1, (int[]){0, 1}, 2);
    assert_int_equal(sl_store_take(c.s, 1, 0, held, &err), 0); /* kept */
    take(&c, 1, 1);
    sl_store_put(c.s, 1, 1);
    for (int x = 2; x < 8; x++) step(&c, 1, &x, 1);
    for (int x = 0; x < 8; x++) step(&c, 2, &x, 1);
    expect_record(&c, 1, 0, held); /* still there, still right */
    /* Three slots are free: four more cannot be had, three can. */
    assert_int_equal(sl_store_request(c.s, 2, (int[]){4, 5, 6, 7}, 4, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "1 of 4 are in use"));
    step(&c, 2, (int[]){4, 5, 6}, 3);
    sl_store_put(c.s, 1, 0);
    step(&c, 2, (int[]){4, 5, 6, 7}, 4);
    ss_close(&c);
}

static void requests_of_consecutive_layers_stand_together(void **state)
{
    (void)state;
    struct store_scene c;
    struct sl_mat mat[SL_N_MATS];
    struct sl_err err = {0};
    int expert;
    open_scene(&c, NULL, 0, (struct sl_store_opts){0});
    request(&c, 1, (int[]){0, 1}, 2);
    request(&c, 2, (int[]){1, 2}, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(sl_store_take_any(c.s, 2, &expert, mat, &err), 0);
        expect_record(&c, 2, expert, mat);
        sl_store_put(c.s, 2, expert);
    }
    assert_int_equal(sl_store_take_any(c.s, 2, &expert, mat, &err), SL_E_ARG);
    take(&c, 1, 1);
    take(&c, 1, 0);
    sl_store_put(c.s, 1, 0);
    sl_store_put(c.s, 1, 1);
    ss_close(&c);
}

/* Layers that share a file are held apart, as layers of a full model would be. */
static void aliased_layers_have_slots_of_their_own(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, &(struct pm_spec){.n_layers = 4, .alias_banks = true}, 0,
               (struct sl_store_opts){0});
    for (int l = 1; l < 4; l++) assert_false(hits(&c, l, 2));
    for (int l = 1; l < 4; l++) assert_true(hits(&c, l, 2));
    assert_int_equal(ss_stats(&c).n_slots, 3 * 5);
    ss_close(&c);
}

/* ------------------------------------------------------------------ arrival */

static void expect_next(struct store_scene *c, int layer, int want)
{
    struct sl_mat mat[SL_N_MATS];
    struct sl_err err = {0};
    int expert = -1;
    if (sl_store_take_any(c->s, layer, &expert, mat, &err)) fail_msg("%s", err.text);
    assert_int_equal(expert, want);
    expect_record(c, layer, expert, mat);
    sl_store_put(c->s, layer, expert);
}

static void gate(struct store_scene *c, int expert)
{
    const struct sl_bank_entry *e = &c->p->banks[0].entries[expert];
    fr_add(&c->faults, FR_GATE, e->offset, e->offset + e->bytes, 0, -1);
}

/* Hits at once, then what lands, however long the first one asked for takes. */
static void take_any_follows_arrival(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, &(struct pm_spec){.n_layers = 2, .n_experts = 8}, 0, (struct sl_store_opts){0});
    step(&c, 1, (int[]){5, 6}, 2);
    gate(&c, 0);
    request(&c, 1, (int[]){0, 6, 3, 5}, 4);
    expect_next(&c, 1, 6); /* hits, in the order asked */
    expect_next(&c, 1, 5);
    expect_next(&c, 1, 3); /* landed; 0 waits at the gate */
    fr_wait_at_gate(&c.faults, 1);
    fr_open_gate(&c.faults);
    expect_next(&c, 1, 0);
    assert_int_equal(ss_stats(&c).hits, 2);
    assert_int_equal(ss_stats(&c).misses, 4);
    ss_close(&c);
}

struct taker {
    struct store_scene *c;
    int done; /* set under the gate's lock */
};

static void *take_expert_0(void *arg)
{
    struct taker *t = arg;
    take(t->c, 1, 0);
    pthread_mutex_lock(&t->c->faults.lock);
    t->done = 1;
    pthread_mutex_unlock(&t->c->faults.lock);
    return NULL;
}

/* A record in flight is not handed out, and a second request for it while wanted is refused. */
static void inflight_is_not_ready(void **state)
{
    (void)state;
    struct store_scene c;
    struct sl_err err = {0};
    pthread_t thread;
    open_scene(&c, &(struct pm_spec){.n_layers = 2, .n_experts = 8}, 4, (struct sl_store_opts){0});
    struct taker t = {&c, 0};
    gate(&c, 0);
    request(&c, 1, (int[]){0}, 1);
    fr_wait_at_gate(&c.faults, 1);
    assert_int_equal(pthread_create(&thread, NULL, take_expert_0, &t), 0);
    for (int i = 1; i < 8; i++) step(&c, 1, &i, 1); /* others come and go meanwhile */
    assert_int_equal(sl_store_request(c.s, 1, (int[]){0}, 1, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "expert 0 is asked for twice"));
    pthread_mutex_lock(&c.faults.lock);
    int done = t.done;
    pthread_mutex_unlock(&c.faults.lock);
    assert_int_equal(done, 0);
    fr_open_gate(&c.faults);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(t.done, 1);
    sl_store_put(c.s, 1, 0);
    assert_true(ss_stats(&c).stall_seconds > 0);
    ss_close(&c);
}

/* All misses of a request are under way together: as many reads at the gate as there are readers. */
static void misses_are_read_together(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, &(struct pm_spec){.n_layers = 2, .n_experts = 8}, 0,
               (struct sl_store_opts){.n_readers = 6});
    for (int x = 0; x < 8; x++) gate(&c, x);
    request(&c, 1, (int[]){0, 1, 2, 3, 4, 5, 6, 7}, 8);
    fr_wait_at_gate(&c.faults, 6);
    fr_open_gate(&c.faults);
    for (int x = 7; x >= 0; x--) take(&c, 1, x);
    for (int x = 0; x < 8; x++) sl_store_put(c.s, 1, x);
    ss_close(&c);
}

/* ------------------------------------------------------------------ errors */

static void expect_failure(int rc, const struct sl_err *err, int code, const char *w1,
                           const char *w2)
{
    if (rc != code || err->code != code || !strstr(err->text, w1) || !strstr(err->text, w2))
        fail_msg("code %d \"%s\", wanted %d with \"%s\" and \"%s\"", rc, err->text, code, w1, w2);
}

/* The bad one names layer, expert and file; the good ones arrive; asking again reads again. */
static void a_failed_read_is_named_and_can_be_tried_again(void **state)
{
    (void)state;
    struct store_scene c;
    struct sl_mat mat[SL_N_MATS];
    struct sl_err err = {0};
    open_scene(&c, &(struct pm_spec){.n_layers = 2, .n_experts = 8}, 4, (struct sl_store_opts){0});
    uint64_t at = c.p->banks[0].entries[3].offset;
    const struct {
        enum fr_kind kind;
        int64_t value;
        int code;
        const char *w2;
    } kinds[] = {{FR_ERRNO, EIO, SL_E_IO, "Input/output error"},
                 {FR_END, 0, SL_E_PACK, "0 of 12288 bytes"}};
    for (int k = 0; k < 2; k++)
        for (int any = 0; any < 2; any++) {
            fr_add(&c.faults, kinds[k].kind, at, at + 1, kinds[k].value, -1);
            uint64_t reads = ss_stats(&c).reads;
            request(&c, 1, (int[]){2, 3, 4}, 3);
            int failed = 0;
            for (int i = 0; i < 3; i++) {
                int expert = 2 + i;
                int rc = any ? sl_store_take_any(c.s, 1, &expert, mat, &err)
                             : sl_store_take(c.s, 1, expert, mat, &err);
                if (expert == 3) {
                    expect_failure(rc, &err, kinds[k].code,
                                   "experts/L001.bank: layer 1 expert 3: ", kinds[k].w2);
                    failed++;
                } else {
                    assert_int_equal(rc, 0);
                    expect_record(&c, 1, expert, mat);
                    sl_store_put(c.s, 1, expert);
                }
            }
            assert_int_equal(failed, 1);
            assert_true(ss_stats(&c).reads <= reads + 2); /* failed reads do not count */
            fr_clear(&c.faults);
            assert_false(hits(&c, 1, 3)); /* was not cached; reads well now */
            for (int x = 5; x < 8; x++) step(&c, 1, &x, 1);
            step(&c, 1, (int[]){0}, 1); /* 2, 3, 4 are out again */
        }
    ss_close(&c);
}

static void wrong_bytes_are_caught_by_the_crc(void **state)
{
    (void)state;
    struct sl_mat mat[SL_N_MATS];
    struct sl_err err = {0};
    for (int check = 0; check < 2; check++) {
        struct store_scene c;
        open_scene(&c, &(struct pm_spec){.n_layers = 2}, 0,
                   (struct sl_store_opts){.check_crc = check});
        const struct sl_bank_entry *e = &c.p->banks[0].entries[1];
        fr_add(&c.faults, FR_WRONG, e->offset, e->offset + 1, 0, 1);
        request(&c, 1, (int[]){0, 1}, 2);
        take(&c, 1, 0);
        int rc = sl_store_take(c.s, 1, 1, mat, &err);
        if (check) {
            char want[64];
            uint32_t bytes;
            uint8_t *r = pm_record(&c.m, 1, 1, &bytes);
            r[0] ^= 1;
            snprintf(want, sizeof want, "crc32 %08x, expected %08x", sl_crc32(0, r, bytes),
                     e->crc32);
            free(r);
            expect_failure(rc, &err, SL_E_PACK, "experts/L001.bank: layer 1 expert 1: ", want);
            assert_non_null(strstr(err.text, "verify"));
        } else {
            assert_int_equal(rc, 0); /* the control: nobody asked for a check */
            sl_store_put(c.s, 1, 1);
        }
        sl_store_put(c.s, 1, 0);
        ss_close(&c);
    }
}

static void short_and_interrupted_reads_give_whole_records(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, &(struct pm_spec){.n_layers = 3}, 0, (struct sl_store_opts){.check_crc = true});
    fr_add(&c.faults, FR_ERRNO, 0, UINT64_MAX, EINTR, 7);
    fr_add(&c.faults, FR_SHORT, 0, UINT64_MAX, 1000, -1);
    step(&c, 1, (int[]){0, 1, 2, 3, 4}, 5);
    fr_clear(&c.faults);
    fr_add(&c.faults, FR_SHORT, 0, UINT64_MAX, 4096, -1);
    step(&c, 2, (int[]){0, 1, 2, 3, 4}, 5);
    ss_close(&c);
}

static void a_bank_cut_while_open_is_an_error(void **state)
{
    (void)state;
    struct store_scene c;
    struct sl_mat mat[SL_N_MATS];
    struct sl_err err = {0};
    open_scene(&c, &(struct pm_spec){.n_layers = 2}, 0, (struct sl_store_opts){0});
    uint64_t at = c.p->banks[0].entries[4].offset;
    pm_truncate(pm_path(&c.m, "experts/L001.bank"), at + 5000);
    request(&c, 1, (int[]){4, 0}, 2);
    expect_failure(sl_store_take(c.s, 1, 4, mat, &err), &err, SL_E_PACK, "layer 1 expert 4",
                   "5000 of 12288 bytes");
    take(&c, 1, 0);
    sl_store_put(c.s, 1, 0);
    ss_close(&c);
}

static void wrong_requests_change_nothing(void **state)
{
    (void)state;
    struct store_scene c;
    struct sl_mat mat[SL_N_MATS];
    struct sl_err err = {0};
    int expert;
    open_scene(&c, &(struct pm_spec){.n_experts = 8}, 4, (struct sl_store_opts){0});
    assert_int_equal(sl_store_max_request(c.s), 4);
    static const struct {
        int layer, ids[6], n;
        const char *w1;
    } bad[] = {
        {0, {1}, 1, "no routed experts"},     {-1, {1}, 1, "no routed experts"},
        {4, {1}, 1, "no routed experts"},     {1, {0, 8}, 2, "expert 8 of 8"},
        {1, {0, -1}, 2, "expert -1 of 8"},    {1, {0, 1, 0}, 3, "expert 0 is asked for twice"},
        {1, {0, 1, 2, 3, 4}, 5, "at most 4"}, {1, {0}, -1, "at most 4"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_failure(sl_store_request(c.s, bad[i].layer, bad[i].ids, bad[i].n, &err), &err,
                       SL_E_ARG, "request", bad[i].w1);
    expect_failure(sl_store_take(c.s, 1, 0, mat, &err), &err, SL_E_ARG, "layer 1 expert 0", "not");
    expect_failure(sl_store_take(c.s, 9, 99, mat, &err), &err, SL_E_ARG, "layer 9", "not");
    expect_failure(sl_store_take_any(c.s, 1, &expert, mat, &err), &err, SL_E_ARG, "layer 1", "");
    assert_int_equal(ss_stats(&c).misses, 0);
    assert_int_equal(fr_reads(&c.faults), 0);
    request(&c, 1, NULL, 0); /* nothing asked, nothing owed */
    step(&c, 1, (int[]){0, 1, 2, 3}, 4);
    expect_failure(sl_store_take(c.s, 1, 0, mat, &err), &err, SL_E_ARG, "layer 1 expert 0", "not");
    ss_close(&c);
}

static void budgets_below_the_floor_are_refused(void **state)
{
    (void)state;
    struct pm_pack m;
    struct sl_store *s;
    struct sl_err err = {0};
    pm_make(&m, NULL); /* top 2: three slots at least */
    struct sl_pack *p = pm_open(&m);
    assert_int_equal(sl_store_floor_bytes(p), 3 * sl_store_slot_bytes(p));
    assert_int_equal(sl_store_resident_bytes(p), 15 * sl_store_slot_bytes(p));
    struct sl_store_opts o = {.slot_budget_bytes = sl_store_floor_bytes(p) - 1};
    expect_failure(sl_store_open(&s, p, &o, &err), &err, SL_E_BUDGET, "expert slots",
                   "needs at least 3 (36864 bytes)");
    assert_null(s);
    o.slot_budget_bytes++;
    assert_int_equal(sl_store_open(&s, p, &o, &err), 0);
    assert_int_equal(sl_store_max_request(s), 3);
    sl_store_close(s);
    /* More than all records is not used. */
    o.slot_budget_bytes = (uint64_t)1 << 40;
    assert_int_equal(sl_store_open(&s, p, &o, &err), 0);
    struct sl_store_stats st;
    sl_store_get_stats(s, &st);
    assert_int_equal(st.n_slots, 15);
    sl_store_close(s);
    assert_true(sl_store_table_bytes(p, 15) > sl_store_table_bytes(p, 3));
    o = (struct sl_store_opts){.evict = "magic"};
    expect_failure(sl_store_open(&s, p, &o, &err), &err, SL_E_ARG, "evict", "magic");
    o = (struct sl_store_opts){.piece_bytes = 5000};
    expect_failure(sl_store_open(&s, p, &o, &err), &err, SL_E_ARG, "piece", "5000");
    o = (struct sl_store_opts){.n_readers = 1000};
    expect_failure(sl_store_open(&s, p, &o, &err), &err, SL_E_ARG, "readers", "1000");
    sl_pack_close(p);
    pm_free(&m);
}

/* ------------------------------------------------------------------ cancel and close */

static void *open_gate_later(void *arg)
{
    struct store_scene *c = arg;
    fr_wait_at_gate(&c->faults, 2);
    fr_open_gate(&c->faults);
    return NULL;
}

/* Two reads have begun and wait, six have not: cancel waits for the two, forgets the six. */
static void cancel_leaves_a_usable_store(void **state)
{
    (void)state;
    struct store_scene c;
    pthread_t thread;
    open_scene(&c, &(struct pm_spec){.n_layers = 3, .n_experts = 8}, 8,
               (struct sl_store_opts){.n_readers = 2});
    for (int x = 0; x < 8; x++) gate(&c, x);
    request(&c, 1, (int[]){0, 1, 2, 3, 4, 5, 6, 7}, 8);
    assert_int_equal(pthread_create(&thread, NULL, open_gate_later, &c), 0);
    fr_wait_at_gate(&c.faults, 2);
    sl_store_cancel(c.s);
    assert_int_equal(pthread_join(thread, NULL), 0);
    /* Cancel may come before or after the readers took more from the queue: what was read is kept,
     * the rest is not there, and every slot can be had again. */
    uint64_t read = ss_stats(&c).reads;
    assert_true(read >= 2);
    fr_clear(&c.faults);
    uint64_t before = ss_stats(&c).hits;
    step(&c, 1, (int[]){0, 1, 2, 3, 4, 5, 6, 7}, 8);
    assert_int_equal(ss_stats(&c).hits - before, read);
    step(&c, 2, (int[]){0, 1, 2, 3, 4, 5, 6, 7}, 8);
    sl_store_cancel(c.s); /* nothing to cancel */
    step(&c, 1, (int[]){7, 6}, 2);
    ss_close(&c);
}

static void cancel_after_an_error_drops_the_rest(void **state)
{
    (void)state;
    struct store_scene c;
    struct sl_mat mat[SL_N_MATS];
    struct sl_err err = {0};
    open_scene(&c, &(struct pm_spec){.n_layers = 2, .n_experts = 8}, 4, (struct sl_store_opts){0});
    uint64_t at = c.p->banks[0].entries[1].offset;
    fr_add(&c.faults, FR_ERRNO, at, at + 1, EIO, -1);
    for (int round = 0; round < 3; round++) {
        request(&c, 1, (int[]){0, 1, 2, 3}, 4);
        take(&c, 1, 0);
        assert_int_equal(sl_store_take(c.s, 1, 1, mat, &err), SL_E_IO);
        sl_store_cancel(c.s);
        sl_store_put(c.s, 1, 0); /* what was taken is still ours to give back */
        step(&c, 1, (int[]){4, 5, 6, 7}, 4);
    }
    /* A failed record that nobody took is dropped too. */
    request(&c, 1, (int[]){1}, 1);
    sl_store_cancel(c.s);
    step(&c, 1, (int[]){4, 5, 6, 7}, 4);
    ss_close(&c);
}

static void close_while_reads_wait_does_not_hang(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, &(struct pm_spec){.n_layers = 2, .n_experts = 8}, 0,
               (struct sl_store_opts){.n_readers = 2});
    request(&c, 1, (int[]){0, 1, 2, 3, 4, 5, 6, 7}, 8);
    ss_close(&c);
}

/* ------------------------------------------------------------------ the kernel's word */

static bool process_read_bytes(uint64_t *bytes)
{
    char *text;
    size_t len;
    if (sl_read_file(&text, &len, "/proc/self/io", 1 << 16, SL_E_IO, NULL)) return false;
    const char *at = strstr(text, "\nread_bytes: ");
    *bytes = at ? strtoull(at + 13, NULL, 10) : 0;
    free(text);
    return at != NULL;
}

/* Where O_DIRECT is reported, the drive delivered what the store counted, once. Half as much again is
 * left for pages of the program itself that happen to be fetched meanwhile. */
static void counters_agree_with_the_kernel(void **state)
{
    (void)state;
    struct store_scene c;
    uint64_t before;
    uint64_t after;
    open_scene(&c, &(struct pm_spec){.n_experts = 40}, 0, (struct sl_store_opts){0});
    if (!ss_stats(&c).direct_io || !process_read_bytes(&before)) {
        ss_close(&c);
        print_message("SKIP no direct reads, or no I/O accounting, here\n");
        skip();
    }
    int ids[40];
    for (int x = 0; x < 40; x++) ids[x] = x;
    for (int l = 1; l < 4; l++) request(&c, l, ids, 40);
    for (int l = 1; l < 4; l++)
        for (int x = 0; x < 40; x++) take(&c, l, x);
    assert_true(process_read_bytes(&after));
    assert_true(after - before >= ss_stats(&c).bytes_read);
    assert_true(after - before < ss_stats(&c).bytes_read * 3 / 2);
    ss_close(&c);
}

/* ------------------------------------------------------------------ prefetch */

static void a_prefetch_is_found_by_the_request(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, &(struct pm_spec){.n_layers = 3, .n_experts = 8}, 8, (struct sl_store_opts){0});
    step(&c, 1, (int[]){0, 1}, 2);
    assert_int_equal(sl_store_prefetch(c.s, 2, (int[]){5, 6, 7}, 3), 3);
    assert_int_equal(sl_store_prefetch(c.s, 2, (int[]){6, 4, 5}, 3), 1); /* 5 and 6 are known */
    assert_int_equal(sl_store_prefetch(c.s, 1, (int[]){1}, 1), 0);       /* resident */
    assert_int_equal(sl_store_prefetch(c.s, 0, (int[]){1}, 1), 0);       /* no bank */
    assert_int_equal(sl_store_prefetch(c.s, 1, (int[]){-1, 8}, 2), 0);
    while (ss_stats(&c).reads < 6) nanosleep(&(struct timespec){0, 1000000}, NULL);
    request(&c, 2, (int[]){5, 3, 6}, 3);
    while (ss_stats(&c).reads < 7) nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_int_equal(sl_store_ready(c.s, 2), 3);
    assert_int_equal(sl_store_ready(c.s, 1), 0);
    for (int i = 0; i < 3; i++) take(&c, 2, (int[]){3, 5, 6}[i]);
    for (int i = 0; i < 3; i++) sl_store_put(c.s, 2, (int[]){3, 5, 6}[i]);
    struct sl_store_stats st = ss_stats(&c);
    assert_int_equal(st.prefetch_issued, 4);
    assert_int_equal(st.prefetch_used, 2);
    assert_int_equal(st.misses, 2 + 1);
    assert_int_equal(st.hits, 0); /* read for this very step: no reuse */
    assert_true(hits(&c, 2, 5));  /* now it is */
    /* 4 and 7 were read for nothing; that shows once they are gone. */
    assert_int_equal(st.prefetch_wasted, 0);
    step(&c, 1, (int[]){0, 1, 2, 3, 4, 5, 6, 7}, 8);
    assert_int_equal(ss_stats(&c).prefetch_wasted, 2);
    ss_close(&c);
}

/* One prefetch is under way and waits; the next ones must let a later demand pass. */
static void demand_overtakes_prefetch(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, &(struct pm_spec){.n_layers = 2, .n_experts = 8}, 8, (struct sl_store_opts){0});
    gate(&c, 0);
    assert_int_equal(sl_store_prefetch(c.s, 1, (int[]){0, 1, 2}, 3), 3);
    fr_wait_at_gate(&c.faults, 1);
    step(&c, 1, (int[]){4, 5, 2}, 3); /* 2 was queued: it is read now */
    assert_int_equal(ss_stats(&c).reads, 3);
    assert_int_equal(ss_stats(&c).misses, 3);
    assert_int_equal(ss_stats(&c).prefetch_dropped, 1);
    request(&c, 1, (int[]){0}, 1); /* on its way */
    assert_int_equal(ss_stats(&c).prefetch_used, 1);
    assert_int_equal(sl_store_ready(c.s, 1), 0);
    fr_open_gate(&c.faults);
    take(&c, 1, 0);
    sl_store_put(c.s, 1, 0);
    while (ss_stats(&c).reads < 5) nanosleep(&(struct timespec){0, 1000000}, NULL);
    step(&c, 1, (int[]){1}, 1);
    assert_int_equal(ss_stats(&c).prefetch_used, 2);
    ss_close(&c);
}

static void *open_gate_soon(void *arg)
{
    struct store_scene *c = arg;
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    fr_open_gate(&c->faults);
    return NULL;
}

/* Slots in use stay in use; slots of prefetches are there for demand, also while they are read. */
static void prefetch_takes_no_slot_that_is_needed(void **state)
{
    (void)state;
    struct store_scene c;
    struct sl_mat held[SL_N_MATS];
    struct sl_err err = {0};
    pthread_t thread;
    open_scene(&c, &(struct pm_spec){.n_layers = 3, .n_experts = 8}, 4, (struct sl_store_opts){0});
    request(&c, 1, (int[]){0, 1, 2}, 3);
    assert_int_equal(sl_store_take(c.s, 1, 0, held, &err), 0);
    const struct sl_bank_entry *e = &c.p->banks[1].entries[0];
    fr_add(&c.faults, FR_GATE, e->offset, e->offset + e->bytes, 0,
           -1); /* expert 0 of layer 2 too */
    assert_int_equal(sl_store_prefetch(c.s, 2, (int[]){0, 3, 4}, 3), 1);
    fr_wait_at_gate(&c.faults, 1);
    expect_record(&c, 1, 0, held);
    take(&c, 1, 1);
    take(&c, 1, 2);
    for (int x = 0; x < 3; x++) sl_store_put(c.s, 1, x);
    assert_int_equal(sl_store_prefetch(c.s, 2, (int[]){3, 4, 5, 6}, 4), 3);
    /* All four slots hold prefetches, one is being read: a request for four waits for it. */
    assert_int_equal(pthread_create(&thread, NULL, open_gate_soon, &c), 0);
    step(&c, 1, (int[]){4, 5, 6, 7}, 4);
    assert_int_equal(pthread_join(thread, NULL), 0);
    struct sl_store_stats st = ss_stats(&c);
    assert_int_equal(st.prefetch_issued, 4);
    assert_int_equal(st.prefetch_used, 0);
    assert_int_equal(st.prefetch_wasted + st.prefetch_dropped, 4);
    ss_close(&c);
}

static void a_failed_prefetch_leaves_no_trace(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, &(struct pm_spec){.n_layers = 2, .n_experts = 8}, 4, (struct sl_store_opts){0});
    uint64_t at = c.p->banks[0].entries[3].offset;
    fr_add(&c.faults, FR_END, at, at + 1, 0, 1);
    assert_int_equal(sl_store_prefetch(c.s, 1, (int[]){3, 2}, 2), 2);
    while (ss_stats(&c).reads < 1) nanosleep(&(struct timespec){0, 1000000}, NULL);
    step(&c, 1, (int[]){3, 2}, 2);
    assert_int_equal(ss_stats(&c).prefetch_used, 1);
    assert_int_equal(ss_stats(&c).misses, 1);
    sl_store_prefetch(c.s, 1, (int[]){5, 6, 7}, 3);
    sl_store_cancel(c.s);
    step(&c, 1, (int[]){4, 5, 6, 7}, 4);
    ss_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_record_is_right_and_stays),
        cmocka_unit_test(slot_sizes_of_any_number_of_pages),
        cmocka_unit_test(the_least_recently_asked_for_goes),
        cmocka_unit_test(bytes_read_fall_when_slots_grow),
        cmocka_unit_test(pinned_records_are_never_evicted),
        cmocka_unit_test(requests_of_consecutive_layers_stand_together),
        cmocka_unit_test(aliased_layers_have_slots_of_their_own),
        cmocka_unit_test(take_any_follows_arrival),
        cmocka_unit_test(inflight_is_not_ready),
        cmocka_unit_test(misses_are_read_together),
        cmocka_unit_test(a_failed_read_is_named_and_can_be_tried_again),
        cmocka_unit_test(wrong_bytes_are_caught_by_the_crc),
        cmocka_unit_test(short_and_interrupted_reads_give_whole_records),
        cmocka_unit_test(a_bank_cut_while_open_is_an_error),
        cmocka_unit_test(wrong_requests_change_nothing),
        cmocka_unit_test(budgets_below_the_floor_are_refused),
        cmocka_unit_test(cancel_leaves_a_usable_store),
        cmocka_unit_test(cancel_after_an_error_drops_the_rest),
        cmocka_unit_test(close_while_reads_wait_does_not_hang),
        cmocka_unit_test(counters_agree_with_the_kernel),
        cmocka_unit_test(a_prefetch_is_found_by_the_request),
        cmocka_unit_test(demand_overtakes_prefetch),
        cmocka_unit_test(prefetch_takes_no_slot_that_is_needed),
        cmocka_unit_test(a_failed_prefetch_leaves_no_trace),
    };
    int failed = cmocka_run_group_tests_name("pread", tests, NULL, NULL);
    way = SL_IO_URING;
    if (pm_can_read(way)) failed += cmocka_run_group_tests_name("uring", tests, NULL, NULL);
    return failed;
}
