/* Freeing shards: checks first, then header copies, then one shard at a time.
 *
 * Order of removal: the blob, then the link. A kill between the two leaves a dangling link, which
 * counts as freed; the other order would leave a blob that nothing names any more. */
#define _GNU_SOURCE
#include "convert/free_source.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

bool sl_resolve_path(const char *path, char *out)
{
    char head[SL_PATH_MAX];
    char tail[SL_PATH_MAX] = "";
    size_t n = strlen(path);
    if (!n || n >= sizeof head) return false;
    memcpy(head, path, n + 1);
    while (n > 1 && head[n - 1] == '/') head[--n] = 0;
    for (;;) {
        char *full = realpath(head, NULL);
        if (full) {
            bool root = !strcmp(full, "/");
            int len = snprintf(out, SL_PATH_MAX, "%s%s", root && tail[0] ? "" : full, tail);
            free(full);
            return len < SL_PATH_MAX;
        }
        /* Move the last name from head to tail and try the folder above. */
        char *slash = strrchr(head, '/');
        const char *name = slash ? slash + 1 : head;
        char longer[SL_PATH_MAX];
        if (snprintf(longer, sizeof longer, "/%s%s", name, tail) >= (int)sizeof longer)
            return false;
        strcpy(tail, longer);
        if (!slash)
            strcpy(head, ".");
        else if (slash == head)
            head[1] = 0;
        else
            *slash = 0;
    }
}

static bool inside(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--;
    return !strncmp(path, folder, n) && (path[n] == '/' || !path[n] || n == 1);
}

static void parent_of(const char *path, char *dir)
{
    snprintf(dir, SL_PATH_MAX, "%s", path);
    char *slash = strrchr(dir, '/');
    if (!slash)
        strcpy(dir, ".");
    else
        slash[slash == dir] = 0;
}

/* Where the link leads; false when the shard is a plain file. */
static bool blob_of(const char *path, char *blob)
{
    char link[SL_PATH_MAX];
    char dir[SL_PATH_MAX];
    ssize_t n = readlink(path, link, sizeof link - 1);
    if (n < 0) return false;
    link[n] = 0;
    parent_of(path, dir);
    if (link[0] == '/')
        strcpy(blob, link);
    else if (!sl_path_join(blob, dir, link))
        blob[0] = 0;
    return true;
}

static int check_writable(const char *path, const struct sl_shard *sh, struct sl_err *err)
{
    char dir[SL_PATH_MAX];
    parent_of(path, dir);
    if (!access(dir, W_OK)) return 0;
    return sl_fail(err, SL_E_ARG, sh->name, "--free-source", "files in %s cannot be removed: %s",
                   dir, strerror(errno));
}

/* Another revision in the cache that uses the same blob would lose it. */
static int check_snapshots(const struct sl_source *s, const struct sl_shard *sh,
                           const struct stat *st, struct sl_err *err)
{
    char all[SL_PATH_MAX];
    char other[SL_PATH_MAX];
    char path[SL_PATH_MAX];
    struct stat found;
    struct stat own;
    int rc = 0;
    parent_of(s->dir, all);
    const char *base = strrchr(all, '/');
    if (strcmp(base ? base + 1 : all, "snapshots") != 0 || stat(s->dir, &own)) return 0;
    DIR *d = opendir(all);
    if (!d) return 0;
    for (struct dirent *e; !rc && (e = readdir(d));) {
        if (e->d_name[0] == '.' || !sl_path_join(other, all, e->d_name)) continue;
        if (stat(other, &found) || (found.st_dev == own.st_dev && found.st_ino == own.st_ino))
            continue;
        if (!sl_path_join(path, other, sh->name) || stat(path, &found)) continue;
        if (found.st_dev == st->st_dev && found.st_ino == st->st_ino)
            rc = sl_fail(err, SL_E_ARG, sh->name, "--free-source",
                         "its data is also used by %s; remove that one first", other);
    }
    closedir(d);
    return rc;
}

