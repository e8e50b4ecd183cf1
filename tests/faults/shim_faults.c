/* A drive that misbehaves, put between a program and the kernel with LD_PRELOAD.
 *
 *   SLUICE_FAULT="KIND OP PATH NTH[; ...]"     NTH-th call of OP on a file whose path holds PATH; 0: every
 *
 *   KIND  short  half of the bytes           eintr  -1, EINTR (a call later it works)
 *         eio, enospc                        slow   5 ms late
 *         torn   half is written, then EIO   flip   one bit of the data is wrong
 *   OP    read (read, pread), write (write, pwrite), sync (fsync, fdatasync), rename, open, ring (a read
 *         by io_uring: short, eio, slow, flip)
 *
 * SLUICE_FAULT_WHEN=FILE: only while that file is there; calls at other times are not counted.
 *
 * SLUICE_FAULT_LOG=FILE gets a line for each fault that was injected, so that a run in which nothing
 * happened is not counted as survived.
 *
 * SLUICE_RECORD=FILE records everything that changes the disk below SLUICE_RECORD_DIR, with its data and
 * its syncs, for tool_power_cut.c.
 *
 * Only system calls through libc are seen, and what is submitted to a ring through liburing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/faults/power_cut.h"

#if defined __has_include
#if __has_include(<liburing.h>)
#include <liburing.h>
#define HAVE_RING
#endif
#endif

enum kind { NONE, SHORT, EINTR_, EIO_, ENOSPC_, SLOW, TORN, FLIP };
enum op { OP_READ, OP_WRITE, OP_SYNC, OP_RENAME, OP_OPEN, OP_RING, N_OPS };

static const char *const kinds[] = {"none",   "short", "eintr", "eio",
                                    "enospc", "slow",  "torn",  "flip"};
static const char *const ops[] = {"read", "write", "sync", "rename", "open", "ring"};

static struct rule {
    enum kind kind;
    enum op op;
    char path[128];
    unsigned long nth, seen;
} rules[16];
static int n_rules;
static int record_fd = -1, log_fd = -1;
static char record_dir[4096];
static const char *when; /* a path, or NULL */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static long (*next_call(const char *name))(long, ...)
{
    void *p = dlsym(RTLD_NEXT, name);
    long (*fn)(long, ...);
    memcpy(&fn, &p, sizeof fn);
    return fn;
}

static void raw_write(int fd, const void *data, size_t n)
{
    const char *p = data;
    while (n > 0) {
        long got = syscall(SYS_write, fd, p, n);
        if (got <= 0) _exit(97);
        p += got;
        n -= (size_t)got;
    }
}

__attribute__((constructor)) static void setup(void)
{
    const char *text = getenv("SLUICE_FAULT");
    const char *rec = getenv("SLUICE_RECORD");
    const char *dir = getenv("SLUICE_RECORD_DIR");
    const char *log = getenv("SLUICE_FAULT_LOG");
    when = getenv("SLUICE_FAULT_WHEN");
    char copy[1024];
    char *save = NULL;
    snprintf(copy, sizeof copy, "%s", text ? text : "");
    for (char *s = strtok_r(copy, ";", &save); s && n_rules < 16; s = strtok_r(NULL, ";", &save)) {
        char kind[16];
        char op[16];
        struct rule *r = &rules[n_rules];
        if (sscanf(s, " %15s %15s %127s %lu", kind, op, r->path, &r->nth) != 4) _exit(96);
        for (int k = SHORT; k <= FLIP; k++)
            if (!strcmp(kind, kinds[k])) r->kind = (enum kind)k;
        int o = 0;
        while (o < N_OPS && strcmp(op, ops[o]) != 0) o++;
        if (o == N_OPS || r->kind == NONE) _exit(96);
        if (o == OP_RING && (r->kind == EINTR_ || r->kind == ENOSPC_ || r->kind == TORN)) _exit(96);
        r->op = (enum op)o;
        n_rules++;
    }
    if (log) log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (rec && dir) {
        snprintf(record_dir, sizeof record_dir, "%s", dir);
        record_fd = (int)syscall(SYS_openat, AT_FDCWD, rec, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    }
}

/* Path of a descriptor, "" when it has none. */
static const char *path_of(int fd, char buf[4096])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlinkat, AT_FDCWD, link, buf, 4095);
    buf[n > 0 ? n : 0] = 0;
    return buf;
}

static enum kind decide(enum op op, const char *path)
{
    enum kind k = NONE;
    if (!n_rules) return NONE;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_rules && k == NONE; i++) {
        struct rule *r = &rules[i];
        if (r->op != op || !strstr(path, r->path)) continue;
        if (when && syscall(SYS_faccessat, AT_FDCWD, when, F_OK)) continue;
        r->seen++;
        /* EINTR on every call would never end. */
        bool hit = r->nth ? r->seen == r->nth : r->kind != EINTR_ || r->seen % 2;
        if (hit) k = r->kind;
    }
    pthread_mutex_unlock(&lock);
    if (k != NONE && log_fd >= 0) {
        char line[4300];
        int n = snprintf(line, sizeof line, "%s %s %s\n", kinds[k], ops[op], path);
        raw_write(log_fd, line, (size_t)n);
    }
    if (k == SLOW) syscall(SYS_nanosleep, &(struct timespec){0, 5000000}, NULL);
    return k;
}

