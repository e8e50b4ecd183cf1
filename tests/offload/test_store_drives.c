/* One bank in several folders, ways of reading that are refused, and the page cache: what a pack's
 * files look like to the store. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "offload/store.h"
#include "tests/offload/faulty_reader.h"
#include "tests/offload/pack_maker.h"

static enum sl_io way = SL_IO_PREAD;

static void copy_banks(const struct pm_pack *m, const char *dir)
{
    for (int l = 1; l < m->spec.n_layers; l++) {
        char to[600];
        size_t len;
        uint8_t *bytes = pm_read(pm_path(m, pm_bank_name(m, l)), &len);
        snprintf(to, sizeof to, "%s/%s", dir, strrchr(pm_bank_name(m, l), '/') + 1);
        pm_write(to, bytes, len);
        free(bytes);
    }
}

/* The drive with that folder. */
static const struct sl_store_drive *drive(const struct sl_store_stats *st, const char *dir)
{
    for (int d = 0; d < st->n_drives; d++)
        if (strcmp(st->drives[d].dir, dir) == 0) return &st->drives[d];
    fail_msg("no drive %s", dir);
    return NULL;
}

struct scene {
    struct pm_pack m;
    char dir[256];
    struct sl_pack *p;
    struct sl_store *s;
    struct faulty_reader faults;
    struct sl_err err;
};

/* All banks in the pack, and once more in a folder beside it. */
static void open_mirrored(struct scene *c, uint64_t slots)
{
    memset(c, 0, sizeof *c);
    pm_make(&c->m, &(struct pm_spec){.n_layers = 4, .n_experts = 12, .alias_banks = true});
    pm_make_dir(c->dir);
    copy_banks(&c->m, c->dir);
    const char *dirs[] = {c->dir};
    if (sl_pack_open(&c->p, c->m.dir, dirs, 1, &c->err)) fail_msg("%s", c->err.text);
    fr_init(&c->faults);
    struct sl_store_opts o = {.io = way, .check_crc = true, .n_readers = 2, .ops = &c->faults.ops};
    o.slot_budget_bytes = slots * sl_store_slot_bytes(c->p);
    if (sl_store_open(&c->s, c->p, &o, &c->err)) fail_msg("%s", c->err.text);
}

static void close_scene(struct scene *c)
{
    sl_store_close(c->s);
    fr_free(&c->faults);
    sl_pack_close(c->p);
    pm_free_dir(c->dir);
    pm_free(&c->m);
}

static void expect_layer(struct scene *c, int layer)
{
    int ids[12];
    for (int x = 0; x < 12; x++) ids[x] = x;
    if (sl_store_request(c->s, layer, ids, 12, &c->err)) fail_msg("%s", c->err.text);
    for (int i = 0; i < 12; i++) {
        struct sl_mat mat[SL_N_MATS];
        int expert = -1;
        uint32_t bytes;
        if (sl_store_take_any(c->s, layer, &expert, mat, &c->err)) fail_msg("%s", c->err.text);
        uint8_t *want = pm_record(&c->m, layer, expert, &bytes);
        assert_memory_equal(mat[SL_GATE].codes, want, bytes);
        free(want);
        sl_store_put(c->s, layer, expert);
    }
}

static void reads_of_a_layer_are_spread_over_its_copies(void **state)
{
    (void)state;
    struct scene c;
    struct sl_store_stats st;
    char inside[600];
    open_mirrored(&c, 12);
    for (int round = 0; round < 4; round++)
        for (int l = 1; l < 4; l++) expect_layer(&c, l);
    sl_store_get_stats(c.s, &st);
    assert_int_equal(st.n_drives, 2);
    snprintf(inside, sizeof inside, "%s/experts", c.m.dir);
    const struct sl_store_drive *a = drive(&st, c.dir);
    const struct sl_store_drive *b = drive(&st, inside);
    assert_int_equal(a->reads + b->reads, st.reads);
    assert_int_equal(a->bytes + b->bytes, st.bytes_read);
    assert_int_equal(st.reads, 4 * 3 * 12);
    assert_true(a->reads > 0 && b->reads > 0);
    assert_true(a->bytes_per_second > 0 && a->busy_seconds > 0);
    assert_int_equal(a->errors + b->errors + st.failovers, 0);
    close_scene(&c);
}

