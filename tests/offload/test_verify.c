/* Full verification: sound packs pass, any changed byte is named, padding included, in the same words
 * and order for every number of threads. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/pool.h"
#include "tests/offload/pack_maker.h"

struct lines {
    char text[32][256];
    int n;
};

static void keep(void *ctx, const char *line)
{
    struct lines *l = ctx;
    assert_true(l->n < 32);
    snprintf(l->text[l->n++], sizeof l->text[0], "%s", line);
}

static int verify(const struct pm_pack *m, int threads, struct lines *l,
                  struct sl_verify_report *report, struct sl_err *err)
{
    struct sl_pack *p = pm_open(m);
    struct sl_pool *pool = NULL;
    if (threads) assert_int_equal(sl_pool_open(&pool, threads, err), 0);
    if (l) l->n = 0;
    int rc = sl_pack_verify(p, pool, l ? keep : NULL, l, report, err);
    sl_pool_close(pool);
    sl_pack_close(p);
    return rc;
}

static void sound_packs_pass(void **state)
{
    (void)state;
    static const struct pm_spec specs[] = {
        {.vision = true},     {.n_layers = 6, .alias_banks = true, .alias_trunk = true},
        {.big = true},        {.n_layers = 2, .n_experts = 40, .latent = 32, .width = 32},
        {.two_planes = true},
    };
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        struct pm_pack m;
        struct lines l;
        struct sl_err err = {0};
        pm_make(&m, &specs[i]);
        struct sl_pack *p = pm_open(&m);
        /* Everything but headers and indexes, each byte once. */
        uint64_t bytes = p->trunk_bytes + p->vision_bytes;
        uint64_t records = 0;
        for (int b = 0; b < p->n_banks; b++) {
            bytes += p->banks[b].file_bytes - sl_bank_first_record(p->banks[b].n_experts);
            records += p->banks[b].n_experts;
        }
        for (int threads = 0; threads < 5; threads++) {
            struct sl_verify_report r;
            if (verify(&m, threads, &l, &r, &err)) fail_msg("%s", err.text);
            assert_int_equal(l.n, 0);
            assert_int_equal(r.faults, 0);
            assert_int_equal(r.bytes_read, bytes);
            assert_int_equal(r.records, records);
            uint64_t distinct = specs[i].alias_trunk ? 2 * 7 + 3 : (uint64_t)p->n_tensors;
            assert_int_equal(r.tensors, distinct + (uint64_t)p->n_vision);
        }
        sl_pack_close(p);
        pm_free(&m);
    }
}

/* The line that a record with a changed byte must give, from zlib and the file alone. */
static void record_line(char out[256], const char *path, const char *label, int expert)
{
    struct sl_bank_header h;
    struct sl_bank_entry *index;
    size_t len;
    pm_read_index(path, &h, &index);
    uint8_t *file = pm_read(path, &len);
    const struct sl_bank_entry *e = &index[expert];
    snprintf(out, 256, "%s: expert %d: crc32 %08x, expected %08x", label, expert,
             sl_crc32(0, file + e->offset, e->bytes), e->crc32);
    free(file);
    free(index);
}

/* Each plane set of a record is checked by itself; the index holds a sum for the base and one for all. */
static void plane_sets_are_told_apart(void **state)
{
    (void)state;
    struct pm_pack m;
    struct lines l;
    struct sl_verify_report r;
    struct sl_err err = {0};
    pm_make(&m, &(struct pm_spec){.two_planes = true});
    struct sl_pack *p = pm_open(&m);
    const struct sl_bank_entry *e = p->banks[0].entries;
    pm_flip(pm_path(&m, "experts/L001.bank"), e[0].offset, 1);
    pm_flip(pm_path(&m, "experts/L001.bank"), e[3].offset + e[3].base_bytes, 1);
    sl_pack_close(p);
    assert_int_equal(verify(&m, 2, &l, &r, &err), SL_E_PACK);
    assert_int_equal(l.n, 2);
    assert_non_null(strstr(l.text[0], "experts/L001.bank: expert 0: crc32 "));
    assert_non_null(strstr(l.text[1], "experts/L001.bank: expert 3, refinement: crc32 "));
    pm_free(&m);
}

