/* A conversion that is killed, fails or is interrupted at any step, then run again, gives the bytes of
 * one that was left alone. Steps are counted from outside (syscall_trap.h), N = 1, 2, ... until clean. */
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/convert/checkpoint_copy.h"
#include "tests/convert/pack_tree.h"
#include "tests/convert/syscall_trap.h"

#define FIXTURE "tests/fixtures/tiny-a"

struct job {
    const char *src, *dst;
    struct sl_convert_opts o;
};

static void on_int(int sig)
{
    (void)sig;
    sl_interrupt();
}

static int child_convert(void *ctx)
{
    const struct job *j = ctx;
    struct sl_err err = {0};
    struct sigaction sa = {.sa_handler = on_int};
    sigaction(SIGINT, &sa, NULL);
    int rc = sl_convert(j->src, j->dst, &j->o, NULL, &err);
    if (rc && !err.text[0]) return 98;
    return sl_exit_status(rc);
}

/* Untraced, in a process of its own: this one must stay without threads. */
static int convert_apart(const struct job *j)
{
    int st;
    pid_t child = fork();
    if (!child) {
        struct sl_err err = {0};
        int rc = sl_convert(j->src, j->dst, &j->o, NULL, &err);
        if (rc) fprintf(stderr, "%s\n", err.text);
        _exit(sl_exit_status(rc));
    }
    assert_int_equal(waitpid(child, &st, 0), child);
    return WIFEXITED(st) ? WEXITSTATUS(st) : 128;
}

static void resume_and_compare(const struct job *j, const char *want, int at)
{
    char why[2048];
    char path[600];
    int status = 0;
    /* Hit after the last that matters: the pack is finished, and says so when asked again. */
    snprintf(path, sizeof path, "%s/pack.json", j->dst);
    bool finished = pt_exists(path);
    snprintf(path, sizeof path, "%s/.convert", j->dst);
    if (!finished || pt_exists(path)) status = convert_apart(j);
    if (status) fail_msg("step %d: the same command again exits %d", at, status);
    if (!pt_same(want, j->dst, why, sizeof why)) fail_msg("step %d: %s", at, why);
}

/* Steps to go on by: 1 with SLUICE_TEST_EVERY_STEP set, else as given to keep `make test` short. */
static int stride_of(int usual)
{
    return getenv("SLUICE_TEST_EVERY_STEP") ? 1 : usual;
}

/* Every step in turn, `stride` apart. fresh makes a new source for each (NULL: it stays). */
static int every_step(struct job *j, const char *want, struct st_plan plan, int stride,
                      void (*fresh)(struct job *j), void (*check)(const struct job *j, int status))
{
    struct st_end end;
    for (plan.at = 1;; plan.at += stride_of(stride)) {
        if (fresh) fresh(j);
        st_run(child_convert, j, &plan, &end);
        if (!end.supported) {
            pt_remove(j->dst);
            return 0;
        }
        if (!end.hit) break;
        if (plan.action == ST_KILL || plan.action == ST_KILL_AFTER) assert_false(end.exited);
        if (check) check(j, end.exited ? end.status : -1);
        resume_and_compare(j, want, plan.at);
        pt_remove(j->dst);
    }
    assert_true(end.exited);
    assert_int_equal(end.status, 0);
    char why[2048];
    if (!pt_same(want, j->dst, why, sizeof why)) fail_msg("undisturbed: %s", why);
    pt_remove(j->dst);
    return end.steps;
}

static void report(const char *what, int steps)
{
    if (!steps) {
        print_message("SKIP %s: this machine cannot trace a child\n", what);
        skip();
    }
    print_message("%s: %d steps\n", what, steps);
}

static struct job plain_job(struct pt_room *r)
{
    struct job j = {FIXTURE, pt_path(r, "dst"), pt_opts()};
    const struct job ref = {FIXTURE, pt_path(r, "want"), j.o};
    assert_int_equal(convert_apart(&ref), 0);
    return j;
}

static void test_kill_before_each_step(void **state)
{
    struct pt_room r;
    (void)state;
    pt_open(&r);
    struct job j = plain_job(&r);
    int n = every_step(&j, pt_path(&r, "want"), (struct st_plan){.action = ST_KILL}, 1, NULL, NULL);
    pt_close(&r);
    report("killed before step N", n);
}

/* Threads: the N-th step is another one each time, and a write may be half done. */
static void test_kill_after_each_step_two_jobs(void **state)
{
    struct pt_room r;
    (void)state;
    pt_open(&r);
    struct job j = plain_job(&r);
    j.o.jobs = 2;
    j.o.task_bytes = 64 << 10;
    int n = every_step(&j, pt_path(&r, "want"), (struct st_plan){.action = ST_KILL_AFTER}, 5, NULL,
                       NULL);
    pt_close(&r);
    report("killed after half of step N", n);
}