static int error_of(enum kind k)
{
    return k == EINTR_ ? EINTR : k == ENOSPC_ ? ENOSPC : k == EIO_ || k == TORN ? EIO : 0;
}

/* ---- recording ------------------------------------------------------------------------------------- */

static void record(int op, const char *path, const char *path2, uint64_t at, const void *data,
                   uint64_t n)
{
    if (record_fd < 0 || strncmp(path, record_dir, strlen(record_dir)) != 0) return;
    struct pc_record r = {.op = (uint32_t)op,
                          .path_bytes = (uint32_t)strlen(path) + 1,
                          .path2_bytes = path2 ? (uint32_t)strlen(path2) + 1 : 0,
                          .at = at,
                          .n = n,
                          .data_bytes = data ? n : 0};
    pthread_mutex_lock(&lock);
    raw_write(record_fd, &r, sizeof r);
    raw_write(record_fd, path, r.path_bytes);
    if (path2) raw_write(record_fd, path2, r.path2_bytes);
    if (data) raw_write(record_fd, data, n);
    pthread_mutex_unlock(&lock);
}

/* ---- reads and writes ------------------------------------------------------------------------------ */

static ssize_t do_read(int fd, void *buf, size_t n, off_t at, bool placed)
{
    char path[4096];
    enum kind k = n_rules ? decide(OP_READ, path_of(fd, path)) : NONE;
    if (error_of(k)) {
        errno = error_of(k);
        return -1;
    }
    if (k == SHORT && n > 1) n /= 2;
    ssize_t got = placed ? syscall(SYS_pread64, fd, buf, n, at) : syscall(SYS_read, fd, buf, n);
    if (k == FLIP && got > 0) ((unsigned char *)buf)[got / 2] ^= 4;
    return got;
}

static ssize_t do_write(int fd, const void *buf, size_t n, off_t at, bool placed)
{
    char path[4096];
    bool watched = n_rules || record_fd >= 0;
    enum kind k = watched ? decide(OP_WRITE, path_of(fd, path)) : NONE;
    if (error_of(k) && k != TORN) {
        errno = error_of(k);
        return -1;
    }
    if ((k == SHORT || k == TORN) && n > 1) n /= 2;
    unsigned char *copy = NULL;
    if (k == FLIP && n > 0) {
        copy = malloc(n);
        if (copy) {
            memcpy(copy, buf, n);
            copy[n / 2] ^= 4;
            buf = copy;
        }
    }
    if (!placed && record_fd >= 0) at = lseek(fd, 0, SEEK_CUR);
    ssize_t got = placed ? syscall(SYS_pwrite64, fd, buf, n, at) : syscall(SYS_write, fd, buf, n);
    if (got > 0 && record_fd >= 0 && watched)
        record(PC_WRITE, path, NULL, (uint64_t)at, buf, (uint64_t)got);
    free(copy);
    if (k == TORN) {
        errno = EIO;
        return -1;
    }
    return got;
}

ssize_t read(int fd, void *buf, size_t n)
{
    return do_read(fd, buf, n, 0, false);
}
ssize_t pread(int fd, void *buf, size_t n, off_t at)
{
    return do_read(fd, buf, n, at, true);
}
ssize_t pread64(int fd, void *buf, size_t n, off_t at)
{
    return do_read(fd, buf, n, at, true);
}
ssize_t write(int fd, const void *buf, size_t n)
{
    return do_write(fd, buf, n, 0, false);
}
ssize_t pwrite(int fd, const void *buf, size_t n, off_t at)
{
    return do_write(fd, buf, n, at, true);
}
ssize_t pwrite64(int fd, const void *buf, size_t n, off_t at)
{
    return do_write(fd, buf, n, at, true);
}

/* ---- the rest -------------------------------------------------------------------------------------- */

static int do_sync(int fd, const char *name)
{
    char path[4096];
    struct stat st;
    path_of(fd, path);
    enum kind k = decide(OP_SYNC, path);
    if (error_of(k)) {
        errno = error_of(k);
        return -1;
    }
    int rc = (int)next_call(name)(fd);
    if (!rc && record_fd >= 0)
        record(!fstat(fd, &st) && S_ISDIR(st.st_mode) ? PC_SYNC_DIR : PC_SYNC, path, NULL, 0, NULL,
               0);
    return rc;
}
int fsync(int fd)
{
    return do_sync(fd, "fsync");
}
int fdatasync(int fd)
{
    return do_sync(fd, "fdatasync");
}

