/* Files that appear whole or not at all, reads that say what was missing, folders.
 *
 * A file size limit stands in for a full disk: it fails a write half-way for any user. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"

static char root[64];

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/sluice_test_XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int drop_root(void **state)
{
    (void)state;
    sl_remove_tree(root);
    return 0;
}

static const char *at(const char *name)
{
    static char buf[4][SL_PATH_MAX];
    static unsigned turn;
    char *b = buf[turn++ % 4];
    assert_true(sl_path_join(b, root, name));
    return b;
}

static int entries(const char *dir)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static void expect_content(const char *path, const char *want)
{
    char *text = NULL;
    size_t len = 0;
    assert_int_equal(sl_read_file(&text, &len, path, 1 << 20, SL_E_IO, NULL), 0);
    assert_int_equal(len, strlen(want));
    assert_string_equal(text, want); /* the NUL is there */
    free(text);
}

static void joins(void **state)
{
    (void)state;
    char b[SL_PATH_MAX];
    assert_true(sl_path_join(b, "a", "b") && !strcmp(b, "a/b"));
    assert_true(sl_path_join(b, "a/", "b") && !strcmp(b, "a/b"));
    assert_true(sl_path_join(b, "/", "b") && !strcmp(b, "/b"));
    assert_true(sl_path_join(b, "", "b") && !strcmp(b, "b"));
    char name[SL_PATH_MAX];
    memset(name, 'x', sizeof name);
    name[SL_PATH_MAX - 1] = '\0';
    assert_false(sl_path_join(b, "a", name));
    name[SL_PATH_MAX - 3] = '\0';
    assert_true(sl_path_join(b, "a", name));
    assert_int_equal(strlen(b), SL_PATH_MAX - 1);
}

static void writes_are_whole(void **state)
{
    (void)state;
    struct sl_err e = {0};
    const char *path = at("pack.json");
    assert_int_equal(sl_write_file(path, "old", 3, &e), 0);
    expect_content(path, "old");
    assert_int_equal(sl_write_file(path, "", 0, &e), 0);
    expect_content(path, "");
    assert_int_equal(sl_write_file(path, "newer", 5, &e), 0);
    expect_content(path, "newer");
    assert_int_equal(entries(root), 1);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(st.st_mode & 0777, 0666 & ~mask);
    /* a name in the working folder has no slash */
    char cwd[SL_PATH_MAX];
    assert_non_null(getcwd(cwd, sizeof cwd));
    assert_int_equal(chdir(root), 0);
    assert_int_equal(sl_write_file("local", "x", 1, &e), 0);
    assert_int_equal(chdir(cwd), 0);
    expect_content(at("local"), "x");
}

