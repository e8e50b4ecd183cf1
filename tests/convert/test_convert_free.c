/* --free-source: what goes, when, and when nothing may. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "convert/free_source.h"
#include "tests/convert/checkpoint_copy.h"
#include "tests/convert/pack_tree.h"

#define FIXTURE  "tests/fixtures/tiny-a"
#define N_SHARDS 10

static struct pt_room room;

static int setup(void **state)
{
    (void)state;
    pt_open(&room);
    struct sl_convert_opts o = pt_opts();
    pt_convert(FIXTURE, pt_path(&room, "want"), &o);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    pt_close(&room);
    return 0;
}

static struct sl_convert_opts freeing(void)
{
    struct sl_convert_opts o = pt_opts();
    o.free_source = true;
    return o;
}

static void expect_all_there(const char *dir)
{
    for (int i = 1; i <= N_SHARDS; i++) {
        char path[700];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, cc_shard_name(i));
        if (stat(path, &st)) fail_msg("%s is gone", path);
    }
}

static void expect_refused(const char *src, const char *dst, const char *part)
{
    struct sl_convert_opts o = freeing();
    struct sl_err err = {0};
    for (int dry = 1; dry >= 0; dry--) {
        o.dry_run = dry;
        assert_int_equal(sl_convert(src, dst, &o, NULL, &err), SL_E_ARG);
        cc_expect_text(&err, SL_E_ARG, (const char *const[]){"--free-source", part, NULL});
    }
    expect_all_there(src);
}

static void test_shards_go_and_the_rest_stays(void **state)
{
    struct cc_copy c;
    struct sl_convert_opts o = freeing();
    struct sl_convert_report r;
    struct sl_err err = {0};
    uint64_t shard_bytes = 0;
    (void)state;
    cc_open(&c);
    for (int i = 1; i <= N_SHARDS; i++) {
        struct stat st;
        assert_int_equal(stat(cc_path(&c, cc_shard_name(i)), &st), 0);
        shard_bytes += (uint64_t)st.st_size;
    }
    if (sl_convert(c.dir, pt_path(&room, "freed"), &o, &r, &err)) fail_msg("%s", err.text);
    for (int i = 1; i <= N_SHARDS; i++) assert_false(pt_exists(cc_path(&c, cc_shard_name(i))));
    assert_true(pt_exists(cc_path(&c, "config.json")));
    assert_true(pt_exists(cc_path(&c, "tiktoken.model")));
    assert_true(r.freed_bytes == shard_bytes);
    pt_expect_same(pt_path(&room, "want"), pt_path(&room, "freed"));
    cc_close(&c);
}

/* A conversion that stops in layer 4 has removed the shards of layers 0 to 3 and no other. */
static void test_freed_only_when_written(void **state)
{
    struct cc_copy c;
    struct sl_convert_opts o = freeing();
    struct sl_err err = {0};
    const char *dst = pt_path(&room, "part");
    (void)state;
    cc_open(&c);
    pt_poke(c.dir, "model.layers.4.self_attn.q_proj.weight", 0, (const uint8_t[]){0x80, 0x7f}, 2);
    o.trunk = SL_FMT_T8; /* which cannot hold that infinity */
    assert_int_equal(sl_convert(c.dir, dst, &o, NULL, &err), SL_E_SOURCE);
    cc_expect_text(&err, SL_E_SOURCE,
                   (const char *const[]){"model.layers.4.self_attn.q_proj.weight", "resume", NULL});
    for (int i = 1; i <= N_SHARDS; i++)
        assert_int_equal(pt_exists(cc_path(&c, cc_shard_name(i))), i > 4);
    cc_close(&c);
}

static void test_inside_one_another(void **state)
{
    struct cc_copy c;
    char dst[700];
    (void)state;
    cc_open(&c);
    snprintf(dst, sizeof dst, "%s/pack", c.dir);
    expect_refused(c.dir, dst, "inside one another");
    struct sl_source *src;
    struct sl_err err = {0};
    if (sl_source_open(&src, c.dir, NULL, &err)) fail_msg("%s", err.text);
    assert_int_equal(sl_free_check(src, c.root, &err), SL_E_ARG);
    snprintf(dst, sizeof dst, "%s-beside", c.dir); /* a longer name is another folder */
    if (sl_free_check(src, dst, &err)) fail_msg("%s", err.text);
    sl_source_close(src);
    cc_close(&c);
}

static void link_to(const char *target, const char *path)
{
    unlink(path);
    assert_int_equal(symlink(target, path), 0);
}

