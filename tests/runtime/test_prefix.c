/* Going on from stored states: the bits of a fresh prefill, and only the tokens that are new.
 *
 * Blocks are 16 ids here, so that a prompt of a hundred has several; k3-nano through the public interface
 * on its exact path, where equal means equal bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/size.h"
#include "runtime/prefix_cache.h"
#include "runtime/sluice.h"
#include "tests/golden/golden_engine.h"
#include "tests/runtime/tokenizer_case.h"

enum { VOCAB = 4096, BLOCK = 16, CTX = 256, MEMORY = 8 << 20 };

static char pack_path[SL_PATH_MAX];
static char folder[] = "build/prefix-XXXXXX";
static int32_t text[4096]; /* real ids */
static sluice_pack *plain_pack;
static sluice_session *fresh; /* without a store: what every answer is compared with */

static void no_error(int rc, const sluice_error *e)
{
    if (rc) fail_msg("code %d: %s", rc, e->text);
}

struct engine {
    sluice_pack *p;
    sluice_session *s;
};

static void open_engine(struct engine *e, uint64_t memory, const char *dir, uint64_t disk)
{
    const sluice_options o = {.ctx = CTX,
                              .exact = 1,
                              .chunk = 64,
                              .threads = 1,
                              .prefix_bytes = memory,
                              .prefix_dir = dir,
                              .prefix_disk_bytes = disk,
                              .prefix_block = BLOCK};
    sluice_error err = {0};
    no_error(sluice_pack_open(&e->p, pack_path, &o, &err), &err);
    no_error(sluice_session_open(&e->s, e->p, NULL, &err), &err);
}

static void close_engine(struct engine *e)
{
    sluice_session_close(e->s);
    sluice_pack_close(e->p);
}