static void a_failed_write_leaves_the_old_file_alone(void **state)
{
    (void)state;
    struct sl_err e = {0};
    const char *path = at("pack.json");
    assert_int_equal(sl_write_file(path, "old", 3, &e), 0);
    struct rlimit old;
    getrlimit(RLIMIT_FSIZE, &old);
    struct rlimit small = {.rlim_cur = 1000, .rlim_max = old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    char data[5000];
    memset(data, 'n', sizeof data);
    int rc = sl_write_file(path, data, sizeof data, &e);
    int rc_new = sl_write_file(at("new"), data, sizeof data, NULL);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(rc, SL_E_IO);
    assert_int_equal(rc_new, SL_E_IO);
    assert_non_null(strstr(e.text, "pack.json: write: "));
    expect_content(path, "old");
    assert_int_equal(entries(root), 1);
    /* the control: without the limit the same call succeeds */
    assert_int_equal(sl_write_file(path, data, sizeof data, &e), 0);
    uint64_t size = 0;
    assert_int_equal(sl_file_size(path, &size, SL_E_IO, &e), 0);
    assert_int_equal(size, sizeof data);
}

static void a_failed_rename_leaves_nothing(void **state)
{
    (void)state;
    struct sl_err e = {0};
    int fd;
    assert_int_equal(sl_tmp_open(&fd, at("taken"), false, &e), 0);
    assert_int_equal(mkdir(at("taken"), 0777), 0); /* by somebody else, meanwhile */
    assert_int_equal(sl_tmp_publish(fd, at("taken"), &e), SL_E_IO);
    assert_non_null(strstr(e.text, "taken: rename: "));
    assert_int_equal(entries(root), 1);
    assert_int_equal(sl_write_file(at("gone/x"), "x", 1, &e), SL_E_IO);
    assert_non_null(strstr(e.text, "gone/x.tmp: create: "));
}

static void a_full_device_is_named(void **state)
{
    (void)state;
    struct sl_err e = {0};
    int fd = open("/dev/full", O_RDWR);
    if (fd < 0) {
        print_message("SKIP no /dev/full\n");
        skip();
    }
    assert_int_equal(sl_pwrite_all(fd, "x", 1, 0, "L000.bank", &e), SL_E_NOSPACE);
    assert_int_equal(strncmp(e.text, "L000.bank: write: ", 18), 0);
    close(fd);
}

static void temporaries_can_be_kept(void **state)
{
    (void)state;
    struct sl_err e = {0};
    const char *path = at("bank");
    int fd;
    assert_int_equal(sl_tmp_open(&fd, path, true, &e), 0);
    assert_int_equal(sl_pwrite_all(fd, "half", 4, 0, path, &e), 0);
    close(fd); /* killed here */
    assert_int_equal(sl_tmp_open(&fd, path, true, &e), 0);
    assert_int_equal(sl_pwrite_all(fd, " done", 5, 4, path, &e), 0);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(sl_tmp_publish(fd, path, &e), 0);
    expect_content(path, "half done");
    assert_int_equal(entries(root), 1);
    assert_int_equal(sl_tmp_open(&fd, path, false, &e), 0);
    sl_tmp_discard(fd, path);
    expect_content(path, "half done");
    assert_int_equal(entries(root), 1);
    /* a link under the temporary name is not followed */
    assert_int_equal(sl_write_file(at("victim"), "safe", 4, &e), 0);
    assert_int_equal(symlink(at("victim"), at("bank.tmp")), 0);
    assert_int_equal(sl_write_file(path, "evil", 4, &e), SL_E_IO);
    expect_content(at("victim"), "safe");
}

static void short_reads_say_what_was_there(void **state)
{
    (void)state;
    struct sl_err e = {0};
    const char *path = at("shard");
    assert_int_equal(sl_write_file(path, "0123456789", 10, &e), 0);
    int fd = open(path, O_RDONLY);
    char buf[32];
    assert_int_equal(sl_pread_all(fd, buf, 4, 3, "shard", SL_E_SOURCE, &e), 0);
    assert_memory_equal(buf, "3456", 4);
    assert_int_equal(sl_pread_all(fd, buf, 10, 0, "shard", SL_E_SOURCE, &e), 0);
    assert_int_equal(sl_pread_all(fd, buf, 0, 10, "shard", SL_E_SOURCE, &e), 0);
    assert_int_equal(sl_pread_all(fd, buf, 11, 0, "shard", SL_E_SOURCE, &e), SL_E_SOURCE);
    assert_string_equal(e.text,
                        "shard: read: wanted 11 bytes at offset 0, found 10: the file is cut");
    assert_int_equal(sl_pread_all(fd, buf, 4, 8, "shard", SL_E_PACK, &e), SL_E_PACK);
    assert_string_equal(e.text,
                        "shard: read: wanted 4 bytes at offset 8, found 2: the file is cut");
    assert_int_equal(sl_pread_all(fd, buf, 4, UINT64_MAX - 1, "shard", SL_E_PACK, &e), SL_E_PACK);
    assert_int_equal(sl_pread_all(fd, buf, 4, INT64_MAX, "shard", SL_E_PACK, &e), SL_E_PACK);
    assert_int_equal(sl_pwrite_all(fd, buf, 1, 0, "shard", &e), SL_E_IO); /* opened to read */
    close(fd);
    assert_int_equal(sl_pread_all(-1, buf, 4, 0, "shard", SL_E_PACK, &e), SL_E_PACK);
}

static void whole_reads_are_bounded(void **state)
{
    (void)state;
    struct sl_err e = {0};
    char *text = NULL;
    size_t len = 0;
    assert_int_equal(sl_write_file(at("f"), "12345", 5, &e), 0);
    assert_int_equal(sl_read_file(&text, &len, at("f"), 5, SL_E_SOURCE, &e), 0);
    free(text);
    assert_int_equal(sl_read_file(&text, &len, at("f"), 4, SL_E_SOURCE, &e), SL_E_SOURCE);
    assert_non_null(strstr(e.text, "f: larger than the 4 bytes"));
    assert_int_equal(sl_read_file(&text, &len, at("missing"), 5, SL_E_PACK, &e), SL_E_PACK);
    assert_non_null(strstr(e.text, "missing: open: No such file"));
    assert_int_equal(sl_read_file(&text, &len, root, 5, SL_E_PACK, &e), SL_E_PACK);
    /* endless and size 0 by stat: the bound still holds */
    assert_int_equal(sl_read_file(&text, &len, "/dev/zero", 100000, SL_E_SOURCE, &e), SL_E_SOURCE);
    assert_int_equal(sl_read_file(&text, &len, "/dev/null", 0, SL_E_SOURCE, &e), 0);
    assert_int_equal(len, 0);
    free(text);
    uint64_t size;
    assert_int_equal(sl_file_size(root, &size, SL_E_PACK, &e), SL_E_PACK);
    assert_int_equal(sl_file_size(at("missing"), &size, SL_E_SOURCE, &e), SL_E_SOURCE);
}

static void pipes_are_read_to_the_end(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    char data[20000];
    memset(data, 'p', sizeof data);
    assert_int_equal(write(ends[1], data, sizeof data), sizeof data);
    close(ends[1]);
    char name[64];
    snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
    char *text = NULL;
    size_t len = 0;
    assert_int_equal(sl_read_file(&text, &len, name, 1 << 20, SL_E_SOURCE, NULL), 0);
    assert_int_equal(len, sizeof data);
    assert_memory_equal(text, data, sizeof data);
    free(text);
    close(ends[0]);
}

static void folders(void **state)
{
    (void)state;
    struct sl_err e = {0};
    assert_int_equal(sl_make_dirs(at("a/b//c/"), &e), 0);
    assert_true(sl_is_dir(at("a/b/c")));
    assert_int_equal(sl_make_dirs(at("a/b/c"), &e), 0);
    assert_int_equal(sl_write_file(at("a/file"), "x", 1, &e), 0);
    assert_false(sl_is_dir(at("a/file")));
    assert_int_equal(sl_make_dirs(at("a/file/d"), &e), SL_E_IO);
    assert_non_null(strstr(e.text, "a/file: create folder: Not a directory"));
    assert_int_equal(sl_make_dirs("", &e), SL_E_IO);
    /* removal does not follow links */
    assert_int_equal(sl_make_dirs(at("keep"), &e), 0);
    assert_int_equal(sl_write_file(at("keep/x"), "x", 1, &e), 0);
    assert_int_equal(symlink(at("keep"), at("a/b/link")), 0);
    sl_remove_tree(at("a"));
    assert_int_equal(access(at("a"), F_OK), -1);
    expect_content(at("keep/x"), "x");
    sl_remove_tree(at("never was"));
}

static void free_space_of_things_to_come(void **state)
{
    (void)state;
    struct sl_err e = {0};
    struct statvfs fs;
    assert_int_equal(statvfs(root, &fs), 0);
    static const char *const names[] = {"", "x", "x/y/z", "x//y/"};
    for (size_t i = 0; i < 4; i++) {
        uint64_t bytes = 0;
        assert_int_equal(sl_free_space(at(names[i]), &bytes, &e), 0);
        assert_true(bytes > 0 && bytes <= (uint64_t)fs.f_blocks * fs.f_frsize);
    }
    uint64_t bytes = 0;
    assert_int_equal(sl_free_space("not here", &bytes, &e), 0);
    assert_int_equal(sl_free_space("/not/here", &bytes, &e), 0);
    assert_int_equal(sl_free_space("", &bytes, &e), SL_E_IO);
    /* a file in the way: its folder answers */
    assert_int_equal(sl_write_file(at("f"), "x", 1, &e), 0);
    assert_int_equal(sl_free_space(at("f/x"), &bytes, &e), 0);
}

static void only_regular_files_are_replaced(void **state)
{
    (void)state;
    struct sl_err e = {0};
    int fd;
    assert_int_equal(mkdir(at("folder"), 0777), 0);
    assert_int_equal(sl_tmp_open(&fd, at("folder"), false, &e), SL_E_IO);
    assert_non_null(strstr(e.text, "is a folder"));
    assert_int_equal(mkfifo(at("pipe"), 0666), 0);
    assert_int_equal(sl_write_file(at("pipe"), "x", 1, &e), SL_E_IO);
    assert_non_null(strstr(e.text, "is a device or a pipe"));
    /* through a link too: what it leads to is what the user meant */
    assert_int_equal(symlink("/dev/null", at("null")), 0);
    assert_int_equal(sl_write_file(at("null"), "x", 1, &e), SL_E_IO);
    assert_int_equal(access(at("folder.tmp"), F_OK), -1);
    assert_int_equal(access(at("pipe.tmp"), F_OK), -1);
    assert_int_equal(access(at("null.tmp"), F_OK), -1);
    struct stat st;
    assert_int_equal(lstat(at("pipe"), &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(sl_write_file(at("plain"), "x", 1, &e), 0);
    assert_int_equal(sl_write_file(at("plain"), "y", 1, &e), 0); /* the control */
}

int main(void)
{
#define IN_ROOT(f) cmocka_unit_test_setup_teardown(f, make_root, drop_root)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joins),
        IN_ROOT(writes_are_whole),
        IN_ROOT(a_failed_write_leaves_the_old_file_alone),
        IN_ROOT(a_failed_rename_leaves_nothing),
        cmocka_unit_test(a_full_device_is_named),
        IN_ROOT(temporaries_can_be_kept),
        IN_ROOT(short_reads_say_what_was_there),
        IN_ROOT(whole_reads_are_bounded),
        cmocka_unit_test(pipes_are_read_to_the_end),
        IN_ROOT(only_regular_files_are_replaced),
        IN_ROOT(folders),
        IN_ROOT(free_space_of_things_to_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
