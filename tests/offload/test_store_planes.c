/* Base planes alone: shorter reads, upgrades that bring the refinement only, views that show what was
 * asked for whatever the slot holds, and checksums of each part. */
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/offload/store_scene.h"

static enum sl_io way = SL_IO_PREAD;

/* p36 experts, every third w26. slots 0: all records. */
static void open_scene(struct store_scene *c, int n_experts, uint64_t slots)
{
    ss_open(
        c,
        &(struct pm_spec){.n_layers = 3, .n_experts = n_experts, .latent = 128, .two_planes = true},
        slots, (struct sl_store_opts){.io = way, .check_crc = true});
}

static const struct sl_bank_entry *entry(const struct store_scene *c, int layer, int expert)
{
    return &c->p->banks[c->p->bank_of[layer]].entries[expert];
}

static void request(struct store_scene *c, int layer, const int *ids, const bool *whole, int n)
{
    struct sl_err err = {0};
    if (sl_store_request_planes(c->s, layer, ids, whole, n, &err)) fail_msg("%s", err.text);
}

/* Takes an expert, holds what its views show to the record, and puts it back. */
static void take(struct store_scene *c, int layer, int expert, bool whole)
{
    struct sl_mat mat[SL_N_MATS];
    struct sl_err err = {0};
    uint32_t bytes;
    const struct sl_bank_entry *e = entry(c, layer, expert);
    if (sl_store_take(c->s, layer, expert, mat, &err)) fail_msg("%s", err.text);
    uint8_t *r = pm_record(&c->m, layer, expert, &bytes);
    const uint8_t *at = mat[SL_GATE].codes;
    assert_memory_equal(at, r, whole ? bytes : e->base_bytes);
    for (int m = 0; m < SL_N_MATS; m++) {
        if (e->n_planes == 1 || !whole) {
            assert_null(mat[m].fine_codes);
            assert_null(mat[m].fine_table);
        } else {
            assert_ptr_equal(mat[m].fine_codes, at + e->planes[m][1].codes);
            assert_ptr_equal(mat[m].fine_table, at + e->planes[m][1].table);
        }
    }
    free(r);
    sl_store_put(c->s, layer, expert);
}

static void step(struct store_scene *c, int layer, int expert, bool whole)
{
    request(c, layer, &expert, &whole, 1);
    take(c, layer, expert, whole);
}

static void each_part_is_read_once(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, 5, 0);
    const struct sl_bank_entry *e = entry(&c, 1, 0);
    assert_int_equal(e->n_planes, 2);
    assert_true(e->base_bytes < e->bytes);
    step(&c, 1, 0, false);
    assert_int_equal(ss_stats(&c).bytes_read, e->base_bytes);
    step(&c, 1, 0, false);
    assert_int_equal(ss_stats(&c).hits, 1);
    step(&c, 1, 0, true); /* the refinement alone */
    assert_int_equal(ss_stats(&c).bytes_read, e->bytes);
    assert_int_equal(ss_stats(&c).reads, 2);
    assert_int_equal(ss_stats(&c).upgrades, 1);
    assert_int_equal(ss_stats(&c).misses, 2);
    step(&c, 1, 0, true);
    step(&c, 1, 0, false); /* whole in its slot, and still the base reading */
    assert_int_equal(ss_stats(&c).hits, 3);
    assert_int_equal(ss_stats(&c).bytes_read, e->bytes);
    assert_int_equal(ss_stats(&c).bytes_used, 3 * (uint64_t)e->base_bytes + 2 * (uint64_t)e->bytes);
    /* One plane set: there is no half of it. */
    const struct sl_bank_entry *w = entry(&c, 1, 2);
    assert_int_equal(w->n_planes, 1);
    step(&c, 1, 2, false);
    step(&c, 1, 2, true);
    assert_int_equal(ss_stats(&c).bytes_read, (uint64_t)e->bytes + w->bytes);
    assert_int_equal(ss_stats(&c).upgrades, 1);
    ss_close(&c);
}

static void a_request_mixes_both(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, 5, 0);
    const int ids[] = {4, 0, 2, 1};
    const bool whole[] = {false, true, false, true};
    for (int round = 0; round < 2; round++) {
        request(&c, 2, ids, whole, 4);
        for (int i = 0; i < 4; i++) take(&c, 2, ids[i], whole[i]);
    }
    uint64_t bytes = entry(&c, 2, 4)->base_bytes;
    for (int i = 1; i < 4; i++) bytes += entry(&c, 2, ids[i])->bytes;
    assert_int_equal(ss_stats(&c).bytes_read, bytes);
    assert_int_equal(ss_stats(&c).hits, 4);
    ss_close(&c);
}

