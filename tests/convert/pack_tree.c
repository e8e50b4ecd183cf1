/* See pack_tree.h. */
#define _GNU_SOURCE
#include "tests/convert/pack_tree.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "offload/pack.h"

void pt_open(struct pt_room *r)
{
    const char *tmp = getenv("TMPDIR");
    uint64_t room;
    /* Containers often have 64 MB there, which is not enough. */
    if (!tmp || !*tmp)
        tmp = access("/dev/shm", W_OK) || sl_free_space("/dev/shm", &room, NULL) || room < 256 << 20
                  ? "build"
                  : "/dev/shm";
    snprintf(r->dir, sizeof r->dir, "%s/sluice-convert-XXXXXX", tmp);
    if (!mkdtemp(r->dir)) fail_msg("cannot make %s", r->dir);
    setenv("TMPDIR", tmp, 1);
}

void pt_close(struct pt_room *r)
{
    sl_remove_tree(r->dir);
}

const char *pt_path(const struct pt_room *r, const char *name)
{
    static char buffers[64][512];
    static int next;
    char *buf = buffers[next++ & 63];
    snprintf(buf, 512, "%s/%s", r->dir, name);
    return buf;
}

struct sl_convert_opts pt_opts(void)
{
    return (struct sl_convert_opts){.experts = SL_FMT_M4, .trunk = SL_FMT_BF16, .jobs = 1};
}

void pt_convert(const char *src, const char *dst, const struct sl_convert_opts *o)
{
    struct sl_err err = {0};
    struct sl_convert_report report;
    if (sl_convert(src, dst, o, &report, &err)) fail_msg("%s", err.text);
}

struct sl_pack *pt_open_pack(const char *dir)
{
    struct sl_pack *p;
    struct sl_err err = {0};
    if (sl_pack_open(&p, dir, NULL, 0, &err)) fail_msg("%s", err.text);
    return p;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Paths of all files below dir, relative, sorted. */
struct files {
    char *names[4096];
    int n;
};

static void list(struct files *f, const char *dir, const char *below)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, below);
    DIR *d = opendir(path);
    if (!d) {
        fail_msg("cannot open %s", path);
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        char rel[512];
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(rel, sizeof rel, "%s%s%s", below, *below ? "/" : "", e->d_name);
        snprintf(path, sizeof path, "%s/%s", dir, rel);
        assert_int_equal(lstat(path, &st), 0);
        if (S_ISDIR(st.st_mode)) {
            list(f, dir, rel);
            continue;
        }
        assert_true(f->n < 4096);
        f->names[f->n++] = strdup(rel);
    }
    closedir(d);
    if (!*below) qsort(f->names, (size_t)f->n, sizeof *f->names, by_name);
}

static void drop(struct files *f)
{
    for (int i = 0; i < f->n; i++) free(f->names[i]);
}

static bool same_file(const char *a, const char *b)
{
    char *x;
    char *y;
    size_t n;
    size_t m;
    struct sl_err err;
    if (sl_read_file(&x, &n, a, 1 << 30, SL_E_IO, &err)) fail_msg("%s", err.text);
    if (sl_read_file(&y, &m, b, 1 << 30, SL_E_IO, &err)) fail_msg("%s", err.text);
    bool same = n == m && !memcmp(x, y, n);
    free(x);
    free(y);
    return same;
}

bool pt_same(const char *a, const char *b, char *why, size_t n)
{
    static struct files fa;
    static struct files fb;
    fa.n = fb.n = 0;
    list(&fa, a, "");
    list(&fb, b, "");
    why[0] = 0;
    for (int i = 0; !why[0] && (i < fa.n || i < fb.n); i++) {
        const char *x = i < fa.n ? fa.names[i] : "(no more)";
        const char *y = i < fb.n ? fb.names[i] : "(no more)";
        char pa[1024];
        char pb[1024];
        snprintf(pa, sizeof pa, "%s/%s", a, x);
        snprintf(pb, sizeof pb, "%s/%s", b, y);
        if (strcmp(x, y) != 0)
            snprintf(why, n, "%s has %s where %s has %s", a, x, b, y);
        else if (!same_file(pa, pb))
            snprintf(why, n, "%s differs between %s and %s", x, a, b);
    }
    drop(&fa);
    drop(&fb);
    return !why[0];
}

void pt_expect_same(const char *a, const char *b)
{
    char why[2048];
    if (!pt_same(a, b, why, sizeof why)) fail_msg("%s", why);
}

uint64_t pt_bytes(const char *dir)
{
    static struct files f;
    uint64_t sum = 0;
    f.n = 0;
    list(&f, dir, "");
    for (int i = 0; i < f.n; i++) {
        char path[1024];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, f.names[i]);
        assert_int_equal(stat(path, &st), 0);
        sum += (uint64_t)st.st_size;
    }
    drop(&f);
    return sum;
}

bool pt_exists(const char *path)
{
    struct stat st;
    return !lstat(path, &st);
}

void pt_remove(const char *dir)
{
    sl_remove_tree(dir);
}

void pt_copy_checkpoint(const char *src, const char *dst)
{
    struct sl_err err;
    struct sl_source *s;
    char from[1024];
    char to[1024];
    char *data;
    size_t n;
    if (sl_source_open(&s, src, NULL, &err)) fail_msg("%s", err.text);
    assert_int_equal(sl_make_dirs(dst, NULL), 0);
    for (int i = 0; i <= s->n_shards + s->n_extra_files; i++) {
        const char *name = i < s->n_shards   ? s->shards[i].name
                           : i > s->n_shards ? s->extra_files[i - s->n_shards - 1]
                                             : "model.safetensors.index.json";
        snprintf(from, sizeof from, "%s/%s", s->dir, name);
        snprintf(to, sizeof to, "%s/%s", dst, name);
        if (sl_read_file(&data, &n, from, 1 << 30, SL_E_IO, &err)) fail_msg("%s", err.text);
        if (sl_write_file(to, data, n, &err)) fail_msg("%s", err.text);
        free(data);
    }
    sl_source_close(s);
}

void pt_poke(const char *ckpt, const char *tensor, uint64_t at, const void *bytes, size_t n)
{
    struct sl_source *s;
    struct sl_err err;
    if (sl_source_open(&s, ckpt, NULL, &err)) fail_msg("%s", err.text);
    const struct sl_src_tensor *t = sl_source_find(s, tensor);
    assert_non_null(t);
    assert_true(at + n <= t->bytes);
    FILE *f = fopen(s->shards[t->shard].path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)(t->offset + at), SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    sl_source_close(s);
}
