/* Every byte and bit of the small structures of a pack in turn: open succeeds or refuses in one clean
 * line, whatever is there. Run under the sanitizers this is a fuzzer without luck. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/offload/pack_maker.h"

static const struct pm_spec tiny = {
    .n_layers = 2, .n_experts = 3, .top_k = 1, .latent = 32, .width = 32};

/* What opens must be usable: every range it promises lies inside its file. */
static bool opens(const struct pm_pack *m)
{
    struct sl_pack *p = NULL;
    struct sl_err err = {0};
    int rc = sl_pack_open(&p, m->dir, NULL, 0, &err);
    if (!rc) {
        for (int i = 0; i < p->n_tensors; i++)
            assert_true(p->tensors[i].offset + p->tensors[i].bytes <= p->trunk_bytes);
        for (int b = 0; b < p->n_banks; b++)
            for (uint32_t x = 0; x < p->banks[b].n_experts; x++)
                assert_true(p->banks[b].entries[x].offset + p->banks[b].entries[x].bytes <=
                            p->banks[b].file_bytes);
        sl_pack_close(p);
        return true;
    }
    assert_null(p);
    assert_int_equal(rc, SL_E_PACK);
    assert_int_equal(err.code, rc);
    assert_true(err.text[0] != '\0');
    assert_null(strchr(err.text, '\n'));
    return false;
}

static void any_byte_of_the_manifest_may_change(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, &tiny);
    char path[600];
    snprintf(path, sizeof path, "%s", pm_path(&m, "pack.json"));
    uint64_t len = pm_size(path);
    uint64_t opened = 0;
    for (uint64_t i = 0; i < len; i++) {
        static const uint8_t masks[] = {0x01, 0x80, 0x10};
        for (int j = 0; j < 3; j++) {
            pm_flip(path, i, masks[j]);
            opened += opens(&m);
            pm_flip(path, i, masks[j]);
        }
    }
    /* A digit of a crc or of the tool's version may change; most other changes break something. */
    assert_true(opened > 0 && opened < len * 3 / 2);
    assert_true(opens(&m));
    pm_free(&m);
}

static void any_byte_of_header_and_index_is_guarded(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, &tiny);
    char path[600];
    snprintf(path, sizeof path, "%s", pm_path(&m, pm_bank_name(&m, 1)));
    for (uint64_t i = 0; i < sl_bank_first_record(3); i++) {
        uint8_t mask = (uint8_t)(1u << i % 8);
        pm_flip(path, i, mask);
        if (opens(&m)) fail_msg("byte %llu of the bank is not guarded", (unsigned long long)i);
        pm_flip(path, i, mask);
    }
    assert_true(opens(&m));
    pm_free(&m);
}

/* The same behind correct crcs: of an entry only the record's crc is free to be anything. */
static void any_bit_of_an_index_is_checked(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, &tiny);
    char path[600];
    struct sl_bank_header h;
    struct sl_bank_entry *index;
    snprintf(path, sizeof path, "%s", pm_path(&m, pm_bank_name(&m, 1)));
    pm_read_index(path, &h, &index);
    for (size_t i = 0; i < 3 * sizeof *index * 8; i++) {
        uint8_t *b = (uint8_t *)index + i / 8;
        size_t field = i / 8 % sizeof *index;
        bool is_crc = field >= offsetof(struct sl_bank_entry, crc32) &&
                      field < offsetof(struct sl_bank_entry, crc32) + 4;
        *b ^= (uint8_t)(1u << i % 8);
        pm_write_index(path, &h, index, 3);
        if (opens(&m) != is_crc) fail_msg("bit %zu of byte %zu of an entry", i % 8, field);
        *b ^= (uint8_t)(1u << i % 8);
    }
    pm_write_index(path, &h, index, 3);
    assert_true(opens(&m));
    free(index);
    pm_free(&m);
}

static void any_bit_of_a_header_is_checked(void **state)
{
    (void)state;
    struct pm_pack m;
    pm_make(&m, &tiny);
    char path[600];
    struct sl_bank_header h;
    struct sl_bank_entry *index;
    snprintf(path, sizeof path, "%s", pm_path(&m, pm_bank_name(&m, 1)));
    pm_read_index(path, &h, &index);
    for (size_t i = 0; i < offsetof(struct sl_bank_header, header_crc32) * 8; i++) {
        size_t field = i / 8;
        /* The writer of the test makes this one anew. */
        if (field >= offsetof(struct sl_bank_header, index_crc32) &&
            field < offsetof(struct sl_bank_header, index_crc32) + 4)
            continue;
        uint8_t *b = (uint8_t *)&h + field;
        *b ^= (uint8_t)(1u << i % 8);
        pm_write_index(path, &h, index, 3);
        if (opens(&m)) fail_msg("bit %zu of byte %zu of the header", i % 8, field);
        *b ^= (uint8_t)(1u << i % 8);
    }
    pm_write_index(path, &h, index, 3);
    assert_true(opens(&m));
    free(index);
    pm_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_byte_of_the_manifest_may_change),
        cmocka_unit_test(any_byte_of_header_and_index_is_guarded),
        cmocka_unit_test(any_bit_of_an_index_is_checked),
        cmocka_unit_test(any_bit_of_a_header_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