static int set_up(void **state)
{
    (void)state;
    char *ids;
    size_t n;
    struct sl_err err = {0};
    golden_pack(pack_path, "models/k3-nano", SL_FMT_M4, SL_FMT_BF16);
    if (sl_read_file(&ids, &n, "models/k3-nano/golden/valid-ids.u16", 1 << 20, SL_E_SOURCE, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < 4096; i++) text[i] = sl_le16(ids + 2 * i);
    free(ids);
    const sluice_options o = {.ctx = CTX, .chunk = 48, .threads = 1, .exact = 1};
    sluice_error e = {0};
    no_error(sluice_pack_open(&plain_pack, pack_path, &o, &e), &e);
    no_error(sluice_session_open(&fresh, plain_pack, NULL, &e), &e);
    return mkdtemp(folder) == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    sluice_session_close(fresh);
    sluice_pack_close(plain_pack);
    sl_remove_tree(folder);
    golden_remove_packs();
    return 0;
}

static const char *path_in(const char *name)
{
    static char path[SL_PATH_MAX];
    assert_true(sl_path_join(path, folder, name));
    return path;
}

/* Asks for ids and compares with a fresh prefill of the same; what was cached. */
static size_t prompt(struct engine *e, const int32_t *ids, size_t n, const size_t *marks,
                     size_t n_marks)
{
    sluice_error err = {0};
    sluice_stats before;
    sluice_stats after;
    size_t cached = n + 1;
    sluice_get_stats(e->s, &before);
    no_error(sluice_prompt(e->s, ids, n, marks, n_marks, &cached, &err), &err);
    sluice_get_stats(e->s, &after);
    assert_true(cached <= n);
    assert_int_equal(after.prefill_tokens + after.decode_tokens,
                     before.prefill_tokens + before.decode_tokens + (n - cached));
    assert_int_equal(sluice_position(e->s), n);
    assert_memory_equal(sluice_ids(e->s), ids, n * sizeof *ids);
    sluice_session_reset(fresh);
    no_error(sluice_feed(fresh, ids, n, &err), &err);
    assert_memory_equal(sluice_logits(e->s), sluice_logits(fresh), VOCAB * sizeof(float));
    return cached;
}

static void keep(struct engine *e)
{
    sluice_error err = {0};
    no_error(sluice_prefix_keep(e->s, &err), &err);
}

static sluice_prefix_stats stats(const struct engine *e)
{
    sluice_prefix_stats s;
    sluice_get_prefix_stats(e->s, &s);
    assert_true(s.memory_used <= s.memory_bytes);
    assert_true(s.disk_used <= s.disk_bytes);
    return s;
}

/* A system prompt of 37 ids, a question up to 61, an answer of 20, the next question. */
static void test_second_turn(void **state)
{
    (void)state;
    struct engine e;
    int32_t ids[160];
    const size_t system = 37;
    size_t n = 61;
    sluice_error err = {0};
    open_engine(&e, MEMORY, NULL, 0);
    memcpy(ids, text, sizeof ids);
    assert_int_equal(prompt(&e, ids, n, &system, 1), 0);
    for (int i = 0; i < 20; i++) {
        const sluice_sampling how = {.temperature = 0, .ignore_eos = 1};
        no_error(sluice_next(e.s, &how, &ids[n++], &err), &err);
    }
    keep(&e);
    memcpy(ids + n, text + 1000, 30 * sizeof *ids);

    /* the live session goes on; then the store does, after a reset */
    const size_t marks[] = {system, n};
    assert_int_equal(prompt(&e, ids, n + 30, marks, 2), n);
    sluice_session_reset(e.s);
    assert_int_equal(prompt(&e, ids, n + 30, marks, 2), n);
    /* the very same prompt again: all of it is there */
    assert_int_equal(prompt(&e, ids, n + 30, marks, 2), n + 30);

    /* an edit of the question goes back to the system prompt, one of that to the start */
    ids[50] ^= 1;
    assert_int_equal(prompt(&e, ids, n + 30, marks, 2), system);
    ids[50] ^= 1;
    ids[20] ^= 1;
    assert_int_equal(prompt(&e, ids, n + 30, marks, 2), 0);
    ids[20] ^= 1;
    /* an edit of the answer's last id, of the next question */
    ids[n - 1] ^= 1;
    assert_int_equal(prompt(&e, ids, n + 30, NULL, 0), system);
    ids[n - 1] ^= 1;
    ids[n] ^= 1;
    assert_int_equal(prompt(&e, ids, n + 30, NULL, 0), n);
    /* a prompt that ends where a state was stored needs one id more than that state */
    assert_int_equal(prompt(&e, ids, n, NULL, 0), system);
    const sluice_prefix_stats s = stats(&e);
    assert_true(s.hits >= 5 && s.restored_tokens >= 3 * n);
    close_engine(&e);
}

/* Two conversations behind one system prompt share its rows. */
static void test_shared_rows(void **state)
{
    (void)state;
    struct engine e;
    int32_t ids[120];
    open_engine(&e, MEMORY, NULL, 0);
    memcpy(ids, text, sizeof ids);
    const size_t mark = 64;
    prompt(&e, ids, 100, &mark, 1);
    keep(&e);
    const sluice_prefix_stats one = stats(&e);
    assert_int_equal(one.snapshots, 2);
    assert_int_equal(one.blocks, 6); /* 96 / 16 */
    memcpy(ids + 70, text + 2000, 50 * sizeof *ids);
    assert_int_equal(prompt(&e, ids, 100, &mark, 1), 64);
    keep(&e);
    const sluice_prefix_stats two = stats(&e);
    assert_int_equal(two.snapshots, 3);
    assert_int_equal(two.blocks, 8); /* 4 shared */
    /* kept twice is kept once */
    keep(&e);
    assert_int_equal(stats(&e).snapshots, 3);
    close_engine(&e);
}

/* A long text without marks is stored at sparse block ends: every eighth block, or a chunk. */
static void test_sparse_block_ends(void **state)
{
    (void)state;
    struct engine e;
    int32_t ids[CTX];
    open_engine(&e, MEMORY, NULL, 0);
    memcpy(ids, text, sizeof ids);
    prompt(&e, ids, 250, NULL, 0);
    assert_int_equal(stats(&e).snapshots, 1);
    memcpy(ids + 200, text + 2000, 50 * sizeof *ids);
    assert_int_equal(prompt(&e, ids, 250, NULL, 0), 128);
    close_engine(&e);
}

/* Marks closer than a block to the stop before are passed over, the first and the last are not. */
static void test_marks_are_thinned(void **state)
{
    (void)state;
    struct engine e;
    open_engine(&e, MEMORY, NULL, 0);
    const size_t marks[] = {20, 25, 30, 50, 60, 64};
    prompt(&e, text, 90, marks, 6);
    assert_int_equal(stats(&e).snapshots, 3); /* 20, 50, 64 */
    close_engine(&e);
}

static size_t least_memory(int snapshots, int ids)
{
    struct sl_config c;
    struct sl_pack *p;
    struct sl_err err = {0};
    if (sl_pack_open(&p, pack_path, NULL, 0, &err)) fail_msg("%s", err.text);
    c = p->cfg;
    size_t n = sl_prefix_bytes(&c, 0, BLOCK, (uint64_t)ids, (uint64_t)snapshots);
    sl_pack_close(p);
    return n;
}

/* Prompts that grow, branch and come back at random, under budgets from nothing to plenty, in memory and
 * in files: always the bits of a fresh prefill, never more than the budget. */
static void random_prompts(uint64_t memory, const char *dir, uint64_t disk, uint64_t *hits)
{
    struct engine e;
    struct tok_rng r = tok_seeded();
    int32_t ids[CTX] = {0};
    size_t n = 0;
    open_engine(&e, memory, dir, disk);
    for (int step = 0; step < 24; step++) {
        switch (tok_below(&r, 4)) {
        case 0: /* back to somewhere */
            n = n ? tok_below(&r, (uint32_t)n) : 0;
            break;
        case 1: /* an edit */
            if (n) ids[tok_below(&r, (uint32_t)n)] = text[tok_below(&r, 8)];
            break;
        default:
            break;
        }
        size_t more = 1 + tok_below(&r, 40);
        if (n + more > 120) n = tok_below(&r, 40);
        memcpy(ids + n, text + 64 * tok_below(&r, 4), more * sizeof *ids);
        const size_t marks[] = {n / 2 + 1, n + 1};
        n += more;
        if (tok_below(&r, 3) == 0) sluice_session_reset(e.s);
        prompt(&e, ids, n, marks, marks[1] < n ? 2 : marks[0] < n);
        if (tok_below(&r, 2)) keep(&e);
        stats(&e);
    }
    *hits = stats(&e).hits;
    close_engine(&e);
}

static void test_random_prompts(void **state)
{
    (void)state;
    uint64_t hits;
    random_prompts(128 << 10, NULL, 0, &hits);
    assert_int_equal(hits, 0);
    random_prompts(least_memory(1, 0), NULL, 0, &hits);
    random_prompts(least_memory(3, 64), NULL, 0, &hits);
    assert_true(hits > 0);
    random_prompts(MEMORY, NULL, 0, &hits);
    assert_true(hits > 5);
    random_prompts(least_memory(1, 180), path_in("small"), 2 << 20, &hits);
    assert_true(hits > 5);
    random_prompts(least_memory(2, 180), path_in("large"), 64 << 20, &hits);
    assert_true(hits > 5);
}

/* ---------------------------------------------------------------- files */

static int count_files(const char *dir, char names[][64], int max)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *f; (f = readdir(d)) != NULL;)
        if (strstr(f->d_name, ".rows") || strstr(f->d_name, ".snap")) {
            assert_true(n < max && strlen(f->d_name) < 64);
            memcpy(names[n++], f->d_name, strlen(f->d_name) + 1);
        }
    closedir(d);
    return n;
}