/* One copy is damaged where the other is sound: the run goes on, the drive is told apart. */
static void a_bad_copy_is_replaced_by_the_other(void **state)
{
    (void)state;
    struct scene c;
    struct sl_store_stats st;
    char path[600];
    open_mirrored(&c, 12);
    snprintf(path, sizeof path, "%s/L001.bank", c.dir);
    for (int x = 0; x < 12; x++) pm_flip(path, c.p->banks[0].entries[x].offset + 7, 1);
    for (int l = 1; l < 4; l++) expect_layer(&c, l);
    pm_truncate(path, c.p->banks[0].entries[0].offset + 100);
    /* Which drive takes a read is a matter of speed: go on until the cut one was asked. */
    int rounds = 0;
    do {
        for (int l = 1; l < 4; l++) expect_layer(&c, l);
        sl_store_get_stats(c.s, &st);
    } while (!drive(&st, c.dir)->errors && ++rounds < 1000);
    assert_true(st.failovers > 0);
    assert_true(drive(&st, c.dir)->errors > 0); /* the cut one; wrong bytes are no failed read */
    /* Once the drive has failed a few times in a row it is left alone. */
    uint64_t errors = drive(&st, c.dir)->errors;
    for (int l = 1; l < 4; l++) expect_layer(&c, l);
    sl_store_get_stats(c.s, &st);
    assert_true(drive(&st, c.dir)->errors <= errors + 3);
    close_scene(&c);
}

/* Both copies fail: the error names the file that was tried last, and nobody waits. */
static void no_good_copy_is_an_error(void **state)
{
    (void)state;
    struct scene c;
    struct sl_mat mat[SL_N_MATS];
    struct sl_store_stats st;
    open_mirrored(&c, 12);
    uint64_t at = c.p->banks[0].entries[5].offset;
    fr_add(&c.faults, FR_ERRNO, at, at + 1, EIO, -1);
    assert_int_equal(sl_store_request(c.s, 2, (int[]){5}, 1, &c.err), 0);
    assert_int_equal(sl_store_take(c.s, 2, 5, mat, &c.err), SL_E_IO);
    assert_non_null(strstr(c.err.text, "L001.bank: layer 2 expert 5: "));
    sl_store_get_stats(c.s, &st);
    assert_int_equal(st.failovers, 1);
    assert_int_equal(st.retries, 1); /* the last copy once more */
    assert_int_equal(st.drives[0].errors + st.drives[1].errors, 3);
    fr_clear(&c.faults);
    /* One error passes by itself. */
    fr_add(&c.faults, FR_ERRNO, at, at + 1, EIO, 1);
    assert_int_equal(sl_store_request(c.s, 2, (int[]){5}, 1, &c.err), 0);
    assert_int_equal(sl_store_take(c.s, 2, 5, mat, &c.err), 0);
    sl_store_put(c.s, 2, 5);
    close_scene(&c);
}