int rename(const char *from, const char *to)
{
    enum kind k = decide(OP_RENAME, to);
    if (error_of(k)) {
        errno = error_of(k);
        return -1;
    }
    int rc = (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
    if (!rc) record(PC_RENAME, from, to, 0, NULL, 0);
    return rc;
}

static int do_open(const char *path, int flags, mode_t mode)
{
    enum kind k = decide(OP_OPEN, path);
    if (error_of(k)) {
        errno = error_of(k);
        return -1;
    }
    bool is_new = record_fd >= 0 && flags & O_CREAT && syscall(SYS_faccessat, AT_FDCWD, path, F_OK);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (fd >= 0 && is_new) record(PC_CREATE, path, NULL, 0, NULL, 0);
    if (fd >= 0 && flags & O_TRUNC) record(PC_TRUNCATE, path, NULL, 0, NULL, 0);
    return fd;
}
int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return do_open(path, flags, mode);
}
int open64(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return do_open(path, flags, mode);
}

int ftruncate(int fd, off_t n)
{
    char path[4096];
    int rc = (int)syscall(SYS_ftruncate, fd, n);
    if (!rc && record_fd >= 0) record(PC_TRUNCATE, path_of(fd, path), NULL, (uint64_t)n, NULL, 0);
    return rc;
}

int fallocate(int fd, int mode, off_t at, off_t n)
{
    char path[4096];
    int rc = (int)syscall(SYS_fallocate, fd, mode, at, n);
    if (!rc && record_fd >= 0 && !mode)
        record(PC_EXTEND, path_of(fd, path), NULL, (uint64_t)(at + n), NULL, 0);
    return rc;
}

int mkdir(const char *path, mode_t mode)
{
    int rc = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (!rc) record(PC_MKDIR, path, NULL, 0, NULL, 0);
    return rc;
}
int unlink(const char *path)
{
    int rc = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (!rc) record(PC_UNLINK, path, NULL, 0, NULL, 0);
    return rc;
}
int rmdir(const char *path)
{
    int rc = (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
    if (!rc) record(PC_UNLINK, path, NULL, 0, NULL, 0);
    return rc;
}

/* ---- the ring --------------------------------------------------------------------------------------
 *
 * The kernel writes what became of a read into memory that the program looks at by itself, so a fault is
 * prepared before: the entry gets a descriptor whose read ends as asked.
 *
 *   eio    /proc/self/mem at address 0, where nothing is
 *   short  half of the pages, if there are two
 *   slow   submitted 5 ms late
 *   flip   a file in memory with the same bytes but one bit
 *
 * An interrupted read cannot be had this way: tests/offload/faulty_reader.c has those. */
#ifdef HAVE_RING

enum { FILE_PAGE = 4096 };

/* A descriptor that is opened once. The program's next file never gets its number: it stays open. */
static int kept_fd(enum kind k)
{
    static int fds[FLIP + 1];
    pthread_mutex_lock(&lock);
    if (!fds[k]) {
        if (k == EIO_) fds[k] = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/mem", O_RDONLY);
        if (k == FLIP) fds[k] = memfd_create("flipped", MFD_CLOEXEC);
        if (fds[k] <= 0) _exit(95);
    }
    pthread_mutex_unlock(&lock);
    return fds[k];
}

/* The bytes that q asks for, with one bit changed, at the same offset of another file. The read itself
 * goes into q's own memory, which is aligned as the descriptor wants it. */
static void flip_read(struct io_uring_sqe *q)
{
    void *buf = (void *)(uintptr_t)q->addr;
    int fd = kept_fd(FLIP);
    long got = syscall(SYS_pread64, q->fd, buf, q->len, q->off);
    if (got <= 0) return;
    ((unsigned char *)buf)[got / 2] ^= 4;
    if (syscall(SYS_pwrite64, fd, buf, got, q->off) != got) _exit(95);
    q->fd = fd;
}

static void spoil(struct io_uring_sqe *q)
{
    char path[4096];
    if (q->opcode != IORING_OP_READ) return;
    enum kind k = decide(OP_RING, path_of(q->fd, path));
    if (k == SHORT && q->len >= 2 * FILE_PAGE) q->len = q->len / 2 / FILE_PAGE * FILE_PAGE;
    if (k == EIO_) {
        q->fd = kept_fd(k);
        q->off = 0;
    }
    if (k == FLIP) flip_read(q);
}

int io_uring_submit(struct io_uring *ring)
{
    static int (*next)(struct io_uring *);
    pthread_mutex_lock(&lock);
    if (!next) {
        void *p = dlsym(RTLD_NEXT, "io_uring_submit");
        memcpy(&next, &p, sizeof next);
    }
    pthread_mutex_unlock(&lock);
    if (n_rules)
        for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++)
            spoil(&ring->sq.sqes[i & *ring->sq.kring_mask]);
    return next(ring);
}

#endif
