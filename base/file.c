/* Whole reads, whole writes, and files that appear complete or not at all.
 *
 *   open PATH.tmp -> write -> fsync -> close -> rename to PATH -> fsync of the folder
 *
 * The last step matters: without it a power cut may lose the new name although the bytes are safe. */
#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One Linux read or write moves at most 2 GiB less a page; smaller steps keep Ctrl-C responsive. */
#define STEP_BYTES ((size_t)256 << 20)

static size_t step(size_t n)
{
    return n < STEP_BYTES ? n : STEP_BYTES;
}

int sl_pread_all(int fd, void *buf, size_t n, uint64_t off, const char *file, int code,
                 struct sl_err *err)
{
    if (off > INT64_MAX || n > INT64_MAX - off)
        return sl_fail(err, code, file, "read", "offset %llu is past any file",
                       (unsigned long long)off);
    size_t done = 0;
    while (done < n) {
        ssize_t got = pread(fd, (char *)buf + done, step(n - done), (off_t)(off + done));
        if (got < 0 && errno == EINTR) continue;
        /* A drive that fails says nothing about the file on it. */
        if (got < 0) return sl_fail_errno(err, errno == EIO ? SL_E_IO : code, errno, file, "read");
        if (!got)
            return sl_fail(err, code, file, "read",
                           "wanted %zu bytes at offset %llu, found %zu: the file is cut", n,
                           (unsigned long long)off, done);
        done += (size_t)got;
    }
    return 0;
}

int sl_pwrite_all(int fd, const void *buf, size_t n, uint64_t off, const char *file,
                  struct sl_err *err)
{
    if (off > INT64_MAX || n > INT64_MAX - off)
        return sl_fail(err, SL_E_IO, file, "write", "offset %llu is past any file",
                       (unsigned long long)off);
    size_t done = 0;
    while (done < n) {
        ssize_t put = pwrite(fd, (const char *)buf + done, step(n - done), (off_t)(off + done));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return sl_fail_errno(err, SL_E_IO, errno, file, "write");
        if (!put) return sl_fail_errno(err, SL_E_IO, EIO, file, "write");
        done += (size_t)put;
    }
    return 0;
}

static int too_large(struct sl_err *err, int code, const char *path, uint64_t max_bytes)
{
    return sl_fail(err, code, path, NULL, "larger than the %llu bytes allowed here",
                   (unsigned long long)max_bytes);
}

/* Reads to the end: the size is a first guess only, since pipes have none and files may grow. */
static int read_to_end(int fd, size_t guess, char **out, size_t *len, const char *path,
                       uint64_t max_bytes, int code, struct sl_err *err)
{
    size_t room = guess + 2; /* one to see the end, one for the NUL */
    size_t used = 0;
    int rc;
    char *buf = malloc(room);
    if (!buf) goto no_memory;
    for (;;) {
        if (used + 1 == room) {
            char *more = realloc(buf, room * 2);
            if (!more) goto no_memory;
            buf = more;
            room *= 2;
        }
        ssize_t got = read(fd, buf + used, step(room - used - 1));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            rc = sl_fail_errno(err, code, errno, path, "read");
            goto fail;
        }
        if (!got) break;
        used += (size_t)got;
        if (used > max_bytes) {
            rc = too_large(err, code, path, max_bytes);
            goto fail;
        }
    }
    buf[used] = '\0';
    *out = buf;
    *len = used;
    return 0;
no_memory:
    rc = sl_fail_errno(err, SL_E_NOMEM, ENOMEM, path, "read");
fail:
    free(buf);
    return rc;
}

int sl_read_file(char **out, size_t *len, const char *path, uint64_t max_bytes, int code,
                 struct sl_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return sl_fail_errno(err, code, errno, path, "open");
    struct stat st;
    size_t guess = 4096;
    int rc = 0;
    if (fstat(fd, &st)) {
        rc = sl_fail_errno(err, code, errno, path, "open");
    } else if (S_ISREG(st.st_mode)) {
        if ((uint64_t)st.st_size > max_bytes)
            rc = too_large(err, code, path, max_bytes);
        else
            guess = (size_t)st.st_size;
    }
    if (!rc) rc = read_to_end(fd, guess, out, len, path, max_bytes, code, err);
    close(fd);
    return rc;
}

static bool tmp_name(char *buf, const char *path)
{
    int n = snprintf(buf, SL_PATH_MAX, "%s.tmp", path);
    return n >= 0 && n < SL_PATH_MAX;
}

int sl_tmp_open(int *fd, const char *path, bool keep_existing, struct sl_err *err)
{
    char tmp[SL_PATH_MAX];
    struct stat st;
    *fd = -1;
    if (!tmp_name(tmp, path)) return sl_fail_errno(err, SL_E_IO, ENAMETOOLONG, path, "create");
    /* rename() would put a plain file in the place of /dev/null, for every program from then on. */
    if (!stat(path, &st) && !S_ISREG(st.st_mode))
        return sl_fail(err, SL_E_IO, path, "create", "%s: only a regular file is replaced",
                       S_ISDIR(st.st_mode) ? "is a folder" : "is a device or a pipe");
    /* NOFOLLOW: a link planted under the temporary name must not send our bytes elsewhere. */
    int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (keep_existing ? 0 : O_TRUNC);
    *fd = open(tmp, flags, 0666);
    if (*fd < 0) return sl_fail_errno(err, SL_E_IO, errno, tmp, "create");
    return 0;
}

void sl_tmp_discard(int fd, const char *path)
{
    char tmp[SL_PATH_MAX];
    if (fd >= 0) close(fd);
    if (tmp_name(tmp, path)) unlink(tmp);
}

int sl_tmp_publish(int fd, const char *path, struct sl_err *err)
{
    char tmp[SL_PATH_MAX];
    int rc;
    if (!tmp_name(tmp, path)) {
        close(fd);
        return sl_fail_errno(err, SL_E_IO, ENAMETOOLONG, path, "publish");
    }
    if (fsync(fd)) {
        rc = sl_fail_errno(err, SL_E_IO, errno, tmp, "sync");
        sl_tmp_discard(fd, path);
        return rc;
    }
    if (close(fd)) { /* network file systems report a full disk here */
        rc = sl_fail_errno(err, SL_E_IO, errno, tmp, "close");
        goto fail;
    }
    if (rename(tmp, path)) {
        rc = sl_fail_errno(err, SL_E_IO, errno, path, "rename");
        goto fail;
    }
    char dir[SL_PATH_MAX];
    memcpy(dir, path, strlen(path) + 1);
    char *slash = strrchr(dir, '/');
    if (!slash)
        strcpy(dir, ".");
    else
        slash[slash == dir] = '\0';
    return sl_sync_dir(dir, err);
fail:
    unlink(tmp);
    return rc;
}

int sl_sync_dir(const char *path, struct sl_err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return sl_fail_errno(err, SL_E_IO, errno, path, "sync folder");
    /* EINVAL and ENOTSUP: a file system without folder sync; there is nothing more to ask of it. */
    int e = fsync(fd) ? errno : 0;
    close(fd);
    if (e && e != EINVAL && e != ENOTSUP)
        return sl_fail_errno(err, SL_E_IO, e, path, "sync folder");
    return 0;
}

int sl_write_file(const char *path, const void *data, size_t len, struct sl_err *err)
{
    int fd;
    int rc = sl_tmp_open(&fd, path, false, err);
    if (rc) return rc;
    rc = sl_pwrite_all(fd, data, len, 0, path, err);
    if (rc) {
        sl_tmp_discard(fd, path);
        return rc;
    }
    return sl_tmp_publish(fd, path, err);
}