/* 100 ids, states at 40 and at 100, written at the close. */
static void fill_folder(const char *dir)
{
    struct engine e;
    sl_remove_tree(dir);
    open_engine(&e, MEMORY, dir, 0);
    const size_t mark = 40;
    prompt(&e, text, 100, &mark, 1);
    keep(&e);
    close_engine(&e);
}

static void test_files_come_back(void **state)
{
    (void)state;
    char dir[SL_PATH_MAX];
    char names[32][64];
    struct engine e;
    memcpy(dir, path_in("back"), SL_PATH_MAX);
    fill_folder(dir);
    assert_int_equal(count_files(dir, names, 32), 6 + 2);
    open_engine(&e, MEMORY, dir, 0);
    assert_int_equal(stats(&e).snapshots, 2);
    assert_int_equal(stats(&e).refused, 0);
    assert_int_equal(prompt(&e, text, 120, NULL, 0), 100);
    int32_t ids[120];
    memcpy(ids, text, sizeof ids);
    ids[90] ^= 1;
    assert_int_equal(prompt(&e, ids, 120, NULL, 0), 40);

    /* a second user of the folder is refused, and gets it when the first is gone */
    const sluice_options o = {.ctx = CTX, .prefix_bytes = MEMORY, .prefix_dir = dir, .exact = 1};
    sluice_pack *p;
    sluice_session *s;
    sluice_error err = {0};
    no_error(sluice_pack_open(&p, pack_path, &o, &err), &err);
    assert_int_equal(sluice_session_open(&s, p, NULL, &err), SL_E_IO);
    assert_non_null(strstr(err.text, "in use"));
    close_engine(&e);
    no_error(sluice_session_open(&s, p, NULL, &err), &err);
    sluice_session_close(s);
    sluice_pack_close(p);
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
}