static int check_shard(const struct sl_source *s, int i, struct stat *seen, struct sl_err *err)
{
    const struct sl_shard *sh = &s->shards[i];
    char blob[SL_PATH_MAX];
    struct stat st;
    memset(&seen[i], 0, sizeof seen[i]);
    if (sh->fd < 0) return 0;
    if (fstat(sh->fd, &seen[i])) return sl_fail_errno(err, SL_E_SOURCE, errno, sh->path, "look at");
    for (int k = 0; k < i; k++)
        if (seen[k].st_ino == seen[i].st_ino && seen[k].st_dev == seen[i].st_dev)
            return sl_fail(err, SL_E_ARG, sh->name, "--free-source", "is the same file as %s",
                           s->shards[k].name);
    int rc = check_writable(sh->path, sh, err);
    if (rc || !blob_of(sh->path, blob)) return rc;
    if (lstat(blob, &st) || !S_ISREG(st.st_mode))
        return sl_fail(err, SL_E_ARG, sh->name, "--free-source",
                       "links to %s, which is no regular file: unclear what to remove", blob);
    rc = check_writable(blob, sh, err);
    return rc ? rc : check_snapshots(s, sh, &st, err);
}

int sl_free_check(const struct sl_source *s, const char *dst, struct sl_err *err)
{
    char from[SL_PATH_MAX];
    char to[SL_PATH_MAX];
    if (!sl_resolve_path(s->dir, from) || !sl_resolve_path(dst, to))
        return sl_fail(err, SL_E_ARG, dst, "--free-source", "path too long");
    if (inside(from, to) || inside(to, from))
        return sl_fail(err, SL_E_ARG, dst, "--free-source",
                       "%s and the pack lie inside one another: unclear what to remove", s->dir);
    struct stat *seen = calloc((size_t)s->n_shards + 1, sizeof *seen);
    if (!seen) return sl_fail(err, SL_E_NOMEM, s->dir, NULL, "out of memory");
    int rc = 0;
    for (int i = 0; !rc && i < s->n_shards; i++) rc = check_shard(s, i, seen, err);
    free(seen);
    return rc;
}

uint64_t sl_free_headers_bytes(const struct sl_source *s)
{
    uint64_t n = 0;
    for (int i = 0; i < s->n_shards; i++) n += s->shards[i].header_bytes + 8;
    return n;
}

int sl_free_save_headers(const struct sl_source *s, const char *dir, struct sl_err *err)
{
    for (int i = 0; i < s->n_shards; i++) {
        const struct sl_shard *sh = &s->shards[i];
        char path[SL_PATH_MAX];
        if (sh->fd < 0) continue;
        int n = snprintf(path, sizeof path, "%s/%s.header", dir, sh->name);
        if (n < 0 || n >= (int)sizeof path)
            return sl_fail(err, SL_E_ARG, dir, NULL, "path too long");
        uint8_t *buf = malloc(sh->header_bytes + 8);
        if (!buf) return sl_fail(err, SL_E_NOMEM, path, NULL, "out of memory");
        int rc = sl_pread_all(sh->fd, buf, sh->header_bytes, 0, sh->name, SL_E_SOURCE, err);
        for (int b = 0; b < 8; b++)
            buf[sh->header_bytes + (size_t)b] = (uint8_t)(sh->bytes >> 8 * b);
        if (!rc) rc = sl_write_file(path, buf, sh->header_bytes + 8, err);
        free(buf);
        if (rc) return rc;
    }
    return 0;
}

uint64_t sl_free_gain(const struct sl_shard *sh, dev_t *dev)
{
    struct stat st;
    if (sh->fd < 0 || fstat(sh->fd, &st) || st.st_nlink > 1) return 0;
    *dev = st.st_dev;
    return (uint64_t)st.st_blocks * 512;
}

int sl_free_shard(struct sl_shard *sh, struct sl_err *err)
{
    char blob[SL_PATH_MAX];
    if (sh->fd >= 0) close(sh->fd); /* an open file keeps its space */
    sh->fd = -1;
    if (blob_of(sh->path, blob) && blob[0] && unlink(blob) && errno != ENOENT)
        return sl_fail_errno(err, SL_E_IO, errno, blob, "remove");
    if (unlink(sh->path) && errno != ENOENT)
        return sl_fail_errno(err, SL_E_IO, errno, sh->path, "remove");
    return 0;
}