/* Only an equal file is a copy: another bank under that name, and the same file twice, are not. */
static void what_is_not_a_copy_is_left_out(void **state)
{
    (void)state;
    struct pm_pack m;
    struct pm_pack strange;
    struct sl_pack *p;
    struct sl_err err = {0};
    char dir[256];
    char link[600];
    pm_make(&m, NULL);
    pm_make(&strange, &(struct pm_spec){.seed = 99});
    pm_make_dir(dir);
    copy_banks(&m, dir);
    snprintf(link, sizeof link, "%s/L001.bank", dir);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(symlink(pm_path(&m, "experts/L001.bank"), link), 0);
    const char *dirs[] = {pm_path(&m, "experts"), dir, pm_path(&strange, "experts")};
    if (sl_pack_open(&p, m.dir, dirs, 3, &err)) fail_msg("%s", err.text);
    assert_int_equal(p->banks[0].n_copies, 0);
    assert_int_equal(p->banks[1].n_copies, 1);
    assert_int_equal(p->banks[2].n_copies, 1);
    assert_non_null(strstr(p->banks[1].copies[0].path, dir));
    sl_pack_close(p);
    pm_free_dir(dir);
    pm_free(&strange);
    pm_free(&m);
}

/* ------------------------------------------------------------------ refusals */

/* From here on this process gets EPERM for io_uring, as in many containers. */
static bool forbid_uring(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof code / sizeof *code, code};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
           !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

/* In the child: 0 as it should be, 77 cannot be tried here, else what is wrong. */
static int without_uring(struct sl_pack *p)
{
    struct sl_store *s;
    struct sl_store_stats st;
    struct sl_err err = {0};
    struct sl_mat mat[SL_N_MATS];
    if (!forbid_uring()) return 77;
    if (sl_store_open(&s, p, &(struct sl_store_opts){.io = SL_IO_URING}, &err) != SL_E_ARG)
        return 1;
    if (!strstr(err.text, "io: uring: ")) return 2;
    if (sl_store_open(&s, p, NULL, &err)) return 3; /* auto */
    sl_store_get_stats(s, &st);
    if (st.io != SL_IO_PREAD || !st.io_note[0]) return 4;
    if (sl_store_request(s, 1, (int[]){1}, 1, &err) || sl_store_take(s, 1, 1, mat, &err)) return 5;
    sl_store_put(s, 1, 1);
    sl_store_close(s);
    return 0;
}

static void auto_falls_back_where_uring_is_refused(void **state)
{
    (void)state;
    struct pm_pack m;
    int status;
    pm_make(&m, NULL);
    struct sl_pack *p = pm_open(&m);
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) _exit(without_uring(p));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    sl_pack_close(p);
    pm_free(&m);
    if (WEXITSTATUS(status) == 77) {
        printf("SKIP seccomp filters are not to be had here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void auto_says_what_it_took(void **state)
{
    (void)state;
    struct pm_pack m;
    struct sl_store *s;
    struct sl_store_stats st;
    struct sl_err err = {0};
    pm_make(&m, NULL);
    struct sl_pack *p = pm_open(&m);
    if (sl_store_open(&s, p, NULL, &err)) fail_msg("%s", err.text);
    sl_store_get_stats(s, &st);
    assert_true(st.io == SL_IO_URING ? !st.io_note[0] : st.io == SL_IO_PREAD && st.io_note[0]);
    assert_int_equal(st.depth, st.io == SL_IO_URING ? SL_STORE_DEPTH : SL_STORE_READERS);
    sl_store_close(s);
    sl_pack_close(p);
    pm_free(&m);
}

int main(void)
{
    const struct CMUnitTest each[] = {
        cmocka_unit_test(reads_of_a_layer_are_spread_over_its_copies),
        cmocka_unit_test(a_bad_copy_is_replaced_by_the_other),
        cmocka_unit_test(no_good_copy_is_an_error),
    };
    const struct CMUnitTest once[] = {
        cmocka_unit_test(what_is_not_a_copy_is_left_out),
        cmocka_unit_test(auto_falls_back_where_uring_is_refused),
        cmocka_unit_test(auto_says_what_it_took),
    };
    int failed = cmocka_run_group_tests_name("pread", each, NULL, NULL);
    way = SL_IO_URING;
    if (pm_can_read(way)) failed += cmocka_run_group_tests_name("uring", each, NULL, NULL);
    return failed + cmocka_run_group_tests_name("any", once, NULL, NULL);
}
