/* Experts read whole for a token's first ranks and by their base planes for the others: a function of
 * the tokens and the plan alone, and the refinement of what is read by base planes is never touched.
 *
 * The yardstick is one token at a time on one thread with a slot for every record; chunks, threads,
 * slots and ways of reading must give the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "tests/golden/golden_engine.h"

#define N_TOKENS 24
#define TOP_K    4

static char pack[SL_PATH_MAX];
static int32_t ids[N_TOKENS];
static int plans[5][SL_MAX_LAYERS]; /* nothing whole, all, two in between, and one by layer */

static int set_up(void **state)
{
    (void)state;
    char *bytes;
    size_t len;
    golden_pack(pack, "models/k3-nano", SL_FMT_P36, SL_FMT_BF16);
    assert_int_equal(sl_read_file(&bytes, &len, "models/k3-nano/golden/valid-ids.u16", 1 << 24,
                                  SL_E_SOURCE, NULL),
                     0);
    for (int t = 0; t < N_TOKENS; t++) ids[t] = sl_le16(bytes + 2 * t);
    free(bytes);
    for (int l = 0; l < SL_MAX_LAYERS; l++) {
        plans[1][l] = TOP_K;
        plans[2][l] = 1;
        plans[3][l] = 3;
        plans[4][l] = l % (TOP_K + 1);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    golden_remove_packs();
    return 0;
}

/* Logits of all tokens; bytes read through *read. */
static float *logits(const int *ranks, const struct golden_opts *o, size_t *bytes, uint64_t *read)
{
    struct golden_engine e;
    golden_open(&e, pack, o);
    sl_graph_set_ranks(e.graph, ranks);
    *bytes = sizeof(float) * N_TOKENS * (size_t)golden_vocab(&e);
    float *out = malloc(*bytes);
    assert_non_null(out);
    golden_feed(&e, ids, N_TOKENS, out);
    struct sl_store_stats st;
    sl_store_get_stats(e.store, &st);
    if (read) *read = st.bytes_read;
    golden_close(&e);
    return out;
}

static void nothing_but_the_plan_counts(void **state)
{
    (void)state;
    static const struct golden_opts ways[] = {
        {.chunk = 24, .threads = 2},
        {.chunk = 1, .slots = TOP_K + 1},
        {.chunk = 33, .threads = 3, .slots = TOP_K + 1},
        {.chunk = 12, .threads = 2, .slots = 9, .io = SL_IO_PREAD},
        {.chunk = 5, .slots = 20, .io = SL_IO_MMAP},
        {.chunk = 16, .reference = true},
    };
    float *first = NULL;
    for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
        size_t bytes, n;
        float *want = logits(plans[k], &(struct golden_opts){.chunk = 1}, &bytes, NULL);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            float *got = logits(plans[k], &ways[i], &n, NULL);
            assert_int_equal(n, bytes);
            if (memcmp(got, want, bytes) != 0) fail_msg("plan %zu, way %zu: other bits", k, i);
            free(got);
        }
        /* Plans are told apart: a test of equal bits must be able to fail. */
        if (first) assert_memory_not_equal(first, want, bytes);
        if (!first)
            first = want;
        else
            free(want);
    }
    free(first);
}

static void no_plan_is_all_whole(void **state)
{
    (void)state;
    size_t bytes;
    float *a = logits(NULL, &(struct golden_opts){.chunk = 16}, &bytes, NULL);
    float *b = logits(plans[1], &(struct golden_opts){.chunk = 16}, &bytes, NULL);
    assert_memory_equal(a, b, bytes);
    free(a);
    free(b);
}

static void fewer_ranks_read_less(void **state)
{
    (void)state;
    uint64_t read[4];
    size_t bytes;
    static const int order[4] = {0, 2, 3, 1};
    for (int i = 0; i < 4; i++)
        free(logits(plans[order[i]], &(struct golden_opts){.chunk = 1, .slots = TOP_K + 1}, &bytes,
                    &read[i]));
    for (int i = 1; i < 4; i++) assert_true(read[i] > read[i - 1]);
}

/* With every refinement in the banks damaged, reading by base planes gives the bits it gave. */
static void refinements_are_not_touched(void **state)
{
    (void)state;
    struct sl_err err = {0};
    size_t bytes, n;
    float *want = logits(plans[0], &(struct golden_opts){.chunk = 16}, &bytes, NULL);
    struct sl_pack *p;
    assert_int_equal(sl_pack_open(&p, pack, NULL, 0, &err), 0);
    for (int b = 0; b < p->n_banks; b++) {
        FILE *f = fopen(p->banks[b].path, "r+");
        assert_non_null(f);
        for (uint32_t x = 0; x < p->banks[b].n_experts; x++) {
            const struct sl_bank_entry *e = &p->banks[b].entries[x];
            assert_int_equal(fseek(f, (long)(e->offset + e->base_bytes), SEEK_SET), 0);
            int c = fgetc(f);
            assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
            assert_true(fputc(c ^ 1, f) != EOF);
        }
        assert_int_equal(fclose(f), 0);
    }
    sl_pack_close(p);
    float *got = logits(plans[0], &(struct golden_opts){.chunk = 16}, &n, NULL);
    assert_memory_equal(got, want, bytes);
    struct golden_engine e;
    golden_open(&e, pack, &(struct golden_opts){.chunk = 16});
    assert_int_equal(sl_graph_feed(e.graph, e.state, ids, 16, NULL, 0, &err), SL_E_PACK);
    golden_close(&e);
    free(got);
    free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_but_the_plan_counts), cmocka_unit_test(no_plan_is_all_whole),
        cmocka_unit_test(fewer_ranks_read_less), cmocka_unit_test(refinements_are_not_touched)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
