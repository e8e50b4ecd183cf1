/* SHA256SUMS of a pack: any bit of pack.json, of a tokenizer file or of the sums themselves is found; a
 * manifest that is being replaced is whole at every step; packs without the file go unchecked. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "offload/pack_sums.h"
#include "tests/offload/pack_maker.h"

static const char manifest[] = "{\"format\":\"sluice-pack\",\"eps\":1e-05}\n";
static const char *const names[] = {"tokenizer/b.model", "tokenizer/a.json"};

static void scene(char dir[256])
{
    char path[SL_PATH_MAX];
    struct sl_err err = {0};
    pm_make_dir(dir);
    snprintf(path, sizeof path, "%s/tokenizer", dir);
    assert_int_equal(mkdir(path, 0777), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_true(sl_path_join(path, dir, names[i]));
        pm_write(path, names[i], strlen(names[i]));
    }
    assert_int_equal(sl_sums_publish(dir, manifest, strlen(manifest), &err), 0);
}

struct lines {
    int n;
    char last[1024];
};

static void keep(void *ctx, const char *line)
{
    struct lines *l = ctx;
    l->n++;
    snprintf(l->last, sizeof l->last, "%s", line);
}

/* The check's answer; the error and the last line say the same kind of thing. */
static int look(const char *dir, struct lines *l)
{
    struct lines own;
    struct sl_err err = {0};
    int has = 7;
    if (!l) l = &own;
    l->n = 0;
    int rc = sl_sums_check(dir, keep, l, &has, &err);
    assert_int_equal(has, 1);
    assert_int_equal(rc != 0, l->n > 0);
    if (rc) {
        assert_int_equal(rc, SL_E_PACK);
        assert_int_equal(err.code, SL_E_PACK);
        assert_true(err.text[0] && !strchr(err.text, '\n'));
    }
    return rc;
}

static void put(const char *dir, const char *name, const char *text)
{
    char path[SL_PATH_MAX];
    assert_true(sl_path_join(path, dir, name));
    pm_write(path, text, strlen(text));
}

static void every_bit_is_found(void **state)
{
    (void)state;
    static const char *const files[] = {"pack.json", "tokenizer/b.model", "tokenizer/a.json",
                                        SL_SUMS_FILE};
    char dir[256];
    scene(dir);
    assert_int_equal(look(dir, NULL), 0);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[SL_PATH_MAX];
        assert_true(sl_path_join(path, dir, files[i]));
        uint64_t bytes = pm_size(path);
        assert_true(bytes > 10);
        for (uint64_t bit = 0; bit < 8 * bytes; bit++) {
            pm_flip(path, bit / 8, (uint8_t)(1u << (bit % 8)));
            if (!look(dir, NULL)) fail_msg("%s: bit %llu", files[i], (unsigned long long)bit);
            pm_flip(path, bit / 8, (uint8_t)(1u << (bit % 8)));
        }
    }
    assert_int_equal(look(dir, NULL), 0);
    pm_free_dir(dir);
}

static void differences_are_named(void **state)
{
    (void)state;
    char dir[256];
    char path[SL_PATH_MAX];
    struct lines l;
    scene(dir);
    put(dir, "tokenizer/a.json", "other");
    put(dir, "tokenizer/b.model", "other");
    put(dir, "pack.json", "{}");
    assert_int_equal(look(dir, &l), SL_E_PACK);
    assert_int_equal(l.n, 3); /* each of them, not the first alone */
    put(dir, "pack.json", manifest);
    put(dir, "tokenizer/b.model", "tokenizer/b.model");
    assert_int_equal(look(dir, &l), SL_E_PACK);
    assert_int_equal(l.n, 1);
    assert_non_null(strstr(l.last, "tokenizer/a.json: sha256"));
    put(dir, "tokenizer/a.json", "tokenizer/a.json");
    assert_int_equal(look(dir, &l), 0);
    put(dir, "tokenizer/own.txt", "of the owner"); /* nothing says that it may not be there */
    assert_int_equal(look(dir, &l), 0);
    assert_true(sl_path_join(path, dir, "tokenizer/a.json"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(look(dir, &l), SL_E_PACK);
    assert_non_null(strstr(l.last, "tokenizer/a.json"));
    pm_free_dir(dir);
}

static void hostile_sums_are_refused(void **state)
{
    (void)state;
    static const char hex[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    static const char *const bad[] = {
        "../pack.json", "tokenizer/../x", "/etc/passwd", "tokenizer/a/b",
        "tokenizer/",   "tokenizer/..",   "trunk.bin",   "",
        "tokenizer",    "pack.json/../x", "tokenizer/."};
    char dir[256];
    char line[256];
    struct lines l;
    scene(dir);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(line, sizeof line, "%s  %s\n", hex, bad[i]);
        put(dir, SL_SUMS_FILE, line);
        assert_int_equal(look(dir, &l), SL_E_PACK);
        assert_int_equal(l.n, 2); /* the line, and pack.json that has none */
    }
    put(dir, SL_SUMS_FILE, "");
    assert_int_equal(look(dir, &l), SL_E_PACK);
    pm_free_dir(dir);
}

/* A control for all of the above, and packs made before there were sums. */
static void without_sums_nothing_is_compared(void **state)
{
    (void)state;
    char dir[256];
    char path[SL_PATH_MAX];
    struct sl_err err = {0};
    int has = 7;
    scene(dir);
    put(dir, "pack.json", "{}");
    assert_int_equal(look(dir, NULL), SL_E_PACK);
    assert_true(sl_path_join(path, dir, SL_SUMS_FILE));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(sl_sums_check(dir, NULL, NULL, &has, &err), 0);
    assert_int_equal(has, 0);
    pm_free_dir(dir);
}

/* While a manifest is replaced the sums name both: the old one and the new one are sound, a third is not. */
static void replacing_is_whole_at_every_step(void **state)
{
    (void)state;
    static const char next[] = "{\"format\":\"sluice-pack\",\"eps\":1e-06}\n";
    char dir[256];
    char path[SL_PATH_MAX];
    struct sl_err err = {0};
    size_t len = 0;
    scene(dir);
    assert_true(sl_path_join(path, dir, SL_SUMS_FILE));
    char *one = (char *)pm_read(path, &len);
    assert_int_equal(len, sl_sums_line_bytes("pack.json") + sl_sums_line_bytes(names[0]) +
                              sl_sums_line_bytes(names[1]));
    assert_int_equal(sl_sums_publish(dir, next, strlen(next), &err), 0);
    assert_int_equal(look(dir, NULL), 0);
    char *two = (char *)pm_read(path, &len);
    /* What lies there between the steps: the new line, then all the old ones. */
    char *both = NULL;
    size_t line = (size_t)sl_sums_line_bytes("pack.json");
    assert_true(asprintf(&both, "%.*s%.*s", (int)line, two, (int)len, one) > 0);
    put(dir, SL_SUMS_FILE, both);
    assert_int_equal(look(dir, NULL), 0);
    put(dir, "pack.json", manifest);
    assert_int_equal(look(dir, NULL), 0);
    put(dir, "pack.json", "{\"format\":\"sluice-pack\",\"eps\":1e-07}\n");
    assert_int_equal(look(dir, NULL), SL_E_PACK);
    free(one);
    free(two);
    free(both);
    pm_free_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_is_found),
        cmocka_unit_test(differences_are_named),
        cmocka_unit_test(hostile_sums_are_refused),
        cmocka_unit_test(without_sums_nothing_is_compared),
        cmocka_unit_test(replacing_is_whole_at_every_step),
    };
    return cmocka_run_group_tests_name("pack_sums", tests, NULL, NULL);
}