/* models--x/blobs/HASH, models--x/snapshots/REV/NAME -> ../../blobs/HASH */
static void make_cache(struct cc_copy *c, char *snapshot, size_t n)
{
    char path[700];
    char blob[700];
    char target[100];
    snprintf(path, sizeof path, "%s/cache/blobs", c->root);
    assert_int_equal(sl_make_dirs(path, NULL), 0);
    snprintf(snapshot, n, "%s/cache/snapshots/rev1", c->root);
    assert_int_equal(sl_make_dirs(snapshot, NULL), 0);
    static const char *const small[] = {"config.json",    "generation_config.json",
                                        "tiktoken.model", "tokenizer_config.json",
                                        "README.md",      "model.safetensors.index.json"};
    for (int i = 0; i < N_SHARDS + 6; i++) {
        const char *name = i < 6 ? small[i] : cc_shard_name(i - 5);
        snprintf(blob, sizeof blob, "%s/cache/blobs/%04x", c->root, i);
        assert_int_equal(rename(cc_path(c, name), blob), 0);
        snprintf(target, sizeof target, "../../blobs/%04x", i);
        snprintf(path, sizeof path, "%s/%s", snapshot, name);
        link_to(target, path);
    }
}

static void test_cache_layout(void **state)
{
    struct cc_copy c;
    char snapshot[600];
    struct sl_convert_opts o = freeing();
    struct sl_err err = {0};
    (void)state;
    cc_open(&c);
    make_cache(&c, snapshot, sizeof snapshot);
    if (sl_convert(snapshot, pt_path(&room, "from-cache"), &o, NULL, &err))
        fail_msg("%s", err.text);
    pt_expect_same(pt_path(&room, "want"), pt_path(&room, "from-cache"));
    for (int i = 0; i < N_SHARDS + 6; i++) {
        char blob[700];
        snprintf(blob, sizeof blob, "%s/cache/blobs/%04x", c.root, i);
        assert_int_equal(pt_exists(blob), i < 6); /* small files stay */
    }
    cc_close(&c);
}

static void test_blob_of_another_snapshot(void **state)
{
    struct cc_copy c;
    char snapshot[600];
    char other[700];
    (void)state;
    cc_open(&c);
    make_cache(&c, snapshot, sizeof snapshot);
    snprintf(other, sizeof other, "%s/cache/snapshots/rev2", c.root);
    assert_int_equal(mkdir(other, 0777), 0);
    snprintf(other, sizeof other, "%s/cache/snapshots/rev2/%s", c.root, cc_shard_name(3));
    link_to("../../blobs/0008", other);
    expect_refused(snapshot, pt_path(&room, "no"), "rev2");
    assert_false(pt_exists(pt_path(&room, "no")));
    /* The control: another revision with data of its own. */
    unlink(other);
    FILE *f = fopen(other, "w");
    assert_non_null(f);
    fclose(f);
    struct sl_convert_opts o = freeing();
    pt_convert(snapshot, pt_path(&room, "alone"), &o);
    cc_close(&c);
}

static void test_link_to_a_link(void **state)
{
    struct cc_copy c;
    char snapshot[600];
    char path[700];
    (void)state;
    cc_open(&c);
    make_cache(&c, snapshot, sizeof snapshot);
    snprintf(path, sizeof path, "%s/cache/blobs/more", c.root);
    link_to("0008", path);
    snprintf(path, sizeof path, "%s/%s", snapshot, cc_shard_name(3));
    link_to("../../blobs/more", path);
    expect_refused(snapshot, pt_path(&room, "no"), "no regular file");
    cc_close(&c);
}

/* A hard link elsewhere keeps the bytes: freeing is harmless but gives no space. */
static void test_gain(void **state)
{
    struct cc_copy c;
    struct sl_source *s;
    struct sl_err err = {0};
    struct stat st;
    dev_t dev = 0;
    char other[700];
    (void)state;
    cc_open(&c);
    if (sl_source_open(&s, c.dir, NULL, &err)) fail_msg("%s", err.text);
    assert_int_equal(stat(s->shards[2].path, &st), 0);
    assert_true(sl_free_gain(&s->shards[2], &dev) == (uint64_t)st.st_blocks * 512);
    assert_true(dev == st.st_dev);
    snprintf(other, sizeof other, "%s/kept", c.root);
    assert_int_equal(link(s->shards[2].path, other), 0);
    assert_true(sl_free_gain(&s->shards[2], &dev) == 0);
    sl_source_close(s);
    cc_close(&c);
}

static void test_resolve(void **state)
{
    char got[4096];
    char want[4200];
    char here[4096];
    (void)state;
    assert_non_null(getcwd(here, sizeof here));
    assert_true(sl_resolve_path("build/../no/such", got));
    snprintf(want, sizeof want, "%s/no/such", here);
    assert_string_equal(got, want);
    assert_true(sl_resolve_path("/", got));
    assert_string_equal(got, "/");
    assert_true(sl_resolve_path("/no/such/", got));
    assert_string_equal(got, "/no/such");
    assert_true(sl_resolve_path("none", got));
    snprintf(want, sizeof want, "%s/none", here);
    assert_string_equal(got, want);
    assert_false(sl_resolve_path("", got));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards_go_and_the_rest_stays),
        cmocka_unit_test(test_freed_only_when_written),
        cmocka_unit_test(test_inside_one_another),
        cmocka_unit_test(test_cache_layout),
        cmocka_unit_test(test_blob_of_another_snapshot),
        cmocka_unit_test(test_link_to_a_link),
        cmocka_unit_test(test_gain),
        cmocka_unit_test(test_resolve),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
