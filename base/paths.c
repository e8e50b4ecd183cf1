/* Folders and names: joining, creating, removing, measuring. File contents are in file.c. */
#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/size.h"

bool sl_path_join(char *buf, const char *dir, const char *name)
{
    size_t n = strlen(dir);
    const char *slash = n && dir[n - 1] != '/' ? "/" : "";
    int len = snprintf(buf, SL_PATH_MAX, "%s%s%s", dir, slash, name);
    return len >= 0 && len < SL_PATH_MAX;
}

bool sl_is_dir(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

int sl_make_dirs(const char *path, struct sl_err *err)
{
    char buf[SL_PATH_MAX];
    size_t n = strlen(path);
    if (!n || n >= sizeof buf) return sl_fail(err, SL_E_IO, path, "create folder", "bad path");
    memcpy(buf, path, n + 1);
    for (char *p = buf + 1;; p++) {
        char c = *p;
        if (c && c != '/') continue;
        *p = '\0';
        if (mkdir(buf, 0777)) {
            int e = errno; /* of mkdir: the look that follows has its own */
            if (!sl_is_dir(buf))
                return sl_fail_errno(err, SL_E_IO, e == EEXIST ? ENOTDIR : e, buf, "create folder");
        }
        if (!c) return 0;
        *p = c;
    }
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    (void)remove(path);
    return 0;
}

void sl_remove_tree(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

int sl_file_size(const char *path, uint64_t *bytes, int code, struct sl_err *err)
{
    struct stat st;
    if (stat(path, &st)) return sl_fail_errno(err, code, errno, path, "size");
    if (!S_ISREG(st.st_mode)) return sl_fail(err, code, path, NULL, "not a regular file");
    *bytes = (uint64_t)st.st_size;
    return 0;
}

int sl_free_space(const char *path, uint64_t *bytes, struct sl_err *err)
{
    char buf[SL_PATH_MAX];
    size_t n = strlen(path);
    if (!n || n >= sizeof buf) return sl_fail(err, SL_E_IO, path, "free space", "bad path");
    memcpy(buf, path, n + 1);
    struct statvfs fs;
    while (statvfs(buf, &fs)) {
        if (errno == EINTR) continue;
        if (errno != ENOENT && errno != ENOTDIR)
            return sl_fail_errno(err, SL_E_IO, errno, buf, "free space");
        while (n > 1 && buf[n - 1] == '/') buf[--n] = '\0';
        char *slash = strrchr(buf, '/');
        if (slash && slash != buf)
            *slash = '\0';
        else if (strcmp(buf, ".") != 0 && strcmp(buf, "/") != 0)
            strcpy(buf, slash ? "/" : ".");
        else
            return sl_fail_errno(err, SL_E_IO, errno, buf, "free space");
        n = strlen(buf);
    }
    /* f_bavail, not f_bfree: the rest is the superuser's reserve. */
    if (!sl_mul_u64(fs.f_bavail, fs.f_frsize, bytes)) *bytes = UINT64_MAX;
    return 0;
}
