/* The journal alone: torn at every byte, damaged in every byte, locked. */
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
#include "convert/journal.h"
#include "tests/convert/pack_tree.h"

static struct pt_room room;

static int setup(void **state)
{
    (void)state;
    pt_open(&room);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    pt_close(&room);
    return 0;
}

static struct sl_journal *open_journal(const char *dir)
{
    struct sl_journal *j;
    struct sl_err err = {0};
    if (sl_journal_open(&j, dir, &err)) fail_msg("%s", err.text);
    return j;
}

static void append(struct sl_journal *j, const char *record)
{
    struct sl_err err = {0};
    if (sl_journal_append(j, record, &err)) fail_msg("%s", err.text);
}

static const char *const first[] = {"begin {\"a\":1}", "scan 1 0000"};

static const char *make(const char *name)
{
    const char *dir = pt_path(&room, name);
    struct sl_err err = {0};
    assert_int_equal(mkdir(dir, 0777), 0);
    struct sl_journal *j = open_journal(dir);
    assert_int_equal(j->n, 0);
    if (sl_journal_create(j, first, 2, &err)) fail_msg("%s", err.text);
    append(j, "unit trunk 1 00000001 00000002");
    append(j, "unit bank 1");
    append(j, "unit trunk 11");
    append(j, "unit trunk 1 00000003 00000004");
    sl_journal_close(j);
    return dir;
}

static void test_records_come_back(void **state)
{
    (void)state;
    struct sl_journal *j = open_journal(make("plain"));
    assert_int_equal(j->n, 6);
    assert_string_equal(j->records[0], first[0]);
    assert_string_equal(sl_journal_find(j, "begin"), "{\"a\":1}");
    assert_string_equal(sl_journal_find(j, "unit bank 1"), "");
    assert_string_equal(sl_journal_find(j, "unit trunk 1"), "00000003 00000004"); /* the last */
    assert_string_equal(sl_journal_find(j, "unit trunk 11"), "");
    assert_null(sl_journal_find(j, "unit trunk 2"));
    assert_null(sl_journal_find(j, "unit ban"));
    sl_journal_close(j);
}

static char *read_all(const char *dir, size_t *len)
{
    char path[600];
    char *text;
    struct sl_err err;
    snprintf(path, sizeof path, "%s/journal", dir);
    if (sl_read_file(&text, len, path, 1 << 20, SL_E_IO, &err)) fail_msg("%s", err.text);
    return text;
}

static void write_all(const char *dir, const char *text, size_t len)
{
    char path[600];
    snprintf(path, sizeof path, "%s/journal", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

/* Cut anywhere: whole records before the cut stay, and the next append lies right behind them. */
static void test_torn_at_every_byte(void **state)
{
    const char *dir = make("torn");
    size_t len;
    char *text = read_all(dir, &len);
    (void)state;
    size_t head = (size_t)(strchr(strchr(text, '\n') + 1, '\n') + 1 - text); /* made in one step */
    for (size_t cut = head; cut <= len; cut++) {
        int whole = 0;
        for (size_t i = 0; i < cut; i++) whole += text[i] == '\n';
        write_all(dir, text, cut);
        struct sl_journal *j = open_journal(dir);
        assert_int_equal(j->n, whole);
        append(j, "unit x");
        append(j, "unit y 12345678");
        sl_journal_close(j);
        j = open_journal(dir);
        assert_int_equal(j->n, whole + 2);
        assert_string_equal(j->records[whole], "unit x");
        assert_string_equal(j->records[whole + 1], "unit y 12345678");
        sl_journal_close(j);
    }
    free(text);
}

/* Any flipped byte: damage is refused, in the last line it counts as torn; never believed. */
static void test_flipped_bytes(void **state)
{
    const char *dir = make("flipped");
    size_t len;
    char *text = read_all(dir, &len);
    size_t last = len - 1;
    (void)state;
    while (text[last - 1] != '\n') last--;
    for (size_t at = 0; at < len; at++) {
        struct sl_journal *j;
        struct sl_err err = {0};
        text[at] ^= 4;
        write_all(dir, text, len);
        int rc = sl_journal_open(&j, dir, &err);
        if (at + 1 >= last) { /* without the newline between them the last two lines are one */
            if (rc) fail_msg("byte %zu: %s", at, err.text);
            assert_int_equal(j->n, at >= last ? 5 : 4);
            sl_journal_close(j);
        } else {
            assert_int_equal(rc, SL_E_PACK);
            assert_non_null(strstr(err.text, "damaged"));
        }
        text[at] ^= 4;
    }
    write_all(dir, text, len); /* the control */
    sl_journal_close(open_journal(dir));
    write_all(dir, "", 0);
    struct sl_journal *j;
    struct sl_err err = {0};
    assert_int_equal(sl_journal_open(&j, dir, &err), SL_E_PACK);
    free(text);
}

static void test_one_process_at_a_time(void **state)
{
    const char *dir = make("locked");
    struct sl_journal *j = open_journal(dir);
    int st;
    (void)state;
    pid_t child = fork();
    if (!child) {
        struct sl_journal *other;
        struct sl_err err = {0};
        int rc = sl_journal_open(&other, dir, &err);
        _exit(rc == SL_E_ARG && strstr(err.text, "another conversion") ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &st, 0), child);
    assert_true(WIFEXITED(st) && WEXITSTATUS(st) == 0);
    sl_journal_close(j);
    sl_journal_close(open_journal(dir));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records_come_back),
        cmocka_unit_test(test_torn_at_every_byte),
        cmocka_unit_test(test_flipped_bytes),
        cmocka_unit_test(test_one_process_at_a_time),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