/* Every file in turn is flipped, in header, ids, payload and checksum, and cut: it is refused, and the
 * answer is that of a fresh prefill. */
static void test_damaged_files(void **state)
{
    (void)state;
    char dir[SL_PATH_MAX];
    char names[32][64];
    memcpy(dir, path_in("damage"), SL_PATH_MAX);
    fill_folder(dir);
    const int n = count_files(dir, names, 32);
    char *whole[32];
    size_t sizes[32];
    for (int i = 0; i < n; i++) {
        char path[SL_PATH_MAX];
        assert_true(sl_path_join(path, dir, names[i]));
        assert_int_equal(sl_read_file(&whole[i], &sizes[i], path, 1 << 20, SL_E_SOURCE, NULL), 0);
    }
    int damaged = 0;
    for (int i = 0; i < n; i++) {
        for (int how = 0; how < 6; how++) {
            char path[SL_PATH_MAX];
            uint64_t bytes;
            struct engine e;
            sl_remove_tree(dir);
            assert_int_equal(mkdir(dir, 0777), 0);
            for (int j = 0; j < n; j++) {
                assert_true(sl_path_join(path, dir, names[j]));
                FILE *f = fopen(path, "wb"); /* no sync: it need not outlive the test */
                assert_non_null(f);
                assert_int_equal(fwrite(whole[j], 1, sizes[j], f), sizes[j]);
                fclose(f);
            }
            assert_true(sl_path_join(path, dir, names[i]));
            assert_int_equal(sl_file_size(path, &bytes, SL_E_SOURCE, NULL), 0);
            const long at[] = {3, 90, 130, 500, (long)bytes - 2};
            if (how < 5)
                flip(path, at[how]);
            else
                assert_int_equal(truncate(path, (off_t)bytes - 5), 0);
            open_engine(&e, MEMORY, dir, 0);
            /* the blocks are needed by the state at 100, and the first two by that at 40 */
            const size_t cached = prompt(&e, text, 120, NULL, 0);
            assert_true(cached == 0 || cached == 40 || cached == 100);
            const sluice_prefix_stats s = stats(&e);
            if (cached == 100) {
                assert_true(strstr(names[i], ".snap") != NULL); /* that of 40 */
            } else {
                assert_true(s.refused > 0);
                damaged++;
            }
            close_engine(&e);
        }
    }
    for (int i = 0; i < n; i++) free(whole[i]);
    assert_int_equal(n, 8);
    assert_int_equal(damaged, 7 * 6);
}

