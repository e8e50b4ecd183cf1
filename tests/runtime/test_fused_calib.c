/* convert --calib TEXT: the bytes of `calibrate` over a lossless pack and a conversion with its statistics,
 * for one thread and two, from a checkpoint and from a pack; killed at any step, the source freed behind
 * it or not, and run again: the same bytes. Refusals with a control that succeeds. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "quant/calib.h"
#include "runtime/calibrate.h"
#include "runtime/fused_calib.h"
#include "tests/convert/checkpoint_copy.h"
#include "tests/convert/pack_tree.h"
#include "tests/convert/syscall_trap.h"

#define FIXTURE "tests/fixtures/tiny-a"
enum { TOKENS = 75, WINDOW = 32 }; /* the last window is a short one */

static char ids_file[600];

static int32_t token(int i)
{
    return (int32_t)((i * 37 + i * i % 11) % 300);
}

static void write_ids(const struct pt_room *r)
{
    char text[TOKENS * 6] = "";
    struct sl_err err;
    size_t at = 0;
    snprintf(ids_file, sizeof ids_file, "%s", pt_path(r, "ids.txt"));
    for (int i = 0; i < TOKENS; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, i ? ",%d" : "%d", token(i));
    assert_int_equal(sl_write_file(ids_file, text, at, &err), 0);
}

struct job {
    const char *src, *dst;
    struct sl_convert_opts o;
    int64_t tokens;
};

static struct sl_convert_opts w26_opts(void)
{
    struct sl_convert_opts o = pt_opts();
    o.experts = SL_FMT_W26;
    return o;
}

static int fused(void *ctx)
{
    struct job *j = ctx;
    struct sl_err err = {0};
    struct sl_fused *f = NULL;
    const struct sl_fused_opts fo = {.ids = ids_file, .tokens = j->tokens, .window = WINDOW};
    int rc = sl_fused_open(&f, &fo, &err);
    if (!rc) {
        j->o.live = sl_fused_calls(f);
        rc = sl_convert(j->src, j->dst, &j->o, NULL, &err);
    }
    sl_fused_close(f);
    j->o.live = NULL;
    if (rc) fprintf(stderr, "%s\n", err.text);
    return sl_exit_status(rc);
}

/* In a process of its own: this one must stay without threads. */
static int apart(struct job *j)
{
    int st;
    pid_t child = fork();
    if (!child) _exit(fused(j));
    assert_int_equal(waitpid(child, &st, 0), child);
    return WIFEXITED(st) ? WEXITSTATUS(st) : 128;
}

/* ---- against calibrate */

static void calibrate(const char *pack, const char *stats)
{
    sluice_pack *p = NULL;
    sluice_session *s = NULL;
    sluice_error e = {0};
    struct sl_err err = {0};
    sluice_options o = {.exact = 1, .threads = 1, .ctx = WINDOW};
    struct sl_calib_shape shape;
    struct sl_calib *sums;
    struct sl_calibrator *c;
    uint8_t is_moe[SL_MAX_LAYERS];
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++) ids[i] = token(i);
    if (sluice_pack_open(&p, pack, &o, &e) || sluice_session_open(&s, p, &o, &e))
        fail_msg("%s", e.text);
    sl_calibrate_shape(&p->pack->cfg, &shape, is_moe);
    assert_int_equal(sl_calib_open(&sums, &shape, is_moe, true, &err), 0);
    assert_int_equal(sl_calibrator_open(&c, s, sums, &err), 0);
    for (int at = 0; at < TOKENS; at += WINDOW)
        assert_int_equal(sl_calibrator_window(c, ids + at,
                                              (size_t)(TOKENS - at < WINDOW ? TOKENS - at : WINDOW),
                                              &e),
                         0);
    sl_calibrator_close(c);
    assert_int_equal(sl_calib_save(sums, stats, "{}", &err), 0);
    sl_calib_close(sums);
    sluice_session_close(s);
    sluice_pack_close(p);
}

static void same_file(const char *a_dir, const char *b_dir, const char *name)
{
    char a[700], b[700];
    char *x, *y;
    size_t n, m;
    struct sl_err err = {0};
    snprintf(a, sizeof a, "%s/%s", a_dir, name);
    snprintf(b, sizeof b, "%s/%s", b_dir, name);
    if (sl_read_file(&x, &n, a, 1 << 28, SL_E_PACK, &err) ||
        sl_read_file(&y, &m, b, 1 << 28, SL_E_PACK, &err))
        fail_msg("%s", err.text);
    assert_int_equal(n, m);
    if (memcmp(x, y, n) != 0) fail_msg("%s differs", name);
    free(x);
    free(y);
}

static void same_weights(const char *a, const char *b)
{
    char name[32];
    int banks = 0;
    same_file(a, b, "trunk.bin");
    for (int l = 0; l < 64; l++) {
        char path[700];
        snprintf(name, sizeof name, "experts/L%03d.bank", l);
        snprintf(path, sizeof path, "%s/%s", a, name);
        if (!pt_exists(path)) continue;
        same_file(a, b, name);
        banks++;
    }
    assert_true(banks > 1);
}