/* A fault in the refinement must neither pass nor cost the base planes. */
static void a_bad_refinement_is_named_and_the_base_stays(void **state)
{
    (void)state;
    struct store_scene c;
    struct sl_mat mat[SL_N_MATS];
    struct sl_err err = {0};
    open_scene(&c, 5, 0);
    const struct sl_bank_entry *e = entry(&c, 1, 1);
    const uint64_t fine = e->offset + e->base_bytes;
    static const struct {
        enum fr_kind kind;
        int64_t value;
        int code;
        const char *says;
    } cases[] = {{FR_WRONG, 0, SL_E_PACK, "crc32 "}, {FR_ERRNO, EACCES, SL_E_IO, "Permission"}};
    step(&c, 1, 1, false);
    for (size_t i = 0; i < 2; i++) {
        fr_clear(&c.faults);
        fr_add(&c.faults, cases[i].kind, fine, fine + 1, cases[i].value, -1);
        for (int again = 0; again < 2; again++) {
            request(&c, 1, (int[]){1}, NULL, 1);
            int rc = sl_store_take(c.s, 1, 1, mat, &err);
            assert_int_equal(rc, cases[i].code);
            if (!strstr(err.text, "experts/L001.bank: layer 1 expert 1: ") ||
                !strstr(err.text, cases[i].says))
                fail_msg("%s", err.text);
        }
        uint64_t hits = ss_stats(&c).hits;
        step(&c, 1, 1, false);
        assert_int_equal(ss_stats(&c).hits, hits + 1);
    }
    fr_clear(&c.faults);
    step(&c, 1, 1, true);
    /* And the base planes have a checksum of their own. */
    e = entry(&c, 1, 3);
    fr_add(&c.faults, FR_WRONG, e->offset, e->offset + 1, 0, 1);
    request(&c, 1, (int[]){3}, (bool[]){false}, 1);
    assert_int_equal(sl_store_take(c.s, 1, 3, mat, &err), SL_E_PACK);
    assert_non_null(strstr(err.text, "crc32 "));
    step(&c, 1, 3, false);
    ss_close(&c);
}

/* More is asked for while a prefetch of the base planes is on its way. */
static void a_request_adds_to_a_prefetch(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, 5, 0);
    const struct sl_bank_entry *e = entry(&c, 1, 0);
    fr_add(&c.faults, FR_GATE, e->offset, e->offset + 1, 0, -1);
    assert_int_equal(sl_store_prefetch_planes(c.s, 1, (int[]){0, 1}, 2, 0), 2);
    fr_wait_at_gate(&c.faults, 1);
    request(&c, 1, (int[]){0, 1}, NULL, 2); /* one begun, one not */
    fr_open_gate(&c.faults);
    take(&c, 1, 0, true);
    take(&c, 1, 1, true);
    assert_int_equal(ss_stats(&c).bytes_read, (uint64_t)e->bytes + entry(&c, 1, 1)->bytes);
    assert_int_equal(ss_stats(&c).upgrades, 1);
    assert_int_equal(ss_stats(&c).prefetch_used, 1);
    ss_close(&c);
}

static void cancel_keeps_what_was_there(void **state)
{
    (void)state;
    struct store_scene c;
    open_scene(&c, 5, 0);
    for (int x = 0; x < 5; x++) step(&c, 1, x, false);
    const struct sl_bank_entry *e = entry(&c, 1, 0);
    fr_add(&c.faults, FR_ERRNO, e->offset + e->base_bytes, e->offset + e->base_bytes + 1, EACCES,
           -1);
    request(&c, 1, (int[]){0, 1, 2, 3, 4}, NULL, 5);
    sl_store_cancel(c.s);
    fr_clear(&c.faults);
    uint64_t misses = ss_stats(&c).misses;
    for (int x = 0; x < 5; x++) step(&c, 1, x, false);
    assert_int_equal(ss_stats(&c).misses, misses);
    for (int x = 0; x < 5; x++) step(&c, 1, x, true);
    ss_close(&c);
}

static unsigned next(unsigned *seed)
{
    *seed = *seed * 1103515245u + 12345u;
    return *seed >> 16;
}

/* Few slots, requests of every kind, reads that fail at random once: bytes and views stay right. */
static void random_steps(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 3; round++) {
        struct store_scene c;
        unsigned seed = 11 + round;
        open_scene(&c, 9, 4 + round);
        c.faults.seed = seed;
        c.faults.permille_short = 100;
        c.faults.permille_intr = 50;
        c.faults.max_delay_us = 30;
        for (int i = 0; i < 400; i++) {
            int layer = 1 + (int)(next(&seed) % 2);
            int n = 1 + (int)(next(&seed) % 4);
            int first = (int)(next(&seed) % 9);
            int ids[4];
            bool whole[4];
            for (int k = 0; k < n; k++) {
                ids[k] = (first + 2 * k) % 9;
                whole[k] = next(&seed) & 1;
            }
            if (next(&seed) % 3 == 0)
                sl_store_prefetch_planes(c.s, 3 - layer, ids, n, (int)(next(&seed) % 3));
            request(&c, layer, ids, whole, n);
            if (next(&seed) % 16 == 0)
                sl_store_cancel(c.s);
            else
                for (int k = 0; k < n; k++) take(&c, layer, ids[k], whole[k]);
        }
        assert_true(ss_stats(&c).upgrades > 0);
        ss_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_part_is_read_once),
        cmocka_unit_test(a_request_mixes_both),
        cmocka_unit_test(a_bad_refinement_is_named_and_the_base_stays),
        cmocka_unit_test(a_request_adds_to_a_prefetch),
        cmocka_unit_test(cancel_keeps_what_was_there),
        cmocka_unit_test(random_steps),
    };
    int failed = cmocka_run_group_tests_name("pread", tests, NULL, NULL);
    way = SL_IO_URING;
    if (pm_can_read(way)) failed += cmocka_run_group_tests_name("uring", tests, NULL, NULL);
    return failed;
}