/* What lies in the folder and is none of ours, or of another pack, is left alone and not used. */
static void test_foreign_files(void **state)
{
    (void)state;
    char dir[SL_PATH_MAX];
    char path[SL_PATH_MAX];
    char other[SL_PATH_MAX];
    struct engine e;
    struct sl_err err = {0};
    memcpy(dir, path_in("foreign"), SL_PATH_MAX);
    fill_folder(dir);
    static const char *const junk[] = {"notes.txt", "00112233445566778899aabbccddeeff.rows",
                                       "00112233445566778899aabbccddeeff.snap", "zz.snap"};
    for (int i = 0; i < 4; i++) {
        assert_true(sl_path_join(path, dir, junk[i]));
        if (sl_write_file(path, "SLPREFX1 and more", 17, &err)) fail_msg("%s", err.text);
    }
    assert_true(sl_path_join(path, dir, "ffffffffffffffffffffffffffffffff.rows"));
    assert_int_equal(mkdir(path, 0777), 0);
    open_engine(&e, MEMORY, dir, 0);
    assert_int_equal(stats(&e).refused, 3);
    assert_int_equal(prompt(&e, text, 120, NULL, 0), 100);
    close_engine(&e);
    assert_true(sl_path_join(path, dir, "notes.txt"));
    assert_int_equal(access(path, R_OK), 0);

    char keep_path[SL_PATH_MAX];
    memcpy(keep_path, pack_path, sizeof keep_path);
    golden_pack(other, "models/k3-nano", SL_FMT_M4, SL_FMT_T8);
    memcpy(pack_path, other, sizeof pack_path);
    open_engine(&e, MEMORY, dir, 0);
    memcpy(pack_path, keep_path, sizeof keep_path);
    assert_int_equal(stats(&e).snapshots, 0);
    assert_true(stats(&e).refused >= 8);
    close_engine(&e);
    open_engine(&e, MEMORY, dir, 0); /* still there for their own pack */
    assert_int_equal(prompt(&e, text, 120, NULL, 0), 100);
    close_engine(&e);
}

/* ---------------------------------------------------------------- the plan, errors, files of states */

static void test_planned(void **state)
{
    (void)state;
    sluice_plan_info without;
    sluice_plan_info with;
    sluice_error err = {0};
    sluice_options o = {.ctx = CTX, .threads = 1, .ram_bytes = 256 << 20, .exact = 1};
    no_error(sluice_plan(plain_pack, &o, &without, &err), &err);
    o.prefix_bytes = MEMORY;
    no_error(sluice_plan(plain_pack, &o, &with, &err), &err);
    uint64_t planned = 0;
    int64_t more = 0; /* of all groups; what the process holds moves a little */
    for (int i = 0; i < with.n_groups; i++) {
        const uint64_t bytes = with.groups[i].planned_bytes;
        if (strcmp(with.groups[i].name, "prefix cache") == 0) planned = bytes;
        more += (int64_t)bytes - (int64_t)without.groups[i].planned_bytes;
    }
    assert_int_equal(planned, MEMORY);
    assert_true(more > MEMORY - (1 << 20) && more < MEMORY + (1 << 20));
    o.prefix_bytes = 512 << 20;
    assert_int_equal(sluice_plan(plain_pack, &o, &with, &err), SL_E_BUDGET);
    assert_non_null(strstr(err.text, "prefix cache"));
    const uint64_t suggested = sluice_prefix_suggest(plain_pack, &o);
    o.prefix_bytes = suggested;
    assert_true(suggested > 0);
    no_error(sluice_plan(plain_pack, &o, &with, &err), &err);
}