static void test_bytes_of_two_steps(void **state)
{
    struct pt_room r;
    char plain[600];
    (void)state;
    pt_open(&r);
    write_ids(&r);
    struct sl_convert_opts lossless = pt_opts(), low = w26_opts();
    pt_convert(FIXTURE, pt_path(&r, "ref"), &lossless);
    calibrate(pt_path(&r, "ref"), pt_path(&r, "stats"));
    pt_convert(FIXTURE, pt_path(&r, "plain"), &low);
    low.calib = pt_path(&r, "stats");
    pt_convert(FIXTURE, pt_path(&r, "two"), &low);
    struct job j = {FIXTURE, pt_path(&r, "one"), w26_opts(), 0};
    assert_int_equal(apart(&j), 0);
    same_weights(pt_path(&r, "two"), pt_path(&r, "one"));
    /* The statistics do matter: without them the bytes are others. */
    char why[2048];
    snprintf(plain, sizeof plain, "%s", pt_path(&r, "plain"));
    assert_false(pt_same(plain, pt_path(&r, "one"), why, sizeof why));
    /* Two threads, and a pack as the source. */
    struct job two = {pt_path(&r, "ref"), pt_path(&r, "from_pack"), w26_opts(), 0};
    two.o.jobs = 2;
    assert_int_equal(apart(&two), 0);
    if (!pt_same(pt_path(&r, "one"), two.dst, why, sizeof why)) fail_msg("%s", why);
    pt_close(&r);
}

/* ---- kills */

static struct cc_copy copy;

static int stride_of(int usual)
{
    return getenv("SLUICE_TEST_EVERY_STEP") ? 1 : usual;
}

static void kill_each_step(bool free_source, enum st_action action, int first, int stride)
{
    struct pt_room r;
    struct st_end end;
    char why[2048];
    int n = 0;
    pt_open(&r);
    write_ids(&r);
    struct job want = {FIXTURE, pt_path(&r, "want"), w26_opts(), 0};
    assert_int_equal(apart(&want), 0);
    struct st_plan plan = {.action = action};
    for (plan.at = stride > 1 ? first : 1;; plan.at += stride_of(stride)) {
        struct job j = {FIXTURE, pt_path(&r, "dst"), w26_opts(), 0};
        if (free_source) {
            cc_open(&copy);
            j.src = copy.dir;
            j.o.free_source = true;
        }
        st_run(fused, &j, &plan, &end);
        if (end.supported && end.hit) {
            char path[600], work[600];
            assert_false(end.exited);
            n++;
            /* The last steps clean up behind a finished pack, which says so when asked again. */
            snprintf(path, sizeof path, "%s/pack.json", j.dst);
            snprintf(work, sizeof work, "%s/.convert", j.dst);
            if ((!pt_exists(path) || pt_exists(work)) && apart(&j))
                fail_msg("step %d: the same command again fails", plan.at);
            if (!pt_same(want.dst, j.dst, why, sizeof why)) fail_msg("step %d: %s", plan.at, why);
        }
        pt_remove(j.dst);
        if (free_source) cc_close(&copy);
        if (!end.supported || !end.hit) break;
    }
    pt_close(&r);
    if (!end.supported) {
        print_message("SKIP this machine cannot trace a child\n");
        skip();
    }
    print_message("killed %d times within %d steps\n", n, end.steps);
    assert_true(n > 2);
}

static void test_kill(void **state)
{
    (void)state;
    kill_each_step(false, ST_KILL, 7, 61);
}

static void test_kill_while_freeing(void **state)
{
    (void)state;
    kill_each_step(true, ST_KILL_AFTER, 30, 47);
}

/* ---- refusals */

static void test_refusals(void **state)
{
    struct pt_room r;
    (void)state;
    pt_open(&r);
    write_ids(&r);
    struct job j = {FIXTURE, pt_path(&r, "dst"), pt_opts(), 0};
    assert_int_equal(apart(&j), 2); /* m4 is lossless: nothing to weigh */
    j.o.experts = SL_FMT_MIX;
    j.o.mix_bits = 2;
    assert_int_equal(apart(&j), 2);
    j.o = w26_opts();
    j.o.dry_run = true;
    assert_int_equal(apart(&j), 0);
    assert_false(pt_exists(j.dst));
    struct sl_err err;
    assert_int_equal(sl_write_file(ids_file, "1,2,99999", 9, &err), 0);
    assert_int_equal(apart(&j), 3);
    assert_int_equal(sl_write_file(ids_file, "", 0, &err), 0);
    assert_int_equal(apart(&j), 3);
    assert_false(pt_exists(j.dst));
    pt_close(&r);
}

/* An unfinished conversion on another text, or on fewer tokens, is another conversion. */
static void test_other_text(void **state)
{
    struct pt_room r;
    struct st_end end;
    const struct st_plan plan = {.action = ST_KILL, .at = 40};
    (void)state;
    pt_open(&r);
    write_ids(&r);
    struct job j = {FIXTURE, pt_path(&r, "dst"), w26_opts(), 0};
    st_run(fused, &j, &plan, &end);
    if (end.supported) {
        assert_true(end.hit);
        j.tokens = 40;
        assert_int_equal(apart(&j), 2);
        j.tokens = 0;
        assert_int_equal(apart(&j), 0);
    }
    pt_close(&r);
    if (!end.supported) {
        print_message("SKIP this machine cannot trace a child\n");
        skip();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_kill_while_freeing),
        cmocka_unit_test(test_other_text),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bytes_of_two_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