static void each_kind_of_fault_is_named_in_order(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, &(struct pm_spec){.vision = true});
    struct sl_pack *p = pm_open(&m);
    const char *name = "model.layers.2.self_attn.q_proj.weight";
    const struct sl_tensor *t = sl_pack_find(p, name);
    const struct sl_tensor *v = sl_pack_find_vision(p, "mm_projector.proj.0.weight");
    uint64_t pad = t->offset + t->bytes + 5; /* between two tensors */
    uint64_t end = p->trunk_bytes - 1;
    uint64_t rec1 = p->banks[1].entries[1].offset;
    uint64_t rec4 = p->banks[1].entries[4].offset + p->banks[1].entries[4].bytes - 1; /* padding */
    pm_flip(pm_path(&m, "trunk.bin"), t->offset + t->bytes - 1, 1);
    pm_flip(pm_path(&m, "trunk.bin"), pad, 0x80);
    pm_flip(pm_path(&m, "trunk.bin"), end, 1);
    pm_flip(pm_path(&m, "vision.bin"), v->offset, 1);
    pm_flip(pm_path(&m, "experts/L002.bank"), rec1, 1);
    pm_flip(pm_path(&m, "experts/L002.bank"), rec4, 1);
    char want[6][256];
    size_t len;
    uint8_t *trunk = pm_read(pm_path(&m, "trunk.bin"), &len);
    uint8_t *vision = pm_read(pm_path(&m, "vision.bin"), &len);
    snprintf(want[0], 256, "trunk.bin: %s: crc32 %08x, expected %08x", name,
             sl_crc32(0, trunk + t->offset, t->bytes), t->crc32);
    snprintf(want[1], 256, "trunk.bin: padding: the byte at offset %llu is not zero",
             (unsigned long long)pad);
    snprintf(want[2], 256, "trunk.bin: padding: the byte at offset %llu is not zero",
             (unsigned long long)end);
    snprintf(want[3], 256, "vision.bin: mm_projector.proj.0.weight: crc32 %08x, expected %08x",
             sl_crc32(0, vision + v->offset, v->bytes), v->crc32);
    record_line(want[4], pm_path(&m, "experts/L002.bank"), "experts/L002.bank", 1);
    record_line(want[5], pm_path(&m, "experts/L002.bank"), "experts/L002.bank", 4);
    free(trunk);
    free(vision);
    for (int threads = 0; threads < 5; threads++) {
        struct lines l;
        struct sl_err err = {0};
        struct sl_verify_report r;
        assert_int_equal(verify(&m, threads, &l, &r, &err), SL_E_PACK);
        assert_int_equal(r.faults, 6);
        assert_int_equal(l.n, 6);
        for (int i = 0; i < 6; i++) assert_string_equal(l.text[i], want[i]);
        assert_string_equal(err.text, want[0]);
        /* Without a listener the first one is enough. */
        assert_int_equal(verify(&m, threads, NULL, &r, &err), SL_E_PACK);
        assert_int_equal(r.faults, 1);
        assert_string_equal(err.text, want[0]);
    }
    sl_pack_close(p);
    pm_free(&m);
}

/* Any byte of any file: open refuses, or verification names exactly one fault. */
static void no_byte_escapes(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, &(struct pm_spec){.n_layers = 2, .n_experts = 2, .top_k = 1, .vision = true});
    static const char *const files[] = {"trunk.bin", "vision.bin", "experts/L001.bank"};
    for (int f = 0; f < 3; f++) {
        char path[600];
        snprintf(path, sizeof path, "%s", pm_path(&m, files[f]));
        uint64_t bytes = pm_size(path);
        for (uint64_t at = 0; at < bytes; at += 1 + at * 7 % 997) {
            struct sl_pack *p;
            struct lines l = {.n = 0};
            pm_flip(path, at, (uint8_t)(1u << at % 8));
            if (!sl_pack_open(&p, m.dir, NULL, 0, NULL)) {
                struct sl_err err;
                assert_int_equal(sl_pack_verify(p, NULL, keep, &l, NULL, &err), SL_E_PACK);
                if (l.n != 1)
                    fail_msg("%s: byte %llu: %d faults", path, (unsigned long long)at, l.n);
                sl_pack_close(p);
            }
            pm_flip(path, at, (uint8_t)(1u << at % 8));
        }
    }
    struct sl_err err = {0};
    assert_int_equal(verify(&m, 0, NULL, NULL, &err), 0);
    pm_free(&m);
}

/* The crc of a tensor of several pieces is joined from theirs. */
static void a_byte_in_the_last_piece_is_found(void **state)
{
    (void)state;
    struct pm_pack m;
    struct lines l;
    struct sl_err err = {0};
    struct sl_verify_report r;
    pm_make(&m, &(struct pm_spec){.big = true});
    struct sl_pack *p = pm_open(&m);
    const struct sl_tensor *t = sl_pack_find(p, "model.big.weight");
    pm_flip(pm_path(&m, "trunk.bin"), t->offset + t->bytes - 1, 0x40);
    assert_int_equal(verify(&m, 2, &l, &r, &err), SL_E_PACK);
    assert_int_equal(l.n, 1);
    assert_non_null(strstr(l.text[0], "trunk.bin: model.big.weight: crc32 "));
    sl_pack_close(p);
    pm_free(&m);
}

static void a_file_cut_after_open_is_named(void **state)
{
    (void)state;
    struct pm_pack m;
    struct lines l = {.n = 0};
    struct sl_err err = {0};
    struct sl_verify_report r;
    pm_make(&m, NULL);
    struct sl_pack *p = pm_open(&m);
    uint64_t cut = p->banks[2].entries[3].offset + 100;
    pm_truncate(pm_path(&m, "experts/L003.bank"), cut);
    assert_int_equal(sl_pack_verify(p, NULL, keep, &l, &r, &err), SL_E_PACK);
    assert_int_equal(l.n, 2);
    char want[128];
    snprintf(want, sizeof want, "experts/L003.bank: expert 3: the file ends at offset %llu",
             (unsigned long long)cut);
    assert_string_equal(l.text[0], want);
    assert_non_null(strstr(l.text[1], "experts/L003.bank: expert 4: "));
    sl_pack_close(p);
    pm_free(&m);
}

static void an_interrupt_is_heard(void **state)
{
    (void)state;
    struct pm_pack m;
    struct lines l;
    struct sl_err err = {0};
    struct sl_verify_report r;
    pm_make(&m, NULL);
    sl_interrupt();
    assert_int_equal(verify(&m, 2, &l, &r, &err), SL_E_INTR);
    sl_interrupt_clear();
    assert_int_equal(l.n, 0);
    assert_int_equal(verify(&m, 2, &l, &r, &err), 0);
    pm_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_packs_pass),
        cmocka_unit_test(plane_sets_are_told_apart),
        cmocka_unit_test(each_kind_of_fault_is_named_in_order),
        cmocka_unit_test(no_byte_escapes),
        cmocka_unit_test(a_byte_in_the_last_piece_is_found),
        cmocka_unit_test(a_file_cut_after_open_is_named),
        cmocka_unit_test(an_interrupt_is_heard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