/* A prompt after a feed that failed half way begins from what is stored. */
static void test_after_an_interrupt(void **state)
{
    (void)state;
    struct engine e;
    sluice_error err = {0};
    const size_t mark = 40;
    open_engine(&e, MEMORY, NULL, 0);
    prompt(&e, text, 60, &mark, 1);
    sluice_interrupt();
    assert_int_equal(sluice_prompt(e.s, text, 90, NULL, 0, NULL, &err), SL_E_INTR);
    sluice_interrupt_clear();
    assert_int_not_equal(sluice_prefix_keep(e.s, &err), 0);
    assert_int_equal(prompt(&e, text, 90, NULL, 0), 40);
    close_engine(&e);
}

static void test_refusals(void **state)
{
    (void)state;
    struct engine e;
    sluice_error err = {0};
    size_t cached = 7;
    open_engine(&e, MEMORY, NULL, 0);
    assert_int_equal(sluice_prompt(e.s, text, 0, NULL, 0, &cached, &err), SL_E_ARG);
    assert_int_equal(cached, 0);
    assert_int_equal(sluice_prompt(e.s, text, CTX + 1, NULL, 0, &cached, &err), SL_E_CTX);
    assert_int_equal(sluice_position(e.s), 0);
    close_engine(&e);
    const sluice_options o = {.ctx = CTX, .prefix_bytes = 1000};
    assert_int_equal(sluice_session_open(&e.s, plain_pack, &o, &err), 0);
    sluice_session_close(e.s); /* the pack's first session decided: it has no store */
    no_error(sluice_pack_open(&e.p, pack_path, &o, &err), &err);
    assert_int_equal(sluice_session_open(&e.s, e.p, NULL, &err), SL_E_ARG);
    assert_non_null(strstr(err.text, "1000 bytes"));
    sluice_pack_close(e.p);
}

/* A state file carries ids and the host's note; a restored session is a start of the next prompt. */
static void test_state_with_note(void **state)
{
    (void)state;
    struct engine e;
    sluice_error err = {0};
    char path[SL_PATH_MAX];
    void *note;
    size_t n;
    memcpy(path, path_in("state"), SL_PATH_MAX);
    open_engine(&e, MEMORY, NULL, 0);
    prompt(&e, text, 50, NULL, 0);
    no_error(sluice_state_save_note(e.s, path, "a\0note", 6, &err), &err);
    close_engine(&e);
    open_engine(&e, MEMORY, NULL, 0);
    no_error(sluice_state_load_note(e.s, path, &note, &n, &err), &err);
    assert_int_equal(n, 6);
    assert_memory_equal(note, "a\0note", 6);
    sluice_free(note);
    assert_int_equal(prompt(&e, text, 70, NULL, 0), 50);
    no_error(sluice_state_save(e.s, path, &err), &err);
    no_error(sluice_state_load_note(e.s, path, &note, &n, &err), &err);
    assert_null(note);
    assert_int_equal(n, 0);
    close_engine(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_second_turn),       cmocka_unit_test(test_shared_rows),
        cmocka_unit_test(test_sparse_block_ends), cmocka_unit_test(test_marks_are_thinned),
        cmocka_unit_test(test_random_prompts),    cmocka_unit_test(test_files_come_back),
        cmocka_unit_test(test_damaged_files),     cmocka_unit_test(test_foreign_files),
        cmocka_unit_test(test_planned),           cmocka_unit_test(test_after_an_interrupt),
        cmocka_unit_test(test_refusals),          cmocka_unit_test(test_state_with_note),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