static int hits;    /* steps that were failed or interrupted */
static int noticed; /* of which the conversion said so: all but a few that may pass in silence */

/* An error is told, and either nothing is there or the state to go on from. */
static void check_failed(const struct job *j, int status)
{
    char path[600];
    /* 0: a step that may fail unnoticed, such as reserving space or removing a leftover. */
    hits++;
    noticed += status != 0;
    if (status != 0 && status != 4 && status != 5) fail_msg("exit status %d", status);
    snprintf(path, sizeof path, "%s/.convert/journal", j->dst);
    if (status && !pt_exists(path)) {
        snprintf(path, sizeof path, "%s/pack.json", j->dst);
        if (pt_exists(j->dst) && !pt_exists(path)) fail_msg("a failure left %s behind", j->dst);
    }
    snprintf(path, sizeof path, "%s/pack.json.tmp", j->dst);
    if (pt_exists(path)) fail_msg("a failure left %s behind", path);
}

static void fail_each_step(int sys_errno, int stride, const char *what)
{
    struct pt_room r;
    pt_open(&r);
    struct job j = plain_job(&r);
    struct st_plan plan = {.action = ST_FAIL, .sys_errno = sys_errno};
    hits = noticed = 0;
    int n = every_step(&j, pt_path(&r, "want"), plan, stride, NULL, check_failed);
    pt_close(&r);
    if (n) print_message("%d of %d failures were told\n", noticed, hits);
    if (n) assert_true(noticed > hits * 3 / 4);
    report(what, n);
}

static void test_disk_full_at_each_step(void **state)
{
    (void)state;
    fail_each_step(ENOSPC, 2, "no space at step N");
}

static void test_io_error_at_each_step(void **state)
{
    (void)state;
    fail_each_step(EIO, 5, "I/O error at step N");
}

static void check_interrupted(const struct job *j, int status)
{
    (void)j;
    hits++;
    noticed += status == 130;
    if (status != 130 && status != 0) fail_msg("exit status %d", status);
}

static void test_interrupt_at_each_step(void **state)
{
    struct pt_room r;
    (void)state;
    pt_open(&r);
    struct job j = plain_job(&r);
    hits = noticed = 0;
    int n = every_step(&j, pt_path(&r, "want"), (struct st_plan){.action = ST_INTERRUPT}, 9, NULL,
                       check_interrupted);
    pt_close(&r);
    if (n) print_message("%d of %d interrupts ended it\n", noticed, hits);
    if (n) assert_true(noticed > hits * 3 / 4);
    report("interrupted at step N", n);
}

static struct cc_copy copy; /* of the source that is being freed */

static void fresh_copy(struct job *j)
{
    if (copy.root[0]) cc_close(&copy);
    cc_open(&copy);
    j->src = copy.dir;
}

static void free_each_step(enum st_action action, int stride, const char *what)
{
    struct pt_room r;
    pt_open(&r);
    struct job j = {NULL, pt_path(&r, "dst"), pt_opts()};
    j.o.trunk = SL_FMT_T8;
    const struct job ref = {FIXTURE, pt_path(&r, "want"), j.o};
    assert_int_equal(convert_apart(&ref), 0);
    j.o.free_source = true;
    int n = every_step(&j, ref.dst, (struct st_plan){.action = action}, stride, fresh_copy, NULL);
    /* Nothing but small files is left of the last source. */
    for (int i = 1; n && i <= 10; i++)
        if (pt_exists(cc_path(&copy, cc_shard_name(i)))) fail_msg("shard %d is still there", i);
    cc_close(&copy);
    copy.root[0] = 0;
    pt_close(&r);
    report(what, n);
}

static void test_kill_while_freeing(void **state)
{
    (void)state;
    free_each_step(ST_KILL, 5, "freeing the source, killed before step N");
}

static void test_kill_after_while_freeing(void **state)
{
    (void)state;
    free_each_step(ST_KILL_AFTER, 23, "freeing the source, killed after half of step N");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_before_each_step),
        cmocka_unit_test(test_kill_after_each_step_two_jobs),
        cmocka_unit_test(test_disk_full_at_each_step),
        cmocka_unit_test(test_io_error_at_each_step),
        cmocka_unit_test(test_interrupt_at_each_step),
        cmocka_unit_test(test_kill_while_freeing),
        cmocka_unit_test(test_kill_after_while_freeing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
